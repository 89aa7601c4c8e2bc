"""Compiled programs that survive the process without being traced again.

JAX's own cache is asked after tracing and lowering, which for a large model takes longer than all the rest. Here a
program is found by what it is traced from: the Loop IR as the backend has it, which part of it at which capacities, the
arguments, this package's own files, the version of JAX, and what the processor can do. A file that is damaged, or that
another user may have written, is not opened: the program is compiled anew. What calls the host, or runs on several
devices, is left to JAX's cache.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jaxlib

from polyrhythm.compiler.backends import kept
from polyrhythm.compiler.backends.jax.products import kernel, rows
from polyrhythm.compiler.backends.jax.run import watch
from polyrhythm.compiler.backends.jax.run.cache import folder, place_of_jax
from polyrhythm.compiler.backends.native import is_ours, keep
from polyrhythm.compiler.loops.ir import LoopProgram, blocks_of
from polyrhythm.compiler.loops.spilling import SpillFile

LEAST = 0.3
"""Programs that took fewer seconds are not kept."""


def digest(program: LoopProgram) -> str | None:
    """What tells a program apart from others, in every process; None if it cannot be kept.

    Where in the user's code it was defined makes no difference.
    """
    single = program.sharding is None and jax.device_count() == 1 and jax.default_backend() == "cpu"
    if folder() is None or not single or any(block.host for block in blocks_of(program.body)):
        return None
    if any(isinstance(place.spill, SpillFile) for place in program.places.values()):
        return None  # the number of an open file is in it
    found = kept.digest(program)
    return None if found is None else found[0]


def key_of(program: str, what: tuple[Any, ...], arguments: Any) -> str | None:
    """The name under which a part of a program with a digest is kept; None if the user has decided for JAX's cache."""
    config: Any = jax.config
    place = place_of_jax()
    if place is None or not config.jax_enable_compilation_cache or config.jax_compilation_cache_dir != str(place):
        return None
    leaves, tree = jax.tree.flatten(arguments)
    shapes = [(leaf.shape, str(leaf.dtype), getattr(leaf, "weak_type", False)) for leaf in leaves]
    settings = sorted(config.values.items())
    whole = repr((program, what, shapes, str(tree), settings, _machine()))
    return hashlib.blake2b(whole.encode(), digest_size=20).hexdigest()


def load(key: str) -> tuple[Any, Any] | None:
    """The compiled program that is kept under a name, and what was kept with it."""
    from jax.experimental import serialize_executable

    path = _path(key)
    try:
        if not path.exists() or not is_ours(path):
            return None
        executable, beside = pickle.loads(path.read_bytes())
        return serialize_executable.deserialize_and_load(*executable), beside
    except Exception:  # whatever is wrong with a file of a cache, it is compiled anew
        return None


def store(key: str, compiled: Any, beside: Any) -> None:
    """Keep a program that was compiled here, and not by JAX's cache: what comes from there cannot be written."""
    from jax.experimental import serialize_executable

    with suppress(OSError, ValueError, TypeError):  # a folder that cannot be written, a program that cannot be kept
        keep(pickle.dumps((serialize_executable.serialize(compiled), beside)), _path(key))


def _path(key: str) -> Path:
    place = folder()
    assert place is not None
    return place / "executables" / key


@lru_cache(1)
def _machine() -> tuple[Any, ...]:
    """All that an executable depends on beside its program. The kernels that it may call can be called after this."""
    flags = ""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        flags = next(line for line in lines if line.startswith(("flags", "Features")))
    there = kernel.missing(), rows.available(), watch.available()
    compilers = jax.__version__, jaxlib.__version__, os.environ.get("XLA_FLAGS"), os.cpu_count()
    return *compilers, there, flags, kept.machine()
