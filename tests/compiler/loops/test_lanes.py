"""What the iterations of vectorised loops have to themselves; refusals are reported, and wrong lanes are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.legality import IllegalProgramError, check_program
from polyrhythm.compiler.loops.ir import For, Lanes, LoopProgram, mapped, walk
from polyrhythm.compiler.loops.show import show
from polyrhythm.compiler.pipeline import Compiled, compile_tensors
from tests.compiler.legality import mutants
from tests.compiler.loops.cases import BUILDERS, made
from tests.compiler.loops.simulate import refused_if_wrong
from tests.programs import PROGRAMS

t, T = pr.dim("t")


def attention() -> Compiled:
    q, k = (pr.input(name, (4,), (t,)) for name in "qk")
    scores = pr.einsum("d,sd->s", q, k[0 : t + 1]).softmax(-1)
    return compile_tensors([pr.einsum("s,sd->d", scores, k[0 : t + 1])])


def lanes_of(program: LoopProgram) -> For:
    return next(i for i in walk(program.body) if isinstance(i, For) and i.lanes is not None)


def test_steps_that_fill_an_output() -> None:
    loop = lanes_of(attention().loops)
    assert loop.lanes is not None
    own = next(own for own in loop.lanes.written if own.place == attention().loops.outputs[0])
    assert (own.axis, own.offset, own.fills) == (0, Term(0), True)
    assert "lanes t in 0 .. T - 1:" in show(attention().loops)


def heat() -> tuple[pr.Dim, pr.Tensor]:
    """A step reads its neighbours of the time before in the buffer that it writes to."""
    (n, N), (x, X) = pr.dim("n"), pr.dim("x")
    u = pr.recurrent((), ((n, N + 1), x))
    u[n == 0] = pr.input("start", (), (x,))
    u[n > 0] = u[n - 1, pr.max(0, x - 1)] + u[n - 1, pr.min(X - 1, x + 1)]
    return x, u


def test_a_refusal_is_reported() -> None:
    y = pr.host(lambda value: value * 2, [pr.input("x", (), (t,))])
    loops = [i for i in walk(compile_tensors([y]).loops.body) if isinstance(i, For) and i.refused]
    assert loops
    assert "a host function is called for one step at a time" in loops[0].refused
    assert "are independent, but run one by one" in pr.compile(y).explain()


def spans() -> tuple[pr.Dim, pr.Tensor]:
    """A span of n steps reads two shorter ones; which ones is up to a loop inside."""
    (n, N), (x, X) = pr.dim("n"), pr.dim("x")
    k, _ = pr.dim("k", bound=N)
    c = pr.recurrent((), (n, (x, X + N)))
    c[n == 0] = pr.input("start", (), (x,))[pr.min(X - 1, x)]
    pairs = c[k, x] * c[n - 1 - k, pr.min(X + N - 1, x + k + 1)]
    c[n >= 1] = pairs[{k: slice(0, n)}].sum(0)
    return x, c


@pytest.mark.parametrize("program", [heat, spans])
def test_rows_that_no_lane_writes(program: Callable[[], tuple[pr.Dim, pr.Tensor]]) -> None:
    """The rows that a step reads are those before: its loop runs at once without being asked to."""
    _, u = program()
    loops = [i for i in walk(compile_tensors([u]).loops.body) if isinstance(i, For) and i.counter.name == "x"]
    assert loops
    assert not any(loop.refused for loop in loops)
    start = np.arange(5, dtype="float32") / 4
    for steps in (0, 1, 2, 5):
        want = pr.evaluate(u, {"start": start}, bounds={"N": steps})
        np.testing.assert_allclose(pr.compile(u)(start=start, bounds={"N": steps}), want, rtol=1e-5)


def test_what_a_user_asks_for_happens() -> None:
    """The rows that a step reads are those before, which no lane writes."""
    x, u = heat()
    start = np.arange(5, dtype="float32")
    want = pr.evaluate(u, {"start": start}, bounds={"N": 3})
    for how in (pr.vector(), pr.chunk(2), pr.loop()):
        program = pr.compile(u, schedule={x: how})
        assert not any(i.refused for i in walk(program.compiled.loops.body) if isinstance(i, For)) or how == pr.loop()
        np.testing.assert_allclose(program(start=start, bounds={"N": 3}), want)


def test_lanes_inside_of_lanes_read_other_rows() -> None:
    case = next(case for case in PROGRAMS if case.name == "life")
    outputs = case.build().outputs
    dims = {dim.name: dim for tensor in outputs.values() for dim in tensor.dims}
    program = pr.compile(outputs, schedule={dims["r"]: pr.vector(), dims["c"]: pr.vector()})
    bounds = max(case.bounds, key=lambda some: sum(some.values()))
    inputs = case.inputs(bounds)
    case.check(program(bounds=case.call_bounds(bounds), **inputs), inputs, bounds)


def test_what_a_step_passes_to_its_next_is_one_for_each_lane() -> None:
    """The batch of the network is a dim; what a cell passes on is written under a condition on the bounds first."""
    case = next(case for case in PROGRAMS if case.name == "lstm")
    outputs = case.build().outputs
    b = next(dim for tensor in outputs.values() for dim in tensor.dims if dim.name == "b")
    program = pr.compile(outputs, schedule={b: pr.vector()})
    for bounds in case.bounds[:3]:
        inputs = case.inputs(bounds)
        case.check(program(bounds=case.call_bounds(bounds), **inputs), inputs, bounds)


def test_what_a_user_asks_for_is_refused_with_a_reason() -> None:
    called = pr.host(lambda value: value * 2, [pr.input("x", (), (t,))])
    with pytest.raises(pr.errors.UnsupportedError, match=r"host function .* is called"):
        pr.compile(called, schedule={t: pr.vector()})
    pr.compile(called, schedule={t: pr.loop()})


def refused(compiled: Compiled, lanes: Lanes, what: str) -> None:
    loop = lanes_of(compiled.loops)
    body = mapped(compiled.loops.body, lambda i: replace(loop, lanes=lanes) if i is loop else i)
    with pytest.raises(IllegalProgramError, match=what) as found:
        check_program(compiled.graph, replace(compiled.loops, body=body))
    assert found.value.rule == "lanes"


def test_wrong_lane_mask() -> None:
    """Lanes that leave out the last slot are said to fill an output: it would lose what is there."""
    x = pr.input("x", (4,), (t,))
    y = pr.recurrent((4,), ((t, T + 1),))
    y[T] = x[0:T].sum(0)
    y[t] = pr.einsum("d,sd->d", x, x[0 : t + 1])
    compiled = compile_tensors([y])
    lanes = lanes_of(compiled.loops).lanes
    assert lanes is not None
    own = next(own for own in lanes.written if own.place == compiled.loops.outputs[0])
    assert not own.fills
    rest = tuple(replace(own, fills=True) if o is own else o for o in lanes.written)
    refused(compiled, replace(lanes, written=rest), "do not fill")


def test_a_slot_of_another_lane() -> None:
    compiled = attention()
    lanes = lanes_of(compiled.loops).lanes
    assert lanes is not None
    moved = tuple(replace(own, offset=own.offset - 1, fills=False) for own in lanes.written)
    refused(compiled, replace(lanes, written=moved), "another position than its own")


def test_what_is_read_after_the_loop_is_not_private() -> None:
    compiled = attention()
    lanes = lanes_of(compiled.loops).lanes
    assert lanes is not None
    refused(compiled, Lanes((), frozenset(own.place for own in lanes.written)), "afterwards|after them")


def test_nothing_is_shared_that_lanes_write() -> None:
    refused(attention(), Lanes(()), "neither theirs nor private")


WAYS = (mutants.change_lanes, mutants.change_lanes, mutants.shift_load, mutants.shift_store)
QUICK = ("causal_attention", "n_step_returns", "heat", "clockwork", "filter_bank", "edit_distance")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in BUILDERS])
def test_what_is_wrong_at_small_bounds_is_refused(name: str) -> None:
    refused_if_wrong(*made(name), WAYS, name, most=3)
