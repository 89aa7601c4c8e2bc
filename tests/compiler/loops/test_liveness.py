"""Which places a loop carries."""

from __future__ import annotations

from typing import Any

import numpy as np

import polyrhythm as pr
from polyrhythm.compiler.loops.ir import For, LoopProgram, walk
from polyrhythm.compiler.loops.liveness import carried, live_before, written
from tests.compiler.schedule import programs


def loops_of(outputs: dict[str, pr.Tensor]) -> LoopProgram:
    return pr.compile(outputs, backend="numpy").compiled.loops


def steady(program: LoopProgram) -> For:
    """The last innermost loop."""
    return [item for item in walk(program.body) if isinstance(item, For)][-1]


def after(program: LoopProgram, loop: For) -> set[str]:
    """The places that matter after an outermost loop."""
    rest = program.body[program.body.index(loop) + 1 :]
    return live_before(rest, set(program.outputs), program)


def test_a_register_is_carried_and_a_local_variable_is_not() -> None:
    program = loops_of(programs.ema())
    loop = steady(program)
    (local,) = written(loop.body) - {"y"}
    assert program.places[local].kind == "variable"
    assert carried(loop, after(program, loop), program) == ["y"]


def test_a_ring_is_carried() -> None:
    program = loops_of(programs.taps(3))
    loop = steady(program)
    assert set(carried(loop, after(program, loop), program)) == written(loop.body)


def test_what_nobody_reads_later_is_not_live() -> None:
    program = loops_of(programs.ema())
    loop = steady(program)
    assert "y" in after(program, loop)
    assert "y" not in live_before((), set(program.outputs), program)
    local = written(loop.body) - {"y"}
    assert not local & live_before(program.body, set(program.outputs), program)


def test_an_outer_loop_carries_what_its_next_iteration_reads() -> None:
    """Weights go from episode to episode; what an episode reads of before it is not written in it."""
    program = loops_of(programs.reinforce("td"))
    outer = [item for item in program.body if isinstance(item, For)][-1]
    kept = carried(outer, after(program, outer), program)
    assert "weights" in kept
    assert set(kept) <= written(outer.body)
    assert "noise" not in kept


def test_what_is_filled_anew_is_not_carried() -> None:
    """Every iteration fills the values of all rows and steps before it reads them; weights go on."""
    i, I = pr.dim("i")
    b, B = pr.dim("b")
    t, T = pr.dim("t")
    x = pr.input("x", (2,), (i, b, t))
    w = pr.recurrent((2, 2), ((i, I + 1),))
    w[0] = pr.input("start", (2, 2))
    w[i + 1] = w - 0.1 * pr.grad((pr.tanh(x @ w) ** 2)[{b: slice(0, B), t: slice(0, T)}].sum(), w)
    program = loops_of({"last": w[I]})
    buffers = {name for name, place in program.places.items() if place.kind == "buffer"}
    (outer,) = (item for item in program.body if isinstance(item, For) and buffers & written(item.body))
    assert not buffers & set(carried(outer, after(program, outer), program))
    assert not buffers & live_before((outer,), set(program.outputs), program)


def test_what_is_read_before_it_is_filled_is_carried() -> None:
    """Each iteration changes all steps of a state, from what they were and from what the step before was."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    y = pr.recurrent((), ((i, I + 1), t))
    y[0, t] = pr.input("start", (), (t,))
    y[i + 1, t] = y[i, t] * 0.5 + pr.where(t > 0, y[i, t - 1], 0.0)
    program = loops_of({"last": y[I, 0:T]})
    assert any(
        program.places[name].kind == "buffer" and name in carried(item, after(program, item), program)
        for item in program.body
        if isinstance(item, For)
        for name in written(item.body)
    )


def test_what_an_iteration_fills_in_parts_and_reads_itself_is_not_carried() -> None:
    """The states of a recurrence, kept for its gradient, are of one iteration; the last step of it goes on."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    x = pr.input("x", (2,), (t,))
    w, last = pr.recurrent((2, 2), ((i, I + 1),)), pr.recurrent((2,), ((i, I + 1),))
    h = pr.recurrent((2,), (i, (t, T + 1)), name="h")
    h[i, 0] = pr.detach(last)
    h[i, t + 1] = pr.tanh(h @ w + x)
    last[0], last[i + 1] = pr.zeros((2,)), h[i, T]
    w[0] = pr.input("start", (2, 2))
    w[i + 1] = w - 0.1 * pr.grad((h**2)[i, 0 : T + 1].sum((0, 1)), w)
    outputs = {"w": w[I], "last": last[I]}
    program = loops_of(outputs)
    assert program.places["h"].kind == "buffer"
    (outer,) = (item for item in program.body if isinstance(item, For) and "h" in written(item.body) and item.private)
    kept = set(carried(outer, after(program, outer), program))
    assert "h" not in kept
    assert kept
    given: dict[str, Any] = {
        "x": np.linspace(-1, 1, 10).reshape(5, 2).astype("float32"),
        "start": np.eye(2, dtype="float32") / 2,
    }
    wanted = pr.evaluate(outputs, given, bounds={I: 4})
    for backend in ("numpy", "torch", "jax"):
        found = pr.compile(outputs, backend=backend)(bounds={I: 4}, **given)
        for name, value in found.items():
            np.testing.assert_allclose(value, wanted[name], rtol=1e-4, atol=1e-5, err_msg=f"{backend} {name}")
