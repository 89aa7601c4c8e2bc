"""Complex numbers: their parts, and making them of parts."""

from __future__ import annotations

from polyrhythm.compiler.ir import dtypes
from polyrhythm.language.functions.elementwise import atan2
from polyrhythm.language.functions.support import TensorLike, as_float, as_tensor, cast_to, filled_like, promoted_floats
from polyrhythm.language.tensor import Tensor, apply

__all__ = ["angle", "complex", "conj", "imag", "real"]


def complex(real: TensorLike, imag: TensorLike) -> Tensor:
    """The complex numbers with these parts: complex64, or complex128 of float64.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.complex(pr.constant([1.0, 2.0]), -1.0))
    array([1.-1.j, 2.-1.j], dtype=complex64)
    """
    (first, second), _ = promoted_floats(real, imag)
    wide = dtypes.accumulator(first.dtype)
    return apply("complex", cast_to(first, wide), cast_to(second, wide))


def real(x: TensorLike) -> Tensor:
    """The real part.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.real(pr.constant([1 + 2j])))
    array([1.], dtype=float32)
    """
    operand = as_tensor(x)
    return apply("real", operand) if _is_complex(operand) else operand


def imag(x: TensorLike) -> Tensor:
    """The imaginary part; 0 of a number that has none.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.imag(pr.constant([1 + 2j])))
    array([2.], dtype=float32)
    """
    operand = as_tensor(x)
    return apply("imag", operand) if _is_complex(operand) else filled_like(operand, 0)


def conj(x: TensorLike) -> Tensor:
    """The complex conjugate.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.conj(pr.constant([1 + 2j])))
    array([1.-2.j], dtype=complex64)
    """
    operand = as_tensor(x)
    return apply("complex", real(operand), -imag(operand)) if _is_complex(operand) else operand


def angle(x: TensorLike) -> Tensor:
    """The angle of a complex number, from -pi to pi.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.angle(pr.constant([1j, -1.0])))
    array([1.5707964, 3.1415927], dtype=float32)
    """
    operand = as_float(x)
    return atan2(imag(operand), real(operand))


def _is_complex(x: Tensor) -> bool:
    return dtypes.kind(x.dtype) == "complex"
