"""Snapshots of a run as files: one safetensors file each, written whole or not at all.

A file is written under another name, forced to the disk, and then renamed, so a process that is killed at any moment
leaves either the whole file or none under its name. The metadata carry a digest of everything in the file; a file
that was cut short or changed is refused. With several processes each writes the pieces of arrays that it has to a file
of its own, and then the first writes the file of the snapshot, which counts them: any number of processes can read
them. The folder is held by a lock while a run writes to it; the system lets go of it when the process ends, however it
ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from polyrhythm.runtime.errors import CheckpointDamagedError, CheckpointInUseError

PARTIAL = ".partial"
"""Suffix of a file that is still being written."""

_NAME = re.compile(r"iteration-(\d+)\.safetensors")


@dataclass(frozen=True)
class Snapshot:
    """Arrays by name, and what is to be known about them."""

    arrays: Mapping[str, np.ndarray]
    facts: Mapping[str, str]


def found(folder: Path) -> dict[int, Path]:
    """The snapshots of a folder by their number, oldest first.

    >>> found(Path("no such folder"))
    {}
    """
    if not folder.is_dir():
        return {}
    named = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in named if match))


def write(folder: Path, number: int, snapshot: Snapshot, part: str = "") -> Path:
    """Write a snapshot, or a part of one; when this returns it is on the disk."""
    target = folder / f"iteration-{number:09}{part}.safetensors"
    arrays = {name: np.asarray(array, order="C") for name, array in snapshot.arrays.items()}
    facts = {**snapshot.facts, "digest": digest(arrays, snapshot.facts)}
    partial = target.with_name(f".{target.name}{PARTIAL}")
    save_file(arrays, partial, metadata=facts)
    _forced(partial)
    os.replace(partial, target)
    _forced(folder)
    return target


def part_name(process: int, processes: int) -> str:
    """What the name of a part has behind that of the snapshot.

    >>> part_name(1, 4)
    '.part-1-of-4'
    """
    return f".part-{process}-of-{processes}"


def piece_name(name: str, start: Sequence[int]) -> str:
    """The name of a piece of an array that begins somewhere."""
    return f"{name}@{','.join(map(str, start))}"


def remove(path: Path) -> None:
    """Remove a snapshot, then its parts: without the first they mean nothing."""
    path.unlink()
    for part in path.parent.glob(f"{path.stem}.part-*.safetensors"):
        part.unlink()


def read(path: Path) -> Snapshot:
    """The snapshot in a file, checked; one of several processes is put together from its parts."""
    manifest = _read(path)
    if "parts" not in manifest.facts:
        return manifest
    count = int(manifest.facts["parts"])
    arrays: dict[str, np.ndarray] = dict(manifest.arrays)
    filled: dict[str, int] = {}
    for name, (dtype, shape) in json.loads(manifest.facts["shapes"]).items():
        arrays[name], filled[name] = np.zeros(shape, np.dtype(dtype)), 0
    for process in range(count):
        part = _read(path.with_name(f"{path.stem}{part_name(process, count)}.safetensors"))
        for key, piece in part.arrays.items():
            name, _, start = key.rpartition("@")
            begins = [int(n) for n in start.split(",") if n]
            arrays[name][tuple(slice(b, b + n) for b, n in zip(begins, piece.shape, strict=True))] = piece
            filled[name] += piece.size
    for name, size in filled.items():
        if size != arrays[name].size:
            raise _damaged(path, f"pieces of {name} are missing")
    facts = {key: value for key, value in manifest.facts.items() if key not in ("parts", "shapes")}
    return Snapshot(arrays, facts)


def _read(path: Path) -> Snapshot:
    """What is in one file, checked."""
    try:
        with safe_open(path, "numpy") as file:
            facts = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a mapping
    except (SafetensorError, OSError, ValueError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from error
    kept = facts.pop("digest", None)
    if kept is None:
        raise _damaged(path, "it has no digest")
    if kept != digest(arrays, facts):
        raise _damaged(path, "its contents are not those that were written")
    return Snapshot(arrays, facts)


def digest(arrays: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> str:
    """A digest of arrays and facts; it depends on nothing else.

    >>> digest({"x": np.zeros(2)}, {}) == digest({"x": np.zeros(2)}, {"seed": "1"})
    False
    """
    kinds = {name: [str(array.dtype), list(array.shape)] for name, array in arrays.items()}
    total = hashlib.blake2b(json.dumps([kinds, dict(facts)], sort_keys=True).encode(), digest_size=16)
    for name in sorted(arrays):
        total.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


class Held:
    """Holds a folder: nobody else writes to it meanwhile. What a killed process left half-written is removed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: IO[str] | None = None

    def __enter__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = open(self.folder / ".lock", "a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise CheckpointInUseError(
                f"another run is writing checkpoints to {str(self.folder)!r}",
                fix="wait until it has ended, or give each run a folder of its own",
            ) from None
        self._lock = lock
        for left in self.folder.glob(f".iteration-*{PARTIAL}"):
            left.unlink()

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            self._lock.close()


def _forced(path: Path) -> None:
    """Make sure that a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _damaged(path: Path, why: str) -> CheckpointDamagedError:
    older = [number for number, other in found(path.parent).items() if other.name < path.name]
    rest = f"go on from iteration {older[-1]}" if older else "begin anew"
    return CheckpointDamagedError(
        f"the checkpoint {str(path)!r} is damaged: {why}",
        fix=f"move the file away to {rest}; nothing was changed",
    )
