"""The C files of this folder, compiled for this machine with XLA's header and opened, each once."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import jax.ffi

from polyrhythm.compiler.backends import native
from polyrhythm.compiler.backends.native import Built as Built


@lru_cache
def built(name: str) -> Built:
    """The library of a C file of this folder."""
    include = jax.ffi.include_dir()
    header = Path(include, "xla", "ffi", "api", "c_api.h").read_bytes()
    return native.built(Path(__file__).with_name(name), f"-I{include}", header=header)
