"""How many bytes a program needs, told before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polyrhythm.ir.terms import Term, product
from polyrhythm.loops.ir import LoopProgram, Place


@dataclass(frozen=True)
class Memory:
    """The storage plan of a program.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> y = pr.recurrent((), (t,))
    >>> y[0] = x[0]
    >>> y[t + 1] = 0.5 * y + x[t + 1]
    >>> plan = pr.compile(y[T - 1], backend="numpy").memory
    >>> plan.bytes({T: 1000}), plan.kept({T: 1000})
    (4012, 8)
    """

    program: LoopProgram

    def bytes(self, bounds: Mapping[Any, int]) -> int:
        """All bytes at given bounds: inputs, outputs and what is kept in between."""
        return sum(self.bytes_of(place, bounds) for place in self.program.places.values())

    def kept(self, bounds: Mapping[Any, int]) -> int:
        """The bytes kept in between: variables and buffers."""
        places = (p for p in self.program.places.values() if p.kind in ("variable", "buffer"))
        return sum(self.bytes_of(place, bounds) for place in places)

    def bytes_of(self, place: Place, bounds: Mapping[Any, int]) -> int:
        """The bytes of one place."""
        values = {str(key): value for key, value in bounds.items()}
        count: Term = product(place.whole)
        return max(0, count.evaluate(lambda symbol: values[symbol.name])) * place.type.dtype.itemsize

    def __str__(self) -> str:
        lines = []
        for place in self.program.places.values():
            folded = f" ({'; '.join(place.folded)})" if place.folded else ""
            why = f": {place.why}" if place.why else ""
            lines.append(f"{place.kind:8} {place.name:20} {list(map(str, place.whole))}{folded}{why}")
        return "\n".join(lines)
