"""Ranges that follow the step, on NumPy and torch: many iterations at once, equal to the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends.python import batched as python_batched
from tests.memory_programs import Sized
from tests.test_memory_plan import OBJECTS, allocated, planned

BACKENDS = ("numpy", "torch")
WIDTH = 3
STEPS = (0, 1, 2, 7)
Made = Callable[[pr.Tensor, pr.Tensor, pr.Dim, pr.Bound], pr.Tensor]


def inputs(steps: int) -> dict[str, np.ndarray]:
    """Numbers for x and y."""
    random = np.random.default_rng(steps)
    return {name: random.normal(size=(steps, WIDTH)) * 2 for name in "xy"}


def same(outputs: Any, given: dict[str, Any], bounds: dict[Any, int], backend: str, close: float = 1e-9) -> None:
    """A compiled program against the oracle."""
    program = pr.compile(outputs, backend=backend)
    known = program.compiled.graph.inputs
    given = {name: array for name, array in given.items() if name in known}
    wanted = jax.tree.leaves(pr.evaluate(outputs, given, bounds))
    found = jax.tree.leaves(program(bounds=bounds, **given))
    for have, want in zip(found, wanted, strict=True):
        assert np.asarray(have).dtype == want.dtype
        np.testing.assert_allclose(np.asarray(have), want, rtol=close, atol=close)


RANGES: dict[str, Callable[[pr.Tensor, pr.Dim, pr.Bound], pr.Tensor]] = {
    "grows": lambda x, t, T: x[0 : t + 1],
    "grows from none": lambda x, t, T: x[0:t],
    "shrinks": lambda x, t, T: x[t:T],
    "shrinks to none": lambda x, t, T: x[t + 1 : T],
    "slides": lambda x, t, T: x[pr.max(0, t - 2) : t + 1],
    "slides ahead": lambda x, t, T: x[t : pr.min(T, t + 3)],
    "slides both ways": lambda x, t, T: x[pr.max(0, t - 1) : pr.min(T, t + 2)],
    "window": lambda x, t, T: pr.window(x, t, 3),
    "grows by two": lambda x, t, T: x[0 : t + 1 : 2],
    "backwards": lambda x, t, T: x[t::-1],
    "half": lambda x, t, T: x[0 : t // 2 + 1],
    "from the half": lambda x, t, T: x[t // 2 : t + 1],
    "all": lambda x, t, T: x[0:T],
}

REDUCED: dict[str, Callable[[pr.Tensor, pr.Tensor, pr.Tensor], pr.Tensor]] = {
    # Not sums of single elements, which are running results and no ranges any more.
    "sum": lambda r, s, y: pr.tanh(r * y).sum(0),
    "mean": lambda r, s, y: pr.exp(0.1 * r - y).sum(0) / (1 + pr.square(y)),
    "max": lambda r, s, y: (r * y).max(0),
    "min": lambda r, s, y: (r - y * s).min(0),
    "prod": lambda r, s, y: (1 + 0.3 * pr.tanh(r * y)).prod(0),
    "softmax": lambda r, s, y: pr.softmax(r @ y, 0) @ s,
    "softmax by columns": lambda r, s, y: (pr.softmax(r * y, 0) * s).sum(0),
    "logsumexp": lambda r, s, y: pr.log(pr.exp(r * y).sum(0) + 1.0),
    "both": lambda r, s, y: pr.einsum("sd,se->de", pr.tanh(r * y), s * y).sum(1),
    "any": lambda r, s, y: pr.where((r > y).any(0), 1.0, y),
    "all": lambda r, s, y: pr.where((r * s > y).all(0), 1.0, y),
    "masked": lambda r, s, y: pr.where(r > y, r * s, y).sum(0),
}


def _program(kind: str, reduced: str) -> tuple[pr.Tensor, pr.Dim, pr.Bound, pr.Tensor, pr.Tensor]:
    t, T = pr.dim("t")
    x, y = (pr.input(name, (WIDTH,), (t,), "float64") for name in "xy")
    z = REDUCED[reduced](RANGES[kind](x, t, T), RANGES[kind](pr.tanh(x) * y, t, T), y)
    return z, t, T, x, y


@pytest.mark.parametrize("reduced", REDUCED)
@pytest.mark.parametrize("kind", RANGES)
def test_ranges(kind: str, reduced: str) -> None:
    z, _, T, *_ = _program(kind, reduced)
    for n, steps in enumerate(STEPS):
        same(z, inputs(steps), {T: steps}, BACKENDS[(n + len(kind) + len(reduced)) % 2])


@pytest.mark.parametrize("reduced", ["sum", "max", "softmax", "both", "masked"])
@pytest.mark.parametrize("kind", ["grows", "grows from none", "shrinks", "shrinks to none", "slides", "window"])
def test_gradients_of_ranges(kind: str, reduced: str) -> None:
    z, _, T, x, y = _program(kind, reduced)
    gradients = pr.grad(pr.square(z)[0:T].sum((0, 1)), [x, y])
    for n, steps in enumerate((0, 1, 6)):
        same(gradients, inputs(steps), {T: steps}, BACKENDS[(n + len(reduced)) % 2], 1e-7)


def _far(kind: str) -> tuple[pr.Tensor, pr.Dim, pr.Bound]:
    """A weighted sum of a range, of which other steps have numbers that are not finite."""
    t, T = pr.dim("t")
    x, y = (pr.input(name, (WIDTH,), (t,), "float64") for name in "xy")
    return pr.softmax(RANGES[kind](x, t, T) @ y, 0) @ RANGES[kind](pr.tanh(y) * x, t, T), t, T


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["grows", "shrinks", "slides", "slides both ways", "all"])
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_what_is_not_read_counts_for_nothing(kind: str, number: float, backend: str) -> None:
    z, _, T = _far(kind)
    given = inputs(8)
    given["x"][4, 1] = number
    same(z, given, {T: 8}, backend)
    given["y"][2] = number
    same(z, given, {T: 8}, backend)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "int64", "uint8", "int8"])
@pytest.mark.parametrize("kind", ["grows", "shrinks", "slides"])
def test_dtypes(kind: str, dtype: str) -> None:
    t, T = pr.dim("t")
    x, y = (pr.input(name, (WIDTH,), (t,), dtype) for name in "xy")
    r = RANGES[kind](x, t, T)
    outputs = [(r * y).max(0), (r - y).min(0), (r * y).argmax(0), pr.where((r > y).any(0), x, y), (r @ y).max(0)]
    if "int" in dtype:
        outputs += [(r * y).sum(0), (r // pr.maximum(y, 1)).sum(0), (r // y.unsqueeze(0)).max(0)]
    random = np.random.default_rng(3)
    element = jax.numpy.dtype(dtype)
    given = {name: random.integers(0, 5, (6, WIDTH)).astype(element) for name in "xy"}
    for backend in BACKENDS:
        same(outputs, given, {T: 6}, backend, 1e-2 if dtype in ("float16", "bfloat16") else 1e-5)


def nested(kind: str) -> tuple[Any, dict[str, Any], dict[Any, int]]:
    """Loops in loops: a batch that is a dim, and attention or a filter along each row; pairs of two dims."""
    b, B = pr.dim("b")
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (b, t), "float64")
    w = pr.input("w", (WIDTH, WIDTH), (), "float64")
    random = np.random.default_rng(1)
    given = {"x": random.normal(size=(3, 5, WIDTH)), "w": random.normal(size=(WIDTH, WIDTH))}
    bounds = {B: 3, T: 5}
    q, k, v = x @ w, pr.tanh(x @ w.T), x * 0.5
    if kind == "attention":
        z: Any = pr.softmax(k[b, 0 : t + 1] @ q, 0) @ v[b, 0 : t + 1]
    elif kind == "gradient":
        y = pr.softmax(k[b, 0 : t + 1] @ q, 0) @ v[b, 0 : t + 1]
        z = pr.grad(pr.square(y)[0:B, 0:T].sum((0, 1, 2)), [x, w])
    elif kind == "two layers":
        y = pr.softmax(k[b, 0 : t + 1] @ q, 0) @ v[b, 0 : t + 1] + x
        k = pr.tanh(y @ w)
        z = pr.softmax(k[b, pr.max(0, t - 2) : t + 1] @ y, 0) @ k[b, pr.max(0, t - 2) : t + 1]
    elif kind == "recurrence":
        h = pr.recurrent((WIDTH,), (b, t), "float64")
        h[b, 0] = x[b, 0]
        h[b, t + 1] = pr.tanh(h @ w + x[b, t + 1])
        z = [h, h[b, 0:T].sum(0)]
    elif kind == "rows and columns":
        z = [(x[0 : b + 1, t] * x).max(0), (x[b:B, t] * x).sum(0), pr.softmax((x * x[b, t:T]).sum(1), 0) @ x[b, t:T]]
    else:
        z = [
            x[b, T - 1 - t] * 2,
            x[b, t // 2] + x,
            pr.where(t > 0, x[b, t - 1], 0.0) + pr.where(b > 0, x[b - 1, t], 1.0),
        ]
    return z, given, bounds


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "kind", ["attention", "gradient", "two layers", "recurrence", "rows and columns", "rows made apart", "moved"]
)
def test_loops_in_loops(kind: str, backend: str) -> None:
    z, given, bounds = nested(kind)
    same(z, given, bounds, backend, 1e-8)
    for none in range(2):
        shape = tuple(0 if number == none else n for number, n in enumerate(bounds.values()))
        same(z, {**given, "x": np.zeros((*shape, WIDTH))}, dict(zip(bounds, shape, strict=True)), backend)


@pytest.mark.parametrize("elements", [1, 40, 200])
@pytest.mark.parametrize("kind", ["attention", "gradient", "two layers", "rows and columns", "moved"])
def test_few_iterations_at_once(kind: str, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of any size, and a last one that is smaller."""
    monkeypatch.setattr(python_batched, "ELEMENTS", elements)
    z, given, bounds = nested(kind)
    for backend in BACKENDS:
        same(z, given, bounds, backend, 1e-8)


@pytest.mark.parametrize("kind", ["grows", "shrinks", "slides", "window"])
@pytest.mark.parametrize("gradient", [False, True])
def test_the_plan_counts_them(kind: str, gradient: bool) -> None:
    """By NumPy's own account, at sizes where values of many iterations are most of what there is."""
    t, T = pr.dim("t")
    x = pr.input("x", (16,), (t,))
    z = pr.softmax(RANGES[kind](x, t, T) @ x, 0) @ RANGES[kind](pr.tanh(x), t, T)
    outputs = pr.grad(pr.square(z)[0:T].sum((0, 1)), x) if gradient else z
    program, steps = pr.compile(outputs, backend="numpy"), {"T": 1500}
    given = {"x": np.random.default_rng(0).normal(size=(1500, 16)).astype("float32")}
    found = allocated(program, Sized({}, given, steps))
    assert found - OBJECTS <= planned(program, steps) <= 1.1 * found + 1e6


def test_the_plan_counts_loops_in_loops() -> None:
    z, _, _ = nested("gradient")
    program, steps = pr.compile(z, backend="numpy"), {"B": 9, "T": 130}
    random = np.random.default_rng(0)
    given = {"x": random.normal(size=(9, 130, WIDTH)), "w": random.normal(size=(WIDTH, WIDTH))}
    found = allocated(program, Sized({}, given, steps))
    assert found - OBJECTS <= planned(program, steps) <= 1.1 * found + 1e6
