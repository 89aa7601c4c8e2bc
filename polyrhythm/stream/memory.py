"""Off-chip memory as a fluid server: every tile in flight gets a max-min fair share of the bandwidth.

A transfer asks for at most `cap` bytes a cycle. Transfers of one cap progress alike, so each cap keeps one *virtual
time*, the bytes that a transfer present since the beginning would have received; a transfer is done when the virtual
time has advanced by its size. Starting or finishing a transfer then costs the logarithm of the number in flight, and
shares are recomputed only at those moments. A whole tile is one transfer: never one message a burst.
"""

from __future__ import annotations

import heapq
from typing import Any


class _Class:
    """The transfers that share one cap."""

    __slots__ = ("cap", "finishing", "rate", "virtual")

    def __init__(self, cap: float) -> None:
        self.cap = cap
        self.virtual = 0.0
        self.rate = 0.0
        self.finishing: list[tuple[float, int, Any]] = []


class FluidMemory:
    """A bandwidth shared by transfers.

    >>> memory = FluidMemory(bandwidth=100)
    >>> memory.start(0, nbytes=600, cap=64, owner="a")
    >>> memory.start(0, nbytes=600, cap=64, owner="b")
    >>> memory.next_completion
    12.0
    >>> memory.finish_due()
    ['a', 'b']
    """

    _TOLERANCE = 1e-6

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.bytes_moved = 0
        self.next_completion: float | None = None
        self._now = 0.0
        self._classes: dict[float, _Class] = {}
        self._count = 0

    def start(self, time: float, nbytes: int, cap: float, owner: Any) -> None:
        """Begin a transfer at `time`; times must not decrease."""
        self._advance(time)
        group = self._classes.get(cap)
        if group is None:
            group = self._classes[cap] = _Class(cap)
        self._count += 1
        self.bytes_moved += nbytes
        heapq.heappush(group.finishing, (group.virtual + nbytes, self._count, owner))
        self._share()

    def finish_due(self) -> list[Any]:
        """Advance to the next completion and return the owners of all transfers that end there, in starting order."""
        assert self.next_completion is not None
        self._advance(self.next_completion)
        done: list[tuple[int, Any]] = []
        for group in self._classes.values():
            while group.finishing and group.finishing[0][0] <= group.virtual + self._TOLERANCE:
                _, order, owner = heapq.heappop(group.finishing)
                done.append((order, owner))
            if not group.finishing:
                group.virtual = 0.0
        self._share()
        return [owner for _, owner in sorted(done, key=lambda pair: pair[0])]

    def _advance(self, time: float) -> None:
        elapsed = time - self._now
        if elapsed > 0:
            for group in self._classes.values():
                if group.finishing:
                    group.virtual += group.rate * elapsed
            self._now = time

    def _share(self) -> None:
        """Max-min shares: small caps are filled first, the rest is divided evenly."""
        active = [group for group in self._classes.values() if group.finishing]
        if len(active) > 1:
            active.sort(key=lambda group: group.cap)
        left, waiting = self.bandwidth, sum(len(group.finishing) for group in active)
        soonest: float | None = None
        for group in active:
            group.rate = min(group.cap, left / waiting)
            left -= group.rate * len(group.finishing)
            waiting -= len(group.finishing)
            end = self._now + max(0.0, group.finishing[0][0] - group.virtual) / group.rate
            soonest = end if soonest is None else min(soonest, end)
        self.next_completion = soonest
