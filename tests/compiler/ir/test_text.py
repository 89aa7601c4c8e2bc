"""The text of a graph: readable, and equal when read back."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import TRUE, ge
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, HostFunction, Node, NodeDim, Range
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.ir.text import LARGEST_LIST, array_text, functions, show
from polyrhythm.compiler.ir.types import Array, TensorType
from tests.compiler.ir.parse import ParseError, parse, parse_condition
from tests.compiler.ir.programs import PROGRAMS, everywhere

Golden = Callable[[str, str], None]
SCALAR = TensorType((), dtypes.FLOAT32)
T = Symbol("T", "bound")
t = Symbol("t", "dim", bound=T)


def round_trip(graph: Graph) -> None:
    text = show(graph)
    again = parse(text, functions(graph))
    assert again == graph
    assert show(again) == text
    assert list(again.nodes) == list(graph.nodes)
    assert list(again.lengths.items()) == list(graph.lengths.items())


def with_attributes(**attributes: object) -> Graph:
    return Graph({"x": Node("x", (NodeDim(t, Term.of(T)),), SCALAR, (everywhere("op", **attributes),))}, ("x",))


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_read_back(name: str) -> None:
    round_trip(PROGRAMS[name]())


@pytest.mark.parametrize(
    "name",
    ["moving_average", "edit_distance", "causal_attention", "prompt", "ragged", "decoding", "host_calls", "literals"],
)
def test_programs_look_pleasant(name: str, golden: Golden) -> None:
    golden(name, show(PROGRAMS[name]()))


@pytest.mark.parametrize(
    "value",
    [
        3,
        -3,
        Term(3),
        Term(-3),
        Term.of(T),
        -Term.of(T),
        (Term.of(t) + 1) // 2,
        2 * Term.of(t),
        0.5,
        -0.5,
        1e-7,
        1e300,
        float("inf"),
        float("-inf"),
        True,
        False,
        None,
        "text",
        'quo"te \\ \n λ',
        "",
        (),
        (1,),
        (1, Term(1)),
        (Term(1),),
        ((1, 2), (Term(0), Term.of(T)), None, "x"),
        ge(Term.of(t), 3),
        TRUE,
        parse_condition("(t < T and t >= 1) or t == 4", {"t": t, "T": T}),
        dtypes.BFLOAT16,
        np.dtype(bool),
        Array(np.array(0.1, np.float32)),
        Array(np.zeros((2, 0), np.int8)),
    ],
    ids=repr,
)
def test_attributes_read_back_with_their_type(value: object) -> None:
    again: Any = parse(show(with_attributes(key=value)))["x"].definitions[0].attributes["key"]
    assert again == value
    assert type(again) is type(value)
    if isinstance(value, tuple) and isinstance(again, tuple):
        assert [type(part) for part in again] == [type(part) for part in value]


@given(
    npst.arrays(
        st.sampled_from([d for d in dtypes.DTYPES if d.name != "bfloat16"]), npst.array_shapes(max_side=7, min_dims=0)
    )
)
def test_arrays_read_back_bit_by_bit(value: np.ndarray) -> None:
    assert parse(show(with_attributes(key=Array(value))))["x"].definitions[0].attributes["key"] == Array(value)


@pytest.mark.parametrize("dtype", dtypes.DTYPES, ids=str)
def test_every_dtype_reads_back(dtype: np.dtype) -> None:
    bits = np.random.default_rng(0).integers(0, 2 if dtype == dtypes.BOOL else 256, 40 * dtype.itemsize, np.uint8)
    for count in (1, 5, LARGEST_LIST + 1):
        round_trip(with_attributes(key=Array(bits.view(dtype)[:count]), dtype=dtype))


def test_how_arrays_look() -> None:
    assert array_text(Array(np.array(0.1, np.float32))) == "f32(0.1)"
    assert array_text(Array(np.array([[1, -2]], np.int16))) == "i16[1, 2](1, -2)"
    assert array_text(Array(np.full((3, 3), True))) == "bool[3, 3](fill True)"
    odd_nan = np.array([0x7FC00001], np.uint32).view(np.float32)
    assert array_text(Array(odd_nan)) == 'f32[1]("AQDAfw==")'
    assert array_text(Array(np.arange(LARGEST_LIST + 1, dtype=np.int8))).startswith('i8[33]("')


def test_symbols_of_every_kind_read_back() -> None:
    b = Symbol("b", "dim", bound=Symbol("B", "bound"))
    size = Symbol("P", "size", max=2 * Term.of(T) + 1)
    length = Symbol("L", "bound", max=Term.of(size), over=(b,))
    step = Symbol("time step", "dim", bound=length, serial=7)
    free = Symbol("f32", "dim")
    dims = tuple(NodeDim(s, Term.of(e)) for s, e in ((b, b.bound or T), (step, length), (free, T)))
    n = Node("n", dims, TensorType((Term.of(size),), dtypes.INT32), (everywhere("op", dtype=dtypes.FLOAT32),))
    round_trip(Graph({"n": n}, ("n",), {length: Access("n", (Term.of(b),))}, {free: "n"}, ("n",)))


def test_symbols_of_one_name_get_names_of_their_own() -> None:
    symbols = [Symbol("k", "dim", serial=n) for n in (3, 5, 8)]
    dims = tuple(NodeDim(s, Term.of(T)) for s in symbols)
    a, b, c = map(Term.of, symbols)
    reads = (Access("x", (a - b, Range(b // 2, Term(3), -2), c % 2)),)
    graph = Graph({"x": Node("x", dims, SCALAR, (Definition(ge(a + b, 2 * c), "op", reads),))}, ("x",))
    assert 'dim k_2 named "k" serial 5' in show(graph)
    round_trip(graph)


@pytest.mark.parametrize("name", ["layers.0.weight", "an odd name", "when", "output", "dim", "a`b", "1", "x:y"])
def test_node_names_read_back(name: str) -> None:
    node = Node(name, (), SCALAR, (everywhere("input", name=name),))
    reader = Node("y", (), SCALAR, (Definition(ge(Term.of(T), 1), "exp", (Access(name, ()),)),))
    round_trip(Graph({"y": reader, name: node}, (name, "y")))


def test_a_node_without_definitions_reads_back() -> None:
    round_trip(Graph({"x": Node("x", (), SCALAR, (), recurrent=True)}, ()))


def test_stored_values_are_passed_through() -> None:
    stored = {"w": np.ones(2)}
    assert parse('w: f32[2] = input(name="w")', parameters=stored).parameters == stored


def test_comments_blank_lines_and_other_spellings_are_read() -> None:
    text = """
        # a comment
        bound T   # another
        dim t < T

        y: f32 over t < 0 + T recurrent
            when 2*t > 3: exp(x[2*t - t])   # t >= 2
    """
    definition = parse(text)["y"].definitions[0]
    assert str(definition.domain) == "t >= 2"
    assert definition.operands[0].steps[0] is Term.of(parse(text)["y"].symbols[0])


HOST = HostFunction("f", print, (SCALAR,))


@pytest.mark.parametrize(
    ("text", "message", "known"),
    [
        ("dim t < S", "line 1, column 9: no symbol S is declared", {}),
        ("bound T\nbound T", "line 2, column 7: the symbol T is declared twice", {}),
        ("x: f32\nx: f32", "line 2, column 1: the node x is defined twice", {}),
        ("x: f99", "line 1, column 4: f99 is not a dtype", {}),
        ("x: f32 = exp(y", "line 1, column 15: expected ',', not the end of the line", {}),
        ("x: f32 = exp(y) z", "line 1, column 17: expected the end of the line, not 'z'", {}),
        ("x: f32 = op(a=1, a=2)", "line 1, column 18: the attribute a is given twice", {}),
        ("bound T\nx: f32[T // T]", "line 2, column 13: an index is divided by positive integers only, not by T", {}),
        ("bound T\nx: f32[T < 2]", "line 2, column 10: expected ',', not '<'", {}),
        ('bound T\nrequire T: "x"', "line 2, column 9: expected a condition, not an index term", {}),
        ("x: f32 = op(a=f32[2](1.0))", "line 1, column 15: these are not the elements of an array float32[2]", {}),
        ("x: f32 = op(a=i8(300))", "line 1, column 15: these are not the elements of an array int8[]", {}),
        ('x: f32 = op(a=f32("?"))', "line 1, column 15: these are not the elements", {}),
        ("x: f32 = host(function=@f)", "line 1, column 25: the host function f is not among the functions", {}),
        ("host @f: i32", "line 1, column 7: the function given for 'f' does not return what is declared", {"f": HOST}),
        ("hello world", "line 1, column 1: a line begins with a name and a colon, or with one of bound, size", {}),
        ("x: f32 = op(a=$)", "line 1, column 15: '$' begins nothing known", {}),
        ('x: f32 = op(a="\\q")', "line 1, column 15: .* has an escape that JSON does not have", {}),
        ('bound T\nrequire (T > 1) + 2 > 3: ""', "line 2, column 9: expected an index term here", {}),
        ('bound T\nrequire T and T: ""', "line 2, column 9: expected a condition here", {}),
        ("bound T\nx: f32[min()]", "line 2, column 8: min and max need an argument", {}),
    ],
)
def test_errors_say_where_and_what(text: str, message: str, known: Mapping[str, HostFunction]) -> None:
    escaped = message if ".*" in message else message.replace("[", r"\[").replace("]", r"\]").replace("$", r"\$")
    with pytest.raises(ParseError, match=escaped) as caught:
        parse(text, known)
    assert str(caught.value).startswith(f"line {caught.value.line}, column {caught.value.column}")


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(TypeError, match="not an attribute"):
        show(with_attributes(key=[1]))


def test_equality_ignores_source_lines_only() -> None:
    graph = PROGRAMS["fibonacci"]()
    again = parse(show(graph))
    assert again["f"].at is None
    assert graph["f"].at is not None
    assert again != replace(graph, outputs=())
