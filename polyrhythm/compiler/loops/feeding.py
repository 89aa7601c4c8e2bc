"""Programs that hold a window of an input's steps instead of all: for inputs larger than memory.

Where every read takes a bounded number of steps along the first dim, iterations that follow each other read steps that
follow each other. The input's place then has as many slots as a run wants to hold, from some step on: slot s of the
window is step `begin + s`. Both are bounds of the changed program, and the run moves the window from call to call
(`backends/jax/run/stepping.py`). Every read moves by the same distance, so what was proved of the loops holds; that
the window has what some iterations read follows from the interval of steps that they read (`units.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.loops.ir import Block, Load, LoopProgram, Steps, blocks_of, mapped
from polyrhythm.compiler.loops.units import Lookup, Marks, lowest, lowest_marks, needed, needed_marks, still, units


@dataclass(frozen=True)
class Window:
    """The steps of an input that a run holds: `size` of them from `begin` on; which ones each unit reads."""

    place: str
    begin: Symbol
    size: Symbol
    lows: Marks
    highs: Marks

    def span(self, unit: int, iterations: range, length: int, lookup: Lookup) -> range:
        """The steps that some iterations of a unit read, of so many; none if they read none."""
        if not self.highs.inside[unit] or not iterations:
            return range(0)
        first, last = iterations[0], iterations[-1]
        start = max(0, lowest(self.lows, unit, first, last, lookup))
        return range(start, max(start, min(length, needed(self.highs, unit, first, last, lookup))))

    def done(self, unit: int, iterations: range, lookup: Lookup) -> int:
        """The first step that is still read when some iterations of a unit are about to be the next."""
        return max(0, still(self.lows, unit, iterations, lookup))


@dataclass(frozen=True)
class Fed:
    """An input of which a run holds a window: how many steps there are in all, and how to have some of them.

    `rows` gives the steps of a range. What lies before the step that `forget` gets is not asked for any more.
    """

    window: Window
    length: int
    dtype: np.dtype
    rows: Callable[[range], np.ndarray]
    forget: Callable[[int], None]


def can_be_fed(program: LoopProgram, name: str) -> bool:
    """Whether an input is read a bounded number of steps at a time, along its first dim."""
    place = program.places.get(program.inputs[name])
    if place is None or not place.slots or place.name in program.outputs or place.separate:
        return False
    spread = program.chunks[place.dims[0]].over if place.dims and place.dims[0] in program.chunks else ()
    if spread or any(other.part_of and other.part_of[0] == place.name for other in program.places.values()):
        return False
    entries = [load.index[0] for b in blocks_of(program.body) for load in b.loads if load.place == place.name]
    return bool(entries) and all(isinstance(e, Term) or (e.length.is_constant and e.step == 1) for e in entries)


def holds_little(window: Window, program: LoopProgram, length: int, lookup: Lookup) -> bool:
    """Whether one iteration reads less than half of the steps, at the beginning, in the middle and at the end."""
    for number, unit in enumerate(units(program.body)):
        iterations = unit.iterations(lookup)
        for at in {0, len(iterations) // 2, len(iterations) - 1} if iterations else ():
            if 2 * len(window.span(number, iterations[at : at + 1], length, lookup)) > length:
                return False
    return True


def windows(program: LoopProgram, names: Iterable[str]) -> tuple[LoopProgram, dict[str, Window]]:
    """The program with windows of some inputs, which can be fed."""
    found: dict[str, Window] = {}
    for number, name in enumerate(names):
        own = program.inputs[name]
        begin = Symbol(f"{name} from", "bound", serial=serials.WINDOW - 2 * number)
        size = Symbol(f"{name} held", "bound", serial=serials.WINDOW - 2 * number - 1)
        found[name] = Window(own, begin, size, lowest_marks(program, own), needed_marks(program, own))
    by_place = {window.place: window for window in found.values()}

    def moved(load: Load) -> Load:
        if load.place not in by_place:
            return load
        entry, begin = load.index[0], by_place[load.place].begin.term
        now = replace(entry, start=entry.start - begin) if isinstance(entry, Steps) else entry - begin
        return replace(load, index=(now, *load.index[1:]))

    places = dict(program.places)
    for window in found.values():
        place = places[window.place]
        places[window.place] = replace(place, slots=(window.size.term, *place.slots[1:]), dims=("", *place.dims[1:]))
    symbols = (symbol for window in found.values() for symbol in (window.begin, window.size))
    body = mapped(program.body, lambda item: item.loading(moved) if isinstance(item, Block) else item)
    return replace(program, places=places, body=body, bounds=(*program.bounds, *symbols)), found
