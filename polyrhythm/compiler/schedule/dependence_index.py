"""Dependences found by the blocks at their ends, so that nobody goes through all of them for a few."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from polyrhythm.compiler.ir.reads import components
from polyrhythm.compiler.schedule.dependences import Dependence

Numbered = tuple[int, Dependence]
"""A dependence and its place among all."""


class ByBlock:
    """Dependences by their reader and by their source; whatever is asked for comes in the order they were given."""

    def __init__(self, dependences: Sequence[Dependence]) -> None:
        self._into: dict[str, list[Numbered]] = {}
        self._out_of: dict[str, list[Numbered]] = {}
        for entry in enumerate(dependences):
            self._into.setdefault(entry[1].reader, []).append(entry)
            self._out_of.setdefault(entry[1].source, []).append(entry)

    def into(self, name: str) -> Iterator[Dependence]:
        """What a block waits for."""
        return (d for _, d in self._into.get(name, ()))

    def out_of(self, name: str) -> Iterator[Dependence]:
        """What waits for a block."""
        return (d for _, d in self._out_of.get(name, ()))

    @cached_property
    def circular(self) -> frozenset[str]:
        """The blocks of recurrences."""
        readers = {name: [d.reader for _, d in entries] for name, entries in self._out_of.items()}
        readers |= {name: [] for name in self._into if name not in readers}
        parts = components(readers)
        return frozenset(name for part in parts for name in part if len(part) > 1 or name in readers[name])

    def around(self, names: Iterable[str], after: bool) -> set[str]:
        """All that comes after some blocks, or before them."""
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            ends = {d.reader for d in self.out_of(name)} if after else {d.source for d in self.into(name)}
            waiting += ends - found
            found |= ends
        return found

    def inside(self, names: set[str]) -> list[Dependence]:
        """The dependences among some blocks."""
        return self.between(names, names)

    def between(self, sources: set[str], readers: set[str]) -> list[Dependence]:
        """The dependences from some blocks to others."""
        if len(sources) < len(readers):
            return _in_order(e for name in sources for e in self._out_of.get(name, ()) if e[1].reader in readers)
        return _in_order(e for name in readers for e in self._into.get(name, ()) if e[1].source in sources)


def _in_order(entries: Iterable[Numbered]) -> list[Dependence]:
    return [d for _, d in sorted(entries, key=lambda entry: entry[0])]
