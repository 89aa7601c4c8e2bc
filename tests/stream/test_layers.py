"""The two layers: every schedule gives the NumPy result, and functional and timing mode agree on cycles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.stream import Deadlock, Hardware, StreamError, lint, simulate
from polyrhythm.stream.attention import (
    AttentionData,
    AttentionShape,
    attention_hardware,
    attention_reference,
    build_attention,
)
from polyrhythm.stream.directives import Directive, Policy, parallelize, tile, time_multiplex
from polyrhythm.stream.moe import MoeData, MoeShape, build_moe, moe_reference

SHAPE = MoeShape(hidden=8, intermediate=12, experts=8, chosen=2)
SMALL = AttentionShape(queries=2, width=4, tile_rows=8)


def _moe_data(batch: int, seed: int) -> tuple[MoeData, np.ndarray]:
    generator = np.random.default_rng(seed)
    routing = np.array([generator.choice(6, 2, replace=False) for _ in range(batch)])
    wide = (SHAPE.experts, SHAPE.hidden, SHAPE.intermediate)
    data = MoeData(
        generator.normal(size=(batch, SHAPE.hidden)),
        generator.normal(size=(batch, 2)),
        generator.normal(size=wide),
        generator.normal(size=wide),
        generator.normal(size=(SHAPE.experts, SHAPE.intermediate, SHAPE.hidden)),
    )
    return data, routing


@pytest.mark.parametrize("regions", [8, 4, 2, 1])
@pytest.mark.parametrize("size", [1, 3, 16, None])
def test_every_schedule_of_the_experts_gives_the_same_result(size: int | None, regions: int) -> None:
    data, routing = _moe_data(13, seed=regions)
    rows = tile("token", dynamic=True) if size is None else tile("token", size)
    program = build_moe(SHAPE, routing, [rows, tile("intermediate", 4), time_multiplex("expert", regions)], data)
    hardware = Hardware(fifo_depth=16)
    run = simulate(program, hardware)
    np.testing.assert_allclose(run.arrays["output"], moe_reference(data, routing), rtol=1e-10, atol=1e-12)
    assert simulate(program, hardware, functional=False).cycles == run.cycles


@given(st.lists(st.integers(0, 40), min_size=1, max_size=9), st.sampled_from(["coarse", "interleave", "dynamic"]))
@settings(max_examples=25)
def test_every_policy_of_attention_gives_the_same_result(lengths: list[int], policy: Policy) -> None:
    generator = np.random.default_rng(len(lengths))
    batch, capacity = len(lengths), 48
    data = AttentionData(
        generator.normal(size=(batch, SMALL.queries, SMALL.width)),
        generator.normal(size=(batch, capacity, SMALL.width)),
        generator.normal(size=(batch, capacity, SMALL.width)),
        generator.normal(size=(batch, SMALL.width)),
        generator.normal(size=(batch, SMALL.width)),
    )
    expected = attention_reference(data, lengths)
    for safe in (True, False):
        directive = parallelize("request", 3, policy, block=2)
        program = build_attention(lengths, [directive], SMALL, data, safe_softmax=safe)
        run = simulate(program, attention_hardware())
        np.testing.assert_allclose(run.arrays["output"].reshape(expected.shape), expected, rtol=1e-9)
        for request, length in enumerate(lengths):
            rows = run.arrays["key"].reshape(batch, -1, SMALL.width)
            np.testing.assert_array_equal(rows[request, length], data.new_key[request])
        assert simulate(program, attention_hardware(), functional=False).cycles == run.cycles


def test_safe_softmax_survives_scores_that_overflow() -> None:
    ones = np.ones((1, 2, 4))
    data = AttentionData(1e3 * ones, 1e3 * np.ones((1, 8, 4)), np.ones((1, 8, 4)), np.ones((1, 4)), np.ones((1, 4)))
    run = simulate(build_attention([3], [parallelize("request", 1)], SMALL, data), attention_hardware())
    np.testing.assert_allclose(run.arrays["output"], 1.0)


def test_the_lint_has_nothing_to_say_about_the_layers() -> None:
    routing = np.array([[0, 1], [2, 3], [0, 3]])
    for rows in (tile("token", 2), tile("token", dynamic=True)):
        for regions in (8, 2):
            schedule: list[Directive] = [rows, tile("intermediate", 4), time_multiplex("expert", regions)]
            assert lint(build_moe(SHAPE, routing, schedule), Hardware()) == []
    policies: tuple[Policy, ...] = ("coarse", "interleave", "dynamic")
    for policy in policies:
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
