"""Runs that hold a window of some inputs, which are larger than memory or come from an iterator: the JAX backend's.

A call does as many iterations at a time as read a window of `feeding.WINDOW` bytes, a stream as many as it was asked
for. What is computed is the same, since the loops are (`loops/feeding.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from polyrhythm.compiler.backends.python.runs import START, Begin
from polyrhythm.compiler.loops.feeding import Fed, Window, can_be_fed, holds_little, windows
from polyrhythm.compiler.loops.units import units
from polyrhythm.compiler.pipeline import Compiled
from polyrhythm.errors import MissingBoundError
from polyrhythm.runtime.arrays import Kind
from polyrhythm.runtime.checkpoints import Checkpoints
from polyrhythm.runtime.feeding import WINDOW, Items, Prefetch, collected, is_file, is_iterator
from polyrhythm.runtime.memory import check_budget
from polyrhythm.runtime.progress_bar import Reporter

if TYPE_CHECKING:
    from polyrhythm.runtime.calling import Caller


def names_of(
    caller: Caller, inputs: Mapping[str, Any], bounds: Mapping[Any, int] | None, items: bool
) -> frozenset[str]:
    """The inputs of which a run has to hold few steps only: large files, and, if `items` may be, iterators."""
    wanted = (name for name, value in inputs.items() if is_file(value) or (items and is_iterator(value)))
    names = [name for name in wanted if name in caller.graph.inputs and can_be_fed(caller.loops, name)]
    options = caller.program.options
    if not names or options.backend != "jax" or options.set.check_nan or options.measured:
        return frozenset()
    if caller.backend.host or caller.backend.growth is not None or caller.compiled.rows is not None:
        return frozenset()  # growing buffers have the same slots at every length, which windows have not
    if len(units(caller.loops.body)) != len(caller.backend.stepper.units):
        return frozenset()  # an outermost loop is unrolled
    values = {**caller.program.params, **inputs}
    try:
        known, shapes = caller.fed_bounds(values, {n: v for n, v in values.items() if is_iterator(v)}, bounds)
    except MissingBoundError:
        return frozenset()  # the items have to be counted
    found = windows(caller.loops, names)[1]
    lengths = {n: shapes[n][0] if n in shapes else len(values[n]) for n in names}
    return frozenset(n for n in names if holds_little(found[n], caller.loops, lengths[n], lambda s: known[s.name]))


def with_windows(compiled: Compiled, names: frozenset[str]) -> tuple[Compiled, dict[str, Window]]:
    """The same program with windows of some inputs."""
    loops, found = windows(compiled.loops, sorted(names))
    return replace(compiled, loops=loops), found


def fed_by(
    caller: Caller, values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], prefetch: int
) -> tuple[dict[str, Fed], list[Items]]:
    """Where the windows of a run get their steps from, and the iterators among those; `shapes` are of what is given."""
    fed, every = {}, []
    for name, window in caller.windows.items():
        value, dtype = values[name], caller.graph.inputs[name].dtype
        if is_iterator(value):
            taken = Prefetch(value, prefetch) if prefetch else iter(value)
            items = Items(name, taken, shapes[name][0], shapes[name][1:], dtype)
            fed[name] = Fed(window, items.length, dtype, items.rows, items.forget)
            every.append(items)
        else:
            fed[name] = Fed(window, len(value), dtype, lambda steps, v=value: v[steps.start : steps.stop], _nothing)  # type: ignore[misc]
    return fed, every


def call(
    caller: Caller,
    kind: Kind,
    values: dict[str, Any],
    bounds: Mapping[Any, int] | None,
    seed: int,
    checkpoints: Checkpoints | None,
) -> Any:
    """The results of a run that holds a window of some inputs."""
    for name, value in values.items():
        if is_iterator(value) and name not in caller.windows:
            values[name] = collected(name, value, caller.graph.inputs[name], bounds)
    iterators = {n: v for n, v in values.items() if is_iterator(v)}
    known, shapes = caller.fed_bounds(values, iterators, bounds)
    caller.program.stats.bounds = known
    shapes |= {n: values[n].shape for n in caller.windows if n not in iterators}
    fed, items = fed_by(caller, values, shapes, 0)
    limit = WINDOW if caller.loops.budget is None else min(WINDOW, caller.loops.budget // 4)
    most = {n: max(1, limit // max(1, math.prod(shapes[n][1:]) * fed[n].dtype.itemsize)) for n in fed}
    check_budget(caller.loops, {**known, **held(fed, most)}, True)
    whole = caller.given({n: v for n, v in values.items() if n not in fed})
    caller.agree(whole, known, seed)

    def chunk_of(unit: int) -> list[int]:
        return [most[n] for n, one in fed.items() if one.window.highs.inside[unit]]

    def start(begin: Begin = START, asked: Callable[[int], int | None] = lambda unit: None) -> Any:
        def least(unit: int) -> int | None:
            wish = asked(unit)
            return min([*chunk_of(unit), *([] if wish is None else [wish])], default=None)

        return caller.start(whole, known, seed, least, begin, fed)

    reporter = Reporter(caller.loops, known, caller.shows())
    try:
        if checkpoints is None:
            run, positions = start()
            reporter.following(positions)
        else:
            given = {**whole, **{n: values[n] for n in fed}}
            run = caller.saved(checkpoints, given, known, seed, reporter.at).run(start)
    finally:
        reporter.close()
        for one in items:
            one.close()
    return caller.returned(kind, caller.cut(run.outputs, {**known, **run.found}), known)


def held(fed: Mapping[str, Fed], most: Mapping[str, int]) -> dict[str, int]:
    """The bounds of windows that hold as many steps as they may."""
    found: dict[str, int] = {}
    for name, one in fed.items():
        found |= {one.window.begin.name: 0, one.window.size.name: min(one.length, most[name])}
    return found


def _nothing(before: int) -> None:
    """What a file does with steps that are not needed any more."""
