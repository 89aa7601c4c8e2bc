"""What the compiler made, kept for later processes: a program is then neither ordered nor checked again.

Something is found by what it is made from, this package's own files, and what is asked of the machine. It is written
without what objects have found out about themselves, and lines of the user's code are numbers: a library's program, or
one that has moved in its file, is the same, and gets the lines of today. Functions of Python are known by their names
alone and may have changed, so nothing that holds one is kept. A file that is damaged, or that another user may have
written, is not opened.
"""

from __future__ import annotations

import copyreg
import hashlib
import io
import pickle
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeAlias, TypeVar

import numpy as np

from polyrhythm.compiler.backends.native import folder, keep, opened
from polyrhythm.compiler.ir.terms import Interned
from polyrhythm.compiler.ir.types import Array
from polyrhythm.source import Source

Made = TypeVar("Made")
Write: TypeAlias = Callable[[Made], bytes | None]

LEAST = 0.1
"""What took fewer seconds is not kept."""

KNOWN = ("polyrhythm", "numpy", "ml_dtypes", "builtins", "collections", "copyreg")
"""The packages whose classes and functions may be in what is kept: they have a version, or are in `machine`."""


class _Numbers:
    """Numbers for values, the same for equal ones and in every process: a value is its kind and the numbers in it."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], int] = {}
        self.by_identity: dict[int, int] = {}
        self.lines: dict[Source, int] = {}

    def of(self, value: Any) -> int:
        """The number of a value; `TypeError` for what cannot be kept."""
        found = self.by_identity.get(id(value))
        if found is None:
            key = self._key(type(value), value)
            found = self.by_identity[id(value)] = self.known.setdefault(key, len(self.known))
        return found

    def _key(self, kind: type, value: Any) -> tuple[Any, ...]:
        of = self.of
        if kind in (str, int, bool, bytes, type(None), float, complex, range, slice, type(...)):
            return kind.__name__, repr(value)
        if kind in (tuple, list):
            return kind.__name__, *map(of, value)
        if issubclass(kind, Interned):
            return _named(kind), *map(of, value.fields)
        if kind is Source:
            return "line", self.lines.setdefault(value, len(self.lines))
        if kind in (set, frozenset):
            return kind.__name__, *map(of, sorted(value, key=_order))
        if issubclass(kind, Mapping):
            return _named(kind), *(of(part) for item in value.items() for part in item)
        if issubclass(kind, (type, FunctionType, BuiltinFunctionType)):
            return "global", _named(value)
        if is_dataclass(kind):
            return _named(kind), *(of(getattr(value, own.name)) for own in fields(kind))
        if issubclass(kind, (np.ndarray, np.generic)):
            return "array", str(value.dtype), value.shape, value.tobytes()
        if issubclass(kind, np.dtype):
            return "dtype", str(value)
        if kind is Array:
            return "constant", of(value.value)
        raise TypeError(f"{kind} is not known")


def _order(value: Any) -> str:
    return value.sort_key() if isinstance(value, Interned) else repr(value)


def _named(value: Any) -> str:
    """The name of a class or a function that a later process finds unchanged."""
    module = value.__module__ or ""
    if module.partition(".")[0] not in KNOWN or "<" in value.__qualname__:
        raise TypeError(f"{value.__qualname__} may have changed")
    return f"{module}.{value.__qualname__}"


class _Writer(pickle.Pickler):
    """Writes values without what they have found out about themselves; lines are numbers."""

    def __init__(self, file: io.BytesIO, lines: dict[Source, int]) -> None:
        super().__init__(file, protocol=5)
        self.lines = lines

    def persistent_id(self, value: Any) -> int | None:
        if type(value) is not Source:
            return None
        if value not in self.lines:
            raise pickle.PicklingError("a line that is not in what this was made from")
        return self.lines[value]

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
            _named(value)
        elif is_dataclass(value):
            state = {own.name: getattr(value, own.name) for own in fields(value)}
            return copyreg.__newobj__, (type(value),), state  # type: ignore[attr-defined]
        return NotImplemented


class _Reader(pickle.Unpickler):
    """Reads what was written, with lines of today."""

    def __init__(self, file: io.BytesIO, lines: list[Source]) -> None:
        super().__init__(file)
        self.lines = lines

    def persistent_load(self, number: int) -> Source:
        return self.lines[number]


def digest(value: Any) -> tuple[str, dict[Source, int]] | None:
    """What tells a value apart from others, in every process, and its lines; None if it cannot be kept."""
    numbers = _Numbers()
    try:
        numbers.of(value)
    except (TypeError, RecursionError):
        return None
    return hashlib.blake2b(repr(list(numbers.known)).encode(), digest_size=20).hexdigest(), numbers.lines


def recalled(
    what: str, given: Any, make: Callable[[], Made], kept: Callable[[Made], Made | None] = lambda made: made
) -> Made:
    """What is made of something: what an earlier process has `kept` of it, if anything, or else as it is made now."""
    place = folder()
    known = digest((what, given, machine())) if place is not None else None
    if place is None or known is None:
        return make()
    name, lines = known

    def write(made: Made) -> bytes | None:
        stored = kept(made)
        return None if stored is None else _written(stored, lines)

    def read(content: bytes) -> Made:
        return _Reader(io.BytesIO(content), list(lines)).load()  # type: ignore[no-any-return]

    return kept_or_made(place / "compiled" / name, make, write, read, LEAST)[0]


def kept_or_made(
    path: Path | None, make: Callable[[], Made], write: Write[Made], read: Callable[[bytes], Made], least: float
) -> tuple[Made, bool]:
    """What a file of the cache holds, or else what is made, kept if that took so many seconds; and which of both."""
    if path is None:
        return make(), False
    with suppress(Exception):  # whatever is wrong with a file of a cache, it is made anew
        if (content := opened(path)) is not None:
            return read(content), True
    began = time.perf_counter()
    made = make()
    # A folder that cannot be written, or what cannot be, is no reason to fail.
    with suppress(OSError, pickle.PicklingError, AttributeError, TypeError, ValueError, RecursionError):
        if time.perf_counter() - began >= least and (content := write(made)) is not None:
            keep(content, path)
    return made, False


@lru_cache(1)
def machine() -> tuple[Any, ...]:
    """What the compiler itself depends on. Our own files count by their size and time."""
    package = Path(__file__).parents[2]
    files = sorted(path for path in package.rglob("*") if path.suffix in (".py", ".c", ".h"))
    ours = tuple((str(path), (stat := path.stat()).st_mtime_ns, stat.st_size) for path in files)
    return platform.python_version(), version("islpy"), version("numpy"), ours


def _written(value: Any, lines: dict[Source, int]) -> bytes:
    file = io.BytesIO()
    _Writer(file, lines).dump(value)
    return file.getvalue()
