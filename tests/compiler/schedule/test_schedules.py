"""Schedules and storage of programs whose best ones are known, as golden text and as numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import optim
from polyrhythm.compiler.pipeline import Compiled
from polyrhythm.compiler.schedule.scheduler import Loop, Member
from tests.compiler.schedule import programs


def compiled(outputs: programs.Outputs) -> Compiled:
    return pr.compile(outputs, backend="numpy").compiled


def slots(compiled: Compiled, name: str) -> dict[str, str]:
    """How each dim of a tensor is kept: a number of slots, or "all"."""
    return {s.symbol.name: "all" if s.whole else str(s.count) for s in compiled.storage[name].slots}


def loops(compiled: Compiled, name: str) -> list[tuple[Loop, Member]]:
    """The loops around a block, outermost first, and how it takes part in them."""
    found = []
    items = list(compiled.schedule)
    while items:
        item = items.pop()
        if isinstance(item, Loop) and name in item.members:
            found.append((item, item.members[name]))
            items = list(item.body)
    return found


def lag(compiled: Compiled, early: str, late: str, level: int) -> int | None:
    """How many iterations of a common loop one tensor is written after another of the same step; None without one."""
    first, second = (loops(compiled, block_of(compiled, name)) for name in (early, late))
    if any(a[0] is not b[0] for a, b in zip(first[: level + 1], second[: level + 1], strict=True)):
        return None
    return (second[level][1].offset - first[level][1].offset).constant


def block_of(compiled: Compiled, name: str) -> str:
    """The block that computes a tensor; of a recurrent one that of its last definition."""
    return [b.name for b in compiled.blocks.values() if any(s.node == name for s in b.statements)][-1]


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    program = pr.compile(programs.PROGRAMS[name](), backend="numpy")
    golden(name, f"{program.schedule}\n{_plan(program)}")


def _plan(program: pr.Program) -> str:
    """The places without their reasons, which name too much to be stable."""
    lines = []
    for place in program.compiled.loops.places.values():
        kept = f"  ({'; '.join(place.folded)})" if place.folded else ""
        lines.append(f"{place.kind} {place.name}[{', '.join(map(str, place.whole))}]{kept}")
    return "\n".join(lines)


def test_monte_carlo_acts_then_learns() -> None:
    program = compiled(programs.reinforce("monte_carlo"))
    assert lag(program, "seen", "gradient", 0) == 0, "one loop over episodes"
    assert lag(program, "seen", "gradient", 1) is None, "learning has a loop of its own, after acting"
    assert slots(program, "seen") == {"i": "1", "t": "all"}


@pytest.mark.parametrize(
    ("returns", "n", "expected"),
    [("td", 1, 1), ("rewards", 1, 0), ("rewards", 3, 2), ("rewards", 6, 5), ("values", 1, 1), ("values", 4, 4)],
)
def test_learning_is_interleaved_at_the_smallest_lag(returns: str, n: int, expected: int) -> None:
    """`gradient[t + 1]` is written `expected` iterations after `seen[t + 1]`, whose iteration makes the reward of t."""
    program = compiled(programs.reinforce(returns, n))
    assert lag(program, "seen", "gradient", 1) == expected
    assert slots(program, "gradient") == {"i": "1", "t": "1"}, "a register"
    kept = slots(program, "seen")
    assert kept["i"] == "1"
    # Steps t - lag to t are read in the iteration that writes t + 1, and writes come first.
    assert int(kept["t"]) <= expected + 2


def test_td_keeps_a_constant_number_of_everything() -> None:
    memory = pr.compile(programs.reinforce("td"), backend="numpy").memory
    assert memory.kept({"I": 3, "T": 10}) == memory.kept({"I": 3000, "T": 10_000})


@pytest.mark.parametrize("k", [1, 2, 5, 16])
def test_a_filter_of_k_taps_keeps_k_values(k: int) -> None:
    (storage,) = (s for s in compiled(programs.taps(k)).storage.values() if s.why != "output")
    assert [str(slot.count) for slot in storage.slots] == [str(k)]


def test_the_last_average_needs_a_register() -> None:
    program = compiled(programs.ema())
    assert slots(program, "y") == {"t": "1"}
    assert program.loops.places["y"].kind == "variable"


@pytest.mark.parametrize("w", [1, 4, 32])
def test_windowed_attention_keeps_w_keys_and_values(w: int) -> None:
    program = compiled(programs.window(w))
    kept = [p for p in program.loops.places.values() if p.kind == "buffer"]
    assert [[str(n) for n in p.slots] for p in kept] == [[str(w)]] * 2
    assert len(program.schedule) == 1, "one loop"


def test_edit_distance_keeps_two_rows() -> None:
    assert slots(compiled(programs.edit_distance()), "d") == {"i": "2", "j": "all"}


def test_a_bidirectional_network_keeps_one_direction() -> None:
    program = compiled(programs.bidirectional())
    kept = sorted((slots(program, "forwards")["t"], slots(program, "backwards")["t"]))
    assert kept == ["1", "all"]
    rates = {loops(program, block_of(program, name))[0][1].rate for name in ("forwards", "backwards")}
    assert rates == {1, -1}


def test_advantages_go_backwards_in_a_register() -> None:
    program = compiled(programs.gae())
    assert slots(program, "advantage") == {"t": "1"}
    assert loops(program, block_of(program, "advantage"))[0][1].rate == -1
    assert len([item for item in program.schedule if isinstance(item, Loop)]) == 1


def test_decoding_is_one_loop_that_keeps_all_keys_and_values() -> None:
    program = compiled(programs.decode())
    assert len([item for item in program.schedule if isinstance(item, Loop)]) == 1
    kept = [p for p in program.loops.places.values() if p.kind == "buffer"]
    assert [[str(n) for n in p.slots] for p in kept] == [["T"]] * 2


def test_training_keeps_one_iteration() -> None:
    program = compiled(programs.training())
    assert slots(program, "h") == {"b": "1", "i": "1", "t": "all"}
    assert slots(program, "keep") == {"i": "1"}
    assert len([item for item in program.schedule if isinstance(item, Loop)]) == 1, "one loop over iterations"


def test_an_effect_against_the_order_of_what_it_reads_is_named() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))

    def read(value: object) -> object:
        return value

    def write(value: object) -> object:
        return value

    first = pr.host(read, [x], effect="file")
    second = pr.host(write, [first[T - 1 - t]], effect="file")
    with pytest.raises(pr.errors.EffectError, match=r"calls of read and write .* the effect 'file'"):
        compiled({"second": second})


def test_the_beginnings_of_many_parameters_are_one_loop() -> None:
    i, I = pr.dim("i")
    u, U = pr.dim("u")
    weights = optim.over(u, dict.fromkeys("abcd", 1.0), outer=i)
    begun = sum((w[0, i] for w in weights.values()), pr.constant(0.0))
    for number, w in enumerate(weights.values(), 1):
        w[u + 1] = w - 0.1 * number * begun
    program = pr.compile([w[U, I - 1] for w in weights.values()], backend="numpy")
    (outer,) = (item for item in program.compiled.schedule if isinstance(item, Loop))
    # One for the first iteration, one for later ones, where each begins with what the last has left; then the updates.
    assert sum(isinstance(item, Loop) for item in outer.body) == 2 + len(weights)
    found, values = program(bounds={U: 2, I: 3}), np.ones(4)
    for _ in range(3):
        values = values - 2 * 0.1 * np.arange(1, 5) * values.sum()
    np.testing.assert_allclose(found, values, rtol=1e-5)
