"""Gradients: from a graph with `grad` nodes to an ordinary graph."""

from polyrhythm.autodiff.expand import expand_gradients, has_gradients
from polyrhythm.errors import ProgressError
from polyrhythm.ir.graph import Graph
from polyrhythm.lang.check import checked


def completed(graph: Graph) -> Graph:
    """A traced graph, checked and with every gradient worked out."""
    graph = checked(graph)
    while has_gradients(graph):
        try:
            graph = checked(expand_gradients(graph))
        except ProgressError:
            # Defined piece by piece, gradients read less, and may be seen not to depend on themselves.
            graph = checked(expand_gradients(graph, piecewise=True))
    return graph


__all__ = ["completed"]
