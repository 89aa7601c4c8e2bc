"""Random tensors of further distributions, made of uniform and normal ones (`random.py`).

Rejection is unrolled: a gamma number is the first accepted of a fixed number of candidates, so that every backend
draws the same and no loop depends on data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.dtypes import FLOAT64
from polyrhythm.compiler.ir.terms import Term, product
from polyrhythm.errors import ShapeError
from polyrhythm.language.functions.activations import sigmoid
from polyrhythm.language.functions.arithmetic import where
from polyrhythm.language.functions.elementwise import cos, exp, log, log1p, sqrt
from polyrhythm.language.functions.indexing import one_hot, take
from polyrhythm.language.functions.random import (
    categorical,
    draw_dims,
    float_dtype,
    randint,
    random_bits,
    random_words,
    unit_interval,
    unit_of,
)
from polyrhythm.language.functions.reductions import sum
from polyrhythm.language.functions.shapes import broadcast_to
from polyrhythm.language.functions.sorting import argsort
from polyrhythm.language.functions.support import (
    DTypeLike,
    Length,
    TensorLike,
    accumulated,
    as_float,
    as_terms,
    cast_to,
    reshaped,
)
from polyrhythm.language.index import Dim, index_of, term_of
from polyrhythm.language.tensor import Tensor, apply

__all__ = ["beta", "choice", "exponential", "gamma", "multinomial"]

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
