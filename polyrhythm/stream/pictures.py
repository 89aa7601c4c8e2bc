"""Pictures of programs and runs, drawn from the same objects that the simulator runs."""

from __future__ import annotations

from polyrhythm.runtime.report.drawing import Box, graph, roofline
from polyrhythm.stream.dims import shape_text
from polyrhythm.stream.graph import Node, Program, connections
from polyrhythm.stream.simulate import Run

_FILLS = {
    "#eeeeee": ("source",),
    "#cfe0f3": ("linear_load", "random_load"),
    "#d5ecd0": ("linear_store", "random_store"),
    "#fde3c8": ("map",),
    "#f8d3d3": ("accum", "scan"),
    "#fff3b8": ("window",),
    "#e6daf2": ("partition", "reassemble", "eager_merge", "parallelize"),
}


def program_svg(program: Program) -> str:
    """A program as a graph, from sources at the top to stores at the bottom; feedback loops are dashed.

    >>> from polyrhythm.stream import map_tiles, source, static
    >>> "negate" in program_svg(Program(map_tiles("negate", source("x", [1.0], (static(1),)))))
    True
    """
    shown = [n for n in program.nodes if n.operator.label != "broadcast" and not n.operator.virtual]
    number = {node: place for place, node in enumerate(shown)}
    boxes = []
    for place, node in enumerate(shown):
        label, copies = node.operator.label, f" ×{node.copies}" if node.copies > 1 else ""
        detail = f"{label} {shape_text(node.outputs[0].shape) if node.outputs else ''}"
        fill = next((fill for fill, labels in _FILLS.items() if label in labels), "#f7f7f7")
        reads = [(number[other], back) for other, back in _producers(node)]
        ahead = tuple(other for other, back in reads if not back and other < place)
        boxes.append(Box(node.name + copies, detail, fill, ahead, tuple(other for other, back in reads if back)))
    return graph(boxes)


def _producers(node: Node) -> list[tuple[Node, bool]]:
    """The real nodes whose output a node reads, and whether through a feedback loop."""
    found: dict[Node, bool] = {}
    waiting = [(stream, False) for stream in node.inputs]
    while waiting:
        stream, back = waiting.pop()
        if stream.node.operator.virtual:
            loop = back or hasattr(stream.node.operator, "connected")
            waiting.extend((source, loop) for source in connections(stream.node))
        else:
            found[stream.node] = found.get(stream.node, False) or back
    return sorted(found.items(), key=lambda item: item[0].order)


def roofline_svg(runs: dict[str, Run]) -> str:
    """Runs of one accelerator under its roofline: FLOPs a cycle over FLOPs a byte, both logarithmic.

    >>> from polyrhythm.stream import OffChip, Program, linear_load, map_tiles, simulate
    >>> run = simulate(Program(map_tiles("exp", linear_load(OffChip("x", 4, 64), (1, 64), (4,)))))
    >>> roofline_svg({"exp": run}).count("<circle")
    1
    """
    points = {name: (run.flops / max(run.bytes_moved, 1), run.flops / max(run.cycles, 1)) for name, run in runs.items()}
    peak = max(run.allocated_flops for run in runs.values()) or 1
    return roofline(points, peak, next(iter(runs.values())).hardware.memory_bandwidth)
