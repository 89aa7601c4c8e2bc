"""Fourier transforms, as `pr.fft`; lengths may be dynamic. The names and conventions are NumPy's.

Of real numbers float32 makes complex64 and float64 complex128. Gradients by complex numbers are those of `pr.grad`.
"""

from __future__ import annotations

from typing import Literal

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.dtypes import COMPLEX64, COMPLEX128, FLOAT64, INT32
from polyrhythm.errors import DTypeError
from polyrhythm.language.functions.arithmetic import where
from polyrhythm.language.functions.complex_numbers import conj, real
from polyrhythm.language.functions.creation import arange
from polyrhythm.language.functions.elementwise import sqrt
from polyrhythm.language.functions.shapes import concat, flip, swapaxes
from polyrhythm.language.functions.spatial import Axes
from polyrhythm.language.functions.support import DTypeLike, Length, TensorLike, as_dtype, as_float, cast_to, one_axis
from polyrhythm.language.index import index_of, term_of
from polyrhythm.language.naming import name_results
from polyrhythm.language.tensor import Tensor, apply

__all__ = ["fft", "fft2", "fftfreq", "ifft", "ifft2", "irfft", "rfft"]

Norm = Literal["backward", "ortho", "forward"]


def fft(x: TensorLike, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The discrete Fourier transform along an axis.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.fft.fft(pr.constant([1.0, 0.0, 0.0, 0.0])))
    array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    return _transformed(_complex(x), axis, norm, inverse=False)


def ifft(x: TensorLike, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The inverse of `fft`.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.fft.ifft(pr.constant([4.0, 0.0, 0.0, 0.0])))
    array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    return _transformed(_complex(x), axis, norm, inverse=True)


def rfft(x: TensorLike, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The transform of real numbers: the first `n // 2 + 1` frequencies, of which the others are conjugates.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.fft.rfft(pr.constant([1.0, 0.0, 0.0, 0.0])))
    array([1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    operand = as_float(x)
    if not dtypes.is_float(operand.dtype):
        raise DTypeError("rfft is of real numbers", fix="use pr.fft.fft, or pr.real of them")
    whole = swapaxes(fft(operand, axis, norm), axis, -1)
    kept = Axes(whole)[..., : index_of(whole.type.shape[-1]) // 2 + 1]
    return swapaxes(kept, axis, -1)


def irfft(x: TensorLike, n: Length | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The inverse of `rfft`: n real numbers, by default `2 * (m - 1)` of m frequencies.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.fft.irfft(pr.constant([4.0, 0.0, 0.0])))
    array([1., 1., 1., 1.], dtype=float32)
    """
    half = swapaxes(_complex(x), axis, -1)
    count = half.shape[-1]
    length = 2 * (count - 1) if n is None else index_of(term_of(n))
    first = Axes(half)[..., : length // 2 + 1]
    rest = Axes(half)[..., 1 : (length + 1) // 2]
    whole = concat([first, conj(flip(rest, -1))], -1)
    return swapaxes(real(ifft(whole, -1, norm)), axis, -1)


def fft2(x: TensorLike, axes: tuple[int, int] = (-2, -1), norm: Norm = "backward") -> Tensor:
    """The transform along two axes.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.fft.fft2(pr.ones((2, 2)))).real.tolist()
    [[4.0, 0.0], [0.0, 0.0]]
    """
    return fft(fft(x, axes[1], norm), axes[0], norm)


def ifft2(x: TensorLike, axes: tuple[int, int] = (-2, -1), norm: Norm = "backward") -> Tensor:
    """The inverse of `fft2`.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.fft.ifft2(pr.fft.fft2(pr.eye(2)))).real.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return ifft(ifft(x, axes[1], norm), axes[0], norm)


def fftfreq(n: Length, d: float = 1.0, dtype: DTypeLike = "float32") -> Tensor:
    """The frequencies of the elements that `fft` makes of n elements at a distance d.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.fft.fftfreq(4))
    array([ 0.  ,  0.25, -0.5 , -0.25], dtype=float32)
    """
    kind, places = as_dtype(dtype), arange(n)
    count = cast_to(index_of(term_of(n)), INT32)
    turned = where(places < (count + 1) // 2, places, places - count)
    return cast_to(turned, kind) / (cast_to(count, kind) * d)


def _complex(x: TensorLike) -> Tensor:
    operand = as_float(x)
    if dtypes.kind(operand.dtype) == "complex":
        return operand
    return cast_to(operand, COMPLEX128 if operand.dtype == FLOAT64 else COMPLEX64)


def _transformed(x: Tensor, axis: int, norm: Norm, inverse: bool) -> Tensor:
    if norm not in ("backward", "ortho", "forward"):
        raise DTypeError(f"there is no norm {norm!r}", fix='write "backward", "ortho" or "forward"')
    place = one_axis(x, axis)
    moved = swapaxes(x, place, -1)
    found = swapaxes(apply("fft", moved, inverse=inverse), place, -1)
    if norm == "backward":
        return found
    count = cast_to(index_of(x.type.shape[place]), dtypes.part(x.dtype))
    factor = sqrt(count) if norm == "ortho" else count
    return found * cast_to(factor, x.dtype) if inverse else found / cast_to(factor, x.dtype)


name_results(globals(), __all__)
