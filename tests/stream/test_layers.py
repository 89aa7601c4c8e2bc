"""The two layers: one source, run by NumPy, by JAX and as streams, with equal results under every schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyrhythm as pr
from benchmarks.streams.attention import (
    AttentionData,
    AttentionShape,
    attention_hardware,
    attention_reference,
    build_attention,
)
from benchmarks.streams.moe import MoeData, MoeShape, build_moe, moe_reference
from benchmarks.streams.programs import attention, moe
from benchmarks.streams.programs.attention import decode_attention
from benchmarks.streams.programs.moe import mixture_of_experts
from polyrhythm.stream import Deadlock, Hardware, StreamError, lint, lower, simulate
from polyrhythm.stream.directives import Directive, Policy, parallelize, tile, time_multiplex
from tests.stream.running import assert_consistent

SHAPE = MoeShape(hidden=8, intermediate=12, experts=8, chosen=2)
SMALL = AttentionShape(queries=2, width=4, tile_rows=8)
POLICIES: tuple[Policy, ...] = ("coarse", "interleave", "dynamic")


def _floats(generator: np.random.Generator, *shape: int) -> np.ndarray:
    return (0.4 * generator.normal(size=shape)).astype(np.float32)


def _moe_data(batch: int, seed: int) -> tuple[MoeData, np.ndarray]:
    generator = np.random.default_rng(seed)
    routing = np.array([generator.choice(6, 2, replace=False) for _ in range(batch)])
    wide = (SHAPE.experts, SHAPE.hidden, SHAPE.intermediate)
    data = MoeData(
        _floats(generator, batch, SHAPE.hidden),
        _floats(generator, batch, 2),
        _floats(generator, *wide),
        _floats(generator, *wide),
        _floats(generator, SHAPE.experts, SHAPE.intermediate, SHAPE.hidden),
    )
    return data, routing


def _attention_data(lengths: list[int], seed: int) -> AttentionData:
    generator = np.random.default_rng(seed)
    batch, capacity = len(lengths), 48
    return AttentionData(
        _floats(generator, batch, SMALL.queries, SMALL.width),
        _floats(generator, batch, capacity, SMALL.width),
        _floats(generator, batch, capacity, SMALL.width),
        _floats(generator, batch, SMALL.width),
        _floats(generator, batch, SMALL.width),
    )


def test_the_sources_are_short() -> None:
    for module in (moe, attention):
        assert module.__file__ is not None
        assert len(Path(module.__file__).read_text().splitlines()) < 60


def _moe_schedules() -> list[list[Directive]]:
    inner: list[Directive] = [tile("intermediate", 4), tile("hidden", dynamic=True)]
    rows = [tile("token", size) for size in (1, 3, 16)] + [tile("token", dynamic=True)]
    shared = [[*inner, row, time_multiplex("expert", regions)] for row in rows for regions in (8, 4, 1)]
    return [[], inner, [*inner, time_multiplex("expert", 2)], *shared]


def test_the_experts_on_numpy_jax_and_streams() -> None:
    """One tensor, compiled twice and lowered under every schedule; a plain NumPy loop says what is right."""
    layer = mixture_of_experts()
    data, routing = _moe_data(7, seed=1)
    inputs = {"routing": routing.astype(np.int32), **vars(data)}
    expected = moe_reference(data, routing)
    for backend in ("numpy", "jax"):
        np.testing.assert_allclose(pr.compile(layer.output, backend=backend)(**inputs), expected, rtol=1e-5, atol=1e-5)
    for schedule in _moe_schedules():
        simulated = lower(layer.output, schedule, inputs)(Hardware(fifo_depth=64))
        np.testing.assert_allclose(simulated, expected, rtol=1e-5, atol=1e-5, err_msg=str(schedule))


def test_an_expert_may_be_chosen_twice_by_one_token() -> None:
    layer = mixture_of_experts()
    data, _ = _moe_data(4, seed=2)
    routing = np.array([[1, 1], [0, 3], [2, 2], [3, 0]])
    inputs = {"routing": routing.astype(np.int32), **vars(data)}
    for schedule in _moe_schedules()[1::3]:
        simulated = lower(layer.output, schedule, inputs)(Hardware(fifo_depth=64))
        np.testing.assert_allclose(simulated, moe_reference(data, routing), rtol=1e-5, atol=1e-5)


def test_one_hot_routing_is_routing() -> None:
    """A layer of experts written with one-hot vectors is sent to branches too; a number that names none is not."""
    token, _ = pr.dim("token")
    expert, E = pr.dim("expert")
    x = pr.input("x", (3,), (token,))
    route = pr.input("route", (), (token,), "int32")
    weights = pr.input("weights", (3, 2), (expert,))
    output = pr.matmul(x, pr.einsum("e,eij->ij", pr.one_hot(route, E), weights[0:E]))
    generator = np.random.default_rng(4)
    inputs = {"x": _floats(generator, 6, 3), "weights": _floats(generator, 4, 3, 2)}
    for routes, is_routed in (([0, 3, 1, 1, 3, 0], True), ([0, 9, 1, 1, 3, 0], False)):
        inputs["route"] = np.array(routes, np.int32)
        lowered = lower(output, [tile(token, 2), time_multiplex(expert, 2)] if is_routed else [], inputs)
        assert ("to expert" in [node.name for node in lowered.program.nodes]) == is_routed
        expected = pr.evaluate(output, inputs)
        np.testing.assert_allclose(lowered(Hardware(fifo_depth=64)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("safe", [True, False])
def test_attention_on_numpy_jax_and_streams(safe: bool) -> None:
    """Results and updated caches, with ragged lengths, compiled twice and lowered under every schedule."""
    step = decode_attention(SMALL.queries, SMALL.width, safe)
    lengths = [3, 0, 17, 40, 8, 7, 25]
    data = _attention_data(lengths, seed=3)
    inputs = {"length": np.array(lengths, np.int32), **vars(data)}
    expected: dict[str, Any] = {"output": attention_reference(data, lengths)}
    for name in ("key", "value"):
        expected[name] = getattr(data, name).copy()
        expected[name][np.arange(len(lengths)), lengths] = getattr(data, f"new_{name}")
    schedules: list[list[Directive]] = [[], [tile("kv", 8)]]
    for policy in POLICIES:
        schedules += [[parallelize(step.request, 2, policy, block=2)]]
        schedules += [[tile(step.kv, rows), parallelize(step.request, 3, policy, block=2)] for rows in (8, 16, 48)]
    results = [pr.compile(step.outputs, backend=backend)(**inputs) for backend in ("numpy", "jax")]
    for schedule in schedules:
        dealt = any("parallelize" in str(directive) for directive in schedule)
        hardware = attention_hardware() if dealt else Hardware(fifo_depth=4096)
        results.append(lower(step.outputs, schedule, inputs)(hardware))
    for result in results:
        for name, right in expected.items():
            found = result[name] if result[name].shape == right.shape else result[name].swapaxes(0, 1)
            np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("regions", [8, 4, 2, 1])
@pytest.mark.parametrize("size", [1, 3, 16, None])
def test_every_schedule_of_the_experts_gives_the_same_result(size: int | None, regions: int) -> None:
    data, routing = _moe_data(13, seed=regions)
    rows = tile("token", dynamic=True) if size is None else tile("token", size)
    program = build_moe(SHAPE, routing, [rows, tile("intermediate", 4), time_multiplex("expert", regions)], data)
    hardware = Hardware(fifo_depth=16)
    run = simulate(program, hardware)
    np.testing.assert_allclose(run.arrays["output"], moe_reference(data, routing), rtol=1e-5, atol=1e-5)
    assert simulate(program, hardware, functional=False).cycles == run.cycles


@given(st.lists(st.integers(0, 40), min_size=1, max_size=9), st.sampled_from(POLICIES))
@settings(max_examples=15)
def test_every_policy_of_attention_gives_the_same_result(lengths: list[int], policy: Policy) -> None:
    batch = len(lengths)
    data = _attention_data(lengths, seed=batch)
    expected = attention_reference(data, lengths)
    for safe in (True, False):
        directive = parallelize("request", 3, policy, block=2)
        program = build_attention(lengths, [directive], SMALL, data, safe_softmax=safe)
        run = simulate(program, attention_hardware())
        found = run.arrays["output 0"].reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        for request, length in enumerate(lengths):
            rows = run.arrays["key"].reshape(batch, -1, SMALL.width)
            np.testing.assert_array_equal(rows[request, length], data.new_key[request])
        assert simulate(program, attention_hardware(), functional=False).cycles == run.cycles


@pytest.mark.parametrize("regions", [8, 2])
@pytest.mark.parametrize("size", [3, None])
def test_shapes_and_metrics_of_the_experts_are_what_a_run_shows(size: int | None, regions: int) -> None:
    data, routing = _moe_data(9, seed=5)
    rows = tile("token", dynamic=True) if size is None else tile("token", size)
    program = build_moe(SHAPE, routing, [rows, tile("intermediate", 4), time_multiplex("expert", regions)], data)
    assert_consistent(program, Hardware(fifo_depth=64))


@pytest.mark.parametrize("policy", POLICIES)
def test_shapes_and_metrics_of_attention_are_what_a_run_shows(policy: Policy) -> None:
    lengths = [3, 0, 17, 40, 8]
    data = _attention_data(lengths, seed=6)
    for safe in (True, False):
        schedule = [parallelize("request", 2, policy, block=3)]
        program = build_attention(lengths, schedule, SMALL, data, safe_softmax=safe)
        assert_consistent(program, Hardware(fifo_depth=64, fifo_depths={"metadata": 64, "write back": 64}))


def test_safe_softmax_survives_scores_that_overflow() -> None:
    ones = np.ones((1, 2, 4))
    data = AttentionData(1e3 * ones, 1e3 * np.ones((1, 8, 4)), np.ones((1, 8, 4)), np.ones((1, 4)), np.ones((1, 4)))
    run = simulate(build_attention([3], [parallelize("request", 1)], SMALL, data), attention_hardware())
    np.testing.assert_allclose(run.arrays["output 0"], 1.0)


def test_the_lint_has_nothing_to_say_about_the_layers() -> None:
    routing = np.array([[0, 1], [2, 3], [0, 3]])
    for rows in (tile("token", 2), tile("token", dynamic=True)):
        for regions in (8, 2):
            schedule: list[Directive] = [rows, tile("intermediate", 4), time_multiplex("expert", regions)]
            assert lint(build_moe(SHAPE, routing, schedule), Hardware()) == []
    for policy in POLICIES:
        program = build_attention([40, 50, 60], [parallelize("request", 2, policy)])
        assert lint(program, attention_hardware()) == []


def test_shallow_fifos_deadlock_when_an_expert_is_rare() -> None:
    """The expert's only token comes last; everyone else's results wait for it, and so does the token stream."""
    routing = np.array([[0, 1]] * 40 + [[0, 2]])
    order = np.vstack([routing[-1:], routing[:-1]])
    program = build_moe(SHAPE, order, [tile("token", 2), tile("intermediate", 12)])
    with pytest.raises(Deadlock, match=r"to expert .*by token"):
        simulate(program, Hardware(fifo_depth=1), functional=False)
    simulate(program, Hardware(fifo_depth=64), functional=False)


def test_missing_directives_are_named() -> None:
    with pytest.raises(StreamError, match="tile directives"):
        build_moe(SHAPE, np.array([[0, 1]]), [])
    with pytest.raises(StreamError, match="parallelize directive"):
        build_attention([3], [])
    with pytest.raises(StreamError, match="either a size or dynamic"):
        tile("token")
    with pytest.raises(StreamError, match="policy"):
        parallelize("request", 2, "random")  # type: ignore[arg-type]
