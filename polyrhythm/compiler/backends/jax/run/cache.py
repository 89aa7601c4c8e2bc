"""XLA programs that survive the process: JAX's own persistent cache, in a folder of ours.

The folder is `$POLYRHYTHM_CACHE`, by default `~/.cache/polyrhythm`; set it to nothing to keep nothing. A cache that
the user has configured in JAX is left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import jax

from polyrhythm.compiler.backends.native import folder as folder


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
