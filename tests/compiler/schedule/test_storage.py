"""The storage plan against lifetimes followed one by one: enough room always, and no more than needed."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.pipeline import Compiled, compile_tensors
from polyrhythm.compiler.schedule.storage import Storage
from tests.compiler.schedule import programs
from tests.compiler.schedule.enumeration import Bounds
from tests.compiler.schedule.lifetimes import Lives, clashes, lives
from tests.programs import PROGRAMS
from tests.programs.case import Case

Slots = tuple[int | None, ...]


def check(compiled: Compiled, bounds: Bounds, larger: Bounds) -> None:
    """Every kept tensor has room, and no dim of it could do with less."""
    for name, storage in compiled.storage.items():
        if storage.why == "output":
            continue
        slots = tuple(None if s.whole else s.count.constant for s in storage.slots)
        small = lives(compiled, name, bounds)
        assert not clashes(small, slots, write_first=not storage.is_variable), f"{name} {slots}"
        for axis in range(len(slots)):
            _check_least(compiled, storage, slots, axis, (small, lives(compiled, name, larger)))


def _check_least(compiled: Compiled, storage: Storage, slots: Slots, axis: int, values: tuple[Lives, Lives]) -> None:
    """At most one slot more than lifetimes demand, which pays for writing first; all steps only if they grow with T."""
    small, large = (_fewest(lives_, slots, axis) for lives_ in values)
    planned = slots[axis]
    if planned is None:
        assert large > small, f"all of {storage.slots[axis].symbol} of {storage.node} where {small} suffice"
    else:
        assert planned <= max(small, large) + 1, f"{planned} of {storage.node} where {large} suffice"


def _fewest(values: Lives, slots: Slots, axis: int) -> int:
    """The fewest slots along one axis when all others stay, with writes where they are."""
    extent = max((point[axis] for point in values), default=0) + 1
    for count in range(1, extent):
        if not clashes(values, (*slots[:axis], count, *slots[axis + 1 :]), write_first=False):
            return count
    return extent


def bounds_of(compiled: Compiled, size: int) -> dict[str, int]:
    names = sorted(s.name for s in compiled.graph.symbols if s.kind != "dim")
    return {name: size + number % 2 * (size // 2) for number, name in enumerate(names)}


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_known_programs(name: str) -> None:
    compiled = compile_tensors(list(programs.PROGRAMS[name]().values()), without=("tile",))
    size = 3 if name == "training" else 5  # three dims
    check(compiled, bounds_of(compiled, size), bounds_of(compiled, size + 2))


SLOW = ("life", "training", "hmm", "heat", "matrix_chain", "palindrome")
FEW = [case for case in PROGRAMS if case.name not in SLOW]


@pytest.mark.parametrize("case", FEW, ids=lambda case: case.name)
def test_written_programs(case: Case) -> None:
    built = case.built
    compiled = compile_tensors(list(built.outputs.values()), built.effects, built.until, without=("tile",))
    check(compiled, bounds_of(compiled, 4), bounds_of(compiled, 6))


def generated(random: Random) -> dict[str, pr.Tensor]:
    """Signals that read each other at small distances, clamped at the ends, and recurrences among them."""
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    signals: list[pr.Tensor] = [pr.tanh(x)]
    for _ in range(random.randint(1, 4)):
        source = random.choice(signals)
        other = random.choice(signals)
        kind = random.choice(["back", "ahead", "window", "recurrence", "reverse"])
        n = random.randint(1, 3)
        if kind == "back":
            signals.append(source[pr.max(0, t - n)] * 2 + other)
        elif kind == "ahead":
            signals.append(source[pr.min(t + n, T - 1)] + other * 3)
        elif kind == "window":
            signals.append(source[pr.max(0, t - n) : t + 1].sum(0) + other)
        elif kind == "recurrence":
            y = pr.recurrent((), ((t, T + n),))
            y[t < n] = 0.5
            y[t + n] = 0.5 * y + source[t]
            signals.append(y[t + n] + other)
        else:
            y = pr.recurrent((), ((t, T + 1),))
            y[T] = 0.0
            y[t] = 0.5 * y[t + 1] + source[t]
            signals.append(y[t] + other)
    last = signals[-1]
    return {"y": last[T - 1]} if random.random() < 0.5 else {"y": last}


@pytest.mark.parametrize("start", range(0, 48, 8))
def test_generated_programs(start: int) -> None:
    for seed in range(start, start + 8):
        compiled = compile_tensors(list(generated(Random(seed)).values()), without=("tile",))
        try:
            check(compiled, {"T": 10}, {"T": 13})
        except AssertionError as error:
            raise AssertionError(f"program {seed}: {error}") from None


def test_what_is_read_after_a_loop_that_ends_early_is_not_overwritten_in_its_last_iteration() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    total = pr.recurrent((), (t,), name="total")
    total[0] = x[0]
    total[t + 1] = total + x[t + 1]
    program = pr.compile({"last": total[T - 1]}, until={t: total > 10}, backend="numpy")
    assert program(x=np.arange(9, dtype="float32"))["last"] == 15
    assert program(x=np.ones(4, "float32"))["last"] == 4
    assert [str(slot) for slot in program.compiled.storage["total"].slots] == ["2 of t"]


def shifted(later: int) -> tuple[pr.Tensor, pr.Bound]:
    """Each iteration goes on with what the last `later` steps of the one before were, in one place."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    x = pr.input("x", (), (i, t))
    long = pr.recurrent((), (i, (t, T + later)), name="long")
    long[(i == 0) & (t < later)] = 0.0
    long[(i > 0) & (t < later)] = long[i - 1, t + T]
    long[t >= later] = x[{t: t - later}] + 0.5 * pr.cos(long[i, t - later : t].sum(0))
    return long[I - 1, T : T + later], T


@pytest.mark.parametrize("steps", [3, 4, 9], ids="T = {}".format)
@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_what_an_iteration_leaves_to_the_next_has_one_slot_for_each_step(backend: str, steps: int) -> None:
    later = 4
    result, bound = shifted(later)
    program = pr.compile(result, bounds={bound: steps}, backend=backend)
    slots = tuple(slot.count.constant for slot in program.compiled.storage["long"].slots)
    assert math.prod(slots) <= steps + later
    x = np.random.default_rng(0).normal(size=(5, steps)).astype("float32")
    np.testing.assert_allclose(program(x=x), pr.evaluate(result, {"x": x}), rtol=1e-5, atol=1e-6)
    followed = lives(program.compiled, "long", {"I": 5})
    assert followed
    assert not clashes(followed, slots, write_first=True)
