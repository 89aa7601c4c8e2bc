"""Blocks of a program through torch.compile give what the oracle gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr

t, T = pr.dim("t")


def attention() -> tuple[dict[str, pr.Tensor], dict[str, Any]]:
    """A recurrence, attention to its past, random numbers and a gradient."""
    x, w = pr.input("x", (3,), (t,)), pr.input("w", (3, 3))
    h = pr.recurrent((3,), (t,))
    h[0] = x[0]
    h[t + 1] = pr.tanh(h @ w + x[t + 1] + 0.1 * pr.normal((3,), dims=(t,)))
    weights = pr.einsum("d,sd->s", h, h[0 : t + 1]).softmax(0)
    mixed = pr.einsum("s,sd->d", weights, x[0 : t + 1])
    rng = np.random.default_rng(0)
    inputs = {"x": rng.normal(size=(5, 3)).astype("float32"), "w": rng.normal(size=(3, 3)).astype("float32")}
    return {"mixed": mixed, "slope": pr.grad((mixed * mixed).sum(0), w)}, inputs


def check(outputs: dict[str, pr.Tensor], inputs: dict[str, Any], compiler: str) -> None:
    program = pr.compile(outputs, backend=f"torch:{compiler}")
    expected = pr.evaluate(outputs, inputs)
    for name, value in program(**inputs).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5)


def test_a_recurrence() -> None:
    x = pr.input("x", (), (t,))
    y = pr.recurrent((), (t,))
    y[0] = x[0]
    y[t + 1] = 0.9 * y + 0.1 * x[t + 1]
    check({"y": y}, {"x": np.arange(6, dtype=np.float32)}, "eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_attention_random_numbers_and_a_gradient(compiler: str) -> None:
    check(*attention(), compiler)


def test_it_is_for_torch_alone() -> None:
    for backend, check_nan in (("numpy:inductor", False), ("torch:inductor", True)):
        with pytest.raises(pr.errors.UnsupportedError, match="torch backend"), pr.settings(check_nan=check_nan):
            pr.compile(pr.input("x"), backend=backend)
