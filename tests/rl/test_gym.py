"""Gymnasium's vector environments inside a program: all modes of resetting give the same episodes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import polyrhythm as pr
from polyrhythm import rl
from polyrhythm.runtime.errors import CheckpointMismatchError

ITERATIONS, STEPS, ENVS = 2, 25, 2


class Count(gymnasium.Env[np.ndarray, Any]):
    """Counts its steps, from 10 times the number of the episode; ends after 3 of them, by turns in either way."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int) -> None:
        self.length, self.episode, self.age = length, -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.age = (0 if seed is not None else self.episode + 1), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.age += 1
        over = self.age == self.length
        return self._seen(), float(self.age), over and self.episode % 2 == 0, over and self.episode % 2 == 1, {}

    def _seen(self) -> np.ndarray:
        return np.array([10 * self.episode + self.age], np.float32)


def source(mode: AutoresetMode) -> rl.Gym:
    return rl.Gym(SyncVectorEnv([lambda: Count(3), lambda: Count(4)], autoreset_mode=mode), seed=7)


def ran(mode: AutoresetMode, backend: str = "numpy") -> dict[str, np.ndarray]:
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    steps = source(mode).run(i, t, lambda seen: (seen.axes[:, 0] > 0).cast("int32"))
    names = ("observation", "following", "reward", "terminated", "truncated", "valid")
    outputs = {n: getattr(steps, n)[i, 0:T] for n in names if getattr(steps, n) is not None}
    found = pr.compile(outputs, backend=backend)(bounds={I: ITERATIONS, T: STEPS})
    return {name: a.reshape(ITERATIONS * STEPS, ENVS, *a.shape[3:]) for name, a in found.items()}


def episodes(found: dict[str, np.ndarray], env: int) -> list[Any]:
    """Every transition of one environment, without the steps that only reset."""
    valid = found["valid"][:, env] if "valid" in found else np.ones(len(found["reward"]), bool)
    names = ("observation", "following", "reward", "terminated", "truncated")
    return list(zip(*(np.asarray(found[n][:, env]).reshape(-1)[valid].tolist() for n in names), strict=True))


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_mode_gives_the_same_transitions(mode: AutoresetMode) -> None:
    found = ran(mode)
    for env, length in enumerate((3, 4)):
        transitions = episodes(found, env)
        assert len(transitions) > 30
        for number, (seen, after, reward, terminated, truncated) in enumerate(transitions):
            episode, age = divmod(number, length)
            assert (seen, after, reward) == (10 * episode + age, 10 * episode + age + 1, age + 1)
            over = age + 1 == length
            assert (terminated, truncated) == (over and episode % 2 == 0, over and episode % 2 == 1)


def test_on_jax() -> None:
    found, expected = ran(AutoresetMode.SAME_STEP, "jax"), ran(AutoresetMode.SAME_STEP)
    for name, array in expected.items():
        assert np.array_equal(found[name], array), name


def test_state_is_saved_and_restored() -> None:
    """After a restore the same actions lead to the same observations, through resets with random states."""
    carts = rl.Gym(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2), seed=3)
    carts.reset()
    action = np.array([0, 1])
    for _ in range(7):
        carts.step(action)
    kept = {name: np.array(a) for name, a in carts.save().items()}
    first = [carts.step(action)[0] for _ in range(30)]
    other = rl.Gym(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2), seed=3)
    other.restore(kept)
    assert np.array_equal(first, [other.step(action)[0] for _ in range(30)])


@pytest.mark.parametrize("make", [rl.reinforce, rl.a2c, rl.ppo])
def test_steps_that_only_reset_count_for_nothing(make: Any) -> None:
    """Episodes of one step: every other step only resets, and some iterations have nothing else."""
    lone = rl.Gym(SyncVectorEnv([lambda: Count(1)], autoreset_mode=AutoresetMode.NEXT_STEP))
    model = rl.ActorCritic(lone.observations, lone.actions, (), np.random.default_rng(0))
    steps = 4 if make is rl.ppo else 1
    kinds = {rl.reinforce: rl.ReinforceSettings, rl.a2c: rl.A2CSettings, rl.ppo: rl.PPOSettings}
    training = make(lone, model, kinds[make](steps=steps))
    program = pr.compile(training.outputs, bounds=training.bounds, backend="numpy")
    found = program(bounds={training.iterations: 4})["weights"]
    assert all(np.isfinite(w).all() for w in found.values())


class Shifted(Count):
    """Its actions do not begin at 0, and it shows them."""

    action_space = gymnasium.spaces.Discrete(2, start=5)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.array([action], np.float32), *super().step(action)[1:]


def test_actions_begin_where_the_space_does() -> None:
    both = rl.Gym(SyncVectorEnv([lambda: Shifted(9)] * 2))
    both.reset()
    assert both.step(np.array([0, 1]))[1].tolist() == [[5.0], [6.0]]


class Anything(gymnasium.Env[Any, Any]):
    """Observations and actions of some spaces; an episode has three steps, and each action is checked."""

    def __init__(self, observations: Any, actions: Any) -> None:
        self.observation_space, self.action_space, self.age = observations, actions, 0
        observations.seed(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.age = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), (action, self.action_space)
        self.age += 1
        return self.observation_space.sample(), 1.0, self.age == 3, False, {}


SPACES = gymnasium.spaces
OBSERVED: list[Any] = [
    SPACES.Discrete(4, start=2),
    SPACES.MultiDiscrete([2, 3]),
    SPACES.MultiBinary(3),
    SPACES.Box(0, 1, (3,), np.bool_),
    SPACES.Box(0, 255, (6, 6, 3), np.uint8),
    SPACES.Dict(image=SPACES.Box(0, 255, (3, 6, 6), np.uint8), gear=SPACES.Discrete(3)),
    SPACES.Tuple([SPACES.Box(-1, 1, (2,)), SPACES.Dict(a=SPACES.Discrete(2))]),
]
ACTED: list[Any] = [
    SPACES.MultiDiscrete([2, 3], start=[1, 5]),
    SPACES.MultiBinary(3),
    SPACES.Box(np.array([-1, 0], np.float32), np.array([2, 1], np.float32)),
    SPACES.Discrete(3, start=-1),
]


@pytest.mark.parametrize("number", range(len(OBSERVED)))
def test_agents_act_in_every_space(number: int) -> None:
    """In every mode of resetting."""
    mode = list(AutoresetMode)[number % 3]
    spaces = OBSERVED[number], ACTED[number % len(ACTED)]
    both = rl.Gym(SyncVectorEnv([lambda: Anything(*spaces)] * 2, autoreset_mode=mode))
    model = rl.ActorCritic(both.observations, both.actions, (4,), np.random.default_rng(0))
    training = rl.a2c(both, model, rl.A2CSettings(steps=4))
    program = pr.compile(training.outputs, bounds=training.bounds, backend="numpy")
    found = program(bounds={training.iterations: 3})
    assert found["episodes"].sum() == (8 if mode is not AutoresetMode.NEXT_STEP else 6)
    assert all(np.isfinite(w).all() for w in found["weights"].values())


@pytest.mark.parametrize(
    ("space", "name"),
    [(SPACES.Dict(a=SPACES.Discrete(2)), "action_space"), (SPACES.Text(3), "observation_space")],
)
def test_other_spaces_are_refused(space: Any, name: str) -> None:
    environments = SyncVectorEnv([lambda: Count(3)])
    setattr(environments, f"single_{name}", space)
    with pytest.raises(pr.errors.DeclarationError, match="wrap the environment"):
        rl.Gym(environments)


def test_numbers_of_64_bits_are_seen_with_32() -> None:
    class Wide(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Dict(a=gymnasium.spaces.Box(-1, 1, (2,), np.float64))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return {"a": np.full(2, 0.1)}, {}

        def step(self, action: Any) -> Any:
            return {"a": np.full(2, 0.1)}, 0.0, False, False, {}

    made = rl.Gym(Wide())
    assert made.observations == {"a": rl.Box((2,), -1.0, 1.0, "float32")}
    assert [part.dtype for part in made.reset()] == [np.float32]
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    steps = made.run(i, t, lambda seen: (seen["a"].axes[:, 0] > 0).cast("int32"))
    found = pr.compile(steps.following["a"], backend="numpy")(bounds={I: 1, T: 2})
    assert found.dtype == np.float32


def test_a_single_environment_is_a_vector_of_one() -> None:
    one = rl.Gym(gymnasium.make("CartPole-v1"))
    assert one.count == 1
    assert one.reset()[0].shape == (1, 4)
    with pytest.raises(pr.errors.DeclarationError, match="make_vec"):
        rl.Gym("CartPole-v1")


@pytest.mark.parametrize("reward", [np.nan, np.inf, None])
def test_rewards_that_are_no_numbers_are_refused(reward: Any) -> None:
    class Broken(Count):
        """Its third reward is no number."""

        def step(self, action: Any) -> Any:
            seen, usual, *rest = super().step(action)
            return seen, reward if self.age == 3 else usual, *rest

    both = rl.Gym(SyncVectorEnv([lambda: Count(9), lambda: Broken(9)]))
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    steps = both.run(i, t, lambda seen: (seen.axes[:, 0] > 0).cast("int32"))
    program = pr.compile(steps.reward, backend="numpy")
    assert program(bounds={I: 1, T: 2}).shape == (1, 2, 2)
    with pytest.raises(pr.errors.HostError, match="environment 1 gave the reward"):
        program(bounds={I: 1, T: 3})


class Forgetful(gymnasium.utils.EzPickle, Count):
    """Pickled, it is made anew."""

    def __init__(self, length: int) -> None:
        gymnasium.utils.EzPickle.__init__(self, length)
        Count.__init__(self, length)


class Stuck(Count):
    """It cannot be pickled."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.key = lambda: 0


@pytest.mark.parametrize("kind", [Forgetful, Stuck])
def test_what_cannot_be_saved_is_refused(kind: type[Count]) -> None:
    environments = rl.Gym(SyncVectorEnv([lambda: kind(3)]))
    environments.reset()
    with pytest.raises(pr.errors.UnsupportedError, match="cannot be saved"):
        environments.save()


def test_a_state_of_other_environments_is_refused() -> None:
    two, one = rl.Gym(SyncVectorEnv([lambda: Count(3)] * 2)), rl.Gym(SyncVectorEnv([lambda: Count(3)]))
    two.reset()
    with pytest.raises(CheckpointMismatchError, match="2 of 'SyncVectorEnv'"):
        one.restore(two.save())


def test_an_unknown_mode_is_refused() -> None:
    environments = SyncVectorEnv([lambda: Count(3)])
    environments.metadata = {"autoreset_mode": "sometimes"}
    with pytest.raises(pr.errors.DeclarationError, match="sometimes"):
        rl.Gym(environments)
