"""Gradients: from a graph with `grad` nodes to an ordinary graph."""

from dataclasses import replace

from polyrhythm.autodiff.expand import expand_gradients, finished, has_gradients
from polyrhythm.autodiff.regions import Region, plain_region, row_region, varying
from polyrhythm.autodiff.strips import strip_mined
from polyrhythm.errors import ProgressError
from polyrhythm.ir.graph import Graph
from polyrhythm.lang.check import checked


def completed(graph: Graph) -> Graph:
    """A traced graph, checked and with every gradient worked out."""
    graph = checked(graph)
    if not has_gradients(graph):
        return finished(replace(graph, checkpoints=()))
    graph, regions = _recomputed(graph)
    while has_gradients(graph):
        try:
            graph = checked(expand_gradients(graph, regions=regions))
        except ProgressError:
            # Defined piece by piece, gradients read less, and may be seen not to depend on themselves.
            graph = checked(expand_gradients(graph, piecewise=True, regions=regions))
    return finished(graph)


def _recomputed(graph: Graph) -> tuple[Graph, list[Region]]:
    """The graph made ready for its checkpoints, and what they cover."""
    regions: list[Region] = []
    cut: set[str] = set()
    for checkpoint in sorted(graph.checkpoints, key=lambda c: c.every is None):
        if checkpoint.node in cut or any(checkpoint.node in region.nodes for region in regions):
            continue
        if checkpoint.over is None:
            regions.append(plain_region(graph, checkpoint))
        elif checkpoint.every is None:
            regions.append(row_region(graph, checkpoint))
        else:
            cut |= varying(graph, checkpoint)
            graph, region = strip_mined(graph, checkpoint)
            graph = checked(graph)
            regions.append(region)
    return replace(graph, checkpoints=()), regions


__all__ = ["completed"]
