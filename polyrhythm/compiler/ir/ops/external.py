"""Operations that no array library computes: their values come from outside, or passes put others in their place.

`input` is what a call gives, `host` what a Python function returns. `grad`, `ruled` and `cotangent` exist only until
gradients are worked out: a gradient asked for, a function with a derivative of its own, and the gradient of its result
inside that derivative.
"""

from __future__ import annotations

import numpy as np

from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.ops.record import Attributes, Op, Signature
from polyrhythm.compiler.ir.types import TensorType

Types = tuple[TensorType, ...]


def _result_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    return attributes["function"].results[attributes["result"]]  # type: ignore[no-any-return]


def _declared(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    raise AssertionError("the node itself says what its type is")


def _computed(*arrays: np.ndarray, **attributes: object) -> np.ndarray:
    raise AssertionError("its value comes from outside")


def _no_axes(operands: Types, attributes: Attributes) -> Signature:
    return Signature(tuple(() for _ in operands), (), ())


OPS: tuple[Op, ...] = (
    Op("input", _declared, _computed, _no_axes, external=True, sited=True),
    Op("host", _result_type, _computed, _no_axes, external=True, sited=True, calls=True),
    Op("grad", _declared, _computed, _no_axes, external=True, transient=True, sited=True),
    Op("ruled", _declared, _computed, _no_axes, external=True, transient=True),
    Op("cotangent", _declared, _computed, _no_axes, external=True, transient=True),
)
