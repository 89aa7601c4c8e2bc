"""Before and after a pass: the graph obeys the grammar, and the oracle finds the same values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import polyrhythm as pr
from polyrhythm.compiler.front_end import completed
from polyrhythm.compiler.ir.graph import Graph
from polyrhythm.compiler.passes import Note, optimised
from polyrhythm.compiler.trace import trace
from polyrhythm.oracle import run
from tests.compiler.ir.verify import verify


def after(outputs: list[pr.Tensor], inputs: Mapping[str, Any], bounds: Any = None) -> tuple[Graph, list[Note]]:
    """The graph of some outputs after all passes, compared with the one before."""
    graph = completed(trace(outputs))
    changed, notes = optimised(graph, inspect=lambda _, part: verify(part))
    for want, have in zip(run(graph, inputs, bounds), run(changed, inputs, bounds), strict=True):
        np.testing.assert_allclose(np.asarray(have), np.asarray(want), rtol=1e-5, atol=1e-6)
    return changed, list(notes)


def rules(notes: list[Note]) -> list[str]:
    """The rules that applied, in order."""
    return [note.rule for note in notes if not note.refused]


def operations(graph: Graph) -> list[str]:
    """The operations of a graph, sorted, without those that cost nothing."""
    free = {"input", "constant", "index", "iota", "broadcast", "copy"}
    return sorted(d.op for node in graph for d in node.definitions if d.op not in free)
