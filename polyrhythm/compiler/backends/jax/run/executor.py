"""The one place where XLA compiles: a cache of compiled programs, the budget, and what each compilation was for.

A call, a stretch of a growing loop, a unit of a stream and a region between host calls are each one XLA program, told
apart by a key that starts with its kind and has its capacities. Before one is compiled its memory is planned from the
trace (`footprint.py`), and a budget that cannot be held is refused. What XLA then says it allocates is kept beside the
plan, and is what the budget is held to.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from polyrhythm.compiler.backends.jax.run.footprint import Footprint, Step, footprint
from polyrhythm.compiler.backends.jax.trace.lowering import Lowering
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.loops.ir import LoopProgram, blocks_of
from polyrhythm.errors import MemoryBudgetError

SHARE, BYTES = 1.1, 1_000_000
"""A plan is above what XLA allocates by a tenth and a megabyte at most: one further above a budget is refused."""

Key = tuple[Any, ...]


@dataclass
class Compilation:
    """One compilation by XLA: for which capacities, why, how long it took; bytes as planned and as XLA tells them."""

    capacities: dict[str, int]
    reason: str
    seconds: float
    planned: int = 0
    allocated: int = 0


@dataclass(frozen=True)
class Plan:
    """What a run allocates at most: in its largest XLA program, or while its state moves to larger arrays."""

    largest: Footprint
    moving: int = 0

    @property
    def peak(self) -> int:
        """The bytes at the time when most are there."""
        return max(self.largest.peak, self.moving)


@dataclass
class Executor:
    """The compiled programs of one Loop IR program."""

    program: LoopProgram
    compilations: list[Compilation]
    programs: dict[Key, Any] = field(default_factory=dict)
    _traced: dict[Key, tuple[Any, Footprint]] = field(default_factory=dict)

    def compiled(
        self,
        key: Key,
        trace: Callable[..., Any],
        arguments: tuple[Any, ...],
        capacities: Mapping[Symbol, int],
        reason: str,
        donated: bool = False,
    ) -> Any:
        """The compiled program of a key; `donated` if it may write to its first argument."""
        if key not in self.programs:
            started = time.perf_counter()
            traced, plan = self._trace(key, trace, arguments, donated)
            self._check(plan.peak, True, plan, capacities)
            made = traced.lower().compile()
            allocated = account(made)
            self._check(allocated, False, plan, capacities)
            del self._traced[key]  # it is as large as the program
            names = {s.name: n for s, n in capacities.items()}
            seconds = time.perf_counter() - started
            self.compilations.append(Compilation(names, reason, seconds, plan.peak, allocated))
            self.programs[key] = made
        return self.programs[key]

    def plan(self, key: Key, trace: Callable[..., Any], arguments: tuple[Any, ...], donated: bool = False) -> Footprint:
        """What the program of a key will allocate; it is traced, but not compiled."""
        return self._trace(key, trace, arguments, donated)[1]

    def check_inlined(
        self, trace: Callable[..., Any], arguments: tuple[Any, ...], capacities: Mapping[Symbol, int]
    ) -> None:
        """Refuse what cannot be held where the program becomes part of a function that JAX is tracing."""
        if self.program.budget is not None:
            plan = footprint(jax.make_jaxpr(trace)(*arguments))
            self._check(plan.peak, True, plan, capacities)

    def _trace(
        self, key: Key, trace: Callable[..., Any], arguments: tuple[Any, ...], donated: bool
    ) -> tuple[Any, Footprint]:
        if key not in self._traced:
            traced = jax.jit(trace, donate_argnums=(0,) if donated else ()).trace(*arguments)
            count = len(jax.tree.leaves(arguments[0])) if donated else 0
            self._traced[key] = traced, footprint(traced.jaxpr, count)
        return self._traced[key]

    def _check(self, needed: int, planned: bool, plan: Footprint, capacities: Mapping[Symbol, int]) -> None:
        """Refuse what needs more than the budget; what is planned may be a little above what is needed."""
        budget = self.program.budget
        if budget is None or needed <= (SHARE * budget + BYTES if planned else budget):
            return
        sizes = Lowering(self.program, capacities, {}, None)
        what, at, largest = "", None, 0
        for place in self.program.places.values():
            held = math.prod(sizes.room(place)) * place.type.dtype.itemsize
            if held > largest and place.kind != "variable":
                what, at, largest = f"{place.kind} {place.name} takes {held:,} of them", place.at, held
        computes = {compute.result: compute for block in blocks_of(self.program.body) for compute in block.body}
        for size, step in plan.largest:
            compute = computes.get(scope_of(step))
            if compute is not None and size > largest:
                what, at, largest = f"what {compute.op} makes takes {size:,} of them", compute.at, size
        raise MemoryBudgetError(
            f"{needed:,} bytes are needed, but the budget is {budget:,}; {what}",
            fix="raise memory_budget, use smaller bounds, or read fewer steps of it later",
            at=at,
        )


def account(compiled: Any) -> int:
    """The bytes that XLA allocates for a compiled program, its arguments included."""
    told = compiled.memory_analysis()
    ends = told.argument_size_in_bytes + told.output_size_in_bytes - told.alias_size_in_bytes
    return int(ends + told.temp_size_in_bytes)


def scope_of(step: Step | None) -> str:
    """The name of the computation that an operation is part of."""
    names = step.scope.split("/") if step is not None else [""]
    return names[-1].rsplit("(", 1)[-1].rstrip(")")
