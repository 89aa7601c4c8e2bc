"""Compiles a C file of this package for this machine and opens it; once, since what was built is kept.

A shared library is kept beside XLA's programs, if anything is to be kept: in `$POLYRHYTHM_CACHE`, by default
`~/.cache/polyrhythm`; set it to nothing to keep nothing. Its name is made of the source, the headers that it includes,
and what the compiler says of itself and of this processor, so another processor, another compiler or another version of
a header has its own. A digest beside it tells a whole file from a damaged one, which would end the process when opened;
a file that others own or may write is not opened either. Both are replaced. Without a compiler there is no library:
`Built.missing` says why, and programs say so in `explain()`.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FLAGS = ("-O2", "-march=native", "-std=gnu11", "-fPIC", "-shared")
SECONDS = 120


@dataclass(frozen=True)
class Built:
    """A library that was opened, or why there is none."""

    library: ctypes.CDLL | None
    missing: str | None = None


def folder() -> Path | None:
    """Where compiled programs are kept; None if they are not."""
    chosen = os.environ.get("POLYRHYTHM_CACHE")
    if chosen is None:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(base) / "polyrhythm"
    return Path(chosen) if chosen else None


def built(source: Path, *flags: str, header: bytes = b"") -> Built:
    """The library of a C file; `flags` go to the compiler, `header` is what it includes from elsewhere."""
    try:
        words = shlex.split(os.environ.get("CC") or "cc")
    except ValueError as error:
        return Built(None, f"$CC is not a command: {error}")
    compiler = shutil.which(words[0]) if words else None
    if compiler is None:
        return Built(None, "there is no C compiler (`cc`, or what $CC names)")
    try:
        return Built(_opened([compiler, *words[1:], *FLAGS, *flags], source, header))
    except subprocess.CalledProcessError as failure:
        said = [line for line in (failure.stderr or "").splitlines() if line.strip()]
        about = next((line for line in said if "error" in line), said[0] if said else str(failure))
        return Built(None, f"{compiler} failed on {source.name}: {about.strip()}")
    except (OSError, subprocess.TimeoutExpired) as failure:
        return Built(None, f"{source.name} could not be compiled or opened: {failure}")


def _opened(compiler: Sequence[str], source: Path, header: bytes) -> ctypes.CDLL:
    """The library that was kept, or a new one; one that cannot be opened is replaced."""
    name, kept = f"{source.stem}-{_key(compiler, source, header)}.so", folder()
    if kept is not None:
        with contextlib.suppress(OSError):
            if is_ours(kept / name):
                return ctypes.CDLL(str(kept / name))
    with tempfile.TemporaryDirectory(prefix="polyrhythm-") as place:
        fresh = Path(place, name)
        _run(*compiler, str(source), "-lm", "-o", str(fresh))
        library = ctypes.CDLL(str(fresh))  # a file may go once it is open
        if kept is not None:
            with contextlib.suppress(OSError):  # a folder that cannot be written is no reason to fail
                keep(fresh.read_bytes(), kept / name)
        return library


def give_back() -> None:
    """Return memory that was freed to the system, where the C library can: XLA frees hundreds of megabytes late."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def is_ours(path: Path) -> bool:
    """Whether a kept file is whole, and only this user can have written it."""
    about = path.stat()
    writable = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if writable or (hasattr(os, "geteuid") and about.st_uid != os.geteuid()):
        return False
    return _digest_of(path).read_text(encoding="ascii", errors="replace") == _digest(path.read_bytes())


def opened(path: Path) -> bytes | None:
    """What a file of the cache holds; None where there is none that is ours and whole."""
    return path.read_bytes() if path.exists() and is_ours(path) else None


def keep(content: bytes, path: Path) -> None:
    """Write a file of the cache, and its digest beside it: other processes see all of a file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _written(path, content)
    _written(_digest_of(path), _digest(content).encode())


def _written(path: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as copy:
        copy.write(content)
        copy.flush()
        os.fsync(copy.fileno())
    Path(copy.name).replace(path)


def _digest_of(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _key(compiler: Sequence[str], source: Path, header: bytes) -> str:
    """What a library depends on, in a few letters."""
    about = [_run(*compiler, "--version"), _run(*compiler, "-dM", "-E", "-x", "c", os.devnull)]
    return hashlib.sha256("\n".join((*compiler, *about)).encode() + source.read_bytes() + header).hexdigest()[:16]


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS).stdout
