"""The studies: their rows, their conventions, and the traces that stand in for missing data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks.streams import studies
from benchmarks.streams.counts import KV_COUNTS, ROUTING_COUNTS
from benchmarks.streams.studies import Row, improvement_distance
from benchmarks.streams.tables import PAGE, RESULTS, page
from benchmarks.streams.traces import Trace, Traces, find_traces, synthetic_lengths, synthetic_routing
from tests.stream.recorded import published_traces

KEYS = [
    "study", "model", "batch", "tile", "regions", "policy", "trace", "convention", "cycles", "off_chip_bytes",
    "off_chip_bytes_burst", "on_chip_bytes", "on_chip_bytes_paper", "utilisation", "seconds",
]  # fmt: skip


@pytest.fixture(scope="module")
def tiling() -> list[Row]:
    """The tiling study of Mixtral at batch 64 alone."""
    return list(studies.dynamic_tiling(Traces(None), ("mixtral",), (64,)))


def test_a_row_has_every_key(tiling: list[Row]) -> None:
    assert list(asdict(tiling[0])) == KEYS
    assert [(row.tile, row.convention) for row in tiling[:3]] == [
        (8, "authors"), (8, "authors_v2"), (8, "like_for_like")
    ]  # fmt: skip
    assert {row.tile for row in tiling} == {8, 16, 32, 64, "dynamic"}
    assert all(type(row.cycles) is int and type(row.on_chip_bytes) is int for row in tiling)
    assert all(row.trace == "synthetic" and row.regions is None and row.policy is None for row in tiling)
    json.dumps([asdict(row) for row in tiling])


def test_dynamic_tiling_dominates_static_tiles_of_its_memory(tiling: list[Row]) -> None:
    """The published distance for this layer is 1.33, in every convention."""
    for convention in ("authors", "authors_v2", "like_for_like"):
        rows = [row for row in tiling if row.convention == convention]
        assert improvement_distance(rows) == pytest.approx(1.33, abs=0.01)


def test_conventions() -> None:
    assert studies.tiling_hardware("mixtral", 64, "dynamic", "authors").compute == 6400
    assert studies.tiling_hardware("mixtral", 64, 16, "authors").compute == 4096
    assert studies.tiling_hardware("mixtral", 64, "dynamic", "like_for_like").compute == 4096
    assert studies.tiling_hardware("qwen", 1024, 16, "authors").fifo_depth == 1024
    assert studies.tiling_hardware("qwen", 64, 16, "authors").fifo_depth == 2
    active = {(size, c): studies.counts_active_only(size, c) for size in (16, "dynamic") for c in _conventions()}
    assert [key for key, value in active.items() if value] == [
        (16, "authors"), ("dynamic", "authors"), ("dynamic", "authors_v2")
    ]  # fmt: skip


def _conventions() -> tuple[studies.Convention, ...]:
    return ("authors", "authors_v2", "like_for_like")


def test_allocated_compute_follows_the_regions() -> None:
    trace = Traces(None).routing("routing_qwen_b64")
    allocated = {
        regions: studies.moe_point(studies.QWEN, trace, 32, 48, studies.Hardware(compute=1024), regions)
        for regions in (128, 16)
    }
    assert allocated[128].run.allocated_flops == 6 * 1024 * 128 + 1024
    assert allocated[16].run.allocated_flops == 5 * 1024 * 16 + 128 * 1024 + 1024


def test_synthetic_traces_have_the_published_counts() -> None:
    for stem, counts in ROUTING_COUNTS.items():
        routing = synthetic_routing(counts, int(stem.rsplit("_b", 1)[1]))
        assert tuple(np.bincount(routing.ravel(), minlength=len(counts))) == counts
        assert all(len(set(row)) == len(row) for row in routing.tolist())
    for batch, tiles, deviation in KV_COUNTS.values():
        lengths = synthetic_lengths(batch, tiles, deviation)
        assert len(lengths) == batch
        assert int((-(-(lengths + 1) // 32)).sum()) == tiles
        assert lengths.min() >= 0


def test_counts_are_those_of_the_data() -> None:
    traces = published_traces()
    for stem, counts in ROUTING_COUNTS.items():
        assert tuple(np.bincount(traces.routing(stem).values.ravel(), minlength=len(counts))) == counts
    for trace in traces.kv_lengths():
        tiles = int((-(-(trace.values + 1) // 32)).sum())
        assert KV_COUNTS[trace.name][:2] == (len(trace.values), tiles)


def test_recorded_comparisons_are_not_skipped_where_the_data_is() -> None:
    beside = Path(__file__).resolve().parents[3] / "shared" / "data" / "step" / "routing_mixtral_b64.npz"
    if "POLYRHYTHM_STEP_DATA" not in os.environ and beside.exists():
        assert find_traces().folder == beside.parent


def test_the_folder_is_chosen_by_argument_then_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    np.savez(tmp_path / "routing_mixtral_b64.npz", data=np.zeros((1, 2), np.int64))
    monkeypatch.setenv("POLYRHYTHM_STEP_DATA", str(tmp_path))
    assert find_traces().folder == tmp_path
    assert find_traces("/nowhere").folder is None
    monkeypatch.setenv("POLYRHYTHM_STEP_DATA", "/nowhere")
    assert find_traces().folder is None


def test_the_command_line_writes_rows_and_plots(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], tiling: list[Row]
) -> None:
    attention = [
        row
        for trace in (Trace("synthetic", np.array([12, 3, 20])),)
        for row in studies.dynamic_parallelization(_Only([trace]))  # type: ignore[arg-type]
    ]
    multiplexed = [Row(**{**asdict(tiling[0]), "study": "time_multiplex", "tile": 32, "regions": 4})]
    monkeypatch.setattr(studies, "dynamic_tiling", lambda traces: iter(tiling))
    monkeypatch.setattr(studies, "time_multiplexing", lambda traces: iter(multiplexed))
    monkeypatch.setattr(studies, "dynamic_parallelization", lambda traces: iter(attention))
    monkeypatch.setattr(studies, "decoder_layers", lambda traces: iter(()))
    assert studies.main(["--out", str(tmp_path / "out"), "--data", "/nowhere"]) == 0
    assert "synthetic traces" in capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / "studies.json").read_text())
    assert all(list(row) == KEYS for row in rows)
    assert {row["policy"] for row in rows if row["study"] == "dynamic_parallel"} == {"coarse", "interleave", "dynamic"}
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".json", ".png", ".png", ".png"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mixtral", "qwen"])
def test_whole_layers_have_rows_for_every_tile(model: str) -> None:
    rows = list(studies.decoder_layers(find_traces("/nowhere"), (model,)))
    assert {row.tile for row in rows} == {*studies.STATIC_TILES[64], "dynamic"}
    assert all(row.cycles > 0 for row in rows)


class _Only:
    """Traces that hold nothing but the given KV lengths."""

    def __init__(self, kept: list[Trace]) -> None:
        self.kept = kept

    def kv_lengths(self) -> list[Trace]:
        return self.kept


@pytest.mark.slow
def test_all_studies_run_in_two_minutes_and_half_a_gigabyte(tmp_path: Path) -> None:
    """In a process of its own, whose memory is nobody else's."""
    code = (
        "import resource, sys, time; from benchmarks.streams.studies import main; main(['--out', sys.argv[1]]); "
        "print(time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True)
    seconds, kilobytes = run.stdout.splitlines()[-1].split()
    assert float(seconds) < 120
    assert int(kilobytes) < 500_000
    rows = [Row(**row) for row in json.loads((tmp_path / "studies.json").read_text())]
    assert all(row.seconds < 5 for row in rows)
    keys = [(r.study, r.model, r.batch, r.tile, r.regions, r.policy, r.trace, r.convention) for r in rows]
    assert len(set(keys)) == len(keys)


def test_the_tables_of_the_page_are_those_of_the_results() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert page(json.loads(RESULTS.read_text()), written) == written, "write it: `python -m benchmarks.streams.tables`"
    assert set(json.loads(RESULTS.read_text())) == {
        "improvement", "headlines", "recorded", "search", "options", "speed"
    }  # fmt: skip
