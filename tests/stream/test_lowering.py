"""The lowering: random programs as streams equal the oracle, and every stream has the shape inferred for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyrhythm as pr
from polyrhythm.stream import (
    AccessNotStreamable,
    DirectiveMismatch,
    Lowered,
    OperationNotStreamable,
    lower,
    tile,
)
from tests.stream.running import DEEP, assert_consistent

REFUSALS = (AccessNotStreamable, DirectiveMismatch, OperationNotStreamable)
t, T = pr.dim("t")
i, I = pr.dim("i")
x = pr.input("x", (), (t,))
v = pr.input("v", (3,), (t,))
g = pr.input("g", (), (i, t))
m = pr.input("m", (2, 3))
n = pr.input("n", (), (t,), "int32")


def _inputs(steps: int, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    shapes = {"x": (steps,), "v": (steps, 3), "g": (rows, steps), "m": (2, 3)}
    arrays = {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {**arrays, "n": generator.integers(-1, 4, steps).astype(np.int32)}


def _used(outputs: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inputs that a program has; others would be refused."""
    from polyrhythm.compiler.trace import trace
    from polyrhythm.language.trees import flattened

    return {name: inputs[name] for name in trace(flattened(outputs)[0]).inputs}


def _along(a: pr.Tensor, entry: Any) -> pr.Tensor:
    """A tensor indexed along t, wherever that dim stands."""
    return a[{t: entry}]


def _has(a: pr.Tensor, dim: pr.Dim) -> bool:
    return any(d is dim or str(d) == str(dim) for d in a.dims)


def _recurrence(a: pr.Tensor) -> pr.Tensor:
    y = pr.recurrent(a.shape, a.dims)
    y[{t: 0}] = _along(a, 0)
    y[{t: t + 1}] = 0.5 * y + _along(a, t + 1)
    return y


def _own_prefix(a: pr.Tensor) -> pr.Tensor:
    z = pr.recurrent(a.shape, a.dims)
    z[{t: t}] = a + 0.1 * _along(z, slice(0, t)).sum(0)
    return z


def _coupled(a: pr.Tensor) -> pr.Tensor:
    y, z = pr.recurrent(a.shape, a.dims), pr.recurrent(a.shape, a.dims)
    y[{t: 0}], z[{t: 0}] = 1.0, _along(a, 0)
    y[{t: t + 1}] = 0.5 * z - 0.2 * y
    z[{t: t + 1}] = 0.3 * _along(y, t + 1) + _along(a, t + 1)
    return z - y


ALONG: dict[str, Callable[[pr.Tensor], pr.Tensor]] = {
    "shift": lambda a: pr.where(t >= 2, _along(a, t - 2), 0.25),
    "future": lambda a: pr.where(t < T - 1, _along(a, t + 1), 0.5),
    "reversed": lambda a: _along(a, T - 1 - t),
    "last": lambda a: _along(a, T - 1),
    "even": lambda a: _along(a, t - t % 2),
    "sum": lambda a: _along(a, slice(0, T)).sum(0),
    "mean": lambda a: _along(a, slice(0, T)).mean(0),
    "prefix": lambda a: _along(a, slice(0, t + 1)).max(0),
    "before": lambda a: _along(a, slice(0, t)).sum(0),
    "suffix": lambda a: _along(a, slice(t, T)).sum(0),
    "window": lambda a: _along(a, slice(pr.max(0, t - 2), t + 1)).sum(0),
    "softmax": lambda a: (pr.softmax(_along(a, slice(0, t + 1)), 0) * _along(a, slice(0, t + 1))).sum(0),
    "total softmax": lambda a: (pr.exp(a - _along(a, slice(0, T)).max(0)))[{t: slice(0, T)}].sum(0),
    "running": lambda a: pr.cumsum(_along(a, slice(0, T)), 0).max(0),
    "sorted": lambda a: pr.sort(_along(a, slice(0, T)), 0).sum(0),
    "recurrence": _recurrence,
    "own prefix": _own_prefix,
    "coupled": _coupled,
}
ANYWHERE: dict[str, Callable[[pr.Tensor], pr.Tensor]] = {
    "silu": pr.silu,
    "clip": lambda a: pr.maximum(a, -0.5),
    "counted": lambda a: a + pr.value(t) * 0.1,
    "masked": lambda a: pr.where(n > 1, a, 0.0),
    "product": lambda a: pr.einsum("d,sd->s", a, m) if a.shape == (3,) else a * 2,
    "rows": lambda a: a.sum(0) if len(a.shape) == 1 else a,
    "part": lambda a: a.axes[1:2] if len(a.shape) == 1 and a.shape[0] != 1 else a,
    "gathered": lambda a: pr.take(m, n, 0).sum(0) + a,
    "rows of i": lambda a: a[{i: slice(0, I)}].sum(0) if _has(a, i) else a * g,
}
MAKERS = ALONG | ANYWHERE


def _next(kind: str, a: pr.Tensor) -> pr.Tensor:
    if kind in ALONG and not _has(a, t):
        a = a + x
    return MAKERS[kind](a)


def _check(outputs: Any, inputs: dict[str, np.ndarray], schedule: Any = ()) -> Lowered:
    """Lower a program, run it, and compare with the oracle; then look at every stream and at the metrics."""
    given_inputs = _used(outputs, inputs)
    bounds = {T: len(inputs["x"]), I: len(inputs["g"])}
    lowered = lower(outputs, schedule, given_inputs, bounds)
    expected = pr.evaluate(outputs, given_inputs, bounds)
    np.testing.assert_allclose(lowered(DEEP), expected, rtol=1e-4, atol=1e-5)
    assert_consistent(lowered.program, DEEP)
    return lowered


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("start", ["x", "v", "g"])
def test_every_kind_of_access_and_operation(kind: str, start: str) -> None:
    _check(_next(kind, {"x": x, "v": v, "g": g}[start]), _inputs(5, 3))


@given(
    st.sampled_from(["x", "v", "g"]),
    st.lists(st.sampled_from(sorted(MAKERS)), min_size=2, max_size=4),
    st.integers(1, 4),
    st.integers(1, 3),
)
@settings(max_examples=40)
def test_random_programs_equal_the_oracle(start: str, kinds: list[str], steps: int, rows: int) -> None:
    tensor = {"x": x, "v": v, "g": g}[start]
    for kind in kinds:
        tensor = _next(kind, tensor)
    _check(tensor, _inputs(steps, rows, seed=steps))


@given(
    st.lists(st.sampled_from(["silu", "clip", "product", "rows", "sum", "mean", "counted", "masked"]), max_size=3),
    st.sampled_from([1, 2, 3, 6]),
)
@settings(max_examples=25)
def test_tiles_change_nothing_but_the_schedule(kinds: list[str], size: int) -> None:
    """A tiled dim gives the same values, or is refused by name."""
    tensor: pr.Tensor = v
    for kind in kinds:
        tensor = _next(kind, tensor)
    inputs = _inputs(6, 2)
    try:
        _check(tensor, inputs, [tile(t, size)])
    except REFUSALS:
        assert "counted" in kinds or "masked" in kinds or "sum" in kinds or "mean" in kinds


def test_streams_need_neither_jax_nor_torch() -> None:
    code = """
import sys
for name in ("jax", "jaxlib", "torch"):
    sys.modules[name] = None
import numpy as np, polyrhythm as pr
from polyrhythm.stream import lower, tile
t, T = pr.dim("t")
x = pr.input("x", (2,), (t,))
print(lower((2 * x)[0:T].sum(0), [tile(t, 2)], {"x": np.ones((4, 2), "float32")})().tolist())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[8.0, 8.0]\n"
