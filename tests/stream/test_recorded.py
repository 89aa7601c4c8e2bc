"""Cycles against the recorded figures, with one set of constants for all studies.

One constant is calibrated, the write latency, on the coarse attention rows of batch 16.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.streams.moe import MIXTRAL, QWEN
from benchmarks.streams.recorded import ATTENTION_B16, MIXTRAL_B64, TIME_MULTIPLEX
from benchmarks.streams.studies import (
    POLICIES,
    TileSize,
    attention_point,
    dynamic_tiling,
    improvement_distance,
    moe_point,
    tiling_hardware,
)
from benchmarks.streams.traces import DATA_VARIABLE, Trace, Traces, find_traces
from polyrhythm.stream import Hardware
from polyrhythm.stream.directives import Policy
from tests.stream.recorded import published_traces

TRACES = find_traces()
TOLERANCE: dict[Policy, float] = {"coarse": 0.02, "interleave": 0.10, "dynamic": 0.02}


@pytest.fixture(autouse=True)
def traces() -> Traces:
    return published_traces()


def _kv(name: str) -> Trace:
    return next(trace for trace in TRACES.kv_lengths() if trace.name == name)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if k % 3 else []) for k, n in enumerate(ATTENTION_B16)]
)
def test_attention(name: str, policy: Policy) -> None:
    recorded = ATTENTION_B16[name][POLICIES.index(policy)]
    assert attention_point(_kv(name), policy).run.cycles == pytest.approx(recorded, rel=TOLERANCE[policy])


@pytest.mark.parametrize("size", MIXTRAL_B64)
def test_dynamic_tiling(size: TileSize) -> None:
    hardware = tiling_hardware("mixtral", 64, size, "authors")
    point = moe_point(MIXTRAL, TRACES.routing("routing_mixtral_b64"), size, 64, hardware)
    assert point.run.cycles == pytest.approx(MIXTRAL_B64[size][0], rel=0.05)
    assert point.seconds < 5


@pytest.mark.parametrize("regions", TIME_MULTIPLEX)
def test_time_multiplexing(regions: int) -> None:
    trace = TRACES.routing("routing_qwen_b64")
    point = moe_point(QWEN, trace, 32, 48, Hardware(compute=1024), regions)
    assert point.run.cycles == pytest.approx(TIME_MULTIPLEX[regions][0], rel=0.05)
    assert point.seconds < 5


def test_published_factors() -> None:
    """Utilisation of 32 regions against 128, and the largest improvement distance, that of Qwen at batch 64."""
    trace = TRACES.routing("routing_qwen_b64")
    shared, alone = (moe_point(QWEN, trace, 32, 48, Hardware(compute=1024), regions).run for regions in (32, 128))
    assert shared.utilisation / alone.utilisation == pytest.approx(2.64, abs=0.05)
    rows = [row for row in dynamic_tiling(TRACES, ("qwen",), (64,)) if row.convention == "authors_v2"]
    assert improvement_distance(rows) == pytest.approx(2.11, abs=0.02)


def test_a_service_is_82_cycles_a_tile_and_169_a_request() -> None:
    """What the recorded coarse rows say exactly; here it emerges from loads, appends and acknowledged writes."""
    for name, (recorded, _, _) in ATTENTION_B16.items():
        lengths = _kv(name).values
        tiles = int((-(-(lengths + 1) // 32)).sum())
        assert 82 * tiles + 169 * len(lengths) + 4 == recorded
        assert attention_point(_kv(name), "coarse").run.cycles == pytest.approx(recorded, abs=20)


def test_a_folder_that_was_named_and_has_no_traces_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match="where no traces are"):
        published_traces()
