"""Boards against other implementations, functional environments of JAX, normalisation, and threads."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import polyrhythm as pr
from polyrhythm import rl


@pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types:FutureWarning")  # gymnax's Breakout
def test_breakout_like_gymnax() -> None:
    """Long random games, begun alike, step by step."""
    import gymnax  # type: ignore[import-untyped]
    import jax

    theirs, params = gymnax.make("Breakout-MinAtar")
    keys = jax.random.split(jax.random.key(0), 8)
    seen, state = jax.vmap(lambda key: theirs.reset_env(key, params))(keys)
    actions = np.random.default_rng(0).integers(0, 3, (400, 8))
    # Half of the paddles follow the ball, so that bricks come down.
    step = jax.jit(jax.vmap(lambda state, action: theirs.step_env(keys[0], state, action, params)))
    expected: dict[str, list[Any]] = {"seen": [seen], "reward": [], "done": []}
    first = {"x": np.array(state.ball_x), "way": np.array(state.ball_dir)}
    for n in range(400):
        wise = 1 + (np.array(state.ball_x) > np.array(state.pos))
        actions[n, :4] = np.where(np.array(state.ball_x) == np.array(state.pos), 0, wise)[:4]
        seen, state, reward, done, _ = step(state, actions[n])
        expected["seen"].append(seen)
        expected["reward"].append(reward)
        expected["done"].append(done)
    game = rl.Breakout(limit=10_000)
    t, T = pr.dim("t")
    ball = np.stack([np.full(8, 3), first["x"]], 1).astype(np.int32)
    begun = rl.Breakout().reset(8) | {"ball": pr.constant(ball), "last": pr.constant(ball)}
    begun |= {"way": pr.constant(first["way"].astype(np.int32))}
    ours: dict[str, Any] = {k: pr.recurrent(v.shape, ((t, T + 1),), v.dtype) for k, v in begun.items()}
    after, reward, ended = game.step(ours, pr.input("action", (8,), (t,), "int32"))
    for name, tensor in ours.items():
        tensor[0], tensor[t + 1] = begun[name], after[name]
    found = pr.compile((game.observe(ours), reward, ended), backend="numpy")(action=actions.astype(np.int32))
    over = np.array(expected["done"])
    alive = np.concatenate([np.ones((1, 8), bool), ~np.maximum.accumulate(over, 0)])  # games that are over differ
    assert (np.array(expected["reward"]) * alive[:-1]).sum() > 30
    assert over[:, 4:].any(axis=0).all()
    for mine, other, count in zip(found, expected.values(), (alive, alive[:-1], alive[:-1]), strict=True):
        np.testing.assert_array_equal(mine[: len(count)][count], np.array(other)[count])


def played(environment: Any, act: Any, steps: int = 60, envs: int = 6) -> dict[str, np.ndarray]:
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    run = rl.Arrays(environment, envs).run(i, t, lambda seen: act(seen, i, t))
    whole = {t: slice(0, T)}
    outputs = {n: x[whole] for n, x in run._asdict().items() if x is not None}
    found = pr.compile(outputs, backend="numpy")(bounds={I: 1, T: steps})
    return {name: array[0] for name, array in found.items()}


def test_catch_by_its_rules() -> None:
    """A paddle that goes to the ball always catches it; one that flees from it loses; ten rows are nine steps."""

    def chase(sign: int) -> Any:
        def act(seen: pr.Tensor, i: pr.Dim, t: pr.Dim) -> pr.Tensor:
            board = pr.reshape(seen, (6, 10, 5))
            ball, paddle = pr.argmax(board.axes[:, :9].sum(1), -1), pr.argmax(board.axes[:, 9], -1)
            return (1 + sign * pr.sign((ball - paddle).cast("float32"))).cast("int32")

        return act

    won, lost = played(rl.Catch(), chase(1)), played(rl.Catch(), chase(-1))
    for a in (won, lost):
        assert a["terminated"][8::9].all()
        assert a["terminated"].sum() == 6 * (60 // 9)
        assert not a["truncated"].any()
    assert (won["reward"][8::9] == 1).all()
    assert (lost["reward"][8::9] <= 1).all() and (lost["reward"] < 0).any()  # noqa: PT018


def test_grid_world_by_its_rules() -> None:
    def random(seen: pr.Tensor, i: pr.Dim, t: pr.Dim) -> pr.Tensor:
        return pr.randint((6,), 0, 4, dims=(i, t), name="moves")

    a = played(rl.GridWorld(3, limit=15), random, steps=200)
    moves = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]])
    for seen, action, after, reward, over in zip(
        *(a[n].reshape(-1, *a[n].shape[2:]) for n in ("observation", "action", "following", "reward", "terminated")),
        strict=True,
    ):
        agent, goal = (np.argwhere(board)[0] for board in seen)
        there = np.clip(agent + moves[action], 0, 2)
        assert (np.argwhere(after[0])[0] == there).all()
        assert (np.argwhere(after[1])[0] == goal).all()
        assert over == (there == goal).all()
        assert reward == np.float32(1.0 if over else -0.01)
        assert (agent != goal).any()


def test_recall_asks_for_the_cue() -> None:
    a = played(rl.Recall(delay=3, cues=2), lambda seen, i, t: seen.axes[:, 0].cast("int32") * 0, steps=40)
    cues = a["observation"][0::4][:, :, :2]
    assert (cues.sum(-1) == 1).all()
    assert (a["observation"][1::4][:, :, :2] == 0).all()
    assert (a["observation"][3::4][:, :, 2] == 1).all()
    assert a["terminated"][3::4].all()
    np.testing.assert_array_equal(a["reward"][3::4], np.where(cues[..., 0] == 1, 1.0, -1.0))


def test_an_environment_of_gymnax_compiled_in() -> None:
    """Its CartPole and ours agree, from the same states by the same actions; the time limit truncates."""
    import gymnax

    i, I = pr.dim("i")
    t, T = pr.dim("t")
    library = rl.gymnax(gymnax.make("CartPole-v1")[0])
    library.limit = 12
    steps = rl.Arrays(library, 3).run(i, t, lambda seen: (seen.axes[:, 2] > 0).cast("int32"))
    ours = rl.CartPole().step({"physics": steps.observation}, steps.action)
    whole = {t: slice(0, T)}
    outputs = [x[whole] for x in (steps.following, steps.reward, steps.terminated, steps.truncated, steps.observation)]
    outputs += [ours[0]["physics"][whole], ours[2][whole]]
    following, reward, terminated, truncated, seen, wanted, over = pr.compile(outputs)(bounds={I: 2, T: 30})
    np.testing.assert_allclose(following, wanted, rtol=1e-4, atol=1e-5)
    assert (np.asarray(terminated) == over).all()
    assert np.asarray(truncated).any() and not np.asarray(terminated & truncated).any()  # noqa: PT018
    assert (np.asarray(reward) == 1).all()
    ended = np.asarray(terminated | truncated)[:, :-1]
    np.testing.assert_array_equal(np.asarray(seen)[:, 1:][~ended], np.asarray(following)[:, :-1][~ended])
    assert (abs(np.asarray(seen)[:, 1:][ended]) <= 0.05).all()


def test_functions_may_return_plain_numbers() -> None:
    import jax.numpy as jnp

    def step(key: Any, state: Any, action: Any) -> Any:
        return state, jnp.zeros((1,)), 1.0, False

    still = rl.Functional(lambda key: (jnp.zeros(()), jnp.zeros((1,))), step, rl.Discrete(2), limit=3)
    _, reward, terminated = still.step(still.reset(3), pr.ones((3,), "int32"))
    found = pr.evaluate((reward, terminated))
    assert [part.tolist() for part in found] == [[1.0] * 3, [False] * 3]


class Line:
    """As Brax writes environments: a state with obs, reward and done; from -1 to 1 one walks on a line."""

    action_size = 1

    def reset(self, key: Any) -> Any:
        import jax

        start = jax.random.uniform(key, (1,))
        return LineState(start, start, jax.numpy.zeros(()), jax.numpy.zeros(()))

    def step(self, state: Any, action: Any) -> Any:
        place = state.pipeline_state + action
        return LineState(place, place, -abs(place[0]), (abs(place[0]) > 3.0).astype("float32"))


class LineState(NamedTuple):
    """What Brax has of it."""

    pipeline_state: Any
    obs: Any
    reward: Any
    done: Any


def test_an_environment_in_the_style_of_brax() -> None:
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    steps = rl.Arrays(rl.brax(Line(), limit=50), 2).run(i, t, lambda seen: 0.0 * seen + 1.0)
    whole = {t: slice(0, T)}
    seen, after, over = pr.compile([x[whole] for x in (steps.observation, steps.following, steps.terminated)])(
        bounds={I: 1, T: 12}
    )
    np.testing.assert_allclose(after, np.asarray(seen) + 1, rtol=1e-6)
    assert (np.asarray(over) == (np.asarray(after)[..., 0] > 3)).all()
    assert np.asarray(over).any()


@pytest.mark.parametrize("what", ["observation", "reward"])
def test_normalised_like_gymnasium(what: str) -> None:
    """A whole run, over iterations, by the wrappers for vectors; that of observations wants a step for each reset."""
    mode = AutoresetMode.NEXT_STEP if what == "observation" else AutoresetMode.SAME_STEP

    def vector() -> Any:
        makers = [lambda: gymnasium.make("Pendulum-v1", max_episode_steps=7)] * 3
        return SyncVectorEnv(makers, autoreset_mode=mode)

    i, I = pr.dim("i")
    t, T = pr.dim("t")
    source = rl.Normalized(rl.Gym(vector(), seed=5), gamma=0.9)
    steps = source.run(i, t, lambda seen: 0.0 * seen.axes[:, 0:1] + 0.5)
    assert steps.raw_reward is not None
    whole = {t: slice(0, T)}
    outputs = {"observation": steps.observation[whole], "reward": steps.reward[whole], "raw": steps.raw_reward[whole]}
    found = pr.compile(outputs | {"end": source.final()}, backend="numpy")(bounds={I: 3, T: 8})
    wrappers = gymnasium.wrappers.vector
    theirs: Any = wrappers.NormalizeObservation(vector()) if what == "observation" else None
    theirs = theirs or wrappers.NormalizeReward(vector(), gamma=0.9)
    seen, _ = theirs.reset(seed=5)
    wanted: dict[str, list[Any]] = {"observation": [], "reward": []}
    for _ in range(24):
        wanted["observation"].append(seen)
        seen, reward, *_ = theirs.step(np.full((3, 1), 0.5, np.float32))
        wanted["reward"].append(reward)
    ours = found[what].reshape(24, *found[what].shape[2:])
    np.testing.assert_allclose(ours, np.array(wanted[what]), rtol=1e-4, atol=1e-4)
    assert found["raw"].min() < -1
    assert set(found["end"]) == {"observation_mean", "observation_variance", "return_mean", "return_variance"}


class Together(gymnasium.Env[np.ndarray, Any]):
    """A step ends when all environments are in one."""

    observation_space: Any = gymnasium.spaces.Box(-1, 1, (1,))
    action_space: Any = gymnasium.spaces.Discrete(2)

    def __init__(self, all_here: threading.Barrier) -> None:
        self.all_here = all_here

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.all_here.wait(timeout=60)
        return np.zeros(1, np.float32), 1.0, False, False, {}


def test_threads_step_side_by_side() -> None:
    all_here = threading.Barrier(8)
    many = rl.threaded([lambda: Together(all_here)] * 8)
    many.reset(seed=0)
    assert many.step(np.zeros(8, int))[1].sum() == 8.0
    many.close()


def test_threads_give_what_one_thread_gives() -> None:
    names = set()

    class Watched(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            names.add(threading.current_thread().name)
            return super().step(action)

    def makers() -> list[Any]:
        return [lambda: Watched(gymnasium.make("CartPole-v1"))] * 3

    one, many = SyncVectorEnv(makers(), autoreset_mode=AutoresetMode.SAME_STEP), rl.threaded(makers())
    np.testing.assert_array_equal(one.reset(seed=1)[0], many.reset(seed=1)[0])
    random = np.random.default_rng(0)
    for _ in range(80):
        action = random.integers(0, 2, 3)
        for a, b in zip(one.step(action)[:4], many.step(action)[:4], strict=True):
            np.testing.assert_array_equal(a, b)
    assert len(names) > 1  # of the threads, and the main one
    many.close()
