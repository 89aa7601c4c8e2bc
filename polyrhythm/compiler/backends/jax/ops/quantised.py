"""`dequantize`, and products with its result that read the codes as they lie.

Where only products read a dequantized matrix, its value is the codes (`Padded.packed`). A product over the last axis of
the codes is a primitive of its own (`products/packed.py`); any other makes the elements first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import lax

from polyrhythm.compiler.backends.jax.ops.padded import Implementation, Packed, Padded, Result, fit
from polyrhythm.compiler.backends.jax.products.packed import elements, product
from polyrhythm.compiler.loops.ir import Block, Local

Array = jax.Array


def _dequantize(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    codes, *factors = _arrays(operands, result.capacities)
    return elements(codes, *factors, dtype=result.dtype)


def _arrays(operands: Sequence[Padded], capacities: Sequence[int]) -> list[Array]:
    """Codes, scales and offsets with the capacities of the result along all but the last axis."""
    return [fit(operand.array, (*capacities[:-1], operand.array.shape[-1])) for operand in operands]


def only_multiplied(name: str, block: Block) -> bool:
    """Whether nothing but products reads a value of a block."""
    readers = [compute for compute in block.body if Local(name) in compute.operands]
    stored = any(store.value == name for store in block.stores)
    return not stored and all(compute.op == "einsum" for compute in readers)


def packed(operands: Sequence[Padded], result: Result) -> Padded:
    """The value of a dequantized matrix that products read; its array is the codes, and only they may look at it."""
    codes, *factors = _arrays(operands, result.capacities)
    return Padded(codes, result.lengths, packed=Packed(codes, tuple(factors), result.dtype))


def unpacked(value: Padded) -> Padded:
    """The value with its elements."""
    if value.packed is None:
        return value
    own = value.packed
    return replace(value, array=elements(own.codes, *own.factors, dtype=own.dtype), packed=None)


def packed_einsum(operands: Sequence[Padded], words: Sequence[str], output: str, result: Result) -> Array | None:
    """A product over the last axis of a packed operand, none of whose other labels the rows have; None if not one."""
    if len(operands) != 2:
        return None
    (a, word), (b, last) = sorted(zip(operands, words, strict=True), key=lambda pair: pair[0].packed is not None)
    matrix = b.packed
    if matrix is None or a.packed is not None or matrix.dtype != np.float32 or not last or len(set(word)) < len(word):
        return None
    over, own = last[-1], last[:-1]
    rows = word.replace(over, "")
    if over not in word or over in output or set(own) & set(word) or sorted(output) != sorted(rows + own):
        return None
    sizes = dict(zip(output, result.capacities, strict=True)) | {over: a.array.shape[word.index(over)]}
    array = fit(a.array, [sizes[label] for label in word])
    array = lax.transpose(array, [word.index(label) for label in rows + over])
    made = product(array, matrix.codes, *matrix.factors)
    made = lax.transpose(made, [(rows + own).index(label) for label in output])
    return lax.convert_element_type(made, result.dtype)


IMPLEMENTATIONS: dict[str, Implementation] = {"dequantize": _dequantize}
