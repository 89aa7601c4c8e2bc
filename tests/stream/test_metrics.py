"""Metrics, exact to the byte: against the recorded figures and against closed forms, from counts in the repository."""

from __future__ import annotations

import numpy as np
import pytest

import polyrhythm as pr
from benchmarks.streams.attention import attention_hardware, build_attention
from benchmarks.streams.counts import ROUTING_COUNTS
from benchmarks.streams.moe import MIXTRAL, QWEN, MoeShape, build_moe, moe_bindings
from benchmarks.streams.recorded import MIXTRAL_B64, TIME_MULTIPLEX
from benchmarks.streams.studies import TileSize
from benchmarks.streams.traces import synthetic_lengths, synthetic_routing
from polyrhythm.stream import Hardware, Program, UnboundSymbol, lower, measure, simulate
from polyrhythm.stream.directives import Directive, parallelize, tile, time_multiplex
from tests.stream.running import assert_consistent


def _layer(shape: MoeShape, stem: str, batch: int, size: TileSize, inner: int, regions: int | None = None) -> Program:
    rows = tile("token", dynamic=True) if size == "dynamic" else tile("token", size)
    schedule: list[Directive] = [rows, tile("intermediate", inner)]
    if regions is not None:
        schedule.append(time_multiplex("expert", regions))
    return build_moe(shape, synthetic_routing(ROUTING_COUNTS[stem], batch), schedule)


@pytest.mark.parametrize("size", MIXTRAL_B64)
def test_mixtral_bytes_are_the_recorded_ones(size: TileSize) -> None:
    program = _layer(MIXTRAL, "routing_mixtral_b64", 64, size, 64)
    counts = {"tokens_of_expert": ROUTING_COUNTS["routing_mixtral_b64"]}
    values = measure(program, active_only=True).evaluate(counts)
    assert (values["off_chip"], values["on_chip"]) == MIXTRAL_B64[size][1:]


@pytest.mark.parametrize("regions", TIME_MULTIPLEX)
def test_time_multiplexed_bytes_are_the_recorded_ones(regions: int) -> None:
    program = _layer(QWEN, "routing_qwen_b64", 64, 32, 48, regions)
    values = measure(program, active_only=True).evaluate({"tokens_of_expert": ROUTING_COUNTS["routing_qwen_b64"]})
    assert values["on_chip"] == TIME_MULTIPLEX[regions][1]


@pytest.mark.parametrize("active_only", [True, False])
@pytest.mark.parametrize("size", [16, "dynamic", *(pytest.param(n, marks=pytest.mark.slow) for n in (8, 64, 1024))])
@pytest.mark.parametrize(
    ("shape", "stem", "batch"),
    [
        (MIXTRAL, "routing_mixtral_b64", 64),
        (MIXTRAL, "routing_mixtral_b1024", 1024),
        (QWEN, "routing_qwen_b64", 64),
        (QWEN, "routing_qwen_b1024", 1024),
    ],
)
def test_closed_forms(shape: MoeShape, stem: str, batch: int, size: TileSize, active_only: bool) -> None:
    counts = np.array(ROUTING_COUNTS[stem])
    hidden, wide, inner, chosen = shape.hidden, shape.intermediate, 64, shape.chosen
    active = int((counts > 0).sum())
    experts = active if active_only else shape.experts
    row_tiles = active if size == "dynamic" else int((-(-counts // size)).sum())
    rows = batch * chosen if size == "dynamic" else experts * size
    off_chip = row_tiles * 3 * hidden * wide * 2 + batch * hidden * 2 + batch * chosen * 2 + batch * hidden * 4
    on_chip = rows * hidden * 4 * 3 + experts * 3 * hidden * inner * 2 + hidden * 2 + 2 + 2 * hidden * 4
    padded = batch * chosen if size == "dynamic" else row_tiles * size
    flops = padded * (6 * hidden * wide + 9 * wide) + 2 * batch * chosen * hidden
    paper = rows * hidden * 4 * 3 + 2 * (experts * 3 * hidden * inner * 2 + hidden * 2 + 2 + hidden * 4) + hidden * 4
    paper += experts * (2 * 16 * hidden + 16 * inner + 3 * hidden * inner * 2)
    program = _layer(shape, stem, batch, size, inner)
    values = measure(program, active_only=active_only).evaluate({"tokens_of_expert": counts})
    assert values["off_chip"] == off_chip
    assert values["on_chip"] == on_chip
    assert values["flops"] == flops
    assert values["on_chip_paper"] == paper


def test_burst_rounding_sees_what_narrow_tiles_cost() -> None:
    """Rows of 96 bytes move as 128: a third more for up and gate, 1.22 times over all."""
    program = _layer(QWEN, "routing_qwen_b64", 64, 32, 48)
    metrics = measure(program)
    values = metrics.evaluate({"tokens_of_expert": ROUTING_COUNTS["routing_qwen_b64"]})
    weights = 61 * 3 * 2048 * 768 * 2
    assert values["off_chip_burst"] - values["off_chip"] == pytest.approx(weights * 2 / 9, rel=1e-3)
    assert values["off_chip_burst"] / values["off_chip"] == pytest.approx(1.22, abs=0.005)


@pytest.mark.parametrize("regions", [6, 3, 1])
@pytest.mark.parametrize("size", [4, "dynamic"])
def test_the_simulator_does_what_the_metric_says(size: TileSize, regions: int) -> None:
    shape = MoeShape(hidden=64, intermediate=96, experts=6, chosen=2)
    routing = synthetic_routing((9, 0, 7, 1, 12, 3), 16)
    rows = tile("token", dynamic=True) if size == "dynamic" else tile("token", size)
    program = build_moe(shape, routing, [rows, tile("intermediate", 48), time_multiplex("expert", regions)])
    run = simulate(program, functional=False)
    values = measure(program).evaluate(moe_bindings(shape, routing))
    assert run.bytes_moved == values["off_chip_burst"]
    assert run.flops == values["flops"]


@pytest.mark.parametrize("policy", ["coarse", "interleave", "dynamic"])
def test_attention_metrics_from_the_observed_counts(policy: str) -> None:
    lengths = synthetic_lengths(16, 200, 300).tolist()
    program = build_attention(lengths, [parallelize("request", 4, policy)], safe_softmax=False)  # type: ignore[arg-type]
    run = simulate(program, attention_hardware(), functional=False)
    values = measure(program).evaluate(run.bindings)
    tiles = 200
    # Keys and values are read once and their last tiles written; queries, new rows and results pass once.
    assert values["off_chip"] == 2 * tiles * 4096 + 2 * 16 * 4096 + 16 * (8 * 64 * 2 + 2 * 64 * 2 + 8 * 64 * 4)
    assert values["off_chip_burst"] == run.bytes_moved
    assert values["flops"] == run.flops


def test_metrics_are_symbolic_and_bound_by_name() -> None:
    metrics = measure(_layer(MIXTRAL, "routing_mixtral_b64", 64, 16, 64))
    assert "ceil((tokens_of_expert[i])/16)" in str(metrics.off_chip)
    with pytest.raises(UnboundSymbol, match="tokens_of_expert"):
        metrics.evaluate({})
    counts = {"tokens_of_expert": ROUTING_COUNTS["routing_mixtral_b64"]}
    assert metrics.intensity(counts) == pytest.approx(16, rel=0.01)
    assert metrics.intensity(counts, burst=True) <= metrics.intensity(counts)


def test_a_wider_burst_is_a_knob() -> None:
    program = _layer(QWEN, "routing_qwen_b64", 64, 32, 48)
    counts = {"tokens_of_expert": ROUTING_COUNTS["routing_qwen_b64"]}
    wide = measure(program, Hardware(burst=256)).evaluate(counts)["off_chip_burst"]
    assert wide > measure(program).evaluate(counts)["off_chip_burst"]


@pytest.mark.parametrize("regions", [1, 2, 4])
def test_fifos_behind_shared_regions_hold_the_tiles_of_their_own_branch(regions: int) -> None:
    """Four branches with 1, 0, 2 and 3 steps: what comes back is as large as what was sent, whoever shared a region."""
    step, branch = pr.dim("step")[0], pr.dim("branch")
    parts = pr.input("parts", (3, 3), (branch[0],))[{branch[0]: slice(0, branch[1])}]
    route = pr.input("route", (), (step,), "int32")
    product = pr.matmul(pr.input("x", (3,), (step,)), pr.take(parts, route, 0))
    given = {"x": np.ones((6, 3), np.float32), "parts": np.ones((4, 3, 3), np.float32)}
    given["route"] = np.array([0, 2, 2, 3, 3, 3], np.int32)
    program = lower(product, [tile(step, dynamic=True), time_multiplex(branch[0], regions)], given).program
    assert_consistent(program, Hardware(fifo_depth=8))
    returned = [node for node in program.nodes if node.name == "return to branch"]
    assert len(returned) == (regions < 4)
    for node in returned:
        sizes = node.outputs[0].element.nbytes.evaluate({"steps_of_branch": [1, 0, 2, 3]})
        assert np.asarray(sizes).tolist() == [12, 0, 24, 36]
