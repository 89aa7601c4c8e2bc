"""The C files of this folder, compiled for this machine with XLA's header, opened, and known to XLA, each once."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import jax.ffi

from polyrhythm.compiler.backends import native
from polyrhythm.compiler.backends.native import Built as Built

_registering = threading.Lock()


_begun: dict[str, Future[Built]] = {}


def ahead(*names: str) -> None:
    """Begin to compile C files of this folder that will be asked for, beside what else this process does."""
    missing = [name for name in names if name not in _begun]
    workers = ThreadPoolExecutor(len(missing)) if missing else None
    for name in missing:
        assert workers is not None
        _begun[name] = workers.submit(_made, name)


@lru_cache
def built(name: str) -> Built:
    """The library of a C file of this folder."""
    begun = _begun.get(name)
    return _made(name) if begun is None else begun.result()


def _made(name: str) -> Built:
    include, folder = jax.ffi.include_dir(), Path(__file__).parent
    header = b"".join(
        path.read_bytes() for path in (Path(include, "xla", "ffi", "api", "c_api.h"), *sorted(folder.glob("*.h")))
    )
    return native.built(Path(__file__).with_name(name), f"-I{include}", header=header)


def missing(source: str, *functions: str) -> str | None:
    """Why XLA cannot call functions of a C file; None if it can, from now on, each as `polyrhythm_` and its name."""
    with _registering:  # a target is registered once, whichever thread comes first
        return _missing(source, functions)


@lru_cache
def _missing(source: str, functions: tuple[str, ...]) -> str | None:
    found = built(source)
    if found.library is None:
        return found.missing
    for name in functions:
        if not hasattr(found.library, name):
            return f"the library of {source} has no {name}"
    for name in functions:
        handler = jax.ffi.pycapsule(getattr(found.library, name))
        jax.ffi.register_ffi_target(f"polyrhythm_{name}", handler, platform="cpu")
    return None
