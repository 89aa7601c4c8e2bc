"""Gradients: from a graph with `grad` nodes to an ordinary graph."""

from polyrhythm.autodiff.expand import expand_gradients, has_gradients
from polyrhythm.ir.graph import Graph
from polyrhythm.lang.check import checked


def completed(graph: Graph) -> Graph:
    """A traced graph, checked and with every gradient worked out."""
    graph = checked(graph)
    while has_gradients(graph):
        graph = checked(expand_gradients(graph))
    return graph


__all__ = ["completed"]
