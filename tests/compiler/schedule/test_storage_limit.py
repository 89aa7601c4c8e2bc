"""Tensors whose live ranges take too long to compare are stored whole, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.schedule import storage

a, A = pr.dim("a")
b, B = pr.dim("b")
c, C = pr.dim("c")
d, D = pr.dim("d")


def entangled() -> tuple[pr.Tensor, ...]:
    """Three recurrences over four dims that read each other at clamped steps."""
    tensors = [pr.recurrent((), (a, b, c, d)) for _ in range(3)]
    for k, y in enumerate(tensors):
        z = tensors[(k + 1) % 3]
        y[0, b, c, d] = 1.0 + k
        y[a + 1, b, c, d] = (
            y[a, pr.max(b - 1, 0), pr.min(c + 1, C - 1), pr.max(d - 2, 0)] * 0.3
            + z[pr.max(a - 1 - k, 0), pr.min(b + 2 + k, B - 1), pr.max(c - 1, 0), d] * 0.2
            + z[a, pr.min(b + 1, B - 1), c, pr.min(d + 1, D - 1)] * 0.1
        )
    return tuple(y[A - 1, 0:B, 0:C, 0:D].sum() for y in tensors)


@pytest.mark.parametrize(("operations", "whole"), [(20_000_000, False), (10_000, True)])
def test_a_limit_to_the_work_costs_memory_only(monkeypatch: pytest.MonkeyPatch, operations: int, whole: bool) -> None:
    monkeypatch.setattr(storage, "OPERATIONS", operations)
    program = pr.compile(entangled(), backend="numpy")
    sizes = {A: 4, B: 3, C: 2, D: 3}
    for have, want in zip(program(bounds=sizes), pr.evaluate(entangled(), bounds=sizes), strict=True):
        np.testing.assert_allclose(have, want, 1e-5)
    assert ("take too long to compare" in program.explain(level=2)) == whole
