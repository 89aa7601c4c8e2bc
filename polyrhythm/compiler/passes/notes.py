"""What the passes did and what they refused, for `program.explain()`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from polyrhythm.compiler.ir.graph import Node
from polyrhythm.compiler.ir.terms import ZERO, Symbol, Term, product
from polyrhythm.source import Source


@dataclass(frozen=True)
class Note:
    """One thing that a pass did to a line of the user's, or refused to do.

    `operations` are computations saved at each point, `bytes` what need not be written any more, over all points.
    Either may be negative: a lift may keep more to compute faster. `launches` are operations that are no longer started
    by themselves at each point.
    """

    by: str
    rule: str
    at: Source | None
    what: str
    operations: int = 0
    bytes: Term = ZERO
    refused: bool = False
    launches: int = 0


@dataclass
class Notes:
    """The notes of a run of the passes; `by` is the pass that is running.

    `compiled_loops` says that the backend compiles loops, so that a step costs no more than what it computes. `at_once`
    are dims whose steps the user wants to run together: no pass makes them depend on each other. `tight` says that
    there is a memory budget. To the bounds in `rows` goes the longest of rows that end each at a step of its own.
    """

    by: str = ""
    compiled_loops: bool = False
    at_once: frozenset[Symbol] = frozenset()
    tight: bool = False
    rows: frozenset[Symbol] = frozenset()
    notes: list[Note] = field(default_factory=list)

    def __iter__(self) -> Iterator[Note]:
        return iter(self.notes)

    def did(self, rule: str, at: Source | None, what: str, operations: int = 0, bytes: Term = ZERO) -> None:
        """Something was changed."""
        self.notes.append(Note(self.by, rule, at, what, operations, bytes))

    def refused(self, rule: str, at: Source | None, why: str) -> None:
        """Something could have been changed, but was not."""
        note = Note(self.by, rule, at, why, refused=True)
        if note not in self.notes:
            self.notes.append(note)


def bytes_of(node: Node) -> Term:
    """The bytes that a node's values take over all its points, as far as that is one term."""
    extents = [dim.extent for dim in node.dims]
    return product([*extents, *node.shape]) * node.dtype.itemsize
