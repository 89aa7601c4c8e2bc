"""`dequantize`: a matrix stored as small integers, each block of them with a scale and perhaps an offset.

An element is `scale * code + offset`. Codes lie along the last axis: int8, or two of 4 bits to a byte of uint8. Sixteen
bytes hold 32 codes, the low half of byte i code i and the high half code i + 16, as in GGUF files. A block is as many
neighbouring codes as share a scale: the last axis of the scales tells how many blocks there are.

The result is made where it is read and never stored: that would undo what the codes are for. A backend multiplies
rows by the codes as they are, where it can. There is no gradient by codes; one by scales is refused.
"""

from __future__ import annotations

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.ops.checks import show
from polyrhythm.compiler.ir.ops.record import OPAQUE, PARALLEL, Attributes, Op, Signature
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.errors import DTypeError, ShapeError

Types = tuple[TensorType, ...]

PAIRED = 32
"""Codes of 4 bits are packed in groups of so many."""


def _type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    codes, scales = operands[:2]
    if codes.dtype not in (np.dtype("int8"), np.dtype("uint8")):
        raise DTypeError(f"dequantize: codes of {codes.dtype}", fix="give int8 codes, or pairs of 4-bit codes as uint8")
    for factor in operands[1:]:
        if not dtypes.is_float(factor.dtype):
            raise DTypeError(f"dequantize: scales or offsets of {factor.dtype}", fix="give floats")
        if factor.shape != scales.shape:
            raise ShapeError(
                f"dequantize: offsets of shape {show(factor.shape)} for scales of shape {show(scales.shape)}",
                fix="give one offset for each scale",
            )
    length, blocks = _length(codes), _constant(scales)
    whole = length % PAIRED == 0 if codes.dtype == np.uint8 else True
    if codes.rank != scales.rank or codes.shape[:-1] != scales.shape[:-1] or not blocks or length % blocks or not whole:
        raise ShapeError(
            f"dequantize: {codes.dtype} codes of shape {show(codes.shape)} with scales of shape {show(scales.shape)}",
            fix="give as many scales along the last axis as there are blocks, and codes of 4 bits in groups of 32",
        )
    return TensorType((*codes.shape[:-1], Term.of(length)), attributes["dtype"])


def _constant(kind: TensorType) -> int:
    return kind.shape[-1].constant if kind.rank and kind.shape[-1].is_constant else 0


def _length(codes: TensorType) -> int:
    """How many codes there are along the last axis."""
    return _constant(codes) * (2 if codes.dtype == np.uint8 else 1)


def unpacked(codes: np.ndarray) -> np.ndarray:
    """Codes of 4 bits, one to an element.

    >>> unpacked(np.arange(16, dtype="uint8") * 16).tolist()[14:20]
    [0, 0, 0, 1, 2, 3]
    """
    groups = codes.reshape(*codes.shape[:-1], codes.shape[-1] * 2 // PAIRED, PAIRED // 2)
    both = np.concatenate([groups & 15, groups >> 4], -1)
    return both.reshape(*codes.shape[:-1], 2 * codes.shape[-1])


def _numpy(codes: np.ndarray, scales: np.ndarray, *offsets: np.ndarray, dtype: np.dtype) -> np.ndarray:
    whole = unpacked(codes) if codes.dtype == np.uint8 else codes
    blocks = whole.reshape(*scales.shape, whole.shape[-1] // scales.shape[-1]).astype(np.float32)
    with np.errstate(all="ignore"):
        made = blocks * scales.astype(np.float32)[..., None]
        for offset in offsets:
            made = made + offset.astype(np.float32)[..., None]
        return made.reshape(whole.shape).astype(dtype)


def _signature(operands: Types, attributes: Attributes) -> Signature:
    lead = tuple(range(operands[0].rank - 1))
    labels = [(*lead, len(lead) + number) for number in range(len(operands) + 1)]
    roles = [PARALLEL for _ in lead] + [OPAQUE for _ in labels]
    return Signature(tuple(labels[:-1]), labels[-1], tuple(roles))


OPS = (Op("dequantize", _type, _numpy, _signature, inlined=True),)
