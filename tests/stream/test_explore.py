"""Exploration, FIFO sizing, bottlenecks, capacity and costs, each against brute force or numbers by hand."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from benchmarks.streams.programs.moe import mixture_of_experts
from benchmarks.streams.tables import alone
from polyrhythm.stream import (
    BF16,
    CapacityExceeded,
    Costs,
    Deadlock,
    DirectiveMismatch,
    Hardware,
    OffChip,
    Program,
    Run,
    Selector,
    StreamError,
    accum,
    bottleneck,
    expand,
    exploration,
    explore,
    linear_load,
    linear_store,
    lower,
    map_tiles,
    measure,
    partition,
    promote,
    reassemble,
    roofline_svg,
    simulate,
    smallest_fifos,
    source,
    static,
    tile,
    time_multiplex,
    utilisation_over_time,
)
from polyrhythm.stream.directives import Directive

LAYER = mixture_of_experts()
ROUTING = np.array([[0, 1], [1, 2], [0, 2], [0, 3], [0, 2], [1, 0]], "int32")
SPACE: list[list[Directive | None]] = [
    [tile("token", dynamic=True), *(tile("token", size) for size in (1, 2, 4))],
    [tile("intermediate", size) for size in (2, 4, 8)],
    [None, time_multiplex("expert", 2)],
    [tile("hidden", dynamic=True)],
]


def _data() -> dict[str, Any]:
    shapes = {"tokens": (6, 8), "weights": (6, 2), "up": (4, 8, 8), "gate": (4, 8, 8), "down": (4, 8, 8)}
    return {**{name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, "routing": ROUTING}


def _brute_force() -> dict[str, tuple[int, int]]:
    """Cycles and memory of every schedule, each simulated."""
    found = {}
    for chosen in itertools.product(*SPACE):
        schedule = [directive for directive in chosen if directive is not None]
        program = lower(LAYER.output, schedule, _data(), storage=BF16).program
        hardware = Hardware()
        while True:
            try:
                run = simulate(program, hardware, functional=False)
                break
            except Deadlock:
                hardware = replace(hardware, fifo_depth=4 * hardware.fifo_depth)
        memory = measure(program, hardware).evaluate(run.bindings)["on_chip"]
        found[", ".join(map(str, schedule))] = (run.cycles, memory)
    return found


def test_the_front_is_that_of_all_schedules() -> None:
    everything = _brute_force()
    found = explore(LAYER.output, _data(), space=SPACE, storage=BF16)
    best = {
        figures
        for figures in everything.values()
        if not any(o != figures and o[0] <= figures[0] and o[1] <= figures[1] for o in everything.values())
    }
    assert {(p.figures["cycles"], p.figures["on_chip_bytes"]) for p in found.front} == best
    for point in found.points:
        cycles, memory = everything[point.schedule]
        if point.status == "pruned":
            assert point.figures["cycles"] <= cycles, "a lower bound"
            assert point.figures["on_chip_bytes"] == memory, "known without a run"
            assert (cycles, memory) not in best
        else:
            assert (point.figures["cycles"], point.figures["on_chip_bytes"]) == (cycles, memory)


def test_limits_are_hard_and_say_why() -> None:
    free = explore(LAYER.output, _data(), space=SPACE, storage=BF16)
    limit = sorted(point.figures["on_chip_bytes"] for point in free.front)[0] + 1
    found = explore(LAYER.output, _data(), space=SPACE, storage=BF16, limits={"on_chip_bytes": limit})
    assert all(point.figures["on_chip_bytes"] <= limit for point in found.front)
    over = [point for point in found.points if point.status == "over a limit"]
    assert over
    assert all("on_chip_bytes" in point.reason for point in over)
    nothing = explore(LAYER.output, _data(), space=SPACE, storage=BF16, limits={"on_chip_bytes": 1})
    with pytest.raises(StreamError, match="no schedule of the space fits"):
        _ = nothing.best


def test_it_resumes_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "points.json"
    first = explore(LAYER.output, _data(), space=SPACE[:2] + SPACE[3:], storage=BF16, path=path)
    kept = json.loads(path.read_text())
    kept["points"] = kept["points"][:-2]
    path.write_text(json.dumps(kept))
    runs: list[Program] = []

    def counted(program: Program, *arguments: Any, **named: Any) -> Run:
        runs.append(program)
        return simulate(program, *arguments, **named)

    monkeypatch.setattr(exploration, "simulate", counted)
    again = explore(LAYER.output, _data(), space=SPACE[:2] + SPACE[3:], storage=BF16, path=path)
    assert len(runs) <= 2
    assert again.front == first.front
    with pytest.raises(DirectiveMismatch, match="points of another program"):
        explore(LAYER.output, _data(), Hardware(channels=1), space=SPACE, storage=BF16, path=path)


def test_depths_of_fifos_are_searched() -> None:
    space = SPACE[:2] + SPACE[3:]
    objective = ("cycles", "fifo_bytes")
    found = explore(LAYER.output, _data(), space=space, storage=BF16, objective=objective, fifo_depths=(1, 2, 16, 64))
    names = [point.schedule for point in found.points]
    assert len(set(names)) == len(names) == 4 * prod(map(len, space))
    assert {point.fifo_depth for point in found.points if point.status == "simulated"} <= {1, 2, 16, 64}
    assert all(point.schedule.endswith(f"FIFOs of {point.fifo_depth}") for point in found.front)
    cycles = [point.figures["cycles"] for point in found.front]
    memory = [point.figures["fifo_bytes"] for point in found.front]
    assert cycles == sorted(cycles)
    assert memory == sorted(memory, reverse=True)
    assert {point.fifo_depth for point in found.front} == {1}, "nothing is gained by deeper ones here"


def test_a_depth_that_is_asked_for_is_not_deepened() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    centred, given = x - x[0:T].sum(0), {"x": np.ones(16, np.float32)}
    objective = ("cycles", "fifo_bytes")
    found = explore(centred, given, space=[[None]], objective=objective, fifo_depths=(2, 64, 256))
    status = {point.schedule: point.status for point in found.points}
    assert status == {"FIFOs of 2": "deadlock", "FIFOs of 64": "simulated", "FIFOs of 256": "simulated"}
    assert [point.fifo_depth for point in found.front] == [64]
    assert explore(centred, given, Hardware(fifo_depth=2), space=[[None]]).best.fifo_depth > 2


def test_as_many_schedules_as_wanted_are_drawn_none_twice() -> None:
    space: list[list[Directive | None]]
    space = [[tile("token", n) for n in range(1, 12)], [tile("hidden", n) for n in range(1, 12)]]
    drawn = exploration._schedules(space, 100)
    assert len(set(drawn)) == len(drawn) == 100
    assert drawn == exploration._schedules(space, 100)
    assert len(exploration._schedules(space, 121)) == 121


@pytest.mark.slow
def test_five_hundred_schedules_of_a_qwen_layer_in_two_minutes_and_half_a_gigabyte() -> None:
    found = alone("500 schedules of the experts of Qwen, batch 64, two processes")
    assert float(found["seconds"]) < 120
    assert int(found["memory"].removesuffix(" MB")) < 500, "of the process and two workers"
    counts = {state: int(count) for count, state in (part.split(" ", 1) for part in found["result"].split(", "))}
    assert sum(counts.values()) == 500
    assert counts["simulated"] > 50


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    explore(LAYER.output, _data(), space=SPACE[:2] + SPACE[3:], storage=BF16, jobs=1, progress=True)
    lines = capsys.readouterr().err.strip().splitlines()
    total = prod(map(len, SPACE[:2] + SPACE[3:]))
    assert f"{total} of {total} schedules" in lines[-1]


def test_processes_find_what_one_finds() -> None:
    one = explore(LAYER.output, _data(), space=SPACE[:2] + SPACE[3:], storage=BF16)
    two = explore(LAYER.output, _data(), space=SPACE[:2] + SPACE[3:], storage=BF16, jobs=2)
    assert [point.figures for point in two.front] == [point.figures for point in one.front]


def test_a_space_of_its_own_tables_and_pictures() -> None:
    found = explore(LAYER.output, _data(), storage=BF16, most=30, objective=("cycles", "area"))
    assert len(found.points) <= 30
    assert found.table().count("\n") == 1 + len(found.front)
    assert len(json.loads(found.json())["points"]) == len(found.points)
    assert found.svg().count("<circle") == sum(point.status == "simulated" for point in found.points)
    with pytest.raises(StreamError, match="there is no figure speed"):
        explore(LAYER.output, _data(), objective=("speed",))


def _centred(count: int) -> Program:
    x = source("x", [[1.0] * count], (static(1), static(count)))
    mean = expand(promote(accum("add", x), 0), x, 1)
    return Program(map_tiles("subtract", x, mean))


@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_smallest_fifos(count: int) -> None:
    program = _centred(count)
    found = smallest_fifos(program)
    assert simulate(program, found.on(Hardware())).cycles == found.cycles == found.unlimited
    for name, depth in found.depths.items():
        if depth > 1:
            fewer = replace(Hardware(), fifo_depth=1, fifo_depths={**found.depths, name: depth - 1})
            try:
                assert simulate(program, fewer).cycles > found.cycles
            except Deadlock:
                continue
    assert found.nbytes == 4 * (sum(found.depths.values()) + 1), "one slot for what leaves the program"


def test_fifo_bytes_by_hand() -> None:
    x = source("x", [1.0, 2.0], (static(2),))
    program = Program(map_tiles("exp", map_tiles("negate", x)))
    assert measure(program, Hardware(fifo_depth=3)).evaluate({})["fifo"] == 3 * 3 * 4
    assert measure(program, Hardware(fifo_depth=3, fifo_depths={"negate": 8})).evaluate({})["fifo"] == (3 + 8 + 3) * 4


def _loaded(rows: int, **hardware: Any) -> Any:
    load = linear_load(OffChip("x", 64 * rows, 64), (rows, 64), (64,))
    store = linear_store(OffChip("y", 64 * rows, 64), map_tiles("exp", load))
    return simulate(Program(store), Hardware(**hardware), tracing=True)


def test_bottlenecks() -> None:
    assert bottleneck(_loaded(64, compute=1)).kind == "compute"
    assert bottleneck(_loaded(64, channels=1)).kind == "memory"
    assert bottleneck(_loaded(1)).kind == "dispatch"
    report = bottleneck(_loaded(64, compute=1))
    assert report.chain[-1].process == "exp"
    assert "compute-bound" in str(report)


def test_fifos_that_are_too_shallow_are_named() -> None:
    """Blocks of eight go to two units in turn: with shallow FIFOs one waits while the other works."""
    count, turns = 64, [((k // 8) % 2,) for k in range(64)]
    x = source("x", [1.0] * count, (static(count),))
    routes = source("routes", turns, (static(count),), Selector("routes", 2, 1))
    program = Program(reassemble(map_tiles("exp", partition(x, routes)), routes))
    shallow, deep = (simulate(program, Hardware(compute=1, fifo_depth=depth)) for depth in (1, 16))
    assert shallow.cycles > 1.5 * deep.cycles
    assert (bottleneck(shallow).kind, bottleneck(deep).kind) == ("FIFO", "compute")
    assert any(wait.reason.startswith("space in") for wait in bottleneck(shallow).chain)


def test_energy_and_area_by_hand() -> None:
    run = _loaded(1, costs=Costs(off_chip_byte=2, flop=3, node_cycle=0, flop_area=5, byte_area=7, node_area=11))
    report = bottleneck(run)
    assert report.energy == 2 * (2 * 64 * 256) + 3 * (4 * 64 * 64)
    on_chip = 256 + 256 + 2 * 256 + 2 * 256
    assert report.area == 5 * 4096 + 7 * on_chip + 11 * 3


def test_capacity() -> None:
    program = _loaded(64).program
    needed = measure(program).evaluate({})
    whole = needed["on_chip"] + needed["fifo"]
    assert simulate(program, Hardware(on_chip_capacity=whole)).cycles
    with pytest.raises(CapacityExceeded, match="most is held by"):
        simulate(program, Hardware(on_chip_capacity=whole - 1))


def test_utilisation_over_time_and_roofline() -> None:
    run = _loaded(16)
    shares = utilisation_over_time(run, 10)
    busy = {report.name: report.busy for report in run.reports if report.intervals}
    for name, parts in shares.items():
        assert sum(parts) / 10 * run.cycles == pytest.approx(busy[name], abs=1)
    assert roofline_svg({"a": run, "b": _loaded(64)}).count("<circle") == 2
