"""PPO: its loss and update against torch on the same batch, the program against itself by the oracle, and learning."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import polyrhythm as pr
from polyrhythm import optim, rl
from polyrhythm.rl.ppo import Batch, Settings, _rows_of, loss

ROWS = 16


def batch(random: np.random.Generator, discrete: bool) -> dict[str, np.ndarray]:
    action = (
        random.integers(0, 2, ROWS).astype("int32") if discrete else random.normal(size=(ROWS, 1)).astype("float32")
    )
    return {
        "observation": random.normal(size=(ROWS, 3)).astype("float32"),
        "action": action,
        "log_prob": random.normal(size=ROWS, loc=-0.7, scale=0.3).astype("float32"),
        "value": random.normal(size=ROWS).astype("float32"),
        "advantage": random.normal(size=ROWS, scale=2).astype("float32"),
        "target": random.normal(size=ROWS).astype("float32"),
    }


def torch_loss(w: dict[str, torch.Tensor], b: dict[str, torch.Tensor], s: Settings, discrete: bool) -> torch.Tensor:
    """As CleanRL writes it."""

    def network(name: str) -> torch.Tensor:
        h = torch.tanh(b["observation"] @ w[f"{name}.layers.0.weight"].T + w[f"{name}.layers.0.bias"])
        return h @ w[f"{name}.layers.1.weight"].T + w[f"{name}.layers.1.bias"]

    policy: Any
    if discrete:
        policy = torch.distributions.Categorical(logits=network("policy"))
        log_prob, entropy = policy.log_prob(b["action"]), policy.entropy()
    else:
        policy = torch.distributions.Normal(network("policy"), w["log_std"].exp())
        log_prob, entropy = policy.log_prob(b["action"]).sum(1), policy.entropy().sum(1)
    value = network("value").view(-1)
    advantage = b["advantage"]
    if s.normalize_advantage:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = (log_prob - b["log_prob"]).exp()
    policy_loss = torch.max(
        -advantage * ratio, -advantage * torch.clamp(ratio, 1 - s.clip_range, 1 + s.clip_range)
    ).mean()
    unclipped = (value - b["target"]) ** 2
    if s.clip_value:
        near = b["value"] + torch.clamp(value - b["value"], -s.clip_range, s.clip_range)
        value_loss = 0.5 * torch.max(unclipped, (near - b["target"]) ** 2).mean()
    else:
        value_loss = 0.5 * unclipped.mean()
    return policy_loss - s.entropy_coef * entropy.mean() + s.value_coef * value_loss


@pytest.mark.parametrize(("discrete", "clip_value"), [(True, True), (False, False)])
def test_loss_and_update_like_torch(discrete: bool, clip_value: bool) -> None:
    settings = Settings(clip_value=clip_value, normalize_advantage=clip_value, max_grad_norm=0.3)
    random = np.random.default_rng(0)
    actions = rl.Discrete(2) if discrete else rl.Box((1,))
    model = rl.ActorCritic((3,), actions, (5,), random)
    arrays = batch(random, discrete)
    u, U = pr.dim("u")
    weights = optim.over(u, model.parameters())
    inputs = {name: pr.input(name, a.shape, dtype=a.dtype) for name, a in arrays.items()}
    total = loss(model.using(weights), Batch(**inputs), settings).total
    gradients = optim.clip_by_global_norm(u, pr.grad(total, weights), settings.max_grad_norm)
    optim.adam(u, weights, gradients, 0.01, epsilon=1e-5)
    program = pr.compile({"loss": total[0:U], "weights": weights}, backend="numpy")
    given: dict[str, Any] = {name: a for name, a in arrays.items() if clip_value or name != "value"}
    found = program(**given, bounds={U: 3})

    theirs = {name: torch.tensor(a, requires_grad=True) for name, a in model.weights().items()}
    optimiser = torch.optim.Adam(theirs.values(), lr=0.01, eps=1e-5)
    data = {name: torch.tensor(a) for name, a in arrays.items()}
    for update in range(3):
        expected = torch_loss(theirs, data, settings, discrete)
        np.testing.assert_allclose(found["loss"][update], expected.item(), rtol=1e-5, atol=1e-6)
        optimiser.zero_grad()
        expected.backward()
        torch.nn.utils.clip_grad_norm_(theirs.values(), settings.max_grad_norm)
        optimiser.step()
        for name, w in theirs.items():
            np.testing.assert_allclose(
                found["weights"][name][update + 1], w.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name
            )


def test_rows_without_weight_do_not_count() -> None:
    random = np.random.default_rng(1)
    model = rl.ActorCritic((3,), rl.Discrete(2), (5,), random)
    arrays = batch(random, True)
    kept = random.random(ROWS) < 0.6
    weighted = Batch(**{k: pr.constant(a) for k, a in arrays.items()}, weight=pr.constant(kept.astype("float32")))
    fewer = Batch(**{k: pr.constant(a[kept]) for k, a in arrays.items()})
    found, expected = (pr.evaluate(tuple(loss(model, b, Settings()))) for b in (weighted, fewer))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kept", [0, 1])
def test_rows_that_have_no_variance(kept: int) -> None:
    """A minibatch in which one row counts, or none: nothing is divided by zero."""
    random = np.random.default_rng(1)
    model = rl.ActorCritic((3,), rl.Discrete(2), (5,), random)
    arrays = batch(random, True)
    weight = pr.constant((np.arange(ROWS) < kept).astype("float32"))
    weighted = Batch(**{k: pr.constant(a) for k, a in arrays.items()}, weight=weight)
    fewer = Batch(**{k: pr.constant(a[:1]) for k, a in arrays.items()})
    for one in (weighted, fewer):
        assert np.isfinite(pr.evaluate(tuple(loss(model, one, Settings())))).all()


def test_every_row_is_in_one_minibatch_of_an_epoch() -> None:
    settings = Settings(steps=6, epochs=3, minibatches=4)
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    u, U = pr.dim("u")
    number = pr.value(t) * 2 + pr.constant(np.arange(2, dtype="int32"))  # of the row: two environments
    rollout = Batch(*(pr.where(i >= 0, number, 0) for _ in range(6)))
    found = pr.evaluate(_rows_of(i, t, u, rollout, 2, settings).action[0:I, 0:U], bounds={I: 2, T: 6, U: 12})
    orders = found.reshape(6, 12)  # of two iterations, three epochs each
    assert (np.sort(orders, 1) == np.arange(12)).all()
    assert len({tuple(order) for order in orders.tolist()}) == 6


def test_a_run_is_what_the_oracle_makes_of_it() -> None:
    lamps = rl.Arrays(rl.Synthetic((2,), length=3), 2)
    model = rl.ActorCritic(lamps.observations, lamps.actions, (3,), np.random.default_rng(0))
    training = rl.ppo(lamps, model, Settings(steps=4, epochs=2, minibatches=2, learning_rate=0.05, anneal_lr=2))
    bounds = training.bounds | {training.iterations: 2}
    expected = pr.evaluate(training.outputs, {}, bounds=bounds)
    found = pr.compile(training.outputs, bounds=training.bounds)(bounds={training.iterations: 2})
    for name, w in expected.pop("weights").items():
        assert (w != model.weights()[name]).any()
        np.testing.assert_allclose(found["weights"][name], w, rtol=1e-4, atol=1e-5, err_msg=name)
    for name, figure in expected.items():
        np.testing.assert_allclose(found[name], figure, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_updates_stop_where_the_policy_has_moved_too_far() -> None:
    """For every limit: the weights are those of as many updates as stay below it, and no later one is made."""
    lamps = rl.Arrays(rl.Synthetic((2,), length=3), 2)
    model = rl.ActorCritic(lamps.observations, lamps.actions, (3,), np.random.default_rng(0))
    limit = pr.input("limit", ())
    choices: dict[str, Any] = {"steps": 4, "epochs": 5, "minibatches": 1, "learning_rate": 0.1}
    free = rl.ppo(lamps, model, Settings(**choices))
    (updates,) = [bound for bound, count in free.bounds.items() if count == 5]
    steps = {bound: count for bound, count in free.bounds.items() if bound is not updates}
    every = pr.compile(free.outputs, steps, backend="numpy")
    runs = [every(bounds={free.iterations: 1, updates: count}) for count in range(1, 6)]
    # Figures are means over updates, so the distance before each update is a difference of two of them.
    sums = [(count + 1) * float(run["approx_kl"][0]) for count, run in enumerate(runs)]
    far = [after - before for before, after in zip([0.0, *sums], sums, strict=False)]
    assert far[0] == pytest.approx(0.0, abs=1e-6)
    assert all(later > sooner for sooner, later in pairwise(far))
    held = rl.ppo(lamps, model, Settings(**choices, target_kl=limit))  # type: ignore[arg-type]
    program = pr.compile(held.outputs, held.bounds, backend="numpy")
    for made in range(1, 5):
        between = np.float32((far[made - 1] + far[made]) / 2 / 1.5)
        found = program(limit=between, bounds={held.iterations: 1})
        for name, weight in runs[made - 1]["weights"].items():
            np.testing.assert_allclose(found["weights"][name], weight, rtol=1e-5, atol=1e-6, err_msg=f"{made} {name}")


def test_agents_begin_as_is_usual() -> None:
    """Orthogonal weights of the usual sizes, no biases, and a spread of one that the observation does not change."""
    actions = rl.Box((3,), -1, 1)
    for memory in (None, "lstm", "gru"):
        weights = rl.ActorCritic((5,), actions, (16, 8), np.random.default_rng(0), memory=memory).weights()
        gains = {"policy": 0.01, "value": 1.0, "memory": 1.0}
        for name, w in weights.items():
            if w.ndim == 1:
                assert not w.any(), name
                continue
            last = memory or name.split(".")[-2] == "2"
            gain = gains.get(name.split(".")[0], 2**0.5) if last else 2**0.5
            small = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
            np.testing.assert_allclose(small, gain**2 * np.eye(len(small)), atol=1e-5, err_msg=name)


def test_minibatches_have_one_size() -> None:
    lamps = rl.Arrays(rl.Synthetic((2,), length=3), 3)
    model = rl.ActorCritic(lamps.observations, lamps.actions, ())
    with pytest.raises(pr.errors.DeclarationError, match="5 steps of 3 environments are 15 rows"):
        rl.ppo(lamps, model, Settings(steps=5))


@pytest.mark.slow
def test_learns_to_balance() -> None:
    carts = rl.Arrays(rl.CartPole(), 8)
    model = rl.ActorCritic(carts.observations, carts.actions, (64, 64), np.random.default_rng(0))
    training = rl.ppo(carts, model, Settings(steps=128, learning_rate=1e-3))
    program = pr.compile(training.outputs, bounds=training.bounds)
    score = program(bounds={training.iterations: 40})["return"]
    assert score[:3].mean() < 40
    assert score[-5:].mean() > 100
