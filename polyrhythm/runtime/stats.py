"""What a program has cost so far: its compilations and the seconds of each phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol


class Compilation(Protocol):
    """One compilation by the backend: for which capacities, why, how long it took; bytes allocated."""

    capacities: dict[str, int]
    reason: str
    seconds: float
    allocated: int


@dataclass
class Stats:
    """Compilations with their reasons, seconds of each phase, and the number of calls.

    NumPy and torch compile nothing. `bounds` are those of the last call.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> program = pr.compile(x * 2, backend="numpy")
    >>> results = [program(x=[1.0]), program(x=[1.0, 2.0])]
    >>> program.stats.calls, program.stats.compilations
    (2, [])
    >>> list(program.stats.seconds)
    ['trace', 'check', ..., 'schedule', ..., 'run']
    """

    phases: dict[str, float] = field(default_factory=dict)
    calls: int = 0
    compilations: list[Compilation] = field(default_factory=list)
    bounds: dict[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> Mapping[str, float]:
        """The seconds spent in each phase; `run` is the sum over all calls."""
        compiling = sum(c.seconds for c in self.compilations)
        seconds = dict(self.phases)
        if self.compilations:
            seconds["backend compile"] = compiling
            seconds["run"] = max(0.0, seconds.get("run", 0.0) - compiling)
        return seconds

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the seconds of what is done inside to a phase."""
        started = perf_counter()
        try:
            yield
        finally:
            self.phases[phase] = self.phases.get(phase, 0.0) + perf_counter() - started

    def __str__(self) -> str:
        lines = [f"{phase:16} {seconds * 1000:10.1f} ms" for phase, seconds in self.seconds.items()]
        lines += [f"{self.calls} calls, {len(self.compilations)} compilations by the backend"]
        for compilation in self.compilations:
            sizes = ", ".join(f"{name} <= {n}" for name, n in compilation.capacities.items()) or "any bounds"
            lines.append(f"  {sizes}: {compilation.reason}, {compilation.seconds * 1000:.0f} ms")
        return "\n".join(lines)
