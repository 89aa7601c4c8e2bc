"""The Fourier transform on padded arrays: of a length known now by XLA, of another as a convolution of fixed size.

Bluestein (1970): with `w[j] = exp(-pi i j^2 / n)` the transform is `w[k] * sum((x[j] w[j]) * conj(w[k - j]))`, a
convolution, which transforms of any fixed size of at least twice the capacity compute. The squares are taken modulo 2n
in whole numbers, so that no digits of the angles are lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from polyrhythm.compiler.backends.jax.ops.padded import (
    Implementation,
    Length,
    Padded,
    Result,
    as_index,
    fit,
    is_static,
    masked,
)
from polyrhythm.compiler.ir import dtypes

Array = jax.Array


def _fft(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    (x,) = operands
    array = fit(masked(x, (x.array.ndim - 1,), 0), result.capacities)
    if result.is_empty:
        return result.zeros()
    length, inverse = x.lengths[-1], attributes["inverse"]
    if is_static(length) and length == array.shape[-1]:
        found = (jnp.fft.ifft if inverse else jnp.fft.fft)(array)
    elif inverse:
        found = lax.conj(_bluestein(lax.conj(array), length)) / lax.convert_element_type(
            jnp.maximum(as_index(length), 1), dtypes.part(np.dtype(array.dtype))
        )
    else:
        found = _bluestein(array, length)
    return lax.convert_element_type(found, result.dtype)


def _bluestein(x: Array, length: Length) -> Array:
    capacity, real = x.shape[-1], dtypes.part(np.dtype(x.dtype))
    size = 1 << (2 * capacity - 1).bit_length()
    with jax.enable_x64(True):
        n = lax.convert_element_type(jnp.maximum(as_index(length), 1), np.uint64)
        places = lax.iota(np.uint64, capacity)
        part = (places * places) % (n * np.uint64(2))
        angle = lax.convert_element_type(part, np.float64) / lax.convert_element_type(n, np.float64) * np.pi
        turned = lax.convert_element_type(angle, real)
    chirp = lax.complex(jnp.cos(turned), -jnp.sin(turned))
    back = lax.conj(chirp)
    around = jnp.concatenate([back, jnp.zeros(size - 2 * capacity + 1, x.dtype), back[:0:-1]])
    spectrum = jnp.fft.fft(x * chirp, size) * jnp.fft.fft(around)
    return jnp.fft.ifft(spectrum)[..., :capacity] * chirp


IMPLEMENTATIONS: dict[str, Implementation] = {"fft": _fft}
