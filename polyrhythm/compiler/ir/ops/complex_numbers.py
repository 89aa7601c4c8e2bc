"""The parts of complex numbers, and complex numbers of their parts.

The gradient by z = x + iy is dL/dx - i dL/dy, as in JAX: the derivatives of holomorphic functions need no conjugates,
and are those of their real counterparts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.ops.checks import broadcast_shapes, broadcast_signature, check_kind, check_same_dtype
from polyrhythm.compiler.ir.ops.record import Attributes, Gradients, Op, Signature
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.errors import DTypeError

if TYPE_CHECKING:
    from polyrhythm.compiler.ir.values import Step

Types = tuple[TensorType, ...]


def _signature(operands: Types, attributes: Attributes) -> Signature:
    return broadcast_signature(operands)


def _part_type(name: str) -> Callable[[Types, Attributes, Condition], TensorType]:
    def type_rule(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
        check_kind(name, operands[0], ("complex",))
        return TensorType(operands[0].shape, dtypes.part(operands[0].dtype))

    return type_rule


def _complex_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    dtype = check_same_dtype("complex", *operands)
    if dtype not in (dtypes.FLOAT32, dtypes.FLOAT64):
        raise DTypeError(f"complex: the parts are {dtype}", fix="cast them to float32 or float64")
    shape = broadcast_shapes("complex", [operand.shape for operand in operands], given)
    return TensorType(shape, dtypes.COMPLEX64 if dtype == dtypes.FLOAT32 else dtypes.COMPLEX128)


def _complex(real: np.ndarray, imag: np.ndarray) -> np.ndarray:
    kind = dtypes.COMPLEX64 if real.dtype == dtypes.FLOAT32 else dtypes.COMPLEX128
    result = np.empty(np.broadcast_shapes(real.shape, imag.shape), kind)
    result.real, result.imag = real, imag
    return result


def _real_vjp(s: Step) -> Gradients:
    return [s.g.apply("complex", s.g.zeros())]


def _imag_vjp(s: Step) -> Gradients:
    return [s.g.zeros().apply("complex", -s.g)]


def _complex_vjp(s: Step) -> Gradients:
    return [s.g.apply("real").summed_to(s.x[0].shape), (-s.g.apply("imag")).summed_to(s.x[1].shape)]


OPS: tuple[Op, ...] = (
    Op("real", _part_type("real"), lambda x: np.array(x.real), _signature, _real_vjp, elementwise=True),
    Op("imag", _part_type("imag"), lambda x: np.array(x.imag), _signature, _imag_vjp, elementwise=True),
    Op("complex", _complex_type, _complex, _signature, _complex_vjp, elementwise=True),
)
