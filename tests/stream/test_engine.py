"""Time: local clocks, bounded FIFOs, shared memory, arrival order, feedback, deadlock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.stream import (
    BF16,
    F32,
    Deadlock,
    Hardware,
    OffChip,
    OpenFeedback,
    Program,
    Selector,
    StopMismatch,
    Stream,
    Tile,
    accum,
    dynamic,
    eager_merge,
    expand,
    feedback,
    linear_load,
    lint,
    map_tiles,
    partition,
    promote,
    repeat,
    restate,
    simulate,
    source,
    stack,
    static,
    zip_streams,
)
from polyrhythm.stream.engine import FluidMemory

TILE = (32, 64)  # in bf16: 64 requests of 64 bytes


def _loads(count: int, name: str = "w") -> Stream:
    return linear_load(OffChip(name, 32 * count, 64, BF16), TILE, (count,), name=name)


@pytest.mark.parametrize("count", [1, 5])
def test_a_loader_has_one_tile_in_flight(count: int) -> None:
    assert simulate(Program(_loads(count)), functional=False).cycles == count * (64 + 18)


def test_a_slow_reader_holds_the_loader_back() -> None:
    """32 FLOPs a cycle: 128 cycles an exponential of 1024 elements, and the loader waits for its slot."""
    slow = Hardware(compute_of={"exp": 64}, fifo_depth=1)
    run = simulate(Program(map_tiles("exp", _loads(6))), slow, functional=False)
    assert run.cycles == 82 + 6 * 128
    loader = next(report for report in run.reports if report.node.name == "w")
    assert loader.finished_at == 82 + 4 * 128  # one tile computed, one in the FIFO, the last one just sent


def test_operands_from_memory_cost_bandwidth_and_results_do_not() -> None:
    x = _loads(1)
    once = map_tiles("negate", x)
    assert simulate(Program(once), functional=False).cycles == 82 + 64
    assert simulate(Program(map_tiles("negate", once)), functional=False).cycles == 82 + 64 + 1


def test_writing_back_makes_the_next_one_pay() -> None:
    once = map_tiles("negate", _loads(1), write_back=True)
    run = simulate(Program(map_tiles("negate", once)), functional=False)
    assert run.cycles == 82 + 128 + 128  # f32 results: 8192 bytes at 64 a cycle, written and read


@pytest.mark.parametrize(("write_back", "cycles"), [(False, 82 + 65 + 1), (True, 82 + 65 + 64 + 64)])
def test_routing_reads_and_may_write_back(write_back: bool, cycles: int) -> None:
    routes = source("routes", [[(0,)]], (static(1), static(1)), Selector("routes", 1))
    routed = partition(_loads(1), routes, write_back=write_back)
    assert simulate(Program(map_tiles("negate", routed)), functional=False).cycles == cycles


def test_loaders_share_the_memory_fairly() -> None:
    """32 loaders ask for 64 bytes a cycle each and get half of it."""
    ends = [_loads(3, f"w{k}") for k in range(32)]
    assert simulate(Program(*ends), functional=False).cycles == 3 * (128 + 18)


@given(st.lists(st.tuples(st.integers(1, 5000), st.sampled_from([16, 64, 256])), min_size=1, max_size=12))
def test_fluid_memory_is_max_min_fair(transfers: list[tuple[int, int]]) -> None:
    """Against the definition, stepped in small increments of time."""
    memory = FluidMemory(300)
    for index, (nbytes, cap) in enumerate(transfers):
        memory.start(0, nbytes, cap, index)
    ends: dict[int, float] = {}
    while memory.next_completion is not None:
        now = memory.next_completion
        for index in memory.finish_due():
            ends[index] = now
    left = {index: float(nbytes) for index, (nbytes, _) in enumerate(transfers)}
    now = 0.0
    while left:
        rates = _max_min({index: transfers[index][1] for index in left}, 300)
        step = min(left[index] / rates[index] for index in left)
        now += step
        for index in list(left):
            left[index] -= rates[index] * step
            if left[index] < 1e-6:
                del left[index]
                assert ends[index] == pytest.approx(now, rel=1e-6)


def _max_min(caps: dict[int, int], bandwidth: float) -> dict[int, float]:
    rates: dict[int, float] = {}
    waiting = dict(caps)
    while waiting:
        share = (bandwidth - sum(rates.values())) / len(waiting)
        small = {index: cap for index, cap in waiting.items() if cap <= share}
        if not small:
            return rates | dict.fromkeys(waiting, share)
        rates |= {index: float(cap) for index, cap in small.items()}
        waiting = {index: cap for index, cap in waiting.items() if index not in small}
    return rates


def test_eager_merge_takes_the_earlier_one_even_if_it_is_found_out_later() -> None:
    """The first port waits for four tiles, the second for one, but then takes more steps to compute."""
    slow = accum("add", linear_load(OffChip("slow", 4, 64), (1, 64), (1, 4)), name="slow sum")
    fast = accum("add", linear_load(OffChip("fast", 1, 64), (1, 64), (1, 1)), name="fast sum")
    for _ in range(6):
        fast = map_tiles("negate", fast)
    _, origin = eager_merge(stack([slow, fast]), 1)
    run = simulate(Program(origin))
    assert [selector[0] for selector in run.nested(origin)] == [1, 0]


def test_a_feedback_loop_carries_a_state() -> None:
    """A running sum without Scan: each number is added to what came out before."""
    numbers = source("numbers", [1.0, 2.0, 3.0], (static(3),))
    loop = feedback("state", (static(3),), Tile(1, 1, F32), initial=[0.0])
    total = map_tiles("add", numbers, loop.stream)
    loop.connect(total)
    run = simulate(Program(total))
    assert [value.item() for value in run.nested(total)] == [1.0, 3.0, 6.0]


def test_a_restated_stream_may_close_a_loop() -> None:
    numbers = source("numbers", [1.0, 2.0, 3.0], (static(3),))
    loop = feedback("state", (dynamic("n"),), Tile(1, 1, F32), initial=[0.0], role="state")
    total = map_tiles("add", numbers, restate(loop.stream, (static(3),)))
    loop.connect(restate(total, (dynamic("n"),), role="state"))
    run = simulate(Program(total), Hardware(fifo_depth=1))
    assert [value.item() for value in run.nested(total)] == [1.0, 3.0, 6.0]


def test_an_open_feedback_loop_is_named() -> None:
    loop = feedback("state", (static(3),), Tile(1, 1, F32), initial=[0.0])
    with pytest.raises(OpenFeedback, match="state was never connected"):
        Program(map_tiles("negate", loop.stream))


def test_credits_limit_what_is_in_flight() -> None:
    """Two credits: a third load starts only when the first has been used."""
    credits = feedback("credit", (static(4),), Tile(1, 1, F32), initial=[1.0, 1.0])
    requests = source("requests", [0.0] * 4, (static(4),))
    admitted = map_tiles("add", requests, credits.stream)
    loaded = linear_load(OffChip("w", 32, 64, BF16), TILE, (1,), ref=admitted)
    used = map_tiles("exp", loaded, name="use")
    credits.connect(accum("maximum", restate(used, used.shape, Tile(1, 1, F32)), name="done"))
    run = simulate(Program(used), Hardware(fifo_depth=8), functional=False)
    assert run.cycles > 4 * 82


def _centred(depth: int) -> tuple[Program, Hardware]:
    x = source("x", [[1.0] * 8], (static(1), static(8)))
    mean = expand(promote(accum("add", x, name="sum"), 0), x, 1, name="spread")
    return Program(map_tiles("subtract", x, mean, name="centre")), Hardware(fifo_depth=depth)


def test_a_deadlock_names_the_cycle_and_the_full_fifos() -> None:
    program, hardware = _centred(2)
    with pytest.raises(Deadlock) as caught:
        simulate(program, hardware)
    text = str(caught.value)
    assert "broadcast x" in text
    assert "full FIFOs: broadcast x." in text
    assert "(depth 2)" in text
    assert "test_engine.py" in text


def test_the_lint_foresees_that_deadlock() -> None:
    program, hardware = _centred(2)
    assert {(w.fork.name, w.join.name) for w in lint(program, hardware)} == {("x", "spread"), ("x", "centre")}
    deep, enough = _centred(8)
    assert lint(deep, enough) == []
    simulate(deep, enough)


def test_the_lint_counts_in_tokens_of_the_fork() -> None:
    """Each token is repeated and folded again, so the long branch holds back one of them, not eight."""
    x = source("x", [1.0, 2.0], (static(2),))
    again = accum("add", repeat(x, 8))
    end = map_tiles("subtract", x, again)
    assert lint(Program(end), Hardware(fifo_depth=1)) == []
    simulate(Program(end), Hardware(fifo_depth=1))


def test_streams_that_disagree_at_run_time_are_named() -> None:
    two = source("two", [[1.0], [2.0]], (static(2), static(1)))
    one = restate(source("one", [[1.0, 2.0]], (static(1), static(2))), two.shape)
    with pytest.raises(StopMismatch, match="the streams two and one close different dims"):
        simulate(Program(zip_streams(two, one)))


def test_a_run_is_deterministic() -> None:
    def once() -> list[tuple[str, int, int]]:
        data = source("data", list(range(40)), (static(40),))
        routes = source("routes", [(k * 7 % 4,) for k in range(40)], (static(40),), Selector("routes", 4))
        parts = map_tiles("exp", repeat(partition(data, routes), 3))
        merged, origin = eager_merge(parts, 1)
        run = simulate(Program(merged, origin))
        return [(report.name, report.busy, report.finished_at) for report in run.reports]

    assert once() == once()


def test_utilisation_counts_only_units_that_compute() -> None:
    run = simulate(Program(map_tiles("exp", repeat(source("x", [1.0], (static(1),)), 4))), Hardware(compute=4))
    assert run.allocated_flops == 4
    assert run.flops == 16
    assert run.utilisation == pytest.approx(16 / (4 * run.cycles))
