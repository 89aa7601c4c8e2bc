"""How many bytes a program needs, told before it runs.

A place takes its slots times the bytes of one. Besides, a block needs memory for the values it computes: each lives
from its computation to its last use. The largest sum over all blocks is what the program needs on top of its
places, for blocks run one after the other, as NumPy and torch do. What a backend that compiles loops allocates it says
itself of the compiled program (`backends/jax/run/executor.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from polyrhythm.compiler.ir.terms import Symbol, Term, product
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.loops.ir import LoopProgram, Place
from polyrhythm.errors import MemoryBudgetError, MissingBoundError
from polyrhythm.runtime.temporaries import Lookup, sizing, taken

NOMINAL_BOUND = 1024
"""Steps along a bound without a maximum, by which tensors are ordered for people; nothing depends on it."""


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
    >>> plan.peak({T: 1000}) == plan.bytes({T: 1000}) + plan.temporary({T: 1000})
    True
    """

    program: LoopProgram
    planned: Callable[[Mapping[str, int]], Any] | None = None  # what a backend that compiles loops allocates

    def bytes(self, bounds: Mapping[Any, int]) -> int:
        """All bytes of the places at given bounds: inputs, outputs and what is kept in between, not in files."""
        return sum(self.bytes_of(p, bounds) for p in self.program.places.values() if p.spill is None)

    def kept(self, bounds: Mapping[Any, int]) -> int:
        """The bytes kept in between: variables and buffers."""
        places = (p for p in self.program.places.values() if p.kind in ("variable", "buffer") and p.spill is None)
        return sum(self.bytes_of(place, bounds) for place in places)

    def bytes_of(self, place: Place, bounds: Mapping[Any, int]) -> int:
        """The bytes of one place."""
        return sizing({}, {}, _lookup(bounds))(TensorType(place.whole, place.type.dtype))

    def temporary(self, bounds: Mapping[Any, int]) -> int:
        """What is allocated beside inputs, outputs and, step by step, places: values alive at one time."""
        if self.planned is not None:
            return int(self.planned(self._given(bounds)).largest.temporaries)
        return max((size for _, size in self._blocks(bounds)), default=0)

    def peak(self, bounds: Mapping[Any, int]) -> int:
        """Everything that a run allocates at the time when it needs most, inputs included.

        On JAX it is what XLA says of the program for the capacities of the bounds, which is compiled for that.
        """
        if self.planned is not None:
            return int(self.planned(self._given(bounds)).peak)
        return self.bytes(bounds) + self.temporary(bounds)

    def _given(self, bounds: Mapping[Any, int]) -> dict[str, int]:
        """The bounds by name, all of which have to be there."""
        named = _named(bounds)
        for symbol in self.program.bounds:
            _value(named, symbol)
        return named

    def _blocks(self, bounds: Mapping[Any, int]) -> list[tuple[str, int]]:
        """The bytes that the values of each block take."""
        return taken(self.program, _lookup(bounds))

    def table(self, bounds: Mapping[Any, int]) -> str:
        """The plan at given bounds, a line per place, as a table."""
        from rich.console import Console
        from rich.table import Table

        given = ", ".join(f"{bound} = {value}" for bound, value in bounds.items())
        table = Table(title=f"memory at {given}" if given else "memory")
        for column in ("place", "kind", "slots", "bytes", "why"):
            table.add_column(column, justify="right" if column == "bytes" else "left")
        places = self.program.places.values()
        for place in sorted(places, key=lambda place: self.bytes_of(place, bounds), reverse=True):
            slots = "; ".join(place.folded) or "-"
            table.add_row(place.name, place.kind, slots, f"{self.bytes_of(place, bounds):,}", place.why)
        name, _ = max(self._blocks(bounds), key=lambda entry: entry[1], default=("-", 0))
        why = f"the most that one block needs: {name}"
        if self.planned is not None:
            why = "values of vectorised loops, masked operands, copies, at capacity"
        table.add_row("(temporaries)", "", "", f"{self.temporary(bounds):,}", why)
        table.add_row("(peak)", "", "", f"{self.peak(bounds):,}", "")
        console = Console(width=120, no_color=True)
        with console.capture() as captured:
            console.print(table)
        return captured.get()

    def __rich__(self) -> str:
        return str(self)

    def rows(self) -> Iterator[tuple[Place, TensorType, Term]]:
        """Every place with its type and its bytes, the largest first."""
        for place in sorted(self.program.places.values(), key=_nominal_bytes, reverse=True):
            yield place, TensorType(place.whole, place.type.dtype), _size(place)

    def __str__(self) -> str:
        lines = []
        for place, kind, size in self.rows():
            folded = f" ({'; '.join(place.folded)})" if place.folded else ""
            why = f": {place.why}" if place.why else ""
            lines.append(f"{place.kind:8} {place.name:20} {kind}, {size} bytes{folded}{why}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from polyrhythm.runtime.picture import memory_html

        return memory_html(self)


def _size(place: Place) -> Term:
    """The bytes of a place, as a term over the bounds."""
    return product(list(place.whole)) * place.type.dtype.itemsize


def _nominal_bytes(place: Place) -> int:
    """The bytes of a place where bounds have their largest value, or else one that is much larger than constants."""

    def value(symbol: Symbol) -> int:
        return NOMINAL_BOUND if symbol.max is None else symbol.max.evaluate(value)

    return _size(place).evaluate(value)


def check_budget(program: LoopProgram, bounds: Mapping[Any, int], compiles: bool) -> None:
    """Refuse a run that takes more than the budget; where the backend `compiles`, by the places alone.

    It knows the rest when it compiles, and refuses it then.
    """
    if program.budget is None:
        return
    memory = Memory(program)
    needed = memory.bytes(bounds) if compiles else memory.peak(bounds)
    if needed > program.budget:
        here = (place for place in program.places.values() if place.spill is None)
        largest = max(here, key=lambda place: memory.bytes_of(place, bounds))
        more = ", or read fewer steps of it later"
        if largest.kind == "buffer":
            more = ", read fewer steps of it later, or let it lie in a file, as with pr.Budget(bytes, spill=folder)"
        raise MemoryBudgetError(
            f"{needed:,} bytes are needed, but the budget is {program.budget:,}; {largest.kind} {largest.name} takes "
            f"{memory.bytes_of(largest, bounds):,} of them" + (f", {largest.why}" if largest.why else ""),
            fix=f"raise memory_budget, use smaller bounds{more}",
            at=largest.at,
        )


def _named(bounds: Mapping[Any, int]) -> dict[str, int]:
    return {str(key): value for key, value in bounds.items()}


def _lookup(bounds: Mapping[Any, int]) -> Lookup:
    values = _named(bounds)
    return lambda symbol: _value(values, symbol)


def _value(values: Mapping[str, int], symbol: Symbol) -> int:
    if symbol.name not in values:
        raise MissingBoundError(
            f"how much memory is needed depends on {symbol}, which was not given", fix=f"give it: {{{symbol}: 1000}}"
        )
    return values[symbol.name]
