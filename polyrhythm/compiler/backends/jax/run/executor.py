"""The one place where XLA compiles: a cache of compiled programs, the budget, and what each compilation was for.

A call, a stretch of a growing loop, a unit of a stream and a region between host calls are each one XLA program, told
apart by a key that starts with its kind and has its capacities, and by the devices of its arguments.

How much memory a program takes is what XLA says of the compiled program, which allocates nothing yet: a plan is asked
for by compiling, and the call that follows finds the program compiled. A program above the budget is not kept, and
refused before it runs.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax

from polyrhythm.compiler.backends.jax.run import executables
from polyrhythm.compiler.backends.jax.run.placing import placement
from polyrhythm.compiler.backends.jax.run.small_loops import compile_lowered
from polyrhythm.compiler.backends.jax.target import compiler_options, lowering_for, on_cpu
from polyrhythm.compiler.backends.jax.trace.lowering import Lowering
from polyrhythm.compiler.backends.kept import kept_or_made
from polyrhythm.compiler.backends.native import give_back
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.loops.ir import LoopProgram, blocks_of
from polyrhythm.compiler.loops.spilling import HostMemory, slot_bytes
from polyrhythm.errors import MemoryBudgetError

Key = tuple[Any, ...]

KEPT = ", as an earlier process compiled it"
"""What the reason of a compilation ends with that was none."""


@dataclass
class Compilation:
    """One compilation by XLA: for which capacities, why, how long it took; the bytes that the program allocates."""

    capacities: dict[str, int]
    reason: str
    seconds: float
    allocated: int = 0


@dataclass(frozen=True)
class Account:
    """Bytes of a compiled program: arguments, results, those in the memory of arguments, the rest; the largest."""

    arguments: int
    outputs: int = 0
    aliased: int = 0
    temporaries: int = 0
    largest: tuple[tuple[int, str], ...] = ()  # with the path of names of what makes them; of refused programs only

    @property
    def peak(self) -> int:
        """All of them."""
        return self.arguments + self.outputs - self.aliased + self.temporaries


@dataclass(frozen=True)
class Plan:
    """What a run allocates at most: in its largest XLA program, or while its state moves to larger arrays."""

    largest: Account
    moving: int = 0

    @property
    def peak(self) -> int:
        """The bytes at the time when most are there."""
        return max(self.largest.peak, self.moving)


@dataclass(frozen=True)
class Advance:
    """What one XLA program does of a Loop IR program: what is traced for it, at which capacities, and why.

    The key tells it apart from others of the same program; with the devices of the arguments it is that of the cache.
    """

    key: Key
    trace: Callable[..., Any]
    capacities: Mapping[Symbol, int]
    reason: str
    donated: tuple[int, ...] = ()  # the arguments that it may write to


@dataclass
class Executor:
    """The compiled programs of one Loop IR program, which may have been written out from a shorter one."""

    program: LoopProgram
    compilations: list[Compilation]
    shorter: LoopProgram | None = None
    programs: dict[Key, Any] = field(default_factory=dict)
    accounts: dict[Key, Account] = field(default_factory=dict)
    compile: Callable[[Any, Mapping[str, int]], Any] = lambda lowered, capacities: compile_lowered(lowered)

    @cached_property
    def digest(self) -> str | None:
        """The name of the program in the cache of executables."""
        return executables.digest(self.shorter or self.program)

    def known(self, key: Key, arguments: Any) -> Any:
        """The compiled program of a key and the devices of its arguments, if there is one."""
        return self.programs.get((*key, *placement(arguments)))

    def compiled(self, advance: Advance, arguments: tuple[Any, ...]) -> Any:
        """The compiled program for the devices of some arguments; refused if it is above the budget."""
        key = (*advance.key, *placement(arguments))
        if key not in self.programs:
            self._refuse(self._compile(key, advance, arguments), advance.capacities)
        return self.programs[key]

    def account(self, advance: Advance, arguments: tuple[Any, ...]) -> Account:
        """What a program allocates. It is compiled for that, and kept for calls."""
        key = (*advance.key, *placement(arguments))
        return self._compile(key, replace(advance, reason="to plan its memory"), arguments)

    def check_inlined(
        self, trace: Callable[..., Any], arguments: tuple[Any, ...], capacities: Mapping[Symbol, int]
    ) -> None:
        """Refuse what cannot be held where the program becomes part of a function that JAX is tracing."""
        if self.program.budget is not None:
            shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), arguments)
            inlined = Advance(("inlined", *capacities.values(), str(shapes)), trace, capacities, "")
            self._refuse(self.account(inlined, shapes), capacities)

    def _compile(self, key: Key, advance: Advance, arguments: tuple[Any, ...]) -> Account:
        """Compile what is not compiled yet; what it allocates. It is kept if the budget allows."""
        if key not in self.accounts:
            started = time.perf_counter()
            names = {s.name: n for s, n in advance.capacities.items()}

            def make() -> tuple[Any, Account]:
                options = compiler_options()
                jitted = jax.jit(advance.trace, donate_argnums=advance.donated, compiler_options=options)
                lowered = jitted.lower(*arguments)
                with executables.no_cache() if path is not None else nullcontext():
                    made = self.compile(lowered, names)
                return made, self._apart(account_of(made), advance.capacities)

            with lowering_for(precision=self.program.precision):
                path = None if self.digest is None else executables.path_of(self.digest, advance.key, arguments)
                how = executables.write, executables.read, executables.LEAST
                (made, found), kept = kept_or_made(path, make, *how)
            seconds, reason = time.perf_counter() - started, advance.reason + (KEPT if kept else "")
            if seconds >= executables.LEAST:
                give_back()
            self.compilations.append(Compilation(names, reason, seconds, found.peak))
            if self._holds(found):
                self.programs[key] = made
            else:
                found = replace(found, largest=tuple(_arrays(made.as_text() or "")))
            self.accounts[key] = found
        return self.accounts[key]

    def _apart(self, found: Account, capacities: Mapping[Symbol, int]) -> Account:
        """An account without what lies on the host, which XLA counts as its own, and without parts of other inputs.

        Both on a CPU, which has one memory.
        """
        places, sizes = self.program.places, Lowering(self.program, capacities, {}, None)
        pinned = [place for place in places.values() if isinstance(place.spill, HostMemory) and on_cpu()]
        held = sum(math.prod(map(sizes.capacity, p.slots)) * slot_bytes(p) for p in pinned)
        parts = [p for p in places.values() if p.part_of is not None and p.part_of[0] in places and on_cpu()]
        viewed = sum(math.prod(sizes.room(part)) * part.type.dtype.itemsize for part in parts)
        return replace(found, arguments=found.arguments - viewed, temporaries=max(0, found.temporaries - held))

    def _holds(self, found: Account) -> bool:
        return self.program.budget is None or found.peak <= self.program.budget

    def _refuse(self, found: Account, capacities: Mapping[Symbol, int]) -> None:
        """Refuse what needs more than the budget, naming what takes most of it."""
        if self._holds(found):
            return
        sizes = Lowering(self.program, capacities, {}, None)
        what, at, largest = "", None, 0
        for place in self.program.places.values():
            held = math.prod(sizes.room(place)) * place.type.dtype.itemsize
            if held > largest and place.kind != "variable" and place.spill is None:
                what, at, largest = f"{place.kind} {place.name} takes {held:,} of them", place.at, held
        computes = {compute.result: compute for block in blocks_of(self.program.body) for compute in block.body}
        for size, path in found.largest:
            named = [computes[name] for name in re.split(r"[/()]", path) if name in computes]
            if named and size > largest:
                what, at, largest = f"what {named[-1].op} makes takes {size:,} of them", named[-1].at, size
        raise MemoryBudgetError(
            f"{found.peak:,} bytes are needed, but the budget is {self.program.budget:,}; {what}",
            fix="raise memory_budget, use smaller bounds, or read fewer steps of it later",
            at=at,
        )


def account_of(compiled: Any) -> Account:
    """What XLA allocates for a compiled program on each device."""
    of = compiled.memory_analysis()
    ends = of.argument_size_in_bytes, of.output_size_in_bytes, of.alias_size_in_bytes
    return Account(*ends, of.temp_size_in_bytes)


WIDTHS = {"pred": 1, "bf16": 2}
"""Bytes of the types whose names in XLA do not tell their bits."""


def _arrays(text: str) -> Iterator[tuple[int, str]]:
    """The arrays of a program as XLA prints it, each with its bytes and the path of names of what makes it.

    >>> list(_arrays('%a = f32[2,3]{1,0} fusion(...), metadata={op_name="jit(f)/y/add"}'))
    [(24, 'jit(f)/y/add')]
    """
    fused = False
    for line in text.splitlines():
        if line.endswith("{"):
            fused = "fused" in line.split("(")[0]  # what is inside of a fusion is no array
        found = re.search(r"= (\w+)\[([\d,]*)\].*op_name=\"([^\"]*)\"", line)
        if found and not fused:
            kind, lengths, path = found.groups()
            bits = re.sub(r"\D", "", kind)
            width = WIDTHS.get(kind) or max(1, int(bits or 8) // 8)
            yield math.prod(map(int, filter(None, lengths.split(",")))) * width, path
