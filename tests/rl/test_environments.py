"""Array environments against Gymnasium's, step by step over long random runs."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import rl
from polyrhythm.rl import environments

STEPS, ENVS = 2500, 4


def by_gymnasium(name: str) -> dict[str, np.ndarray]:
    """Random runs of several environments, in which every episode is begun again as soon as it ends."""
    random = np.random.default_rng(0)
    seen: dict[str, list[Any]] = {
        key: [] for key in ("state", "action", "following", "reward", "terminated", "truncated")
    }
    fresh = []
    envs = [gymnasium.make(name) for _ in range(ENVS)]
    for number, env in enumerate(envs):
        env.reset(seed=number)
        env.action_space.seed(number)
    for _ in range(STEPS):
        row: dict[str, list[Any]] = {key: [] for key in seen}
        started = []
        for number, env in enumerate(envs):
            inner: Any = env.unwrapped
            row["state"].append(np.array(inner.state))
            # Two carts are pushed wisely for the most part, so that some episodes reach their limit.
            action = env.action_space.sample()
            if name.startswith("MountainCar-") and number < 2:
                action = 2 * int(inner.state[1] > 0)  # rocking brings two of them out
            if name.startswith("Acrobot") and number < 2:  # chaotic: compared step by step only
                action = 2 * int(inner.state[3] > 0)
            if isinstance(env.action_space, gymnasium.spaces.Box):
                action = np.round(64 * action) / 64  # Gymnasium multiplies torques in float32: these it does exactly
            if name.startswith("CartPole") and number < 2 and random.random() < 0.95:
                action = int(inner.state[2] + 0.5 * inner.state[3] + 0.1 * inner.state[0] + 0.2 * inner.state[1] > 0)
            following, reward, terminated, truncated, _ = env.step(action)
            values = (action, following, reward, terminated, truncated)
            for key, value in zip(list(row)[1:], values, strict=True):
                row[key].append(value)
            if terminated or truncated:
                env.reset()
            started.append(np.array(inner.state))
        fresh.append(started)
        for key in seen:
            seen[key].append(row[key])
    return {key: np.array(rows) for key, rows in seen.items()} | {"fresh": np.array(fresh)}


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("CartPole-v1", environments.CartPole(dtype="float64")),
        ("Pendulum-v1", environments.Pendulum(dtype="float64")),
        ("MountainCar-v0", environments.MountainCar(dtype="float64")),
    ],
)
def test_like_gymnasium(name: str, environment: Any) -> None:
    """10,000 steps: ours from the start, by the same actions, and with the same states after each end."""
    expected = by_gymnasium(name)
    t, T = pr.dim("t")
    size = expected["state"].shape[-1]
    fresh = pr.input("fresh", (ENVS, size), (t,), "float64")
    discrete = isinstance(environment.actions, rl.Discrete)
    action = pr.input("action", (ENVS,) if discrete else (ENVS, 1), (t,), "int32" if discrete else "float64")
    physics = pr.recurrent((ENVS, size), ((t, T + 1),), "float64")
    age = pr.recurrent((ENVS,), ((t, T + 1),), "int32")
    done = environments.advance(environment, {"physics": physics, "age": age}, action, {"physics": fresh})
    physics[0] = pr.input("first", (ENVS, size), dtype="float64")
    age[0] = 0
    physics[t + 1], age[t + 1] = done.state["physics"], done.state["age"]
    outputs: dict[str, pr.Tensor] = {
        "state": physics[0:T],
        "following": done.following[0:T],
        "reward": done.reward,
        "terminated": done.terminated,
        "truncated": done.truncated[0:T],
    }
    if discrete:
        outputs["terminated"] = done.terminated[0:T]
    found = pr.compile(outputs, backend="numpy")(
        fresh=expected["fresh"],
        action=expected["action"].astype("int32" if discrete else "float64"),
        first=expected["state"][0],
    )
    assert expected["truncated"].sum() > 5
    assert not discrete or expected["terminated"].sum() > 5
    for key in ("terminated", "truncated"):
        assert (found[key] == expected[key]).all(), key
    np.testing.assert_allclose(found["state"], expected["state"], rtol=1e-9, atol=1e-9)
    for key in ("reward", "following"):  # theirs are float32, at least in part
        np.testing.assert_allclose(
            np.broadcast_to(found[key], expected[key].shape), expected[key], rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("CartPole-v1", environments.CartPole()),
        ("Pendulum-v1", environments.Pendulum()),
        ("MountainCar-v0", environments.MountainCar()),
        ("MountainCarContinuous-v0", environments.MountainCarContinuous()),
        ("Acrobot-v1", environments.Acrobot()),
    ],
)
def test_single_steps_in_float32(name: str, environment: Any) -> None:
    """As they are used in training: each step from Gymnasium's state, since roundings grow along a run."""
    expected = by_gymnasium(name)
    t, T = pr.dim("t")
    physics = pr.input("physics", expected["state"].shape[1:], (t,))
    discrete = isinstance(environment.actions, rl.Discrete)
    action = pr.input("action", (ENVS,) if discrete else (ENVS, 1), (t,), "int32" if discrete else "float32")
    state = {"physics": physics, "age": pr.zeros((ENVS,), "int32")}
    done = environments.advance(environment, state, action, {"physics": physics})
    found = pr.compile({"following": done.following, "reward": done.reward}, backend="numpy")(
        physics=expected["state"].astype("float32"), action=expected["action"].astype(action.dtype), bounds={T: STEPS}
    )
    for key, values in found.items():
        np.testing.assert_allclose(np.broadcast_to(values, expected[key].shape), expected[key], rtol=1e-5, atol=1e-5)


def test_fresh_states_are_drawn_anew() -> None:
    t, T = pr.dim("t")
    drawn = pr.evaluate(environments.CartPole().reset(3, (t,))["physics"], bounds={T: 4})
    assert drawn.shape == (4, 3, 4)
    assert len(np.unique(drawn)) == drawn.size
    assert (abs(drawn) <= 0.05).all()
    pendulum = pr.evaluate(environments.Pendulum().reset(100)["physics"])
    assert 3.0 < abs(pendulum[:, 0]).max() <= np.pi
    assert 0.9 < abs(pendulum[:, 1]).max() <= 1.0


def test_synthetic_episodes_have_their_length() -> None:
    t, T = pr.dim("t")
    lamps = environments.Synthetic((2, 3), length=4)
    state: dict[str, Any] = {
        k: pr.recurrent(v.shape, ((t, T + 1),), v.dtype) for k, v in environments.begin(lamps, 2).items()
    }
    done = environments.advance(lamps, state, pr.ones((2,), "int32"), lamps.reset(2, (t,)))
    for key, first in environments.begin(lamps, 2).items():
        state[key][0] = first
        state[key][t + 1] = done.state[key]
    truncated, seen = pr.evaluate((done.truncated, lamps.observe(state)), bounds={T: 9})
    assert truncated[:, 0].tolist() == ([False, False, False, True] * 3)[:10]
    assert seen.shape == (10, 2, 2, 3)
