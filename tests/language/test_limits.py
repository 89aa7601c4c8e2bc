"""What a declaration promises of bounds and sizes, proofs use and calls are held to; second dims over a bound."""

from __future__ import annotations

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import errors
from polyrhythm.compiler.front_end import completed
from polyrhythm.compiler.ir import text
from polyrhythm.compiler.trace import trace
from tests.compiler.ir import parse

BACKENDS = ("numpy", "torch", "jax")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_minimum_is_used_by_proofs_and_held_at_the_call(backend: str) -> None:
    t, T = pr.dim("t", min=2)
    x = pr.input("x", (), (t,))
    outputs = x[T - 1] - x[T - 2]
    graph = completed(trace([outputs]))
    assert graph.requirements == ()
    shown = text.show(graph)
    assert "bound T min 2" in shown
    assert text.show(parse.parse(shown)) == shown
    program = pr.compile(outputs, backend=backend)
    assert float(program(x=np.array([1.0, 5.0], "float32"))) == 4
    with pytest.raises(errors.BoundsError, match=r"T = 1 \(from axis 0 of 'x'\) is below its minimum 2"):
        program(x=np.ones(1, "float32"))
    with pytest.raises(errors.BoundsError, match="below its minimum 2"):
        pr.evaluate(outputs, {"x": [1.0]})


def test_a_size_has_a_minimum() -> None:
    P = pr.size("P", min=3)
    w = pr.input("w", (P,))
    assert pr.evaluate(w.axes[:-2], {"w": [1.0, 2.0, 3.0]}).tolist() == [1]
    with pytest.raises(errors.BoundsError, match=r"P = 2 .* is below its minimum 3"):
        pr.evaluate(w.axes[:-2], {"w": [1.0, 2.0]})


def test_a_ragged_length_has_a_minimum() -> None:
    b, _ = pr.dim("b")
    s, S = pr.dim("s", extent=pr.input("lengths", (), (b,), "int32"), min=1)
    x = pr.input("x", (), (b, s))
    rows = np.arange(6, dtype="float32").reshape(2, 3)
    assert pr.evaluate(x[b, S - 1], {"lengths": [3, 1], "x": rows}).tolist() == [2, 3]
    with pytest.raises(errors.LengthError, match="the length S is 0, below its minimum 1"):
        pr.evaluate(x[b, S - 1], {"lengths": [3, 0], "x": rows})


def test_an_early_end_promises_one_step_at_most() -> None:
    t, T = pr.dim("t", min=1)
    assert pr.evaluate(pr.value(T), bounds={T: 5}, until={t: pr.value(t) >= 2}) == 3
    t, T = pr.dim("t", min=2)
    with pytest.raises(errors.UntilError, match="at least 2 steps"):
        pr.evaluate(pr.value(T), bounds={T: 5}, until={t: pr.value(t) >= 2})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("fewest", "less"), [(1, 0), (0, 1), (2, 1)])
def test_the_limits_of_a_size_are_limits_of_its_maximum_too(fewest: int, less: int, backend: str) -> None:
    """With `fewest <= P <= T - less` there is a first step, which the loops need not ask for."""
    t, T = pr.dim("t")
    P = pr.size("P", min=fewest, max=T - less)
    x = pr.input("x", (), (t,))
    y, count = pr.recurrent((), (t,)), pr.recurrent((), (t,))
    count[0] = 0.0
    count[t + 1] = count + x
    y[t < P] = x
    y[(t >= P) & (t < 1)] = 1.0
    y[(t >= P) & (t >= 1)] = y[t - 1] + count
    program = pr.compile({"y": y, "count": count}, backend=backend)
    for length in range(fewest + less, 6):
        for given in range(fewest, length - less + 1):
            values, bounds = np.arange(1.0, 1.0 + length, dtype="float32"), {P: given, T: length}
            wanted = pr.evaluate({"y": y, "count": count}, {"x": values}, bounds=bounds)
            found = program(x=values, bounds=bounds)
            np.testing.assert_array_equal(found["y"], wanted["y"])
            np.testing.assert_array_equal(found["count"], wanted["count"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_dim_over_a_bound(backend: str) -> None:
    """All pairs of steps, with a gradient."""
    t, T = pr.dim("t")
    k, same = pr.dim("k", bound=T)
    assert str(same) == str(T)
    x = pr.input("x", (), (t,), "float64")
    pairs = (x - x[k]) ** 2
    assert pairs.dims == (t, k)
    loss = pairs[0:T, 0:T].sum()
    values = np.array([1.0, 3.0, 6.0])
    program = pr.compile({"pairs": pairs, "slope": pr.grad(loss, x)}, backend=backend)
    found = program(x=values)
    differences = values[:, None] - values[None, :]
    np.testing.assert_allclose(found["pairs"], differences**2)
    np.testing.assert_allclose(found["slope"], 4 * differences.sum(1))


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: pr.dim("t", min=-1), "min= is an integer that is not negative, not -1"),
        (lambda: pr.dim("t", min=True), "min= is an integer"),
        (lambda: pr.dim("t", min=4, max=3), "min=4 is above max=3"),
        (lambda: pr.size("P", min=1.5), "min= is an integer"),  # type: ignore[arg-type]
        (lambda: pr.dim("k", bound=pr.dim("t")[0]), "bound= takes the bound of another dim"),  # type: ignore[arg-type]
        (lambda: pr.dim("k", bound=pr.dim("t")[1], min=1), "has the limits of that bound"),
    ],
)
def test_declarations_that_say_nothing(declare: object, message: str) -> None:
    with pytest.raises(errors.DeclarationError, match=message):
        declare()  # type: ignore[operator]
