"""Gymnasium's environments that do not wait for the slowest: a step takes the first that are ready, as in EnvPool.

Every environment runs in a thread. A step of the program sends actions to those that it saw last and receives the next
`batch_size` that are ready, whichever these are. So rows of one step are of different environments than those of the
next, and the row of a step is a whole transition, which was begun when its environment was seen before: what was seen,
the action, and what came of it. Replays draw rows alone and need no more. Algorithms that look from one step to the
next refuse such environments. Which are ready first depends on the clock: no two runs are the same.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from polyrhythm.errors import DeclarationError, HostError, UnsupportedError
from polyrhythm.extras import needs
from polyrhythm.language.index import Dim
from polyrhythm.language.inputs import host
from polyrhythm.language.tensor import Tensor
from polyrhythm.optim.states import leaves
from polyrhythm.rl.gym import Gym
from polyrhythm.rl.running import Steps, Which, carried


@dataclass
class _Arrived:
    """An environment that is ready: what it shows, and the transition that led there, if there is one."""

    number: int
    seen: list[np.ndarray]
    following: list[np.ndarray]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    valid: bool = False


class Async(Gym):
    """Environments of which a step takes the first `batch_size` that are ready, each in a thread.

    >>> import gymnasium
    >>> carts = Async([lambda: gymnasium.make("CartPole-v1")] * 4, batch_size=2)
    >>> carts.count, carts.observations.shape, carts.actions
    (2, (4,), Discrete(n=2))
    """

    in_order = False
    """Row k of a step is not always of environment k."""

    def __init__(
        self, makers: Sequence[Callable[[], Any]], batch_size: int, seed: int = 0, effect: str = "environments"
    ) -> None:
        needs("gymnasium", "rl", "rl.Async")
        if not 1 <= batch_size <= len(makers):
            raise DeclarationError(
                f"a step is to take {batch_size} of {len(makers)} environments",
                fix="give a batch_size of at least one, and of no more than there are environments",
            )
        self.each = [make() for make in makers]
        one = self.each[0]
        spaces = {(str(env.observation_space), str(env.action_space)) for env in self.each}
        if len(spaces) > 1:
            raise DeclarationError("the environments have different spaces", fix="make all of them alike")
        shown = SimpleNamespace(
            single_observation_space=one.observation_space,
            single_action_space=one.action_space,
            num_envs=batch_size,
            metadata={"autoreset_mode": "SameStep"},
            spec=getattr(one, "spec", None),
        )
        super().__init__(shown, seed, effect)
        self._pool = ThreadPoolExecutor(len(makers))
        self._ready: queue.Queue[_Arrived | BaseException] = queue.Queue()
        self._running, self._here = 0, list[int]()
        self._last: list[tuple[list[np.ndarray], np.ndarray] | None] = [None] * len(makers)

    def reset(self) -> list[np.ndarray]:
        """Begin all environments, seeded; what the first that are ready show."""
        while self._running:  # what an earlier call has begun ends first
            self._take()
        while not self._ready.empty():
            self._ready.get()
        self._last = [None] * len(self.each)
        for number in range(len(self.each)):
            self._send(self._begin, number)
        self._arrived = self._receive()
        return [np.stack(part) for part in zip(*(one.seen for one in self._arrived), strict=True)]

    def step(self, action: np.ndarray) -> list[np.ndarray]:
        """Send actions to those that were seen last; what to act on next, and the transitions that have ended there."""
        given = np.asarray(action)
        for one, own, native in zip(self._arrived, given, self._action(given), strict=True):
            self._last[one.number] = one.seen, own
            self._send(self._step, one.number, native)
        self._arrived = self._receive()
        before = [self._last[one.number] or (one.seen, np.zeros_like(given[0])) for one in self._arrived]
        parts = [
            [one.seen for one in self._arrived],
            [seen for seen, _ in before],
            [x.following for x in self._arrived],
        ]
        stacked = [np.stack(part) for rows in parts for part in zip(*rows, strict=True)]
        reward = np.array([one.reward for one in self._arrived], np.float32)
        flags = ([getattr(x, name) for x in self._arrived] for name in ("terminated", "truncated", "valid"))
        number = np.array([one.number for one in self._arrived], np.int32)
        acted = np.stack([own for _, own in before]).astype(given.dtype)
        return [*stacked, acted, reward, *(np.array(flag, bool) for flag in flags), number]

    def run(self, i: Dim, t: Dim, act: Callable[[Any], Tensor]) -> Steps:
        """Act in those that are ready."""
        spaces, rows = leaves(self.observations), (self.count,)
        shapes = [(self.count, *space.shape) for space in spaces]
        kinds: list[Any] = [np.dtype(space.dtype) for space in spaces]
        first = host(self.reset, [], shapes, kinds, (), effect=self.effect)
        seen = [carried(i, t, part) for part in first]
        action = act(self._tree(seen))
        found = host(
            self.step,
            [action],
            [*shapes * 3, action.shape, *[rows] * 5],
            [*kinds * 3, action.dtype, "float32", *["bool"] * 3, "int32"],
            (i, t),
            effect=self.effect,
        )
        for part, after in zip(seen, found, strict=False):
            part[i, t + 1] = after
        count = len(seen)
        before, following = self._tree(found[count : 2 * count]), self._tree(found[2 * count : 3 * count])
        acted, reward, terminated, truncated, valid, number = found[3 * count :]
        which = Which(number, len(self.each))
        return Steps(before, acted, following, reward, terminated, truncated, valid, which=which)

    def save(self) -> Mapping[str, Any]:
        """Refused: steps are under way in threads."""
        raise UnsupportedError(
            f"{self._what()}: the state cannot be saved while environments are under way",
            fix="train without checkpoints, or with rl.Gym and rl.threaded, which wait for all",
        )

    def close(self) -> None:
        """The threads end, and the environments."""
        self._pool.shutdown()
        for env in self.each:
            env.close()

    def _send(self, what: Callable[..., _Arrived], *given: Any) -> None:
        def work() -> None:
            try:
                self._ready.put(what(*given))
            except BaseException as error:  # told where the program waits
                self._ready.put(error)

        self._running += 1
        self._pool.submit(work)

    def _take(self) -> _Arrived:
        found = self._ready.get()
        self._running -= 1
        if isinstance(found, BaseException):
            raise found
        return found

    def _receive(self) -> list[_Arrived]:
        return [self._take() for _ in range(self.count)]

    def _begin(self, number: int) -> _Arrived:
        seen = self._parts(self.each[number].reset(seed=self.seed + number)[0])
        return _Arrived(number, seen, seen)

    def _step(self, number: int, action: Any) -> _Arrived:
        env = self.each[number]
        observation, reward, terminated, truncated, _ = env.step(action)
        if not np.isfinite(reward):  # it would soon be in every weight
            raise HostError(f"environment {number} gave the reward {reward}", fix="let rewards be finite numbers")
        following = self._parts(observation)
        seen = self._parts(env.reset()[0]) if terminated or truncated else following
        return _Arrived(number, seen, following, float(reward), bool(terminated), bool(truncated), True)
