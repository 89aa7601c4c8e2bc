"""Operations without operands: literal arrays, counting, index expressions, and random bits.

Random bits are those of `compiler.ir.ops.random`, bit for bit. Words are held in int32, whose sums wrap as those
of uint32 do; a shift to the right is masked, because it repeats the sign.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import torch

from polyrhythm.compiler.backends.torch.ops.carriers import placed
from polyrhythm.compiler.ir.ops.random import PARITY, ROTATIONS, key_of

Tensor = torch.Tensor


def _constant(value: np.ndarray | Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else placed(np.asarray(value))


def _iota(length: int) -> Tensor:
    return torch.arange(length, dtype=torch.int32)


def _index(value: int | bool) -> Tensor:
    return torch.tensor(value, dtype=torch.bool if isinstance(value, bool) else torch.int32)


def _signed(word: int) -> int:
    """The int32 with the bits of a word."""
    return (word + 2**31) % 2**32 - 2**31


def _rotated(word: Tensor, distance: int) -> Tensor:
    return (word << distance) | ((word >> (32 - distance)) & ((1 << distance) - 1))


def _threefry(key: tuple[int, int], first: Tensor, second: Tensor) -> Tensor:
    """The first word of Threefry-2x32 with 20 rounds."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    first, second = first + _signed(schedule[0]), second + _signed(schedule[1])
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            first = first + second
            second = _rotated(second, distance) ^ first
        first = first + _signed(schedule[(group + 1) % 3])
        second = second + _signed(schedule[(group + 2) % 3] + group + 1)
    return first


def _random_bits(shape: tuple[int, ...], site: str, seed: int, step: tuple[int, ...]) -> Tensor:
    low, high = (int(word) for word in key_of(seed, site, step))
    count = torch.arange(prod(shape), dtype=torch.int64)
    bits = _threefry((low, high), count.to(torch.int32), (count >> 32).to(torch.int32))
    return bits.view(torch.uint32).reshape(shape)


IMPLEMENTATIONS: dict[str, Callable[..., Tensor]] = {
    "constant": _constant,
    "iota": _iota,
    "index": _index,
    "random_bits": _random_bits,
}
