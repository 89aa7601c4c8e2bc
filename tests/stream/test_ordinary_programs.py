"""Ordinary programs that no rule of the lowering was written for, under random schedules: right, or refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.stream import parallelize, tile, time_multiplex
from polyrhythm.stream.directives import Directive
from tests.stream.schedules import POLICIES, Case, outcome

SCHEDULES = int(os.environ.get("SCHEDULES", "12"))


@dataclass
class Written:
    """A program, its inputs, and tensors that `on=` may name."""

    output: Any
    inputs: dict[str, np.ndarray]
    named: tuple[pr.Tensor, ...] = ()
    computed: bool = False
    bounds: dict[Any, int] | None = None


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def whole(dim: Any) -> Any:
    return {dim[0]: slice(0, dim[1])}


def moving_average() -> Written:
    """A strided window over one dim of two."""
    t, s = pr.dim("t"), pr.dim("s")
    x = pr.input("x", (2,), (s[0], t[0]))
    smooth = x[{t[0]: slice(pr.max(t[0] - 2, 0), t[0] + 1)}].mean(0)
    return Written(smooth * 2.0 + x, {"x": floats(4, 6, 2)}, (smooth,))


def cross_attention() -> Written:
    """Queries of one dim, keys of another, both with heads as a dim; a temperature for each head."""
    q, k, h = pr.dim("q"), pr.dim("k"), pr.dim("h")
    query, key, value = (pr.input(n, (3,), (h[0], d[0])) for n, d in (("query", q), ("key", k), ("value", k)))
    score = pr.dot(query, key) / (1.0 + pr.input("temperature", (), (h[0],)) ** 2)
    weight = pr.softmax(score[whole(k)], 0)
    found = pr.matmul(weight, value[whole(k)])
    data = {
        "query": floats(2, 4, 3),
        "key": floats(2, 6, 3),
        "value": floats(2, 6, 3, seed=1),
        "temperature": floats(2),
    }
    return Written(found, data, (score, found))


def norm_and_network() -> Written:
    """LayerNorm over a dim, a network, a residual, and a second output that sums over the batch."""
    b, f, g = pr.dim("b"), pr.dim("f"), pr.dim("g")
    x = pr.input("x", (), (b[0], f[0]))
    row = x[whole(f)]
    normed = (x - row.mean(0)) * pr.rsqrt(pr.mean((row - row.mean(0)) ** 2, 0) + 1e-5)
    up = pr.tanh(pr.dot(normed[whole(f)], pr.input("up", (), (f[0], g[0]))[whole(f)]))
    down = pr.dot(up[whole(g)], pr.input("down", (), (g[0], f[0]))[whole(g)])
    y = x + down
    data = {"x": floats(4, 6), "up": floats(6, 3), "down": floats(3, 6)}
    return Written({"y": y, "total": y[whole(b)].sum(0)}, data, (normed, up, down))


def running_sums() -> Written:
    """A recurrence of several sequences with a decay of their own, and its largest value."""
    b, t = pr.dim("b"), pr.dim("t")
    x = pr.input("x", (2,), (b[0], t[0]))
    decay = pr.sigmoid(pr.input("decay", (), (b[0],)))
    state = pr.recurrent((2,), (b[0], t[0]))
    state[{t[0]: 0}] = x[{t[0]: 0}]
    state[{t[0]: t[0] + 1}] = decay * state + x[{t[0]: t[0] + 1}]
    best = state[whole(t)].max(0)
    return Written({"state": state, "best": best}, {"x": floats(4, 5, 2), "decay": floats(4)}, (best,))


def router_inside() -> Written:
    """A gate that is computed, its two best experts, weighted by their probabilities."""
    b, e = pr.dim("b"), pr.dim("e")
    x = pr.input("x", (3,), (b[0],))
    logits = pr.matmul(x, pr.input("gate", (3, 4)))
    best = pr.argmax(logits, 0).cast("int32")
    experts = pr.input("experts", (3, 3), (e[0],))
    mixed = pr.matmul(x, pr.take(experts[whole(e)], best, 0)) * pr.softmax(logits, 0).max(0)
    return Written(
        mixed, {"x": floats(6, 3), "gate": floats(3, 4), "experts": floats(4, 3, 3)}, (mixed,), computed=True
    )


def pooled() -> Written:
    """The mean of ragged rows, then a shared projection."""
    r, s = pr.dim("r"), pr.dim("s")
    x = pr.input("x", (3,), (r[0], s[0]))
    length = pr.input("length", (), (r[0],), "int32")
    total = pr.where(pr.value(s[0]) < length, x, 0.0)[whole(s)].sum(0)
    mean = total / pr.maximum(length, 1).cast("float32")
    out = pr.matmul(mean, pr.input("w", (3, 2)))
    return Written(
        out, {"x": floats(5, 6, 3), "length": np.array([0, 6, 2, 3, 1], "int32"), "w": floats(3, 2)}, (mean, out)
    )


def two_towers() -> Written:
    """Two lookups in one table, multiplied, with biases from another."""
    u, row, item = pr.dim("u"), pr.dim("row"), pr.dim("item")
    table, bias = pr.input("table", (3,), (row[0],)), pr.input("bias", (), (item[0],))
    left, right = (pr.input(n, (), (u[0],), "int32") for n in ("left", "right"))
    a, b = (pr.take(table[whole(row)], n, 0) for n in (left, right))
    score = pr.dot(a, b) + pr.take(bias[whole(item)], right, 0)
    data: dict[str, np.ndarray] = {"table": floats(4, 3), "bias": floats(4)}
    data |= {"left": np.array([0, 3, 1, 1, 2, 0], "int32"), "right": np.array([2, 2, 0, 3, 1, 1], "int32")}
    return Written(score, data, (score,))


def layers_as_a_dim() -> Written:
    """Layers are steps of a recurrence, with weights of their own; a batch beside it."""
    b, n = pr.dim("b"), pr.dim("layer")
    x = pr.input("x", (3,), (b[0],))
    w = pr.input("w", (3, 3), (n[0],))
    h = pr.recurrent((3,), (b[0], n[0]))
    h[{n[0]: 0}] = x
    h[{n[0]: n[0] + 1}] = pr.tanh(pr.matmul(h, w[{n[0]: n[0] + 1}]))
    last = h[{n[0]: n[1] - 1}]
    return Written(last, {"x": floats(4, 3), "w": floats(3, 3, 3)}, (last,))


def pooling_in_two_dims() -> Written:
    """The largest of a neighbourhood along two dims."""
    i, j = pr.dim("i"), pr.dim("j")
    x = pr.input("x", (), (i[0], j[0]))
    near = {i[0]: slice(pr.max(i[0] - 1, 0), i[0] + 1), j[0]: slice(pr.max(j[0] - 1, 0), j[0] + 1)}
    return Written(x[near].max((0, 1)), {"x": floats(4, 4)})


def outer_product() -> Written:
    """An outer product with a mask of two dims, and its row sums."""
    m, n = pr.dim("m"), pr.dim("n")
    a, b = pr.input("a", (), (m[0],)), pr.input("b", (), (n[0],))
    grid = pr.where(pr.value(m[0]) >= pr.value(n[0]), a * b, 0.0)
    return Written({"grid": grid, "rows": grid[whole(n)].sum(0)}, {"a": floats(4), "b": floats(6)}, (grid,))


def training_step() -> Written:
    """Gradients of a network with one hidden layer, and the loss."""
    b = pr.dim("b")
    x, y = pr.input("x", (3,), (b[0],)), pr.input("y", (), (b[0],))
    w, v = pr.input("w", (3, 4)), pr.input("v", (4,))
    hidden = pr.relu(pr.matmul(x, w))
    loss = ((pr.dot(hidden, v) - y) ** 2)[whole(b)].mean(0)
    gw, gv = pr.grad(loss, [w, v])
    return Written(
        {"w": gw, "v": gv, "loss": loss},
        {"x": floats(6, 3), "y": floats(6), "w": floats(3, 4), "v": floats(4)},
        (hidden,),
    )


def grouped_experts() -> Written:
    """Experts in groups: a group is chosen by the request, a member by the token."""
    r, t, g = pr.dim("r"), pr.dim("t"), pr.dim("g")
    x = pr.input("x", (3,), (r[0], t[0]))
    route = pr.input("route", (), (r[0],), "int32")
    w = pr.input("w", (3, 3), (g[0],))
    h = pr.silu(pr.matmul(x, pr.take(w[whole(g)], route, 0)))
    out = h[whole(t)].sum(0) + x[{t[0]: 0}]
    return Written(
        out, {"x": floats(4, 3, 3), "route": np.array([1, 0, 1, 2], "int32"), "w": floats(3, 3, 3)}, (h, out)
    )


def decode_step() -> Written:
    """Projections, a cache of two heads that is an output, attention over it, and a projection back."""
    r, s = pr.dim("r"), pr.dim("s")
    x = pr.input("x", (4,), (r[0],))
    length = pr.input("length", (), (r[0],), "int32")
    cache = pr.input("cache", (2, 2), (r[0], s[0]))
    row = pr.reshape(pr.matmul(x, pr.input("wk", (4, 4))), (2, 2))
    keys = pr.where(pr.value(s[0]) == length, row, cache)
    query = pr.reshape(pr.matmul(x, pr.input("wq", (4, 4))), (2, 2))
    score = pr.where(pr.value(s[0]) <= length, pr.einsum("hw,hw->h", query, keys), -np.inf)
    weight = pr.exp(score - score[whole(s)].max(0))[whole(s)]
    found = pr.einsum("sh,shw->hw", weight, keys[whole(s)]) / pr.reshape(weight.sum(0), (2, 1))
    out = x + pr.matmul(pr.reshape(found, (4,)), pr.input("wo", (4, 4)))
    data = {"x": floats(4, 4), "length": np.array([0, 5, 2, 3], "int32"), "cache": floats(4, 6, 2, 2)}
    data |= {name: floats(4, 4, seed=k) for k, name in enumerate(("wk", "wq", "wo"))}
    return Written({"out": out, "keys": keys}, data, (query, found, out))


def whole_numbers() -> Written:
    """Sums of whole numbers, and a choice by a condition that is an input."""
    a, b = pr.dim("a"), pr.dim("b")
    x, mask = pr.input("x", (), (a[0], b[0]), "int32"), pr.input("mask", (), (b[0],), "bool")
    kept = pr.where(mask, x, -x)
    return Written(
        kept[whole(b)].sum(0) + kept[whole(b)].max(0),
        {"x": np.arange(24, dtype="int32").reshape(4, 6), "mask": np.array([1, 0, 1, 1, 0, 0], bool)},
        (kept,),
    )


def distances() -> Written:
    """The nearest of some centres for every point, and how far it is."""
    p, c = pr.dim("p"), pr.dim("c")
    point, centre = pr.input("point", (2,), (p[0],)), pr.input("centre", (2,), (c[0],))
    far = ((point - centre) ** 2).sum(0)
    return Written(
        {"far": far[whole(c)].min(0), "which": pr.argmin(far[whole(c)], 0)},
        {"point": floats(6, 2), "centre": floats(4, 2)},
        (far,),
    )


def smoothed_gradient() -> Written:
    """A difference between neighbours in both directions, reversed at the end."""
    b, t = pr.dim("b"), pr.dim("t")
    x = pr.input("x", (2,), (b[0], t[0]))
    after = x[{t[0]: pr.min(t[0] + 1, t[1] - 1)}]
    before = x[{t[0]: pr.max(t[0] - 1, 0)}]
    slope = (after - before) * 0.5
    return Written(slope[{t[0]: t[1] - 1 - t[0]}], {"x": floats(3, 4, 2)}, (slope,))


def columns() -> Written:
    """All of the first dim of an input at every step of the second: as they are, sorted, and mixed."""
    i, j = pr.dim("i"), pr.dim("j")
    column = pr.input("x", (), (i[0], j[0]))[whole(i)]
    ordered = pr.sort(column, 0)
    mixed = pr.einsum("a,b->", pr.cumsum(column, 0), ordered[{j[0]: pr.max(j[0] - 1, 0)}])
    back = pr.tanh(column)[{j[0]: j[1] - 1 - j[0]}]
    outputs = {"column": column, "ordered": ordered, "mixed": mixed, "back": back}
    return Written(outputs, {"x": floats(4, 4)}, (ordered, mixed))


def states_of_rows() -> Written:
    """A recurrence whose state is a range of a dim, and begins as the range of an input without the batch."""
    b, t, k = pr.dim("b"), pr.dim("t"), pr.dim("k")
    x, start = pr.input("x", (), (b[0], t[0], k[0])), pr.input("start", (), (k[0],))
    state = pr.recurrent((k[1],), (b[0], t[0]))
    state[{t[0]: 0}] = start[whole(k)]
    state[{t[0]: t[0] + 1}] = 0.5 * state + x[{t[0]: t[0] + 1, k[0]: slice(0, k[1])}]
    return Written(state, {"x": floats(4, 3, 2), "start": floats(2)}, (state,))


def scores_dealt_by_key() -> Written:
    """Attention whose keys are dealt out, while what is found of them is read as a whole elsewhere."""
    r, s = pr.dim("r"), pr.dim("s")
    query, cache = pr.input("query", (2, 2), (r[0],)), pr.input("cache", (2,), (r[0], s[0]))
    keys = cache * 3.0
    score = pr.einsum("hw,w->h", query, keys)
    weight = pr.exp(score - score[whole(s)].max(0))[whole(s)]
    found = pr.einsum("sh,sw->hw", weight, keys[whole(s)])
    return Written(found, {"query": floats(4, 2, 2), "cache": floats(4, 4, 2)}, (keys, score, found))


PROGRAMS: tuple[Callable[[], Written], ...] = (
    moving_average, cross_attention, norm_and_network, running_sums, router_inside, pooled, two_towers, layers_as_a_dim,
    pooling_in_two_dims, outer_product, training_step, grouped_experts, decode_step, whole_numbers, distances,
    smoothed_gradient, columns, states_of_rows, scores_dealt_by_key,
)  # fmt: skip


def drawn(draw: Random, sizes: dict[str, int], named: tuple[pr.Tensor, ...]) -> list[Directive]:
    """A few directives on some dims."""
    found: list[Directive] = []
    for name, size in sizes.items():
        fits = [n for n in range(1, size + 1) if size % n == 0]
        if draw.random() < 0.4:
            n = draw.choice([None, *fits, *fits, 4])
            found.append(tile(name, dynamic=True) if n is None else tile(name, n))
        if draw.random() < 0.2:
            found.append(parallelize(name, draw.choice([1, 2, 3]), draw.choice(POLICIES), draw.choice([1, 2])))
        if draw.random() < 0.15:
            found.append(time_multiplex(name, draw.choice(fits)))
    if named and draw.random() < 0.4:
        on = draw.sample(named, draw.choice([1, min(2, len(named))]))
        name = draw.choice([*map(str, on[0].dims), *sizes])
        size = sizes.get(name, 1)
        n = draw.choice([n for n in range(1, size + 1) if size % n == 0])
        found.append(
            tile(name, n, on=on)
            if draw.random() < 0.6
            else parallelize(name, draw.choice([2, 3]), draw.choice(POLICIES), on=on)
        )
    draw.shuffle(found)
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_right_or_refused(program: Callable[[], Written]) -> None:
    draw = Random(program.__name__)
    written = program()
    expected = pr.evaluate(written.output, written.inputs, written.bounds or {})
    tensors = list(written.output.values()) if isinstance(written.output, dict) else [written.output]
    from polyrhythm.compiler.trace import trace

    graph = trace(tensors)
    sizes: dict[str, int] = {}
    for name, node in graph.inputs.items():
        sizes |= dict(zip((str(d.symbol) for d in node.dims), written.inputs[name].shape, strict=False))
    seen = {"ok": 0, "refused": 0}
    for number in range(SCHEDULES):
        schedule = drawn(draw, sizes, written.named) if number else []
        case = Case(
            written.output, written.inputs, written.bounds or {}, list(sizes), schedule, computed=written.computed
        )
        try:
            seen[outcome(case, written.inputs, expected)] += 1
        except Exception as error:
            raise AssertionError(f"schedule {number}: {', '.join(map(str, schedule))}") from error
    assert seen["ok"], "no schedule is right"
