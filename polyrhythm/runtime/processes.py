"""Several processes that run one program together, as `jax.distributed` connects them.

Each has some of the devices of the mesh. Everything that a process does by itself has to be the same in all of them:
the program, the bounds, the seed and the arrays of NumPy that it is given, which are whole arrays in every process. At
the first call of a program that is compared, by digests. Only the first process shows progress and writes what is not
spread. Without `jax.distributed.initialize` there is one process, and nothing here asks JAX for anything.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from polyrhythm.errors import ShardingError
from polyrhythm.runtime.arrays import as_numpy


def count() -> int:
    """How many processes there are."""
    jax = sys.modules.get("jax")
    return jax.process_count() if jax is not None and jax.distributed.is_initialized() else 1


def index() -> int:
    """The number of this process, from 0 on."""
    return sys.modules["jax"].process_index() if count() > 1 else 0


def is_first() -> bool:
    """Whether this process speaks for all."""
    return index() == 0


def barrier(name: str) -> None:
    """Wait until all processes are here."""
    if count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)


def largest(*numbers: int) -> tuple[int, ...]:
    """The largest that any process has of each of some numbers, the same in all; all of them have to ask."""
    if count() == 1:
        return numbers
    from jax.experimental import multihost_utils

    every = np.asarray(multihost_utils.process_allgather(np.array(numbers, np.int32)))
    return tuple(every.reshape(-1, len(numbers)).max(0).tolist())


def is_elsewhere(value: Any) -> bool:
    """Whether some of an array is in the memory of other processes only."""
    return not getattr(value, "is_fully_addressable", True) and not value.sharding.is_fully_replicated


def whole(value: Any) -> np.ndarray:
    """An array as NumPy has it, wherever it is; all processes have to ask."""
    if not is_elsewhere(value):
        return as_numpy(value)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(value, tiled=True))


def check_agreement(program: str, bounds: Mapping[str, int], seed: int, arrays: Mapping[str, Any]) -> None:
    """Raise in every process if one has been given something else than the first."""
    if count() == 1:
        return
    _check({"program": program.encode()}, "another program than")
    _check({"bounds and seed": repr((sorted(bounds.items()), seed)).encode()}, "other bounds or another seed than")
    local = {name: _bytes(value) for name, value in sorted(arrays.items()) if not is_elsewhere(value)}
    _check({f"the input {name!r}": value for name, value in local.items()}, "other values than")


def _check(parts: Mapping[str, bytes], what: str) -> None:
    from jax.experimental import multihost_utils

    own = [np.frombuffer(hashlib.blake2b(part, digest_size=16).digest(), np.uint32) for part in parts.values()]
    if not own:
        return
    every = multihost_utils.process_allgather(np.stack(own))
    for process, theirs in enumerate(np.asarray(every)):
        for name, mine, first in zip(parts, theirs, every[0], strict=True):
            if not np.array_equal(mine, first):
                about = "" if name in ("program", "bounds and seed") else f" of {name}"
                raise ShardingError(
                    f"process {process} has {what} process 0{about}",
                    fix="give every process the same, or rows of its own: jax.make_array_from_process_local_data",
                )


def _bytes(value: Any) -> bytes:
    array = np.ascontiguousarray(as_numpy(value))
    return f"{array.dtype} {array.shape}".encode() + array.tobytes()
