"""Whether iterations stay independent as loops grow: found from what crosses, equal to going through everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import rl
from polyrhythm.compiler.schedule.dependences import ByBlock, Dependence
from polyrhythm.compiler.schedule.shifts import Aligned, Ranks, Shifts
from tests.programs import PROGRAMS


def relative(aligned: Aligned | None) -> set[frozenset[tuple[str, int]]] | None:
    """The blocks that are connected, with their shifts counted from the first name."""
    if aligned is None:
        return None
    parts: dict[str, dict[str, int]] = {}
    for name, (part, shift) in aligned.items():
        parts.setdefault(part, {})[name] = shift
    return {frozenset((name, shift - part[min(part)]) for name, shift in part.items()) for part in parts.values()}


def by_search(shifts: Shifts, ranks: Ranks, among: Sequence[Dependence]) -> Aligned | None:
    """From each block to all that dependences connect it with; None where two ways disagree."""
    apart: dict[str, list[tuple[str, int]]] = {name: [] for name in ranks}
    for d in among:
        distance = shifts.distance(d, ranks[d.reader], ranks[d.source])
        if not distance.is_constant or d.gap:
            return None
        apart[d.source].append((d.reader, -distance.constant))
        apart[d.reader].append((d.source, distance.constant))
    found: Aligned = {}
    for first in ranks:
        waiting = [] if first in found else [first]
        found.setdefault(first, (first, 0))
        while waiting:
            name = waiting.pop()
            for other, step in apart[name]:
                if other not in found:
                    found[other] = first, found[name][1] + step
                    waiting.append(other)
                elif found[other][1] != found[name][1] + step:
                    return None
    return found


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every join whether the iterations of both loops together are independent, compared with all dependences."""
    found: list[bool] = []
    joined = Shifts.joined

    def compared(
        self: Shifts, producer: Any, consumer: Any, ranks: Any, crossing: Any, dependences: ByBlock
    ) -> Aligned | None:
        have = joined(self, producer, consumer, ranks, crossing, dependences)
        if producer.parallel and consumer.parallel:
            assert relative(have) == relative(by_search(self, ranks, dependences.inside({*ranks})))
            found.append(have is not None)
        return have

    monkeypatch.setattr(Shifts, "joined", compared)
    return found


def test_programs(verdicts: list[bool]) -> None:
    for case in PROGRAMS:
        built = case.build()
        pr.compile(built.outputs, until=built.until, effects=built.effects, backend="numpy")
    assert {*verdicts} == {False, True}


def test_an_agent(verdicts: list[bool]) -> None:
    carts = rl.Arrays(rl.CartPole(), 2)
    model = rl.ActorCritic(carts.observations, carts.actions, (4,), np.random.default_rng(0))
    training = rl.ppo(carts, model, rl.PPOSettings(steps=4, epochs=1, minibatches=1))
    pr.compile(training.outputs, bounds=training.bounds, backend="numpy")
    assert verdicts.count(True) > 100
