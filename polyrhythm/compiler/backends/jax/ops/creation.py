"""Operations without operands: literal arrays, counting, index expressions, and random bits.

Random bits are those of `polyrhythm.compiler.ir.ops.random`, bit for bit. The seed is an int, or two uint32 words (low,
high), traced or not; a coordinate of the step is an int or a traced integer scalar. What is not traced is derived
when compiling. Elements are numbered by the actual lengths, so that padding does not change them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from polyrhythm.compiler.backends.jax.ops.padded import Implementation, Padded, Result, as_index, check_countable
from polyrhythm.compiler.backends.jax.ops.shapes import element_numbers
from polyrhythm.compiler.ir.ops.random import site_words, threefry

Array = jax.Array
Word = np.ndarray | Array
Words = tuple[Word, Word]


def _words(number: int | Array) -> Words:
    """The low and the high 32 bits of a number, of a negative one in two's complement."""
    if not isinstance(number, Array):
        return np.uint32(number & 0xFFFFFFFF), np.uint32((number >> 32) & 0xFFFFFFFF)  # type: ignore[return-value]
    low = lax.convert_element_type(number, np.uint32)
    if number.dtype.itemsize == 8:
        return low, lax.convert_element_type(number >> number.dtype.type(32), np.uint32)
    if number.dtype.kind == "u":
        return low, np.zeros((), np.uint32)
    return low, lax.convert_element_type(lax.shift_right_arithmetic(as_index(number), np.int32(31)), np.uint32)


def _derived(key: Words, counters: list[Words]) -> Words:
    """The key after each of some counters, the first of them known when compiling if the key is."""
    while counters and not _is_traced(*key, *counters[0]):
        key = threefry(key, counters.pop(0))
    if not counters:
        return key
    # A loop, because XLA would repeat the whole derivation inside the loop over the elements, and LLVM take up to
    # ten seconds to compile that. It is no loop to XLA unless it has two rounds; the second may then do nothing.
    count = len(counters)
    rows = (counters * 2)[: max(count, 2)]
    table = jnp.stack([jnp.stack([jnp.asarray(word, np.uint32) for word in row]) for row in rows])

    def derive(i: Array, key: Words) -> Words:
        row = lax.dynamic_index_in_dim(table, i, keepdims=False)
        new = threefry(key, (row[0], row[1]))
        return new if count > 1 else (jnp.where(i == 0, new[0], key[0]), jnp.where(i == 0, new[1], key[1]))

    start = jnp.asarray(key[0], np.uint32), jnp.asarray(key[1], np.uint32)
    first, second = lax.fori_loop(np.int32(0), np.int32(len(rows)), derive, start)
    return first, second


def _is_traced(*words: Word) -> bool:
    return any(isinstance(word, Array) for word in words)


def _random_bits(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    check_countable("random_bits", result.capacities)
    seed, site = attributes["seed"], site_words(attributes["site"])
    key: Words = (seed[0], seed[1]) if isinstance(seed, (tuple, list)) or np.ndim(seed) == 1 else _words(seed)
    key = _derived(key, [_words(site[0] | site[1] << 32), *map(_words, attributes["step"])])
    number = lax.convert_element_type(element_numbers(result.capacities, result.lengths), np.uint32)
    return jnp.asarray(threefry(key, (number, lax.full_like(number, 0)))[0])


IMPLEMENTATIONS: dict[str, Implementation] = {
    "constant": lambda operands, attributes, result: jnp.asarray(attributes["value"], result.dtype),
    "index": lambda operands, attributes, result: jnp.asarray(attributes["value"], result.dtype),
    "iota": lambda operands, attributes, result: lax.iota(result.dtype, result.capacities[0]),
    "random_bits": _random_bits,
}


def seed_words(seed: Any) -> Any:
    """A seed as two 32-bit words, low and high; one that JAX traces, of a dtype of 32 bits or fewer, is the low one."""
    if isinstance(seed, jax.core.Tracer):
        low = lax.convert_element_type(seed, np.uint32)
        return jnp.stack([low, jnp.where(seed < 0, np.uint32(0xFFFFFFFF), np.uint32(0))])
    seed = int(seed)
    return np.array([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], np.uint32)
