"""Films of an environment: every frame that Gymnasium renders while it is played."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from polyrhythm.errors import DeclarationError
from polyrhythm.rl.gym import Gym
from polyrhythm.rl.presets import usual
from polyrhythm.rl.running import Source
from polyrhythm.rl.simulators import imported, one


def filmed(name: str, seed: int, mode: str = "rgb_array", algorithm: str = "ppo") -> tuple[Source, list[np.ndarray]]:
    """One environment of a name that is played once, and the frames that will be of it.

    >>> source, frames = filmed("CartPole-v1", 0)
    >>> source.count, frames
    (1, [])
    """
    gymnasium = imported()
    if mode == "rgb_array":
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # no window is opened, so none is needed
    try:
        game = one(gymnasium, name, training=False, render_mode=mode)
    except gymnasium.error.Error as error:
        raise DeclarationError(
            f"{name} cannot be shown: {error}", fix="play one of Gymnasium's environments"
        ) from error
    frames: list[np.ndarray] = []

    class Filmed(gymnasium.Wrapper):  # type: ignore[name-defined]
        """Keeps the frames of the first episode, and ends there."""

        over = False
        last: Any = ()

        def step(self, action: Any) -> Any:
            """A step, and its frame."""
            if self.over:
                return *self.last[:1], 0.0, False, False, {}
            if mode == "rgb_array":
                frames.append(np.asarray(self.env.render()))
            self.last = self.env.step(action)
            self.over = bool(self.last[2] or self.last[3])
            return self.last

    vector = gymnasium.vector.SyncVectorEnv(
        [lambda: Filmed(game)], autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
    )
    vector.spec = gymnasium.spec(name)
    return usual(Gym(vector, seed), name, algorithm), frames


def check_name(path: str) -> None:
    """Refuse the name of a film that is not one."""
    if not path.endswith(".gif"):
        raise DeclarationError(f"a film is a .gif file, not {path!r}", fix="end it by .gif")


def write(frames: list[np.ndarray], path: str, fps: int = 30) -> None:
    """An animated picture (.gif)."""
    check_name(path)
    try:
        from PIL import Image
    except ImportError as error:
        raise DeclarationError(f"Pillow is needed: {error}", fix="pip install pillow") from error
    images = [Image.fromarray(frame) for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=1000 // fps, loop=0)
