"""Random expressions of infinities, NaN and zeros, with their gradients: every backend has them where the oracle does.

A compiler may take `x * mask` for a choice, `x - x` for zero or `x / x` for one; all of these show only where x is not
finite. Each expression is drawn by a number, so that a failure is repeated by that number alone:
`python -m tests.fuzz.not_finite FIRST LAST`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import polyrhythm as pr

BACKENDS = ("jax", "torch", "numpy")
SPECIAL = np.array([-np.inf, -2.0, -1.0, 0.0, 0.5, 1.0, 3.0, np.inf, np.nan])
"""Without -0: XLA takes `x + 0.0` for x, so that the sign of a zero is not what it is elsewhere."""

COUNT = len(SPECIAL)
Function = Callable[..., Any]

UNARY: tuple[Function, ...] = (
    *(pr.abs, pr.exp, pr.log, pr.sqrt, pr.tanh, pr.relu, pr.sigmoid, pr.softplus, pr.log1p, pr.sign, pr.square),
    *(lambda x: -x, lambda x: pr.clip(x, -1.5, 1.5), lambda x: 1.0 / x, lambda x: x**3, lambda x: x * 0.0),
    *(lambda x: x - x, lambda x: x / x, lambda x: 0.0 - x, lambda x: x + 0.0, lambda x: pr.leaky_relu(x, 0.5)),
    *(lambda x: pr.isfinite(x).cast(x.dtype), lambda x: (x > 0).cast(x.dtype), lambda x: (x == x).cast(x.dtype)),
)
BINARY: tuple[Function, ...] = (
    *(pr.maximum, pr.minimum, lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y),
    *(lambda x, y: x * (y > 0).cast(x.dtype), lambda x, y: (x < y).cast(x.dtype) * x),
    *(lambda x, y: pr.where(y > 0, x, 0.0), lambda x, y: pr.where(x < y, x, y), lambda x, y: x * (y == x)),
)
OVER: tuple[Function, ...] = (
    *(lambda x: x.max(0), lambda x: x.min(0), lambda x: x.sum(0), lambda x: x.mean(0), lambda x: x.prod(0)),
    *(lambda x: pr.softmax(x, 0), lambda x: pr.logsumexp(x, 0), lambda x: pr.cumsum(x, 0), lambda x: pr.norm(x)),
    *(lambda x: pr.cummax(x, 0), lambda x: pr.sort(x, 0), lambda x: x.max(0, keepdims=True) - x),
)


def drawn(number: int, dtype: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Some expressions of two arrays with their gradients, weighted by a third; and the arrays."""
    own = random.Random(number)
    t, T = pr.dim("t")
    over_time = own.random() < 0.5
    names = ("x", "y", "g")
    if over_time:
        x, y, g = (pr.input(name, (), (t,), dtype=dtype) for name in names)
    else:
        x, y, g = (pr.input(name, (COUNT,), dtype=dtype) for name in names)

    def made(depth: int) -> Any:
        kind = own.random()
        if depth == 0 or kind < 0.1:
            return own.choice([x, y])
        if kind < 0.55:
            return own.choice(UNARY)(made(depth - 1))
        if kind < 0.85:
            return own.choice(BINARY)(made(depth - 1), made(depth - 1))
        inner, function = made(depth - 1), own.choice(OVER)
        if not over_time:
            return function(inner) + own.choice([x, y])
        ends = own.choice([slice(0, T), slice(0, t + 1), slice(t, T)])
        return function(inner[{t: ends}]).sum() + own.choice([x, y])

    value = made(own.choice([1, 2, 2, 3]))
    whole = (g * value)[{t: slice(0, T)}].sum() if over_time else (g * value).sum()
    slopes = pr.grad(whole, [x, y])
    rng = np.random.default_rng(number)
    arrays = {name: rng.permutation(SPECIAL).astype(dtype) for name in names}
    if own.random() < 0.5:
        arrays["g"] = np.ones(COUNT, dtype)  # what is not finite is then made by the derivatives alone
    return {"value": value, "x": slopes[0], "y": slopes[1]}, arrays


def check(number: int, backends: tuple[str, ...] = BACKENDS, **how: Any) -> None:
    """One expression on some backends against the oracle, where rounding does not decide what comes out."""
    outputs, arrays = drawn(number, "float32")
    wide, wider = drawn(number, "float64")
    expected, exact = pr.evaluate(outputs, arrays), pr.evaluate(wide, wider)
    for backend in backends:
        found = pr.compile(outputs, backend=backend, **how)(**arrays)
        for name, value in expected.items():
            stable = np.isclose(value, exact[name], rtol=1e-4, atol=1e-4, equal_nan=True)
            have = np.asarray(found[name])
            right = np.isclose(have, value, rtol=1e-3, atol=1e-3, equal_nan=True)
            assert have.shape == value.shape, (number, backend, name)
            assert (right | ~stable).all(), (number, backend, name, have, value, arrays)


def main(first: int, last: int) -> None:
    """Expressions by number; goes on after a failure."""
    failed = 0
    for number in range(first, last):
        try:
            check(number)
        except Exception as error:
            failed += 1
            print(f"{number}: {type(error).__name__}: {error}", flush=True)
    print(f"{last - first} expressions, {failed} failed")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
