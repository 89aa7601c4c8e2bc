"""Reads at fixed distances, all steps at once: slices of one array with margins, not padding at each element."""

from __future__ import annotations

import numpy as np
import pytest

import polyrhythm as pr

LENGTHS = (0, 1, 2, 3, 4, 5, 8, 9, 16, 17)


def near(before: int, after: int, spelling: str) -> tuple[pr.Tensor, pr.Bound]:
    t, T = pr.dim("t")
    u = pr.input("x", (3,), (t,)) * 2.0 + 1.0
    if spelling == "where":
        early = pr.where(t >= before, u[t - before], 5.0)
        late = pr.where(t + after < T, u[t + after], -1.0)
    elif spelling == "clamp":
        early, late = u[pr.max(0, t - before)], u[pr.min(T - 1, t + after)]
    else:
        return pr.window(u, t, before + 1).max(0) + u, T
    return early + 10.0 * late - u, T


@pytest.mark.parametrize("spelling", ["where", "clamp", "window"])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (3, 0), (0, 2), (2, 5)])
def test_values_beyond_the_ends_are_not_used(before: int, after: int, spelling: str) -> None:
    y, _ = near(before, after, spelling)
    program = pr.compile(y)
    for steps in LENGTHS:
        x = np.random.default_rng(steps).normal(size=(steps, 3)).astype("float32")
        np.testing.assert_allclose(program(x=x), pr.evaluate(y, {"x": x}), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spelling", ["where", "clamp", "window"])
def test_gradients(spelling: str) -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    u = pr.tanh(x)
    taps = {
        "where": lambda k: pr.where(t >= k, u[t - k], 0.0),
        "clamp": lambda k: u[pr.max(0, t - k)],
        "window": lambda k: pr.window(u, t, k + 1).sum(0),
    }[spelling]
    loss = pr.square(u + taps(1) * taps(3))[0:T].sum()
    wanted = {"loss": loss, "x": pr.grad(loss, x)}
    program = pr.compile(wanted)
    for steps in LENGTHS:
        given = np.random.default_rng(steps).normal(size=(steps, 3)).astype("float32")
        expected = pr.evaluate(wanted, {"x": given})
        for name, value in program(x=given).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-4)


def test_nothing_is_padded() -> None:
    y, T = near(3, 2, "where")
    text = pr.compile(y).lowered({T: 64}).text
    assert "stablehlo.pad" not in text
    assert "dynamic_update_slice" in text


def test_a_declared_maximum_is_not_a_size() -> None:
    """Ranges of a dim that is limited to many steps have the capacity of the steps that there are."""
    t, T = pr.dim("t", max=512)
    x = pr.input("x", (2,), (t,))
    y = pr.softmax(x[0 : t + 1] @ x, 0) @ x[0 : t + 1]
    program = pr.compile(y)
    assert "512" not in program.lowered({T: 8}).text
    for steps in (1, 3, 8, 9):
        given = np.random.default_rng(steps).normal(size=(steps, 2)).astype("float32")
        np.testing.assert_allclose(program(x=given), pr.evaluate(y, {"x": given}), rtol=1e-4, atol=1e-5)
