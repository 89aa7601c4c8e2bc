"""Calls that hold a memory budget by computing values again, and by moving tensors to files (`loops/spilling.py`).

Where the places do not fit at the bounds of a call, gradients first compute recurrent tensors again in segments of
about the square root of the steps, as `pr.checkpoint(over=t)` asks for by hand, if that is enough or at least halves
what is stored. What still does not fit goes to files, if there is a folder for them.

What has to go is known at a call. The plan of the places at the bounds says which: the largest go first, until the rest
fits. What XLA needs beside the places is known when it has compiled the program: where that is still too much, the next
largest place goes too. If nothing is left that could, the call is refused as one without files is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import TYPE_CHECKING, Any

from polyrhythm.compiler.loops.ir import LoopProgram
from polyrhythm.compiler.loops.spilling import PINNED_HOST, Traffic, can_be_spilled, spilled, target_of, traffic
from polyrhythm.errors import MemoryBudgetError, UnsupportedError
from polyrhythm.language.budget import Budget
from polyrhythm.runtime.arrays import is_traced
from polyrhythm.runtime.feeding import is_iterator
from polyrhythm.runtime.memory import Memory

if TYPE_CHECKING:
    from polyrhythm.runtime.calling import Caller
    from polyrhythm.runtime.program import Program

MANY = 16
"""So many steps are worth segments."""

LEAST = 1 << 12
"""Bytes of the smallest place that is worth a file."""


def check_spill(budget: Budget | None, backend: str) -> None:
    """Refuse pinned memory of a host where there is no other memory."""
    if budget is not None and budget.spill == PINNED_HOST and backend != "jax":
        raise UnsupportedError(
            f"the {backend} backend knows one memory, and no {PINNED_HOST}", fix='give a folder, or use backend="jax"'
        )


def candidates(loops: LoopProgram, bounds: Mapping[str, int]) -> list[str]:
    """The places that could go to files, the largest first."""
    memory = Memory(loops)
    sizes = {p.name: memory.bytes_of(p, bounds) for p in loops.places.values() if can_be_spilled(loops, p)}
    return sorted((name for name, size in sizes.items() if size >= LEAST), key=lambda name: (-sizes[name], name))


def chosen(loops: LoopProgram, bounds: Mapping[str, int], compiles: bool) -> list[str]:
    """The places that go to files so that the others fit."""
    memory, found = Memory(loops), []
    if loops.budget is None:
        return []
    needed = _needed(loops, bounds, compiles)
    for name in candidates(loops, bounds):
        if needed <= loops.budget:
            break
        found.append(name)
        needed -= memory.bytes_of(loops.places[name], bounds)
    return found


def can_use_files(caller: Caller, inputs: Mapping[str, Any], seed: Any) -> bool:
    """Whether a call is one of those that may: a whole run by itself, of rows of one length, as it was compiled."""
    options = caller.program.options
    plain = not (caller.windows or options.set.check_nan or options.measured) and caller.compiled.rows is None
    return plain and not any(is_traced(value) or is_iterator(value) for value in (seed, *inputs.values()))


def recomputing(caller: Caller, inputs: Mapping[str, Any], bounds: Mapping[Any, int] | None) -> Caller:
    """Calls that fit better since gradients compute values again; the same where they fit, or would not by that."""
    loops, compiles = caller.loops, caller.library == "jax"
    known = caller.known_bounds(inputs, bounds)
    before = _needed(loops, known, compiles)
    if loops.budget is None or before <= loops.budget:
        return caller
    dims = {s.name: known.get(s.bound.name, 0) for n in caller.graph if n.recurrent for s in n.symbols if s.bound}
    best, least = caller, before // 2
    for name, steps in sorted(dims.items(), key=lambda item: -item[1]):
        own = caller.program.recomputing(name, isqrt(steps)) if steps >= MANY else None
        needed = before if own is None else _needed(own.loops, known, compiles)
        if own is not None and (needed <= loops.budget or needed < least):
            best, least = own, needed
            if needed <= loops.budget:
                break
    if best is not caller:
        caller.program.recomputed = f"gradients compute recurrent tensors again: {least:,} bytes instead of {before:,}"
    return best


def _needed(loops: LoopProgram, bounds: Mapping[str, int], compiles: bool) -> int:
    """What a call takes by the plan of its places, where the backend `compiles`; the rest is known when it has."""
    memory = Memory(loops)
    return memory.bytes(bounds) if compiles else memory.peak(bounds)


def call(caller: Caller, inputs: Mapping[str, Any], bounds: Mapping[Any, int] | None, seed: int) -> Any:
    """The results of a call that may use files."""
    program, compiles = caller.program, caller.library == "jax"
    known = caller.known_bounds(inputs, bounds)
    names = chosen(caller.loops, known, compiles)
    left = [name for name in candidates(caller.loops, known) if name not in names]
    while True:
        own = program.spilling(caller, tuple(sorted(names)))
        try:
            with own.alone:
                results = own.call(inputs, bounds, seed, None)
        except MemoryBudgetError:
            if not (left and compiles):
                raise
            names.append(left.pop(0))
            continue
        program.spilled = {n: traffic(own.loops, n, lambda s: known[s.name]) for n in sorted(names)}
        return results


def planned(program: Program, bounds: Mapping[str, int]) -> Caller:
    """Calls at some bounds with the places outside of memory that a call at these bounds would first try."""
    caller, budget = program._caller, program.options.memory_budget
    if budget is None or budget.spill is None:
        return caller
    return program.spilling(caller, tuple(sorted(chosen(caller.loops, bounds, caller.library == "jax"))))


def with_files(caller: Caller, names: tuple[str, ...], spill: str) -> Any:
    """What the compiler made of a program, with some places in files or in memory of the host."""
    files = {name: target_of(spill) for name in names}
    loops = spilled(caller.loops, files, caller.compiled.compiled_loops)
    return replace(caller.compiled, loops=loops)


def lines(program: LoopProgram, moved: Mapping[str, Traffic], spill: str) -> list[str]:
    """What the last call moved to files or to the host, for `explain`."""
    found, where = [], "pinned memory of the host" if spill == PINNED_HOST else f"a file in {spill}"
    for name, one in moved.items():
        place = program.places.get(name)
        at = f" ({place.at.shown})" if place is not None and place.at is not None else ""
        found.append(
            f"{name}{at} lies in {where}: {one.stored:,} bytes are stored and {one.fetched:,} fetched, "
            f"about {one.seconds:.3g} s"
        )
    return found
