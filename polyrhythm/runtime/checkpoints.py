"""Runs that can be stopped and resumed: `program(..., checkpoint=pr.Checkpoints(folder, over=i, every=100))`.

Every so many iterations of the outermost loops over a dim, the state of the run is written to a folder: what crosses
the cut (`checkpoint_liveness.py`), the position, and what identifies the run. The same call finds it there and goes on.
The iterations are done by the same code as before, on the same bits, so the results are those of a run that was never
stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from polyrhythm.compiler.backends.python.runs import START, Begin
from polyrhythm.compiler.ir import text
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.loops.ir import blocks_of
from polyrhythm.compiler.loops.show import show
from polyrhythm.compiler.loops.units import units
from polyrhythm.compiler.pipeline import Compiled
from polyrhythm.errors import DeclarationError, UnsupportedError
from polyrhythm.language.index import Dim
from polyrhythm.runtime import extending, processes, snapshots
from polyrhythm.runtime.arrays import as_numpy
from polyrhythm.runtime.checkpoint_liveness import crossing, loop_of, steps_along
from polyrhythm.runtime.errors import CheckpointMismatchError
from polyrhythm.runtime.host_identity import identities
from polyrhythm.runtime.snapshots import Snapshot

FORMAT = "polyrhythm run 1"
OUTSIDE = "outside/"
"""Name prefix of the arrays that are saved for host functions."""

MOST_PACE = 1 << 30
"""Iterations that are done at most before a run looks whether it is to stop."""


class Outside(Protocol):
    """What host functions with effects keep outside of the program, such as the state of an environment."""

    def save(self) -> Mapping[str, Any]:
        """The state, as arrays by name."""

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take up a state that `save` returned."""


@dataclass(frozen=True)
class Checkpoints:
    """Where and how often a run is saved: every `every` iterations of the dim `over`, the last `keep` of them kept.

    A run that is given a folder with a checkpoint goes on from there, and gives the same bits as one that was never
    stopped; with a finished run in the folder its results are returned at once. Files are safetensors, written whole
    or not at all, so that a process killed at any moment loses at most the iterations since the last one. A checkpoint
    of another program, other inputs, bounds or another seed is refused, and so is a damaged file. The bound of `over`
    may be larger than before: 400 iterations go on to 500, where nothing computed so far depends on their number.

    A program with effects must say how to save and restore what its host functions keep: `outside` is an object
    with `save()`, which returns arrays by name, and `restore(state)`.

    >>> import polyrhythm as pr, tempfile
    >>> i, I = pr.dim("i")
    >>> w = pr.recurrent((), ((i, I + 1),))
    >>> w[0] = 1.0
    >>> w[i + 1] = 0.5 * w
    >>> program = pr.compile({"w": w[I], "all": w[0:I]}, backend="numpy")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = pr.Checkpoints(folder, over=i, every=2)
    ...     result = program(bounds={I: 5}, checkpoint=checkpoints)
    ...     print(checkpoints.iterations, float(result["w"]))
    [4, 5] 0.03125
    """

    path: str | os.PathLike[str]
    over: Dim
    every: int = 100
    keep: int = 2
    outside: Outside | None = None
    stop: Callable[[], bool] | None = None
    """Asked about twice a second: once it says so the run is saved where it is, and ends with `KeyboardInterrupt`."""

    def __post_init__(self) -> None:
        if not isinstance(self.over, Dim):
            raise DeclarationError(
                f"checkpoints are taken along a dim, not {self.over!r}", fix="name the dim of the iterations: over=i"
            )
        for name, value in (("every", self.every), ("keep", self.keep)):
            if type(value) is not int or value < 1:
                raise DeclarationError(
                    f"{name} must be a positive integer, not {value!r}", fix=f"give {name}=1 or more"
                )

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return Path(self.path)

    @property
    def iterations(self) -> list[int]:
        """After how many iterations there is a checkpoint, the latest last."""
        return list(snapshots.found(self.folder))

    def held(self) -> snapshots.Held:
        """Hold the folder, as a run does: meanwhile no run writes to it."""
        return snapshots.Held(self.folder)


Starter = Callable[[Begin, Callable[[int], int | None]], tuple[Any, Iterator[tuple[int, int]]]]
"""Starts a run at a position; a function tells how many iterations of a unit may be done at once."""


@dataclass
class Saved:
    """One run with checkpoints."""

    checkpoints: Checkpoints
    compiled: Compiled
    dim: Symbol
    bounds: Mapping[str, int]
    identity: Mapping[str, str]
    inputs: Mapping[str, Any]
    observe: Callable[[int, int], None] = lambda unit, after: None
    count: int = 0
    written: int = 0
    _kept: dict[int, set[str]] = field(default_factory=dict)
    _pace: int = 1

    def __post_init__(self) -> None:
        self.units = units(self.compiled.loops.body)
        _check_effects(self.compiled, self.checkpoints)
        loops = [loop_of(self.compiled.schedule, unit) for unit in self.units]
        self.followed = [loop is not None and steps_along(loop, self.dim) for loop in loops]

    def run(self, start: Starter) -> Any:
        """Run from the latest checkpoint, or from the beginning, to the end."""
        with self.checkpoints.held() if processes.is_first() else nullcontext():
            processes.barrier("checkpoints begin")
            begin, self.count = self._latest()
            self.written = self.count
            run, positions = start(begin, self._chunk)
            at = begin.position
            began = time.perf_counter()
            for unit, after in positions:
                done = self._done(at, (unit, after))
                self.count += done
                now = time.perf_counter()
                pace = max(1, int(0.5 * done / max(now - began, 1e-6))) if done else self._pace
                began = now
                at = (unit, after)
                self.observe(unit, after)
                ended = unit == len(self.units)
                stopped = False
                if self.checkpoints.stop is not None and not ended:  # processes have clocks and signals of their own
                    self._pace, asked = processes.largest(min(pace, MOST_PACE), bool(self.checkpoints.stop()))
                    stopped = bool(asked)
                if self.count - self.written >= self.checkpoints.every or ((ended or stopped) and at != begin.position):
                    self._write(run, at)
                if stopped:
                    raise KeyboardInterrupt
            return run

    def _chunk(self, unit: int) -> int | None:
        """How many iterations there are until the next checkpoint, or until one has to ask whether to stop."""
        if not self.followed[unit]:
            return None
        left = self.checkpoints.every - (self.count - self.written)
        return left if self.checkpoints.stop is None else min(left, self._pace)

    def _done(self, before: tuple[int, int], now: tuple[int, int]) -> int:
        """The iterations along the dim between two positions."""
        (unit, after), start = now, before[1]
        if unit != before[0] or unit == len(self.units) or not self.followed[unit]:
            return 0
        loop = loop_of(self.compiled.schedule, self.units[unit])
        if loop is not None and any(member.rate > 0 for member in loop.members.values()):
            # What is shifted to before the first step, such as initial values, or to after the last one, such as the
            # last update, is no iteration of its own.
            assert self.dim.bound is not None
            last = self.bounds[self.dim.bound.name]
            after, start = (min(max(counter, 0), last) for counter in (after, start))
        return after - start

    def _write(self, run: Any, position: tuple[int, int]) -> None:
        unit, after = position
        if unit not in self._kept:
            ended = unit == len(self.units)
            outputs = set(self.compiled.loops.outputs) & _stored(self.compiled)
            self._kept[unit] = outputs if ended else crossing(self.compiled, self.units[unit])
        held = run.kept()
        kept = {name: held[name] for name in sorted(self._kept[unit]) if held[name] is not None}
        elsewhere = {name: array for name, array in kept.items() if processes.is_elsewhere(array)}
        arrays = {name: as_numpy(array) for name, array in kept.items() if name not in elsewhere}
        if self.checkpoints.outside is not None:
            arrays |= {OUTSIDE + name: np.asarray(a) for name, a in self.checkpoints.outside.save().items()}
        facts = {**self.identity, "iterations": str(self.count), "unit": str(unit), "next": str(after)}
        facts["found"] = json.dumps(run.found, sort_keys=True)
        if elsewhere:
            self._write_part(elsewhere)
            shapes = {name: [str(array.dtype), list(array.shape)] for name, array in elsewhere.items()}
            facts |= {"parts": str(processes.count()), "shapes": json.dumps(shapes, sort_keys=True)}
        processes.barrier(f"checkpoint {self.count} of {self.checkpoints.folder}")  # all parts are there
        if processes.is_first():
            snapshots.write(self.checkpoints.folder, self.count, Snapshot(arrays, facts))
            for old in list(snapshots.found(self.checkpoints.folder).values())[: -self.checkpoints.keep]:
                snapshots.remove(old)
        self.written = self.count

    def _write_part(self, arrays: Mapping[str, Any]) -> None:
        """Write what this process has of arrays that are spread over several."""
        pieces = {}
        for name, array in arrays.items():
            for shard in (shard for shard in array.addressable_shards if shard.replica_id == 0):
                start = [entry.start or 0 for entry in shard.index]
                pieces[snapshots.piece_name(name, start)] = np.asarray(shard.data)
        part = snapshots.part_name(processes.index(), processes.count())
        snapshots.write(self.checkpoints.folder, self.count, Snapshot(pieces, {}), part)

    def _latest(self) -> tuple[Begin, int]:
        """Where to begin, and how many iterations that is."""
        files = snapshots.found(self.checkpoints.folder)
        reason: CheckpointMismatchError | None = None
        for path in reversed(files.values()):
            snapshot = snapshots.read(path)
            position = int(snapshot.facts["unit"]), int(snapshot.facts["next"])
            extended = self._goes_less_far(snapshot.facts)
            if not extended:
                _check_identity(path, snapshot.facts, self.identity)
            else:
                reason = self._against(path, snapshot.facts, position)
                if reason is not None:
                    continue  # an older one may do
            return self._begin(snapshot, position, extended), int(snapshot.facts["iterations"])
        if reason is not None:
            raise reason
        return START, 0

    def _begin(self, snapshot: Snapshot, position: tuple[int, int], extended: bool) -> Begin:
        places = {name: a for name, a in snapshot.arrays.items() if not name.startswith(OUTSIDE)}
        if self.checkpoints.outside is not None:
            start = len(OUTSIDE)
            state = {name[start:]: a for name, a in snapshot.arrays.items() if name.startswith(OUTSIDE)}
            self.checkpoints.outside.restore(state)
        found = json.loads(snapshot.facts["found"])
        if extended:
            places = extending.lengthened(self.compiled.loops, places, {**self.bounds, **found, **self._limit})
            found |= {name: limit for name, limit in self._limit.items() if name in found}
        return Begin(position, places, found)

    @property
    def _limit(self) -> dict[str, int]:
        """How far the run is to go."""
        assert self.dim.bound is not None
        return {self.dim.bound.name: self.bounds[self.dim.bound.name]}

    def _goes_less_far(self, facts: Mapping[str, str]) -> bool:
        ((bound, limit),) = self._limit.items()
        return bool(json.loads(facts.get("bounds", "{}")).get(bound, limit) < limit)

    def _against(
        self, path: Path, facts: Mapping[str, str], position: tuple[int, int]
    ) -> CheckpointMismatchError | None:
        """Why a run that was to go less far cannot go on from a checkpoint; one of another run raises."""
        ((bound, limit),) = self._limit.items()
        there = json.loads(facts["bounds"])
        wanted = {**self.identity, "bounds": json.dumps({**self.bounds, bound: there[bound]}, sort_keys=True)}
        for name, array in self.inputs.items():
            part = extending.beginning(self.compiled.graph, name, array, bound, there)
            wanted |= {} if part is None else {f"input {name}": snapshots.digest({name: processes.whole(part)}, {})}
        _check_identity(path, facts, wanted)
        before = f"the checkpoint {str(path)!r} is of a run with {bound} = {there[bound]}"
        if position[0] == len(self.units):
            return CheckpointMismatchError(
                f"{before} that has ended, and holds its results alone, so it cannot go on to {limit}",
                fix="keep the checkpoint before the last one, keep=2, or give this run another folder",
            )
        looker = extending.named(self.compiled.graph, extending.lookers(self.compiled.loops, bound, position, there))
        if looker is not None:
            return CheckpointMismatchError(
                f"{before}, and cannot go on to {limit}: up to there {looker[0]} depends on {bound}",
                fix=f"compute it without {bound}, from a number that is given, or give this run another folder",
                at=looker[1],
            )
        return None


def identity(
    program: str, backend: str, dim: Symbol, inputs: Mapping[str, Any], bounds: Mapping[str, int], seed: int
) -> dict[str, str]:
    """What a checkpoint must agree with to be continued: the program by its fingerprint, how it is run, and what on."""
    facts = {"format": FORMAT, "program": program, "backend": backend, "over": str(dim)}
    facts |= {"seed": str(seed), "bounds": json.dumps(dict(bounds), sort_keys=True)}
    for name in sorted(inputs):
        facts[f"input {name}"] = snapshots.digest({name: processes.whole(inputs[name])}, {})
    return facts


def fingerprint(compiled: Compiled) -> str:
    """A digest of what a program computes and in which order, host functions included; the same in every process."""
    places = [
        f"{p.name} {p.kind} {p.type.dtype} {', '.join(map(str, p.whole))}" for p in compiled.loops.places.values()
    ]
    hosts = identities(compiled.graph)
    whole = "\n".join([text.show(compiled.graph), show(compiled.loops), *places, *hosts])
    return hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()


def _stored(compiled: Compiled) -> set[str]:
    """The places that a run fills; an output may be an input as it is."""
    return {name for name, place in compiled.loops.places.items() if place.kind != "input"}


def _check_effects(compiled: Compiled, checkpoints: Checkpoints) -> None:
    if checkpoints.outside is not None:
        return
    for block in blocks_of(compiled.loops.body):
        for compute in block.body:
            function = compute.attributes["function"] if compute.op == "host" else None
            if function is not None and function.effect is not None:
                raise UnsupportedError(
                    f"the host function {function.name} has an effect, and checkpoints do not know what it keeps",
                    fix="give Checkpoints an object with save() and restore(state): outside=...",
                    at=compute.at,
                )


def _check_identity(path: Path, have: Mapping[str, str], want: Mapping[str, str]) -> None:
    """Raise if a checkpoint belongs to another run; the first difference is named."""
    for key in dict.fromkeys([*want, *(k for k in have if k.startswith("input "))]):
        if have.get(key) == want.get(key):
            continue
        raise CheckpointMismatchError(
            f"the checkpoint {str(path)!r} belongs to another run: {_difference(key, have.get(key), want.get(key))}",
            fix="call the program as before, or give this run another folder; nothing was changed",
        )


def _difference(key: str, there: str | None, here: str | None) -> str:
    if key == "program":
        return f"its program has the fingerprint {(there or 'none')[:8]}, this one {(here or 'none')[:8]}"
    if key == "bounds" and there is not None and here is not None:
        old, new = json.loads(there), json.loads(here)
        name = next(n for n in {**old, **new} if old.get(n) != new.get(n))
        return f"{name} is {old.get(name)} there and {new.get(name)} here"
    if key.startswith("input "):
        return f"the input {key.removeprefix('input ')!r} has other values"
    return f"{key} is {there} there and {here} here"
