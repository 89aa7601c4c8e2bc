"""Random programs under random schedules, and what must hold for each: right values and right formulae, or a refusal.

A program is a chain over steps b (starting from an input, an embedding lookup, a bag of embeddings, a ragged fold, or
a recurrence; gathers by one or two routings, given or computed, over one or two tables, in any order; further dims q
and f), a product of matrices whose sides are dims, a recurrence of several sequences, attention over ragged caches, or
any expression over dims in any order.
A schedule is any set of directives on any dims, sizes that make no sense included. Everything follows from a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.stream import (
    DirectiveMismatch,
    Hardware,
    lower,
    measure,
    parallelize,
    tile,
    time_multiplex,
)
from polyrhythm.stream.directives import Directive, Policy
from tests.stream.running import assert_consistent, assert_same
from tests.stream.trees import expression

DEEP = Hardware(fifo_depth=1 << 20)
POLICIES: list[Policy] = ["coarse", "interleave", "dynamic"]


@dataclass
class Case:
    """A program, its inputs and bounds, the names of its dims, and a schedule."""

    output: Any
    inputs: dict[str, np.ndarray]
    bounds: dict[Any, int]
    dims: list[str]
    schedule: list[Directive] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    computed: bool = False
    late: bool = False
    """Whether whole numbers are left out when the program is lowered, and given to the run."""


class _Maker:
    """Draws one program; inputs are made when they are first used."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.values = np.random.default_rng(seed)
        self.inputs: dict[str, np.ndarray] = {}
        self.bounds: dict[Any, int] = {}
        self.dims: dict[str, tuple[Any, Any, int]] = {}
        self.made: dict[str, pr.Tensor] = {}
        self.story: list[str] = []
        self.between: list[pr.Tensor] = []
        self.computed = False

    def dim(self, name: str, *sizes: int) -> Any:
        if name not in self.dims:
            size = self.draw.choice(sizes or (1, 2, 3, 4, 6))
            symbol, bound = pr.dim(name)
            self.dims[name] = symbol, bound, size
            self.bounds[bound] = size
        return self.dims[name][0]

    def whole(self, name: str) -> Any:
        return {self.dims[name][0]: slice(0, self.dims[name][1])}

    def size(self, name: str) -> int:
        return self.dims[name][2]

    def floats(self, name: str, shape: tuple[int, ...], dims: tuple[str, ...]) -> pr.Tensor:
        if name not in self.made:
            symbols = tuple(self.dim(dim) for dim in dims)
            full = (*map(self.size, dims), *shape)
            self.inputs[name] = (0.5 * self.values.normal(size=full)).astype(np.float32)
            self.made[name] = pr.input(name, shape, symbols)
        return self.made[name]

    def numbers(self, name: str, dims: tuple[str, ...], below: int) -> pr.Tensor:
        if name not in self.made:
            symbols = tuple(self.dim(dim) for dim in dims)
            low, high = (-1, below + 1) if self.draw.random() < 0.15 else (0, below)
            if self.draw.random() < 0.15:
                high = low + 1
            self.inputs[name] = self.values.integers(low, max(high, low + 1), tuple(map(self.size, dims))).astype(
                np.int32
            )
            self.made[name] = pr.input(name, (), symbols, "int32")
        return self.made[name]

    # Chains over steps.

    def route(self, name: str, table: str, several: bool) -> pr.Tensor:
        self.dim(table, 2, 3, 4)
        if not several and self.draw.random() < 0.15:
            self.story.append("computed route")
            self.computed = True
            scores = self.floats(f"router_of_{table}", (3, self.size(table)), ())
            return pr.argmax(pr.matmul(self.floats("x", (3,), ("b",)), scores), 0).cast("int32")
        return self.numbers(f"{name}_of_{table}" + "s" * several, ("b", "q") if several else ("b",), self.size(table))

    def table(self, name: str, shape: tuple[int, ...], dim: str) -> pr.Tensor:
        return self.floats(f"{name}_{dim}", shape, (dim,))[self.whole(dim)]

    def start(self, several: bool) -> pr.Tensor:
        draw = self.draw
        kind = draw.choice(["input", "input", "lookup", "bag", "fold", "sum", "recurrence"])
        self.story.append(f"start {kind}")
        if kind == "input":
            return self.floats("x", (3,), ("b",))
        if kind in ("lookup", "bag"):
            table = draw.choice(["e", "g"])
            rows = pr.take(self.table("embed", (3,), table), self.route("r", table, kind == "bag"), 0)
            if kind == "lookup":
                return rows
            return rows[self.whole("q")].sum(0) if draw.random() < 0.6 else rows[self.whole("q")].max(0)
        if kind == "recurrence":
            x, b = self.floats("x", (3,), ("b",)), self.dim("b")
            total = pr.recurrent((3,), (b,))
            total[0] = x[0]
            total[b + 1] = 0.5 * total + x[b + 1]
            return total
        rows = self.floats("rows", (3,), ("b", "s"))
        if kind == "sum":
            return rows[self.whole("s")].sum(0)
        return pr.where(pr.value(self.dim("s")) < self.numbers("length", ("b",), self.size("s") + 1), rows, 0.0)[
            self.whole("s")
        ].sum(0)

    def step(self, h: pr.Tensor, several: bool) -> pr.Tensor:
        draw = self.draw
        kinds = ["part", "part", "part", "bias", "shared", "scale", "silu", "norm", "residual", "mixed", "wide"]
        if not several:
            kinds.append("shift")
        kind = draw.choice(kinds)
        if kind in ("part", "bias"):
            table, name = draw.choice(["e", "e", "g"]), draw.choice(["r", "r", "p"])
            self.story.append(f"{kind} {name} {table}")
            route = self.route(name, table, several and draw.random() < 0.7)
            if kind == "part":
                return pr.matmul(h, pr.take(self.table(draw.choice(["W", "V"]), (3, 3), table), route, 0))
            return h + pr.take(self.table("bias", (3,), table), route, 0)
        self.story.append(kind)
        if kind == "shared":
            return pr.matmul(h, self.floats("shared", (3, 3), ()))
        if kind == "scale":
            return h * self.floats("scales", (), ("b", "q")) if several else h * self.floats("x", (3,), ("b",))
        if kind == "silu":
            return pr.silu(h)
        if kind == "residual":
            return h + self.floats("x", (3,), ("b",))
        if kind == "mixed":
            return h + pr.matmul(h, self.floats("mixer", (3, 3), ()))
        if kind == "shift":
            b = self.dim("b")
            y = pr.recurrent((3,), (b,))
            y[0] = h[{b: 0}]
            y[b + 1] = h[{b: b + 1}] + h
            return y
        if kind == "wide":
            up, down = self.floats("up", (3,), ("f",)), self.floats("down", (3,), ("f",))
            inner = pr.silu((h * up).sum(0))[self.whole("f")]
            return pr.einsum("f,fd->d", inner, down[self.whole("f")])
        return h / (1 + (h * h).sum(0))

    def chain(self) -> Any:
        draw = self.draw
        several = draw.random() < 0.35
        self.dim("b")
        if several:
            self.dim("q", 1, 2, 3)
        h = self.start(several)
        for _ in range(draw.randrange(0, 5)):
            self.between.append(h)
            h = self.step(h, several)
        dims = [str(d) for d in h.dims] if hasattr(h, "dims") else []
        if "q" in dims and draw.random() < 0.6:
            self.story.append("sum q")
            h = h[self.whole("q")].sum(0)
        if draw.random() < 0.15:
            self.story.append("sum b")
            h = h[self.whole("b")].sum(0)
        if draw.random() < 0.15:
            self.story.append("two outputs")
            return {"h": h, "x": self.floats("x", (3,), ("b",)) * 2}
        return h

    # Products of matrices, elementwise grids.

    def matrices(self) -> Any:
        draw = self.draw
        kind = draw.choice(["gemm", "mlp", "grid", "outer", "batched", "reduce"])
        self.story.append(kind)
        for name in "mnk":
            self.dim(name)
        if kind == "grid":
            h = self.floats("a", (), ("m", "n")) * self.floats("c", (), ("m", "n"))
            return draw.choice([h, pr.silu(h), h + self.floats("v", (), ("n",)), h * self.floats("u", (), ("m",))])
        if kind == "outer":
            return self.floats("u", (), ("m",)) * self.floats("v", (), ("n",))
        if kind == "reduce":
            axis = draw.choice("mn")
            return self.floats("a", (), ("m", "n"))[self.whole(axis)].sum(0)
        a = self.floats("a", (), ("m", "k"))[self.whole("k")]
        w = self.floats("w", (), draw.choice([("k", "n"), ("n", "k")]))[self.whole("k")]
        h = pr.einsum("k,k->", a, w)
        if kind == "gemm":
            return h
        if kind == "batched":
            batched = self.floats("t", (), ("b", "m", "k"))[self.whole("k")]
            return pr.einsum("k,k->", batched, w)
        down = self.floats("down", (), ("n", "p"))[self.whole("n")]
        return pr.einsum("n,n->", pr.silu(h)[self.whole("n")], down)

    # Recurrences of several sequences.

    def sequences(self) -> Any:
        draw = self.draw
        names = draw.choice([("n", "t"), ("t", "n"), ("n", "h", "t"), ("n", "t", "h"), ("t", "n", "h")])
        shape: tuple[int, ...] = draw.choice([(), (3,), (2, 3)])
        self.dim("t", 2, 3, 5)
        for name in names:
            self.dim(name, 1, 2, 4)
        t, last = self.dim("t"), self.dims["t"][1]
        others = tuple(name for name in names if name != "t")
        first = draw.choice(["zero", "row", "state", *others])
        x = self.floats("x", shape, names)
        state = pr.recurrent(shape, tuple(self.dim(name) for name in names))
        if first == "zero":
            state[{t: 0}] = np.zeros(shape, np.float32)
        else:
            owners = () if first == "state" else (first,)
            state[{t: 0}] = x[{t: 0}] if first == "row" else self.floats("first", shape, owners)
        kind = draw.choice(["decay", "product", "gate", "window", "shared", "stacked"])
        self.story.append(f"sequences {' '.join(names)}, first {first}, {kind}")
        new, old = x[{t: t + 1}], 0.5 * state
        if kind == "product" and shape:
            old = pr.matmul(state, self.floats("mixer", (3, 3), ()))
        elif kind == "gate":
            gate = pr.sigmoid(state + new)
            old = gate * state
        elif kind == "window":
            old = state[{t: slice(pr.max(t - 1, 0), t + 1)}].mean(0)
        elif kind == "shared":
            old = old * self.floats("decay", shape, (draw.choice(others),))
        state[{t: t + 1}] = old + new
        self.between = [x * 2, state]
        h = state
        if kind == "stacked":
            h = pr.recurrent(shape, tuple(self.dim(name) for name in names))
            h[{t: 0}] = state[{t: 0}] * 2
            h[{t: t + 1}] = 0.5 * h + pr.silu(state[{t: t + 1}])
        ends = [h, h[{t: last - 1}], h[self.whole("t")].sum(0), pr.silu(h) + x]
        return draw.choice([*ends, h[self.whole(others[0])].sum(0)])

    # Attention over a ragged cache.

    def attention(self) -> Any:
        draw = self.draw
        heads = draw.random() < 0.3
        self.dim("r")
        outer = ("r", "h") if heads else ("r",)
        self.dim("s", 2, 4, 6)
        query = self.floats("query", (2, 4), outer) if draw.random() < 0.5 else self.floats("query", (4,), outer)
        keys, values = self.floats("keys", (4,), (*outer, "s")), self.floats("values", (4,), (*outer, "s"))
        length = self.numbers("length", ("r",), self.size("s"))
        s = self.dim("s")
        caches = {"keys": keys}
        if draw.random() < 0.5:
            self.story.append("cache update")
            keys = pr.where(pr.value(s) == length, self.floats("key", (4,), outer), keys)
        spec = "hd,d->h" if len(self.inputs["query"].shape) == len(outer) + 2 else "d,d->"
        score = pr.einsum(spec, query, keys)
        live = pr.value(s) <= length
        if draw.random() < 0.8:
            score = pr.where(live, score, float("-inf"))
            self.story.append("masked")
        peak = score[self.whole("s")].max(0)
        self.between = [score, peak]
        weight = pr.exp(score - peak)
        total = weight[self.whole("s")].sum(0)
        spec = "sh,sd->hd" if spec.startswith("h") else "s,sd->d"
        mixed = pr.einsum(spec, weight[self.whole("s")], values[self.whole("s")])
        h = mixed / (total.reshape(2, 1) if spec.startswith("sh") else total)
        if draw.random() < 0.3:
            self.story.append("project")
            h = pr.matmul(h, self.floats("project", (4, 4), ()))
        if draw.random() < 0.4:
            self.story.append("cache output")
            if draw.random() < 0.3:
                self.story.append("old cache read")
                return {"h": h, "keys": keys, "old": caches["keys"][self.whole("s")].sum(0)}
            return {"h": h, "keys": keys}
        return h

    def directives(self) -> list[Directive]:
        """Any directives on any dims, a few of which make no sense by themselves."""
        draw = self.draw
        found: list[Directive] = []

        def add(make: Callable[..., Directive], name: str, *arguments: Any, nonsense: tuple[Any, ...]) -> None:
            if draw.random() < 0.02:
                with pytest.raises(DirectiveMismatch, match=f"{make.__name__}.*{name}"):
                    make(name, draw.choice(nonsense))
            else:
                found.append(make(name, *arguments))

        for name in self.dims:
            size = self.size(name)
            divisors = [n for n in range(1, size + 1) if size % n == 0]
            if draw.random() < 0.5:
                chosen = draw.choice([None, None, *divisors, *divisors, 2, 3, 5, size])
                add(_tile, name, chosen, nonsense=(0, -1, -2, 2.0, "2", True))
            if draw.random() < (0.4 if name in "eg" else 0.03):
                add(time_multiplex, name, draw.choice([1, 2, 3, size, *divisors]), nonsense=(0, -1, 1.5))
            if draw.random() < (0.35 if name in "brnmh" else 0.08):
                policy = draw.choice(POLICIES)
                block = draw.choice([1, 2, 3, 16])
                add(parallelize, name, draw.choice([1, 1, 2, 3, 4]), policy, block, nonsense=(0, -1, 1.5))
        for _ in range(draw.choice([0, 0, 0, 1, 2]) if self.between else 0):
            tensors = draw.sample(self.between, min(len(self.between), draw.choice([1, 2])))
            name = draw.choice([str(d) for d in tensors[0].dims] or ["b"])
            size = self.size(name) if name in self.dims else 1
            chosen = draw.choice([n for n in range(1, size + 1) if size % n == 0])
            dealt = draw.random() < 0.4
            found.append(
                parallelize(name, draw.choice([1, 2, 3]), draw.choice(POLICIES), 2, on=tensors)
                if dealt
                else tile(name, chosen, on=tensors)
            )
        draw.shuffle(found)
        return found


def _tile(name: str, size: Any) -> Directive:
    return tile(name, dynamic=True) if size is None else tile(name, size)


_tile.__name__ = "tile"


def case(seed: int) -> Case:
    """The program and the schedule of a seed."""
    maker = _Maker(seed)
    kind: Callable[[], Any] = maker.draw.choices(
        [maker.chain, maker.matrices, maker.attention, maker.sequences, lambda: expression(maker)], [6, 2, 2, 2, 3]
    )[0]
    output = kind()
    schedule = maker.directives()
    late = maker.draw.random() < 0.15
    if late:
        maker.story.append("numbers at run time")
    return Case(output, maker.inputs, maker.bounds, list(maker.dims), schedule, maker.story, maker.computed, late)


def check(seed: int) -> str:
    """ "ok" or "refused" for a seed; raises AssertionError where neither is true."""
    found = case(seed)
    from polyrhythm.compiler.trace import trace

    outputs = list(found.output.values()) if isinstance(found.output, dict) else [found.output]
    names = trace(outputs).inputs
    used = {name: found.inputs[name] for name in names}
    expected = pr.evaluate(found.output, used, found.bounds)
    return outcome(found, used, expected)


def outcome(found: Case, used: dict[str, np.ndarray], expected: Any, thorough: bool = True) -> str:
    """What becomes of a case; a thorough look compares the shape of every stream and the size of its elements too."""
    later = {name: array for name, array in used.items() if found.late and array.dtype.kind == "i"}
    given = {name: array for name, array in used.items() if name not in later}
    try:
        lowered = lower(found.output, found.schedule, given, found.bounds)
    except DirectiveMismatch as error:
        _check_refusal(error, found, given)
        return "refused"
    run = lowered.run(DEEP, later)
    _close(lowered.outputs(run), expected)
    values = measure(lowered.program, DEEP).evaluate(run.bindings)
    assert values["off_chip_burst"] == run.bytes_moved, f"bytes {values['off_chip_burst']} and {run.bytes_moved} moved"
    assert values["flops"] == run.flops, f"FLOPs {values['flops']} and {run.flops} done"
    if thorough:
        assert_consistent(lowered.program, DEEP, timed=not found.computed)
    if not found.computed and (later or not thorough):
        assert_same(lowered.run(DEEP, later, functional=False), run)
    return "ok"


def _close(actual: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        for name in expected:
            _close(actual[name], expected[name])
    else:
        assert np.shape(actual) == np.shape(expected), f"shape {np.shape(actual)}, expected {np.shape(expected)}"
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def _check_refusal(error: DirectiveMismatch, found: Case, used: dict[str, np.ndarray]) -> None:
    text = str(error)
    assert any(str(directive) in text for directive in found.schedule), f"no directive is named: {text}"
    files = ("schedules.py", "trees.py", "test_ordinary_programs.py")
    assert any(file in text for file in files), f"no line of the user: {text}"
    if error.works is not None:
        lower(found.output, error.works, used, found.bounds)  # type: ignore[arg-type]
