"""Random bits that do not depend on the schedule: Threefry-2x32, keyed by (seed, site, step).

Bits of element k (its row-major position) are a function of the seed, the site, the step and k, and of nothing
else: not of the order of execution, not of how far a shape is padded. Only 32-bit additions, exclusive ors
and rotations are used, so that every backend computes the same bits.

    key = threefry((seed low, seed high), site words)      site words: the first 8 bytes of sha256(site)
    key = threefry(key, (c low, c high))                   for each coordinate c of the step, in order
    bits[k] = first word of threefry(key, (k low, k high))

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

from hashlib import sha256
from math import prod
from typing import Any

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.ops.checks import terms
from polyrhythm.compiler.ir.ops.record import OPAQUE, Attributes, Op, Signature
from polyrhythm.compiler.ir.ops.shapes import check_lengths
from polyrhythm.compiler.ir.types import TensorType

Types = tuple[TensorType, ...]
Words = tuple[np.ndarray, np.ndarray]

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
"""Four rounds with the first row, four with the second, and so on: twenty in all."""

PARITY = 0x1BD11BDA
"""The constant that completes the key schedule: the third key word is key[0] ^ key[1] ^ PARITY."""


def threefry(key: tuple[Any, Any], counter: tuple[Any, Any]) -> Words:
    """Threefry-2x32 with 20 rounds: two words of key and two of counter to two random words, of any array library.

    >>> zero = np.uint32(0)
    >>> [hex(word) for word in threefry((zero, zero), (zero, zero))]
    ['0x6b200159', '0x99ba4efe']
    """
    schedule = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(PARITY))
    with np.errstate(over="ignore"):
        first, second = counter[0] + schedule[0], counter[1] + schedule[1]
        for group in range(5):
            for distance in ROTATIONS[group % 2]:
                first = first + second
                rotated = (second << np.uint32(distance)) | (second >> np.uint32(32 - distance))
                second = rotated ^ first
            first = first + schedule[(group + 1) % 3]
            second = second + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return first, second


def site_words(site: str) -> tuple[int, int]:
    """The two words a site is known by.

    >>> site_words("noise") == site_words("noise"), site_words("noise") == site_words("dropout")
    (True, False)
    """
    digest = sha256(site.encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def key_of(seed: int, site: str, step: tuple[int, ...]) -> Words:
    """The key of one random tensor at one step."""
    key = threefry(_words(seed), tuple(np.asarray(word, np.uint32) for word in site_words(site)))  # type: ignore[arg-type]
    for coordinate in step:
        key = threefry(key, _words(coordinate))
    return key


def _words(number: int) -> Words:
    mask = 0xFFFFFFFF
    return np.asarray(number & mask, np.uint32), np.asarray((number >> 32) & mask, np.uint32)


def _random_bits_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    shape = terms(attributes["shape"])
    check_lengths("random_bits", shape)
    return TensorType(shape, dtypes.UINT32)


def _random_bits(shape: tuple[int, ...], site: str, seed: int, step: tuple[int, ...]) -> np.ndarray:
    return threefry(key_of(seed, site, step), _halves(np.arange(prod(shape), dtype=np.uint64)))[0].reshape(shape)


def bits_of_steps(shape: tuple[int, ...], site: str, seed: int, step: tuple[int, ...], count: int) -> np.ndarray:
    """The bits at a step and at those after it along the last coordinate, `count` of them, at once.

    >>> many = bits_of_steps((3,), "noise", 7, (2, -1), 4)
    >>> all((many[k] == _random_bits((3,), "noise", 7, (2, k - 1))).all() for k in range(4))
    True
    """
    last = np.arange(step[-1], step[-1] + count).astype(np.uint64)[:, None]
    place = np.arange(prod(shape), dtype=np.uint64)
    key = threefry(key_of(seed, site, step[:-1]), _halves(last))
    return threefry(key, _halves(place))[0].reshape((count, *shape))


def _halves(numbers: np.ndarray) -> Words:
    return numbers.astype(np.uint32), (numbers >> np.uint64(32)).astype(np.uint32)


def _random_bits_signature(operands: Types, attributes: Attributes) -> Signature:
    rank = len(attributes["shape"])
    return Signature((), tuple(range(rank)), (OPAQUE,) * rank)


OPS: tuple[Op, ...] = (Op("random_bits", _random_bits_type, _random_bits, _random_bits_signature, sited=True),)
