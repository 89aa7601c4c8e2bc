"""Transformations of the graph: one per file, each legal by proof, all on by default."""

from polyrhythm.ir.graph import Graph
from polyrhythm.passes.contract import contract_sums
from polyrhythm.passes.copies import propagate_copies
from polyrhythm.passes.dead import drop_dead


def optimised(graph: Graph) -> Graph:
    """A checked graph after all passes."""
    return drop_dead(contract_sums(propagate_copies(drop_dead(graph))))


__all__ = ["optimised"]
