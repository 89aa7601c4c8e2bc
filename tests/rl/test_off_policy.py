"""Replay, and the losses of the off-policy algorithms against torch, written as CleanRL writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import polyrhythm as pr
from polyrhythm import rl
from polyrhythm.rl.distributional import c51_loss, quantile_loss
from polyrhythm.rl.dqn import td_loss
from polyrhythm.rl.sac import actor_loss, choice, critic_loss, temperature_loss
from polyrhythm.rl.td3 import actor_loss as td3_actor_loss
from polyrhythm.rl.td3 import critic_loss as td3_critic_loss

ROWS, GAMMA = 16, 0.9


def batch(continuous: bool = False, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    action = random.uniform(-2, 2, (ROWS, 1)).astype(np.float32) if continuous else random.integers(0, 3, ROWS)
    return {
        "observation": random.normal(size=(ROWS, 4)).astype(np.float32),
        "action": action,
        "reward": random.normal(size=ROWS).astype(np.float32),
        "following": random.normal(size=(ROWS, 4)).astype(np.float32),
        "discount": (GAMMA * random.integers(0, 2, ROWS)).astype(np.float32),
    }


def transitions(arrays: dict[str, np.ndarray]) -> rl.Transitions:
    return rl.Transitions(*(pr.constant(array) for array in arrays.values()))


def network(w: dict[str, torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
    """Linear layers with relu between them."""
    count = sum(key.startswith(f"{name}.layers.") and key.endswith("weight") for key in w)
    for k in range(count):
        x = functional.linear(torch.relu(x) if k else x, w[f"{name}.layers.{k}.weight"], w[f"{name}.layers.{k}.bias"])
    return x


def leaves(module: Any) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(weight, requires_grad=True) for name, weight in module.weights().items()}


def compare(loss: pr.Tensor, weights: dict[str, pr.Tensor], theirs: torch.Tensor, w: dict[str, torch.Tensor]) -> None:
    """The loss and its gradient by all weights."""
    theirs.backward()
    found, gradients = pr.compile((loss, pr.grad(loss, weights)), backend="numpy")()
    np.testing.assert_allclose(found, theirs.item(), rtol=2e-5)
    for name, gradient in gradients.items():
        wanted = w[name].grad
        assert wanted is not None, name
        np.testing.assert_allclose(gradient, wanted.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("huber", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
def test_dqn_like_torch(double: bool, huber: bool, dueling: bool) -> None:
    random, arrays = np.random.default_rng(1), batch()
    ours, target = (rl.QNetwork((4,), rl.Discrete(3), (5,), random, dueling=dueling) for _ in range(2))
    weights = ours.parameters()
    loss = td_loss(ours.using(weights), target, transitions(arrays), double, huber).each.mean()
    w, slow = leaves(ours), leaves(target)
    a = {key: torch.tensor(array) for key, array in arrays.items()}

    def q(w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        q = network(w, "advantage", x)
        return network(w, "value", x) + q - q.mean(-1, keepdim=True) if dueling else q

    with torch.no_grad():
        best = q(w if double else slow, a["following"]).argmax(1)
        wanted = a["reward"] + a["discount"] * q(slow, a["following"]).gather(1, best[:, None])[:, 0]
    old = q(w, a["observation"]).gather(1, a["action"][:, None])[:, 0]
    compare(loss, weights, (functional.smooth_l1_loss if huber else functional.mse_loss)(old, wanted), w)


def test_c51_like_torch() -> None:
    """CleanRL's projection, by lower and upper atoms."""
    random, arrays, support = np.random.default_rng(1), batch(), np.linspace(-3, 3, 7)
    ours, target = (rl.QNetwork((4,), rl.Discrete(3), (5,), random, atoms=7, support=(-3, 3)) for _ in range(2))
    weights = ours.parameters()
    loss = c51_loss(ours.using(weights), target, transitions(arrays)).each.mean()
    w, slow, atoms = leaves(ours), leaves(target), torch.tensor(support, dtype=torch.float32)
    a = {key: torch.tensor(array) for key, array in arrays.items()}
    with torch.no_grad():
        after = torch.softmax(network(slow, "advantage", a["following"]).reshape(ROWS, 3, 7), -1)
        p = after[torch.arange(ROWS), (after * atoms).sum(2).argmax(1)]
        place = ((a["reward"][:, None] + a["discount"][:, None] * atoms).clamp(-3, 3) + 3) / 1.0
        lower, upper = place.floor().clamp(0, 6), place.ceil().clamp(0, 6)
        wanted = torch.zeros(ROWS, 7)
        for b in range(ROWS):
            wanted[b].index_add_(0, lower[b].long(), ((upper + (lower == upper).float() - place) * p)[b])
            wanted[b].index_add_(0, upper[b].long(), ((place - lower) * p)[b])
    old = network(w, "advantage", a["observation"]).reshape(ROWS, 3, 7)[torch.arange(ROWS), a["action"]]
    compare(loss, weights, (-(wanted * torch.log_softmax(old, -1)).sum(-1)).mean(), w)


def test_quantiles_like_torch() -> None:
    random, arrays = np.random.default_rng(1), batch()
    ours, target = (rl.QNetwork((4,), rl.Discrete(3), (5,), random, atoms=6) for _ in range(2))
    weights = ours.parameters()
    loss = quantile_loss(ours.using(weights), target, transitions(arrays)).each.mean()
    w, slow = leaves(ours), leaves(target)
    a = {key: torch.tensor(array) for key, array in arrays.items()}
    with torch.no_grad():
        after = network(slow, "advantage", a["following"]).reshape(ROWS, 3, 6)
        best = after[torch.arange(ROWS), after.mean(2).argmax(1)]
        wanted = a["reward"][:, None] + a["discount"][:, None] * best
    old = network(w, "advantage", a["observation"]).reshape(ROWS, 3, 6)[torch.arange(ROWS), a["action"]]
    error = wanted[:, None, :] - old[:, :, None]
    tau = ((torch.arange(6) + 0.5) / 6)[None, :, None]
    huber = functional.huber_loss(
        old[:, :, None].expand(error.shape), wanted[:, None, :].expand(error.shape), reduction="none"
    )
    compare(loss, weights, (huber * (tau - (error < 0).float()).abs()).mean(2).sum(1).mean(), w)


def values(w: dict[str, torch.Tensor], x: torch.Tensor, count: int = 2) -> list[torch.Tensor]:
    return [network(w, f"networks.{k}", x) for k in range(count)]


def test_td3_like_torch() -> None:
    random, arrays = np.random.default_rng(1), batch(continuous=True)
    spaces = (4,), rl.Box((1,), -2.0, 2.0)
    model, slow_model = (rl.DeterministicActorCritic(*spaces, (5,), random) for _ in range(2))
    weights, actor_weights = model.critics.parameters("c."), model.actor.parameters("a.")
    after = random.uniform(-2, 2, (ROWS, 1)).astype(np.float32)
    loss = td3_critic_loss(model.critics.using(weights), slow_model.critics, transitions(arrays), pr.constant(after))
    w, slow, actor = leaves(model.critics), leaves(slow_model.critics), leaves(model.actor)
    a = {key: torch.tensor(array) for key, array in arrays.items()}
    with torch.no_grad():
        q = torch.stack(values(slow, torch.cat([a["following"], torch.tensor(after)], 1)))[:, :, 0].min(0).values
        wanted = a["reward"] + a["discount"] * q
    olds = values(w, torch.cat([a["observation"], a["action"]], 1))
    compare(loss, weights, sum((functional.mse_loss(q[:, 0], wanted) for q in olds), torch.zeros(())), w)
    loss = td3_actor_loss(model.critics, model.actor.using(actor_weights), transitions(arrays))
    acted = 2 * torch.tanh(network(actor, "network", a["observation"]))
    theirs = -values(w, torch.cat([a["observation"], acted], 1))[0].mean()
    compare(loss, actor_weights, theirs, actor)


@pytest.mark.parametrize("discrete", [True, False])
def test_sac_like_torch(discrete: bool) -> None:
    """The three losses; draws are ours, and torch gets the same noise by undoing the squashing."""
    random, arrays = np.random.default_rng(1), batch(continuous=not discrete)
    space: Any = rl.Discrete(3) if discrete else rl.Box((1,), -2.0, 2.0)
    model, slow_model = (rl.SoftActorCritic((4,), space, (5,), random) for _ in range(2))
    critic_weights, actor_weights = model.critics.parameters("c."), model.actor.parameters("a.")
    log_alpha = pr.parameter("log_alpha", (), np.float32(-0.7))
    alpha, drawn = pr.detach(pr.exp(log_alpha)), transitions(arrays)
    actor = model.actor.using(actor_weights)
    acted, following = (choice(actor(x), (), n) for x, n in ((drawn.observation, "a"), (drawn.following, "b")))
    w, slow, policy = leaves(model.critics), leaves(slow_model.critics), leaves(model.actor)
    a = {key: torch.tensor(array) for key, array in arrays.items()}
    noise = [pr.evaluate(pr.normal((ROWS, 1), dims=(), name=n)) for n in ("a", "b")]

    def act(x: torch.Tensor, noise: np.ndarray) -> tuple[Any, Any, torch.Tensor]:
        out = network(policy, "network", x)
        if discrete:
            return None, torch.softmax(out, -1), torch.log_softmax(out, -1)
        mean, log_std = out[:, :1], -5 + 0.5 * 7 * (torch.tanh(out[:, 1:]) + 1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        u = mean + log_std.exp() * torch.tensor(noise)
        y = torch.tanh(u)
        log_prob = normal.log_prob(u) - torch.log(2 * (1 - y**2) + 1e-12)
        return 2 * y, None, log_prob.sum(1)

    def q(w: dict[str, torch.Tensor], x: torch.Tensor, action: Any) -> list[torch.Tensor]:
        return values(w, x) if discrete else [v[:, 0] for v in values(w, torch.cat([x, action], 1))]

    def expected(p: Any, x: torch.Tensor) -> torch.Tensor:
        return (p * x).sum(1) if discrete else x

    temperature = float(np.exp(np.float32(-0.7)))
    with torch.no_grad():
        action, p, log_prob = act(a["following"], noise[1])
        after = torch.stack(q(slow, a["following"], action)).min(0).values - temperature * log_prob
        wanted = a["reward"] + a["discount"] * expected(p, after)
    olds = q(w, a["observation"], a["action"])
    olds = [v.gather(1, a["action"][:, None])[:, 0] for v in olds] if discrete else olds
    theirs = sum((functional.mse_loss(old, wanted) for old in olds), torch.zeros(()))
    ours = critic_loss(model.critics.using(critic_weights), slow_model.critics, drawn, following, alpha)
    compare(ours, critic_weights, theirs, w)
    action, p, log_prob = act(a["observation"], noise[0])
    least = torch.stack(q(w, a["observation"], action)).min(0).values
    theirs = expected(p, temperature * log_prob - least).mean()
    compare(actor_loss(model.critics, drawn, acted, alpha), actor_weights, theirs, policy)
    theirs_alpha = torch.tensor(-0.7, requires_grad=True)
    with torch.no_grad():
        _, p, log_prob = act(a["observation"], noise[0])
        lack = expected(p, log_prob + -1.5)
    compare(
        temperature_loss(log_alpha, acted, -1.5),
        {"x": log_alpha},
        -(theirs_alpha * lack).mean(),
        {"x": theirs_alpha},
    )


def test_transitions_of_several_steps() -> None:
    """Against a loop over everything that happened: rewards to the end of the episode, and what followed there."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    u, U = pr.dim("u")
    carts = rl.Arrays(rl.CartPole(limit=9), 3)
    acted = carts.run(i, t, lambda seen: (seen.axes[:, 0] > 0).cast("int32"))
    replay = rl.Replay(i, t, u, acted, count=3, steps=4, capacity=3 * 4 * 5, n=3)
    rows = replay.uniform(20)
    whole = {t: slice(0, 4)}
    outputs = {
        "rows": rows,
        "drawn": replay.transitions(rows, GAMMA)._asdict() | {"weight": rows},
        "acted": {
            n: getattr(acted, n)[whole] for n in ("observation", "following", "reward", "terminated", "truncated")
        },
    }
    found = pr.compile(outputs, backend="numpy")(bounds={I: 9, T: 4, U: 2})
    for now in range(9):
        past = {k: x[max(0, now - 4) : now + 1].reshape(-1, 3, *x.shape[3:]) for k, x in found["acted"].items()}
        length = len(past["reward"])
        for update in range(2):
            for b, row in enumerate(found["rows"][now, update]):
                step, env = divmod(int(row), 3)
                if now:  # before there are n steps, transitions are of fewer
                    assert step <= length - 3
                reward, discount, last = 0.0, 0.0, step
                for k in range(3):
                    last = min(step + k, length - 1)
                    reward += GAMMA**k * past["reward"][last, env]
                    discount = GAMMA ** (k + 1) * (not past["terminated"][last, env])
                    if past["terminated"][last, env] or past["truncated"][last, env]:
                        break
                drawn = {key: array[now, update, b] for key, array in found["drawn"].items()}
                np.testing.assert_allclose(drawn["reward"], reward, rtol=1e-6)
                np.testing.assert_allclose(drawn["discount"], discount, rtol=1e-6)
                np.testing.assert_array_equal(drawn["observation"], past["observation"][step, env])
                np.testing.assert_array_equal(drawn["following"], past["following"][last, env])


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """How many standard deviations the statistic is above its mean."""
    possible = expected > 0
    assert counts[~possible].sum() == 0
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    freedom = possible.sum() - 1
    return float((statistic - freedom) / np.sqrt(2 * freedom))


def test_rows_are_drawn_evenly() -> None:
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    u, U = pr.dim("u")
    acted = rl.Arrays(rl.CartPole(), 3).run(i, t, lambda seen: (seen.axes[:, 0] > 0).cast("int32"))
    replay = rl.Replay(i, t, u, acted, count=3, steps=2, capacity=3 * 2 * 4, n=2)
    drawn = pr.compile(replay.uniform(100), backend="numpy")(bounds={I: 6, T: 2, U: 40})
    for now in range(1, 6):
        counts = np.bincount(drawn[now].ravel(), minlength=24)
        steps = 2 * min(now + 1, 4) - 1
        expected = np.where(np.arange(24) < 3 * steps, 4000 / (3 * steps), 0)
        assert abs(chi_square(counts, expected)) < 4


def test_rows_are_drawn_by_their_priorities() -> None:
    """Priorities that an update gives by the row decide how often it is drawn, and the weights undo it."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    u, U = pr.dim("u")
    acted = rl.Arrays(rl.CartPole(), 2).run(i, t, lambda seen: (seen.axes[:, 0] > 0).cast("int32"))
    replay = rl.Replay(i, t, u, acted, count=2, steps=3, capacity=2 * 3 * 4)
    drawn = rl.prioritised(replay, 200, alpha=0.5, beta=1.0)
    priority = 1.0 + (drawn.rows % 6).cast("float32")
    drawn.update(priority)
    updates = 60
    found = pr.compile((drawn.rows, drawn.weight), backend="numpy")(bounds={I: 7, T: 3, U: updates})
    rows, weights = found[0][6], found[1][6]
    settled = slice(20, updates)  # by then every row has been drawn, and has its priority
    wanted = np.sqrt(1.0 + np.arange(24) % 6)
    expected = wanted / wanted.sum() * 200 * (updates - 20)
    assert abs(chi_square(np.bincount(rows[settled].ravel(), minlength=24), expected)) < 4
    np.testing.assert_allclose(weights[-1], wanted[rows[-1]].min() / wanted[rows[-1]], rtol=1e-4)


@pytest.mark.parametrize("kind", ["dqn", "prioritised", "c51", "qr", "sac", "sac discrete", "td3", "ddpg", "impala"])
def test_a_few_iterations(kind: str) -> None:
    carts, swings = rl.Arrays(rl.CartPole(), 2), rl.Arrays(rl.Pendulum(), 2)
    small: dict[str, Any] = {"steps": 2, "batch_size": 4, "buffer_size": 16, "learning_starts": 8}
    discrete, continuous = (carts.observations, carts.actions, (4,)), (swings.observations, swings.actions, (4,))
    made = {
        "dqn": lambda: rl.dqn(carts, rl.QNetwork(*discrete), rl.DQNSettings(n_step=2, updates=2, **small)),
        "prioritised": lambda: rl.dqn(carts, rl.QNetwork(*discrete), rl.DQNSettings(prioritized=True, **small)),
        "c51": lambda: rl.c51(carts, rl.QNetwork(*discrete, atoms=5, support=(0, 9)), rl.DQNSettings(**small)),
        "qr": lambda: rl.qr_dqn(carts, rl.QNetwork(*discrete, atoms=5), rl.DQNSettings(**small)),
        "sac": lambda: rl.sac(swings, rl.SoftActorCritic(*continuous), rl.SACSettings(**small)),
        "sac discrete": lambda: rl.sac(carts, rl.SoftActorCritic(*discrete), rl.SACSettings(temperature=0.1, **small)),
        "td3": lambda: rl.td3(swings, rl.DeterministicActorCritic(*continuous), rl.TD3Settings(**small)),
        "ddpg": lambda: rl.ddpg(swings, rl.DeterministicActorCritic(*continuous, critics=1), rl.DDPGSettings(**small)),
        "impala": lambda: rl.impala(carts, rl.ActorCritic(*discrete), rl.ImpalaSettings(steps=4, lag=2)),
    }
    training = made[kind]()
    program = pr.compile(training.outputs, bounds=training.bounds, backend="numpy")
    first, later = (program(bounds={training.iterations: n})["weights"] for n in (2, 8))
    assert all(np.isfinite(weight).all() for weight in later.values())
    assert any((later[name] != weight).any() for name, weight in first.items())


def test_nothing_is_learnt_before_there_are_transitions_of_n_steps() -> None:
    carts = rl.Arrays(rl.CartPole(), 2)
    network = rl.QNetwork(carts.observations, carts.actions, (4,), np.random.default_rng(0))
    small: dict[str, Any] = {"steps": 2, "n_step": 5, "batch_size": 4, "learning_starts": 0}
    training = rl.dqn(carts, network, rl.DQNSettings(buffer_size=12, **small))
    program = pr.compile(training.outputs["weights"], bounds=training.bounds, backend="numpy")
    two, three = (program(bounds={training.iterations: n}) for n in (2, 3))
    for name, first in network.weights().items():
        assert np.array_equal(two[name], first)
    assert any((three[name] != two[name]).any() for name in two)
    with pytest.raises(pr.errors.DeclarationError, match="make the buffer 12 or larger"):
        rl.dqn(carts, network, rl.DQNSettings(buffer_size=8, **small))
