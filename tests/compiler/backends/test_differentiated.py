"""What JAX makes of a compiled program when it differentiates it: the gradient that `pr.grad` gives."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest

import polyrhythm as pr

t, T = pr.dim("t")
b, B = pr.dim("b")


def recurrence(x: pr.Tensor) -> pr.Tensor:
    h = pr.recurrent((3,), (b, t))
    h[b, 0] = x[b, 0]
    h[b, t + 1] = pr.tanh(h) + x[b, t + 1]
    return h[0:B, T - 1].sum()


def attention(x: pr.Tensor) -> pr.Tensor:
    weights = pr.softmax(x[b, 0 : t + 1] @ x)
    return (weights @ x[b, 0 : t + 1])[0:B, 0:T].sum()


def greatest(x: pr.Tensor) -> pr.Tensor:
    return pr.window(x, t, 3).max(0)[0:B, 0:T].sum() + x[0:B, 0:T].min()


@pytest.mark.parametrize("made", [recurrence, attention, greatest])
def test_the_gradient_of_jax_is_ours(made: Callable[[pr.Tensor], pr.Tensor]) -> None:
    x = pr.input("x", (3,), (b, t))
    loss = made(x)
    program = pr.compile(loss)
    given = np.random.default_rng(0).normal(size=(2, 6, 3)).astype("float32")
    found = jax.grad(lambda x: program(x=x))(given)
    np.testing.assert_allclose(found, pr.evaluate(pr.grad(loss, x), {"x": given}), rtol=1e-4, atol=1e-5)
