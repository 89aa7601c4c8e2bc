"""Rows times the matrices that they choose from a table (`grouped`), with as much work as there are rows.

Lanes add rows, so what the product becomes is decided when it is lowered, by what each form moves and multiplies: the
products of all rows with all entries, of which each takes its own; a copy of its entry for each row; or, in the order
of their entries, tiles of rows that share one. The last reads an entry once for a tile and nothing of those that no row
has chosen. A tile that reaches beyond the rows of its entry is corrected by those that follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from polyrhythm.compiler.backends.jax.products.primitive import primitive

Array = jax.Array

TILES = (8, 32, 128)
"""How many rows there may be in a tile."""

MULTIPLICATIONS = 8
"""Of how many a core does the work while it moves a byte."""

STARTED = 20_000
"""The bytes that are moved in the time that one iteration of a loop takes besides its product."""


def grouped(x: Array, table: Array, which: Array, a: str, b: str, o: str) -> Array:
    """For each row of `which`, of int32, the contraction `a,b->o` of its part of `x` with the entry that it names.

    The axes of the rows come first, in `x` and in the result; that of the entries is the first of the table.
    """
    made: Array = _grouped.bind(x, table, which, a=a, b=b, o=o)
    return made


def _shape(x: Any, table: Any, which: Any, a: str, b: str, o: str) -> Any:
    sizes = dict(zip(a + b, (*x.shape[which.ndim :], *table.shape[1:]), strict=True))
    return jax.core.ShapedArray((*which.shape, *(sizes[label] for label in o)), x.dtype)


def _costs(rows: int, x: Any, table: Any, a: str, b: str, o: str) -> dict[int, float]:
    """What each way costs, in bytes that are moved: tiles of so many rows, 1 for copies, 0 for all entries."""
    entries, *rest = table.shape
    sizes = dict(zip(a + b, (*x.shape[1:], *rest), strict=True))
    own, result = (math.prod(sizes[label] for label in word) for word in (b, o))
    width, work = x.dtype.itemsize, math.prod(sizes.values()) / MULTIPLICATIONS
    moved = 2 * width * own  # an entry is read and written, and a batch of products reads it again
    costs = {0: rows * entries * (work + 2 * width * result), 1: math.inf}
    if rows <= entries:  # copies larger than the table are never made
        costs[1] = rows * (2 * moved + work)
    for tile in TILES:
        tiles = rows / tile + min(entries, rows)
        ends = rows * 3 * width * (result + math.prod(x.shape[1:]))
        costs[tile] = tiles * (tile * work + moved + STARTED) + ends
    return costs


def _computed(x: Array, table: Array, which: Array, a: str, b: str, o: str) -> Array:
    return _by(TILES, x, table, which, a, b, o)


def _plain(x: Array, table: Array, which: Array, a: str, b: str, o: str) -> Array:
    """In operations that can be differentiated and spread over devices."""
    return _by((), x, table, which, a, b, o)


def _by(tiles: Sequence[int], x: Array, table: Array, which: Array, a: str, b: str, o: str) -> Array:
    count = math.prod(which.shape)
    rows, chosen = lax.reshape(x, (count, *x.shape[which.ndim :])), lax.reshape(which, (count,))
    costs = _costs(count, rows, table, a, b, o)
    way = min((0, 1, *tiles), key=lambda tile: costs[tile])
    ways = {0: _all, 1: _copied}
    made = ways[way](rows, chosen, table, a, b, o) if way in ways else _tiled(rows, chosen, table, a, b, o, way)
    return lax.reshape(made, (*which.shape, *made.shape[1:]))


def _contracted(spec: str, left: Array, right: Array) -> Array:
    wide = jnp.promote_types(left.dtype, jnp.float32) if jnp.issubdtype(left.dtype, jnp.floating) else left.dtype
    return jnp.einsum(spec, left, right, preferred_element_type=wide).astype(left.dtype)


def _all(x: Array, which: Array, table: Array, a: str, b: str, o: str) -> Array:
    whole = _contracted(f"R{a},E{b}->RE{o}", x, table)
    places = lax.reshape(which, (len(which), 1, *(1 for _ in o)))
    return lax.squeeze(jnp.take_along_axis(whole, places, 1), (1,))


def _copied(x: Array, which: Array, table: Array, a: str, b: str, o: str) -> Array:
    return _contracted(f"R{a},R{b}->R{o}", x, table[which])


def _tiled(x: Array, which: Array, table: Array, a: str, b: str, o: str, tile: int) -> Array:
    count, entries = len(which), table.shape[0]
    order = jnp.argsort(which)
    sizes = jnp.zeros(entries, jnp.int32).at[which].add(1)
    firsts = jnp.cumsum(sizes, dtype=jnp.int32) - sizes
    tiles = (sizes + (tile - 1)) // tile
    ends = jnp.cumsum(tiles, dtype=jnp.int32)
    rows = jnp.pad(x[order], ((0, tile), *((0, 0) for _ in a)))
    lengths = dict(zip(a + b, (*x.shape[1:], *table.shape[1:]), strict=True))
    result = jnp.zeros((count + tile, *(lengths[label] for label in o)), x.dtype)

    def one(number: Array, result: Array) -> Array:
        entry = jnp.searchsorted(ends, number, side="right").astype(jnp.int32)
        first = firsts[entry] + (number - ends[entry] + tiles[entry]) * tile
        part = lax.dynamic_slice_in_dim(rows, first, tile)
        matrix = lax.dynamic_index_in_dim(table, entry, keepdims=False)
        return lax.dynamic_update_slice_in_dim(result, _contracted(f"R{a},{b}->R{o}", part, matrix), first, 0)

    result = lax.fori_loop(jnp.int32(0), ends[-1], one, result)
    return jnp.zeros_like(result[:count]).at[order].set(result[:count], unique_indices=True)


_grouped = primitive("polyrhythm_grouped", _computed, _plain, _shape, more=(0, 2), linear=2)

__all__ = ["grouped"]
