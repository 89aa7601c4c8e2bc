"""Softmax in one round of a ring: sums of exp(a - max a) with the largest score so far, moved when a larger one comes.

A reduction that needs the maximum of the scores would wait for a round of its own. But each block can have a maximum of
its own, and sums about one centre are those about another times exp of their difference (Milakov and Gimelshein, 2018;
the blocks of flash and ring attention are merged so):

    m = max(m1, m2),    z = z1 * exp(m1 - m) + z2 * exp(m2 - m)

and so for every sum in which exp(a - m) is one factor. What is divided by z before it is summed is divided after it.

Legal where the maximum reaches the sums through that factor alone, and where an infinite one is replaced by zero, as
`pr.softmax` does: a block in which all scores are -inf then adds zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from polyrhythm.compiler.backends.jax.ops.monoids import COMBINE
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.types import Array
from polyrhythm.compiler.loops.ir import Compute, Local

if TYPE_CHECKING:
    from polyrhythm.compiler.backends.jax.trace.ring_stages import Stages

Axes = tuple[int | None, ...]
"""For each axis of a value the axis of the centre, or of the divisor, that it follows."""


@dataclass
class Online:
    """A maximum and the sums that follow it."""

    peak: Compute
    chain: list[Compute] = field(default_factory=list)  # from the maximum to the centre, which is the last
    folds: dict[str, Axes] = field(default_factory=dict)  # sums with the weights as a factor
    divided: dict[str, tuple[str, Axes]] = field(default_factory=dict)  # of those, which are divided by what later
    skipped: dict[str, str] = field(default_factory=dict)  # divisions that wait, and what they divide

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the centre."""
        return tuple(n.constant for n in self.chain[-1].type.shape)

    def inside(self, name: str) -> bool:
        """Whether a value that lies not along the ring is made for each block."""
        return name == self.peak.result or any(name == compute.result for compute in self.chain)

    def merged(self, wanted: Sequence[Compute], totals: list[jax.Array], parts: list[jax.Array]) -> list[jax.Array]:
        """The results of blocks so far and of another one, together."""
        at = wanted.index(self.peak)
        top = lax.max(totals[at], parts[at])
        before, after = (self._factor(array, top) for array in (totals[at], parts[at]))
        found = []
        for compute, total, part in zip(wanted, totals, parts, strict=True):
            if compute is self.peak:
                found.append(top)
            elif compute.result in self.folds:
                axes = self.folds[compute.result]
                found.append(total * aligned(before, axes) + part * aligned(after, axes))
            else:
                found.append(COMBINE[compute.attributes.get("monoid", "sum")](total, part))
        return found

    def _factor(self, old: jax.Array, new: jax.Array) -> jax.Array:
        old, new = (jnp.where(jnp.isfinite(m), m, jnp.zeros((), m.dtype)).reshape(self.shape) for m in (old, new))
        return jnp.exp(jnp.minimum(old - new, jnp.zeros((), old.dtype)))


def aligned(array: jax.Array, axes: Axes) -> jax.Array:
    """An array with its axes where a value has them, of length one elsewhere."""
    used = [axis for axis in axes if axis is not None]
    array = lax.squeeze(array, [axis for axis in range(array.ndim) if axis not in used])
    array = lax.transpose(array, [sorted(used).index(axis) for axis in used])
    return lax.expand_dims(array, [at for at, axis in enumerate(axes) if axis is None])


def find_online(plan: Stages, some: Sequence[Compute], types: Mapping[str, Any]) -> Online | None:
    """The first maximum that need not wait for a round of its own."""
    peaks = [c for c in plan.folded if c.op == "reduce" and c.attributes["monoid"] == "max"]
    return next((found for peak in peaks if (found := _Search(plan, some, types, peak).found()) is not None), None)


@dataclass
class _Search:
    plan: Stages
    some: Sequence[Compute]
    types: Mapping[str, Any]
    peak: Compute
    weighted: dict[str, Axes] = field(default_factory=dict)  # what lies along the ring and has the weights as a factor
    waiting: dict[str, tuple[str, Axes]] = field(default_factory=dict)  # of those, what they are to be divided by

    def found(self) -> Online | None:
        dtype, made = self.peak.type.dtype, {compute.result: compute for compute in self.some}
        if not dtypes.is_float(dtype) or dtypes.accumulator(dtype) != dtype:
            return None
        follows = {self.peak.result}
        for compute in self.some:
            if not self._lies_along(compute) and compute not in self.plan.folded:
                follows |= {compute.result} if follows.intersection(compute.locals) else set()
        readers = [c for c in self.some if self._sums(c) and follows.intersection(c.locals)]
        if not readers or readers[0].op != "sub" or readers[0].operands[0] != self.peak.operands[0]:
            return None
        difference = readers[0]
        centre = difference.operands[1]
        chain = self._guard(made, centre.name) if isinstance(centre, Local) else None
        if chain is None:
            return None
        online = Online(self.peak, chain)
        axes = tuple(axis if n is not Term(1) else None for axis, n in enumerate(chain[-1].type.shape))
        moved = self._through(difference, 1, axes)
        if moved is None:
            return None
        self.weighted[difference.result] = moved
        for compute in self.some:
            if compute is not difference and self._sums(compute) and not self._is_placed(online, compute, follows):
                return None
        return online if online.folds else None

    def _lies_along(self, compute: Compute) -> bool:
        return compute.result in self.plan.along

    def _sums(self, compute: Compute) -> bool:
        return self._lies_along(compute) or compute in self.plan.folded

    def _guard(self, made: Mapping[str, Compute], name: str) -> list[Compute] | None:
        """How the centre is made: the maximum where that is finite, else zero; None if it is made otherwise."""
        chain: list[Compute] = []

        def to_peak(name: str) -> bool:
            while name != self.peak.result and name in made and made[name].op == "reshape":
                chain.append(made[name])
                (name,) = made[name].locals
            return name == self.peak.result

        while name in made and made[name].op == "reshape":
            chain.append(made[name])
            name = next(iter(made[name].locals), "")
        chosen = made.get(name)
        if chosen is None or chosen.op != "select" or len(chosen.locals) != 3:
            return None
        chain.append(chosen)
        condition, _, other = (made.get(operand) for operand in chosen.locals)
        zero = other is not None and other.op == "constant" and _is_zero(other.attributes["value"])
        if not zero or condition is None or condition.op != "isfinite" or not condition.locals:
            return None
        chain.append(condition)
        if not all(map(to_peak, (chosen.locals[1], condition.locals[0]))):
            return None
        kept = {compute.result for compute in chain}
        return [compute for compute in self.some if compute.result in kept]

    def _is_placed(self, online: Online, compute: Compute, follows: set[str]) -> bool:
        """Note how a computation along the ring takes part; False if the maximum reaches it in another way."""
        own = [at for at, o in enumerate(compute.operands) if isinstance(o, Local) and o.name in self.weighted]
        if not own:
            return not follows.intersection(compute.locals)
        (at, *more), rounds = own, self.plan.rounds
        operand = compute.operands[at]
        assert isinstance(operand, Local)
        others = [o for n, o in enumerate(compute.operands) if n != at]
        late = [o for o in others if isinstance(o, Local) and rounds[o.name] >= rounds[self.peak.result]]
        axes = self._through(compute, at, self.weighted[operand.name])
        if more or axes is None:
            return False
        before = self.waiting.get(operand.name)
        waits = None if before is None else self._through(compute, at, before[1])
        if before is not None and waits is None:
            return False
        after = None if before is None or waits is None else (before[0], waits)
        if compute in self.plan.folded:
            sums = compute.op == "einsum" or compute.attributes["monoid"] == "sum"
            if late or not sums or self._is_difference(operand.name):
                return False
            online.folds[compute.result] = axes
            if after is not None:
                online.divided[compute.result] = after
            return True
        if compute.op == "exp" and self._is_difference(operand.name):
            self.weighted[compute.result] = axes
            return True
        if self._is_difference(operand.name) or compute.op not in ("mul", "div") or (compute.op == "div" and at):
            return False
        if late:
            (by,) = late
            labels = range(len(self.types[by.name].shape))
            by_axes = tuple(n if self.types[by.name].shape[n] is not Term(1) else None for n in labels)
            divisor = self._through(compute, 1 - at, by_axes)
            same = compute.type.shape == self.types[operand.name].shape
            if compute.op != "div" or after is not None or divisor is None or by.name in self.plan.along or not same:
                return False
            online.skipped[compute.result] = operand.name
            after = by.name, divisor
        self.weighted[compute.result] = axes
        if after is not None:
            self.waiting[compute.result] = after
        return True

    def _is_difference(self, name: str) -> bool:
        return next(iter(self.weighted)) == name

    def _through(self, compute: Compute, at: int, axes: Axes) -> Axes | None:
        """The axes of the result that follow those of an operand; None if one of them is summed."""
        signature = compute.signature(self.types)
        labels = signature.operands[at]
        where = {label: axis for label, axis in zip(labels, axes, strict=True) if axis is not None}
        made = tuple(where.get(label) for label in signature.result)
        return made if set(where.values()) <= set(made) else None


def _is_zero(value: Any) -> bool:
    return bool((value.value if isinstance(value, Array) else value) == 0)
