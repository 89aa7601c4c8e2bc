"""Tensors as the user holds them: each one carries its own definition, and there is no global graph.

A tensor has ordered temporal dims (each with an extent) and a type (shape and dtype) at every point. Three kinds
are made here: `Computed`, one operation of the op table; `View`, another tensor at other steps; and `Choice`,
which picks between two tensors by an index condition. Recurrent tensors are in `recurrent.py`.

A view is only an index: indexing it again substitutes into that index. Everything else lives on the rectangle of
its extents, which for an operation is what its operands have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from polyrhythm.compiler.ir import sets
from polyrhythm.compiler.ir.conditions import Condition as IrCondition
from polyrhythm.compiler.ir.conditions import conjunction, ge, within
from polyrhythm.compiler.ir.graph import NodeDim, Range, Step
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.ops.record import attribute_terms
from polyrhythm.compiler.ir.terms import Symbol, Term, dims_of, minimum
from polyrhythm.compiler.ir.types import Shape, TensorType
from polyrhythm.errors import (
    ConditionValueError,
    DataIndexError,
    DeclarationError,
    DefinitionError,
    IndexingError,
    IterationError,
    RaggedShapeError,
    UnknownDimError,
)
from polyrhythm.language.index import Condition, Dim, Index, affine, index_max, index_of
from polyrhythm.language.other_libraries import array_function, array_ufunc, jax_array, torch_function
from polyrhythm.source import Source, here

if TYPE_CHECKING:
    from polyrhythm.language.checkpoint import Mark
    from polyrhythm.language.functions.methods import Methods as _Methods
else:  # they are installed when the package is imported, since the functions need this class
    _Methods = object

Spans = tuple[NodeDim, ...]


class Tensor(_Methods):
    """A value at every point of its dims.

    `x` alone means x at the current step of each of its dims; `x[...]` indexes steps; `x.axes[...]` indexes the
    axes of the value.
    """

    # Functions of other libraries say what to use; their arrays on the left of an operator defer to this class.
    __array_ufunc__ = array_ufunc
    __array_function__ = array_function
    __jax_array__ = property(jax_array)
    __torch_function__: ClassVar[Any] = classmethod(torch_function)

    def __init__(self, spans: Spans, type: TensorType, weak: bool = False) -> None:
        self.spans = spans
        self.type = type
        self.weak = weak
        self.checkpoint: Mark | None = None  # whether gradients compute it again
        self.line: Source = here()
        self.name: str | None = None  # the variable that a user holds it in

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dims the value varies along, in order."""
        return tuple(Index(Term.of(span.symbol)) for span in self.spans)  # type: ignore[misc]

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        return tuple(span.symbol for span in self.spans)

    @property
    def shape(self) -> tuple[int | Index, ...]:
        """The shape of the value at one point; entries may be index expressions."""
        return tuple(index_of(length) for length in self.type.shape)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.type.shape)

    @property
    def ndim(self) -> int:
        """The number of axes, as NumPy calls it."""
        return self.rank

    @property
    def dtype(self) -> np.dtype:
        """The element type."""
        return self.type.dtype

    def __setitem__(self, key: Any, value: Any) -> None:
        raise DefinitionError(
            "only tensors made by pr.recurrent are defined by assignment",
            fix="make a recurrent tensor, or choose values with pr.where(condition, a, b)",
        )

    def __repr__(self) -> str:
        over = f" over ({', '.join(map(str, self.dims))})" if self.spans else ""
        return f"<{self.type}{over} from {self.line}>"

    def _repr_html_(self) -> str:
        """A tensor in a notebook: its type and dims, and the line that made it."""
        over = f" over {', '.join(map(str, self.dims))}" if self.spans else ""
        return f"<code>{escape(f'{self.type}{over}')}</code> <small>{escape(self.line.shown)}</small>"

    def __bool__(self) -> bool:
        raise ConditionValueError(
            "a tensor has no truth value: its elements are known only when the program runs",
            fix="choose values with pr.where(condition, a, b)",
        )

    def __iter__(self) -> Any:
        raise IterationError(
            f"a tensor of shape {self.shape} cannot be iterated over in Python",
            fix="write the recurrence over a dim, or take positions of an axis with x.axes[k]",
        )

    def as_length(self) -> Tensor:
        """This tensor as the extent of a ragged dim: an integer per point of its dims."""
        if self.type.shape or self.dtype.kind not in "iu":
            raise DeclarationError(
                f"the extent of a ragged dim must be an integer scalar at each step, not {self.type}",
                fix='use an integer tensor of shape (), such as pr.input("lengths", (), (b,), "int32")',
            )
        return self


class Computed(Tensor):
    """One operation on other tensors."""

    def __init__(
        self,
        op: str,
        operands: tuple[Tensor, ...],
        attributes: Mapping[str, Any],
        spans: Spans,
        type: TensorType,
        weak: bool,
    ) -> None:
        super().__init__(spans, type, weak)
        self.op, self.operands, self.attributes = op, operands, dict(attributes)
        self.stored: np.ndarray | None = None  # the value of a parameter


class View(Tensor):
    """Another tensor at other steps; `steps` has one entry per dim of the source."""

    def __init__(self, source: Tensor, steps: tuple[Step, ...]) -> None:
        spans = _view_spans(source, steps)
        super().__init__(spans, _view_type(source, steps, counted(spans)), source.weak)
        self.source, self.steps = source, steps
        self.indexed: View | None = None  # the view this was made of by indexing, at these entries,
        self.entries: Mapping[Symbol, Step] = {}
        self.order: tuple[int, ...] | None = None  # whose ranges then have another order


class Choice(Tensor):
    """One tensor where an index condition holds, another elsewhere."""

    def __init__(self, condition: IrCondition, first: Tensor, second: Tensor, spans: Spans, type: TensorType) -> None:
        super().__init__(spans, type)
        self.condition, self.first, self.second = condition, first, second


def domain(spans: Spans) -> IrCondition:
    """`0 <= t < extent` for every dim: where a tensor with these spans lives."""
    return conjunction(*(within(span.symbol, span.extent) for span in spans))


def counted(spans: Spans) -> IrCondition:
    """`0 <= t` for every dim: what holds wherever a tensor is demanded, be it beyond its own extent."""
    return conjunction(*(ge(Term.of(span.symbol), 0) for span in spans))


def natural(symbol: Symbol) -> NodeDim:
    """A dim with its own bound as extent."""
    assert symbol.bound is not None
    return NodeDim(symbol, Term.of(symbol.bound))


def union(groups: Iterable[Iterable[NodeDim]], also: Iterable[Symbol] = ()) -> Spans:
    """The dims of an operation: its operands', in the order that these have, on the extent they share.

    Where operands leave the order of two dims open, or disagree about it, it is that of their declaration. The dims
    a ragged bound depends on come before it. Dims in `also` have no order of their own.
    """
    merged: dict[Symbol, Term] = {}
    orders: list[list[Symbol]] = []

    def add(span: NodeDim) -> None:
        owners = (*span.symbol.bound.over, *dims_of(span.extent)) if span.symbol.bound else ()
        for symbol in owners:
            orders.append([symbol, span.symbol])
            if symbol not in merged:
                add(natural(symbol))
        known = merged.get(span.symbol)
        merged[span.symbol] = span.extent if known is None else minimum(known, span.extent)

    for group in groups:
        spans = list(group)
        orders.append(list(dict.fromkeys(span.symbol for span in spans)))
        for span in spans:
            add(span)
    for symbol in also:
        add(natural(symbol))
    return tuple(NodeDim(symbol, merged[symbol]) for symbol in _merged(merged, orders))


def _merged(symbols: Iterable[Symbol], orders: Iterable[Sequence[Symbol]]) -> list[Symbol]:
    """Symbols in an order that others have; where these leave it open or disagree, in the order of declaration."""
    before: dict[Symbol, set[Symbol]] = {symbol: set() for symbol in symbols}
    for order in orders:
        for earlier, later in pairwise(order):
            before[later].add(earlier)
    declared = sorted(before, key=lambda symbol: symbol.serial)
    found: list[Symbol] = []
    while len(found) < len(declared):
        left = [symbol for symbol in declared if symbol not in found]
        free = next((symbol for symbol in left if not before[symbol] & {*left} - {symbol}), None)
        if free is None:
            return declared
        found.append(free)
    return found


def apply(
    op: str,
    *operands: Tensor,
    weak: bool = False,
    dims: Iterable[Dim] = (),
    spans: Spans | None = None,
    **attributes: Any,
) -> Tensor:
    """One primitive of the op table on tensors.

    `dims` adds dims the operands do not have; attributes may hold index terms, whose dims are added too. `spans` puts
    the dims in another order than that of the operands.
    """
    inside = [term for value in attributes.values() for term in attribute_terms(value)]
    also = [d.symbol for d in dims] + [s for term in inside for s in in_order(term.symbols)]
    if spans is None:
        spans = union([operand.spans for operand in operands], also)
    given = domain(spans)
    result = TABLE[op].type_rule(tuple(operand.type for operand in operands), attributes, given)
    return Computed(op, operands, attributes, spans, simplified(result, counted(spans)), weak)


def in_order(symbols: Iterable[Symbol]) -> list[Symbol]:
    """The dims among some symbols, and the dims their ragged bounds depend on, in the order of declaration."""
    dims: dict[Symbol, None] = {}
    for symbol in sorted(symbols, key=lambda symbol: symbol.serial):
        dims.update(dict.fromkeys(symbol.over))
        if symbol.kind == "dim":
            dims[symbol] = None
    return list(dims)


def simplified(type: TensorType, given: IrCondition) -> TensorType:
    """The type with each length simplified by what is known of its symbols."""
    return TensorType(tuple(sets.simplified_term(length, given) for length in type.shape), type.dtype)


def index(tensor: Tensor, key: Any) -> Tensor:
    """`tensor[key]`: select steps by position or by name."""
    entries = parse_key(tensor, key)
    if all(entry is Term.of(symbol) for entry, symbol in zip(entries, tensor.symbols, strict=True)):
        return tensor
    if isinstance(tensor, View):
        return _reindexed(tensor, dict(zip(tensor.symbols, entries, strict=True)))
    _check_rectangular(tensor, dict(zip(tensor.symbols, entries, strict=True)))
    return View(tensor, entries)


def parse_key(tensor: Tensor, key: Any) -> tuple[Step, ...]:
    """One entry per dim of the tensor from what stands between the brackets."""
    if not tensor.spans:
        raise IndexingError(
            f"this tensor has no dims, so [...] has nothing to index; its shape is {tensor.shape}",
            fix="index the axes of a value with x.axes[...]",
        )
    current: dict[Symbol, Step] = {symbol: Term.of(symbol) for symbol in tensor.symbols}
    spans = {span.symbol: span for span in tensor.spans}
    if isinstance(key, dict):
        for name, entry in key.items():
            if not isinstance(name, Dim) or name.symbol not in current:
                raise UnknownDimError(
                    f"{name!r} is not a dim of this tensor; its dims are {_names(tensor)}",
                    fix="name one of the tensor's own dims, as in x[{t: t - 1}]",
                )
            current[name.symbol] = _entry(entry, spans[name.symbol])
        return tuple(current.values())
    entries = key if isinstance(key, tuple) else (key,)
    if len(entries) > len(tensor.spans):
        raise IndexingError(
            f"{len(entries)} indices for a tensor whose dims are {_names(tensor)}",
            fix="give at most one index per dim; axes of the value are indexed with x.axes[...]",
        )
    for symbol, entry in zip(tensor.symbols, entries, strict=False):
        current[symbol] = _entry(entry, spans[symbol])
    return tuple(current.values())


def select(condition: Condition, first: Tensor, second: Tensor) -> Tensor:
    """`first` where an index condition holds, `second` elsewhere; both already of one dtype.

    Each branch is read only where it is chosen.
    """
    shared = union([first.spans, second.spans])
    here = {span.symbol for span in shared}
    spans = union([shared], (symbol for symbol in in_order(condition.condition.symbols) if symbol not in here))
    given = domain(spans)
    types = (TensorType((), np.dtype(bool)), first.type, second.type)
    result = simplified(TABLE["select"].type_rule(types, {}, given), counted(spans))
    return Choice(condition.condition, shaped(first, result.shape), shaped(second, result.shape), spans, result)


def shaped(tensor: Tensor, shape: Shape) -> Tensor:
    """The tensor broadcast to a shape."""
    return tensor if tensor.type.shape == shape else apply("broadcast", tensor, shape=shape)


def window(x: Tensor, t: Dim, w: int | Index) -> Tensor:
    """The last `w` steps of x up to and including t: `x[pr.max(0, t - w + 1):t + 1]`, along the dim t.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> pr.evaluate(pr.window(x, t, 2).sum(0), {"x": [1.0, 2.0, 4.0]})
    array([1., 3., 6.], dtype=float32)
    """
    return x[{t: slice(index_max(0, t - w + 1), t + 1)}]


def _entry(entry: Any, span: NodeDim) -> Step:
    if isinstance(entry, slice):
        return _range(entry, span)
    if isinstance(entry, Condition):
        raise IndexingError(
            "a condition selects where a definition holds, and stands only on the left of an assignment",
            fix="choose between values with pr.where(condition, a, b)",
        )
    if isinstance(entry, Tensor):
        raise DataIndexError(
            "steps cannot be indexed by data: the compiler must know which steps are read",
            fix=f"read the steps as an axis and pick from it: pr.take(x[0:{span.extent}], index, axis=0)",
        )
    return affine(entry)


def _range(entry: slice, span: NodeDim) -> Range:
    step = 1 if entry.step is None else entry.step
    if not isinstance(step, (int, np.integer)) or step == 0:
        raise IndexingError(
            f"the step of a slice must be a non-zero integer, not {step!r}",
            fix="use a Python integer as the step",
        )
    first_default, stop_default = (Term(0), span.extent) if step > 0 else (span.extent - 1, Term(-1))
    start = first_default if entry.start is None else affine(entry.start)
    stop = stop_default if entry.stop is None else affine(entry.stop)
    return Range(start, sets.length(start, stop, int(step)), int(step))


def _view_spans(source: Tensor, steps: tuple[Step, ...]) -> Spans:
    groups: list[Spans] = []
    for span, step in zip(source.spans, steps, strict=True):
        if step is Term.of(span.symbol):
            groups.append((span,))
        else:
            groups.append(tuple(natural(symbol) for symbol in in_order(step.symbols)))
    return union([[span for group in groups for span in group]])


def _view_type(source: Tensor, steps: tuple[Step, ...], given: IrCondition) -> TensorType:
    points = {s: step for s, step in zip(source.symbols, steps, strict=True) if isinstance(step, Term)}
    leading = tuple(step.length for step in steps if isinstance(step, Range))
    shape: Shape = leading + tuple(length.substitute(points) for length in source.type.shape)
    return simplified(TensorType(shape, source.dtype), given)


def _check_rectangular(tensor: Tensor, entries: Mapping[Symbol, Step]) -> None:
    """A dim that the shape, or the bound of a dim that stays, depends on cannot be sliced."""
    for symbol, entry in entries.items():
        if not isinstance(entry, Range):
            _check_length_stays(tensor, symbol, entry)
            continue
        for length in tensor.type.shape:
            if symbol in dims_of(length):
                raise RaggedShapeError(
                    f"the shape {tensor.shape} differs from step to step of {symbol}, so its steps cannot be stacked",
                    fix=f"reduce or pad the value to one shape for every {symbol} before slicing along {symbol}",
                )
        for other in tensor.symbols:
            if other.bound is not None and symbol in other.bound.over and not isinstance(entries[other], Range):
                raise RaggedShapeError(
                    f"the length of {other} differs along {symbol}, so {symbol} cannot be sliced while {other} stays",
                    fix=f"reduce over {other} first",
                )


def _check_length_stays(tensor: Tensor, symbol: Symbol, entry: Term) -> None:
    """A ragged length in a shape is that of the current step; no term says what it is at another."""
    for length in tensor.type.shape:
        if entry is not Term.of(symbol) and any(symbol in s.over for s in length.symbols):
            raise RaggedShapeError(
                f"the axis length {length} differs along {symbol}, and at {symbol} = {entry} it is not known",
                fix=f"reduce or pad the value to one shape for every {symbol} before reading another {symbol}",
            )


def _reindexed(view: View, entries: Mapping[Symbol, Step]) -> Tensor:
    """Index a view: substitute points into its index, and compose ranges where the result is a range again."""
    _check_rectangular(view, entries)
    points = {symbol: entry for symbol, entry in entries.items() if isinstance(entry, Term)}
    ranges = {symbol: entry for symbol, entry in entries.items() if isinstance(entry, Range)}
    places = {symbol: _only_place(view, symbol) for symbol in ranges}
    taken = [place for place in places.values() if place is not None]
    # A ragged bound in the index is that of the view's own row, which substituting into the index would lose.
    owners = {owner for step in view.steps for symbol in step.symbols for owner in symbol.over}
    other_row = any(entries.get(owner, Term.of(owner)) is not Term.of(owner) for owner in owners)
    if other_row or len(taken) < len(ranges) or len(set(taken)) < len(taken):
        return View(apply("copy", view), tuple(entries.values()))
    steps = [step.substitute(points) for step in view.steps]
    for symbol, entry in ranges.items():
        place = places[symbol]
        assert place is not None
        step = steps[place]
        assert isinstance(step, Term)
        # Substituting the points first could capture the sliced symbol; the original step is taken again.
        original = view.steps[place]
        assert isinstance(original, Term)
        start = original.substitute({**points, symbol: entry.start})
        steps[place] = Range(start, entry.length, entry.step * original.coefficient(symbol))
    result = View(view.source, tuple(steps))
    result.indexed, result.entries = view, entries
    old = [i for i, step in enumerate(view.steps) if isinstance(step, Range)]
    wanted = [place for place in places.values() if place is not None] + old
    if wanted != sorted(wanted):
        position = {place: axis for axis, place in enumerate(sorted(wanted))}
        result.order = tuple(position[place] for place in wanted) + tuple(range(len(wanted), result.rank))
        return apply("transpose", result, axes=result.order)
    return result


def apart(view: View) -> Tensor:
    """The value of a view that was made by indexing another, without substituting into the index of that one."""
    assert view.indexed is not None
    inner = apply("copy", view.indexed)
    inner.line = view.line
    result: Tensor = View(inner, tuple(view.entries[symbol] for symbol in inner.symbols))
    if view.order is not None:
        result = apply("transpose", result, axes=tuple(map(view.order.index, range(len(view.order)))))
    return result


def _only_place(view: View, symbol: Symbol) -> int | None:
    """The one entry of the view's index that varies with `symbol`, if it does so linearly and alone."""
    varying = [i for i, step in enumerate(view.steps) if symbol in _dims_of_step(step)]
    if len(varying) != 1:
        return None
    step = view.steps[varying[0]]
    linear = isinstance(step, Term) and step.linear_in(symbol) and step.coefficient(symbol) != 0
    ragged = isinstance(step, Term) and any(symbol in s.over for s in step.symbols)
    return varying[0] if linear and not ragged else None


def _dims_of_step(step: Step) -> frozenset[Symbol]:
    if isinstance(step, Term):
        return dims_of(step)
    return dims_of(step.start) | dims_of(step.length)


def _names(tensor: Tensor) -> str:
    return "(" + ", ".join(str(symbol) for symbol in tensor.symbols) + ")"
