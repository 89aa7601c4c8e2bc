"""Spaces of several axes: environments get actions of their own shape, agents see vectors; others are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import rl

gymnasium = pytest.importorskip("gymnasium")
spaces = gymnasium.spaces

NUMBERS = spaces.Box(-1.0, 1.0, (3,), np.float32)
WIDE = spaces.Box(np.full((2, 3), -2.0, np.float32), np.arange(6, dtype=np.float32).reshape(2, 3))


class Strict(gymnasium.Env):  # type: ignore[name-defined]
    """It takes actions of its space alone, and shows samples of another; `seen` has what it was given and has shown."""

    def __init__(self, observations: Any, actions: Any) -> None:
        self.observation_space, self.action_space = observations, actions
        self.steps, self.given, self.shown = 0, list[Any](), list[Any]()

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        if seed is not None:
            self.observation_space.seed(seed)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(np.asarray(action)), action  # of no axes it is a scalar
        self.given.append(action)
        self.steps += 1
        return self._seen(), 1.0, self.steps == 4, False, {}

    def _seen(self) -> Any:
        self.shown.append(self.observation_space.sample())
        return self.shown[-1]


def of(observations: Any, actions: Any, mode: str = "SAME_STEP") -> rl.Gym:
    autoreset = getattr(gymnasium.vector.AutoresetMode, mode)
    makers = [lambda: Strict(observations, actions)] * 2
    return rl.Gym(gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=autoreset))


ACTIONS = {
    "MultiDiscrete of two axes": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "MultiDiscrete of two axes from elsewhere": spaces.MultiDiscrete(
        np.full((2, 2), 3), start=np.arange(4).reshape(2, 2)
    ),
    "MultiBinary of two axes": spaces.MultiBinary((2, 3)),
    "MultiBinary of three axes": spaces.MultiBinary((2, 1, 3)),
    "Box of two axes": WIDE,
    "Box without axes": spaces.Box(-1.0, 1.0, (), np.float32),
}


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_ppo_acts_in(name: str, backend: str) -> None:
    source = of(NUMBERS, ACTIONS[name])
    model = rl.ActorCritic(source.observations, source.actions, (4,), np.random.default_rng(0))
    training = rl.ppo(source, model, rl.PPOSettings(steps=8, minibatches=2, epochs=1))
    found = pr.compile(training.outputs, training.bounds, backend=backend)(bounds={training.iterations: 2})
    assert found["return"].tolist() == [4.0, 4.0]
    if name != "Box without axes":
        given = np.array([action for env in source.environments.envs for action in env.given])
        assert len(np.unique(given.reshape(len(given), -1), axis=0)) > 4  # all elements are chosen, not one for all


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_actors_between_limits(algorithm: str) -> None:
    """Each element of an action has limits of its own."""
    source = of(NUMBERS, WIDE)
    train: Any = getattr(rl, algorithm)
    kind: Any = rl.SoftActorCritic if algorithm == "sac" else rl.DeterministicActorCritic
    settings: Any = (rl.SACSettings if algorithm == "sac" else rl.TD3Settings)(
        steps=4, learning_starts=8, batch_size=4, buffer_size=64
    )
    training = train(source, kind(source.observations, source.actions, (4,)), settings)
    found = pr.compile(training.outputs, training.bounds, backend="numpy")(bounds={training.iterations: 6})
    assert found["return"][1:].tolist() == [4.0] * 5
    given = np.array([action for env in source.environments.envs for action in env.given])
    assert (given >= WIDE.low).all()
    assert (given <= WIDE.high).all()
    assert given.std(0).min() > 0.0


NESTED = spaces.Dict(
    {
        "x": spaces.Tuple((spaces.Discrete(3, start=2), spaces.Dict({"y": spaces.MultiBinary((2, 2))}))),
        "z": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [2, 3]])),
    }
)


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", "DISABLED"])
def test_what_is_seen(mode: str) -> None:
    """Vectors from 0, in the order of the elements, at the ends of episodes too."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    source = of(NESTED, spaces.Discrete(2), mode)
    steps = source.run(i, t, lambda seen: seen["z"].axes[:, 0] * 0)
    parts = lambda seen: [seen["x"][0], seen["x"][1]["y"], seen["z"]]  # noqa: E731
    program = pr.compile([*parts(steps.observation), *parts(steps.following)], backend="numpy")
    found = program(bounds={I: 1, T: 4})
    env = source.environments.envs[0]
    for kind, first in ((found[:3], 0), (found[3:], 1)):
        for t_ in range(4):
            shown = env.shown[t_ + first]
            own = [part[0, t_, 0] for part in kind]
            assert own[0] == shown["x"][0] - 2
            assert own[1].tolist() == shown["x"][1]["y"].ravel().tolist()
            assert own[2].tolist() == (shown["z"] - NESTED["z"].start).ravel().tolist()
    model = rl.ActorCritic(source.observations, source.actions, (4,))
    training = rl.a2c(source, model, rl.A2CSettings(steps=4))
    pr.compile(training.outputs, training.bounds, backend="numpy")(bounds={training.iterations: 2})


@pytest.mark.parametrize(
    "actions",
    [
        spaces.Dict({"a": spaces.Discrete(2), "b": NUMBERS}),
        spaces.Tuple((spaces.Discrete(2), spaces.Dict({"a": spaces.Discrete(3)}))),
        spaces.Text(4),
        spaces.Sequence(spaces.Discrete(2)),
    ],
    ids=lambda space: type(space).__name__,
)
def test_actions_of_several_parts_are_refused(actions: Any) -> None:
    with pytest.raises(pr.errors.DeclarationError, match=r"(?s)(actions of the environment|space).*fix: wrap the env"):
        of(NUMBERS, actions)
