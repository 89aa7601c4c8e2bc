"""Pictures of programs and runs, drawn from the same objects that the simulator runs.

What a run looked like: a Chrome/Perfetto trace, a timeline, and one HTML page with everything.

Needs a run with `tracing=True`. A line of the timeline is a copy of a node; the copies of a node that has many are one
line, the darker the more of them are busy.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from polyrhythm.runtime.report.drawing import Box, Lane, graph, page, roofline, table, timeline
from polyrhythm.stream.bottlenecks import bottleneck
from polyrhythm.stream.dims import shape_text
from polyrhythm.stream.errors import StreamError
from polyrhythm.stream.graph import Node, Program, connections
from polyrhythm.stream.metrics import measure
from polyrhythm.stream.simulate import NodeReport, Run

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


_KINDS = {"linear_load": "load", "random_load": "load", "linear_store": "store", "random_store": "store"}
_KINDS |= {"map": "compute", "accum": "compute", "scan": "compute"}
_COLOURS = {"load": "#4c78a8", "store": "#54a24b", "compute": "#f58518", "route": "#b0a8b9"}
_COPIES = 8


def chrome_trace(run: Run) -> dict[str, Any]:
    """The run as a trace that Perfetto and chrome://tracing open; a cycle is shown as a microsecond.

    >>> from polyrhythm.stream import Program, map_tiles, simulate, source, static
    >>> run = simulate(Program(map_tiles("exp", source("x", [1.0], (static(1),)))), tracing=True)
    >>> chrome_trace(run)["traceEvents"][-1]["dur"]
    1
    """
    number = {name: place for place, name in enumerate(dict.fromkeys(r.node.name for r in run.reports))}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": place, "args": {"name": name}} for name, place in number.items()
    ]
    for r in _traced(run):
        own = {"ph": "X", "name": r.node.operator.label, "pid": number[r.node.name], "tid": r.copy}
        events.extend({**own, "ts": start, "dur": end - start} for start, end in r.intervals)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_chrome_trace(run: Run, path: Path) -> None:
    """Write the trace of a run as JSON."""
    path.write_text(json.dumps(chrome_trace(run)))


def timeline_svg(run: Run, *, width: int = 1000, most_lines: int = 60) -> str:
    """The run as a picture: one line a copy of a node, or a node of many copies; the busiest of each kind.

    >>> from polyrhythm.stream import Program, map_tiles, simulate, source, static
    >>> run = simulate(Program(map_tiles("exp", source("x", [1.0], (static(1),)))), tracing=True)
    >>> timeline_svg(run).startswith("<svg")
    True
    """
    groups: dict[int, list[NodeReport]] = {}
    for report in _traced(run):
        if report.intervals:
            groups.setdefault(report.node.order, []).append(report)
    lanes = []
    for reports in groups.values():
        node = reports[0].node
        kind = _KINDS.get(node.operator.label, "route")
        grouped = len(reports) > _COPIES
        for part in [reports] if grouped else [[report] for report in reports]:
            share = sum(report.busy for report in part) / (len(part) * max(run.cycles, 1))
            name = f"{node.name} ×{len(part)}" if grouped else part[0].name
            lanes.append(Lane(name, kind, [report.intervals for report in part], share))
    title = f"{run.cycles:,} cycles, compute utilisation {run.utilisation:.1%}"
    return timeline(lanes, run.cycles, title, _COLOURS, most_lines, width)


def report(run: Run, title: str = "Stream program") -> str:
    """A run as one HTML page: what bounds it, timeline, metrics, roofline, graph, nodes and FIFOs.

    >>> from polyrhythm.stream import Program, map_tiles, simulate, source, static
    >>> run = simulate(Program(map_tiles("exp", source("x", [1.0], (static(1),)))), tracing=True)
    >>> '<section id="roofline">' in report(run)
    True
    """
    metrics = measure(run.program, run.hardware)
    values = metrics.evaluate(run.bindings)
    fifos = sorted(run.fifos, key=lambda fifo: -fifo.stalled)[:40]
    sections = {
        "bottleneck": f"<pre>{escape(str(bottleneck(run)))}</pre>",
        "timeline": timeline_svg(run),
        "metrics": table(
            ("metric", "value", "formula"), [(n, f"{v:,}", str(getattr(metrics, n))) for n, v in values.items()]
        ),
        "roofline": roofline_svg({title: run}),
        "graph": program_svg(run.program),
        "nodes": table(
            ("node", "copies", "busy", "FLOPs"),
            [(name, copies, f"{busy:.1%}", f"{flops:,}") for name, copies, busy, flops in node_utilisation(run)],
        ),
        "fifos": table(
            ("FIFO", "depth", "high water", "writer waited", "reader waited"),
            [(f.name, f.depth, f.high_water, f"{f.stalled:,}", f"{f.starved:,}") for f in fifos],
        )
        + (
            f"<p>{len(run.fifos) - len(fifos)} FIFOs whose writers waited less are left out.</p>"
            if len(run.fifos) > 40
            else ""
        ),
    }
    return page(title, sections)


def node_utilisation(run: Run) -> list[tuple[str, int, float, int]]:
    """For every node: name, copies, the share of all cycles its copies were busy on average, and its FLOPs.

    >>> from polyrhythm.stream import Program, map_tiles, simulate, source, static
    >>> node_utilisation(simulate(Program(map_tiles("exp", source("x", [1.0], (static(1),))))))
    [('x', 1, 0.0, 0), ('exp', 1, 1.0, 4)]
    """
    found: dict[int, tuple[str, int, float, int]] = {}
    for report in run.reports:
        name, copies, busy, flops = found.get(report.node.order, (report.node.name, report.node.copies, 0.0, 0))
        share = report.busy / (max(run.cycles, 1) * copies)
        found[report.node.order] = (name, copies, busy + share, flops + report.flops)
    return list(found.values())


def _traced(run: Run) -> Sequence[NodeReport]:
    if run.reports and run.cycles and not any(report.intervals for report in run.reports):
        raise StreamError("this run kept no intervals", fix="simulate with tracing=True")
    return run.reports
