"""Directives for single operations: a decoder layer with batched projections, dealt attention and routed experts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.stream import (
    DirectiveMismatch,
    Hardware,
    explore,
    lower,
    measure,
    parallelize,
    simulate,
    tile,
    time_multiplex,
)
from polyrhythm.stream.directives import Directive, Policy
from tests.stream.running import assert_consistent

DEEP = Hardware(fifo_depth=1 << 16)
POLICIES: list[Policy] = ["coarse", "interleave", "dynamic"]
b, B = pr.dim("b")
s, S = pr.dim("s")
e, E = pr.dim("e")
WIDTH = 4
x = pr.input("x", (WIDTH,), (b,))
weights = {name: pr.input(name, (WIDTH, WIDTH)) for name in ("wq", "wk", "wv", "wo")}
keys, values = pr.input("keys", (WIDTH,), (b, s)), pr.input("values", (WIDTH,), (b, s))
length = pr.input("length", (), (b,), "int32")
experts = pr.input("experts", (WIDTH, WIDTH), (e,))
route = pr.input("route", (), (b,), "int32")


class Layer:
    """One step of a decoder layer: projections, cache, attention, an expert for every request."""

    def __init__(self) -> None:
        normed = x / pr.sqrt((x * x).mean(0) + 1e-5)
        self.q, self.k, self.v = (pr.matmul(normed, weights[name]) for name in ("wq", "wk", "wv"))
        here = pr.value(s) == length
        self.keys, self.values = pr.where(here, self.k, keys), pr.where(here, self.v, values)
        self.score = pr.where(pr.value(s) <= length, pr.einsum("d,d->", self.q, self.keys), float("-inf"))
        weight = pr.exp(self.score - self.score[{s: slice(0, S)}].max(0))
        mixed = pr.einsum("s,sd->d", weight[{s: slice(0, S)}], self.values[{s: slice(0, S)}])
        self.attended = mixed / weight[{s: slice(0, S)}].sum(0)
        self.projected = x + pr.matmul(self.attended, weights["wo"])
        self.output = self.projected + pr.silu(pr.matmul(self.projected, pr.take(experts[0:E], route, 0)))


LAYER = Layer()


def _data(batch: int = 6, steps: int = 4) -> dict[str, Any]:
    rng = np.random.default_rng(11)
    shapes = {"x": (batch, WIDTH), "keys": (batch, steps, WIDTH), "values": (batch, steps, WIDTH)}
    shapes |= dict.fromkeys(weights, (WIDTH, WIDTH)) | {"experts": (3, WIDTH, WIDTH)}
    data: dict[str, Any] = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    data["length"] = rng.integers(0, steps, batch).astype(np.int32)
    data["route"] = rng.integers(0, 3, batch).astype(np.int32)
    return data


DATA = _data()


def _by_hand(data: dict[str, Any]) -> np.ndarray:
    """The layer as loops."""
    result = []
    for i, row in enumerate(data["x"]):
        normed = row / np.sqrt((row * row).mean() + 1e-5)
        n = data["length"][i]
        cache = [np.vstack([data[c][i, :n], normed @ data[w]]) for c, w in (("keys", "wk"), ("values", "wv"))]
        scores = np.exp(cache[0] @ (normed @ data["wq"]))
        h = row + scores @ cache[1] / scores.sum() @ data["wo"]
        up = h @ data["experts"][data["route"][i]]
        result.append(h + up / (1 + np.exp(-up)))
    return np.array(result)


def _run(schedule: list[Directive]) -> Any:
    lowered = lower(LAYER.output, schedule, DATA)
    run = simulate(lowered.program, DEEP)
    np.testing.assert_allclose(lowered.outputs(run), _by_hand(DATA), rtol=1e-3, atol=1e-4)
    assert_consistent(lowered.program, DEEP)
    return run


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("batch", [2, 3, None])
def test_projections_are_batched_and_attention_is_dealt(policy: Policy, batch: int | None) -> None:
    def batched(*tensors: pr.Tensor) -> Directive:
        return tile(b, dynamic=True, on=tensors) if batch is None else tile(b, batch, on=tensors)

    attention = parallelize(b, 2, policy, 1, on=[LAYER.keys, LAYER.score, LAYER.values, LAYER.attended])
    schedule: list[Directive] = [batched(LAYER.q, LAYER.k, LAYER.v), attention]
    run = _run(schedule)
    text = str(run.program)
    assert f"tile[{batch or 6},{WIDTH}]" in text, "a projection works on tiles of several requests"
    assert "deal" in text or "regions" in text
    _run([attention, time_multiplex(e, 1), tile(b, dynamic=True)])
    _run([*schedule, time_multiplex(e, 3), tile(b, 2)])


def test_tiles_of_single_operations() -> None:
    plain = _run([])
    tiled = _run([tile(b, 3, on=LAYER.projected)])
    assert "tile[3,4]" in str(tiled.program)
    assert "tile[3,4]" not in str(plain.program)
    _run([tile(b, 2, on=[LAYER.q]), tile(b, 3, on=[LAYER.projected]), tile(s, 2)])
    _run([tile(b, 2, on=[LAYER.q, LAYER.k, LAYER.v])])


def test_a_tile_for_an_operation_that_has_none_is_refused() -> None:
    with pytest.raises(DirectiveMismatch, match="on=line"):
        lower(LAYER.output, [tile(e, 3, on=LAYER.q)], DATA)
    with pytest.raises(DirectiveMismatch, match="such a directive already"):
        lower(LAYER.output, [tile(b, 3, on=LAYER.q), tile(b, 2, on=[LAYER.q, LAYER.k])], DATA)


def test_operations_can_be_explored() -> None:
    dealt = [
        parallelize(b, regions, on=[LAYER.keys, LAYER.score, LAYER.values, LAYER.attended]) for regions in (1, 2, 3)
    ]
    batched = [tile(b, n, on=[LAYER.q, LAYER.k, LAYER.v]) for n in (2, 3)]
    found = explore(LAYER.output, DATA, space=[[None, *dealt], [None, *batched]])
    assert {point.status for point in found.points} <= {"simulated", "pruned"}
    best = found.best
    assert best.figures["cycles"] <= min(p.figures["cycles"] for p in found.points if p.status == "simulated")
    assert measure(lower(LAYER.output, (), DATA).program).evaluate({})["flops"] > 0


def test_a_tensor_that_is_no_part_of_the_program_is_refused() -> None:
    x = pr.input("x", (4,), (b,))
    elsewhere = x * 3.0
    with pytest.raises(DirectiveMismatch, match="no output depends on"):
        lower(x * 2.0, [tile(b, 2, on=elsewhere)], {"x": np.ones((4, 4), "float32")})
