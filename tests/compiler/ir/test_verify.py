"""The grammar: good graphs pass, and each rule catches a graph that breaks it."""

from dataclasses import replace

import numpy as np
import pytest

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.graph import Graph, HostFunction, Node
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.ir.types import Array, TensorType
from tests.compiler.ir.parse import parse
from tests.compiler.ir.programs import PROGRAMS, everywhere
from tests.compiler.ir.verify import RULES, GrammarError, verify

SCALAR = TensorType((), dtypes.FLOAT32)

HEAD = """
bound T
bound S
dim t < T
dim s < S
x: f32[3] over t < T = input(name="x")
"""

RAGGED = """
bound B
dim b < B
bound L max 9 over b
dim k < L
length L = lengths[b]
lengths: i32 over b < B = input(name="lengths")
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_pass(name: str) -> None:
    verify(PROGRAMS[name]())


GOOD = {
    "a requirement is taken as given": HEAD + 'y: f32[3] = exp(x[T - 1])\nrequire T >= 1: "one step"',
    "a domain narrows": HEAD + "y: f32[3] over t < T where t >= 1 = exp(x[t - 1])",
    "shapes are equal by proof": HEAD
    + "y: f32[min(T, t + 1), 3] over t < T = broadcast(x[0 +: t + 1], shape=[t + 1, 3])",
    "a definition that never holds": HEAD
    + "y: f32 over t < T\n when t < 0: exp(x[t])\n when t >= 0: constant(value=f32(0.0))",
    "ragged reads": RAGGED
    + 'x: f32 over b < B, k < L = input(name="x")\ny: f32 over b < B = reduce(x[b, 0 +: L], monoid="sum", axes=(0,))',
    "triangular extents": HEAD + "y: f32[3] over t < T, s < t + 1 = exp(x[s])",
}


@pytest.mark.parametrize("name", GOOD)
def test_good_graphs_pass(name: str) -> None:
    verify(parse(GOOD[name]))


BROKEN = [
    (
        "rectangular",
        "z",
        HEAD
        + "y: f32[t + 1, 3] over t < T = broadcast(x[t], shape=[t + 1, 3])\n"
        + 'z: f32[t + 1, 3] over t < T = reduce(y[0 +: t + 1], monoid="sum", axes=(0,))',
    ),
    ("names", "y", HEAD + 'y: f32 = input(name="x")'),
    ("names", "y", HEAD + "y: f32 = input()"),
    ("accesses", "y", HEAD + "y: f32[3] over t < T = exp(z[t])"),
    ("accesses", "y", HEAD + "y: f32[3] over t < T = exp(x)"),
    ("accesses", "y", HEAD + "y: f32[T, 3] = exp(x[0 +: T by 0])"),
    ("accesses", "S", HEAD + "length S = z"),
    ("references", "outputs", HEAD + "output z"),
    ("references", "effects", HEAD + "effect z"),
    ("references", "until", HEAD + "until t: z"),
    ("references", "until", HEAD + 'done: bool over s < S = input(name="done")\nuntil t: done'),
    ("references", "until", HEAD + "until t: x"),
    ("references", "lengths", HEAD + "length S = x[0]"),
    ("references", "lengths", HEAD + 'n: i32 over t < T = input(name="n")\nlength t = n[t]'),
    ("references", "lengths", HEAD + 'n: i32 over t < T = input(name="n")\nlength S = n[t]'),
    ("symbols", "y", HEAD + "y: f32[3] over s < S = exp(x[t])"),
    ("symbols", "y", HEAD + "y: f32[3] over s < S where t >= 1 = exp(x[0])"),
    ("symbols", "y", HEAD + "y: f32[t] over s < S = iota(length=t)"),
    ("symbols", "y", HEAD + "y: i32 = index(value=t)"),
    ("symbols", "y", HEAD + "y: f32[3] over s < t + 1, t < T = exp(x[t])"),
    ("symbols", "y", HEAD + "y: f32[3] over t < T, t < T = exp(x[t])"),
    ("symbols", "y", HEAD + "y: f32[3] over T < T = exp(x[0])"),
    ("symbols", "y", RAGGED + "y: i32[L] = iota(length=L)"),
    ("symbols", "y", RAGGED + "y: f32 over k < L, b < B = constant(value=f32(0.0))"),
    ("symbols", "y", RAGGED.replace("length L = lengths[b]", "") + "y: i32[L] over b < B = iota(length=L)"),
    ("affine", "y", HEAD + "y: f32[3] over t < T = exp(x[T*t])"),
    ("affine", "y", HEAD + "y: f32[T*T, 3] = exp(x[0 +: T*T])"),
    ("affine", "y", HEAD + "y: f32[3] over t < T*S = exp(x[0])"),
    ("affine", "y", HEAD + "y: f32[3] over t < T\n when t*t < 4: exp(x[t])\n when t*t >= 4: exp(x[t])"),
    ("affine", "y", HEAD + "y: f32[3] over t < T where t*t < 4 = exp(x[t])"),
    ("operations", "y", HEAD + "y: f32[3] over t < T = frobnicate(x[t])"),
    ("lengths", "y", HEAD + "y: f32[S - 1, 3] = exp(x[0 +: S - 1])"),
    ("types", "y", HEAD + "y: f64[3] over t < T = exp(x[t])"),
    ("types", "y", HEAD + "y: f32[4] over t < T = exp(x[t])"),
    ("types", "y", HEAD + "y: f32 over t < T = exp(x[t])"),
    ("types", "y", HEAD + "y: f32[T, 3] over t < T = exp(x[0 +: t + 1])"),
    ("operations", "y", HEAD + "y: f32[3] over t < T = add(x[t])"),
    ("types", "y", HEAD + "y: f32[3] over t < T = reduce(x[t], axes=(0,))"),
    ("types", "y", HEAD + "y: f32[3] over t < T = add(x[t], x[0 +: T])"),
    (
        "types",
        "z",
        RAGGED + "y: i32[L] over b < B = iota(length=L)\nz: i32[L] over b < B where b >= 1 = neg(y[b - 1])",
    ),
    ("disjoint", "y", HEAD + "y: f32[3] over t < T\n when t <= 2: exp(x[t])\n when t >= 2: neg(x[t])"),
    ("coverage", "y", HEAD + "y: f32[3] over t < T recurrent\n when t == 0: exp(x[t])\n when t >= 2: neg(x[t])"),
    ("coverage", "y", HEAD + "y: f32[3] over t < T where t >= 1\n when t >= 2: neg(x[t])"),
    ("coverage", "y", HEAD + "y: f32[3] over t < T where t >= 1 = exp(x[t])\noutput y"),
    ("coverage", "y", HEAD + "y: f32[3] over t < T where t >= 1 = exp(x[t])\neffect y"),
    ("coverage", "y", HEAD + 'y: f32[3] over t < T where t >= 1 = input(name="y")'),
    ("reads", "y", HEAD + "y: f32[3] over t < T = exp(x[t - 1])"),
    ("reads", "y", HEAD + "y: f32[3] = exp(x[0])"),
    ("reads", "y", HEAD + "y: f32[T + 1, 3] = exp(x[0 +: T + 1])"),
    ("reads", "y", HEAD + "y: f32[T, 3] = exp(x[0 +: T by -1])"),
    ("reads", "z", HEAD + "y: f32[3] over t < T where t >= 1 = exp(x[t])\nz: f32[3] over t < T = exp(y[t])"),
    ("reads", "z", HEAD + "y: f32[3] over t < T where t >= 1 recurrent = exp(x[t])\nz: f32[3] over t < T = exp(y[t])"),
    (
        "reads",
        "y",
        RAGGED + 'x: f32 over b < B, k < L = input(name="x")\ny: f32 over b < B, k < L where b >= 1 = exp(x[b - 1, k])',
    ),
]


@pytest.mark.parametrize(("rule", "where", "text"), BROKEN)
def test_a_broken_graph_is_caught(rule: str, where: str, text: str) -> None:
    with pytest.raises(GrammarError) as caught:
        verify(parse(text))
    assert (caught.value.rule, caught.value.where) == (rule, where), caught.value
    assert str(caught.value).startswith(f"{where} breaks the rule {rule!r}")


def test_a_node_under_another_name() -> None:
    node = Node("x", (), SCALAR, (everywhere("input", name="x"),))
    with pytest.raises(GrammarError, match="y breaks the rule 'names'"):
        verify(Graph({"y": node}, ()))


@pytest.mark.parametrize(
    "value",
    [
        [3],
        np.int64(3),
        np.float32(1),
        Array(np.zeros(2, np.clongdouble)),
        np.dtype(np.clongdouble),
        (1, [2]),
        Symbol("t", "dim"),
    ],
    ids=repr,
)
def test_attributes_of_other_types(value: object) -> None:
    node = Node("x", (), SCALAR, (everywhere("constant", value=Array(np.ones(())), extra=value),))
    with pytest.raises(GrammarError, match="x breaks the rule 'attributes'"):
        verify(Graph({"x": node}, ()))


def test_a_host_function_stands_only_in_its_place() -> None:
    function = HostFunction("f", print, (SCALAR,))
    good = everywhere("host", function=function, call=0, result=0)
    verify(Graph({"x": Node("x", (), SCALAR, (good,))}, ()))
    for attributes in ({"function": "f"}, {"other": function}):
        bad = replace(good, attributes={**good.attributes, **attributes})
        with pytest.raises(GrammarError, match="x breaks the rule 'attributes'"):
            verify(Graph({"x": Node("x", (), SCALAR, (bad,))}, ()))


@pytest.mark.parametrize(("result", "length"), [(0, 4), (1, 3)])
def test_a_host_function_returns_what_the_node_is(result: int, length: int) -> None:
    function = HostFunction("f", print, (TensorType((Term(3),), dtypes.FLOAT32),))
    definition = everywhere("host", function=function, call=0, result=result)
    node = Node("x", (), TensorType((Term(length),), dtypes.FLOAT32), (definition,))
    with pytest.raises(GrammarError, match="x breaks the rule 'types'"):
        verify(Graph({"x": node}, ()))


def test_every_rule_has_a_broken_graph() -> None:
    tested = {rule for rule, _, _ in BROKEN} | {"attributes"}
    assert tested == {rule for rule, _ in RULES}
