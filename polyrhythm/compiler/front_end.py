"""Gradients: from a graph with `grad` nodes to an ordinary graph."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from polyrhythm.compiler.analysis.check import checked
from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.gradients.expand import carriers, expand_gradients, finished, has_gradients
from polyrhythm.compiler.gradients.regions import Region, plain_region, row_region, varying
from polyrhythm.compiler.gradients.segments import strip_mined
from polyrhythm.compiler.ir.graph import Checkpoint, Graph, Node
from polyrhythm.compiler.ir.reads import cone
from polyrhythm.errors import CycleError, PolyrhythmError, ProgressError, RecomputeError
from polyrhythm.source import Source


def completed(graph: Graph, prepared: Callable[[Graph], Graph] = lambda graph: graph) -> Graph:
    """A traced graph, checked and with every gradient worked out, of a graph `prepared` for it."""
    graph = checked(graph)
    if not has_gradients(graph):
        return finished(replace(graph, checkpoints=()))
    graph = prepared(graph)
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
    except CycleError as error:
        raise _collected(graph, error) from error
    except ProgressError:
        # Defined piece by piece, gradients read less, and may be seen not to depend on themselves.
        try:
            return checked(expand_gradients(graph, piecewise=True, regions=regions))
        except (CycleError, ProgressError) as error:
            raise _collected(graph, error) from error


def _collected(graph: Graph, error: CycleError | ProgressError) -> PolyrhythmError:
    """The error of a gradient that needs what it updates, as later losses read the leaf through other tensors."""
    found = carriers(graph)
    if found is None:
        return error
    line, loss, leaves, between = found
    through, by = (" and ".join(map(described, nodes)) for nodes in (between, leaves))
    point = error.point if isinstance(error, CycleError) else None
    return type(error)(
        f"the gradient by {by} collects from the losses of later steps too, which read it through {through}; so it "
        "depends on values that are updated by it",
        fix=f"if nothing shall flow back through {through}, say so in the loss: pr.detach({_shown(between[0])})",
        at=line,
        point=point,
        also=_once(
            [
                *([("the loss is", loss)] if loss is not None else []),
                *(("through", node.at) for node in between if node.at is not None),
                *error.also,
            ],
            line,
        ),
    )


def _once(lines: Sequence[tuple[str, Source]], known: Source | None) -> tuple[tuple[str, Source], ...]:
    """Each line once, without the one that is shown already."""
    found: dict[Source, str] = {}
    for word, line in lines:
        if line != known:
            found.setdefault(line, word)
    return tuple((word, line) for line, word in found.items())


def _shown(node: Node) -> str:
    return node.label or node.name


def recomputed(graph: Graph, segments: Mapping[str, int]) -> Graph:
    """A traced graph with checkpoints of all recurrent tensors over some dims, as a user may ask for them."""
    marked = {checkpoint.node for checkpoint in graph.checkpoints}
    more = tuple(
        Checkpoint(node.name, symbol, segments[symbol.name])
        for node in graph
        if node.recurrent and node.name not in marked
        for symbol in node.symbols
        if symbol.name in segments
    )
    return replace(graph, checkpoints=(*graph.checkpoints, *more)) if more else graph


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
            own = varying(graph, checkpoint)
            cut |= own
            if _reads_own_range(graph, own):  # segments of it have an order, but no loops
                raise _uncut(graph, checkpoint)
            stripped, region = strip_mined(graph, checkpoint)
            try:
                graph = checked(stripped)
            except ProgressError as error:
                raise _uncut(graph, checkpoint) from error
            regions.append(region)
    return replace(graph, checkpoints=()), regions


def _reads_own_range(graph: Graph, names: frozenset[str]) -> bool:
    """Whether some value reads a range of steps of one that depends on it."""
    reads = ((name, access) for name in names for access in graph[name].accesses)
    return any(a.ranges and a.source in names and name in cone(graph, a.source) for name, a in reads)


def _uncut(graph: Graph, checkpoint: Checkpoint) -> RecomputeError:
    return RecomputeError(
        f"{described(graph[checkpoint.node])} cannot be computed again in segments of {checkpoint.over}: a recurrence "
        "that it takes part in reads itself over a range, or at steps that are not a constant distance away",
        fix="mark it without over=, or read single steps at constant distances, as in h[t - 1]",
        at=graph[checkpoint.node].at,
    )


__all__ = ["completed", "recomputed"]
