"""An operation of a node with rows of different lengths, as the rules see it, and what several of them need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.graph import Definition, Node
from polyrhythm.compiler.ir.ops.record import map_attributes
from polyrhythm.compiler.ir.terms import ONE, ZERO, Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.ir.values import Space, Value
from polyrhythm.compiler.ragged.lengths import INT32, Lengths, masked
from polyrhythm.errors import UnsupportedError


@dataclass(frozen=True)
class Application:
    """An operation of a ragged node: its operands as stored, and their types as the user's program has them."""

    lengths: Lengths
    space: Space
    node: Node
    definition: Definition
    values: tuple[Value, ...]
    types: tuple[TensorType, ...]
    whole: frozenset[tuple[int, int]] = frozenset()  # axes of operands of which all that is stored counts

    def varies(self, operand: int, axis: int) -> bool:
        """Whether an axis of an operand has a length that is data."""
        return (operand, axis) not in self.whole and self.lengths.vary(self.types[operand].shape[axis].symbols)

    def widened(self) -> Mapping[str, Any]:
        """The attributes at the longest row."""
        return map_attributes(self.definition.attributes, self._widest)

    def _widest(self, term: Any) -> Any:
        return self.lengths.widest(term) if isinstance(term, Term) else term

    def filled(self, operand: int, axes: Sequence[int], fill: Value | int | float | bool) -> Value:
        """An operand with what lies beyond its rows replaced along some axes."""
        value = self.values[operand]
        for axis in axes:
            if self.varies(operand, axis):
                value = masked(self.lengths, value, axis, self.types[operand].shape[axis], fill)
        return value

    def refused(self, why: str) -> UnsupportedError:
        return UnsupportedError(
            f"{described(self.node)} has a length that differs from row to row, and {why}",
            fix="run it with pr.evaluate, or reduce over that length first",
            at=self.definition.at or self.node.at,
        )


def positions(lengths: Lengths, space: Space, start: Term, size: Term, step: int) -> Value:
    """The positions `start, start + step, ...`, as many as `size`, where the start is data."""
    counted = space.apply("iota", length=size)
    counted = counted if step == 1 else counted * step
    return counted + lengths.value(space, start)


def placed(use: Application, value: Value, axis: int, start: Term, length: Term, size: Term) -> tuple[Value, Value]:
    """A value moved to a start along an axis of some size, and where along the axis it lies."""
    space, lengths = use.space, use.lengths
    here = space.apply("iota", length=size) - lengths.value(space, start)
    moved = value.apply("take", here, axis=axis)
    zero = space.constant(0, INT32)
    inside = zero.apply("le", here).apply("and", here.apply("lt", lengths.value(space, length)))
    shape = tuple(size if i == axis else ONE for i in range(len(value.shape)))
    return moved, inside.apply("reshape", shape=shape) if len(shape) > 1 else inside


def joined(use: Application, values: Sequence[Value], sizes: Sequence[Term], axis: int) -> Value:
    """Values one after the other along an axis, each as long as a row has it."""
    total = use.lengths.widest(sum(sizes, ZERO))
    result, start = None, ZERO
    for value, size in zip(values, sizes, strict=True):
        moved, inside = placed(use, value, axis, start, size, total)
        result = moved if result is None else moved.where(inside, result)
        start = start + size
    assert result is not None
    return result


__all__ = ["Application", "joined", "placed", "positions"]
