"""Gymnasium's environments stepped in threads: for those that leave Python's lock, as simulators in C do.

All environments of a step run at once, and the program waits for the slowest. What it returns is what
`gymnasium.vector.SyncVectorEnv` returns, whose order and seeds it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from polyrhythm.extras import needs


def threaded(makers: Sequence[Callable[[], Any]], workers: int | None = None) -> Any:
    """A vector environment of several, stepped in threads.

    >>> import gymnasium
    >>> both = threaded([lambda: gymnasium.make("CartPole-v1")] * 2)
    >>> both.num_envs, both.reset(seed=0)[0].shape
    (2, (2, 4))
    """
    needs("gymnasium", "rl", "rl.threaded")
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    class Threaded(SyncVectorEnv):
        """The environments are stepped ahead in threads; then the vector environment takes what they returned."""

        def __init__(self) -> None:
            super().__init__(makers, autoreset_mode=AutoresetMode.SAME_STEP)
            self._pool = ThreadPoolExecutor(workers or len(makers))

        def step(self, actions: Any) -> Any:
            """All at once."""
            from gymnasium.vector.utils import iterate

            each = list(iterate(self.action_space, actions))
            envs = self.envs
            found = list(self._pool.map(lambda env, action: env.step(action), envs, each))
            self.envs = [_Stepped(env, result) for env, result in zip(envs, found, strict=True)]  # type: ignore[misc]
            try:
                return super().step(actions)
            finally:
                self.envs = envs

        def close_extras(self, **kwargs: Any) -> None:
            """The threads end too."""
            self._pool.shutdown()
            super().close_extras(**kwargs)

    return Threaded()


class _Stepped:
    """An environment that has already made its step."""

    def __init__(self, env: Any, result: Any) -> None:
        self._env, self._result = env, result

    def step(self, action: Any) -> Any:
        """What came of it."""
        return self._result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)
