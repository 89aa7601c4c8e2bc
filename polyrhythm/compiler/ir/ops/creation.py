"""Operations without operands: literal arrays, counting, and the value of an index expression."""

from __future__ import annotations

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.ops.checks import terms
from polyrhythm.compiler.ir.ops.record import OPAQUE, Attributes, Op, Signature
from polyrhythm.compiler.ir.ops.shapes import check_lengths
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.errors import DTypeError

Types = tuple[TensorType, ...]


def _constant_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    value: np.ndarray = attributes["value"].value
    if value.dtype not in dtypes.DTYPES:
        supported = ", ".join(map(str, dtypes.DTYPES))
        raise DTypeError(f"constant: dtype {value.dtype} is not supported", fix=f"convert it to one of {supported}")
    return TensorType(terms(value.shape), value.dtype)


def _constant_signature(operands: Types, attributes: Attributes) -> Signature:
    rank = attributes["value"].value.ndim
    return Signature((), tuple(range(rank)), (OPAQUE,) * rank)


def _iota_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    shape = terms((attributes["length"],))
    check_lengths("iota", shape)
    return TensorType(shape, dtypes.INT32)


def _iota(length: int) -> np.ndarray:
    return np.arange(length, dtype=np.int32)


def _iota_signature(operands: Types, attributes: Attributes) -> Signature:
    return Signature((), (0,), (OPAQUE,))


def _index_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    is_condition = isinstance(attributes["value"], (Condition, bool))
    return TensorType((), dtypes.BOOL if is_condition else dtypes.INT32)


def _index(value: int | bool) -> np.ndarray:
    return np.array(value, dtypes.BOOL if isinstance(value, bool) else dtypes.INT32)


def _index_signature(operands: Types, attributes: Attributes) -> Signature:
    return Signature((), (), ())


OPS: tuple[Op, ...] = (
    Op("constant", _constant_type, lambda value: value, _constant_signature, free=True),
    Op("iota", _iota_type, _iota, _iota_signature, free=True),
    Op("index", _index_type, _index, _index_signature, free=True),
)
