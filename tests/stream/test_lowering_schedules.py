"""Random programs under directives: branches, shared regions and dealt entries change nothing but the schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import polyrhythm as pr
from polyrhythm.stream import Hardware, lower, parallelize, tile, time_multiplex
from polyrhythm.stream.directives import Directive, Policy

DEEP = Hardware(fifo_depth=4096)
b, B = pr.dim("b")
q, Q = pr.dim("q")
e, E = pr.dim("e")
s, S = pr.dim("s")
x = pr.input("x", (3,), (b,))
scales = pr.input("scales", (), (b, q))
one_route = pr.input("one_route", (), (b,), "int32")
routes = pr.input("routes", (), (b, q), "int32")
parts = pr.input("parts", (3, 3), (e,))
biases = pr.input("biases", (3,), (e,))
shared = pr.input("shared", (3, 3))
rows = pr.input("rows", (3,), (b, s))
length = pr.input("length", (), (b,), "int32")


def _compare(output: pr.Tensor, schedule: list[Directive], inputs: dict[str, Any], bounds: dict[Any, int]) -> None:
    from polyrhythm.compiler.trace import trace

    used = {name: inputs[name] for name in trace([output]).inputs}
    expected = pr.evaluate(output, used, bounds)
    np.testing.assert_allclose(lower(output, schedule, used, bounds)(DEEP), expected, rtol=1e-4, atol=1e-4)


def _floats(seed: int, *shape: int) -> np.ndarray:
    return (0.5 * np.random.default_rng(seed).normal(size=shape)).astype(np.float32)


def _routed(kind: str, h: pr.Tensor, route: pr.Tensor, several: bool) -> pr.Tensor:
    if kind == "part":
        return pr.matmul(h, pr.take(parts[0:E], route, 0))
    if kind == "bias":
        return h + pr.take(biases[0:E], route, 0)
    if kind == "shared":
        return pr.matmul(h, shared)
    if kind == "scale":
        return h * scales if several else h * x
    return pr.silu(h) if kind == "silu" else h / (1 + (h * h).sum(0))


KINDS = ["part", "bias", "shared", "scale", "silu", "norm"]


@given(
    st.lists(st.sampled_from(KINDS), max_size=3),
    st.lists(st.sampled_from(KINDS), max_size=2),
    st.booleans(),
    st.booleans(),
    st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), min_size=1, max_size=6),
    st.sampled_from([None, 1, 2, 3, "dynamic"]),
    st.sampled_from([None, 1, 2, 4]),
)
@settings(max_examples=12)
def test_branches(
    before: list[str],
    after: list[str],
    several: bool,
    folded: bool,
    chosen: list[list[int]],
    size: Any,
    regions: int | None,
) -> None:
    """Gathers anywhere in a chain, one or two parts a step, the same one twice, parts that nobody chooses."""
    route = routes if several else one_route
    h: pr.Tensor = x
    for kind in [*before, "part", *after]:
        h = _routed(kind, h, route, several)
    output = h[{q: slice(0, Q)}].sum(0) if several and folded else h
    numbers = np.array(chosen, np.int32)
    inputs = {"x": _floats(1, len(chosen), 3), "scales": _floats(2, len(chosen), 2), "parts": _floats(3, 4, 3, 3)}
    inputs |= {"biases": _floats(4, 4, 3), "shared": _floats(5, 3, 3), "routes": numbers, "one_route": numbers[:, 0]}
    schedule: list[Directive] = []
    if size is not None:
        schedule.append(tile(b, dynamic=True) if size == "dynamic" else tile(b, size))
    if regions is not None:
        schedule.append(time_multiplex(e, regions))
    _compare(output, schedule, inputs, {B: len(chosen), E: 4, Q: 2})


FOLDS = {
    "sum": lambda a, live: pr.where(live, a, 0.0)[{s: slice(0, S)}].sum(0),
    "max": lambda a, live: pr.where(live, a, float("-inf"))[{s: slice(0, S)}].max(0),
    "weighted": lambda a, live: (pr.where(live, pr.exp(a), 0.0) * rows)[{s: slice(0, S)}].sum(0),
    "product": lambda a, live: pr.einsum("sd,se->de", pr.where(live, a, 0.0)[{s: slice(0, S)}], rows[{s: slice(0, S)}]),
    "all": lambda a, live: a[{s: slice(0, S)}].sum(0),
}
POLICIES: list[Policy] = ["coarse", "interleave", "dynamic"]


@given(
    st.sampled_from(sorted(FOLDS)),
    st.lists(st.sampled_from(["silu", "entry", "shared", "changed"]), max_size=3),
    st.lists(st.integers(0, 6), min_size=1, max_size=5),
    st.sampled_from([None, 1, 2, 3, 6]),
    st.integers(1, 3),
    st.sampled_from(POLICIES),
)
@settings(max_examples=12)
def test_dealt_entries(
    fold: str, kinds: list[str], lengths: list[int], size: int | None, regions: int, policy: Policy
) -> None:
    """Walks as far as a length that is data, empty ones included, with values of the entry and of all entries."""
    a: pr.Tensor = pr.where(pr.value(s) == length, x, rows) if "changed" in kinds else rows
    for kind in kinds:
        a = {"silu": pr.silu, "entry": lambda h: h * x, "shared": lambda h: pr.matmul(h, shared)}.get(
            kind, lambda h: h
        )(a)
    live = pr.value(s) < length if fold != "max" else pr.value(s) <= length
    output = FOLDS[fold](a, live)
    inputs = {"x": _floats(6, len(lengths), 3), "rows": _floats(7, len(lengths), 6, 3), "shared": _floats(8, 3, 3)}
    inputs["length"] = np.minimum(np.array(lengths, np.int32), 5)
    schedule: list[Directive] = [parallelize(b, regions, policy, block=2)]
    if size is not None:
        schedule.append(tile(s, size))
    _compare(output, schedule, inputs, {B: len(lengths), S: 6})
