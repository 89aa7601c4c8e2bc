"""`explain` tells which operations became one block, what that saves, and why others did not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr

HERE = "tests/compiler/schedule/test_fusing.py"
REFUSED = "  fuse: refused block at "


def explained(outputs: object, **options: object) -> list[str]:
    return pr.compile(outputs, backend="numpy", **options).explain(level=2).split("\n")  # type: ignore[arg-type]


def test_operations_of_one_point_are_one_block() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    inner = pr.tanh(x)
    outer = inner * x
    (line,) = [line for line in explained(outer) if line.startswith("  fuse: ") and "(inner = " in line]
    assert line.startswith(f"  fuse: block at {HERE}:")
    assert line.endswith("(inner = pr.tanh(x)): computed in one block with outer; saves 1 launch a point, 12*T bytes")


def test_what_is_read_elsewhere_too_stays_apart() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    inner = pr.tanh(x)
    both = inner * 2 + inner[T - 1 - t]
    (line,) = [line for line in explained(both) if line.startswith(REFUSED)]
    assert line.startswith(f"  fuse: refused block at {HERE}:")
    assert "(inner = pr.tanh(x)): " in line
    assert line.endswith("reads it elsewhere, at [T - t - 1]")


def test_what_grows_with_the_step_and_follows_from_it_is_made_where_it_is_read() -> None:
    """A bias for each earlier step, read in two loops: kept, it would take room for all pairs of steps."""
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    distance = (pr.value(t) - pr.arange(t + 1)) * -0.5
    one, other = pr.recurrent((), ((t, T + 1),)), pr.recurrent((), ((t, T + 1),))
    one[0], other[0] = x[0], one[T]
    one[t + 1] = pr.tanh((pr.exp(distance) * x[0 : t + 1]).sum(0) + one)
    other[t + 1] = pr.tanh((distance * x[0 : t + 1]).sum(0) - other)
    program = pr.compile(other[T], backend="numpy")
    bytes_at = [program.memory.kept({"T": steps}) for steps in (100, 200)]
    assert bytes_at[1] <= 2 * bytes_at[0]
    given = np.linspace(-1, 1, 7).astype("float32")
    np.testing.assert_allclose(program(x=given), pr.evaluate(other[T], {"x": given}), rtol=1e-5)


def test_what_two_outputs_read_stays_apart() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    inner = pr.tanh(x)
    (line,) = [line for line in explained((inner, inner * 2)) if line.startswith(REFUSED)]
    assert line.endswith("(inner = pr.tanh(x)): 2 readers are in different blocks")


def test_a_contraction_that_runs_ahead_stays_apart() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (256,), (t,))
    h = pr.recurrent((256,), ((t, T + 1),))
    h[0] = 0.0
    ahead = x @ pr.input("w", (256, 256))
    h[t + 1] = pr.tanh(ahead + h)
    (line,) = [line for line in explained(h[T]) if line.startswith(REFUSED)]
    assert line.endswith('(ahead = x @ pr.input("w", (256, 256))): it stays out of the loop of a recurrence')


@pytest.mark.parametrize(
    ("left_out", "backend"), [("fuse", "numpy"), ("fuse", "jax"), ("vector", "jax"), ("grow", "jax")]
)
def test_leaving_it_out_changes_no_result(left_out: str, backend: str) -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (2,), (t,))
    y = pr.recurrent((2,), ((t, T + 1),))
    y[0] = 1.0
    y[t + 1] = pr.tanh(0.5 * y + x * y[0 : t + 1].sum(0))
    given: dict[str, Any] = {"x": np.random.default_rng(0).normal(size=(9, 2)).astype("float32")}
    outputs = {"y": y, "z": pr.exp(x) * 2}
    with pr.settings(without=[left_out]):
        program = pr.compile(outputs, backend=backend)
    for name, want in pr.evaluate(outputs, given).items():
        np.testing.assert_allclose(program(**given)[name], want, rtol=1e-5, atol=1e-6)
    blocks, usual = (len(p.compiled.blocks) for p in (program, pr.compile(outputs, backend=backend)))
    assert blocks > usual if left_out == "fuse" else blocks == usual


def test_loops_are_explained_by_what_their_steps_share() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (256,), (t,))
    h = pr.recurrent((256,), ((t, T + 1),))
    h[0] = 0.0
    h[t + 1] = pr.tanh(x + pr.tanh(h[0 : t + 1] * x).mean(0))
    free = pr.exp(x)
    lines = pr.compile({"h": h[T], "free": free}).explain(level=2).split("\n")
    (apart,) = [line for line in lines if line.startswith("  vector: steps at")]
    assert "(free = pr.exp(x)): the T steps of t are independent: at once, or in tiles" in apart
    (refused,) = [line for line in lines if line.startswith("  vector: refused steps at")]
    assert refused.endswith("a step of t reads what the one before has left in h")
    (grown,) = [line for line in lines if line.startswith("  grow: ")]
    assert (
        "(h[t + 1] = pr.tanh(x + pr.tanh(h[0 : t + 1] * x).mean(0))): buffers of T begin with 512 steps and double"
        in grown
    )
