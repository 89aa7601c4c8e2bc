"""Values that are held instead of read back, and that the checker refuses those that may have been overwritten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.ir.conditions import ge
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.legality import IllegalProgramError, check_holds
from polyrhythm.compiler.loops.ir import Block, For, If, Item, LoopProgram, blocks_of, mapped, walk
from polyrhythm.compiler.loops.liveness import carried
from polyrhythm.compiler.loops.show import show
from polyrhythm.compiler.pipeline import Compiled, compile_tensors
from tests.compiler.legality import mutants
from tests.compiler.loops.cases import BUILDERS, made
from tests.compiler.loops.simulate import refused_if_wrong


def recurrence() -> Compiled:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    y = pr.recurrent((3,), (t,))
    y[0] = x[0]
    y[t + 1] = 0.9 * y + 0.1 * x[t + 1]
    return compile_tensors([y, y[T - 1]])


def loop_of(program: LoopProgram) -> For:
    return next(i for i in walk(program.body) if isinstance(i, For) and i.registers)


def test_the_last_value_is_a_register() -> None:
    loops = recurrence().loops
    (register,) = loop_of(loops).registers
    assert (str(register.before[0]), str(register.now[0])) == ("t", "t + 1")
    assert "for t in 0 .. T - 2, holding y[t]:" in show(loops)
    assert "held y[t]" in show(loops)


def ring(width: int) -> tuple[pr.Tensor, Compiled]:
    """Of a running maximum the last two are kept: what rescales a sum reads both."""
    t, T = pr.dim("t", min=1)
    x = pr.input("x", (width,), (t,))
    peak, total = pr.recurrent((width,), (t,)), pr.recurrent((width,), (t,))
    peak[0], total[0] = x[0], 1.0
    peak[t + 1] = pr.maximum(peak, x[t + 1])
    total[t + 1] = total * pr.exp(peak - peak[t + 1]) + pr.exp(x[t + 1] - peak[t + 1])
    out = total[T - 1]
    return out, compile_tensors([out])


def test_a_ring_has_a_register() -> None:
    out, compiled = ring(3)
    (register,) = (r for r in loop_of(compiled.loops).registers if r.place == "peak")
    (store,) = (s for block in walk(loop_of(compiled.loops).body) if isinstance(block, Block) for s in block.stores
                if s.place == "peak")  # fmt: skip
    assert (register.before[0] - register.now[0]).is_never_zero
    assert not (register.before[0] - register.now[0]).is_constant
    assert store.index == register.now
    check_holds(compiled.loops)
    program = pr.compile(out)
    for steps in (1, 2, 3, 5, 8):
        x = np.random.default_rng(steps).normal(size=(steps, 3)).astype("float32")
        np.testing.assert_allclose(program(x=x), pr.evaluate(out, {"x": x}), rtol=1e-5)


def test_a_large_ring_has_none() -> None:
    _, compiled = ring(100_000)
    assert not [r for i in walk(compiled.loops.body) if isinstance(i, For) for r in i.registers if r.place == "peak"]


def test_unrolled_layers_have_a_register_each() -> None:
    (t, T), (l, L) = pr.dim("t"), pr.dim("l")
    h = pr.recurrent((128,), (t, (l, L + 1)))
    past = h[0 : t + 1, l + 1].max(0)
    h[t, 0] = pr.input("x", (128,), (t,))
    h[0, l + 1] = 0.0
    h[t + 1, l + 1] = pr.tanh(h[t, l + 1] @ pr.input("w", (128, 128), (l,)) + h[t + 1, l] + past)
    compiled = compile_tensors([h[T - 1, L]], bounds={L: 3}, without=["ranges"])  # which would leave rings
    places = {r.place for i in walk(compiled.executable.body) if isinstance(i, For) for r in i.registers}
    # What goes into the first layer and what comes out of the last share a buffer, which is stored to twice.
    assert places == {"h[, 1]", "h[, 2]"}, show(compiled.executable)


def changed(program: LoopProgram, block: Block, new: tuple[Item, ...]) -> LoopProgram:
    """The program with other items in place of a block of the loop with a register."""
    loop = loop_of(program)
    other = replace(loop, body=tuple(i for old in loop.body for i in (new if old is block else (old,))))
    return replace(program, body=mapped(program.body, lambda item: other if item is loop else item))


def refused(program: LoopProgram, what: str) -> None:
    with pytest.raises(IllegalProgramError, match=what) as found:
        check_holds(program)
    assert found.value.rule == "hold"


def test_a_register_that_is_read_after_its_slot_is_overwritten() -> None:
    """The slot of `held y[t]` is stored to first, as when two steps share a slot."""
    program = recurrence().loops
    loop = loop_of(program)
    block = next(item for item in loop.body if isinstance(item, Block) and item.stores[0].place == "y")
    early = replace(block, name="early", stores=tuple(replace(s, index=loop.registers[0].before) for s in block.stores))
    refused(changed(program, block, (early, block)), "register")


def test_a_register_of_what_is_stored_under_a_guard() -> None:
    """It is what the slot holds after the iteration, so that the checker of holds has nothing against it."""
    program = recurrence().loops
    loop = loop_of(program)
    block = next(item for item in loop.body if isinstance(item, Block) and item.stores[0].place == "y")
    check_holds(changed(program, block, (If(ge(Term.of(loop.counter), 3), (block,)),)))


def test_a_register_of_what_is_stored_in_a_loop() -> None:
    program = recurrence().loops
    loop = loop_of(program)
    block = next(item for item in loop.body if isinstance(item, Block) and item.stores[0].place == "y")
    often = For(Symbol("k", "dim"), Term(0), Term(2), (block,))
    refused(changed(program, block, (often,)), "register")


def until(width: int = 3) -> tuple[dict[str, pr.Tensor], dict[pr.Dim, pr.Tensor]]:
    """What an iteration stores for the next has a guard: the last iteration only asks whether it is the last."""
    n, N = pr.dim("n", min=1)
    y = pr.recurrent((width,), (n,))
    y[0] = pr.input("start", (width,))
    y[n + 1] = 0.5 * y + 1.0 / (1.0 + y * y)
    change = pr.abs(y - pr.where(n >= 1, y[n - 1], 9.0)).max()
    return {"end": y[N - 1], "steps": pr.value(N)}, {n: (change < 1e-3).reshape()}


def test_a_loop_that_ends_early_reads_no_slot_back() -> None:
    outputs, stops = until()
    program = pr.compile(outputs, until=stops)
    loop = loop_of(program.compiled.loops)
    assert {register.place for register in loop.registers} == {"y"}
    check_holds(program.compiled.loops)
    for limit in (1, 2, 3, 4, 50):
        for start in (0.1, 0.7, 3.0):
            given: dict[str, Any] = {"start": np.full(3, start, "float32")}
            want = pr.evaluate(outputs, given, {"N": limit}, until=stops)
            found = program(**given, bounds={"N": limit})
            for name in outputs:
                np.testing.assert_allclose(found[name], want[name], rtol=1e-5, err_msg=f"{name}, {limit}, {start}")


def test_what_is_read_under_the_guard_of_its_store_is_not_carried() -> None:
    outputs, stops = until()
    program = pr.compile(outputs, until=stops).compiled.loops
    loop = loop_of(program)
    local = next(s.place for b in blocks_of(loop.body) for s in b.stores if program.places[s.place].kind == "variable"
                 and loop.stop is not None and s.place != loop.stop.done.place)  # fmt: skip
    assert local not in carried(loop, set(), program)
    plain = tuple(i for item in loop.body for i in (item.body if isinstance(item, If) else (item,)))
    stored = next(n for n, i in enumerate(plain) if isinstance(i, Block) and i.stores[0].place == local)
    guard = next(item.condition for item in loop.body if isinstance(item, If))
    read_always = replace(loop, body=(If(guard, (plain[stored],)), *plain[:stored], *plain[stored + 1 :]))
    assert local in carried(read_always, set(), program)
    other = If(ge(Term.of(loop.counter), 3), tuple(i for n, i in enumerate(plain) if n != stored))
    assert local in carried(replace(loop, body=(If(guard, (plain[stored],)), other)), set(), program)


def test_before_and_now_exchanged() -> None:
    program = recurrence().loops
    loop = loop_of(program)
    (register,) = loop.registers
    turned = replace(loop, registers=(replace(register, before=register.now, now=register.before),))
    refused(replace(program, body=mapped(program.body, lambda i: turned if i is loop else i)), "register")


def test_without_its_register() -> None:
    program = recurrence().loops
    loop = loop_of(program)
    refused(
        replace(program, body=mapped(program.body, lambda i: replace(loop, registers=()) if i is loop else i)),
        "may have been overwritten",
    )


WAYS = (mutants.hold_load, mutants.change_register, mutants.shift_store, mutants.swap_items)
QUICK = ("fibonacci", "filter", "even_odd", "td_lambda_returns", "common_subsequence", "counting")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in BUILDERS])
def test_what_is_wrong_at_small_bounds_is_refused(name: str) -> None:
    refused_if_wrong(*made(name), WAYS, name)
