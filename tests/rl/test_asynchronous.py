"""Environments that do not wait for the slowest: whole transitions, whichever environments they are of."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import rl

gymnasium = pytest.importorskip("gymnasium")

LIMIT = 5


class Counting(gymnasium.Env):  # type: ignore[name-defined]
    """It shows its number and how many steps the episode has, pays number + action, and perhaps sleeps."""

    def __init__(self, number: int, seconds: Callable[[int], float], dictionary: bool = False) -> None:
        box = gymnasium.spaces.Box(-1e6, 1e6, (3,), np.float32)
        self.observation_space = gymnasium.spaces.Dict({"a": box, "b": box}) if dictionary else box
        self.action_space = gymnasium.spaces.Discrete(3)
        self.number, self.seconds, self.dictionary, self.steps, self.all = number, seconds, dictionary, 0, 0
        self.last = -1

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps, self.last = 0, -1
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.seconds(self.all))
        self.steps, self.all, self.last = self.steps + 1, self.all + 1, int(action)
        return self._seen(), float(self.number + action), self.steps == LIMIT, False, {}

    def _seen(self) -> Any:
        seen = np.array([self.number, self.steps, self.last], np.float32)
        return {"a": seen, "b": seen} if self.dictionary else seen


def made(count: int, batch_size: int, seconds: Callable[[int, int], float], **kwargs: Any) -> rl.Async:
    def maker(number: int) -> Callable[[], Any]:
        return lambda: Counting(number, lambda step: seconds(number, step), **kwargs)

    return rl.Async([maker(number) for number in range(count)], batch_size)


def uneven(number: int, step: int) -> float:
    return 0.0005 * ((number * 7 + step * 3) % 5)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("dictionary", [False, True], ids=["box", "dict"])
def test_rows_are_whole_transitions(backend: str, dictionary: bool) -> None:
    """What was seen, the action chosen for it, and what that led to are of one step of one environment."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    source = made(6, 2, uneven, dictionary=dictionary)
    first: Callable[[Any], Any] = lambda seen: seen["a"] if dictionary else seen  # noqa: E731
    steps = source.run(i, t, lambda seen: (first(seen).axes[:, 0] + first(seen).axes[:, 1]).cast("int32") % 3)
    assert steps.which is not None
    wanted = [first(steps.observation), steps.action, first(steps.following), steps.reward, steps.terminated]
    wanted += [steps.valid, steps.which.number, *rl.episodes(i, t, steps)]
    program = pr.compile(wanted, backend=backend)
    for _ in range(2):  # a second call begins anew
        found = [np.asarray(x) for x in program(bounds={I: 5, T: 20})]
        rows = [x.reshape(-1, *x.shape[3:]) for x in (*found[:3], *(y[..., None] for y in found[3:7]))]
        before, action, after, reward, ended, valid, number = (
            x.reshape(len(rows[0]), -1).squeeze(-1) if x.ndim > 1 and x.shape[-1] == 1 else x for x in rows
        )
        last: dict[int, int] = {}
        scores: list[list[float]] = [[] for _ in range(5)]
        running = dict.fromkeys(range(6), 0.0)
        for row in range(len(before)):
            own = int(number[row])
            assert before[row][0] == after[row][0] == own
            if not valid[row]:
                assert own not in last
                last[own] = 0
                continue
            assert before[row][1] == last.get(own, 0)
            assert action[row] == (own + before[row][1]) % 3 == after[row][2]
            assert after[row][1] == before[row][1] + 1
            assert reward[row] == own + action[row]
            assert ended[row] == (after[row][1] == LIMIT)
            running[own] += reward[row]
            last[own] = 0 if ended[row] else int(after[row][1])
            if ended[row]:
                scores[row // 40].append(running[own])
                running[own] = 0.0
        assert len(last) == 6
        assert found[7].tolist() == [len(each) for each in scores]
        np.testing.assert_allclose(found[8], [sum(each) / max(1, len(each)) for each in scores], rtol=1e-5)
    source.close()


def test_nobody_waits_for_the_slowest() -> None:
    """One of eight sleeps a hundred times as long: with all in step every step takes that long."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")

    def seconds(number: int, step: int) -> float:
        return 0.1 if number == 0 else 0.001

    def act(seen: Any) -> pr.Tensor:
        return (seen.axes[:, 0] * 0.0).cast("int32")

    def steps_per_second(source: Any, steps: int) -> float:
        program = pr.compile(source.run(i, t, act).reward, backend="numpy")
        began = time.perf_counter()
        program(bounds={I: 1, T: steps})
        return steps * source.count / (time.perf_counter() - began)

    fast = made(8, 4, seconds)
    waiting = rl.Gym(rl.threaded([env_maker(number, seconds) for number in range(8)]))
    assert steps_per_second(fast, 100) > 3 * steps_per_second(waiting, 10)
    fast.close()


def env_maker(number: int, seconds: Callable[[int, int], float]) -> Callable[[], Any]:
    return lambda: Counting(number, lambda step: seconds(number, step))


def test_dqn_learns_from_them() -> None:
    """The best action is always the last: values rise to what it pays."""
    source = rl.Normalized(made(6, 3, uneven))
    model = rl.QNetwork(source.observations, source.actions, (16,), np.random.default_rng(0))
    settings = rl.DQNSettings(
        steps=4,
        learning_starts=24,
        buffer_size=600,
        batch_size=32,
        gamma=0.0,
        learning_rate=1e-2,
        exploration_steps=600,
    )
    training = rl.dqn(source, model, settings)
    found = pr.compile(training.outputs, training.bounds, backend="numpy")(bounds={training.iterations: 120})
    assert found["return"][-20:][found["episodes"][-20:] > 0].mean() > 1.5 * found["return"][:20].mean()


@pytest.mark.parametrize("algorithm", [rl.ppo, rl.a2c, rl.reinforce, rl.impala], ids=lambda f: f.__name__)
def test_what_follows_steps_is_refused(algorithm: Any) -> None:
    source = made(3, 2, uneven)
    model = rl.ActorCritic(source.observations, source.actions, (4,))
    with pytest.raises(pr.errors.DeclarationError, match="whichever environments were ready"):
        algorithm(source, model)


def test_refusals() -> None:
    with pytest.raises(pr.errors.DeclarationError, match="3 of 2 environments"):
        made(2, 3, uneven)
    source = made(3, 2, uneven)
    model = rl.QNetwork(source.observations, source.actions, (4,))
    with pytest.raises(pr.errors.DeclarationError, match="transitions of 3 steps"):
        rl.dqn(source, model, rl.DQNSettings(n_step=3))
    with pytest.raises(pr.errors.UnsupportedError, match="under way"):
        source.save()


def test_an_error_in_a_thread_is_told() -> None:
    def seconds(number: int, step: int) -> float:
        if step == 3 and number == 1:
            raise RuntimeError("the simulator is gone")
        return 0.0

    i, I = pr.dim("i")
    t, T = pr.dim("t")
    source = made(2, 2, seconds)
    steps = source.run(i, t, lambda seen: (seen.axes[:, 0] * 0.0).cast("int32"))
    with pytest.raises(Exception, match="the simulator is gone"):
        pr.compile(steps.reward, backend="numpy")(bounds={I: 1, T: 20})
