"""Programs that need more than a loop along one dim of all: combinations of dims, and dims of each member's own."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler import pipeline
from polyrhythm.compiler.passes import NAMES
from polyrhythm.compiler.schedule.scheduler import ScheduleError, schedule

BACKENDS = ("numpy", "torch", "jax")


def skewed() -> tuple[pr.Tensor, pr.Tensor, pr.Tensor]:
    """Only ranks such as 3i - 2t fall with both reads."""
    t, T = pr.dim("t")
    i, I = pr.dim("i")
    x = pr.input("x", (), (i, t))
    y = pr.recurrent((), (i, t))
    ahead = pr.where((i + 1 < I) & (t + 2 < T), y[i + 1, t + 2], 0.0)
    y[i, t] = x + 0.5 * ahead + 0.3 * pr.where((i > 0) & (t > 0), y[i - 1, t - 1], 0.0)
    return x, y, (y[0:I, 0:T] ** 2).sum()


def renamed() -> tuple[pr.Tensor, pr.Tensor, pr.Tensor]:
    """In the gradient the sums over all steps have a dim of their own."""
    t, T = pr.dim("t")
    i, I = pr.dim("i")
    x = pr.input("x", (), (i, t))
    y = pr.recurrent((), (i, t))
    y[0, t] = x[0, t]
    y[i + 1, t] = pr.tanh(y[i, T - 1 - t] + x[i + 1, t]) * y[i, 0:T].mean(0) + 0.5 * y[i, t // 2]
    return x, y, (y[0:I, 0:T] ** 2).sum()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("build", [skewed, renamed])
@pytest.mark.parametrize("shape", [(4, 6), (1, 1), (5, 2)])
def test_values_and_gradients(build: object, backend: str, shape: tuple[int, int]) -> None:
    x, y, loss = build()  # type: ignore[operator]
    wanted = [y, pr.grad(loss, x)]
    given = np.random.default_rng(0).random(shape, "float32") / 4
    found = pr.compile(wanted, backend=backend)(x=given)
    for have, want in zip(found, pr.evaluate(wanted, {"x": given}), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


def test_without_an_order_after_the_passes_the_checked_graph_is_compiled() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    y = pr.recurrent((), (t,))
    y[0] = x[0]
    y[t + 1] = y * 0.5 + x[t + 1]
    tried: list[tuple[object, ...]] = []

    def refusing(*arguments: object) -> object:
        tried.append(arguments)
        if len(tried) == 1:
            raise ScheduleError("no order", fix="none")
        return schedule(*arguments)  # type: ignore[arg-type]

    with patch.object(pipeline, "schedule", refusing):
        compiled = pipeline.compile_tensors([y])
    assert compiled.without == NAMES
    assert len(tried) == 2
