"""`einsum` of one or two operands: every contraction, trace and outer product of the language.

The specification is explicit (`"ij,jk->ik"`), without ellipsis. A label that repeats within an operand takes its
diagonal; a label that is not in the output is summed. Lengths of one label must agree: nothing broadcasts. The
16-bit floats are contracted in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.ops.checks import check_kind, check_same_dtype, same_length, show
from polyrhythm.compiler.ir.ops.record import PARALLEL, Attributes, Gradients, Op, Role, Signature
from polyrhythm.compiler.ir.terms import ONE, Term
from polyrhythm.compiler.ir.types import Shape, TensorType
from polyrhythm.errors import ShapeError

if TYPE_CHECKING:
    from polyrhythm.compiler.ir.values import Step, Value

Types = tuple[TensorType, ...]


def parse_spec(spec: str) -> tuple[tuple[str, ...], str]:
    """The labels of each operand and of the output.

    >>> parse_spec("ij,jk->ik")
    (('ij', 'jk'), 'ik')
    """
    inputs, arrow, output = spec.replace(" ", "").partition("->")
    operands = tuple(inputs.split(","))
    letters = "".join(operands) + output
    if not arrow or (letters and not (letters.isascii() and letters.isalpha())):
        raise ShapeError(
            f"einsum: {spec!r} is not an explicit specification",
            fix="write the labels of each operand and of the output as letters, as in 'ij,jk->ik'",
        )
    if len(set(output)) != len(output) or not set(output) <= set("".join(operands)):
        raise ShapeError(
            f"einsum: the output labels of {spec!r} must be labels of the operands, each once",
            fix="name each output axis once, and only axes that an operand has",
        )
    return operands, output


def _einsum_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    spec = attributes["spec"]
    labels, output = parse_spec(spec)
    if len(labels) != len(operands):
        raise ShapeError(
            f"einsum: {spec!r} has labels for {len(labels)} operands, got {len(operands)}",
            fix="give the labels of each operand, separated by commas",
        )
    dtype = check_same_dtype("einsum", *operands)
    check_kind("einsum", operands[0], ("complex", "int", "float"), fix="cast truth values to a number first")
    lengths: dict[str, Term] = {}
    for operand, letters in zip(operands, labels, strict=True):
        if operand.rank != len(letters):
            raise ShapeError(
                f"einsum: {letters!r} in {spec!r} labels {len(letters)} axes, the operand has shape "
                f"{show(operand.shape)}",
                fix="give one label per axis",
            )
        for letter, length in zip(letters, operand.shape, strict=True):
            known = lengths.setdefault(letter, length)
            if not same_length(known, length, given):
                shapes = " and ".join(show(o.shape) for o in operands)
                raise ShapeError(
                    f"einsum: label {letter!r} of {spec!r} has lengths {known} and {length}, with operands of "
                    f"shape {shapes}",
                    fix="make the lengths of one label equal, or use two labels",
                )
    return TensorType(tuple(lengths[letter] for letter in output), dtype)


def _einsum(*operands: np.ndarray, spec: str) -> np.ndarray:
    dtype = operands[0].dtype
    wide = dtypes.accumulator(dtype)
    with np.errstate(all="ignore"):
        # With optimize=True NumPy hands contractions of two operands to BLAS.
        result = np.einsum(spec, *(o.astype(wide, copy=False) for o in operands), optimize=True)
        return np.asarray(result).astype(dtype, copy=False)


def lies_as_matrices(axes: Sequence[Hashable], batch: Container[Hashable], contracted: Container[Hashable]) -> bool:
    """Whether an operand can be multiplied where it lies: axes of the batch first, then rows and columns in one piece.

    Otherwise a library transposes it first, which copies it.

    >>> lies_as_matrices("hsd", batch="h", contracted="d"), lies_as_matrices("shd", batch="h", contracted="d")
    (True, False)
    """
    first = [axis in batch for axis in axes]
    inside = [axis in contracted for axis in axes if axis not in batch]
    return first == sorted(first, reverse=True) and sum(a != b for a, b in pairwise(inside)) <= 1


def _einsum_signature(operands: Types, attributes: Attributes) -> Signature:
    labels, output = parse_spec(attributes["spec"])
    letters = tuple(dict.fromkeys("".join(labels)))
    numbered = [tuple(letters.index(letter) for letter in word) for word in (*labels, output)]
    roles = tuple(PARALLEL if letter in output else Role("reduce", "sum") for letter in letters)
    return Signature(tuple(numbered[:-1]), numbered[-1], roles)


def _einsum_vjp(s: Step) -> Gradients:
    words, output = parse_spec(s["spec"])
    return [_einsum_operand(s, words, output, own) if wanted else None for own, wanted in enumerate(s.wanted)]


def _einsum_operand(s: Step, words: Sequence[str], output: str, own: int) -> Value:
    """Contract the gradient with the other operand; labels found nowhere else were summed, and are spread again."""
    word, x = words[own], s.x[own]
    unique = "".join(dict.fromkeys(word))
    others = [(words[i], s.x[i]) for i in range(len(words)) if i != own]
    available = output + "".join(other for other, _ in others)
    kept = "".join(label for label in unique if label in available)
    spec = ",".join([output, *(other for other, _ in others)]) + f"->{kept}"
    value = s.g.apply("einsum", *(other for _, other in others), spec=spec)
    lengths = dict(zip(word, x.shape, strict=True))
    shape = tuple(lengths[label] if label in kept else ONE for label in unique)
    whole = tuple(lengths[label] for label in unique)
    if value.shape != whole:
        value = value.apply("reshape", shape=shape).apply("broadcast", shape=whole)
    return value if unique == word else _on_diagonal(value, unique, word, x.shape)


def _on_diagonal(value: Value, unique: str, word: str, shape: Shape) -> Value:
    """Put a value on the diagonal of the axes that share a label."""
    first = {label: word.index(label) for label in unique}
    order = sorted(range(len(unique)), key=lambda i: first[unique[i]])
    value = value.apply("transpose", axes=tuple(order))
    spread = tuple(n if first[label] == axis else ONE for axis, (label, n) in enumerate(zip(word, shape, strict=True)))
    value = value.apply("reshape", shape=spread).apply("broadcast", shape=shape)
    for axis, label in enumerate(word):
        if first[label] != axis:
            rows, columns = (_places(value, shape, a) for a in (first[label], axis))
            value = value.where(rows.apply("eq", columns))
    return value


def _places(value: Value, shape: Shape, axis: int) -> Value:
    """The position along an axis, in a shape that broadcasts."""
    along = tuple(n if i == axis else ONE for i, n in enumerate(shape))
    return value.space.apply("iota", length=shape[axis]).apply("reshape", shape=along)


OPS: tuple[Op, ...] = (
    Op("einsum", _einsum_type, _einsum, _einsum_signature, vjp=_einsum_vjp, heavy=True, linear=True),
)
