"""Random tensors. Their bits depend on the seed of the call, on the site and on the step, and on nothing else.

Every call is a site of its own, known by `name` or else by its place in the program. `dims` says along which dims
the draws differ; without it, along those of the arguments. Uniforms are exact multiples of a power of two,
the same on every backend, and discrete draws are decided on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT64
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.errors import DTypeError
from polyrhythm.language.functions.arithmetic import bitwise_and, less, where
from polyrhythm.language.functions.elementwise import exp, isfinite, log, sin, sqrt
from polyrhythm.language.functions.reductions import argmax, cumsum
from polyrhythm.language.functions.reductions import max as greatest
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
)
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor, apply

__all__ = ["bernoulli", "categorical", "normal", "permutation", "randint", "uniform"]

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
