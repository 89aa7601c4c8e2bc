"""What is known of terms while a program is traced: their values, and the most that they can be.

Shapes must be static for XLA, so every bound that sizes something has a *capacity*, a power of two at least as large;
its value is a run-time scalar. Loop counters and bounds are int32 scalars, or integers where they are known.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from polyrhythm.compiler.ir.conditions import Compare, Condition, Junction
from polyrhythm.compiler.ir.intervals import Interval, interval, most
from polyrhythm.compiler.ir.terms import FloorDiv, Symbol, Term
from polyrhythm.compiler.loops.ir import For, LoopProgram, sites

Scalar = int | jax.Array

_HOLDS: dict[str, tuple[Callable[[int, int], bool], Callable[..., jax.Array]]] = {
    ">=": (operator.ge, lax.ge),
    "==": (operator.eq, lax.eq),
    "!=": (operator.ne, lax.ne),
}


def int32(value: Scalar) -> jax.Array:
    """A scalar for functions of `jax.lax`, which trace in a tenth of the time that operators and `jax.numpy` take."""
    if isinstance(value, jax.Array) and value.dtype == np.int32:
        return value
    return np.int32(value) if isinstance(value, int) else jnp.int32(value)  # type: ignore[return-value]


@dataclass
class Scope:
    """The capacities of the bounds of a program, and the value of every symbol in scope."""

    program: LoopProgram
    capacities: Mapping[Symbol, int]
    symbols: dict[Symbol, Scalar]
    seed: Any
    ranges: dict[Symbol, Interval] = field(default_factory=dict)

    def note_range(self, loop: For) -> None:
        """Remember between which values a counter lies."""
        self.ranges[loop.counter] = loop.span(self.ranges)

    def lengths(self, shape: Sequence[Term]) -> tuple[Scalar, ...]:
        return tuple(self.scalar(n) for n in shape)

    def capacity(self, term: Term) -> int:
        """The most a length can be: its upper bound, with the bounds at their capacities."""
        if term.is_constant:
            return max(0, term.constant)
        if all(isinstance(self.symbols.get(symbol), int) for symbol in term.symbols):
            return max(0, term.evaluate(lambda symbol: int(self.symbols[symbol])))
        limit, upper = self.program.limits.get(term), interval(term, self.ranges)[1]
        if limit is not None and not upper.symbols <= self.capacities.keys():
            return limit
        largest = most(upper, self.capacities)
        sizes = (most(axis, self.capacities) for axis in self.program.spans.get(term, ()))
        largest = max([largest, *(size for size in sizes if size < 2 * largest)])
        return largest if limit is None else min(limit, largest)

    def scalar(self, term: Term) -> Scalar:
        """The value of a term: an int where it is known while tracing."""
        known, traced = term.constant, None
        for monomial, coefficient in term.monomials:
            factor, product = coefficient, None
            for value in map(self._atom, monomial):
                if isinstance(value, int):
                    factor *= value
                else:
                    product = value if product is None else lax.mul(product, value)
            if product is None:
                known += factor
                continue
            product = product if factor == 1 else lax.mul(product, int32(factor))
            traced = product if traced is None else lax.add(traced, product)
        if traced is None:
            return known
        return lax.add(traced, int32(known)) if known else traced

    def _atom(self, atom: Any) -> Scalar:
        if isinstance(atom, Symbol):
            value = self.symbols[atom]
            return value if isinstance(value, int) else int32(value)
        if isinstance(atom, FloorDiv):
            dividend = self.scalar(atom.dividend)
            if isinstance(dividend, int):
                return dividend // atom.divisor
            divisor = int32(atom.divisor)
            below = lax.lt(lax.rem(dividend, divisor), int32(0))
            return lax.sub(lax.div(dividend, divisor), lax.convert_element_type(below, jnp.int32))
        values = [self.scalar(argument) for argument in atom.arguments]
        if all(isinstance(value, int) for value in values):
            return min(values) if atom.which == "min" else max(values)
        return reduce(lax.min if atom.which == "min" else lax.max, map(int32, values))

    def condition(self, condition: Condition) -> bool | jax.Array:
        """The truth of a condition: a bool where it is known while tracing."""
        if isinstance(condition, Compare):
            value = self.scalar(condition.term)
            compare, traced = _HOLDS[condition.relation]
            return compare(value, 0) if isinstance(value, int) else traced(value, int32(0))
        assert isinstance(condition, Junction)
        conjunctive = condition.word == "and"
        result: bool | jax.Array = conjunctive
        for part in condition.parts:
            holds = self.condition(part)
            if isinstance(holds, bool):
                if holds != conjunctive:
                    return holds
            elif isinstance(result, bool):
                result = holds
            else:
                result = lax.bitwise_and(result, holds) if conjunctive else lax.bitwise_or(result, holds)
        return result


def sizing_bounds(program: LoopProgram) -> set[Symbol]:
    """The bounds that size a place or a value, directly or through a loop counter."""
    found: set[Symbol] = set()
    ranges: dict[Symbol, Interval] = {}

    def note(term: Term) -> None:
        if term in program.limits:
            return
        for end in interval(term, ranges):
            found.update(s for s in end.symbols if s.kind != "dim")

    for place in program.places.values():
        for term in place.whole:
            note(term)
    for site in sites(program.body):
        for loop in site.loops:
            if loop.parallel:  # its iterations may run all at once: then it is an axis
                note(loop.end - loop.first)
            ranges[loop.counter] = loop.span(ranges)
        kinds = (*(c.type for c in site.block.body), *(load.type for load in site.block.loads))
        for term in (n for kind in kinds for n in kind.shape):
            note(term)
    return found
