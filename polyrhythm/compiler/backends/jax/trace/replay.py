"""Reads of a buffer that the same iteration stores to, in an order that XLA keeps.

A program that keeps all its past and draws from it at random, as from a replay, stores one slot of a buffer and gathers
many at every step. XLA makes a store before a gather part of the gather, and then needs the buffer as it was and as it
is; and a store after a gather may in its eyes come before it. Either way it copies the whole buffer at every step, so
that a step takes longer the more steps there were. `computed_once` keeps the first apart, and `after` makes the second
wait: a loop that never runs, which XLA does not look into, hands on the value to be stored together with what was
gathered. So it does for a single slot that goes elsewhere than into the store, as in a recurrence with a long skip,
`h[t - 7]`, which is put into a ring or a register too. Exact: nothing is computed otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.loops.ir import Block, Compute, Load, Local, Steps

GATHERS = frozenset({"take", "take_along"})
"""Operations that read a few slots of many, by data."""


LARGE = 2**12
"""Elements of a buffer, below which a copy takes less than the loop that avoids it."""


@dataclass
class Replay:
    """What an iteration stores to, has stored to so far, and has gathered from since the last store."""

    written: frozenset[str] = frozenset()
    stored: set[str] = field(default_factory=set)
    gathered: dict[str, list[jax.Array]] = field(default_factory=dict)


def gathered_from(compute: Compute) -> Sequence[str]:
    """The places from whose steps an operation gathers."""
    if compute.op not in GATHERS:
        return ()
    loads = (operand for operand in compute.operands[:1] if isinstance(operand, Load))
    return [load.place for load in loads if any(isinstance(entry, Steps) for entry in load.index)]


def slots_behind(block: Block, result: str) -> set[str]:
    """The places of which single slots are loaded for a result of a block."""
    computes = {compute.result: compute for compute in block.body}
    waiting, seen, found = [result], {result}, set[str]()
    while waiting:
        for operand in computes[waiting.pop()].operands:
            if isinstance(operand, Local):
                if operand.name not in seen:
                    seen.add(operand.name)
                    waiting.append(operand.name)
            elif not operand.held and not any(isinstance(entry, Steps) for entry in operand.index):
                found.add(operand.place)
    return found


def after(value: jax.Array, others: Sequence[jax.Array], symbols: Mapping[Symbol, Any]) -> jax.Array:
    """The same value, there only after some others are.

    >>> T = Symbol("T", "bound")
    >>> jax.jit(lambda x, n: after(2 * x, [x + 1], {T: n}))(jnp.arange(3.0), 1).tolist()
    [0.0, 2.0, 4.0]
    """
    bound = next((n for s, n in symbols.items() if s.kind != "dim" and not s.over and isinstance(n, jax.Array)), None)
    if bound is None or not others:
        return value

    def changed(carry: Any) -> Any:
        _, own, rest = carry
        # It must seem to depend on all of them, or XLA would take them out of the loop.
        hit = sum(jnp.sum(one != 0) for one in rest) > 0
        return jnp.bool_(False), jnp.where(hit, jnp.zeros((), own.dtype), own), [jnp.flip(one) for one in rest]

    kept: jax.Array = lax.while_loop(lambda carry: carry[0], changed, (bound < 0, value, list(others)))[1]
    return kept
