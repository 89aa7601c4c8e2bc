"""The discrete Fourier transform along the last axis, and its inverse, of complex elements.

`y[k] = sum(x[j] * exp(-2 pi i j k / n))`; the inverse has the other sign and divides by n. Both are symmetric matrices,
so each is its own derivative. Of no elements it is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.ops.checks import check_axis, check_kind
from polyrhythm.compiler.ir.ops.record import OPAQUE, PARALLEL, Attributes, Gradients, Op, Signature
from polyrhythm.compiler.ir.types import TensorType

if TYPE_CHECKING:
    from polyrhythm.compiler.ir.values import Step

Types = tuple[TensorType, ...]


def _fft_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    check_kind("fft", operands[0], ("complex",))
    check_axis("fft", operands[0].rank - 1, operands[0])
    return operands[0]


def _fft(x: np.ndarray, inverse: bool) -> np.ndarray:
    if x.shape[-1] == 0:
        return x
    with np.errstate(all="ignore"):
        return (np.fft.ifft if inverse else np.fft.fft)(x).astype(x.dtype, copy=False)


def _fft_signature(operands: Types, attributes: Attributes) -> Signature:
    rank = operands[0].rank
    return Signature((tuple(range(rank)),), (*range(rank - 1), rank), (*[PARALLEL] * (rank - 1), OPAQUE, OPAQUE))


def _fft_vjp(s: Step) -> Gradients:
    return [s.g.apply("fft", inverse=s["inverse"])]


OPS: tuple[Op, ...] = (Op("fft", _fft_type, _fft, _fft_signature, vjp=_fft_vjp, heavy=True),)
