"""Stores to files or to the host and fetches from there inside of XLA (`loops/spilling.py`).

A place in pinned memory of the host is an array there, of which slots are moved (`trace/pinned.py`). Of one in a file
(`products/spill.c`) the state of a run has a *token*: a number that every store and fetch takes and returns
changed. XLA knows nothing of files, but it cannot call a function before its operands are there, so all of them come in
the order of the program, also where a fetch is to come before the slot is overwritten.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from polyrhythm.compiler.backends.jax.ops import Padded
from polyrhythm.compiler.backends.jax.products import build
from polyrhythm.compiler.backends.jax.target import on_cpu
from polyrhythm.compiler.backends.jax.trace import pinned
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.loops.ir import Load, Place
from polyrhythm.compiler.loops.spilling import HostMemory, Rows, slot_bytes
from polyrhythm.errors import UnsupportedError

if TYPE_CHECKING:
    from polyrhythm.compiler.backends.jax.trace.places import Places, State

STORE, FETCH = "polyrhythm_spill_store", "polyrhythm_spill_fetch"


def check_available() -> None:
    """Refuse to spill where it cannot be."""
    why = build.missing("spill.c", "spill_store", "spill_fetch") if on_cpu() else "the program runs on an accelerator"
    if why is not None:
        raise UnsupportedError(
            f"nothing can be moved to a file: {why}",
            fix='use backend="numpy", spill="pinned_host", or leave out spill= of the budget',
        )


def empty(lowering: Places, place: Place) -> Padded:
    """What the state has of a place that was not used yet."""
    if not isinstance(place.spill, HostMemory):
        return Padded(jnp.int32(0), ())
    array = pinned.empty(prod(map(lowering.capacity, place.slots)), place)
    return Padded(array, array.shape)


def store(place: Place, row: jax.Array, value: jax.Array, mask: Any, before: jax.Array) -> jax.Array:
    """Write a slot; the token or the array afterwards."""
    if isinstance(place.spill, HostMemory):
        return pinned.store(before, row, value, mask)
    if mask is not None:
        row = jnp.where(mask, row, jnp.int32(-1))
    call = jax.ffi.ffi_call(STORE, jax.ShapeDtypeStruct((), jnp.int32))
    found: jax.Array = call(before, *_file(place, slot_bytes(place)), row, value)
    return found


def row_of(lowering: Places, place: Place, index: tuple[Any, ...]) -> jax.Array:
    """The number of a slot, or of several."""
    row: jax.Array = jnp.int32(0)
    for length, entry in zip(place.slots, index, strict=True):
        count = lowering.capacity(length)
        at = jnp.clip(jnp.asarray(entry, jnp.int32), 0, max(0, count - 1))
        row = row[..., None] * count + at if at.ndim else row * count + at
    return row


def load(lowering: Places, place: Place, load: Load, state: State) -> Padded:
    """Fetch what a load reads."""
    entries: list[Any] = []
    for entry in load.index:
        if isinstance(entry, Term):
            entries.append(lowering.scalar(entry))
            continue
        steps = lowering.scalar(entry.start) + jnp.arange(lowering.capacity(entry.length), dtype=jnp.int32) * entry.step
        entries.append(steps % entry.ring if entry.ring is not None else steps)
    rows = row_of(lowering, place, tuple(entries))
    shape = (*rows.shape, *(length.constant for length in place.type.shape))
    array = _fetched(place, state, rows, shape, slot_bytes(place), _ahead(lowering, load))
    return Padded(array, lowering.lengths(load.type.shape))


def take(lowering: Places, place: Place, rows: Rows, chosen: jax.Array, shape: tuple[int, ...], state: State) -> Any:
    """Fetch rows of a range of slots, which are given by their numbers in it."""
    at = rows_of(lowering, place, rows, chosen)
    return _fetched(place, state, at, shape, slot_bytes(place) // rows.per_slot, 0)


def rows_of(lowering: Places, place: Place, rows: Rows, chosen: jax.Array) -> jax.Array:
    """The numbers of rows among those of all slots, given those in a range of slots."""
    *before, steps = rows.load.index
    assert not isinstance(steps, Term)
    first = row_of(lowering, place, (*(lowering.scalar(e) for e in before if isinstance(e, Term)), 0))
    start = (first + jnp.int32(lowering.scalar(steps.start))) * rows.per_slot
    found: jax.Array = (chosen + start).astype(jnp.int32)
    return found


def _fetched(place: Place, state: State, rows: jax.Array, shape: tuple[int, ...], unit: int, ahead: int) -> jax.Array:
    if 0 in shape:
        return jnp.zeros(shape, place.type.dtype)
    before = state[place.name]
    if isinstance(place.spill, HostMemory):
        return pinned.fetch(before.array, rows, shape, slot_bytes(place) // unit)
    results = jax.ShapeDtypeStruct(shape, place.type.dtype), jax.ShapeDtypeStruct((), jnp.int32)
    array, after = jax.ffi.ffi_call(FETCH, results)(before.array, *_file(place, unit), jnp.int32(ahead), rows)
    state[place.name] = Padded(after, before.lengths)
    fetched: jax.Array = array
    return fetched


def _ahead(lowering: Places, load: Load) -> int:
    """How far the next iteration of the innermost loop that counts along a slot reads from this one, in slots."""
    last = load.index[-1] if load.index else None
    if not isinstance(last, Term):
        return 0
    found = [last.coefficient(symbol) for symbol in last.symbols if symbol.kind == "dim" and last.linear_in(symbol)]
    return int(np.sign(found[-1])) if found else 0


def _file(place: Place, unit: int) -> tuple[jax.Array, jax.Array]:
    check_available()
    return jnp.int32(place.spill.file.fileno()), jnp.int32(unit)  # type: ignore[union-attr]


__all__ = ["check_available", "empty", "load", "row_of", "rows_of", "store", "take"]
