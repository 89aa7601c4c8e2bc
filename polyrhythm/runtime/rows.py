"""Rows of different lengths at a call: the longest row is found, inputs are cut to it, outputs come back as `Ragged`.

Lengths that an input has are looked at before anything runs, so a program computes as many steps as its longest row
has, whatever the arrays are padded to. Lengths that the program computes are limited by the arrays, by the declared
maximum or by a run of what computes them, and checked when the program has run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polyrhythm.compiler.analysis.calls import Ragged, array_of
from polyrhythm.compiler.ir.graph import Graph, Node
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ragged import Longest, Rows
from polyrhythm.errors import BoundsError, InputShapeError, LengthError
from polyrhythm.language.index import Bound
from polyrhythm.runtime.arrays import as_numpy, library

Computed = Callable[[Longest, Mapping[str, Any]], np.ndarray]
"""The lengths that a program computes, from its inputs."""


def unpacked(graph: Graph, rows: Rows | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs as arrays; the lengths that ragged ones bring along are those of their dims."""
    found = dict(values)
    for name, value in values.items():
        if rows is not None and isinstance(value, (list, tuple)) and name in graph.inputs:
            array, dtype = array_of(name, graph.inputs[name], value), graph.inputs[name].dtype
            found[name] = array if array.dtype.kind == dtype.kind else array.astype(dtype)
        if not isinstance(value, Ragged) or name not in graph.inputs:
            continue
        found[name] = value.values
        node = graph.inputs[name]
        lengths = np.asarray(value.lengths)
        bound = None if rows is None else next((b for b in rows.longest if _axis(node, b) is not None), None)
        if bound is None:
            axis = lengths.ndim
            expected = np.full(lengths.shape, value.values.shape[axis] if axis < value.values.ndim else 0)
        elif bound.given is not None and bound.given in values:
            expected = _lengths(node, bound, as_numpy_or_array(values[bound.given]), lengths.shape)
        else:
            continue
        _check_rows(name, node, lengths, expected)
    return found


def _lengths(node: Node, bound: Longest, lengths: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The lengths of a ragged input, over its other dims."""
    axis = _axis(node, bound)
    assert axis is not None
    others = [d.symbol.name for place, d in enumerate(node.dims) if place != axis]
    wanted = [symbol.name for symbol in bound.bound.over]
    beyond = node.dims[axis].extent - Term.of(bound.longest)
    if lengths.ndim != len(wanted) or not set(wanted) <= set(others) or not beyond.is_constant:
        return np.full(shape, -1)
    order = [wanted.index(name) for name in others if name in wanted]
    moved = lengths.transpose(order)
    moved = moved.reshape([moved.shape[order.index(wanted.index(n))] if n in wanted else 1 for n in others])
    try:
        return np.broadcast_to(moved + beyond.constant, shape)
    except ValueError:
        return np.full(shape, -1)


def _check_rows(name: str, node: Node, have: np.ndarray, expected: np.ndarray) -> None:
    for row in zip(*np.nonzero(have != expected), strict=True):
        raise InputShapeError(
            f"the input {name!r} has {have[row]} steps in a row of {expected[row]}",
            fix="pass rows of the lengths that the dim has there",
            point={d.symbol: int(k) for d, k in zip(node.dims, row, strict=False)},
            also=(("declared at", node.at),) if node.at else (),
        )


def as_numpy_or_array(value: Any) -> np.ndarray:
    """An array of any library, or a list, as a NumPy array."""
    return np.asarray(value) if library(value) is None else as_numpy(value)


def _axis(node: Node, bound: Longest) -> int | None:
    """The axis of an input along which a ragged dim lies."""
    return next((a for a, d in enumerate(node.dims) if bound.longest in d.extent.symbols), None)


def prepared(
    graph: Graph, rows: Rows, values: Mapping[str, Any], bounds: Mapping[Any, int] | None, computed: Computed
) -> tuple[dict[str, Any], dict[Any, int]]:
    """The inputs cut to the longest rows, and the bounds with those added."""
    found, known = dict(values), dict(bounds or {})
    for bound in rows.longest:
        for key in known:
            if key == bound.bound.name or (isinstance(key, Bound) and graph.declared.get(key.symbol) is bound.bound):
                raise BoundsError(
                    f"the bound {key} is the length of a ragged dim, which the program reads from data",
                    fix="leave it out",
                )
        sizes = {n: _limit(node, bound, found[n]) for n, node in graph.inputs.items() if n in found}
        most = min((n for n in sizes.values() if n is not None), default=None)
        if bound.given is not None and bound.given in found:
            lengths = _counted(graph.inputs[bound.given], rows, found, bound)
            _check(bound, lengths)
            length = max(int(lengths.max(initial=0)), bound.longest.min)
        elif most is not None:
            length = most
        elif bound.longest.max is not None and bound.longest.max.is_constant:
            length = bound.longest.max.constant
        else:
            length = max(int(computed(bound, values).max(initial=0)), bound.longest.min)
        known[bound.longest.name] = length
        for name, node in graph.inputs.items():
            if name in found and sizes.get(name) is not None:
                found[name] = _cut(name, node, bound, found[name], length)
    return found, known


def _counted(node: Node, rows: Rows, found: Mapping[str, Any], bound: Longest) -> np.ndarray:
    """The lengths that an input has; beyond the ends of rows, where it has such, the least there may be."""
    assert bound.given is not None
    lengths = as_numpy_or_array(found[bound.given])
    for outer in rows.longest:
        axis = _axis(node, outer)
        if axis is None or axis >= lengths.ndim or outer.given is None or outer.given not in found:
            continue
        others = lengths.shape[:axis] + lengths.shape[axis + 1 :]
        ends = _lengths(node, outer, as_numpy_or_array(found[outer.given]), others)
        if (ends >= 0).all():
            places = np.arange(lengths.shape[axis]).reshape([-1 if at == axis else 1 for at in range(lengths.ndim)])
            lengths = np.where(places < np.expand_dims(ends, axis), lengths, bound.bound.min)
    return lengths


def _limit(node: Node, bound: Longest, value: Any) -> int | None:
    """How long rows may be for an array of an input to hold them."""
    axis = _axis(node, bound)
    shape = np.shape(value) if library(value) is None else value.shape
    if axis is None or axis >= len(shape):
        return None
    beyond = node.dims[axis].extent - Term.of(bound.longest)
    return shape[axis] - beyond.constant if beyond.is_constant else None


def _cut(name: str, node: Node, bound: Longest, value: Any, length: int) -> Any:
    axis = _axis(node, bound)
    assert axis is not None
    value = value if library(value) is not None else np.asarray(value)
    size = length + (node.dims[axis].extent - Term.of(bound.longest)).constant
    have = value.shape[axis]
    if have < size:
        if 0 in value.shape[:axis]:  # no row at all
            return np.zeros((*value.shape[:axis], size, *value.shape[axis + 1 :]), node.dtype)
        raise InputShapeError(
            f"axis {axis} of {name!r} has length {have}, but the longest row has {size} steps",
            fix="pass arrays that hold the longest row, or pr.Ragged.of(rows)",
            also=(("declared at", node.at),) if node.at else (),
        )
    return value if have == size else value[(slice(None),) * axis + (slice(0, size),)]


def _check(bound: Longest, lengths: np.ndarray, limit: int | None = None) -> None:
    """Every length is at least its minimum and at most its maximum."""
    most = bound.longest.max.constant if bound.longest.max is not None and bound.longest.max.is_constant else None
    most = limit if most is None else most if limit is None else min(most, limit)
    low, high = lengths < bound.bound.min, lengths > (most if most is not None else np.inf)
    for row in zip(*np.nonzero(low | high), strict=True):
        length = int(lengths[row])
        below = "zero" if length < 0 else f"its minimum {bound.bound.min}"
        raise LengthError(
            f"the length {bound.bound} is {length}, " + (f"below {below}" if low[row] else f"above its maximum {most}"),
            fix="make every length at least 0, or the declared min, and at most the declared max",
            point={s: int(k) for s, k in zip(bound.bound.over, row, strict=False)},
            also=(("given at", bound.at),) if bound.at else (),
        )


def rebuilt(rows: Rows, results: list[Any], known: Mapping[str, int]) -> list[Any]:
    """The user's outputs: ragged ones with their lengths, after the lengths that were computed have been checked."""
    for bound in rows.longest:
        if bound.output is not None:
            _check(bound, as_numpy(results[bound.output]), known[bound.longest.name])
    found = results[: rows.count]
    for number, output in rows.outputs.items():
        lengths = as_numpy(results[output.lengths])
        whole = found[number][(slice(None),) * output.axis + (slice(0, int(lengths.max(initial=0))),)]
        found[number] = whole if output.cut else Ragged(whole, lengths.astype(np.int64))
    return found


def step_rows(rows: Rows, values: list[Any], axes: Mapping[int, int]) -> list[Any]:
    """The user's outputs at one step of a stream: a row has its own length, several rows come with theirs.

    Along the dim that is ragged itself, a step has zeros where rows have ended.
    """
    found = values[: rows.count]
    for number, output in rows.outputs.items():
        if found[number] is None or values[output.lengths] is None or axes.get(number) == output.axis:
            continue
        lengths = as_numpy(values[output.lengths])
        axis = output.axis - (axes[number] < output.axis)
        whole = found[number][(slice(None),) * axis + (slice(0, int(lengths.max(initial=0))),)]
        found[number] = whole if lengths.ndim == 0 else Ragged(whole, lengths.astype(np.int64))
    return found


__all__ = ["prepared", "rebuilt", "step_rows", "unpacked"]
