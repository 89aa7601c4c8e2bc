"""Places that lie in a file or in memory of the host: a second level, where steps of a tensor are stored and fetched.

A place that is *spilled* has the same slots, loads and stores as before; only where they lie is different. What the
checker has proved of the loops (nothing is fetched before it is stored, nothing is overwritten before its last fetch)
is proved of the stores and fetches, which are those very loads and stores. A backend has to keep them in order.

Loops that touch such a place run one step after the other. What is read in a range is fetched as a range; where rows of
it are taken (`take` of a range, or of a reshape of one) only those rows are fetched.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm.compiler.ir.terms import ONE, Symbol, Term
from polyrhythm.compiler.loops.hold import with_holds
from polyrhythm.compiler.loops.ir import (
    Block,
    Compute,
    Load,
    Local,
    LoopProgram,
    Place,
    Site,
    Steps,
    blocks_of,
    mapped,
    sites,
)
from polyrhythm.compiler.loops.lanes import with_lanes
from polyrhythm.compiler.loops.stride_split import with_splits

RATE = 1e9
"""Bytes a second that a file takes or gives: a round figure."""

HOST_RATE = 10e9
"""Bytes a second between an accelerator and its host: a round figure."""

PINNED_HOST = "pinned_host"
"""What JAX calls the memory of the host that an accelerator reads and writes."""

MOST_SLOT = 1 << 30
"""Bytes of the largest slot that is stored at once."""

Lookup = Callable[[Symbol], int]


@dataclass(eq=False)
class SpillFile:
    """A file without a name, in a folder; it is made when it is needed, and gone with the program that uses it."""

    folder: str

    @cached_property
    def file(self) -> Any:
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryFile(dir=self.folder, prefix="polyrhythm-")  # noqa: SIM115 (it stays open)
        weakref.finalize(self, made.close)
        return made

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The file as an array of zeros."""
        if 0 in shape:
            return np.zeros(shape, dtype)
        self.file.truncate(0)
        return np.asarray(np.memmap(self.file, dtype, "w+", shape=shape))

    def __reduce__(self) -> tuple[Any, ...]:
        return SpillFile, (self.folder,)


def can_be_spilled(program: LoopProgram, place: Place) -> bool:
    """Whether a place can lie in a file: a buffer of several slots, each of a known size, all on one device."""
    if place.kind != "buffer" or not place.slots or place.separate or place.part_of is not None:
        return False
    known = all(length.is_constant for length in place.type.shape) and program.sharding is None
    return known and 0 < slot_bytes(place) <= MOST_SLOT and not any(block.host for block in blocks_of(program.body))


def slot_bytes(place: Place) -> int:
    """The bytes of one slot of a place that can be spilled."""
    return prod(length.constant for length in place.type.shape) * place.type.dtype.itemsize


def spilled(program: LoopProgram, files: Mapping[str, SpillFile | HostMemory], compiled_loops: bool) -> LoopProgram:
    """The program with some places in files, or in memory of the host."""

    def fetched(load: Load) -> Load:
        return replace(load, spilled=True) if load.place in files else load

    places = {
        name: replace(place, spill=files[name], axes=(), multiplied=False) if name in files else place
        for name, place in program.places.items()
    }
    body = mapped(program.body, lambda item: item.loading(fetched) if isinstance(item, Block) else item)
    made = replace(program, places=places, body=body, growth=None)
    return with_holds(with_splits(with_lanes(made))) if compiled_loops else made


@dataclass(frozen=True)
class HostMemory:
    """Pinned memory of the host, beside that of an accelerator: XLA moves slots there and back."""


def target_of(spill: str) -> SpillFile | HostMemory:
    """Where places go that a budget does not hold: to pinned memory of the host, or to a file in a folder."""
    return HostMemory() if spill == PINNED_HOST else SpillFile(spill)


@dataclass(frozen=True)
class Rows:
    """Rows that are taken from a range of slots: the range, how many rows a slot has, and if it was reshaped for it."""

    load: Load
    per_slot: int
    reshaped: bool


def rows_taken(block: Block) -> dict[str, Rows]:
    """The computations of a block, by their results, that take rows of a range of slots, perhaps reshaped."""
    made = {compute.result: compute for compute in block.body}
    found: dict[str, Rows] = {}
    for compute in block.body:
        if compute.op != "take" or compute.attributes["axis"] != 0:
            continue
        shape = None
        operand = compute.operands[0]
        while isinstance(operand, Local) and made[operand.name].op == "reshape":
            shape = shape or made[operand.name].type.shape
            operand = made[operand.name].operands[0]
        rows = _rows(operand, shape) if isinstance(operand, Load) else None
        if rows is not None:
            found[compute.result] = rows
    return found


def _rows(load: Load, shape: tuple[Term, ...] | None) -> Rows | None:
    *before, last = load.index or (None,)
    if not isinstance(last, Steps) or any(isinstance(entry, Steps) for entry in before):
        return None
    if last.ring is not None or last.step != 1:
        return None
    inner = load.type.shape[1:]
    row = inner if shape is None else shape[1:]
    if not all(length.is_constant for length in (*inner, *row)):
        return None
    whole, part = (prod(length.constant for length in lengths) for lengths in (inner, row))
    return Rows(load, whole // part, shape is not None) if part and whole % part == 0 else None


def only_for_rows(block: Block, taken: Collection[str]) -> set[str]:
    """The reshapes of a block that nothing but such computations read."""
    stored = {store.value for store in block.stores}
    readers: dict[str, list[Compute]] = {}
    for compute in block.body:
        for operand in compute.operands:
            if isinstance(operand, Local):
                readers.setdefault(operand.name, []).append(compute)
    found: set[str] = set()
    for compute in reversed(block.body):
        if compute.op == "reshape" and compute.result not in stored:
            own = readers.get(compute.result, [])
            if own and all(reader.result in taken or reader.result in found for reader in own):
                found.add(compute.result)
    return found


@dataclass(frozen=True)
class Traffic:
    """How many bytes of a place go to its file or to the host, and come from there, in a call."""

    stored: int
    fetched: int
    rate: float = RATE

    @property
    def seconds(self) -> float:
        """What that takes, by a round figure for the rate."""
        return (self.stored + self.fetched) / self.rate


def traffic(program: LoopProgram, name: str, lookup: Lookup) -> Traffic:
    """What a call moves between a place and its file."""
    place, stored, fetched = program.places[name], 0, 0
    for site in sites(program.body):
        uses = [store for store in site.block.stores if store.place == name]
        loads = list(_fetches(site.block, name))
        if not uses and not loads:
            continue
        times, value = _times(site, lookup)
        stored += times * len(uses) * slot_bytes(place)
        for elements in loads:
            fetched += times * max(0, prod(length.evaluate(value) for length in elements)) * place.type.dtype.itemsize
    return Traffic(stored, fetched, HOST_RATE if isinstance(place.spill, HostMemory) else RATE)


def _times(site: Site, lookup: Lookup) -> tuple[int, Lookup]:
    """How often a block runs, and what terms are worth in the middle of its loops, where inner ones are counted."""
    known: dict[Symbol, int] = {}
    times = 1

    def value(symbol: Symbol) -> int:
        return known[symbol] if symbol in known else lookup(symbol)

    for loop in site.loops:
        first, end = loop.first.evaluate(value), loop.end.evaluate(value)
        known[loop.counter] = (first + end) // 2
        times *= max(0, end - first)
    return times if all(guard.evaluate(value) for guard in site.guards) else 0, value


def _fetches(block: Block, name: str) -> Iterator[tuple[Term, ...]]:
    """The shapes of what a block fetches of a place."""
    taken = rows_taken(block)
    skipped = only_for_rows(block, taken)
    for compute in block.body:
        if compute.result in taken and taken[compute.result].load.place == name:
            yield compute.type.shape
        elif compute.result not in skipped:
            yield from (load.type.shape or (ONE,) for load in compute.loads if load.place == name and not load.held)
