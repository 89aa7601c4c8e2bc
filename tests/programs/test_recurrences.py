"""Recurrences over several dims: values and gradients on every backend against the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from tests.programs.recurrences import RECURRENCES, Made

SIZES = ((5, 3, 4, 2), (1, 1, 1, 1))
"""The bounds of each run, in the order of the dims of the inputs and of the table."""

QUICK = 5
"""One in so many is compiled by XLA in the quick lane too."""

CASES = [
    pytest.param(build, backend, id=f"{build.__name__}-{backend}", marks=[pytest.mark.slow] if slow else [])
    for number, build in enumerate(RECURRENCES)
    for backend in ("numpy", "torch", "jax")
    if [slow := backend == "jax" and number % QUICK > 0]
]


@pytest.mark.parametrize(("build", "backend"), CASES)
def test_values_and_gradients(build: Callable[[], Made], backend: str) -> None:
    table, leaves = build()
    wanted = [table, *pr.grad((table * table).sum(), leaves)]
    program = pr.compile(wanted, backend=backend)
    random = np.random.default_rng(0)
    names = dict.fromkeys(str(dim.symbol.bound) for tensor in (*leaves, table) for dim in tensor.dims)
    for sizes in SIZES:
        bounds = dict(zip(names, sizes, strict=False))
        inputs: dict[str, Any] = {}
        for leaf in leaves:
            shape = (*(bounds[str(dim.symbol.bound)] for dim in leaf.dims), *leaf.shape)
            inputs[str(leaf.name)] = random.uniform(0.1, 0.7, shape).astype("float32")
        found, expected = program(bounds=bounds, **inputs), pr.evaluate(wanted, inputs, bounds=bounds)
        for have, want in zip(found, expected, strict=True):
            scale = np.max(np.abs(want), initial=1.0)
            np.testing.assert_allclose(have, want, rtol=2e-4, atol=2e-5 * scale)
