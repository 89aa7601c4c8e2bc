"""Routing and lengths that are decided while the program runs: run-time counts, lowered once for any of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.stream import DataMismatch, Hardware, lower, measure, parallelize, simulate, tile, time_multiplex
from polyrhythm.stream.directives import Directive
from tests.stream.running import assert_consistent, assert_same

DEEP = Hardware(fifo_depth=1 << 16)
b, B = pr.dim("b")
q, Q = pr.dim("q", max=2)
e, E = pr.dim("e")
x = pr.input("x", (4,), (b,))
router = pr.input("router", (4, 3))
w, v = pr.input("w", (4, 4), (e,)), pr.input("v", (4, 4), (e,))
SCHEDULES: dict[str, list[Directive]] = {
    "none": [],
    "tiles": [tile(b, 2)],
    "one tile": [tile(b, dynamic=True)],
    "shared regions": [time_multiplex(e, 1)],
    "shared tiles": [tile(b, dynamic=True), time_multiplex(e, 1)],
}


def _data(seed: int = 1, tokens: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"x": (tokens, 4), "router": (4, 3), "w": (3, 4, 4), "v": (3, 4, 4)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def _expert(h: pr.Tensor, route: pr.Tensor) -> pr.Tensor:
    inner = pr.silu(pr.matmul(h, pr.take(w[0:E], route, 0)))
    return pr.matmul(inner, pr.take(v[0:E], route, 0))


def _top_one() -> pr.Tensor:
    return x + _expert(x, pr.argmax(pr.matmul(x, router), 0))


def _top_two() -> pr.Tensor:
    best, chosen = pr.topk(pr.softmax(pr.matmul(x, router)), 2)
    weighted = _expert(x, chosen.axes[q]) * best.axes[q]
    return x + weighted[{q: slice(0, Q)}].sum(0)


def _lookup_of_a_choice() -> pr.Tensor:
    return pr.take(w[0:E], pr.argmax(x, 0), 0)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("layer", [_top_one, _top_two], ids=["top one", "top two"])
def test_a_router_inside(layer: Any, schedule: list[Directive]) -> None:
    output, bounds = layer(), {Q: 2} if layer is _top_two else {}
    lowered = lower(output, schedule, {name: np.zeros_like(a) for name, a in _data().items()}, bounds)
    labels = [node.operator.label for node in lowered.program.nodes]
    assert ("partition" in labels) == bool(schedule)
    assert_consistent(lower(output, schedule, _data(), bounds).program, DEEP, timed=False)
    for seed in (1, 2):
        data = _data(seed)
        run = lowered.run(DEEP, data)
        np.testing.assert_allclose(lowered.outputs(run), pr.evaluate(output, data, bounds), rtol=1e-4, atol=1e-5)
        values = measure(lowered.program, DEEP).evaluate(run.bindings)
        assert (values["off_chip_burst"], values["flops"]) == (run.bytes_moved, run.flops)


def test_each_part_is_read_for_its_tokens_only() -> None:
    output, data = _top_one(), _data()
    whole = simulate(lower(output, [tile(b, dynamic=True)], data).program, DEEP).bytes_moved
    routes = np.argmax(data["x"] @ data["router"], 1)
    known = pr.input("route", (), (b,), "int32")
    chosen = {"route": routes.astype("int32"), **{name: data[name] for name in ("x", "w", "v")}}
    given = lower(x + _expert(x, known), [tile(b, dynamic=True)], chosen)
    router_bytes = 4 * 64  # a burst a row
    assert whole == simulate(given.program, DEEP).bytes_moved + router_bytes


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_one_program_for_any_routing(schedule: list[Directive]) -> None:
    route = pr.input("route", (), (b,), "int32")
    output = x + _expert(x, route)
    lowered = lower(output, schedule, bounds={B: 6, E: 3})
    for routes in ([0, 1, 2, 0, 1, 2], [2, 2, 2, 2, 2, 2], [0, 5, -1, 1, 1, 0]):
        data = _data() | {"route": np.array(routes, "int32")}
        del data["router"]
        np.testing.assert_allclose(lowered(DEEP, data), pr.evaluate(output, data), rtol=1e-4, atol=1e-5)
        timed = lowered.run(DEEP, {"route": data["route"]}, functional=False)
        assert timed.cycles == lowered.run(DEEP, data).cycles


def test_a_choice_reads_one_part() -> None:
    output, data = _lookup_of_a_choice(), _data()
    data["w"] = np.random.default_rng(0).normal(size=(4, 4, 4)).astype(np.float32)
    used = {name: data[name] for name in ("x", "w")}
    for schedule in ([], [tile(b, 2)]):
        lowered = lower(output, schedule, used)
        np.testing.assert_allclose(lowered(DEEP), pr.evaluate(output, used), rtol=1e-6)
    assert any(node.operator.label == "random_load" for node in lowered.program.nodes)


def test_dealt_out_with_a_router_inside() -> None:
    output, data = _top_one(), _data()
    lowered = lower(output, [parallelize(b, 2)], data)
    np.testing.assert_allclose(lowered(DEEP), pr.evaluate(output, data), rtol=1e-4, atol=1e-5)


def test_what_a_run_may_not_be_given() -> None:
    route = pr.input("route", (), (b,), "int32")
    output = x + _expert(x, route)
    data = _data() | {"route": np.zeros(6, "int32")}
    del data["router"]
    lowered = lower(output, [], data, {B: 6, E: 3})
    with pytest.raises(DataMismatch, match="was lowered for route"):
        lowered(DEEP, {"route": np.zeros(6, "int32")})
    with pytest.raises(DataMismatch, match=r"has shape \(6, 4\) for x"):
        lowered(DEEP, {"x": np.zeros((5, 4), "float32")})
    with pytest.raises(DataMismatch, match="has no input y"):
        lowered(DEEP, {"y": np.zeros(2)})
    with pytest.raises(DataMismatch, match="is computed while the program runs"):
        simulate(lower(_top_one(), [tile(b, 2)], _data()).program, DEEP, functional=False)


s, S = pr.dim("s")
keys, values = pr.input("keys", (4,), (b, s)), pr.input("values", (4,), (b, s))
DEALT: dict[str, list[Directive]] = {
    "alone": [],
    "tiles": [tile(s, 2)],
    "regions": [parallelize(b, 2)],
    "rotation": [parallelize(b, 3, "interleave"), tile(s, 4)],
    "blocks of tiles": [parallelize(b, 2, "coarse", 2), tile(b, 2), tile(s, 2)],
}


def _attended(length: pr.Tensor, strictly: bool) -> pr.Tensor:
    inside = pr.value(s) < length if strictly else length >= pr.value(s)
    score = pr.where(inside, pr.dot(x, keys), -np.inf)
    weight = pr.exp(score - score[{s: slice(0, S)}].max(0))[{s: slice(0, S)}]
    return pr.matmul(weight, values[{s: slice(0, S)}]) / weight.sum(0)


def _caches(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"x": (6, 4), "keys": (6, 8, 4), "values": (6, 8, 4)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("strictly", [True, False])
@pytest.mark.parametrize("schedule", DEALT.values(), ids=DEALT)
def test_one_program_for_any_lengths(schedule: list[Directive], strictly: bool) -> None:
    """What lies beyond a length is not read, as if it had been known; the lengths themselves are."""
    length = pr.input("length", (), (b,), "int32")
    output = _attended(length, strictly)
    lowered = lower(output, schedule, bounds={B: 6, S: 8})
    for lengths in ([1, 2, 3, 4, 5, 6], [7, 7, 1, 1, 7, 7], [1, 1, 1, 1, 1, 1], [2, 9, 1, 100, 3, 8]):
        data = _caches(3) | {"length": np.array(lengths, "int32")}
        run = lowered.run(DEEP, data)
        np.testing.assert_allclose(lowered.outputs(run), pr.evaluate(output, data), rtol=1e-4, atol=1e-5)
        values = measure(lowered.program, DEEP).evaluate(run.bindings)
        assert (values["off_chip_burst"], values["flops"]) == (run.bytes_moved, run.flops)
        known = simulate(lower(output, schedule, data).program, DEEP)
        bursts = 3 if schedule is DEALT["blocks of tiles"] else 6  # for the lengths
        assert run.bytes_moved == known.bytes_moved + 64 * bursts
        assert_same(lowered.run(DEEP, {"length": data["length"]}, functional=False), run)


def test_lengths_that_the_program_computes() -> None:
    """The length of a request is where its largest entry is."""
    output, data = _attended(pr.argmax(x, 0).cast("int32") * 2, strictly=False), _caches(4)
    lowered = lower(output, [parallelize(b, 2), tile(s, 2)], data)
    run = simulate(lowered.program, DEEP)
    np.testing.assert_allclose(lowered.outputs(run), pr.evaluate(output, data), rtol=1e-4, atol=1e-5)
    tiles = 2 * np.argmax(data["x"], 1) // 2 + 1  # of keys and of values, two rows of a burst each
    rest = sum(64 * 6 for _ in ("x for the lengths", "x for the scores", "output"))
    assert run.bytes_moved == 2 * 2 * 64 * tiles.sum() + rest
    with pytest.raises(DataMismatch, match="is computed while the program runs"):
        simulate(lowered.program, DEEP, functional=False)
