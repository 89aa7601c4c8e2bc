"""Which loops may run with buffers that grow, and how far they get at each capacity."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

import polyrhythm as pr
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.legality import IllegalProgramError, check_growth
from polyrhythm.compiler.loops.growth import Growth, Stretch, find_growth
from polyrhythm.compiler.loops.ir import LoopProgram
from polyrhythm.compiler.loops.units import units

WIDTH = 64

t, T = pr.dim("t")
P = pr.size("P", max=T)


def attention(past: Any = None, extra: Any = None, first: Any = 0) -> dict[str, pr.Tensor]:
    x = pr.recurrent((WIDTH,), ((t, T + 1),))
    seen = x[slice(0, t + 1) if past is None else past]
    x[0] = pr.input("first", (WIDTH,))
    x[t + 1] = pr.tanh(pr.einsum("s,sd->d", pr.einsum("sd,d->s", seen, x).softmax(-1), seen))
    return {"last": x[T]} | (extra(x) if extra is not None else {})


def growth_of(outputs: Any) -> Growth | None:
    return find_growth(pr.compile(outputs, backend="numpy").compiled.loops)


def test_a_growing_prefix_grows() -> None:
    growth = growth_of(attention())
    assert growth is not None
    assert (growth.bound.name, growth.least) == ("T", 512)
    assert growth.stretches({"T": 5}, 8) == [Stretch(8, 0, 5)]
    assert growth.stretches({"T": 512}, 512) == [Stretch(512, 0, 512)]
    several = [Stretch(512, 0, 512), Stretch(1024, 512, 1024), Stretch(2048, 1024, 1500)]
    assert growth.stretches({"T": 1500}, 2048) == several


def test_every_iteration_is_done_once_at_a_capacity_that_holds_it() -> None:
    growth = growth_of(attention())
    assert growth is not None
    for steps in (0, 1, 511, 512, 513, 1023, 1024, 1025, 4000):
        largest = 0 if steps == 0 else 1 << (steps - 1).bit_length()
        stretches = growth.stretches({"T": steps}, largest)
        assert [i for s in stretches for i in range(s.first, s.end)] == list(range(steps))
        assert all(s.end <= s.capacity for s in stretches)
        assert stretches[-1].capacity == largest


def test_what_a_step_reads_is_in_proportion_to_the_steps_before_it() -> None:
    growth = growth_of(attention())
    assert growth is not None
    for steps in (2048, 4096, 1 << 15):
        stretches = growth.stretches({"T": steps}, steps)
        read = sum((s.end - s.first) * s.capacity for s in stretches)
        needed = steps * (steps + 1) / 2
        assert needed < read < 1.5 * needed  # with one capacity it is twice what is needed
        for stretch in stretches[1:]:
            assert stretch.capacity == pytest.approx((stretch.first + stretch.end) / 2 * 4 / 3)


def test_what_a_step_with_a_window_reads_and_keeps_does_not_depend_on_the_steps_before_it() -> None:
    plan = pr.compile(attention(slice(pr.max(0, t - 7), t + 1)), backend="numpy").memory
    assert plan.kept({"T": 100}) == plan.kept({"T": 100_000})
    assert plan.temporary({"T": 100}) == plan.temporary({"T": 100_000})
    growing = pr.compile(attention(), backend="numpy").memory
    assert growing.kept({"T": 100_000}) - growing.kept({"T": 99_999}) == WIDTH * 4


@pytest.mark.parametrize(
    "outputs",
    [
        attention(slice(pr.max(0, t - 7), t + 1)),  # a window does not grow
        attention(slice(0, pr.min(t + 1, T // 2))),  # what is read depends on T
        attention(slice(0, 1)),  # one step
        attention(slice(0, pr.min(t + 1, 16))),  # at most sixteen
    ],
)
def test_what_does_not_grow(outputs: Any) -> None:
    assert growth_of(outputs) is None


def test_what_comes_before_must_be_the_same() -> None:
    """A prefix of P steps is given: no capacity below P will do."""
    x = pr.recurrent((WIDTH,), (t,))
    x[t < P] = pr.input("given", (WIDTH,), (t,))
    seen = x[0:t]
    query = pr.input("query", (WIDTH,), (t,))
    x[t >= P] = pr.tanh(pr.einsum("s,sd->d", pr.einsum("sd,d->s", seen, query).softmax(-1), seen))
    growth = growth_of({"last": x[T - 1]})
    assert growth is not None
    assert growth.stretches({"T": 4000, "P": 3}, 4096)[0].capacity == growth.least
    stretches = growth.stretches({"T": 4000, "P": 1500}, 4096)
    assert stretches[0].capacity == 2048
    assert stretches[-1] == Stretch(4096, stretches[-2].end, 4000)


def test_what_comes_before_may_not_depend_on_the_bound() -> None:
    """The mean of all inputs is another one at a smaller capacity."""
    x = pr.recurrent((WIDTH,), ((t, T + 1),))
    x[0] = pr.input("given", (WIDTH,), (t,))[0:T].mean(0)
    seen = x[0 : t + 1]
    x[t + 1] = pr.tanh(pr.einsum("s,sd->d", pr.einsum("sd,d->s", seen, x).softmax(-1), seen))
    assert growth_of({"last": x[T]}) is None


def test_a_prefix_of_a_fixed_length_must_fit() -> None:
    """The first 700 steps are given, by a loop before: at smaller capacities it would do fewer."""
    x = pr.recurrent((WIDTH,), (t,))
    x[t < 700] = pr.input("given", (WIDTH,), (t,))
    seen = x[0:t]
    x[t >= 700] = pr.tanh(pr.einsum("s,sd->d", pr.einsum("sd,d->s", seen, x[t - 1]).softmax(-1), seen))
    growth = growth_of({"last": x[T - 1]})
    assert growth is not None
    assert growth.least == 512
    assert growth.stretches({"T": 4000}, 4096)[0].capacity == 1024


def test_little_is_read() -> None:
    x = pr.recurrent((), ((t, T + 1),))
    x[0] = 1.0
    seen = x[0 : t + 1]
    x[t + 1] = pr.tanh(((seen * x).softmax(-1) * seen).sum(0))
    growth = growth_of(x[T])
    assert growth is not None
    assert growth.least == 1 << 15


def final(outputs: Any, **options: Any) -> LoopProgram:
    """The loops as a backend gets them, with what grows."""
    program = pr.compile(outputs, **options).compiled.executable
    assert program.growth is not None
    return program


def refused(program: LoopProgram, growth: Growth, what: str) -> None:
    with pytest.raises(IllegalProgramError, match=what) as found:
        check_growth(replace(program, growth=growth))
    assert found.value.rule == "growth"


def test_growth_past_capacity() -> None:
    """One iteration more than a capacity has slots for."""
    program = final(attention())
    growth = program.growth
    assert growth is not None
    check_growth(program)

    class TooFar(Growth):
        def limits(self, capacity: Term) -> tuple[Term, ...]:
            return tuple(limit + 1 for limit in super().limits(capacity))

    far = TooFar(**{field.name: getattr(growth, field.name) for field in fields(growth)})
    refused(program, far, "which is not there yet")


def test_a_body_that_depends_on_the_length_cannot_grow() -> None:
    """Here a step divides by the number of all of them."""
    x = pr.recurrent((WIDTH,), ((t, T + 1),))
    x[0] = pr.input("first", (WIDTH,))
    x[t + 1] = pr.tanh(x[0 : t + 1].max(0) / pr.value(T).cast("float32"))
    program = pr.compile({"last": x[T]}).compiled.executable
    assert program.growth is None
    growing = final(attention()).growth
    every = units(program.body)
    number = next(n for n, unit in enumerate(every) if unit.loop is not None and not unit.loop.parallel)
    loop = every[number].loop
    assert growing is not None
    assert loop is not None
    (bound,) = program.bounds
    refused(program, replace(growing, loop=loop, unit=number, bound=bound), "another at another length")


def test_another_loop_than_that_of_the_unit() -> None:
    program = final(attention())
    assert program.growth is not None
    refused(program, replace(program.growth, loop=replace(program.growth.loop)), "not the loop of its unit")


def test_a_loop_that_may_not_run() -> None:
    """It starts at P - 1 and runs only if P >= 1: there is no slot -1, and none is used.

    The largest score so far is the same for all steps, and made by the loop itself one step ahead.
    """
    x = pr.recurrent((WIDTH,), (t,))
    x[t < P] = pr.input("given", (WIDTH,), (t,))
    seen = x[0:t]
    x[t >= P] = pr.tanh(pr.einsum("s,sd->d", pr.einsum("sd->s", seen).softmax(-1), seen))
    program = final({"last": x[T - 1]})
    growth = program.growth
    assert growth is not None
    check_growth(program)
    condition = units(program.body)[growth.unit].condition
    assert growth.bound in condition.symbols
    others = tuple(part for part in growth.unchanged if part != condition)
    refused(program, replace(growth, unchanged=others), "runs is another at another length")
