"""The scheduler on generated dependences: its order is right, its lag the smallest, and it refuses only cycles."""

from __future__ import annotations

from random import Random

import pytest

from polyrhythm.compiler.ir.conditions import conjunction, ge, lt
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.schedule.blocks import Block
from polyrhythm.compiler.schedule.dependences import Dependence
from polyrhythm.compiler.schedule.scheduler import Loop, ScheduleError, schedule
from tests.compiler.schedule.enumeration import all_pairs, has_cycle, violations, when
from tests.compiler.schedule.generated import DIMS, make_block, make_dependence, program, uniform

SMALL = {"I": 4, "T": 4, "U": 3}
LARGER = (SMALL, {"I": 6, "T": 6, "U": 3}, {"I": 9, "T": 9, "U": 3}, {"I": 9, "T": 5, "U": 5})
I, T, U = DIMS["i"], DIMS["t"], DIMS["u"]


@pytest.mark.parametrize("start", range(0, 900, 150))
def test_generated_programs(start: int) -> None:
    """Either every source comes before its reader, or there is a cycle."""
    ordered = 0
    for seed in range(start, start + 150):
        blocks, dependences = program(Random(seed))
        try:
            items = schedule(blocks, dependences)
        except ScheduleError:
            found = any(has_cycle(dependences, blocks, bounds) for bounds in LARGER)
            assert found, f"program {seed} is refused and has no cycle"
            continue
        assert not violations(items, blocks, dependences, SMALL), f"program {seed}"
        ordered += 1
    assert ordered >= 50


@pytest.mark.parametrize("seed", range(40))
def test_lag_of_a_producer_and_a_consumer(seed: int) -> None:
    """Two blocks share a loop, and the consumer runs as many iterations later as its furthest read is ahead."""
    random = Random(seed)
    producer, consumer = make_block("producer", (T,)), make_block("consumer", (T,))
    blocks = {"producer": producer, "consumer": consumer}
    dependences = [uniform(producer, producer, t=-1)]  # goes forwards
    for _ in range(random.randint(1, 3)):
        ahead = random.randint(-4, 4)
        if random.random() < 0.3:
            k = Symbol("k0", "dim", serial=-1)
            length = random.randint(1, 4)
            steps = {T: Term.of(T) + ahead + Term.of(k)}
            known = conjunction(ge(Term.of(k), 0), lt(Term.of(k), length))
            dependences.append(make_dependence(producer, consumer, steps, known))
        else:
            dependences.append(uniform(producer, consumer, t=ahead))
    items = schedule(blocks, dependences)
    bounds = {"T": 12}
    assert len(items) == 1
    (loop,) = items
    assert isinstance(loop, Loop)
    have = (loop.members["consumer"].offset - loop.members["producer"].offset).constant
    # The order within an iteration is free, so the lag is the furthest step read.
    pairs = [(s, r) for s, r in all_pairs(dependences, blocks, bounds) if r[0] == "consumer"]
    assert have == max(source[1][0] - reader[1][0] for source, reader in pairs)


def test_lags_add_up_along_a_chain() -> None:
    blocks = {name: make_block(name, (T,)) for name in "abcd"}
    reads = {"b": 2, "c": -1, "d": 3}
    dependences = [uniform(blocks["a"], blocks["a"], t=-1)]
    for source, reader in zip("abc", "bcd", strict=True):
        dependences.append(uniform(blocks[source], blocks[reader], t=reads[reader]))
    (loop,) = schedule(blocks, dependences)
    assert isinstance(loop, Loop)
    offsets = {name: member.offset.constant for name, member in loop.members.items()}
    assert offsets["d"] - offsets["a"] == 4


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_blocks_that_can_be_aligned_are(start: int) -> None:
    """Where every block has a delay of its own that all reads agree with, the iterations are independent."""
    for seed in range(start, start + 20):
        random = Random(seed)
        delays = [random.randint(0, 4) for _ in range(6)]
        blocks = {f"b{n}": make_block(f"b{n}", (T,)) for n in range(6)}
        dependences = [
            uniform(blocks[f"b{source}"], blocks[f"b{reader}"], t=delays[source] - delays[reader])
            for reader in range(1, 6)
            for source in random.sample(range(reader), min(reader, 2))
        ]
        items = schedule(blocks, dependences)
        assert all(isinstance(item, Loop) and item.parallel for item in items), seed
        assert len(items) == 1, seed
        for bounds in ({"T": n} for n in (0, 1, 2, 5, 9)):
            assert not violations(items, blocks, dependences, bounds), seed


def test_a_declared_limit_does_not_join_what_waits_for_all_steps() -> None:
    """With at most 64 steps every distance is bounded, but a loop of both would do one of them at a time."""
    bound = Symbol("J", "bound", max=Term(64))
    dim = Symbol("j", "dim", bound=bound)
    k = Symbol("k0", "dim", serial=-1)
    box = conjunction(ge(Term.of(dim), 0), lt(Term.of(dim), Term.of(bound)))
    a, b = (Block(name, (dim,), box, ()) for name in "ab")
    known = conjunction(ge(Term.of(k), 0), lt(Term.of(k), Term.of(bound)))
    whole = make_dependence(a, b, {dim: Term.of(k)}, known)
    near = uniform(a, b, t=0)
    for own in ([], [make_dependence(a, a, {dim: Term.of(dim) - 1})]):
        items = schedule({"a": a, "b": b}, [*own, whole, near])
        assert [list(item.members) for item in items if isinstance(item, Loop)] == [["a"], ["b"]]


def test_unbounded_distance_distributes() -> None:
    """What needs all of a value runs after its loop."""
    a, b = make_block("a", (T,)), make_block("b", (T,))
    k = Symbol("k0", "dim", serial=-1)
    steps = {T: Term.of(T) + Term.of(k)}
    rest = make_dependence(a, b, steps, ge(Term.of(k), 0))
    blocks = {"a": a, "b": b}
    items = schedule(blocks, [uniform(a, a, t=-1), rest])
    assert len(items) == 2
    assert not violations(items, blocks, [rest], {"T": 5})


def test_backward_recurrence() -> None:
    a = make_block("a", (T,))
    (loop,) = schedule({"a": a}, [uniform(a, a, t=1)])
    assert isinstance(loop, Loop)
    assert loop.members["a"].rate == -1


def test_inner_dim_carries_what_the_outer_leaves() -> None:
    a = make_block("a", (I, T))
    dependences = [uniform(a, a, i=-1, t=1), uniform(a, a, i=0, t=-1)]
    items = schedule({"a": a}, dependences)
    assert not violations(items, {"a": a}, dependences, SMALL)


def test_old_values_are_read_before_new_ones_are_written() -> None:
    """`reader` at t needs `state` at t - 1; run before the write of t, it lets the state stay in a register."""
    state, reader = make_block("state", (T,)), make_block("reader", (T,))
    blocks = {"state": state, "reader": reader}
    dependences = [uniform(state, state, t=-1), uniform(state, reader, t=-1)]
    items = schedule(blocks, dependences)
    times = when(items, blocks, {"T": 4})
    for t in range(3):
        assert times["state", (t,)] < times["reader", (t + 1,)] < times["state", (t + 1,)]


def _joined(items: object) -> list[set[str]]:
    assert isinstance(items, tuple)
    return [set(item.members) if isinstance(item, Loop) else {item} for item in items]


def test_a_producer_follows_the_dim_of_its_consumer() -> None:
    """Not the first dim it has: a loop over i takes a producer over (b, i) along i."""
    total = make_block("total", (T,))
    part = make_block("part", (I, T))
    k = Symbol("k0", "dim", serial=-1)
    bound = I.bound
    assert bound is not None
    known = conjunction(ge(Term.of(k), 0), lt(Term.of(k), Term.of(bound)))
    dependences = [
        make_dependence(part, total, {I: Term.of(k), T: Term.of(T)}, known),
        uniform(total, total, t=-1),
    ]
    items = schedule({"part": part, "total": total}, dependences)
    assert _joined(items) == [{"part", "total"}]
    assert items[0].members["part"].dim is T  # type: ignore[union-attr]


def test_a_producer_joins_a_loop_past_a_block() -> None:
    """Read by a lone block and by a loop, a producer shares the loop; the block comes after."""
    source, loop = make_block("source", (T,)), make_block("loop", (T,))
    lone = make_block("lone", ())
    bound = T.bound
    assert bound is not None
    blocks = {"source": source, "lone": lone, "loop": loop}
    dependences = [
        uniform(source, source, t=-1),
        make_dependence(source, lone, {T: Term.of(bound) - 1}),
        uniform(source, loop),
    ]
    items = schedule(blocks, dependences)
    assert _joined(items) == [{"source", "loop"}, {"lone"}]
    assert not violations(items, blocks, dependences, SMALL)


def test_a_producer_does_not_join_past_what_its_consumer_needs() -> None:
    """loop needs lone, which needs the last of source: source cannot share the loop."""
    blocks: dict[str, Block] = {
        "source": make_block("source", (T,)),
        "lone": make_block("lone", ()),
        "loop": make_block("loop", (T,)),
    }
    bound = T.bound
    assert bound is not None
    dependences: list[Dependence] = [
        uniform(blocks["source"], blocks["source"], t=-1),
        make_dependence(blocks["source"], blocks["lone"], {T: Term.of(bound) - 1}),
        uniform(blocks["source"], blocks["loop"]),
        make_dependence(blocks["lone"], blocks["loop"], {}),
    ]
    items = schedule(blocks, dependences)
    assert _joined(items) == [{"source"}, {"lone"}, {"loop"}]
    assert not violations(items, blocks, dependences, SMALL)


def test_a_cycle_is_refused() -> None:
    a, b = make_block("a", (T,)), make_block("b", (T,))
    with pytest.raises(ScheduleError):
        schedule({"a": a, "b": b}, [uniform(a, b, t=1), uniform(b, a, t=-1)])


def test_a_skewed_recurrence_is_a_loop_over_a_combination_of_dims() -> None:
    """Only ranks such as 3i - 2t order it."""
    a = make_block("a", (I, T))
    dependences = [uniform(a, a, i=1, t=2), uniform(a, a, i=-1, t=-1)]
    (loop,) = schedule({"a": a}, dependences)
    assert isinstance(loop, Loop)
    assert loop.members["a"].dim is None
    assert loop.members["a"].time.symbols == {I, T}
    assert not violations((loop,), {"a": a}, dependences, {"I": 9, "T": 9})
