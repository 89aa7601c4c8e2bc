"""What a host function is, as text that is the same in every process: a checkpoint must not go on with another one.

A function is its code, its defaults and what it closes over; a partial, a wrapper or a bound method also what it holds.
Numbers, text, arrays, and containers of them count by value. What an effect keeps (lists, arrays, objects that its
function closes over) is state, which `Checkpoints(outside=...)` saves, so it counts by its kind alone. A program looks
at its functions once, before its first run with checkpoints: a log that one fills does not make it another program.
An object that can be told apart from another neither by value nor by pickling is refused.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from polyrhythm.compiler.ir.graph import Graph, HostFunction
from polyrhythm.errors import UnsupportedError
from polyrhythm.source import Source


def identities(graph: Graph) -> Iterator[str]:
    """A line for every host function of a program."""
    for node in graph:
        for definition in node.definitions:
            if definition.op == "host":
                function: HostFunction = definition.attributes["function"]
                yield f"{function.name} {identity(function, definition.at)}"


def identity(function: HostFunction, at: Source | None = None) -> str:
    """A digest of a host function as it is now."""
    describer = _Describer(function.effect is not None)
    try:
        text = describer.text(function.call)
    except _Unknown as unknown:
        raise UnsupportedError(
            f"checkpoints cannot tell the host function {function.name} from another one: it uses {unknown}, which "
            "cannot be pickled",
            fix="use a plain function of arrays and numbers, or let its object define __reduce__",
            at=at,
        ) from None
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class _Unknown(Exception):
    """Something that cannot be told from its like."""


class _Describer:
    def __init__(self, keeps_state: bool) -> None:
        self.keeps_state = keeps_state
        self.seen: dict[int, int] = {}

    def text(self, thing: Any) -> str:
        if thing is None or isinstance(thing, (bool, int, float, complex, str, bytes, types.EllipsisType)):
            return repr(thing)
        if id(thing) in self.seen:
            return f"#{self.seen[id(thing)]}"
        self.seen[id(thing)] = len(self.seen)
        return f"{type(thing).__module__}.{type(thing).__qualname__}({self._inside(thing)})"

    def _inside(self, thing: Any) -> str:
        if isinstance(thing, types.FunctionType):
            cells = [cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell)]
            return self._all([thing.__code__, thing.__defaults__, thing.__kwdefaults__, *cells])
        if isinstance(thing, types.CodeType):
            # Not where it stands, nor its line numbers: moving a function does not change it.
            return self._all([thing.co_code, thing.co_names, thing.co_varnames, thing.co_freevars, *thing.co_consts])
        if isinstance(thing, types.MethodType):
            return self._all([thing.__func__, thing.__self__])
        if isinstance(thing, functools.partial):
            return self._all([thing.func, thing.args, thing.keywords])
        if isinstance(thing, (types.ModuleType, type, types.BuiltinFunctionType, np.ufunc, np.dtype)):
            name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", str(thing))
            return f"{getattr(thing, '__module__', '')}.{name}"
        if isinstance(getattr(thing, "__wrapped__", None), types.FunctionType):
            return self.text(thing.__wrapped__)
        if isinstance(thing, (tuple, frozenset)):
            return self._all(sorted(thing, key=repr) if isinstance(thing, frozenset) else thing)
        if self.keeps_state:
            return ""
        if isinstance(thing, list):
            return self._all(thing)
        if isinstance(thing, dict):
            return self._all([part for item in thing.items() for part in item])
        if isinstance(thing, (np.ndarray, np.generic)):
            array = np.ascontiguousarray(thing)
            return f"{array.dtype}{array.shape}{hashlib.blake2b(array.tobytes()).hexdigest()}"
        try:
            return hashlib.blake2b(pickle.dumps(thing, protocol=4)).hexdigest()
        except Exception:
            raise _Unknown(f"an object of {type(thing).__qualname__}") from None

    def _all(self, things: Any) -> str:
        return ", ".join(map(self.text, things))


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # a function that closes over a name of its own that has no value yet
        return False
    return True
