"""Every algebraic rule, over all values of small dtypes and the special values of large ones; and that it fires.

Values are compared bit by bit, any NaN with any NaN. The operations are those of the op table, which defines them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np
import pytest

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import TRUE
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.types import Array, TensorType
from polyrhythm.compiler.passes.notes import Notes
from polyrhythm.compiler.passes.rules import RULES, Apply, Letter, Number, Pattern, Rule
from polyrhythm.compiler.passes.simplify import simplify

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -1.5, 2.5, 3.0, -3.0, 1e-40, -1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan]
DTYPES: Mapping[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "int": ("int8", "uint8", "int32"),
    "float": ("float16", "float32", "float64"),
}


def letters(pattern: Pattern) -> Iterator[str]:
    if isinstance(pattern, Letter):
        yield pattern.name
    elif isinstance(pattern, Apply):
        for part in pattern.operands:
            yield from letters(part)


def values(dtype: np.dtype, count: int) -> np.ndarray:
    """What a letter stands for: everything, where that is possible for so many letters."""
    if dtype == dtypes.BOOL:
        return np.array([False, True])
    if dtype.itemsize == 1 and count <= 2:
        return np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1).astype(dtype)
    if dtypes.kind(dtype) == "int":
        info = np.iinfo(dtype)
        return np.array(
            [info.min, info.min + 1, *([-2, -1] if info.min else [2]), 0, 1, 3, 7, info.max - 1, info.max], dtype
        )
    if dtype.itemsize == 2 and count == 1:
        return np.arange(1 << 16, dtype=np.uint16).view(dtype)
    with np.errstate(all="ignore"):
        return np.array(SPECIAL).astype(dtype)


def evaluated(pattern: Pattern, bound: Mapping[str, np.ndarray], dtype: np.dtype) -> np.ndarray:
    if isinstance(pattern, Letter):
        return bound[pattern.name]
    if isinstance(pattern, Number):
        wanted = dtypes.BOOL if isinstance(pattern.value, bool) else dtype
        return np.array(pattern.value).astype(wanted)
    return TABLE[pattern.op].numpy(*(evaluated(part, bound, dtype) for part in pattern.operands))


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    a, b = np.broadcast_arrays(a, b)
    if a.dtype != b.dtype:
        return False
    if not dtypes.is_float(a.dtype):
        return bool(np.array_equal(a, b))
    with np.errstate(invalid="ignore"):  # NaN that signals, among all bit patterns
        wide = [x.astype(np.float64) for x in (a, b)]
    nan = np.isnan(wide[0]) & np.isnan(wide[1])
    return bool(np.all(nan | ((wide[0] == wide[1]) & (np.signbit(wide[0]) == np.signbit(wide[1])))))


def cases(rule: Rule) -> Iterator[np.dtype]:
    for kind in rule.kinds:
        for name in DTYPES[kind]:
            # Unsigned integers have no -1 for a constant to be.
            if name != "uint8" or not any(isinstance(p, Number) and p.value < 0 for p in rule.left.operands):
                yield np.dtype(name)


def test_names_differ() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_holds(rule: Rule) -> None:
    names = list(dict.fromkeys(letters(rule.left)))
    assert set(letters(rule.right)) <= set(names)
    for dtype in cases(rule):
        choices = [values(dtypes.BOOL if name == "C" else dtype, len(names)) for name in names]
        grid = np.meshgrid(*choices, indexing="ij")
        bound = dict(zip(names, grid, strict=True))
        left, right = evaluated(rule.left, bound, dtype), evaluated(rule.right, bound, dtype)
        assert same_bits(np.broadcast_to(left, grid[0].shape), np.broadcast_to(right, grid[0].shape)), dtype


def as_graph(pattern: Apply, dtype: np.dtype) -> Graph:
    """A graph that computes a pattern of inputs."""
    nodes: dict[str, Node] = {}

    def add(name: str, op: str, operands: tuple[str, ...], dtype: np.dtype, key: str = "", value: object = None) -> str:
        accesses = tuple(Access(operand, ()) for operand in operands)
        attributes = {key: value} if key else {}
        nodes[name] = Node(name, (), TensorType((), dtype), (Definition(TRUE, op, accesses, attributes),))
        return name

    def build(part: Pattern) -> str:
        if isinstance(part, Letter):
            return add(part.name, "input", (), dtypes.BOOL if part.name == "C" else dtype, "name", part.name)
        name = f"n{len(nodes)}"
        if isinstance(part, Number):
            kind = dtypes.BOOL if isinstance(part.value, bool) else dtype
            return add(name, "constant", (), kind, "value", Array(np.array(part.value).astype(kind)))
        operands = tuple(build(operand) for operand in part.operands)
        kinds = tuple(nodes[operand].type for operand in operands)
        found = TABLE[part.op].type_rule(kinds, {}, TRUE)
        return add(f"n{len(nodes)}", part.op, operands, found.dtype)

    return Graph(nodes, (build(pattern),))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_fires(rule: Rule) -> None:
    dtype = next(cases(rule))
    notes = Notes()
    graph = simplify(as_graph(rule.left, dtype), notes)
    assert rule.name in [note.rule for note in notes]
    (output,) = graph.outputs
    definition = graph[output].definitions[0]
    if isinstance(rule.right, Apply):
        assert definition.op == rule.right.op
        read = [access.source for access in definition.operands]
        assert read == [part.name for part in rule.right.operands if isinstance(part, Letter)]
    elif isinstance(rule.right, Letter):
        assert (definition.op, [access.source for access in definition.operands]) == ("copy", [rule.right.name])
    else:
        assert definition.op == "constant"


@pytest.mark.parametrize(
    ("left", "kind"),
    [
        (Apply("add", (Letter("A"), Number(0))), "float"),
        (Apply("mul", (Letter("A"), Number(0))), "float"),
        (Apply("sub", (Letter("A"), Letter("A"))), "float"),
        (Apply("sub", (Number(0), Letter("A"))), "float"),
        (Apply("eq", (Letter("A"), Letter("A"))), "float"),
        (Apply("not", (Apply("lt", (Letter("A"), Letter("B"))),)), "float"),
        (Apply("neg", (Apply("sub", (Letter("A"), Letter("B"))),)), "float"),
        (Apply("sub", (Letter("A"), Letter("B"))), "int"),
    ],
    ids=str,
)
def test_does_not_fire_where_it_would_be_wrong(left: Apply, kind: str) -> None:
    """NaN, infinities and the sign of zero would come out differently; or the letters are two values."""
    notes = Notes()
    simplify(as_graph(left, np.dtype(DTYPES[kind][-1])), notes)
    assert [note.rule for note in notes] == []


CASTS = [dtype for dtype in dtypes.DTYPES if dtype.itemsize <= 2] + [dtypes.INT32, dtypes.FLOAT32, dtypes.FLOAT64]


def test_cast_twice_loses_nothing() -> None:
    """Every pair of casts that is left out gives the same, for all values of up to 16 bits."""
    from polyrhythm.compiler.passes.structure import lossless

    cast = TABLE["cast"].numpy
    found = 0
    for first, middle, last in product(CASTS, CASTS, CASTS):
        if not lossless(first, middle, last):
            continue
        found += 1
        if first == dtypes.BOOL:
            x = np.array([False, True])
        elif first.itemsize <= 2:
            x = np.arange(1 << (8 * first.itemsize)).astype(f"uint{8 * first.itemsize}").view(first)
        else:
            x = values(first, 1)
        once = cast(x, dtype=last)
        assert same_bits(cast(cast(x, dtype=middle), dtype=last), once), (first, middle, last)
    assert found > 200
