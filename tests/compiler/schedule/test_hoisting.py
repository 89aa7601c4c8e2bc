"""Contractions around a recurrence leave its loop, before or after it, where that pays and takes no new room."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import rl
from polyrhythm.compiler.loops.ir import For, blocks_of, walk


def network(rows: int, width: int, source: str = "input") -> tuple[pr.Tensor, dict[str, np.ndarray]]:
    """`h[t + 1] = tanh(x @ w + h @ u)` on an input, or on another recurrence."""
    t, T = pr.dim("t")
    x = pr.input("x", (rows, width), (t,))
    w, u = pr.input("w", (width, width)), pr.input("u", (width, width))
    given = x
    if source == "recurrence":
        given = pr.recurrent((rows, width), (t,))
        given[0] = x[0]
        given[t + 1] = pr.tanh(given + x[t + 1])
    h = pr.recurrent((rows, width), ((t, T + 1),))
    h[0] = pr.zeros((rows, width))
    h[t + 1] = pr.tanh(given @ w + h @ u)
    random = np.random.default_rng(0)
    arrays = {"x": (5, rows, width), "w": (width, width), "u": (width, width)}
    return h[T], {name: (0.1 * random.normal(size=shape)).astype(np.float32) for name, shape in arrays.items()}


def parallel(outputs: Any, without: tuple[str, ...] = (), **options: Any) -> int:
    """How many contractions with matrices are in loops whose iterations are independent."""
    with pr.settings(without=without):
        loops = pr.compile(outputs, backend="numpy", **options).compiled.loops
    inside = (b for item in walk(loops.body) if isinstance(item, For) and item.parallel for b in blocks_of(item.body))
    return len({compute.result for block in inside for compute in block.body if compute.op == "einsum"})


def test_a_product_with_the_input_runs_before_the_recurrence() -> None:
    outputs, inputs = network(1, 256)
    assert parallel(outputs) == 1
    assert parallel(outputs, without=("hoist",)) == 0
    assert "hoist: contraction at tests/compiler/schedule/test_hoisting.py" in pr.compile(
        outputs, backend="numpy"
    ).explain(level=2)
    want = pr.evaluate(outputs, inputs)
    for backend in ("numpy", "torch", "jax"):
        found = pr.compile(outputs, backend=backend)(**dict[str, Any](inputs))
        np.testing.assert_allclose(np.asarray(found), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "width", "source"), [(128, 256, "input"), (1, 64, "input"), (1, 256, "recurrence")], ids=str
)
def test_it_stays_where_that_does_not_pay(rows: int, width: int, source: str) -> None:
    """Many rows are as fast alone; small matrices are near; what is made step by step is not kept."""
    assert parallel(network(rows, width, source)[0]) == 0


@pytest.mark.parametrize(("made", "leaves"), [(256, 1), (1024, 0)])
def test_it_takes_no_more_room_than_what_is_kept_anyway(made: int, leaves: int) -> None:
    """Eight rows of 256 numbers are given at each step."""
    t, T = pr.dim("t")
    x, w = pr.input("x", (8, 256), (t,)), pr.input("w", (256, made))
    h = pr.recurrent((8, made), ((t, T + 1),))
    h[0] = pr.zeros((8, made))
    h[t + 1] = pr.tanh(x @ w + h)
    assert parallel(h[T]) == leaves


@pytest.mark.parametrize(("made", "leaves"), [(512, 1), (256, 0)])
def test_a_large_matrix_for_few_numbers_is_not_read_at_every_step(made: int, leaves: int) -> None:
    """The sum over 128 is short, but the matrix has 65,536 numbers, or half of that."""
    t, T = pr.dim("t")
    x, w = pr.input("x", (1, 128), (t,)), pr.input("w", (128, made))
    h = pr.recurrent((1, made), ((t, T + 1),))
    h[0] = pr.zeros((1, made))
    h[t + 1] = pr.tanh(x @ w + h)
    assert parallel(h[T]) == leaves


def test_inside_another_loop() -> None:
    """With weights that change from one iteration to the next, all is one recurrence; along t it is not."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    x = pr.input("x", (256,), (i, t))
    w = pr.recurrent((256, 256), (i,))
    h = pr.recurrent((256,), (i, (t, T + 1)))
    h[i, 0] = pr.zeros((256,))
    h[i, t + 1] = pr.tanh(x @ w + h)
    w[0] = pr.zeros((256, 256)) + 0.01
    w[i + 1] = w * 0.9 + h[i, T] * 0.1
    program = pr.compile(w[I - 1], backend="numpy")
    assert parallel(w[I - 1]) == 1
    inputs = {"x": np.random.default_rng(0).normal(size=(3, 4, 256)).astype(np.float32)}
    np.testing.assert_allclose(program(**dict[str, Any](inputs)), pr.evaluate(w[I - 1], inputs), rtol=1e-4, atol=1e-5)


def test_steps_of_a_stream_come_one_by_one() -> None:
    t, T = pr.dim("t")
    x, w = pr.input("x", (64,), (t,)), pr.input("w", (64, 64))
    h = pr.recurrent((64,), ((t, T + 1),))
    h[0] = pr.zeros((64,))
    h[t + 1] = pr.tanh(x @ w + h)
    program = pr.compile(h[t + 1], backend="numpy")
    taken: list[int] = []

    def steps() -> object:
        for number in range(3):
            taken.append(number)
            yield np.full(64, 0.1, np.float32)

    stream = program.stream(over=t, x=steps(), w=np.eye(64, dtype=np.float32), bounds={T: 3})
    next(iter(stream))
    assert len(taken) < 3


def trained() -> tuple[pr.Tensor, pr.Tensor, pr.Bound]:
    """The loss of what is made of the states of a network, and the gradient of its weights."""
    t, T = pr.dim("t")
    x, u, w = pr.input("x", (2, 8), (t,)), pr.input("u", (8, 8)), pr.input("w", (8, 5))
    h = pr.recurrent((2, 8), ((t, T + 1),))
    h[0] = pr.zeros((2, 8))
    h[t + 1] = pr.tanh(x + h @ u)
    loss = pr.log_softmax(h[t + 1] @ w).axes[:, 0][0:T].mean()
    return loss, pr.grad(loss, u), T


def test_what_is_made_of_states_is_in_neither_loop_of_a_gradient() -> None:
    """States are kept for the way back, so that scores, loss and their gradient need not be in either loop."""
    loss, gradient, _ = trained()
    assert parallel({"loss": loss, "gradient": gradient}) == 2
    random = np.random.default_rng(0)
    shapes = {"x": (5, 2, 8), "u": (8, 8), "w": (8, 5)}
    inputs = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for steps in (1, 2, 5):
        given = {**inputs, "x": inputs["x"][:steps]}
        found = pr.compile(gradient, backend="jax")(**dict[str, Any](given))
        np.testing.assert_allclose(np.asarray(found), pr.evaluate(gradient, given), rtol=1e-4, atol=1e-5)


def test_states_that_are_not_kept_are_used_at_once() -> None:
    loss, _, T = trained()
    assert parallel(loss) == 0
    kept = pr.compile(loss, backend="numpy").memory.kept
    assert kept({T: 1000}) - kept({T: 10}) <= 990 * 2 * 4, "two numbers of each step"


def test_segments_keep_their_memory() -> None:
    """Where values are computed again, products are made for the steps of a segment at once, never for all of them."""
    t, T = pr.dim("t")
    x, w = pr.input("x", (8, 256), (t,)), pr.input("w", (256, 256))
    h = pr.recurrent((8, 256), ((t, T + 1),))
    h[0] = pr.zeros((8, 256))
    h[t + 1] = pr.tanh(x @ w + h)
    pr.checkpoint(h, over=t, every=64)
    gradient = pr.grad(pr.square(h[t + 1]).sum(), w)
    assert pr.compile(gradient, backend="numpy").memory.kept({T: 4096}) < 4096 * 8 * 256 * 4 / 4


def test_a_network_leaves_the_loop_of_advantages() -> None:
    """Observations are kept for the advantages, which go backwards: so all their values are one product."""
    t, T = pr.dim("t")
    w, v = pr.input("w", (4, 16)), pr.input("v", (16,))
    seen = pr.recurrent((2, 4), ((t, T + 1),))
    seen[0] = pr.zeros((2, 4))
    reward = pr.square(seen).sum(-1)
    seen[t + 1] = pr.cos(0.1 * reward.reshape(2, 1) * seen + pr.input("noise", (2, 4), (t,)))
    worth = pr.tanh(seen @ w) @ v
    advantage = rl.gae(t, reward, worth, worth[t + 1], False, False, 0.9, 0.8)
    assert parallel(advantage) == 2
    known = pr.compile(advantage, backend="jax", bounds={T: 20})
    assert "for all t" in known.schedule
    assert "%" not in known.schedule, "a slot for each step is no ring: no two steps could run at once"
    shapes = {"w": (4, 16), "v": (16,), "noise": (20, 2, 4)}
    random = np.random.default_rng(0)
    inputs = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    want = pr.evaluate(advantage, inputs)
    np.testing.assert_allclose(np.asarray(known(**dict[str, Any](inputs))), want, rtol=1e-4, atol=1e-5)


def test_nothing_leaves_a_loop_that_ends_early() -> None:
    t, T = pr.dim("t")
    x, w = pr.input("x", (256,), (t,)), pr.input("w", (256, 256))
    h = pr.recurrent((256,), ((t, T + 1),))
    h[0] = pr.zeros((256,))
    h[t + 1] = pr.tanh(x @ w + h)
    assert parallel(h[t + 1]) == 1
    assert parallel(h[t + 1], until={t: h[t + 1].sum() > 3}) == 0
