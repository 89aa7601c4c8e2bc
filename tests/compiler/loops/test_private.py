"""Buffers that every iteration of a sequential loop makes for itself are not carried from one to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.legality import IllegalProgramError, check_program
from polyrhythm.compiler.loops.ir import For, mapped, walk
from polyrhythm.compiler.loops.liveness import carried
from tests.compiler.backends.hlo import large, loop_bodies, optimised

WIDTH = 4
i, I = pr.dim("i")
j, J = pr.dim("j")
x, u, v = pr.input("x", (WIDTH,), (i, j)), pr.input("u", (WIDTH, WIDTH)), pr.input("v", (WIDTH, WIDTH))


def guarded() -> pr.Tensor:
    """A recurrence in two dims that reads the cells before, or zero at the edges."""
    h = pr.recurrent((WIDTH,), (i, j))
    above, left = pr.where(i > 0, h[i - 1, j], 0.0), pr.where(j > 0, h[i, j - 1], 0.0)
    h[(i >= 0) & (j >= 0)] = pr.tanh(x + above @ u + left @ v)
    return h


def by_cases() -> pr.Tensor:
    """The same with the edges as definitions of their own."""
    h = pr.recurrent((WIDTH,), (i, j))
    h[0, 0] = pr.tanh(x[0, 0])
    h[(i == 0) & (j > 0)] = pr.tanh(x + h[i, j - 1] @ v)
    h[(i > 0) & (j == 0)] = pr.tanh(x + h[i - 1, j] @ u)
    h[(i > 0) & (j > 0)] = pr.tanh(x + h[i - 1, j] @ u + h[i, j - 1] @ v)
    return h


def rows() -> pr.Tensor:
    """Rows one after the other, each made of the row before and its neighbours."""
    h = pr.recurrent((WIDTH,), (i, j))
    near = pr.where(j > 0, h[i, j - 1], 0.0) + pr.where(j + 1 < J, h[i, j + 1], 0.0)
    h[0] = pr.tanh(x[0])
    h[i + 1] = pr.tanh(x[i + 1] + near @ u + h @ v)
    return h


def further() -> pr.Tensor:
    """What an iteration makes is read by it, and one value of it by the next."""
    h = pr.recurrent((WIDTH,), (i, j))
    made = pr.tanh(h @ u)
    h[0] = x[0]
    h[i + 1] = made * x[i + 1] + pr.where(i > 0, made[i - 1, 0] @ v, 0.0) + made[i, 0:J].sum(0) * 0.1
    return h


SPELLINGS = [guarded, by_cases, rows, further]


def given(rows: int, columns: int) -> dict[str, Any]:
    random = np.random.default_rng(rows * 10 + columns)
    matrices = {name: random.normal(size=(WIDTH, WIDTH)).astype("float32") * 0.4 for name in "uv"}
    return {"x": random.normal(size=(rows, columns, WIDTH)).astype("float32"), **matrices}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_equal_to_the_oracle(spelling: Callable[[], pr.Tensor]) -> None:
    h = spelling()
    loss = (h * h)[0:I, 0:J].sum((0, 1, 2))
    outputs = {"loss": loss, "last": h[I - 1, J - 1], "u": pr.grad(loss, u)}
    program = pr.compile(outputs)
    for shape in ((1, 1), (1, 4), (4, 1), (3, 3), (5, 3), (3, 6)):
        want = pr.evaluate(outputs, given(*shape))
        for name, found in program(**given(*shape)).items():
            np.testing.assert_allclose(found, want[name], rtol=1e-4, atol=1e-5, err_msg=f"{name} at {shape}")


def own(program: pr.Program) -> list[For]:
    """The sequential loops with buffers that they do not carry."""
    loops = [item for item in walk(program.compiled.loops.body) if isinstance(item, For)]
    return [loop for loop in loops if loop.private and not loop.parallel]


def test_states_are_not_copied() -> None:
    """The states of all cells are stored in place, though an iteration makes two more rows of them."""
    h = guarded()
    program = pr.compile((h * h)[0:I, 0:J].sum((0, 1, 2)))
    assert own(program)
    for loop in own(program):
        assert not {*loop.private} & {*carried(loop, set(), program.compiled.loops)}
    text = optimised(program, **given(40, 40))
    assert not large(loop_bodies(text), ("copy",), 64 * 64 * WIDTH)


def test_what_another_iteration_reads_has_to_be_carried() -> None:
    """The checker refuses a loop that drops what the next iteration, or what comes later, reads."""
    h = guarded()
    program = pr.compile((h * h)[0:I, 0:J].sum((0, 1, 2)))
    compiled = program.compiled
    check_program(compiled.graph, compiled.loops)
    stored = next(name for name in compiled.loops.places if name.startswith("h_tanh"))

    def dropped(item: Any) -> Any:
        private = isinstance(item, For) and not item.parallel and item.private
        return replace(item, private=item.private | {stored}) if private else item

    wrong = replace(compiled.loops, body=mapped(compiled.loops.body, dropped))
    with pytest.raises(IllegalProgramError, match="does not carry"):
        check_program(compiled.graph, wrong)
