"""Importing a module with a change in its source: the finder comes before all others, and leaves no compiled file."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType, ModuleType

from tests.drill.bugs import Bug

Change = Callable[[str], str | ast.Module]
"""The source of a module to what is compiled instead."""


class _Changed(SourceFileLoader):
    """Loads a module with one place of its source changed."""

    change: Change

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.change(self.get_data(self.path).decode()), self.path, "exec")


class _Finder(MetaPathFinder):
    def __init__(self, module: str, change: Change) -> None:
        self.module, self.change = module, change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        found = PathFinder.find_spec(fullname, path)
        assert found is not None
        assert found.origin is not None
        loader = _Changed(fullname, found.origin)
        loader.change = self.change
        places = found.submodule_search_locations
        return spec_from_file_location(fullname, found.origin, loader=loader, submodule_search_locations=places)


def changed(bug: Bug, source: str) -> str:
    """The source with the bug in it."""
    if source.count(bug.old) != 1:
        raise LookupError(f"{bug.name}: {bug.old!r} occurs {source.count(bug.old)} times in {bug.module}")
    return source.replace(bug.old, bug.new)


def inject(module: str, change: Change) -> None:
    """From now on the module is imported with the change; it must not have been imported before."""
    assert module not in sys.modules, f"{module} is imported already"
    sys.meta_path.insert(0, _Finder(module, change))
