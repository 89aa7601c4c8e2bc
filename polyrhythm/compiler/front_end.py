"""Gradients: from a graph with `grad` nodes to an ordinary graph."""

from collections.abc import Sequence
from dataclasses import replace

from polyrhythm.compiler.analysis.check import checked
from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.gradients.expand import expand_gradients, finished, has_gradients
from polyrhythm.compiler.gradients.regions import Region, plain_region, row_region, varying
from polyrhythm.compiler.gradients.segments import strip_mined
from polyrhythm.compiler.ir.graph import Checkpoint, Graph
from polyrhythm.errors import ProgressError, RecomputeError


def completed(graph: Graph) -> Graph:
    """A traced graph, checked and with every gradient worked out."""
    graph = checked(graph)
    if not has_gradients(graph):
        return finished(replace(graph, checkpoints=()))
    traced = graph
    graph, regions = _recomputed(graph)
    try:
        while has_gradients(graph):
            graph = _expanded(graph, regions)
    except ProgressError as error:
        rows = [c for c in traced.checkpoints if c.over is not None]
        if not rows:
            raise
        raise _uncut(traced, rows[0]) from error
    return finished(graph)


def _expanded(graph: Graph, regions: Sequence[Region]) -> Graph:
    try:
        return checked(expand_gradients(graph, regions=regions))
    except ProgressError:
        # Defined piece by piece, gradients read less, and may be seen not to depend on themselves.
        return checked(expand_gradients(graph, piecewise=True, regions=regions))


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
            stripped, region = strip_mined(graph, checkpoint)
            try:
                graph = checked(stripped)
            except ProgressError as error:
                raise _uncut(graph, checkpoint) from error
            regions.append(region)
    return replace(graph, checkpoints=()), regions


def _uncut(graph: Graph, checkpoint: Checkpoint) -> RecomputeError:
    return RecomputeError(
        f"{described(graph[checkpoint.node])} cannot be computed again in segments of {checkpoint.over}: a recurrence "
        "that it takes part in reads itself over a range, or at steps that are not a constant distance away",
        fix="mark it without over=, or read single steps at constant distances, as in h[t - 1]",
        at=graph[checkpoint.node].at,
    )


__all__ = ["completed"]
