"""Functions compiled: values and gradients on every backend against the oracle, static, dynamic and per step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import polyrhythm as pr

BACKENDS = ("numpy", "torch", "jax")
Function = Callable[..., Any]


def check_everywhere(
    functions: Mapping[str, Function],
    *arrays: np.ndarray,
    gradients: bool = False,
    tolerance: float = 2e-5,
    lengths: tuple[int, ...] = (),
    prefixes: bool = False,
) -> dict[str, Any]:
    """The functions of the arrays as inputs, and as ranges of steps, on every backend as in the oracle.

    With `gradients` those of the sum of squares too. `lengths` are further lengths of the first axis at which the
    dynamic program runs; `prefixes` runs the functions on `x[0:t+1]` at every step. The oracle's static values are
    returned.
    """
    x = [pr.input(f"x{k}", a.shape, (), a.dtype) for k, a in enumerate(arrays)]
    given = {f"x{k}": a for k, a in enumerate(arrays)}
    static = _compare(functions, x, [given], gradients, tolerance)
    if not all(a.ndim for a in arrays):
        return static
    t, T = pr.dim("t")
    steps = [pr.input(f"x{k}", a.shape[1:], (t,), a.dtype) for k, a in enumerate(arrays)]
    calls = [{name: np.resize(a, (n, *a.shape[1:])) for name, a in given.items()} for n in lengths]
    ranges = [s[0 : t + 1] if prefixes else s[0:T] for s in steps]
    _compare(functions, ranges, [given, *calls], gradients, tolerance, steps)
    return static


def _compare(
    functions: Mapping[str, Function],
    x: list[pr.Tensor],
    calls: list[dict[str, np.ndarray]],
    gradients: bool,
    tolerance: float,
    sources: list[pr.Tensor] | None = None,
) -> dict[str, Any]:
    outputs: dict[str, Any] = {name: function(*x) for name, function in functions.items()}
    if gradients:
        floats = [s for s in sources or x if s.dtype.kind in "fc"]
        made = {name: pr.grad(_loss(value), floats) for name, value in outputs.items()}
        outputs = {"values": outputs, "gradients": made}
    wanted = [pr.evaluate(outputs, call) for call in calls]
    for backend in BACKENDS:
        program = pr.compile(outputs, backend=backend)
        for call, expected in zip(calls, wanted, strict=True):
            got = program(**call)  # type: ignore[arg-type]
            _assert_same(got, expected, tolerance, backend)
    return wanted[0]["values"] if gradients else wanted[0]


def _loss(value: Any) -> pr.Tensor:
    parts = value if isinstance(value, tuple) else (value,)
    sizes = [pr.abs(part) for part in parts if part.dtype.kind in "fc"]
    return sum(((size * size).sum() for size in sizes), start=pr.constant(0.0, sizes[0].dtype))


def _assert_same(got: Any, expected: Any, tolerance: float, path: str) -> None:
    if isinstance(expected, dict):
        for key in expected:
            _assert_same(got[key], expected[key], tolerance, f"{path}.{key}")
    elif isinstance(expected, (list, tuple)):
        for number, (a, b) in enumerate(zip(got, expected, strict=True)):
            _assert_same(a, b, tolerance, f"{path}.{number}")
    else:
        have, want = np.asarray(got), np.asarray(expected)
        assert have.dtype == want.dtype, path
        assert have.shape == want.shape, path
        if want.dtype.kind in "fc":
            scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0)))
            np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance * scale, err_msg=path)
        else:
            np.testing.assert_array_equal(have, want, err_msg=path)
