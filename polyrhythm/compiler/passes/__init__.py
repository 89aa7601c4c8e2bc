"""Transformations of the graph: one per file, each legal by proof, all on by default.

`PASSES` is the order. A pass takes a graph and the notes to write into, and returns a graph of the same meaning;
leaving any of them out, which is for measurements, gives a slower program and never another result.
"""

from collections.abc import Callable, Collection

from polyrhythm.compiler.ir.graph import Graph
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.passes.accumulate import accumulate
from polyrhythm.compiler.passes.align import align
from polyrhythm.compiler.passes.carry import carry
from polyrhythm.compiler.passes.contract import contract_sums
from polyrhythm.compiler.passes.copies import propagate_copies
from polyrhythm.compiler.passes.dead import drop_dead
from polyrhythm.compiler.passes.joined import part_by_part
from polyrhythm.compiler.passes.lift import lift
from polyrhythm.compiler.passes.narrow import narrow
from polyrhythm.compiler.passes.notes import Note, Notes
from polyrhythm.compiler.passes.pairs import recompute_pairs
from polyrhythm.compiler.passes.predicate import predicate
from polyrhythm.compiler.passes.ranges import accumulate_ranges, products_first
from polyrhythm.compiler.passes.rename import renamed
from polyrhythm.compiler.passes.routes import multiply_all
from polyrhythm.compiler.passes.separate import separate
from polyrhythm.compiler.passes.share import share
from polyrhythm.compiler.passes.simplify import contracted_first, simplify
from polyrhythm.compiler.passes.skew import skew
from polyrhythm.compiler.passes.split import split
from polyrhythm.compiler.passes.states import states
from polyrhythm.compiler.passes.tables import one_table
from polyrhythm.compiler.passes.windows import windows
from polyrhythm.errors import UnsupportedError

Pass = Callable[[Graph, Notes], Graph]

PASSES: tuple[tuple[str, Pass], ...] = (
    ("dead", drop_dead),
    ("copies", propagate_copies),
    ("simplify", simplify),
    ("routes", multiply_all),
    ("windows", windows),
    ("narrow", narrow),
    ("share", share),
    ("contract", contract_sums),
    ("pairs", recompute_pairs),
    ("tables", one_table),
    ("ranges", accumulate_ranges),
    ("accumulate", accumulate),
    ("dead", drop_dead),
    ("lift", lift),
    ("simplify", simplify),
    ("copies", propagate_copies),
    ("dead", drop_dead),
    ("states", states),
    ("carry", carry),
    ("separate", separate),
    ("split", split),
    ("skew", skew),
    ("predicate", predicate),
    ("align", align),
)
"""Every pass by its name, in order; some run twice."""

BEFORE_GRADIENTS: tuple[tuple[str, Pass], ...] = (
    ("routes", multiply_all),
    ("joined", part_by_part),
    ("simplify", contracted_first),
    ("ranges", products_first),
)
"""What is done before gradients are worked out, so that they have its shape, by the name of the pass it belongs to."""

LATER = ("hoist", "fuse", "distribute", "tile", "mask", "unroll", "vector", "grow")
"""What is done after the graph: contractions leave recurrences (`schedule/hoisting.py`), operations become blocks
(`schedule/blocks.py`), what is not on the cycle of a recurrence leaves its loop (`schedule/groups.py`), loops go
over tiles (`schedule/tiles.py`), vectorised ones have masks at their edges (`loops/build.py`), short loops are written
out (`loops/unroll.py`), independent steps run at once and buffers grow with the steps (`loops/cost.py`,
`loops/growth.py`)."""

NAMES = (*dict.fromkeys(name for name, _ in (*PASSES, *BEFORE_GRADIENTS)), *LATER)
"""The names by which passes can be left out."""


def optimised(
    graph: Graph,
    without: Collection[str] = (),
    inspect: Callable[[str, Graph], None] | None = None,
    compiled_loops: bool = False,
    at_once: frozenset[Symbol] = frozenset(),
    tight: bool = False,
    rows: frozenset[Symbol] = frozenset(),
) -> tuple[Graph, tuple[Note, ...]]:
    """A checked graph after all passes but some, and what they did. `inspect` sees the graph after each.

    `compiled_loops` tells that the backend compiles loops, where a step costs no more than what it computes; the steps
    of the dims in `at_once` are to run together; `tight` says that there is a memory budget; to the bounds in `rows`
    goes the longest of rows that end each at a step of its own.
    """
    unknown = sorted(set(without) - set(NAMES))
    if unknown:
        raise UnsupportedError(f"there is no pass {unknown[0]!r}", fix=f"leave out any of {', '.join(NAMES)}")
    notes = Notes(compiled_loops=compiled_loops, at_once=at_once, tight=tight, rows=rows)
    for name, change in PASSES:
        if name not in without:
            notes.by = name
            graph = change(graph, notes)
            if inspect is not None:
                inspect(name, graph)
    return renamed(graph), tuple(notes)


__all__ = ["BEFORE_GRADIENTS", "NAMES", "PASSES", "Note", "optimised"]
