"""Matrices stored as small integers: `dequantize`."""

from __future__ import annotations

from polyrhythm.language.functions.support import DTypeLike, TensorLike, as_dtype, as_tensor
from polyrhythm.language.tensor import Tensor, apply

__all__ = ["dequantize"]


def dequantize(
    codes: TensorLike, scales: TensorLike, offsets: TensorLike | None = None, dtype: DTypeLike = "float32"
) -> Tensor:
    """The elements `scale * code + offset` of a matrix stored as int8 codes, or as 4-bit codes in pairs (uint8).

    The codes along the last axis form as many blocks of one size as there are scales along it. The result is never
    stored: products read the codes. Codes of 4 bits are packed 32 to 16 bytes, the low half of byte i being code i, the
    high half code i + 16. Float16 scales are what the product for few rows is made for.

    >>> import numpy as np
    >>> import polyrhythm as pr
    >>> codes = pr.constant(np.array([[1, -2, 3, 4]], "int8"))
    >>> pr.evaluate(pr.dequantize(codes, pr.constant(np.array([[0.5, 10.0]], "float16"))))
    array([[ 0.5, -1. , 30. , 40. ]], dtype=float32)
    """
    factors = [as_tensor(scales)] + ([] if offsets is None else [as_tensor(offsets)])
    return apply("dequantize", as_tensor(codes), *factors, dtype=as_dtype(dtype))
