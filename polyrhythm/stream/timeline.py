"""What a run looked like: a Chrome/Perfetto trace, a timeline, and one HTML page with everything.

Needs a run with `tracing=True`. A line of the timeline is a copy of a node; the copies of a node that has many are one
line, the darker the more of them are busy.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from polyrhythm.runtime.report.drawing import Lane, page, table, timeline
from polyrhythm.stream.bottlenecks import bottleneck
from polyrhythm.stream.errors import StreamError
from polyrhythm.stream.metrics import measure
from polyrhythm.stream.pictures import program_svg, roofline_svg
from polyrhythm.stream.simulate import NodeReport, Run

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
