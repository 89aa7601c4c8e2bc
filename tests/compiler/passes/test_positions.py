"""argmax and argmin over growing and shrinking ranges are running results: the positions that NumPy gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import polyrhythm as pr
from tests.compiler.passes.cases import after, rules

t, T = pr.dim("t")
b, B = pr.dim("b")
x = pr.input("x", (3,), (b, t))
s = pr.input("s", (), (t,))

RANGES: dict[str, Callable[[], pr.Tensor]] = {
    "past": lambda: x[b, 0 : t + 1],
    "future": lambda: x[b, t:T],
    "from the second": lambda: x[b, pr.min(t, 1) : t + 1],
    "products": lambda: x[b, t:T] * 2 - x[b, 0],
}


def given(steps: int) -> np.ndarray:
    # Few values, so that many are equal.
    return np.random.default_rng(steps).integers(-3, 3, size=(2, steps, 3)).astype("float32")


@pytest.mark.parametrize("name", RANGES)
def test_equal_to_the_oracle(name: str) -> None:
    outputs = {
        f"{which} {axis}": getattr(RANGES[name](), which)(axis) for which in ("argmax", "argmin") for axis in (0,)
    }
    outputs["of pairs"] = (RANGES[name]() > 0).argmax(0)
    programs = [pr.compile(outputs, backend=backend) for backend in ("jax", "numpy")]
    for steps in (1, 17, 30):
        want = pr.evaluate(outputs, {"x": given(steps)})
        for program in programs:
            found = program(x=given(steps))
            for output, value in want.items():
                np.testing.assert_array_equal(found[output], value, err_msg=f"{output} of {steps}")


@pytest.mark.parametrize(
    "values", [[1.0, np.nan, 2.0, np.nan], [np.nan, np.nan], [-np.inf, np.inf, np.inf], [0.0, -0.0]]
)
def test_values_that_are_not_finite(values: list[float]) -> None:
    ranges = {"past": s[0 : t + 1], "future": s[t:T]}
    outputs = {f"{way} {which}": getattr(r, which)(0) for way, r in ranges.items() for which in ("argmax", "argmin")}
    program = pr.compile(outputs)
    found = program(s=np.array(values, "float32"))
    for step in range(len(values)):
        for which in ("argmax", "argmin"):
            assert found[f"past {which}"][step] == getattr(np, which)(values[: step + 1])
            assert found[f"future {which}"][step] == getattr(np, which)(values[step:])


def test_the_work_is_linear() -> None:
    _, notes = after([s[0 : t + 1].argmax(0), s[t:T].argmin(0)], {"s": np.array([3, 1, 2], "float32")})
    assert {"running-argmax", "running-argmin"} <= set(rules(notes))
    program = pr.compile([x[b, 0 : t + 1].argmax(0)])
    assert program.memory.peak({T: 40_000, B: 1}) <= 2.1 * program.memory.peak({T: 20_000, B: 1})


def test_inside_the_recurrence_that_makes_the_values() -> None:
    h = pr.recurrent((), (t,))
    best = pr.take(h[0 : t + 1], h[0 : t + 1].argmax(0), 0)
    h[0] = s[0]
    h[t + 1] = 0.5 * best - h + s[t + 1]
    values = np.random.default_rng(0).normal(size=30).astype("float32")
    want = pr.evaluate(h, {"s": values})
    np.testing.assert_allclose(pr.compile(h)(s=values), want, rtol=1e-5, atol=1e-6)


def test_half_precision_and_whole_numbers() -> None:
    for dtype in ("float16", "bfloat16", "int32", "bool"):
        y = (s * 2).astype("int32").astype(dtype)
        outputs = [y[0 : t + 1].argmax(0), y[t:T].argmin(0)]
        values = np.random.default_rng(1).normal(size=33).astype("float32")
        for found, want in zip(pr.compile(outputs)(s=values), pr.evaluate(outputs, {"s": values}), strict=True):
            np.testing.assert_array_equal(found, want, err_msg=dtype)
