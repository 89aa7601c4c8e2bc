"""What regions read: lengths with and without parallelize, weights once, caches of any rank changed in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.stream import DirectiveMismatch, Hardware, Run, explore, lower, measure, parallelize, simulate, tile
from polyrhythm.stream.directives import Directive, Policy

DEEP = Hardware(fifo_depth=1 << 16)
POLICIES: list[Policy] = ["coarse", "interleave", "dynamic"]
r, R = pr.dim("r")
s, S = pr.dim("s")
LENGTHS = np.array([2, 0, 5], "int32")


def _draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def _run(outputs: dict[str, pr.Tensor], schedule: list[Directive], data: dict[str, Any]) -> Run:
    lowered = lower(outputs, schedule, data)
    run = simulate(lowered.program, DEEP)
    found, expected = lowered.outputs(run), pr.evaluate(outputs, data)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    values = measure(lowered.program, DEEP).evaluate(run.bindings)
    assert (values["off_chip_burst"], values["flops"]) == (run.bytes_moved, run.flops)
    return run


@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_lengths_are_respected_without_parallelize_too(chunk: int) -> None:
    rows, length = pr.input("rows", (4,), (r, s)), pr.input("length", (), (r,), "int32")
    total = pr.where(pr.value(s) < length, rows, 0.0)[{s: slice(0, S)}].sum(0)
    data = {"rows": _draw(3, 8, 4), "length": LENGTHS}
    tiles: list[Directive] = [] if chunk == 1 else [tile(s, chunk)]
    read = sum(-(-int(n) // chunk) * chunk for n in LENGTHS)
    for schedule in (tiles, [*tiles, parallelize(r, 2)]):
        assert _run({"total": total}, schedule, data).bytes_moved == 64 * (read + len(LENGTHS))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_region_reads_shared_weights_once(policy: Policy) -> None:
    x, w = pr.input("x", (4,), (r,)), pr.input("w", (4, 4))
    data = {"x": _draw(8, 4), "w": _draw(4, 4)}
    run = _run({"y": pr.relu(pr.matmul(x, w))}, [parallelize(r, 2, policy, 2)], data)
    assert run.bytes_moved == 64 * (8 + 2 * 4 + 8)


@pytest.mark.parametrize("shape", [(), (4,), (2, 4), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("policy", POLICIES)
def test_caches_of_any_rank_are_changed_in_place(shape: tuple[int, ...], policy: Policy) -> None:
    cache, new = pr.input("cache", shape, (r, s)), pr.input("new", shape, (r,))
    length = pr.input("length", (), (r,), "int32")
    changed = pr.where(pr.value(s) == length, new, cache)
    each = changed.sum() if shape else changed
    total = pr.where(pr.value(s) <= length, each, 0.0)[{s: slice(0, S)}].sum(0)
    data = {"cache": _draw(3, 6, *shape), "new": _draw(3, *shape), "length": LENGTHS}
    plain = _run({"cache": changed, "total": total}, [], data).bytes_moved
    for chunk in (1, 2, 3):
        schedule: list[Directive] = [parallelize(r, 2, policy, 1), *([tile(s, chunk)] if chunk > 1 else [])]
        assert _run({"cache": changed, "total": total}, schedule, data).bytes_moved < plain


def test_a_search_runs_with_values_where_they_decide_what_is_read() -> None:
    e, E = pr.dim("e")
    x, w = pr.input("x", (3,), (r,)), pr.input("w", (3, 3), (e,))
    output = pr.matmul(x, pr.take(w[0:E], pr.argmax(x, 0), 0))
    data = {"x": _draw(6, 3), "w": _draw(3, 3, 3)}
    found = explore(output, data, DEEP, space=[[None, tile(r, 2), tile(r, dynamic=True)]], jobs=1)
    assert {point.status for point in found.points} <= {"simulated", "pruned"}
    assert found.best.figures["cycles"] > 0


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("schedule", [[], [tile("n", 2)], [parallelize("m", 2)], [parallelize("m", 2), tile("n", 2)]])
def test_a_bias_of_every_step_is_walked_as_far_as_the_lengths(schedule: list[Directive], known: bool) -> None:
    """An input over the steps alone is read up to each length; what is computed of it outside is refused there."""
    m, M = pr.dim("m")
    n, N = pr.dim("n")
    x, bias, length = pr.input("x", (), (m, n)), pr.input("bias", (), (n,)), pr.input("length", (), (m,), "int32")
    data = {"x": np.arange(8, dtype="float32").reshape(2, 4), "bias": np.arange(4, dtype="float32")}
    numbers = {"length": np.array([1, 3], "int32")}
    deep = Hardware(fifo_depth=1 << 10)
    for shift in (bias, pr.tanh(bias)):
        output = pr.where(pr.value(n) < length, x + shift, 0.0)[{n: slice(0, N)}].sum(0)
        given, later = (data | numbers, {}) if known else (data, numbers)
        if shift is not bias and any("parallelize" in str(directive) for directive in schedule):
            with pytest.raises(DirectiveMismatch, match="outside of the regions"):
                lower(output, schedule, given, {M: 2, N: 4})
            continue
        found = lower(output, schedule, given, {M: 2, N: 4})(deep, later)
        np.testing.assert_allclose(found, pr.evaluate(output, data | numbers), rtol=1e-5)
