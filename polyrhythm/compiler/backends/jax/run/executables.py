"""Compiled programs that survive the process without being traced again.

JAX's own cache is asked after tracing and lowering, which for a large model takes longer than all the rest. Here a
program is found by what it is traced from: the Loop IR as the backend has it, which part of it at which capacities, the
arguments, this package's own files, the version of JAX, and what the processor can do. A file that is damaged, or that
another user may have written, is not opened: the program is compiled anew. What calls the host, or runs on several
devices, is left to JAX's own persistent cache, in a folder of ours.

The folder is `$POLYRHYTHM_CACHE`, by default `~/.cache/polyrhythm`; set it to nothing to keep nothing. A cache that
the user has configured in JAX is left alone.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jaxlib

from polyrhythm.compiler.backends import kept
from polyrhythm.compiler.backends.jax.products import kernel, rows
from polyrhythm.compiler.backends.jax.run import watch
from polyrhythm.compiler.backends.native import folder
from polyrhythm.compiler.loops.ir import LoopProgram, blocks_of
from polyrhythm.compiler.loops.spilling import SpillFile


def place_of_jax() -> Path | None:
    """Where JAX keeps what it compiles, for each version of Python: newer ones compress in another way."""
    place = folder()
    return place and place / f"jax-python{sys.version_info.major}.{sys.version_info.minor}"


@lru_cache(1)
def use_cache() -> None:
    """Let JAX keep what it compiles from now on, unless the user has decided otherwise."""
    config = jax.config
    place = place_of_jax()
    configured = config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    if place is None or configured:
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written is no reason to fail
        return
    config.update("jax_compilation_cache_dir", str(place))
    # By default JAX keeps only what took a second to compile.
    config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@contextmanager
def no_cache() -> Iterator[None]:
    """Compile anew: what JAX has from its cache cannot be written to another file."""
    from jax.experimental.compilation_cache import compilation_cache

    before = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX decides only once whether there is a cache
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


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
    coded = any(compute.op == "dequantize" for block in blocks_of(program.body) for compute in block.body)
    # The kernel of codes can be called after this.
    return found and (f"{found[0]} {kernel.missing_packed()}" if coded else found[0])


def path_of(program: str, what: tuple[Any, ...], arguments: Any) -> Path | None:
    """Where a part of a program with a digest is kept; None if the user has decided for JAX's cache."""
    config: Any = jax.config
    place = place_of_jax()
    if place is None or not config.jax_enable_compilation_cache or config.jax_compilation_cache_dir != str(place):
        return None
    leaves, tree = jax.tree.flatten(arguments)
    shapes = [(leaf.shape, str(leaf.dtype), getattr(leaf, "weak_type", False)) for leaf in leaves]
    settings = sorted(config.values.items())
    whole = repr((program, what, shapes, str(tree), settings, _machine()))
    return place.parent / "executables" / hashlib.blake2b(whole.encode(), digest_size=20).hexdigest()


def read(content: bytes) -> tuple[Any, Any]:
    """The compiled program that a file holds, and what was kept with it."""
    from jax.experimental import serialize_executable

    executable, beside = pickle.loads(content)
    return serialize_executable.deserialize_and_load(*executable), beside


def write(made: tuple[Any, Any]) -> bytes:
    """A program that was compiled here, and not by JAX's cache: what comes from there cannot be written."""
    from jax.experimental import serialize_executable

    return pickle.dumps((serialize_executable.serialize(made[0]), made[1]))


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
