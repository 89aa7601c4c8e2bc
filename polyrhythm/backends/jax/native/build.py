"""Compiles a C file of this folder for this machine and opens it; once, since what was built is kept.

A shared library is kept beside XLA's programs, in a temporary folder if nothing is to be kept. Its name is made of the
source, XLA's header, and what the compiler says of itself and of this processor, so another processor, another compiler
or another version of JAX has its own. Without a compiler there is no library: `Built.missing` says why, and programs
say so in `explain()`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import jax.ffi

from polyrhythm.backends.jax.cache import folder

FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared")
SECONDS = 120


@dataclass(frozen=True)
class Built:
    """A library that was opened, or why there is none."""

    library: ctypes.CDLL | None
    missing: str | None = None


@lru_cache
def built(name: str) -> Built:
    """The library of a C file of this folder."""
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        return Built(None, "there is no C compiler (`cc`, or what $CC names)")
    source = Path(__file__).with_name(name)
    include = jax.ffi.include_dir()
    try:
        kept = _folder() / f"{source.stem}-{_key(compiler, source, include)}.so"
        if not kept.exists():
            _compile(compiler, source, include, kept)
        return Built(ctypes.CDLL(str(kept)))
    except subprocess.CalledProcessError as failure:
        said = (failure.stderr or "").strip().splitlines()
        return Built(None, f"{compiler} failed on {name}: {said[0] if said else failure}")
    except (OSError, subprocess.TimeoutExpired) as failure:
        return Built(None, f"{name} could not be compiled or opened: {failure}")


def _folder() -> Path:
    """A folder that can be written."""
    chosen = folder()
    if chosen is not None:
        try:
            chosen.mkdir(parents=True, exist_ok=True)
        except OSError:
            pass
        else:
            if os.access(chosen, os.W_OK):
                return chosen
    return Path(tempfile.mkdtemp(prefix="polyrhythm-"))


def _key(compiler: str, source: Path, include: str) -> str:
    """What a library depends on, in a few letters."""
    about = [_run(compiler, "--version"), _run(compiler, *FLAGS, "-dM", "-E", "-x", "c", os.devnull)]
    header = Path(include, "xla", "ffi", "api", "c_api.h").read_bytes()
    return hashlib.sha256("\n".join((*FLAGS, *about)).encode() + source.read_bytes() + header).hexdigest()[:16]


def _compile(compiler: str, source: Path, include: str, kept: Path) -> None:
    """Compile to a file of its own, then give it its name: other processes see all of it or nothing."""
    with tempfile.TemporaryDirectory(dir=kept.parent) as place:
        fresh = Path(place, kept.name)
        _run(compiler, *FLAGS, f"-I{include}", str(source), "-o", str(fresh))
        fresh.replace(kept)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS).stdout
