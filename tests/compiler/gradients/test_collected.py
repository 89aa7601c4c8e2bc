"""Gradients that collect from later losses: refused with the line of the gradient, the way, and `pr.detach`."""

from __future__ import annotations

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import optim
from polyrhythm.errors import CycleError, PolyrhythmError, ProgressError


def q_learning(detach: bool, soft: bool = False) -> pr.Tensor:
    i, I = pr.dim("i")
    values, target = pr.recurrent((3,), ((i, I + 1),)), pr.recurrent((3,), ((i, I + 1),))
    state, reward = pr.input("state", (3,), (i,)), pr.input("reward", (), (i,))
    goal = reward + 0.9 * (target * state).sum()
    loss = ((values * state).sum() - (pr.detach(goal) if detach else goal)) ** 2
    values[0], target[0] = pr.zeros((3,)), pr.zeros((3,))
    values[i + 1] = values - 0.1 * pr.grad(loss, values)
    target[i + 1] = 0.9 * target + 0.1 * values if soft else pr.where(i % 5 == 0, values, target)
    return values[I]


def teacher(detach: bool) -> pr.Tensor:
    i, I = pr.dim("i")
    weights, mean = optim.over(i, pr.zeros((3,))), pr.recurrent((3,), ((i, I + 1),))
    state, reward = pr.input("state", (3,), (i,)), pr.input("reward", (), (i,))
    known = (mean * state).sum()
    loss = ((weights * state).sum() - (pr.detach(known) if detach else known) - reward) ** 2
    mean[0], mean[i + 1] = pr.zeros((3,)), 0.9 * mean + 0.1 * weights
    optim.adam(i, weights, pr.grad(loss, weights))
    return weights[I]


GIVEN = {"state": np.ones((7, 3), "float32"), "reward": np.ones(7, "float32")}


@pytest.mark.parametrize("soft", [False, True])
def test_a_target_network(soft: bool) -> None:
    with pytest.raises((CycleError, ProgressError)) as caught:
        pr.evaluate(q_learning(detach=False, soft=soft), GIVEN)
    _check(caught.value, "values", "target", "pr.grad(loss, values)")
    assert np.isfinite(pr.evaluate(q_learning(detach=True, soft=soft), GIVEN)).all()


def test_an_averaged_teacher() -> None:
    with pytest.raises((CycleError, ProgressError)) as caught:
        pr.compile(teacher(detach=False), backend="numpy")
    _check(caught.value, "weights", "mean", "pr.grad(loss, weights)")
    program = pr.compile(teacher(detach=True), backend="numpy")
    assert np.isfinite(program(state=GIVEN["state"], reward=GIVEN["reward"])).all()


def _check(error: PolyrhythmError, leaf: str, through: str, line: str) -> None:
    assert error.what.startswith(f"the gradient by {leaf} collects from the losses of later steps")
    assert f"through {through}" in error.what
    assert line in error.at.text
    assert any("loss =" in source.text for _, source in error.also)
    assert len({source for _, source in error.also}) == len(error.also)
    assert f"pr.detach({through})" in error.fix


def test_outer_products_of_ranges_and_second_derivatives() -> None:
    """Suffixes have the length max(0, T - t), which is T - t where they are read."""
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    given = np.arange(1.0, 5, dtype="float32")
    for piece in (x[t:T], x[0 : t + 1]):
        total = pr.tril(pr.outer(piece, piece)).sum()
        second = pr.grad(pr.grad(total, x).sum(), x)
        expected = pr.evaluate(second, {"x": given})
        for backend in ("numpy", "torch", "jax"):
            np.testing.assert_allclose(pr.compile(second, backend=backend)(x=given), expected, rtol=1e-5)
    # By hand: sum over t of sum_{i >= j in piece} x_i x_j has the second derivatives 2 on and 1 off the diagonal.
    counts = np.array([[min(i, j) + 1 for j in range(4)] for i in range(4)])
    whole = pr.evaluate(pr.grad(pr.grad(pr.tril(pr.outer(x[t:T], x[t:T])).sum(), x).sum(), x), {"x": given})
    np.testing.assert_allclose(whole, (counts * (1 + np.eye(4))).sum(1))
