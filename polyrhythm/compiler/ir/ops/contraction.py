"""`einsum` of one or two operands: every contraction, trace and outer product of the language.

The specification is explicit (`"ij,jk->ik"`), without ellipsis. A label that repeats within an operand takes its
diagonal; a label that is not in the output is summed. Lengths of one label must agree: nothing broadcasts. The
16-bit floats are contracted in float32 and rounded once.
"""

from __future__ import annotations

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.ops.checks import check_kind, check_same_dtype, same_length, show
from polyrhythm.compiler.ir.ops.record import PARALLEL, Attributes, Op, Role, Signature
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.errors import ShapeError

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
    check_kind("einsum", operands[0], ("int", "float"), fix="cast truth values to a number first")
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


def _einsum_signature(operands: Types, attributes: Attributes) -> Signature:
    labels, output = parse_spec(attributes["spec"])
    letters = tuple(dict.fromkeys("".join(labels)))
    numbered = [tuple(letters.index(letter) for letter in word) for word in (*labels, output)]
    roles = tuple(PARALLEL if letter in output else Role("reduce", "sum") for letter in letters)
    return Signature(tuple(numbered[:-1]), numbered[-1], roles)


OPS: tuple[Op, ...] = (Op("einsum", _einsum_type, _einsum, _einsum_signature),)
