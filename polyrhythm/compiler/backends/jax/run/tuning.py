"""`schedule="measure"`: how many steps of each dim run at once is measured, at the first call with bounds of a size.

Candidates are one step at a time, all at once, and tiles between; those that the cost model finds hopeless or that do
not fit are left out. Only loops whose steps have been proved independent have a choice at all, so whatever is chosen,
the results are those of the program. Dims are tried one after the other, each candidate as a whole program: a call to
compile and warm up, then rounds in which the candidates take turns. The median decides, and has to be better than what
the cost model chose by `CLEARLY`. What was found is kept beside the compiled programs, for the next process.
"""

from __future__ import annotations

import hashlib
import json
import platform
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax

from polyrhythm.compiler.backends.jax.backend import JaxBackend
from polyrhythm.compiler.backends.jax.run.calibration import calibrate
from polyrhythm.compiler.backends.jax.run.host_regions import has_host
from polyrhythm.compiler.backends.jax.trace.lanes import most_lanes
from polyrhythm.compiler.backends.jax.trace.lowering import Lowering
from polyrhythm.compiler.backends.jax.trace.work import work_of
from polyrhythm.compiler.backends.native import folder
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.loops.cost import chunk_for, seconds_of
from polyrhythm.compiler.loops.growth import with_growth
from polyrhythm.compiler.loops.ir import For, walk
from polyrhythm.compiler.loops.show import show
from polyrhythm.errors import MemoryBudgetError, UnsupportedError
from polyrhythm.language.chunks import Chunk

TILES = (16, 64, 256, 1024, 4096)
ROUNDS = 7
PATIENCE = 1.0
"""Seconds for the rounds of a candidate; there are at least two."""

HOPELESS = 20.0
"""Candidates predicted to be this many times slower than the best are not tried."""

SLOW = 3.0
"""Candidates this many times slower than the fastest at the first call leave the race."""

CLEARLY = 0.95
"""A measured choice replaces the one of the cost model if it takes at most this share of its time."""


@dataclass(frozen=True)
class Choice:
    """What was chosen at some capacities, and the seconds of everything tried; `before` if an earlier process did."""

    chunks: Mapping[str, Chunk]
    seconds: Mapping[str, float]
    before: bool = False

    def __str__(self) -> str:
        chosen = ", ".join(f"{dim}: {chunk}" for dim, chunk in self.chunks.items()) or "what the cost model chose"
        tried = ", ".join(f"{what} {seconds * 1e3:.3g} ms" for what, seconds in self.seconds.items())
        return f"{chosen}; measured{' by an earlier run' if self.before else ''}: {tried or 'nothing to choose'}"


@dataclass
class TunedBackend(JaxBackend):
    """The JAX backend with a choice of chunks for each set of capacities."""

    choices: dict[tuple[int, ...], Choice] = field(default_factory=dict)
    _chosen: dict[tuple[int, ...], JaxBackend] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if has_host(self.program.body):
            raise UnsupportedError(
                "a program with host functions cannot be measured: they would be called too often",
                fix='leave out schedule="measure", or choose with schedule={...}',
            )
        if not self.program.machine.calibrated:
            self.program = with_growth(replace(self.program, machine=calibrate()))
        self.whole = self.program
        super().__post_init__()

    def run(self, inputs: Mapping[str, Any], bounds: Mapping[str, int], seed: int) -> tuple[list[Any], dict[str, int]]:
        """The outputs, and the bounds found while running; at the first call of a size, chunks are chosen."""
        capacities = self.sizes(bounds).capacities
        key = tuple(capacities[s] for s in self.sizing)
        if key not in self._chosen:
            path = self._path(key)
            choice = _read(path)
            if choice is None:
                choice = self._measured(capacities, inputs, bounds, seed)
                _write(path, choice)
            self.choices[key] = choice
            self._chosen[key] = self._with(choice.chunks)
        chosen = self._chosen[key]
        return super().run(inputs, bounds, seed) if chosen is self else chosen.run(inputs, bounds, seed)

    def explained(self) -> list[str]:
        """What was chosen, for `program.explain()`."""
        if not self.choices:
            return ["what runs at once is measured at the first call"]
        sizes = [", ".join(f"{s} <= {n}" for s, n in zip(self.sizing, key, strict=True)) for key in self.choices]
        return [f"at {size or 'any bounds'}: {c}" for size, c in zip(sizes, self.choices.values(), strict=True)]

    def _with(self, chunks: Mapping[str, Chunk]) -> JaxBackend:
        if not chunks:
            return self
        return JaxBackend(replace(self.whole, chunks={**self.whole.chunks, **chunks}), self.compilations)

    def _measured(
        self, capacities: Mapping[Symbol, int], inputs: Mapping[str, Any], bounds: Mapping[str, int], seed: int
    ) -> Choice:
        """Dim after dim, the candidate that was fastest."""
        chosen: dict[str, Chunk] = {}
        told: dict[str, float] = {}
        for dim, candidates in self._candidates(capacities).items():
            ways: dict[str, JaxBackend] = {"the model's choice": self._with(chosen)}
            ways |= {f"{dim}: {chunk}": self._with({**chosen, dim: chunk}) for chunk in candidates}
            seconds = self._raced(ways, inputs, bounds, seed)
            told |= {what: s for what, s in seconds.items() if what not in told}
            best = min(seconds, key=seconds.__getitem__)
            if seconds[best] < CLEARLY * seconds["the model's choice"]:
                chosen[dim] = next(chunk for chunk in candidates if f"{dim}: {chunk}" == best)
        return Choice(chosen, told)

    def _candidates(self, capacities: Mapping[Symbol, int]) -> dict[str, list[Chunk]]:
        """For each dim with independent steps, what could run at once instead of what the model chooses."""
        lowering = Lowering(self.program, capacities, {}, None)
        found: dict[str, list[Chunk]] = {}
        for loop in walk(self.program.body):
            if not isinstance(loop, For):
                continue
            lowering.note_range(loop)
            dim = loop.counter.name
            if not loop.parallel or loop.stop is not None or dim in self.whole.chunks or dim in found:
                continue
            work, most = work_of(lowering, loop), most_lanes(lowering, loop)
            usual = chunk_for(self.program.machine, work, most) or work.count
            sizes = [n for n in (1, *TILES, work.count) if n <= min(most, work.count) and n != usual]
            predicted = {n: seconds_of(self.program.machine, work, n) for n in (*sizes, usual)}
            limit = HOPELESS * min(predicted.values())
            chunks = [Chunk(n if n < work.count else None) for n in sizes if predicted[n] <= limit]
            if chunks:
                found[dim] = list(dict.fromkeys(chunks))
        return found

    def _raced(
        self, ways: Mapping[str, JaxBackend], inputs: Mapping[str, Any], bounds: Mapping[str, int], seed: int
    ) -> dict[str, float]:
        """The median seconds of each way that fits and is not far behind."""

        def timed(backend: JaxBackend) -> float:
            started = time.perf_counter()
            run = JaxBackend.run(backend, inputs, bounds, seed)
            jax.block_until_ready(run[0])
            return time.perf_counter() - started

        first: dict[str, float] = {}
        for what, backend in ways.items():
            compiled = len(self.compilations)
            try:
                timed(backend)
            except MemoryBudgetError:
                continue
            for compilation in self.compilations[compiled:]:
                compilation.reason = f"tuning: {what}"
            first[what] = timed(backend)
        fastest = min(first.values())
        rounds = max(2, min(ROUNDS, int(PATIENCE / fastest)))
        seconds = {what: [once] for what, once in first.items() if once <= SLOW * fastest}
        for _ in range(rounds):
            for what, times in seconds.items():
                times.append(timed(ways[what]))
        return {what: statistics.median(seconds.get(what, [once])) for what, once in first.items()}

    def _path(self, key: tuple[int, ...]) -> Path | None:
        place = folder()
        if place is None:
            return None
        chunks = sorted(self.whole.chunks.items())
        what = (show(self.whole), chunks, self.whole.budget, key, jax.__version__, platform.processor(), jax.devices())
        return place / "tuned" / f"{hashlib.sha256(repr(what).encode()).hexdigest()}.json"


def _read(path: Path | None) -> Choice | None:
    if path is None or not path.exists():
        return None
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return Choice({dim: Chunk(steps) for dim, steps in kept["chunks"].items()}, kept["seconds"], before=True)
    except (OSError, ValueError, KeyError):  # a damaged file is as good as none
        return None


def _write(path: Path | None, choice: Choice) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {"chunks": {dim: chunk.steps for dim, chunk in choice.chunks.items()}, "seconds": dict(choice.seconds)}
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
