"""Traces and timelines of a run."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from benchmarks.streams.moe import MoeShape, build_moe
from benchmarks.streams.traces import synthetic_routing
from polyrhythm.stream import (
    Hardware,
    Program,
    Run,
    StreamError,
    map_tiles,
    measure,
    repeat,
    simulate,
    source,
    static,
    tile,
)
from polyrhythm.stream.pictures import (
    _COLOURS,
    chrome_trace,
    node_utilisation,
    report,
    timeline_svg,
    write_chrome_trace,
)


@pytest.fixture
def run() -> Run:
    x = source("x", [1.0, 2.0], (static(2),))
    return simulate(Program(map_tiles("exp", repeat(x, 3, name="thrice"))), Hardware(compute=1), tracing=True)


def test_every_busy_interval_is_an_event(run: Run, tmp_path: Path) -> None:
    write_chrome_trace(run, tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace == chrome_trace(run)
    names = {event["pid"]: event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    bars = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    busy = {name: sum(bar["dur"] for bar in bars if names[bar["pid"]] == name) for name in names.values()}
    assert busy["exp"] == 6 * 4
    assert busy["thrice"] == 6
    assert max(bar["ts"] + bar["dur"] for bar in bars) == run.cycles


def test_the_svg_is_well_formed_and_names_the_nodes(run: Run) -> None:
    text = timeline_svg(run)
    ElementTree.fromstring(text)
    assert ">exp<" in text
    assert ">thrice<" in text


def test_the_svg_stays_small_however_long_the_run() -> None:
    x = source("x", [1.0], (static(1),))
    long = simulate(Program(map_tiles("exp", repeat(x, 20_000))), Hardware(compute=1), tracing=True)
    assert len(timeline_svg(long)) < 400_000


def test_the_page_lists_the_utilisation_of_every_node(run: Run) -> None:
    assert "thrice" in report(run, "A small program")
    shares = {name: busy for name, _, busy, _ in node_utilisation(run)}
    assert shares["exp"] == pytest.approx(24 / run.cycles)


def test_a_run_without_tracing_says_so() -> None:
    x = source("x", [1.0], (static(1),))
    with pytest.raises(StreamError, match="kept no intervals"):
        timeline_svg(simulate(Program(map_tiles("exp", x))))


def test_copies_are_grouped_compute_is_shown_and_what_is_left_out_is_named() -> None:
    routing = synthetic_routing([2] * 16, 16)
    program = build_moe(MoeShape(16, 32, 16, 2), routing, [tile("token", 2), tile("intermediate", 16)])
    traced = simulate(program, Hardware(compute=64, fifo_depth=64), functional=False, tracing=True)
    whole, cut = timeline_svg(traced), timeline_svg(traced, most_lines=6)
    assert "load gate ×16" in whole
    assert "einsum gate ×16" in whole or "einsum ×16" in whole
    assert _COLOURS["compute"] in cut
    assert "left out" in cut
    assert "left out" not in whole


def test_programs_and_metrics_are_text() -> None:
    program = build_moe(MoeShape(4, 8, 2, 1), np.array([[0], [1]]), [tile("token", 2), tile("intermediate", 4)])
    assert "to expert = partition(load tokens" in str(program)
    assert "0x" not in str(program)
    lines = str(measure(program)).splitlines()
    assert [line.split(":")[0] for line in lines][:3] == ["off_chip", "off_chip_burst", "on_chip"]
    assert "tokens_of_expert" in lines[0]
    assert "Expr(" not in str(measure(program))
