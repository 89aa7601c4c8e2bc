"""Random tensors. Their bits depend on the seed of the call, on the site and on the step, and on nothing else.

Every call is a site of its own, known by `name` or else by its place in the program. `dims` says along which dims
the draws differ; without it, along those of the arguments. Uniforms are exact multiples of a power of two,
the same on every backend, and discrete draws are decided on them.

Further distributions are made of uniform and normal numbers. Rejection is unrolled: a gamma number is the first
accepted of a fixed number of candidates, so that every backend draws the same and no loop depends on data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT64
from polyrhythm.compiler.ir.terms import Term, product
from polyrhythm.errors import DTypeError, ShapeError
from polyrhythm.language.functions.activations import sigmoid
from polyrhythm.language.functions.arithmetic import bitwise_and, less, where
from polyrhythm.language.functions.elementwise import cos, exp, isfinite, log, log1p, sin, sqrt
from polyrhythm.language.functions.indexing import one_hot, take
from polyrhythm.language.functions.reductions import argmax, cumsum, sum
from polyrhythm.language.functions.reductions import max as greatest
from polyrhythm.language.functions.shapes import broadcast_to
from polyrhythm.language.functions.sorting import argsort
from polyrhythm.language.functions.spatial import Axes
from polyrhythm.language.functions.support import (
    DTypeLike,
    Length,
    TensorLike,
    accumulated,
    as_dtype,
    as_float,
    as_integers,
    as_number,
    as_tensor,
    as_terms,
    cast_to,
    one_axis,
    reshaped,
)
from polyrhythm.language.index import Dim, index_of, term_of
from polyrhythm.language.tensor import Tensor, apply

# fmt: off
__all__ = [
    "bernoulli", "beta", "categorical", "choice", "exponential", "gamma", "multinomial", "normal", "permutation",
    "randint", "uniform",
]
# fmt: on

# Of each float: how many of a word's low bits are left out, so that the rest fits its significand.
_UNUSED_BITS = {FLOAT32: 8, FLOAT16: 21, BFLOAT16: 24}


def uniform(
    shape: Length | Sequence[Length] = (),
    low: TensorLike = 0.0,
    high: TensorLike = 1.0,
    *,
    dims: Iterable[Dim] | None = None,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> Tensor:
    """Numbers spread evenly over `low <= u < high`.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> u = pr.evaluate(pr.uniform((3,), dims=(t,)), bounds={T: 4})
    >>> u.shape, bool(((u >= 0) & (u < 1)).all())
    ((4, 3), True)
    """
    kind = float_dtype(dtype)
    unit = unit_interval(as_terms(shape), kind, draw_dims(dims, low, high), name)
    if as_number(low) == 0 and as_number(high) == 1:
        return unit
    least, most = cast_to(low, kind), cast_to(high, kind)
    return least + unit * (most - least)


def normal(
    shape: Length | Sequence[Length] = (),
    mean: TensorLike = 0.0,
    std: TensorLike = 1.0,
    *,
    dims: Iterable[Dim] | None = None,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> Tensor:
    """Normally distributed numbers.

    >>> import polyrhythm as pr
    >>> x = pr.evaluate(pr.normal((1000,)))
    >>> bool(abs(x.mean()) < 0.2), bool(abs(x.std() - 1) < 0.2)
    (True, True)
    """
    kind = float_dtype(dtype)
    wide = dtypes.accumulator(kind)
    count = 2 if wide == FLOAT64 else 1
    words = random_words(as_terms(shape), 2 * count, draw_dims(dims, mean, std), name)
    # Box and Muller (1958). The angle is folded into a quarter turn, where the sine is precise relative to its
    # size; the lowest bit, which the uniform leaves out, is the sign.
    radius = sqrt(-2.0 * log(1.0 - unit_of(words[:count], wide)))
    height = sin((math.pi / 2) * unit_of(words[count:], wide))
    sign = 1.0 - 2.0 * cast_to(words[-1] % 2, wide)
    draw = cast_to(radius * height * sign, kind)
    if as_number(mean) == 0 and as_number(std) == 1:
        return draw
    return cast_to(mean, kind) + draw * cast_to(std, kind)


def bernoulli(
    p: TensorLike,
    shape: Length | Sequence[Length] | None = None,
    *,
    dims: Iterable[Dim] | None = None,
    name: str | None = None,
) -> Tensor:
    """True with probability p, one draw per element of p, or of `shape`.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.bernoulli(pr.constant([0.0, 1.0])))
    array([False,  True])
    """
    chance = accumulated(as_float(p))
    lengths = chance.type.shape if shape is None else as_terms(shape)
    return less(unit_interval(lengths, chance.dtype, draw_dims(dims, p), name), chance)


def categorical(
    logits: TensorLike, axis: int = -1, *, dims: Iterable[Dim] | None = None, name: str | None = None
) -> Tensor:
    """A position along an axis, drawn with probability `softmax(logits)`, as int32.

    One uniform number is compared with the running sums of the probabilities. A position of probability zero is
    never drawn.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.categorical(pr.constant([[0.0, float("-inf")], [float("-inf"), 0.0]])))
    array([0, 1], dtype=int32)
    """
    operand = accumulated(as_float(logits))
    place = one_axis(operand, axis)
    peak = greatest(operand, place, keepdims=True)
    weights = exp(operand - where(isfinite(peak), peak, 0))
    # Only positions of positive weight take part, so that rounding in the running sums can never choose another.
    possible = weights > 0
    running = where(possible, cumsum(weights, place), 0)
    drawn = tuple(Term(1) if i == place else n for i, n in enumerate(operand.type.shape))
    # A uniform below 1 times the total is below the total in floating point too: some position lies above.
    mark = unit_interval(drawn, operand.dtype, draw_dims(dims, operand), name) * greatest(running, place, keepdims=True)
    return argmax(bitwise_and(possible, running > mark), place)


def randint(
    shape: Length | Sequence[Length] = (),
    low: TensorLike = 0,
    high: TensorLike = 2,
    *,
    dims: Iterable[Dim] | None = None,
    dtype: DTypeLike = "int32",
    name: str | None = None,
) -> Tensor:
    """Integers spread evenly over `low <= k < high`; the bounds may be tensors or index expressions.

    >>> import polyrhythm as pr
    >>> k = pr.evaluate(pr.randint((100,), 3, 5))
    >>> sorted(set(k.tolist()))
    [3, 4]
    """
    kind = as_dtype(dtype)
    if dtypes.kind(kind) != "int":
        raise DTypeError(f"randint draws integers, not {kind}", fix='use dtype="int32"')
    first, second = random_words(as_terms(shape), 2, draw_dims(dims, low, high), name)
    # 63 bits, so that the remainder favours no value noticeably.
    wide = cast_to(first // 2, INT64) * 2**32 + cast_to(second, INT64)
    least, most = (as_integers(bound, "the bounds of randint", INT64) for bound in (low, high))
    return cast_to(least + wide % (most - least), kind)


def permutation(n: Length, *, dims: Iterable[Dim] | None = None, name: str | None = None) -> Tensor:
    """The integers from 0 to n - 1 in random order, as int32.

    >>> import polyrhythm as pr
    >>> sorted(pr.evaluate(pr.permutation(4)).tolist())
    [0, 1, 2, 3]
    """
    return argsort(random_bits(as_terms(n), draw_dims(dims), name))


def random_bits(shape: tuple[Term, ...], dims: tuple[Dim, ...], name: str | None) -> Tensor:
    return apply("random_bits", dims=dims, shape=shape, site=name)


def random_words(shape: tuple[Term, ...], count: int, dims: tuple[Dim, ...], name: str | None) -> tuple[Tensor, ...]:
    """Several random words per element, all of one site."""
    if count == 1:
        return (random_bits(shape, dims, name),)
    bits = random_bits((*shape, Term(count)), dims, name)
    return tuple(Axes(bits)[..., k] for k in range(count))


def unit_interval(shape: tuple[Term, ...], dtype: np.dtype, dims: tuple[Dim, ...], name: str | None) -> Tensor:
    return unit_of(random_words(shape, 2 if dtype == FLOAT64 else 1, dims, name), dtype)


def unit_of(words: tuple[Tensor, ...], dtype: np.dtype) -> Tensor:
    """An exact uniform number in [0, 1) from one random word, or from two for float64."""
    if dtype == FLOAT64:
        high, low = cast_to(words[0] // 2**5, FLOAT64), cast_to(words[1] // 2**6, FLOAT64)
        return (high * 2.0**26 + low) * 2.0**-53
    unused = _UNUSED_BITS[dtype]
    return cast_to(words[0] // 2**unused, dtype) * 2.0 ** (unused - 32)


def float_dtype(dtype: DTypeLike) -> np.dtype:
    kind = as_dtype(dtype)
    if not dtypes.is_float(kind):
        raise DTypeError(f"this draws floats, not {kind}", fix='use dtype="float32", or pr.randint for integers')
    return kind


def draw_dims(dims: Iterable[Dim] | None, *arguments: TensorLike) -> tuple[Dim, ...]:
    """Along which dims draws differ: those given, or those of the arguments."""
    if dims is not None:
        return tuple(dims)
    found = (d for argument in arguments if as_number(argument) is None for d in as_tensor(argument).dims)
    return tuple(dict.fromkeys(found))


CANDIDATES = 6
"""How often a gamma number is proposed; each is accepted with a probability above 0.95, so none in one of 10**7."""


def exponential(
    shape: Length | Sequence[Length] = (),
    scale: TensorLike = 1.0,
    *,
    dims: Iterable[Dim] | None = None,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> Tensor:
    """Exponentially distributed numbers, of the given mean.

    >>> import polyrhythm as pr
    >>> x = pr.evaluate(pr.exponential((1000,), 2.0))
    >>> bool((x >= 0).all()), bool(abs(x.mean() - 2) < 0.3)
    (True, True)
    """
    kind = float_dtype(dtype)
    unit = unit_interval(as_terms(shape), dtypes.accumulator(kind), draw_dims(dims, scale), name)
    return cast_to(-log1p(-unit), kind) * cast_to(scale, kind)


def gamma(
    shape: Length | Sequence[Length] = (),
    concentration: TensorLike = 1.0,
    scale: TensorLike = 1.0,
    *,
    dims: Iterable[Dim] | None = None,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> Tensor:
    """Numbers of the gamma distribution. No gradient flows to the concentration.

    >>> import polyrhythm as pr
    >>> x = pr.evaluate(pr.gamma((1000,), 3.0))
    >>> bool((x >= 0).all()), bool(abs(x.mean() - 3) < 0.3)
    (True, True)
    """
    kind = float_dtype(dtype)
    drawn = _log_gamma(as_terms(shape), concentration, kind, draw_dims(dims, concentration, scale), name)
    return cast_to(exp(drawn), kind) * cast_to(scale, kind)


def beta(
    shape: Length | Sequence[Length] = (),
    a: TensorLike = 1.0,
    b: TensorLike = 1.0,
    *,
    dims: Iterable[Dim] | None = None,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> Tensor:
    """Numbers of the beta distribution, between 0 and 1. No gradient flows to a and b.

    >>> import polyrhythm as pr
    >>> x = pr.evaluate(pr.beta((1000,), 1.0, 3.0))
    >>> bool(((x >= 0) & (x <= 1)).all()), bool(abs(x.mean() - 0.25) < 0.05)
    (True, True)
    """
    kind, over, lengths = float_dtype(dtype), draw_dims(dims, a, b), as_terms(shape)
    first = _log_gamma(lengths, a, kind, over, name and f"{name}.a")
    second = _log_gamma(lengths, b, kind, over, name and f"{name}.b")
    return cast_to(sigmoid(first - second), kind)


def multinomial(n: Length, p: TensorLike, *, dims: Iterable[Dim] | None = None, name: str | None = None) -> Tensor:
    """How often each position along the last axis is drawn in n draws with probabilities p, as int32.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.multinomial(10, pr.constant([0.0, 1.0])))
    array([ 0, 10], dtype=int32)
    """
    chances = accumulated(as_float(p))
    many = broadcast_to(log(chances), (n, *chances.shape))
    drawn = categorical(many, dims=draw_dims(dims, p), name=name)
    return sum(one_hot(drawn, chances.shape[-1], "int32"), 0)


def choice(
    a: Length | Tensor,
    shape: Length | Sequence[Length] = (),
    replace: bool = True,
    p: TensorLike | None = None,
    *,
    dims: Iterable[Dim] | None = None,
    name: str | None = None,
) -> Tensor:
    """Entries of a along its first axis (of an integer a: of 0 to a - 1), equally likely or with probabilities p.

    Without `replace` no entry is drawn twice.

    >>> import polyrhythm as pr
    >>> sorted(pr.evaluate(pr.choice(3, 3, replace=False)).tolist())
    [0, 1, 2]
    >>> pr.evaluate(pr.choice(pr.constant([5.0, 7.0]), 2, p=pr.constant([0.0, 1.0])))
    array([7., 7.], dtype=float32)
    """
    table = a if isinstance(a, Tensor) else None
    count = a.type.shape[0] if isinstance(a, Tensor) else term_of(a)
    lengths = as_terms(shape)
    over = draw_dims(dims, *(part for part in (table, p) if part is not None))
    if not replace:
        drawn = _without_replacement(count, lengths, p, over, name)
    elif p is None:
        drawn = randint([index_of(n) for n in lengths], 0, index_of(count), dims=over, name=name)
    else:
        spread = broadcast_to(log(accumulated(as_float(p))), [index_of(n) for n in (*lengths, count)])
        drawn = categorical(spread, dims=over, name=name)
    return drawn if table is None else take(table, drawn, 0)


def _without_replacement(
    count: Term, shape: tuple[Term, ...], p: TensorLike | None, dims: tuple[Dim, ...], name: str | None
) -> Tensor:
    """The first of a random order; by weights, that in which exponential clocks of these speeds ring."""
    wanted = product(shape)
    if wanted.is_constant and count.is_constant and wanted.constant > count.constant:
        raise ShapeError(
            f"{wanted} of {count} entries without replacement", fix=f"ask for at most {count}, or use replace=True"
        )
    if p is None:
        order = argsort(random_bits((count,), dims, name))
    else:
        chances = accumulated(as_float(p))
        times = -log1p(-unit_interval((count,), chances.dtype, dims, name)) / chances
        order = argsort(where(chances > 0, times, math.inf))
    first = apply("slice", order, starts=(Term(0),), lengths=(wanted,), steps=(1,))
    return reshaped(first, shape)


def _log_gamma(
    shape: tuple[Term, ...], concentration: TensorLike, dtype: np.dtype, dims: tuple[Dim, ...], name: str | None
) -> Tensor:
    """The logarithm of a gamma number, by squeezing normal ones (Marsaglia and Tsang, 2000).

    One of concentration a is one of a + 1 times `u ** (1 / a)`, which keeps the acceptance high; logarithms keep it
    from underflowing where a is small.
    """
    wide = dtypes.accumulator(dtype)
    size = 2 if wide == FLOAT64 else 1
    words = iter(random_words(shape, (3 * CANDIDATES + 1) * size, dims, name))

    def unit() -> Tensor:
        """A number above 0 and at most 1."""
        return 1 - unit_of(tuple(next(words) for _ in range(size)), wide)

    a = apply("detach", cast_to(concentration, wide))
    d = a + (1 - 1 / 3)
    spread = 1 / sqrt(9 * d)
    found, refused = None, None
    for _ in range(CANDIDATES):
        z = sqrt(-2 * log(unit())) * cos((2 * math.pi) * unit())
        root = 1 + spread * z
        cube = where(root > 0, root * root * root, 1)
        height = log(cube)
        misses = (root <= 0) | (log(unit()) >= 0.5 * z * z + d - d * cube + d * height)
        found = height if found is None else where(refused, height, found)  # type: ignore[arg-type]
        refused = misses if refused is None else refused & misses
    assert found is not None
    return log(d) + found + log(unit()) / a
