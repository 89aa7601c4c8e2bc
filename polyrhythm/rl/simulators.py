"""Gymnasium's environments by name, with the wrappers that are usual for them.

Atari games get those of DQN and IMPALA: no-op starts, four frames per action of which the last two are merged, 84 x 84
grey pixels, four of them stacked, a start by the fire button where the game has one, and an episode per life. Agents
are evaluated in whole games. Rewards are clipped in the program (`rl.ClippedReward`), so returns are the game's own.
"""

from __future__ import annotations

from typing import Any

from polyrhythm.errors import DeclarationError
from polyrhythm.rl.gym import Gym
from polyrhythm.rl.threads import threaded

MUJOCO = (
    *("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum"),
    *("Pusher", "Reacher", "Swimmer", "Walker2d"),
)


def is_mujoco(name: str) -> bool:
    """Whether an environment is one of MuJoCo's, by its name.

    >>> is_mujoco("Ant-v5"), is_mujoco("CartPole-v1")
    (True, False)
    """
    return name.split("-")[0] in MUJOCO


def is_atari(name: str) -> bool:
    """Whether an environment is an Atari game, by its name.

    >>> is_atari("ALE/Breakout-v5")
    True
    """
    return name.startswith("ALE/")


def environments(name: str, count: int, seed: int = 0, threads: bool = False, training: bool = True) -> Gym:
    """So many environments of a name; `training` has what only helps learning, such as an episode per life.

    >>> environments("CartPole-v1", 2).observations.shape
    (4,)
    """
    gymnasium = imported()
    makers = [lambda: one(gymnasium, name, training)] * count
    try:
        if threads:
            made = threaded(makers)
        else:
            mode = gymnasium.vector.AutoresetMode.SAME_STEP
            made = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode)
    except (gymnasium.error.Error, ImportError, ModuleNotFoundError) as error:
        raise _refused(gymnasium, name, error) from error
    made.spec = gymnasium.spec(name)
    return Gym(made, seed)


def one(gymnasium: Any, name: str, training: bool = True, **options: Any) -> Any:
    """One environment with its wrappers."""
    if not is_atari(name):
        return gymnasium.make(name, **options)
    game = gymnasium.make(name, frameskip=1, **options)
    game = gymnasium.wrappers.AtariPreprocessing(game, noop_max=30, frame_skip=4)
    game = _with_lives(gymnasium, game) if training else game
    if "FIRE" in game.unwrapped.get_action_meanings():
        game = _with_fire(gymnasium, game)
    return gymnasium.wrappers.FrameStackObservation(game, 4)


def imported() -> Any:
    """Gymnasium, with Atari's games if they are installed."""
    try:
        import gymnasium
    except ImportError as error:
        raise DeclarationError(
            f"Gymnasium is needed: {error}", fix="pip install 'polyrhythm[rl]', or use --compiled"
        ) from error
    try:
        import ale_py

        gymnasium.register_envs(ale_py)
    except ImportError:
        pass
    return gymnasium


def _with_lives(gymnasium: Any, game: Any) -> Any:
    """A game in which each life is an episode; it begins anew when all are lost."""

    class Lives(gymnasium.Wrapper):
        """The end of a life is terminal, but the next goes on from there."""

        lives, over = 0, True

        def step(self, action: Any) -> Any:
            """A step; after it there may be fewer lives."""
            seen, reward, terminated, truncated, info = self.env.step(action)
            before, self.lives, self.over = self.lives, self.unwrapped.ale.lives(), terminated or truncated
            return seen, reward, terminated or 0 < self.lives < before, truncated, info

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            """A new game, or the next life."""
            if self.over or seed is not None:
                seen, info = self.env.reset(seed=seed, options=options)
            else:
                seen, _, terminated, truncated, info = self.env.step(0)
                if terminated or truncated:
                    seen, info = self.env.reset(seed=seed, options=options)
            self.lives, self.over = self.unwrapped.ale.lives(), False
            return seen, info

    return Lives(game)


def _with_fire(gymnasium: Any, game: Any) -> Any:
    """A game that is begun by its fire button."""

    class Fire(gymnasium.Wrapper):
        """Fires after a reset."""

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            """Begun, and fired."""
            self.env.reset(seed=seed, options=options)
            seen, _, terminated, truncated, info = self.env.step(self.unwrapped.get_action_meanings().index("FIRE"))
            return self.env.reset(options=options) if terminated or truncated else (seen, info)

    return Fire(game)


def _refused(gymnasium: Any, name: str, error: Exception) -> DeclarationError:
    """What is missing: a package that the environment needs, or the environment."""
    needs = {"mujoco": is_mujoco(name), "atari": is_atari(name), "box2d": "Box2D" in str(error)}
    for extra, needed in needs.items():
        if needed:
            return DeclarationError(
                f"{name} needs packages that are not installed: {error}", fix=f"pip install 'polyrhythm[{extra}]'"
            )
    near = [known for known in gymnasium.registry if known.lower().startswith(name.split("-")[0].lower())]
    hint = f"did you mean {', '.join(near[:3])}?" if near else "check the name"
    return DeclarationError(f"Gymnasium has no environment {name!r}: {error}", fix=hint)
