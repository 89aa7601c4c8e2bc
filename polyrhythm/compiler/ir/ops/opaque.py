"""Functions of an array library as operations: the compiler knows their types, and nothing else of them.

Only the backend of the library runs them, inside its own program; the oracle calls the library at each point. One call
may have several results. Each is a node of its own with the same function and the same operands; a backend calls the
function once where they are computed together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.ops.checks import show
from polyrhythm.compiler.ir.ops.record import OPAQUE, Attributes, Gradients, Op, Signature
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.errors import DTypeError, ShapeError

if TYPE_CHECKING:
    from polyrhythm.compiler.ir.values import Step

Types = tuple[TensorType, ...]


@dataclass(frozen=True, eq=False)
class OpaqueFunction:
    """A function of some library's arrays, for operands of fixed types.

    `call` takes and returns arrays of the library; `numpy` does the same with NumPy's. `pullback(result, wanted)` is
    the function from the operands and the gradient of one result to the gradients of the operands at the places
    `wanted`.
    """

    name: str
    library: str
    operands: Types
    results: Types
    call: Callable[..., tuple[Any, ...]]
    numpy: Callable[..., tuple[np.ndarray, ...]]
    pullback: Callable[[int, tuple[int, ...]], OpaqueFunction]

    def __str__(self) -> str:
        return self.name


def _type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    function: OpaqueFunction = attributes["function"]
    for wanted, have in zip(function.operands, operands, strict=True):
        if wanted.shape != have.shape:
            raise ShapeError(
                f"{function}: an operand of shape {show(have.shape)} where {show(wanted.shape)} was declared",
                fix="call the function with the shapes it was made for",
            )
        if wanted.dtype != have.dtype:
            raise DTypeError(
                f"{function}: an operand of {have.dtype} where {wanted.dtype} was declared",
                fix="call the function with the dtypes it was made for",
            )
    return function.results[attributes["result"]]


def _numpy(*operands: np.ndarray, function: OpaqueFunction, result: int) -> np.ndarray:
    return function.numpy(*operands)[result]


def _signature(operands: Types, attributes: Attributes) -> Signature:
    labels: list[tuple[int, ...]] = []
    count = 0
    for kind in (*operands, attributes["function"].results[attributes["result"]]):
        labels.append(tuple(range(count, count + kind.rank)))
        count += kind.rank
    return Signature(tuple(labels[:-1]), labels[-1], (OPAQUE,) * count)


def _vjp(s: Step) -> Gradients:
    """Each result is differentiated alone; what several contribute is summed as usual."""
    places = tuple(k for k, x in enumerate(s.x) if s.wanted[k] and dtypes.is_float(x.dtype))
    back = s["function"].pullback(s["result"], places)
    made = {k: s.space.apply("opaque", *s.x, s.g, function=back, result=number) for number, k in enumerate(places)}
    return [made.get(k) for k in range(len(s.x))]


OPS: tuple[Op, ...] = (Op("opaque", _type, _numpy, _signature, vjp=_vjp, calls=True),)
