"""Values that need not be read back from a buffer: what this iteration stored, and what the one before it did.

XLA updates a buffer in place as long as nothing reads an older version of it. A body that stores `c[t + 1]` and reads
`c[t]`, or reads back what it has just stored, gets copies of the whole buffer as soon as two fusions want the value.
So a slot that was stored to is remembered with its value while the body is traced, and what the next iteration reads of
it is carried through the loop beside the buffer. In a loop over the steps of an LSTM of 256 units, batch 32, this took
away copies of 42 MB at every step (`docs/decisions.md`).

A slot is told by the terms of its index. Slots of one buffer are different where some entry differs by a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.loops.ir import For, Load, sites

if TYPE_CHECKING:
    from polyrhythm.compiler.backends.jax.ops import Padded

Index = tuple[Term, ...]


@dataclass
class Recent:
    """The values of slots that were stored to a short time ago."""

    values: dict[tuple[str, Index], Padded] = field(default_factory=dict)

    def store(self, place: str, index: Index, value: Padded | None) -> None:
        """A slot has a new value, known or not; other slots keep theirs where they surely are others."""
        for name, other in list(self.values):
            if name == place and not _differ(index, other):
                del self.values[name, other]
        if value is not None:
            self.values[place, index] = value

    def forget(self, place: str) -> None:
        """Any slot of a place may have a new value."""
        for key in [key for key in self.values if key[0] == place]:
            del self.values[key]

    def find(self, load: Load) -> Padded | None:
        """The value of a load of a single slot, if it is known."""
        index = tuple(entry for entry in load.index if isinstance(entry, Term))
        return self.values.get((load.place, index)) if len(index) == len(load.index) else None


@dataclass(frozen=True)
class Register:
    """A slot that each iteration stores to and the next one reads: `before` is its index there, `now` where stored."""

    place: str
    before: Index
    now: Index


def registers(loop: For) -> Iterator[Register]:
    """The slots that iterations of a loop pass to the next: stored once, in every iteration, and read in the next."""
    stores: dict[str, list[Index | None]] = {}
    inside = list(sites(loop.body))
    for site in inside:
        always = not site.loops and not site.guards
        for store in site.block.stores:
            stores.setdefault(store.place, []).append(store.index if always else None)
    loads = {load for site in inside for load in site.block.loads}
    counter = {loop.counter: Term.of(loop.counter) - 1}
    for place, found in stores.items():
        now = found[0]
        if len(found) != 1 or not now:
            continue
        before = tuple(term.substitute(counter) for term in now)
        if _differ(now, before) and any(o.place == place and o.index == before for o in loads):
            yield Register(place, before, now)


def _differ(one: Index, other: Index) -> bool:
    """Whether two indices are surely those of different slots."""
    apart = (a - b for a, b in zip(one, other, strict=True))
    return any(distance.is_constant and distance.constant != 0 for distance in apart)
