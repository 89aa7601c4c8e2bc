"""Policies: every space, memories equal to loops with resets, and training that sees what acting saw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import polyrhythm as pr
from polyrhythm import rl

CONTEXT, STEPS, ENVS, ITERATIONS = 5, 9, 3, 3


def acted(memory: str) -> tuple[rl.ActorCritic, dict[str, np.ndarray]]:
    """Some iterations of CartPole with fixed weights: what was seen, where episodes began, and the values."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    carts = rl.Arrays(rl.CartPole(limit=7), ENVS)
    model = rl.ActorCritic(
        carts.observations, carts.actions, (8,), np.random.default_rng(0), memory=memory, context=CONTEXT
    )
    along = rl.Acting(i, t, ENVS)
    found: dict[str, Any] = {}

    def act(seen: pr.Tensor) -> pr.Tensor:
        found["policy"], found["value"] = model(seen, along)
        return found["policy"].sample((i, t), name="actions")

    steps = carts.run(i, t, act)
    along.ended(steps)
    whole = {t: slice(0, T)}
    outputs = {
        "seen": steps.observation[whole],
        "begins": along.begins[whole],
        "value": found["value"][whole],
        "following": steps.following[whole],
        "peek": model.get_value(steps.following, along)[whole],
    }
    return model, pr.compile(outputs, backend="numpy")(bounds={I: ITERATIONS, T: STEPS})


def tensors(model: rl.ActorCritic) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(weight) for name, weight in model.weights().items()}


def features(w: dict[str, torch.Tensor], seen: np.ndarray) -> torch.Tensor:
    return torch.tanh(torch.tensor(seen) @ w["trunk.layers.0.weight"].T + w["trunk.layers.0.bias"])


def value_of(w: dict[str, torch.Tensor], x: torch.Tensor) -> np.ndarray:
    return (x @ w["value.weight"].T + w["value.bias"])[..., 0].numpy()


@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_cells_like_torch_with_resets(memory: str) -> None:
    """Flat over iterations and steps; `following` is read after the step, from the state that the step left."""
    model, a = acted(memory)
    w = tensors(model)
    cell: Any = (torch.nn.LSTMCell if memory == "lstm" else torch.nn.GRUCell)(8, 8)
    cell.load_state_dict({k: w[f"memory.layer.{k}_l0"] for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")})
    parts = 2 if memory == "lstm" else 1
    state = [torch.zeros(ENVS, 8) for _ in range(parts)]

    def step(x: torch.Tensor, state: list[torch.Tensor]) -> list[torch.Tensor]:
        return list(cell(x, tuple(state))) if parts == 2 else [cell(x, state[0])]

    assert a["begins"].sum() > ENVS
    with torch.no_grad():
        for i in range(ITERATIONS):
            for t in range(STEPS):
                alive = torch.tensor(~a["begins"][i, t], dtype=torch.float32)[:, None]
                state = step(features(w, a["seen"][i, t]), [alive * part for part in state])
                np.testing.assert_allclose(a["value"][i, t], value_of(w, state[0]), rtol=2e-5, atol=2e-5)
                ahead = step(features(w, a["following"][i, t]), state)[0]
                np.testing.assert_allclose(a["peek"][i, t], value_of(w, ahead), rtol=2e-5, atol=2e-5)


def attended(w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The last of some steps (steps, 8) of one episode, by torch's attention with a bias for distance."""
    name = "memory.blocks.0."

    def linear(part: str, x: torch.Tensor) -> torch.Tensor:
        return x @ w[f"{name}{part}.weight"].T + w[f"{name}{part}.bias"]

    def norm(part: str, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (8,), w[f"{part}.weight"], w[f"{part}.bias"])

    normed = norm(f"{name}before_attention", x)
    q, k, v = (linear(part, normed).reshape(-1, 4, 2).transpose(0, 1) for part in ("query", "key", "value"))
    bias = w[f"{name}distance"][:, None, -len(x) :]
    mixed = torch.nn.functional.scaled_dot_product_attention(q[:, -1:], k, v, attn_mask=bias)
    y = x[-1] + linear("project", mixed.reshape(8))
    y = y + linear("narrow", torch.relu(linear("wide", norm(f"{name}before_layers", y))))
    return norm("memory.norm", y)


def test_transformer_attends_to_its_episode_over_iterations() -> None:
    """The context is cut off at the start of the episode, and goes back into the iteration before."""
    model, a = acted("transformer")
    w = tensors(model)
    flat = {key: array.reshape(-1, *array.shape[2:]) for key, array in a.items()}
    for b in range(ENVS):
        first = 0
        for n in range(ITERATIONS * STEPS):
            first = n if flat["begins"][n, b] else first
            seen = features(w, flat["seen"][max(first, n - CONTEXT + 1) : n + 1, b])
            np.testing.assert_allclose(flat["value"][n, b], value_of(w, attended(w, seen)), rtol=2e-5, atol=2e-5)
            ahead = torch.cat([seen[-CONTEXT + 1 :], features(w, flat["following"][n, b])[None]])
            np.testing.assert_allclose(flat["peek"][n, b], value_of(w, attended(w, ahead)), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("memory", ["lstm", "transformer"])
def test_the_first_update_sees_what_acting_saw(memory: str) -> None:
    """With the weights that acted, learning gives each action the likelihood it had: the ratio is 1."""
    carts = rl.Arrays(rl.CartPole(limit=7), 4)
    model = rl.ActorCritic(carts.observations, carts.actions, (8,), np.random.default_rng(0), memory=memory, context=4)
    training = rl.ppo(carts, model, rl.PPOSettings(steps=5, epochs=1, minibatches=1, burn_in=2, learning_rate=0.05))
    names = ("approx_kl", "clip_fraction", "entropy")
    program = pr.compile({n: training.outputs[n] for n in names}, bounds=training.bounds, backend="numpy")
    found = program(bounds={training.iterations: 4})
    np.testing.assert_allclose(found["approx_kl"], 0, atol=1e-6)
    assert found["clip_fraction"].tolist() == [0] * 4
    assert len(set(found["entropy"].round(6).tolist())) == 4  # the weights do move


SPACES: list[Any] = [
    rl.Box((3, 2)),
    rl.Box((12, 12, 3), 0, 255, "uint8"),
    rl.Box((3, 2, 2)),
    rl.Discrete(5),
    rl.MultiDiscrete((2, 3)),
    rl.MultiBinary(4),
    {"image": rl.Box((3, 12, 12), 0, 255, "uint8"), "gear": rl.Discrete(3)},
    (rl.Box((2,)), {"inner": rl.Discrete(2)}),
]


def drawn(space: Any, random: np.random.Generator) -> Any:
    if isinstance(space, dict):
        return {key: drawn(part, random) for key, part in space.items()}
    if isinstance(space, tuple):
        return tuple(drawn(part, random) for part in space)
    top = 255 if space.dtype == "uint8" else 2
    return pr.constant(random.integers(0, top, (6, *space.shape)).astype(space.dtype))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_observations_of_every_space(space: Any, shared: bool) -> None:
    model = rl.ActorCritic(space, rl.Discrete(3), (4,), np.random.default_rng(0), shared=shared)
    policy, value = model(drawn(space, np.random.default_rng(1)))
    assert isinstance(policy, rl.Categorical)
    logits, value = pr.evaluate((policy.logits, value))
    assert logits.shape == (6, 3) and value.shape == (6,) and np.isfinite(logits).all()  # noqa: PT018
    assert len(set(value.round(6).tolist())) > 1


def test_parts_of_a_dict_are_found_by_their_names() -> None:
    seen = rl.Encoder({"left": rl.Box((1,)), "right": rl.Box((1,))})
    given = {"right": pr.constant([2.0]), "left": pr.constant([1.0])}
    assert pr.evaluate(seen(given)).tolist() == [1.0, 2.0]


CARTS = rl.Arrays(rl.CartPole(), 2)


@pytest.mark.parametrize(
    ("train", "source", "model", "message"),
    [
        (rl.ppo, rl.CartPole(), rl.ActorCritic((4,), rl.Discrete(2)), "CartPole is not several environments"),
        (rl.a2c, CARTS, rl.QNetwork((4,), rl.Discrete(2)), "QNetwork, has no get_value"),
        (rl.dqn, CARTS, rl.ActorCritic((4,), rl.Discrete(2)), "ActorCritic, has no values"),
        (rl.ppo, CARTS, rl.ActorCritic((4,), rl.Discrete(3)), "acts in Discrete.n=3., but the environments in Disc"),
        (rl.td3, CARTS, rl.DeterministicActorCritic((4,), rl.Box((1,), -1, 1)), "acts in Box"),
    ],
)
def test_what_does_not_fit_is_refused(train: Any, source: Any, model: Any, message: str) -> None:
    with pytest.raises(pr.errors.DeclarationError, match=message):
        train(source, model)


@pytest.mark.parametrize("space", [{}, rl.Box((0,))], ids=str)
def test_there_is_something_to_see(space: Any) -> None:
    with pytest.raises(pr.errors.DeclarationError, match="nothing to see"):
        rl.ActorCritic(space, rl.Discrete(2), (4,))


def test_images_of_either_layout_are_the_same_and_scaled() -> None:
    """uint8 pixels last or first: the convolutions see numbers from 0 to 1, channels first."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 255, (2, 12, 12, 3)).astype(np.uint8)
    last = rl.Encoder(rl.Box((12, 12, 3), 0, 255, "uint8"), np.random.default_rng(0))
    first = rl.Encoder(rl.Box((3, 12, 12), 0, 255, "uint8"), np.random.default_rng(0))
    a = pr.evaluate(last(pr.constant(pixels)))
    np.testing.assert_allclose(a, pr.evaluate(first(pr.constant(pixels.transpose(0, 3, 1, 2)))), rtol=1e-5)
    w = {name: torch.tensor(weight) for name, weight in last.weights().items()}
    x = torch.tensor(pixels.transpose(0, 3, 1, 2)) / 255
    x = torch.relu(torch.nn.functional.conv2d(x, w["images.0.layers.0.weight"], w["images.0.layers.0.bias"]))
    x = torch.relu(x.flatten(1) @ w["images.0.project.weight"].T + w["images.0.project.bias"])
    np.testing.assert_allclose(a, x.numpy(), rtol=1e-4, atol=1e-5)


def test_grey_images_have_one_channel_and_boards_no_pixels() -> None:
    """Without an axis of channels pixels are an image all the same; uint8 that ends below 255 is taken as it is."""
    random = np.random.default_rng(0)
    pixels, bits = (pr.constant(random.integers(0, n, (2, 12, 12)).astype(np.uint8)) for n in (255, 2))
    grey, one = (
        rl.Encoder(rl.Box(shape, 0, 255, "uint8"), np.random.default_rng(0)) for shape in ((12, 12), (1, 12, 12))
    )
    np.testing.assert_array_equal(pr.evaluate(grey(pixels)), pr.evaluate(one(pixels.reshape((2, 1, 12, 12)))))
    board = rl.Encoder(rl.Box((1, 12, 12), 0, 1, "uint8"), np.random.default_rng(0))
    floats = rl.Encoder(rl.Box((1, 12, 12), 0, 1), np.random.default_rng(0))
    bits = bits.reshape((2, 1, 12, 12))
    np.testing.assert_array_equal(pr.evaluate(board(bits)), pr.evaluate(floats(bits.cast("float32"))))


def test_distributions_like_torch() -> None:
    random = np.random.default_rng(0)
    logits, mean, log_std = (random.normal(size=(7, 5)).astype(np.float32) for _ in range(3))
    bits = random.integers(0, 2, (7, 5))
    choices = np.stack([random.integers(0, n, 7) for n in (2, 3)], -1)
    vectors = random.normal(size=(7, 5)).astype(np.float32)
    squashed = (3 * np.tanh(vectors) + 1).astype(np.float32)
    d = torch.distributions
    normal = d.Normal(torch.tensor(mean), torch.tensor(log_std).exp())
    bent = d.TransformedDistribution(normal, [d.TanhTransform(), d.AffineTransform(1.0, 3.0)])
    parts = [d.Categorical(logits=torch.tensor(logits[:, a:b])) for a, b in ((0, 2), (2, 5))]
    cases: list[tuple[Any, np.ndarray, Any, Any]] = [
        (rl.Bernoulli(pr.constant(logits)), bits, d.Bernoulli(logits=torch.tensor(logits)), "sum"),
        (rl.Normal(pr.constant(mean), pr.constant(log_std)), vectors, normal, "sum"),
        (rl.SquashedNormal(pr.constant(mean), pr.constant(log_std), -2.0, 4.0), squashed, bent, "no entropy"),
    ]
    for ours, action, theirs, kind in cases:
        found = pr.evaluate(ours.log_prob(pr.constant(action)))
        wanted = theirs.log_prob(torch.tensor(action, dtype=torch.float32)).sum(-1)
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)
        if kind == "sum":
            np.testing.assert_allclose(pr.evaluate(ours.entropy()), theirs.entropy().sum(-1), rtol=1e-5)
    multi = rl.MultiCategorical(pr.constant(logits), (2, 3))
    wanted = sum(part.log_prob(torch.tensor(choices[:, k])) for k, part in enumerate(parts))
    np.testing.assert_allclose(pr.evaluate(multi.log_prob(pr.constant(choices))), wanted, rtol=1e-5)
    np.testing.assert_allclose(pr.evaluate(multi.entropy()), sum(part.entropy() for part in parts), rtol=1e-5)


def test_a_squashed_sample_has_the_likelihood_of_its_action() -> None:
    t, T = pr.dim("t")
    bell = rl.SquashedNormal(pr.constant([0.3, -0.2]), pr.constant([-0.5, 0.1]), -2.0, pr.constant([2.0, 1.0]))
    action, log_prob = bell.sample_and_log_prob((t,))
    action, direct, back = pr.evaluate((action, log_prob, bell.log_prob(action)), bounds={T: 50})
    np.testing.assert_allclose(direct, back, rtol=1e-3, atol=1e-3)
    assert (np.abs(action[:, 0]) < 2).all() and (action[:, 1] > -2).all() and (action[:, 1] < 1).all()  # noqa: PT018


def test_a_transformer_stores_no_cache_per_transition() -> None:
    """Context 128: a ring of keys and values while acting, against a cache of 128 of them with each transition."""
    steps, envs, size, context = 128, 8, 64, 128
    i, _ = pr.dim("i")
    t, T = pr.dim("t")
    games = rl.Arrays(rl.Recall(), envs)
    memory = rl.Transformer(size, heads=4, context=context)
    model = rl.ActorCritic(games.observations, games.actions, (size,), np.random.default_rng(0), memory=memory)
    along = rl.Acting(i, t, envs)
    acted = games.run(i, t, lambda seen: model(seen, along)[0].sample((i, t), name="actions"))
    along.ended(acted)
    program = pr.compile(rl.episodes(i, t, acted)[1], bounds={T: steps}, backend="numpy")
    caches = steps * envs * context * 2 * size * 4
    assert program.memory.peak({"I": 2}) * 16 < caches


def test_a_transformer_remembers_the_iteration_before_in_place() -> None:
    """Keys and values of the last steps move to the beginning of the same buffer."""
    games = rl.Arrays(rl.Recall(), 4)
    memory = rl.Transformer(8, heads=2, layers=2, context=16)
    model = rl.ActorCritic(games.observations, games.actions, (8,), np.random.default_rng(0), memory=memory)
    training = rl.ppo(games, model, rl.PPOSettings(steps=16, minibatches=4, epochs=1))
    storage = pr.compile(training.outputs, training.bounds).compiled.storage
    kept = [[str(slots) for slots in one.slots] for one in storage.values()]
    past = [slots for slots in kept if len(slots) == 2 and slots[1] == "all 31 of t"]
    assert past == [["1 of i", "all 31 of t"]] * 5  # keys and values of two layers, and the numbers of the episodes


@pytest.mark.slow
def test_a_transformer_keeps_no_cache_for_each_transition() -> None:
    """Less than a twelfth of keys and values with each of them; a sixteenth is wanted."""
    from benchmarks.rl_scale import context

    assert context(128, "polyrhythm")["times_less"] > 12
