"""Rules about shapes, constants, masks and contractions: what the table of algebra cannot say, one function each.

A rule gets a definition of a node and returns one that gives the same value, or None. What it looks through is read
at a single point, so reading further back is only a substitution. Moving elements is exact. Sums and contractions
are regrouped, as any reduction may be: floats may round differently, and where single values overflow, differently
at all; 16-bit floats are left alone, since they would be rounded fewer times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import Condition, negation
from polyrhythm.compiler.ir.graph import Access, Definition, Node
from polyrhythm.compiler.ir.ops.checks import broadcast_shapes
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.ops.record import concrete
from polyrhythm.compiler.ir.sets import equal, proves
from polyrhythm.compiler.ir.terms import ONE, ZERO, Symbol, Term
from polyrhythm.compiler.ir.types import Array, Shape
from polyrhythm.compiler.passes import parts
from polyrhythm.compiler.passes.rewriting import Nodes

Structural = Callable[[Nodes, Node, Definition], Definition | None]

LARGEST_CONSTANT = 1 << 12
"""The most elements of a constant that is worked out while compiling."""


def same_shape(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """A reshape, slice, pad, transpose or reduction that changes nothing is a copy."""
    (access,) = definition.operands
    kind = nodes.type_of(access)
    attributes = definition.attributes
    if definition.op == "transpose":
        nothing = tuple(attributes["axes"]) == tuple(range(kind.rank))
    elif definition.op == "reduce":
        nothing = not attributes["axes"]
    elif definition.op == "pad":
        nothing = all(Term.of(n) is ZERO for n in (*attributes["before"], *attributes["after"]))
    elif definition.op == "slice":
        starts, lengths = (tuple(map(Term.of, attributes[key])) for key in ("starts", "lengths"))
        nothing = all(n is ZERO for n in starts) and lengths == kind.shape and set(attributes["steps"]) <= {1}
    else:
        nothing = kind.shape == node.shape
    return nodes.copy(node, access, definition) if nothing else None


def same_dtype(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """A cast to the dtype that a value has is a copy."""
    (access,) = definition.operands
    return nodes.copy(node, access, definition) if nodes.type_of(access).dtype == node.dtype else None


def concat_of_one(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """Joining a single value is a copy."""
    return nodes.copy(node, definition.operands[0], definition) if len(definition.operands) == 1 else None


def reshape_twice(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """Only the last of two reshapes matters."""
    inner = nodes.seen_through(definition.operands[0])
    return _instead(definition, inner) if inner is not None and inner.op == "reshape" else None


def broadcast_twice(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """Only the last of two broadcasts matters, and a copy of one is that one."""
    inner = nodes.seen_through(definition.operands[0])
    if inner is None or not inner.record.repeats:
        return None
    return _instead(definition, inner) if definition.op == "broadcast" else replace(inner, domain=definition.domain)


def transpose_twice(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """Two transposes are one."""
    inner = nodes.seen_through(definition.operands[0])
    if inner is None or inner.op != "transpose":
        return None
    axes = tuple(inner.attributes["axes"][axis] for axis in definition.attributes["axes"])
    return Definition(definition.domain, "transpose", inner.operands, {"axes": axes}, definition.at)


def slice_twice(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """A slice of a slice is one slice."""
    inner = nodes.seen_through(definition.operands[0])
    if inner is None or inner.op != "slice":
        return None
    outer, first = definition.attributes, inner.attributes
    entries = zip(first["starts"], first["steps"], outer["starts"], strict=True)
    starts = tuple(Term.of(a) + Term.of(b) * step for a, step, b in entries)
    steps = tuple(a * b for a, b in zip(first["steps"], outer["steps"], strict=True))
    attributes = {"starts": starts, "lengths": outer["lengths"], "steps": steps}
    return Definition(definition.domain, "slice", inner.operands, attributes, definition.at)


def reduce_twice(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """Reducing along some axes and then along others by the same monoid is one reduction."""
    inner = nodes.seen_through(definition.operands[0])
    if inner is None or inner.op != "reduce" or inner.attributes["monoid"] != definition.attributes["monoid"]:
        return None
    if dtypes.accumulator(node.dtype) != node.dtype:
        return None
    rank = nodes.type_of(inner.operands[0]).rank
    left = [axis for axis in range(rank) if axis not in inner.attributes["axes"]]
    axes = sorted((*inner.attributes["axes"], *(left[axis] for axis in definition.attributes["axes"])))
    attributes = {"monoid": definition.attributes["monoid"], "axes": tuple(axes)}
    return Definition(definition.domain, "reduce", inner.operands, attributes, definition.at)


def cast_twice(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """A cast that loses nothing on the way to another can be left out."""
    inner = nodes.seen_through(definition.operands[0])
    if inner is None or inner.op != "cast":
        return None
    first, middle = nodes.type_of(inner.operands[0]).dtype, inner.attributes["dtype"]
    return _instead(definition, inner) if lossless(first, middle, node.dtype) else None


def lossless(first: np.dtype, middle: np.dtype, last: np.dtype) -> bool:
    """Whether casting by way of `middle` gives what casting at once does.

    >>> f16, f32, i8, u8 = (np.dtype(name) for name in ("float16", "float32", "int8", "uint8"))
    >>> lossless(f16, f32, i8), lossless(f32, f16, f32), lossless(i8, f32, u8)
    (True, False, False)
    """
    if first == dtypes.BOOL:
        return True
    if "c" in (first.kind, middle.kind):
        return False
    if dtypes.is_float(first):
        wider = {dtypes.FLOAT16: 1, dtypes.BFLOAT16: 1, dtypes.FLOAT32: 2, dtypes.FLOAT64: 3}
        return dtypes.is_float(middle) and (first == middle or wider[first] < wider[middle])
    signed, bits = first.kind == "i", first.itemsize * 8
    if dtypes.is_float(middle):
        # A float saturates where an integer wraps, so only what does not end as an integer may take this way.
        exact = {dtypes.FLOAT16: 11, dtypes.BFLOAT16: 8, dtypes.FLOAT32: 24, dtypes.FLOAT64: 53}[middle]
        return bits - signed <= exact and dtypes.kind(last) != "int"
    if middle == dtypes.BOOL:
        return False
    if middle.kind == first.kind:
        return middle.itemsize >= first.itemsize
    return not signed and middle.itemsize > first.itemsize


def drop_broadcast(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """An elementwise operation broadcasts by itself: what is broadcast for it can be read as it is."""
    if not definition.record.elementwise:
        return None
    given = nodes.known(node, definition)
    for position, access in enumerate(definition.operands):
        inner = nodes.seen_through(access)
        if inner is None or not inner.record.repeats:
            continue
        operands = (*definition.operands[:position], inner.operands[0], *definition.operands[position + 1 :])
        if _fits(nodes, operands, node.shape, given):
            return Definition(definition.domain, definition.op, operands, definition.attributes, definition.at)
    return None


def broadcast_last(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """An elementwise operation on repeated single values is done once and repeated."""
    if not definition.record.elementwise:
        return None
    operands = []
    for access in definition.operands:
        inner = nodes.seen_through(access)
        if inner is not None and inner.record.repeats:
            access = inner.operands[0]
        if nodes.type_of(access).shape != ():
            return None
        operands.append(access)
    if tuple(operands) == definition.operands or not operands:
        return None
    made = nodes.add(f"{node.name}_once", node, definition, definition.op, operands, **definition.attributes)
    return nodes.copy(node, made, definition)


def choose_proved(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """A choice by a condition on indices that always holds here, or never does, is no choice."""
    inner = nodes.seen_through(definition.operands[0])
    if inner is not None and inner.record.repeats:
        inner = nodes.seen_through(inner.operands[0])
    if inner is None or inner.op != "index" or not isinstance(inner.attributes["value"], Condition):
        return None
    condition, given = inner.attributes["value"], nodes.known(node, definition)
    for claim, chosen in ((condition, 1), (negation(condition), 2)):
        if proves(given, claim):
            return nodes.copy(node, definition.operands[chosen], definition)
    return None


def fold_constants(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """What is made of constants alone is worked out now."""
    if definition.record.sited or definition.record.external or definition.op in ("constant", "iota"):
        return None
    if definition.record.repeats:  # kept as it is: small, and free where it is read
        return None
    arrays = []
    for access in definition.operands:
        inner = nodes.seen_through(access)
        if inner is None or inner.op != "constant":
            return None
        arrays.append(inner.attributes["value"].value)
    if any(term.symbols for term in definition.terms) or not all(n.is_constant for n in node.shape):
        return None
    if prod(n.constant for n in node.shape) > LARGEST_CONSTANT:
        return None
    value = definition.record.numpy(*arrays, **concrete(definition.attributes, _no_symbol))
    return Definition(definition.domain, "constant", (), {"value": Array(np.asarray(value))}, definition.at)


def contract_transposed(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """A contraction of a transposed value reads the value with its labels in another order.

    Not of one that varies along fewer dims: that is transposed once, and how a matrix lies in memory matters in a loop.
    """
    words, output = parse_spec(definition.attributes["spec"])
    for position, access in enumerate(definition.operands):
        inner = nodes.seen_through(access)
        if inner is None or inner.op != "transpose" or not set(node.symbols) <= inner.operands[0].dims:
            continue
        word = [""] * len(words[position])
        for axis, letter in zip(inner.attributes["axes"], words[position], strict=True):
            word[axis] = letter
        operands = (*definition.operands[:position], inner.operands[0], *definition.operands[position + 1 :])
        relabelled = (*words[:position], "".join(word), *words[position + 1 :])
        return Definition(definition.domain, "einsum", operands, _spec(relabelled, output), definition.at)
    return None


def take_of_codes(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """Rows of a dequantized matrix: its codes and scales are taken, and only those are dequantized."""
    matrix, indices = definition.operands
    inner, axis = nodes.seen_through(matrix), definition.attributes["axis"]
    if inner is None or inner.op != "dequantize" or axis == nodes.type_of(matrix).rank - 1:
        return None
    taken = [
        nodes.add(f"{node.name}_codes", node, definition, "take", (operand, indices), axis=axis)
        for operand in inner.operands
    ]
    return Definition(definition.domain, inner.op, tuple(taken), inner.attributes, definition.at)


def take_of_cast(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """Rows of a value that was cast to a wider type: rows are taken of the narrow one, which is what is kept."""
    whole, indices = definition.operands
    source, own = nodes[whole.source], nodes.seen_through(nodes[whole.source].here)
    if own is None or own.op != "cast" or nodes.type_of(own.operands[0]).dtype.itemsize >= node.dtype.itemsize:
        return None
    inner = nodes.seen_through(whole)
    if inner is not None:
        narrow = inner.operands[0]
    elif own.operands[0].steps == source.current:
        narrow = Access(own.operands[0].source, whole.steps)
    else:
        return None
    taken = nodes.add(f"{node.name}_rows", node, definition, definition.op, (narrow, indices), **definition.attributes)
    return Definition(definition.domain, "cast", (taken,), own.attributes, definition.at)


def recognise_matmul(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """A sum over axes of a product of broadcast values is a contraction, if each operand lacks an axis that is kept.

    A product of equal shapes stays as it is: a code generator makes one loop of it.
    """
    return sum_of_products(nodes, node, definition, all)


def sum_of_products(
    nodes: Nodes, node: Node, definition: Definition, which: Callable[[Iterable[bool]], bool]
) -> Definition | None:
    """A sum over axes of a product as a contraction, if all or any of the operands lack an axis that is kept."""
    inner = nodes.seen_through(definition.operands[0])
    if definition.attributes["monoid"] != "sum" or inner is None or inner.op != "mul":
        return None
    if dtypes.accumulator(node.dtype) != node.dtype:
        return None
    whole = nodes.type_of(definition.operands[0])
    letters = "abcdefghijklmnopqrstuvwxyz"[: whole.rank]
    summed = {letters[axis] for axis in definition.attributes["axes"]}
    output = "".join(letter for letter in letters if letter not in summed)
    words, kinds = [], [nodes.type_of(access) for access in inner.operands]
    for kind in kinds:
        own = range(whole.rank - kind.rank, whole.rank)
        kept = (letters[at] for at, n in zip(own, kind.shape, strict=True) if n is not ONE or whole.shape[at] is ONE)
        words.append("".join(kept))
    if not summed <= set(words[0]) & set(words[1]) or not which(not set(output) <= set(word) for word in words):
        return None
    operands = []
    for access, kind, word in zip(inner.operands, kinds, words, strict=True):
        if len(word) < kind.rank:
            shape = tuple(kind.shape[letters.index(letter) - whole.rank + kind.rank] for letter in word)
            access = nodes.add(f"{node.name}_factor", node, definition, "reshape", (access,), shape=shape)
        operands.append(access)
    return Definition(definition.domain, "einsum", tuple(operands), _spec(tuple(words), output), definition.at)


def reassociate(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """`(A @ B) @ C` as `A @ (B @ C)`, or the other way, where that takes at most half the multiplications."""
    if len(definition.operands) != 2 or dtypes.accumulator(node.dtype) != node.dtype:
        return None
    words, output = parse_spec(definition.attributes["spec"])
    for position in (0, 1):
        inner = nodes.seen_through(definition.operands[position])
        if inner is None or inner.op != "einsum" or len(inner.operands) != 2:
            continue
        # What others read is made anyway, and what varies along fewer dims is made less often.
        varying = [access.dims for access in (*inner.operands, definition.operands[1 - position])]
        if nodes.readers[definition.operands[position].source] > 1 or not varying[2] <= varying[0] | varying[1]:
            continue
        found = _regrouped(nodes, definition, inner, position, words, output)
        if found is None:
            continue
        first, second, product_spec, final_spec, swap = found
        product = nodes.add(f"{node.name}_regrouped", node, definition, "einsum", first, **product_spec)
        operands = (second, product) if swap else (product, second)
        return Definition(definition.domain, "einsum", operands, final_spec, definition.at)
    return None


def _regrouped(
    nodes: Nodes, definition: Definition, inner: Definition, position: int, words: tuple[str, ...], output: str
) -> tuple[tuple[Access, Access], Access, dict[str, str], dict[str, str], bool] | None:
    """Another grouping of three factors: which two first, the third, both specifications, and the order of the last."""
    inner_words, inner_output = parse_spec(inner.attributes["spec"])
    # Labels of the inner contraction in terms of the outer one; those it sums get letters of their own.
    names = dict(zip(inner_output, words[position], strict=True))
    free = (c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in "".join(words))
    for letter in dict.fromkeys("".join(inner_words)):
        if letter not in names:
            names[letter] = next(free)
    if len(set(names.values())) < len(names):
        return None  # a diagonal
    a, b = ("".join(names[letter] for letter in word) for word in inner_words)
    c = words[1 - position]
    if any(len(set(word)) < len(word) for word in (a, b, c)):
        return None
    accesses = (*inner.operands, definition.operands[1 - position])
    sizes: dict[str, int] = {}
    for word, access in zip((a, b, c), accesses, strict=True):
        for letter, length in zip(word, nodes.type_of(access).shape, strict=True):
            if not length.is_constant:
                return None
            sizes[letter] = length.constant
    present = _work(sizes, a, b) + _work(sizes, words[position], c)
    best = None
    for kept, moved in ((0, 1), (1, 0)):  # the factor that stays behind, and the one that meets the third first
        near, far = (a, b)[moved], (a, b)[kept]
        middle = "".join(letter for letter in dict.fromkeys(near + c) if letter in far or letter in output)
        cost = _work(sizes, near, c) + _work(sizes, middle, far)
        if cost * 2 <= present and (best is None or cost < best[0]):
            best = (cost, kept, moved, near, far, middle)
    if best is None:
        return None
    _, kept, moved, near, far, middle = best
    first = (accesses[moved], accesses[2])
    return first, accesses[kept], _spec((near, c), middle), _spec((far, middle), output), True


def _work(sizes: dict[str, int], *words: str) -> int:
    """The multiplications of a contraction."""
    return prod(sizes[letter] for letter in set("".join(words)))


def _spec(words: tuple[str, ...], output: str) -> dict[str, str]:
    return {"spec": f"{','.join(words)}->{output}"}


def _instead(definition: Definition, inner: Definition) -> Definition:
    """The definition on the operands of what it reads."""
    return Definition(definition.domain, definition.op, inner.operands, definition.attributes, definition.at)


def _fits(nodes: Nodes, operands: tuple[Access, ...], shape: Shape, given: Condition) -> bool:
    """Whether operands broadcast to a shape together."""
    found = broadcast_shapes("broadcast", [nodes.type_of(access).shape for access in operands], given)
    return len(found) == len(shape) and all(equal(a, b, given) for a, b in zip(found, shape, strict=True))


def _no_symbol(symbol: Symbol) -> int:
    raise AssertionError(f"{symbol} is no constant")


STRUCTURAL: tuple[tuple[str, frozenset[str] | None, Structural], ...] = (
    ("same-shape", frozenset({"reshape", "slice", "pad", "transpose", "reduce"}), same_shape),
    ("same-dtype", frozenset({"cast"}), same_dtype),
    ("concat-of-one", frozenset({"concat"}), concat_of_one),
    ("reshape-twice", frozenset({"reshape"}), reshape_twice),
    ("broadcast-twice", frozenset({"broadcast", "copy"}), broadcast_twice),
    ("transpose-twice", frozenset({"transpose"}), transpose_twice),
    ("slice-twice", frozenset({"slice"}), slice_twice),
    ("slice-of-range", frozenset({"slice"}), parts.slice_of_range),
    ("reshape-of-range", frozenset({"reshape"}), parts.reshape_of_range),
    ("reduce-twice", frozenset({"reduce"}), reduce_twice),
    ("cast-twice", frozenset({"cast"}), cast_twice),
    ("choose-proved", frozenset({"select"}), choose_proved),
    ("drop-broadcast", None, drop_broadcast),
    ("broadcast-last", None, broadcast_last),
    ("fold-constants", None, fold_constants),
    ("contract-transposed", frozenset({"einsum"}), contract_transposed),
    ("slice-of-broadcast", frozenset({"slice"}), parts.slice_of_broadcast),
    ("slice-of-contraction", frozenset({"slice"}), parts.slice_of_contraction),
    ("reshape-of-contraction", frozenset({"reshape"}), parts.reshape_of_contraction),
    ("take-of-codes", frozenset({"take"}), take_of_codes),
    ("take-of-cast", frozenset({"take", "take_along"}), take_of_cast),
    ("recognise-matmul", frozenset({"reduce"}), recognise_matmul),
    ("reassociate", frozenset({"einsum"}), reassociate),
)
"""Each rule with the operations it applies to; None means any."""

__all__ = ["STRUCTURAL", "contract_transposed", "lossless", "sum_of_products"]
