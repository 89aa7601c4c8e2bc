"""What many products read is computed once: no fusion reads more, the more layers there are."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyrhythm as pr
from tests.compiler.backends.hlo import optimised

BATCH, STEPS, WIDTH = 4, 32, 64


def most_read(layers: int) -> int:
    """The most values that one fusion reads, in the gradient of a residual stream of so many layers."""
    b, t = pr.dim("b")[0], pr.dim("t")[0]
    x = pr.input("x", (WIDTH,), (b, t))
    weights = [pr.input(f"w{n}", (WIDTH, WIDTH)) for n in range(layers)]
    for weight in weights:
        x = x + pr.tanh((x / pr.sqrt((x**2).mean() + 1)) @ weight) @ weight
    program = pr.compile(pr.grad((x**2).sum(), weights))
    random = np.random.default_rng(0)
    given = {f"w{n}": random.normal(size=(WIDTH, WIDTH)).astype("float32") / 8 for n in range(layers)}
    text = optimised(program, x=random.normal(size=(BATCH, STEPS, WIDTH)).astype("float32"), **given)
    return max(operands.count("%") for operands in re.findall(r" fusion\(([^)]*)\)", text))


@pytest.mark.slow
def test_a_residual_stream_is_not_computed_again_for_every_product() -> None:
    assert most_read(6) == most_read(3)
