"""Whole runs of the algorithms against torch, update by update, on what the run itself saw, did and drew.

The program gives its steps and its weights after each iteration; draws are made again by their names. Torch gets the
same numbers and learns from them in plain loops, with its own optimisers, as the papers and CleanRL write it. So all
that is between a loss and the next weights is compared: which steps an episode ends at, what is bootstrapped, when
targets move, what is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import polyrhythm as pr
from polyrhythm import rl
from tests.rl.test_off_policy import network

ENVS, ITERATIONS, SEED, GAMMA = 3, 6, 5, 0.9
Weights = dict[str, torch.Tensor]


def run(training: rl.Training) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The steps of all iterations, and the weights after each."""
    t = next(own for own in training.steps.reward.dims if own.symbol is not training.i.symbol)
    last = next(bound for bound in training.bounds if str(bound) == str(pr.dim("t")[1]))
    names = ("observation", "action", "following", "reward", "terminated", "truncated")
    steps = {name: getattr(training.steps, name)[{t: slice(0, last)}] for name in names}
    program = pr.compile((steps, training.weights), bounds=training.bounds, backend="numpy")
    found: Any = program(bounds={training.iterations: ITERATIONS}, seed=SEED)
    return found


def leaves(model: Any) -> Weights:
    return {name: torch.tensor(w, requires_grad=True) for name, w in model.weights().items()}


def same(weights: dict[str, np.ndarray], iteration: int, theirs: Weights) -> None:
    for name, w in theirs.items():
        ours = weights[name][iteration]
        message = f"{name} after iteration {iteration}"
        np.testing.assert_allclose(ours, w.detach().numpy(), rtol=1e-3, atol=1e-4, err_msg=message)


def tanh_network(w: Weights, name: str, x: np.ndarray) -> torch.Tensor:
    h = torch.tanh(functional.linear(torch.tensor(x), w[f"{name}.layers.0.weight"], w[f"{name}.layers.0.bias"]))
    return functional.linear(h, w[f"{name}.layers.1.weight"], w[f"{name}.layers.1.bias"])


def backed_up(a: dict[str, np.ndarray], value: np.ndarray, following: np.ndarray, trace: Any, rho: Any) -> np.ndarray:
    """The sum of errors from each step to the end of its episode, weighted by traces, in a loop over the rollout."""
    sums, later = np.zeros_like(value), np.zeros(ENVS)
    for t in reversed(range(len(value))):
        error = rho[t] * (a["reward"][t] + GAMMA * ~a["terminated"][t] * following[t] - value[t])
        going = ~(a["terminated"][t] | a["truncated"][t])
        later = sums[t] = error + GAMMA * trace[t] * going * later
    return sums


def monte_carlo(a: dict[str, np.ndarray]) -> np.ndarray:
    gains, later = np.zeros_like(a["reward"]), np.zeros(ENVS)
    for t in reversed(range(len(gains))):
        later = gains[t] = a["reward"][t] + GAMMA * ~(a["terminated"][t] | a["truncated"][t]) * later
    return gains


def on_policy_losses(kind: str) -> Callable[[Weights, Weights, dict[str, np.ndarray]], torch.Tensor]:
    def loss(w: Weights, acted: Weights, a: dict[str, np.ndarray]) -> torch.Tensor:
        policy = torch.distributions.Categorical(logits=tanh_network(w, "policy", a["observation"]))
        value = tanh_network(w, "value", a["observation"])[..., 0]
        log_prob, entropy = policy.log_prob(torch.tensor(a["action"])), policy.entropy()
        now = value.detach().numpy()
        with torch.no_grad():
            after = tanh_network(w, "value", a["following"])[..., 0].numpy()
            before = torch.distributions.Categorical(logits=tanh_network(acted, "policy", a["observation"]))
            ratio = (log_prob - before.log_prob(torch.tensor(a["action"]))).exp().numpy()
        one = np.ones_like(now)
        if kind == "reinforce":
            gain = torch.tensor(monte_carlo(a))
            return (0.5 * (value - gain) ** 2 - (gain - value.detach()) * log_prob).mean()
        if kind == "a2c":
            advantage = torch.tensor(backed_up(a, now, after, 0.8 * one, one), dtype=torch.float32)
            target = advantage + torch.tensor(now)
            return (-advantage * log_prob + 0.25 * (value - target) ** 2 - 0.01 * entropy).mean()
        # V-trace: corrections of the value, and advantages that look one step ahead to the corrected value.
        rho, trace = np.minimum(ratio, 0.9), 0.95 * np.minimum(ratio, 0.8)
        correction = backed_up(a, now, after, trace, rho)
        ahead = np.concatenate([correction[1:], np.zeros((1, ENVS))]) * ~(a["terminated"] | a["truncated"]) * 0.95
        advantage = rho * (a["reward"] + GAMMA * (~a["terminated"] * after + ahead) - now)
        target = torch.tensor(now + correction, dtype=torch.float32)
        policy_loss = -torch.tensor(advantage, dtype=torch.float32) * log_prob
        return (policy_loss + 0.5 * (value - target) ** 2 - 0.01 * entropy).mean()

    return loss


@pytest.mark.parametrize("kind", ["reinforce", "a2c", "impala"])
def test_on_policy_runs_like_torch(kind: str) -> None:
    carts = rl.Arrays(rl.CartPole(limit=12), ENVS)
    model = rl.ActorCritic(carts.observations, carts.actions, (8,), np.random.default_rng(0))
    common: dict[str, Any] = {"steps": 30, "gamma": GAMMA, "learning_rate": 0.01}
    theirs = leaves(model)
    if kind == "reinforce":
        training = rl.reinforce(carts, model, rl.ReinforceSettings(**common))
        optimiser: torch.optim.Optimizer = torch.optim.Adam(theirs.values(), lr=0.01)
    elif kind == "a2c":
        training = rl.a2c(carts, model, rl.A2CSettings(**common, gae_lambda=0.8, max_grad_norm=0.3))
        optimiser = torch.optim.RMSprop(theirs.values(), lr=0.01, alpha=0.99, eps=1e-5)
    else:
        own: dict[str, Any] = {"lag": 2, "lambda_": 0.95, "rho_clip": 0.9, "c_clip": 0.8, "max_grad_norm": 0.3}
        training = rl.impala(carts, model, rl.ImpalaSettings(**common, **own))
        optimiser = torch.optim.Adam(theirs.values(), lr=0.01)
    steps, weights = run(training)
    assert steps["terminated"].any()
    assert (steps["truncated"] & ~steps["terminated"]).any()
    loss, history = on_policy_losses(kind), []
    for i in range(ITERATIONS):
        history.append({name: w.detach().clone() for name, w in theirs.items()})
        optimiser.zero_grad()
        loss(theirs, history[max(0, i - 2)], {name: x[i] for name, x in steps.items()}).backward()
        if kind != "reinforce":
            torch.nn.utils.clip_grad_norm_(theirs.values(), 0.3)
        optimiser.step()
        same(weights, i, theirs)


STEPS, UPDATES, BATCH, STARTS = 4, 3, 16, 24


def drawn(make: Callable[[pr.Dim, pr.Dim], Any]) -> Any:
    """What a run of that seed draws, over iterations and updates."""
    i, I = pr.dim("i")
    u, U = pr.dim("u")
    return pr.compile(make(i, u), backend="numpy")(bounds={I: ITERATIONS, U: UPDATES}, seed=SEED)


def rows(n: int = 1) -> np.ndarray:
    """The rows of the replay that updates learn from."""
    t, _ = pr.dim("t")
    capacity = STEPS * ENVS * 4
    nothing: Any = SimpleNamespace(which=None)
    found: np.ndarray = drawn(lambda i, u: rl.Replay(i, t, u, nothing, ENVS, STEPS, capacity, n).uniform(BATCH))
    return found


def replayed(steps: dict[str, np.ndarray], i: int, chosen: np.ndarray, n: int = 1) -> dict[str, torch.Tensor]:
    """Transitions of n steps that begin at rows of the last four iterations."""
    past = {k: x[max(0, i - 3) : i + 1].reshape(-1, ENVS, *x.shape[3:]) for k, x in steps.items()}
    found: dict[str, list[Any]] = {k: [] for k in ("observation", "action", "reward", "following", "discount")}
    for row in chosen:
        step, env = divmod(int(row), ENVS)
        reward, k = 0.0, 0
        for k in range(n):
            reward += GAMMA**k * past["reward"][step + k, env]
            if past["terminated"][step + k, env] or past["truncated"][step + k, env]:
                break
        last = step + k
        found["observation"].append(past["observation"][step, env])
        found["action"].append(past["action"][step, env])
        found["reward"].append(np.float32(reward))
        found["following"].append(past["following"][last, env])
        found["discount"].append(np.float32(GAMMA ** (k + 1) * (not past["terminated"][last, env])))
    return {name: torch.tensor(np.array(x)) for name, x in found.items()}


SIZES: dict[str, Any] = {"steps": STEPS, "updates": UPDATES, "batch_size": BATCH, "learning_starts": STARTS}
SIZES |= {"buffer_size": STEPS * ENVS * 4, "gamma": GAMMA, "learning_rate": 0.003}


def test_dqn_runs_like_torch() -> None:
    """Double Q-learning of three steps, a target that is copied every fourth update, and nothing before the start."""
    carts = rl.Arrays(rl.CartPole(limit=12), ENVS)
    model = rl.QNetwork(carts.observations, carts.actions, (8,), np.random.default_rng(0))
    settings = rl.DQNSettings(**SIZES, n_step=3, target_update=4, max_grad_norm=0.5)
    steps, weights = run(rl.dqn(carts, model, settings))
    theirs, chosen = leaves(model), rows(3)
    slow = {name: w.detach().clone() for name, w in theirs.items()}
    optimiser, done = torch.optim.Adam(theirs.values(), lr=0.003), 0
    for i in range(ITERATIONS):
        for u in range(UPDATES):
            done += 1
            if i >= STARTS // (STEPS * ENVS):
                b = replayed(steps, i, chosen[i, u], 3)
                with torch.no_grad():
                    best = network(theirs, "advantage", b["following"]).argmax(1, keepdim=True)
                    after = network(slow, "advantage", b["following"]).gather(1, best)[:, 0]
                q = network(theirs, "advantage", b["observation"]).gather(1, b["action"].long()[:, None])[:, 0]
                optimiser.zero_grad()
                functional.mse_loss(q, b["reward"] + b["discount"] * after).backward()
                torch.nn.utils.clip_grad_norm_(theirs.values(), 0.5)
                optimiser.step()
            if done % 4 == 0:
                slow = {name: w.detach().clone() for name, w in theirs.items()}
        same(weights, i, theirs)


def follow(slow: Weights, fast: Weights, tau: float) -> None:
    with torch.no_grad():
        for name, w in slow.items():
            w += tau * (fast[name] - w)


def q_values(w: Weights, x: torch.Tensor, action: torch.Tensor) -> list[torch.Tensor]:
    return [network(w, f"critics.networks.{k}", torch.cat([x, action], 1))[:, 0] for k in range(2)]


def parts(w: Weights, name: str) -> list[torch.Tensor]:
    return [x for key, x in w.items() if key.startswith(name)]


def test_td3_runs_like_torch() -> None:
    """The actor and all targets move with every second update; noise on the targets' actions is clipped."""
    swings = rl.Arrays(rl.Pendulum(), ENVS)
    model = rl.DeterministicActorCritic(swings.observations, swings.actions, (8,), np.random.default_rng(0))
    settings = rl.TD3Settings(**SIZES, critic_learning_rate=0.003, tau=0.1, target_noise=0.4, noise_clip=0.5)
    steps, weights = run(rl.td3(swings, model, settings))
    noise = drawn(lambda i, u: pr.normal((BATCH, 1), dims=(i, u), name="target noise"))
    theirs, chosen = leaves(model), rows()
    slow = {name: w.detach().clone() for name, w in theirs.items()}
    critic, actor = (torch.optim.Adam(parts(theirs, name), lr=0.003) for name in ("critics", "actor"))

    def act(w: Weights, x: torch.Tensor) -> torch.Tensor:
        return 2 * torch.tanh(network(w, "actor.network", x))

    done = 0
    for i in range(ITERATIONS):
        for u in range(UPDATES):
            moves, done = done % 2 == 0, done + 1
            if i < STARTS // (STEPS * ENVS):
                continue
            b = replayed(steps, i, chosen[i, u])
            with torch.no_grad():
                moved = 2 * (0.4 * torch.tensor(noise[i, u])).clamp(-0.5, 0.5)
                after = (act(slow, b["following"]) + moved).clamp(-2, 2)
                wanted = b["reward"] + b["discount"] * torch.min(*q_values(slow, b["following"], after))
            critic.zero_grad()
            errors = [functional.mse_loss(q, wanted) for q in q_values(theirs, b["observation"], b["action"])]
            (errors[0] + errors[1]).backward()
            critic.step()
            if moves:
                actor.zero_grad()
                (-q_values(theirs, b["observation"], act(theirs, b["observation"]))[0].mean()).backward()
                actor.step()
                follow(slow, theirs, 0.1)
        same(weights, i, theirs)


def test_sac_runs_like_torch() -> None:
    """Temperature, critics, then the actor by the critics just moved, and targets after every update."""
    swings = rl.Arrays(rl.Pendulum(), ENVS)
    model = rl.SoftActorCritic(swings.observations, swings.actions, (8,), np.random.default_rng(0))
    steps, weights = run(rl.sac(swings, model, rl.SACSettings(**SIZES, critic_learning_rate=0.003, tau=0.1)))
    names = ("replayed actions", "following actions")
    noises = drawn(lambda i, u: [pr.normal((BATCH, 1), dims=(i, u), name=name) for name in names])
    theirs, chosen, log_alpha = leaves(model), rows(), torch.tensor(0.0, requires_grad=True)
    slow = {name: w.detach().clone() for name, w in theirs.items()}
    critic, actor = (torch.optim.Adam(parts(theirs, name), lr=0.003) for name in ("critics", "actor"))
    temperature = torch.optim.Adam([log_alpha], lr=0.003)

    def act(x: torch.Tensor, noise: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        out = network(theirs, "actor.network", x)
        mean, log_std = out[:, :1], -5 + 3.5 * (torch.tanh(out[:, 1:]) + 1)
        u = mean + log_std.exp() * torch.tensor(noise)
        log_prob = torch.distributions.Normal(mean, log_std.exp()).log_prob(u)
        return 2 * torch.tanh(u), (log_prob - torch.log(2 * (1 - torch.tanh(u) ** 2) + 1e-12))[:, 0]

    for i in range(STARTS // (STEPS * ENVS), ITERATIONS):
        for u in range(UPDATES):
            b, alpha = replayed(steps, i, chosen[i, u]), log_alpha.detach().exp()
            with torch.no_grad():
                after, log_prob = act(b["following"], noises[1][i, u])
                least = torch.min(*q_values(slow, b["following"], after))
                wanted = b["reward"] + b["discount"] * (least - alpha * log_prob)
            action, log_prob = act(b["observation"], noises[0][i, u])
            temperature.zero_grad()
            (-log_alpha * (log_prob.detach() - 1.0)).mean().backward()
            temperature.step()
            critic.zero_grad()
            errors = [functional.mse_loss(q, wanted) for q in q_values(theirs, b["observation"], b["action"])]
            (errors[0] + errors[1]).backward()
            critic.step()
            actor.zero_grad()
            (alpha * log_prob - torch.min(*q_values(theirs, b["observation"], action))).mean().backward()
            actor.step()
            follow(slow, theirs, 0.1)
        same(weights, i, theirs)
