"""Neighbours under the same guard become one guarded part of the program.

The builder guards each block, or loop, by what the loops around it do not imply. An iteration that is cut off from a
loop over i is guarded by `I >= 1`, part by part. As one, the whole of it can be skipped, and where it is done nothing
has to be masked. Legal because nothing in a part changes a condition on bounds and counters; but for a bound that the
program finds itself. Host calls stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.loops.ir import Block, If, Item, LoopProgram, blocks_of


def joined(program: LoopProgram) -> LoopProgram:
    """The program with neighbours under the same guard together."""
    return replace(program, body=_joined(program.body, frozenset(program.found)))


def _joined(items: Sequence[Item], found: frozenset[Symbol]) -> tuple[Item, ...]:
    done: list[Item] = []
    for item in items:
        new = item if isinstance(item, Block) else replace(item, body=_joined(item.body, found))
        last = done[-1] if done else None
        if isinstance(last, If) and isinstance(new, If) and _together(last, new, found):
            done[-1] = If(new.condition, _joined((*last.body, *new.body), found))
        else:
            done.append(new)
    return tuple(done)


def _together(a: If, b: If, found: frozenset[Symbol]) -> bool:
    calls = any(block.host for block in blocks_of((a, b)))
    return a.condition is b.condition and not a.condition.symbols & found and not calls
