"""The quantised tensors of GGUF files as codes, scales and offsets, without making floats of them.

A row of a file is a sequence of blocks, each with its scales and its codes. The older formats have blocks of 32
elements and their numbers are taken as they are. Those with a K have blocks of 256 in parts of 32 or 16: the scale of
a part is a small integer times the scale of the block, which is rounded to float16 here (a relative 5e-4 at most).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from polyrhythm.compiler.ir.ops.quantised import PAIRED
from polyrhythm.llm.quantised import Quantised

Blocks = np.ndarray
"""(rows, blocks, bytes of a block)."""


def _half(blocks: Blocks, start: int) -> np.ndarray:
    """A float16 of each block."""
    found: np.ndarray = np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16)[..., 0]
    return found


def _row(codes: np.ndarray) -> np.ndarray:
    """Codes by block as codes by row."""
    return np.ascontiguousarray(codes).reshape(codes.shape[0], -1)


def _paired(codes: np.ndarray) -> np.ndarray:
    """Codes of 4 bits (..., 32) two to a byte."""
    half = PAIRED // 2
    return codes[..., :half] | codes[..., half:] << 4


def _q8_0(blocks: Blocks) -> Quantised:
    return Quantised(_row(blocks[..., 2:]).view(np.int8), _half(blocks, 0))


def _q4_0(blocks: Blocks) -> Quantised:
    scales = _half(blocks, 0)
    return Quantised(_row(blocks[..., 2:]), scales, scales * np.float16(-8))


def _q4_1(blocks: Blocks) -> Quantised:
    return Quantised(_row(blocks[..., 4:]), _half(blocks, 0), _half(blocks, 2))


def _q4_k(blocks: Blocks) -> Quantised:
    scale, least, packed = _half(blocks, 0), _half(blocks, 2), blocks[..., 4:16]
    low, middle, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6) << 4], -1)
    mins = np.concatenate([middle & 63, high >> 4 | (middle >> 6) << 4], -1)
    nibbles = blocks[..., 16:].reshape(*blocks.shape[:2], 4, 1, 32)
    codes = np.concatenate([nibbles & 15, nibbles >> 4], -2)  # of 64 elements, the low halves are the first 32
    made = [(a.astype(np.float32)[..., None] * b).astype(np.float16) for a, b in ((scale, scales), (least, mins))]
    return Quantised(_row(_paired(codes)), _row(made[0]), -_row(made[1]))


def _q6_k(blocks: Blocks) -> Quantised:
    low, high = blocks[..., :128], blocks[..., 128:192]
    scales, scale = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8), _half(blocks, 208)
    # In each half of 128 elements, 64 bytes hold the lower four bits, and each of 32 bytes two bits for four elements.
    low, high = low.reshape(*blocks.shape[:2], 2, 2, 32), high.reshape(*blocks.shape[:2], 2, 1, 32)
    lower = np.concatenate([low & 15, low >> 4], -2)
    upper = high >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    codes = (lower | upper << 4).astype(np.int8) - np.int8(32)
    return Quantised(_row(codes), _row((scale.astype(np.float32)[..., None] * scales).astype(np.float16)))


KINDS: dict[str, tuple[int, int, Callable[[Blocks], Quantised]]] = {
    "Q8_0": (32, 34, _q8_0),
    "Q4_0": (32, 18, _q4_0),
    "Q4_1": (32, 20, _q4_1),
    "Q4_K": (256, 144, _q4_k),
    "Q6_K": (256, 210, _q6_k),
}
"""Elements and bytes of a block, and how it is read."""


def quantised(data: Any, kind: str, rows: int) -> Quantised | None:
    """The matrix in a tensor's bytes; None if the kind is not one of these."""
    if kind not in KINDS:
        return None
    _, size, read = KINDS[kind]
    return read(np.asarray(data).view(np.uint8).reshape(rows, -1, size))
