"""Traces and timelines of a run."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from polyrhythm.stream import Hardware, Program, Run, StreamError, map_tiles, repeat, simulate, source, static
from polyrhythm.stream.pictures import (
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
