"""What each pass does to a small program, in the text form of the graph: `tests/golden/compiler/passes/...`.

A golden file has the program before and after the pass. The grammar holds for both; the oracle finds the same values.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from polyrhythm.compiler.ir.text import show
from polyrhythm.compiler.passes import PASSES, Pass
from polyrhythm.compiler.passes.joined import part_by_part
from polyrhythm.compiler.passes.notes import Notes
from polyrhythm.compiler.passes.rename import renamed
from polyrhythm.compiler.passes.simplify import contracted_first
from polyrhythm.oracle import run
from tests.compiler.ir.parse import parse
from tests.compiler.ir.verify import verify

STEPS = """
bound T
dim t < T

"""

BEFORE = {
    "dead": """
x: f32 over t < T = input(name="x")
unused: f32 over t < T = exp(x[t])
y: f32 over t < T = neg(x[t])
output y
""",
    "copies": """
x: f32 over t < T = input(name="x")
same: f32 over t < T = copy(x[t])
y: f32 over t < T = exp(same[T - t - 1])
output y
""",
    "simplify": """
x: f32 over t < T = input(name="x")
one: f32 = constant(value=f32(1.0))
scaled: f32 over t < T = mul(x[t], one)
back: f32 over t < T = neg(scaled[t])
y: f32 over t < T = neg(back[t])
output y
""",
    "routes": """
x: f32[8] over t < T = input(name="x")
table: f32[3, 8, 8] = input(name="table")
which: i32[2] over t < T = argsort(first[t], axis=0, descending=False)
first: f32[2] over t < T = slice(x[t], starts=[0], lengths=[2], steps=(1,))
own: f32[2, 8, 8] over t < T = take(table, which[t], axis=0)
hidden: f32[2, 8] over t < T = einsum(x[t], own[t], spec="d,kdh->kh")
y: f32[8] over t < T = einsum(hidden[t], own[t], spec="kh,khd->d")
output y
""",
    "narrow": """
x: f32 over t < T = input(name="x")
e: f32 over t < T = exp(x[0])
y: f32 over t < T = mul(e[t], x[t])
require T >= 1: "x[0] may lie outside x"
output y
""",
    "share": """
x: f32 over t < T = input(name="x")
a: f32 over t < T = exp(x[t])
b: f32 over t < T = exp(x[t])
y: f32 over t < T = mul(a[t], b[t])
output y
""",
    "contract": """
x: f32[3] over t < T = input(name="x")
g: f32[2] over t < T = input(name="g")
outer: f32[2, 3] over t < T = einsum(g[t], x[t], spec="o,i->oi")
y: f32[2, 3] = reduce(outer[0 +: T], monoid="sum", axes=(0,))
output y
""",
    "ranges": """
x: f32 over t < T = input(name="x")
y: f32 over t < T = reduce(x[0 +: t + 1], monoid="sum", axes=(0,))
output y
""",
    "windows": """
x: f32 over t < T = input(name="x")
y: f32 over t < T = reduce(x[max(0, t - 2) +: min(3, t + 1)], monoid="sum", axes=(0,))
output y
""",
    "accumulate": """
x: f32 over t < T = input(name="x")
h_tanh: f32 over t < T where t <= T - 2 = tanh(h[t])
h: f32 over t < T recurrent
  when t == 0: copy(x[0])
  when t >= 1: copy(h_tanh[t - 1])
y: f32 = reduce(h[0 +: T], monoid="sum", axes=(0,))
output y
""",
    "pairs": """
dim f < T
x: f32 over t < T = input(name="x")
row: f32[t + 1] over t < T = mul(x[t], x[0 +: t + 1])
most: f32 over t < T = reduce(row[t], monoid="max", axes=(0,))
weight: f32[t + 1] over t < T = sub(row[t], most[t])
one: f32[1] over t < T, f < T where t <= f = slice(weight[f], starts=[t], lengths=[1], steps=(1,))
element: f32 over t < T, f < T where t <= f = reshape(one[t, f], shape=())
y: f32 over t < T = reduce(element[t, t +: T - t], monoid="sum", axes=(0,))
output y
""",
    "tables": """
dim f < T
u: f32 over t < T = input(name="u")
zero: f32 over t < T = constant(value=f32(0.0))
zeros: f32[t + 1] over t < T = broadcast(zero[t], shape=[t + 1])
half: i32 over t < T = index(value=t // 2)
table: f32[t + 1] over t < T = scatter_add(zeros[t], half[t], u[t], axis=0)
row: f32[1] over t < T, f < T where t <= f = slice(table[f], starts=[t], lengths=[1], steps=(1,))
element: f32 over t < T, f < T where t <= f = reshape(row[t, f], shape=())
y: f32 over t < T = reduce(element[t, t +: T - t], monoid="sum", axes=(0,))
output y
""",
    "lift": """
x: f32 over t < T = input(name="x")
y_add: f32 over t < T where t <= T - 2 = add(y[t], x[t + 1])
y: f32 over t < T recurrent
  when t == 0: copy(x[0])
  when t >= 1: copy(y_add[t - 1])
last: f32 where T >= 1 = copy(y[T - 1])
require T >= 1: "y[T - 1] may lie outside y"
output last
""",
    "skew": """
dim i < T
x: f32 over t < T = input(name="x")
up: f32 over i < T, t < T
  when i >= 1: copy(c[i - 1, t])
  when i == 0: copy(x[t])
left: f32 over i < T, t < T
  when t >= 1: copy(c[i, t - 1])
  when t == 0: copy(x[i])
both: f32 over i < T, t < T = sub(up[i, t], left[i, t])
c: f32 over i < T, t < T recurrent = tanh(both[i, t])
last: f32 where T >= 1 = copy(c[T - 1, T - 1])
rows: f32 over t < T = reduce(c[0 +: T, t], monoid="sum", axes=(0,))
require T >= 1: "c[T - 1, T - 1] may lie outside c"
output last
output rows
""",
    "states": """
x: f32 over t < T = input(name="x")
one: f32 where T >= 1 = constant(value=f32(1.0))
v: f32 over t < T where t <= T - 2 = tanh(h[t])
h: f32 over t < T recurrent
  when t == 0: copy(x[0])
  when t >= 1: copy(v[t - 1])
slope: f32 over t < T where t <= T - 2 = sub(one, v[t])
both: f32 over t < T where t <= T - 2 = mul(slope[t], h[t])
back: f32 over t < T where t <= T - 2 = mul(g[t + 1], both[t])
g: f32 over t < T recurrent
  when t == T - 1: copy(h[T - 1])
  when t <= T - 2: copy(back[t])
y: f32 where T >= 1 = copy(g[0])
require T >= 1: "g[0] may lie outside g"
output y
""",
    "carry": """
bound I
dim i < I
x: f32 over i < I, t < T = input(name="x")
zero: f32 where I >= 1 = constant(value=f32(0.0))
s_add: f32 over i < I, t < T = add(s[i, t], x[i, t])
s: f32 over i < I, t < T + 1 recurrent
  when i == 0 and t == 0: copy(zero)
  when i >= 1 and t == 0: copy(s[i - 1, T])
  when t >= 1: copy(s_add[i, t - 1])
y: f32 over i < I = copy(s[i, T])
output y
""",
    "separate": """
x: f32 over t < T = input(name="x")
k: f32 over t < T = exp(x[t])
first: f32 over t < T where t >= 4 = reduce(k[0 +: 2], monoid="sum", axes=(0,))
last: f32 over t < T where t >= 4 = reduce(k[t - 2 +: 3], monoid="sum", axes=(0,))
y: f32 over t < T recurrent
  when t < 4: copy(x[t])
  when t >= 4: add(first[t], last[t])
output y
""",
    "split": """
size P max T
x: f32 over t < T = input(name="x")
w: f32 = input(name="w")
state: f32 over t < T = mul(y[t], w)
y_tanh: f32 over t < T where P <= t and t >= 1 = tanh(state[t - 1])
zero: f32 where P == 0 and T >= 1 = constant(value=f32(0.0))
y: f32 over t < T recurrent
  when t < P: copy(x[t])
  when P <= t and t >= 1: copy(y_tanh[t])
  when P <= t and t == 0: copy(zero)
total: f32 = reduce(state[0 +: T], monoid="sum", axes=(0,))
output y
output total
""",
    "predicate": """
x: f32 over t < T = input(name="x")
zero: f32 where T >= 1 = constant(value=f32(0.0))
e: f32 over t < T where t <= T - 3 = exp(x[t])
past: f32 over t < T
  when t >= 2: copy(e[t - 2])
  when t <= 1: copy(zero)
y: f32 over t < T = mul(past[t], x[t])
output y
""",
    "align": """
x: f32 over t < T = input(name="x")
w: f32 = input(name="w")
zero: f32 where T >= 1 = constant(value=f32(0.0))
e: f32 over t < T = exp(x[t])
p: f32 over t < T where t >= 2 = mul(e[t], w)
later: f32 over t < T = choose(p[t + 2], zero, condition=t <= T - 3, shape=())
y: f32 over t < T = mul(later[t], e[t])
output y
""",
    "contracted_first": """
x: f32[2] over t < T = input(name="x")
w: f32 over t < T = input(name="w")
weights: f32[t + 1, 1] over t < T = reshape(w[0 +: t + 1], shape=[t + 1, 1])
each: f32[t + 1, 2] over t < T = mul(x[0 +: t + 1], weights[t])
y: f32[2] over t < T = reduce(each[t], monoid="sum", axes=(0,))
output y
""",
    "rename": """
dim i < T
x: f32 over t < T = input(name="x")
half: f32 over t < T = tanh(c[t])
c: f32 over i < T recurrent
  when i == 0: copy(x[0])
  when i >= 1: copy(half[i - 1])
output c
""",
    "joined": """
x: f32 over t < T = input(name="x")
z: f32 over t < T = input(name="z")
both: f32[2*t + 2] over t < T = concat(x[0 +: t + 1], z[0 +: t + 1], axis=0)
scale: f32 over t < T = neg(x[t])
scaled: f32[2*t + 2] over t < T = mul(both[t], scale[t])
y: f32 over t < T = reduce(scaled[t], monoid="sum", axes=(0,))
output y
""",
}

CHANGES: dict[str, Pass] = {
    **dict(PASSES),
    "contracted_first": contracted_first,
    "joined": part_by_part,
    "rename": lambda graph, notes: renamed(graph),
}
"""Every pass; `contracted_first` and `joined` come before gradients, `rename` after all others, without notes."""


def test_every_pass_has_a_program() -> None:
    assert BEFORE.keys() == CHANGES.keys()


@pytest.mark.parametrize("name", BEFORE)
def test_before_and_after(name: str, golden: Callable[[str, str], None]) -> None:
    graph, notes = (
        parse(STEPS + BEFORE[name]),
        Notes(name, compiled_loops=name in ("predicate", "windows", "pairs", "routes", "skew")),
    )
    verify(graph)
    changed = CHANGES[name](graph, notes)
    verify(changed)
    assert show(changed) != show(graph), "the pass did something"
    assert [note for note in notes if not note.refused] or name == "rename"
    golden(name, f"# before\n\n{show(graph)}\n# after\n\n{show(changed)}")
    random = np.random.default_rng(0)
    for steps in (1, 5, 8):
        sizes = {symbol.name: {"I": 3, "P": min(3, steps)}.get(symbol.name, steps) for symbol in graph.mentioned}
        sizes = {bound: size for bound, size in sizes.items() if bound in ("T", "I", "P")}
        inputs = {
            node.name: random.normal(
                size=[sizes[str(dim.extent)] for dim in node.dims] + [int(n) for n in node.shape]
            ).astype("float32")
            for node in graph.inputs.values()
        }
        for want, have in zip(run(graph, inputs, sizes), run(changed, inputs, sizes), strict=True):
            np.testing.assert_allclose(np.asarray(have), np.asarray(want), rtol=1e-5, atol=1e-6)
