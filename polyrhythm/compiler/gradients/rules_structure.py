"""Derivatives of reductions, contractions, and everything that moves elements about."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyrhythm.compiler.gradients.rules import Results, Rule, Step
from polyrhythm.compiler.gradients.values import Value
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.types import Shape

ONE, ZERO = Term(1), Term(0)


def _spread(value: Value, axes: Sequence[int], shape: Shape) -> Value:
    """Repeat a value along axes that were reduced away."""
    kept = tuple(ONE if axis in axes else n for axis, n in enumerate(shape))
    return value.apply("reshape", shape=kept).apply("broadcast", shape=shape)


def _reduce(s: Step) -> Results:
    (x,) = s.x
    axes, monoid = s["axes"], s["monoid"]
    g = _spread(s.g, axes, x.shape)
    if monoid == "sum":
        return [g]
    if monoid in ("max", "min"):
        equal = x.apply("eq", _spread(s.y, axes, x.shape))
        ties = equal.apply("cast", dtype=x.dtype)
        count = _spread(ties.apply("reduce", monoid="sum", axes=axes), axes, x.shape)
        return [g * ties / count.where(count.zeros().apply("lt", count), 1)]
    return [g * _others(x, axes)]


def _others(x: Value, axes: Sequence[int]) -> Value:
    """For each element the product of all others along some axes, right also where some are zero."""
    result = None
    for axis in reversed(axes):
        before = _shifted_product(x, axis, reverse=False)
        after = _shifted_product(x, axis, reverse=True)
        here = before * after
        result = here if result is None else result * here
        if axis != axes[0]:
            whole = x.apply("reduce", monoid="prod", axes=(axis,))
            shape = tuple(ONE if i == axis else n for i, n in enumerate(x.shape))
            x = whole.apply("reshape", shape=shape)
    assert result is not None
    return result


def _shifted_product(x: Value, axis: int, reverse: bool) -> Value:
    """The running product without the element itself."""
    n = x.shape[axis]
    one = tuple(ONE if i == axis else ZERO for i in range(len(x.shape)))
    none = tuple(ZERO for _ in x.shape)
    padded = x.apply("pad", before=none if reverse else one, after=one if reverse else none, value=1.0)
    running = padded.apply("cumulative", monoid="prod", axis=axis, reverse=reverse)
    starts = tuple(ONE if reverse and i == axis else ZERO for i in range(len(x.shape)))
    lengths = tuple(n if i == axis else m for i, m in enumerate(x.shape))
    return running.apply("slice", starts=starts, lengths=lengths, steps=(1,) * len(x.shape))


def _cumulative(s: Step) -> Results:
    (x,) = s.x
    axis, reverse, monoid = s["axis"], s["reverse"], s["monoid"]

    def back(value: Value) -> Value:
        return value.apply("cumulative", monoid="sum", axis=axis, reverse=not reverse)

    if monoid == "sum":
        return [back(s.g)]
    if monoid == "prod":
        # d y_k / d x_j is y_k / x_j; where x_j is zero only the products up to the next zero count, which is what
        # dividing loses, so those elements are summed by the product that leaves them out.
        zero = x.apply("eq", x.zeros())
        safe = x.where(zero.apply("not"), 1)
        usual = back(s.g * s.y) / safe
        left_out = _product_without_first_zero(x, zero, axis, reverse)
        return [back(s.g * left_out).where(zero.apply("and", _first(zero, axis, reverse)), usual)]
    record = _record(x, s.y, axis, reverse)
    return [s.g.zeros().apply("scatter_along", record, s.g, axis=axis)]


def _linear_scan(s: Step) -> Results:
    """From `y[k] = a[k] * y[k - 1] + b[k]`: the gradient of b comes back by `d[k] = g[k] + a[k + 1] * d[k + 1]`."""
    axis, reverse = s["axis"], s["reverse"]
    following = _moved(s.x[0], axis, 1 if reverse else -1)
    back = following.apply("linear_scan", s.g, axis=axis, reverse=not reverse)
    return [back * _moved(s.y, axis, -1 if reverse else 1), back]


def _moved(x: Value, axis: int, by: int) -> Value:
    """The elements one position further along an axis, or back; zero comes in."""
    none = tuple(ZERO for _ in x.shape)
    one = tuple(ONE if i == axis else ZERO for i in range(len(x.shape)))
    padded = x.apply("pad", before=one if by > 0 else none, after=one if by < 0 else none, value=0.0)
    starts = one if by < 0 else none
    return padded.apply("slice", starts=starts, lengths=x.shape, steps=(1,) * len(x.shape))


def _first(zero: Value, axis: int, reverse: bool) -> Value:
    """The first zero met along an axis."""
    count = zero.apply("cast", dtype=np.dtype("int32")).apply("cumulative", monoid="sum", axis=axis, reverse=reverse)
    return count.apply("eq", count.space.constant(1, count.dtype))


def _product_without_first_zero(x: Value, zero: Value, axis: int, reverse: bool) -> Value:
    first = zero.apply("and", _first(zero, axis, reverse))
    product = x.where(first.apply("not"), 1).apply("cumulative", monoid="prod", axis=axis, reverse=reverse)
    count = zero.apply("cast", dtype=np.dtype("int32")).apply("cumulative", monoid="sum", axis=axis, reverse=reverse)
    return product.where(count.apply("eq", count.space.constant(1, count.dtype)))


def _record(x: Value, y: Value, axis: int, reverse: bool) -> Value:
    """For each position of a running extremum, where the value it has was first met."""
    n = x.shape[axis]
    before = tuple(ONE if i == axis and not reverse else ZERO for i in range(len(x.shape)))
    after = tuple(ONE if i == axis and reverse else ZERO for i in range(len(x.shape)))
    padded = y.apply("pad", before=before, after=after, value=0.0)
    starts = tuple(ONE if i == axis and reverse else ZERO for i in range(len(x.shape)))
    lengths = tuple(n if i == axis else m for i, m in enumerate(x.shape))
    previous = padded.apply("slice", starts=starts, lengths=lengths, steps=(1,) * len(x.shape))
    places = x.space.apply("iota", length=n)
    shape = tuple(n if i == axis else ONE for i in range(len(x.shape)))
    places = places.apply("reshape", shape=shape).apply("broadcast", shape=x.shape)
    last = x.space.apply("index", value=n - 1) if reverse else x.space.constant(0, places.dtype)
    new = previous.apply("ne", y)
    edge = places.apply("eq", last.apply("broadcast", shape=x.shape) if reverse else last)
    found = places.where(new.apply("or", edge), x.space.apply("index", value=n) if reverse else -1)
    return found.apply("cumulative", monoid="min" if reverse else "max", axis=axis, reverse=reverse)


def _einsum(s: Step) -> Results:
    words, output = parse_spec(s["spec"])
    return [_einsum_operand(s, words, output, own) if wanted else None for own, wanted in enumerate(s.wanted)]


def _einsum_operand(s: Step, words: Sequence[str], output: str, own: int) -> Value:
    """Contract the gradient with the other operand; labels found nowhere else were summed, and are spread again."""
    word, x = words[own], s.x[own]
    unique = "".join(dict.fromkeys(word))
    others = [(words[i], s.x[i]) for i in range(len(words)) if i != own]
    available = output + "".join(other for other, _ in others)
    kept = "".join(label for label in unique if label in available)
    spec = ",".join([output, *(other for other, _ in others)]) + f"->{kept}"
    value = s.g.apply("einsum", *(other for _, other in others), spec=spec)
    lengths = dict(zip(word, x.shape, strict=True))
    shape = tuple(lengths[label] if label in kept else ONE for label in unique)
    whole = tuple(lengths[label] for label in unique)
    if value.shape != whole:
        value = value.apply("reshape", shape=shape).apply("broadcast", shape=whole)
    return value if unique == word else _on_diagonal(value, unique, word, x.shape)


def _on_diagonal(value: Value, unique: str, word: str, shape: Shape) -> Value:
    """Put a value on the diagonal of the axes that share a label."""
    first = {label: word.index(label) for label in unique}
    order = sorted(range(len(unique)), key=lambda i: first[unique[i]])
    value = value.apply("transpose", axes=tuple(order))
    spread = tuple(n if first[label] == axis else ONE for axis, (label, n) in enumerate(zip(word, shape, strict=True)))
    value = value.apply("reshape", shape=spread).apply("broadcast", shape=shape)
    for axis, label in enumerate(word):
        if first[label] != axis:
            rows, columns = (_places(value, shape, a) for a in (first[label], axis))
            value = value.where(rows.apply("eq", columns))
    return value


def _places(value: Value, shape: Shape, axis: int) -> Value:
    """The position along an axis, in a shape that broadcasts."""
    along = tuple(n if i == axis else ONE for i, n in enumerate(shape))
    return value.space.apply("iota", length=shape[axis]).apply("reshape", shape=along)


def _reshape(s: Step) -> Results:
    return [s.g.apply("reshape", shape=s.x[0].shape)]


def _transpose(s: Step) -> Results:
    back = tuple(int(i) for i in np.argsort(s["axes"]))
    return [s.g.apply("transpose", axes=back)]


def _broadcast(s: Step) -> Results:
    return [s.g.summed_to(s.x[0].shape)]


def _concat(s: Step) -> Results:
    axis, start = s["axis"], ZERO
    results: list[Value | None] = []
    for x, wanted in zip(s.x, s.wanted, strict=True):
        starts = tuple(start if i == axis else ZERO for i in range(len(x.shape)))
        cut = s.g.apply("slice", starts=starts, lengths=x.shape, steps=(1,) * len(x.shape)) if wanted else None
        results.append(cut)
        start = start + x.shape[axis]
    return results


def _pad(s: Step) -> Results:
    x = s.x[0]
    return [s.g.apply("slice", starts=s["before"], lengths=x.shape, steps=(1,) * len(x.shape))]


def _slice(s: Step) -> Results:
    """Put the elements back where they came from: padding for plain slices, scattering for strided ones."""
    x, value = s.x[0], s.g
    for axis, step in enumerate(s["steps"]):
        start, length = s["starts"][axis], s["lengths"][axis]
        shape = tuple(x.shape[i] if i <= axis else n for i, n in enumerate(value.shape))
        if step == 1:
            if start is ZERO and length is x.shape[axis]:
                continue
            none = [ZERO] * len(shape)
            before, after = list(none), list(none)
            before[axis], after[axis] = start, x.shape[axis] - start - length
            value = value.apply("pad", before=tuple(before), after=tuple(after), value=0.0)
        else:
            places = value.space.apply("iota", length=length)
            first = value.space.apply("index", value=start)
            places = places.apply("mul", places.space.constant(step, places.dtype)).apply("add", first)
            base = value.space.constant(0, value.dtype, shape)
            value = base.apply("scatter_add", places, value, axis=axis)
    return [value]


def _clamped(indices: Value, n: Term) -> Value:
    last = indices.space.apply("index", value=n - 1).cast(indices.dtype)
    zero = indices.space.constant(0, indices.dtype)
    return indices.apply("minimum", last).apply("maximum", zero)


def _take(s: Step) -> Results:
    x, indices = s.x
    clamped = _clamped(indices, x.shape[s["axis"]])
    base = x.space.constant(0, x.dtype, x.shape)
    return [base.apply("scatter_add", clamped, s.g, axis=s["axis"]), None]


def _take_along(s: Step) -> Results:
    x, indices = s.x
    axis = s["axis"]
    clamped = _clamped(indices, x.shape[axis])
    shape = tuple(indices.shape[i] if i == axis else n for i, n in enumerate(s.g.shape))
    wide = tuple(n if i == axis else s.g.shape[i] for i, n in enumerate(x.shape))
    base = x.space.constant(0, x.dtype, wide)
    found = base.apply("scatter_along", clamped.apply("broadcast", shape=shape), s.g, axis=axis)
    return [found.summed_to(x.shape), None]


def _inside(indices: Value, n: Term) -> Value:
    zero = indices.space.constant(0, indices.dtype)
    size = indices.space.apply("index", value=n).cast(indices.dtype)
    return zero.apply("le", indices).apply("and", indices.apply("lt", size))


def _scatter_add(s: Step) -> Results:
    base, indices, updates = s.x
    axis = s["axis"]
    read = s.g.apply("take", indices, axis=axis)
    rank = len(indices.shape)
    shape = tuple(indices.shape[i - axis] if axis <= i < axis + rank else ONE for i in range(len(updates.shape)))
    kept = _inside(indices, base.shape[axis]).apply("reshape", shape=shape)
    return [s.g, None, read.where(kept.apply("broadcast", shape=updates.shape))]


def _scatter_along(s: Step) -> Results:
    base, indices, updates = s.x
    axis = s["axis"]
    read = s.g.apply("take_along", indices, axis=axis)
    kept = _inside(indices, base.shape[axis])
    return [s.g, None, read.where(kept.apply("broadcast", shape=updates.shape)).summed_to(updates.shape)]


def _nothing(s: Step) -> Results:
    return [None for _ in s.x]


STRUCTURE: dict[str, Rule] = {
    "reduce": _reduce,
    "cumulative": _cumulative,
    "linear_scan": _linear_scan,
    "argreduce": _nothing,
    "argsort": _nothing,
    "einsum": _einsum,
    "reshape": _reshape,
    "transpose": _transpose,
    "copy": lambda s: [s.g],
    "broadcast": _broadcast,
    "concat": _concat,
    "pad": _pad,
    "slice": _slice,
    "take": _take,
    "take_along": _take_along,
    "scatter_add": _scatter_add,
    "scatter_along": _scatter_along,
}
