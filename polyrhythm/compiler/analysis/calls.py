"""Calling a program: the inputs are checked and the bounds found before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyrhythm.compiler.ir import sets
from polyrhythm.compiler.ir.conditions import conjunction, lt
from polyrhythm.compiler.ir.graph import Graph, IndexValue, Node, longest
from polyrhythm.compiler.ir.terms import Symbol, Term, ordered
from polyrhythm.errors import (
    BoundsError,
    InputDTypeError,
    InputShapeError,
    MissingBoundError,
    MissingInputError,
    RequirementError,
    UnknownInputError,
)
from polyrhythm.language.index import Bound, Dim
from polyrhythm.source import Source, here

INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class Ragged:
    """An array whose rows have different lengths: `values` padded to the longest, and the `lengths`.

    What lies beyond a row's length means nothing.

    >>> Ragged.of([[1, 2], [3]]).lengths
    array([2, 1])
    """

    values: np.ndarray
    lengths: np.ndarray

    @staticmethod
    def of(rows: Any) -> Ragged:
        """A ragged array of a list of arrays."""
        arrays = [np.asarray(row) for row in rows]
        lengths = np.array([len(row) for row in arrays])
        trailing = arrays[0].shape[1:] if arrays else ()
        # An empty list says nothing about its elements; NumPy would call them float64.
        telling = [array for row, array in zip(rows, arrays, strict=True) if array.size or hasattr(row, "dtype")]
        dtype = np.result_type(*telling) if telling else np.dtype("float32")
        values = np.zeros((len(arrays), int(lengths.max(initial=0)), *trailing), dtype)
        for row, array in zip(values, arrays, strict=True):
            row[: len(array)] = array
        return Ragged(values, lengths)


@dataclass(frozen=True)
class Call:
    """Checked inputs, by input name, and the value of every bound and size the caller decides."""

    inputs: Mapping[str, np.ndarray]
    bounds: Mapping[Symbol, int]
    lengths: Mapping[str, np.ndarray] = field(default_factory=dict)  # of the inputs that were given as ragged


def by_name(names: Iterable[str], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The inputs with trees of arrays taken apart: the leaves by the paths to them, where those are inputs.

    >>> by_name(["x", "p.w", "p.b.0"], {"x": 1, "p": {"w": 2, "b": [3]}})
    {'x': 1, 'p.w': 2, 'p.b.0': 3}
    """
    if all(name in names or not isinstance(value, (dict, list, tuple)) for name, value in inputs.items()):
        return inputs
    found: dict[str, Any] = {}
    for name, value in inputs.items():
        inner = name not in names and any(other.startswith(f"{name}.") for other in names)
        if inner and isinstance(value, (dict, list, tuple)):
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            found.update(by_name(names, {f"{name}.{key}": part for key, part in parts}))
        else:
            found[name] = value
    return found


def prepare(graph: Graph, inputs: Mapping[str, Any], bounds: Mapping[Any, int] | None) -> Call:
    """Check what a program is called with and solve its bounds. The arrays are copies."""
    arrays = _arrays(graph, inputs)
    converted = {name: array.astype(graph.inputs[name].dtype) for name, array in arrays.items()}
    lengths = {name: np.asarray(value.lengths) for name, value in inputs.items() if isinstance(value, Ragged)}
    return Call(converted, _bounds(graph, arrays, bounds), lengths)


def solve_bounds(graph: Graph, inputs: Mapping[str, Any], bounds: Mapping[Any, int] | None) -> dict[Symbol, int]:
    """Check what a program is called with and solve its bounds, from the shapes and dtypes of the inputs alone."""
    return _bounds(graph, _arrays(graph, inputs), bounds)


def _bounds(graph: Graph, arrays: Mapping[str, np.ndarray], bounds: Mapping[Any, int] | None) -> dict[Symbol, int]:
    known, sources = _given(graph, bounds or {})
    _solve(graph, arrays, known, sources)
    _complete(graph, arrays, known, sources)
    _check_indices(graph, known)
    return known


def _check_indices(graph: Graph, known: Mapping[Symbol, int]) -> None:
    """Values of index expressions fit into their 32-bit integers. Indices themselves have no such limit."""
    for index in graph.index_values:
        if not (index.least.symbols | index.most.symbols) <= known.keys():
            continue  # of lengths that are data, each of which is a 32-bit integer itself
        ends = [end.evaluate(known.__getitem__) for end in (index.least, index.most)]
        if all(INT32.min <= end <= INT32.max for end in ends):
            continue
        steps = _outside(index, known)
        if steps is not None:
            raise BoundsError(
                f"the value of {index.value} does not fit into a 32-bit integer: it is {_value(index, known, steps):,}",
                fix='compute it in a wider type, as in pr.value(t).cast("int64") * 70000',
                at=index.definition.at or index.node.at,
                also=(("called at", here()),),
                point={s: {**known, **steps}[s] for s in ordered(index.value.symbols)},
            )


def _value(index: IndexValue, known: Mapping[Symbol, int], steps: Mapping[Symbol, int]) -> int:
    return index.value.evaluate({**known, **steps}.__getitem__)


def _outside(index: IndexValue, known: Mapping[Symbol, int]) -> Mapping[Symbol, int] | None:
    """Steps at which an index expression leaves the 32 bits that its value has; intervals know only that it may."""
    numbers = {symbol: Term(value) for symbol, value in known.items()}
    value = index.value.substitute(numbers)
    inside = conjunction(index.node.points, index.definition.domain).substitute(numbers)
    for beyond in (lt(value, int(INT32.min)), lt(int(INT32.max), value)):
        found = sets.points(conjunction(inside, beyond), index.node.symbols).smallest()
        if found is not None:
            return found
    return None


def _arrays(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    for name in inputs:
        if name not in graph.inputs:
            raise UnknownInputError(
                f"the program has no input {name!r}; its inputs are {', '.join(map(repr, graph.inputs)) or 'none'}",
                fix="check the name, or leave it out",
            )
    arrays = {}
    for name, node in graph.inputs.items():
        if name in inputs:
            value = inputs[name]
        elif name in graph.parameters:
            value = graph.parameters[name]
        else:
            raise MissingInputError(
                f"the input {name!r} ({_declared(node)}) is missing",
                fix=f"give it: {{{name!r}: array}}",
                also=_declaration(node),
            )
        arrays[name] = array_of(name, node, value)
    return arrays


def array_of(name: str, node: Node, value: Any) -> np.ndarray:
    """What is given for an input as an array of its dtype; an error says why it is none."""
    try:
        array = np.asarray(value.values if isinstance(value, Ragged) else value)
    except (ValueError, TypeError) as error:
        raise InputShapeError(
            f"the input {name!r} is not an array: {error}",
            fix="pass an array, or pr.Ragged.of(rows) for rows of different lengths",
            also=_declaration(node),
        ) from error
    if array.ndim != len(node.dims) + len(node.shape):
        raise InputShapeError(
            f"the input {name!r} has {array.ndim} axes (shape {array.shape}), but is declared as {_declared(node)}: "
            f"{len(node.dims)} for the dims, then {len(node.shape)} for the value",
            fix="put the dims first, in order, then the axes of the value",
            also=_declaration(node),
        )
    kinds = {"b": "bool", "i": "integer", "u": "integer", "f": "float", "V": "float", "c": "complex"}
    have, want = kinds.get(array.dtype.kind, str(array.dtype)), kinds[node.dtype.kind]
    # A Python list of whole numbers reads as integers; as a list it carries no type of its own.
    listed = not hasattr(value, "dtype") and have == "integer" and want == "float"
    if have != want and not listed and not (array.size == 0 and not hasattr(value, "dtype")):
        raise InputDTypeError(
            f"the input {name!r} has {array.dtype} elements, but is declared as {node.dtype}",
            fix=f"convert it first, array.astype({str(node.dtype)!r}), or declare the input as {array.dtype}",
            also=_declaration(node),
        )
    return array


def _declaration(node: Node) -> tuple[tuple[str, Source], ...]:
    return (("declared at", node.at),) if node.at is not None else ()


def _declared(node: Node) -> str:
    dims = "".join(f"{dim.extent}, " for dim in node.dims)
    return f"{node.dtype}[{dims}{', '.join(map(str, node.shape))}]".replace(", ]", "]")


def _given(graph: Graph, bounds: Mapping[Any, int]) -> tuple[dict[Symbol, int], dict[Symbol, str]]:
    by_name: dict[str, list[Symbol]] = {}
    rows = {bound for bound in graph.stops if bound.over}
    for symbol in graph.symbols:
        if symbol.kind != "dim" and symbol not in rows:
            by_name.setdefault(symbol.name, []).append(symbol)
    # A bound that the program has no use for may be given: one dict of bounds serves several programs.
    unused = {symbol.name for symbol in graph.declared.values()}
    known: dict[Symbol, int] = {}
    for key, value in bounds.items():
        name = str(key)
        if not isinstance(key, (str, Bound)):
            raise BoundsError(
                f"bounds={{{name}: ...}} names no bound: {name} is {'a dim' if isinstance(key, Dim) else 'not one'}",
                fix="name the bound that pr.dim returned beside the dim, as in bounds={T: 9}",
            )
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
            raise BoundsError(f"the bound {name} is {value!r}", fix="give an integer that is not negative")
        if isinstance(key, Bound) and graph.declared:
            symbols = [graph.declared[key.symbol]] if key.symbol in graph.declared else []
        else:
            symbols = by_name.get(name, [])
            if not symbols and name not in unused:
                have = sorted(name for name, symbols in by_name.items() if not graph.lengths.keys() & {*symbols})
                raise BoundsError(
                    f"the program has no bound {name}; its bounds are {', '.join(have) or 'none'}",
                    fix="check the name, or leave it out",
                )
        for symbol in symbols:
            if symbol in graph.lengths:
                raise BoundsError(
                    f"the bound {name} is the length of a ragged dim, which the program reads from data",
                    fix="leave it out",
                )
            known[symbol] = int(value)
    return known, dict.fromkeys(known, "bounds=")


def _solve(
    graph: Graph, arrays: Mapping[str, np.ndarray], known: dict[Symbol, int], sources: dict[Symbol, str]
) -> None:
    """Read bounds off the inputs: each axis length is an equation, linear in what is not yet known."""
    equations = []
    # An input reaches as far as a dim may go, whatever step it ends at.
    limits = {bound: Term.of(longest(bound)) for bound in graph.stops}
    for name, node in graph.inputs.items():
        terms = [term.substitute(limits) for term in (*(dim.extent for dim in node.dims), *node.shape)]
        for axis, (term, length) in enumerate(zip(terms, arrays[name].shape, strict=True)):
            if not any(symbol.over for symbol in term.symbols):
                equations.append((term, length, f"axis {axis} of {name!r}", node))
    progress = True
    while progress:
        progress = False
        for term, length, where, node in equations:
            rest = term.substitute({symbol: Term(value) for symbol, value in known.items()})
            if len(rest.symbols) != 1:
                continue
            (symbol,) = rest.symbols
            factor = rest.coefficient(symbol)
            if factor and rest.linear_in(symbol):
                value, remainder = divmod(length - rest.constant, factor)
                if remainder or value < 0:
                    raise InputShapeError(
                        f"{where} has length {length}, which {term} cannot be for any {symbol}",
                        fix="pass an array of a length that fits the declaration",
                        also=_declaration(node),
                    )
                known[symbol], sources[symbol] = value, where
                progress = True
    for term, length, where, node in equations:
        rest = term.substitute({symbol: Term(value) for symbol, value in known.items()})
        if rest.is_constant and rest.constant != length:
            _disagree(term, length, where, rest.constant, known, sources, node)


def _disagree(
    term: Term,
    length: int,
    where: str,
    expected: int,
    known: Mapping[Symbol, int],
    sources: Mapping[Symbol, str],
    node: Node,
) -> None:
    if term.is_constant:
        raise InputShapeError(
            f"{where} has length {length}, but is declared as {expected}",
            fix="pass an array of the declared shape",
            also=_declaration(node),
        )
    reasons = ", ".join(f"{s} = {known[s]} from {sources[s]}" for s in ordered(term.symbols))
    raise BoundsError(
        f"{where} has length {length}, but {term} is {expected} ({reasons})",
        fix="make the inputs and the given bounds agree",
        also=_declaration(node),
    )


def check_found(symbols: Iterable[Symbol], values: Mapping[str, int], bound: str) -> None:
    """What never exceeds a bound does not exceed the value found for it by running; raises a BoundsError."""
    for symbol in symbols:
        if symbol.max is None or bound not in {s.name for s in symbol.max.symbols}:
            continue
        limit = symbol.max.evaluate(lambda s: values[s.name])
        if values[symbol.name] > limit:
            most = "" if str(symbol.max) == bound else f", so at most {limit}"
            raise BoundsError(
                f"the run ended with {bound} = {values[bound]}, but {symbol} is {values[symbol.name]} and declared "
                f"with max={symbol.max}{most}",
                fix=f"let the condition hold only at steps that {symbol} allows, or declare {symbol} without max",
            )


def _complete(
    graph: Graph, arrays: Mapping[str, np.ndarray], known: dict[Symbol, int], sources: Mapping[Symbol, str]
) -> None:
    """Every bound is known, within its maximum, and large enough."""
    for symbol in ordered(s for s in graph.mentioned if s.kind != "dim" and not s.over):
        if symbol not in known:
            raise MissingBoundError(
                f"the bound {symbol} is not the length of any input and was not given",
                fix=f"pass bounds={{{symbol}: ...}}",
            )
        if known[symbol] < symbol.min:
            raise BoundsError(
                f"{symbol} = {known[symbol]} (from {sources[symbol]}) is below its minimum {symbol.min}",
                fix=f"give a larger {symbol}, or declare a smaller min",
            )
        if symbol.max is not None and symbol.max.symbols <= known.keys():
            limit = symbol.max.evaluate(known.__getitem__)
            if known[symbol] > limit:
                raise BoundsError(
                    f"{symbol} = {known[symbol]} (from {sources[symbol]}) exceeds its maximum {symbol.max}"
                    + ("" if symbol.max.is_constant else f" = {limit}"),
                    fix=f"give a smaller {symbol}, or declare a larger max",
                )
    for requirement in graph.requirements:
        if not requirement.condition.evaluate(known.__getitem__):
            raise RequirementError(
                f"the program needs {requirement.condition}: {requirement.why}",
                fix=f"call it with {requirement.condition}, or read inside pr.where(condition, ..., other)",
                at=requirement.at,
                also=(("called at", here()),),
                point={s: known[s] for s in ordered(requirement.condition.symbols)},
            )
