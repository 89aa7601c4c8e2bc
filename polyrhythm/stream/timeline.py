"""What a run looked like: a Chrome/Perfetto trace, and a timeline as SVG or HTML.

Needs a run with `tracing=True`. One line is one copy of a node; a bar is a time when it was busy. The SVG merges bars
that a pixel cannot tell apart, so its size does not grow with the length of the run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from polyrhythm.stream.errors import StreamError
from polyrhythm.stream.simulate import NodeReport, Run

_LINE, _LEFT, _TOP = 16, 170, 30
_COLOURS = {
    "linear_load": "#4c78a8",
    "random_load": "#4c78a8",
    "linear_store": "#54a24b",
    "random_store": "#54a24b",
    "map": "#f58518",
    "accum": "#e45756",
    "scan": "#e45756",
}
_OTHER = "#b0a8b9"


def chrome_trace(run: Run) -> dict[str, Any]:
    """The run as a trace that Perfetto and chrome://tracing open; a cycle is shown as a microsecond.

    >>> from polyrhythm.stream import Program, map_tiles, simulate, source, static
    >>> run = simulate(Program(map_tiles("exp", source("x", [1.0], (static(1),)))), tracing=True)
    >>> chrome_trace(run)["traceEvents"][-1]["dur"]
    1
    """
    events: list[dict[str, Any]] = []
    groups: dict[str, int] = {}
    for report in run.reports:
        if report.node.name not in groups:
            groups[report.node.name] = len(groups)
            named = {"name": report.node.name}
            events.append({"ph": "M", "name": "process_name", "pid": groups[report.node.name], "args": named})
    for report in _traced(run):
        for start, end in report.intervals:
            events.append(
                {
                    "ph": "X",
                    "name": report.node.operator.label,
                    "pid": groups[report.node.name],
                    "tid": report.copy,
                    "ts": start,
                    "dur": end - start,
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_chrome_trace(run: Run, path: Path) -> None:
    """Write the trace of a run as JSON."""
    path.write_text(json.dumps(chrome_trace(run)))


def timeline_svg(run: Run, *, width: int = 1000, most_lines: int = 60) -> str:
    """The run as a picture: one line a busy copy of a node, the busiest `most_lines` of them.

    >>> from polyrhythm.stream import Program, map_tiles, simulate, source, static
    >>> run = simulate(Program(map_tiles("exp", source("x", [1.0], (static(1),)))), tracing=True)
    >>> timeline_svg(run).startswith("<svg")
    True
    """
    reports = [report for report in _traced(run) if report.intervals]
    kept = set(sorted(range(len(reports)), key=lambda i: -reports[i].busy)[:most_lines])
    shown = [report for index, report in enumerate(reports) if index in kept]
    scale = (width - _LEFT - 60) / max(run.cycles, 1)
    height = _TOP + _LINE * len(shown) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="10">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="4" y="16" font-size="12">{run.cycles:,} cycles, compute utilisation {run.utilisation:.1%}</text>',
    ]
    for line, report in enumerate(shown):
        parts.extend(_line(report, _TOP + line * _LINE, scale, run.cycles, width))
    for tenth in range(0, 11, 2):
        x = _LEFT + tenth / 10 * run.cycles * scale
        parts.append(f'<text x="{x:.0f}" y="{height - 6}" text-anchor="middle">{run.cycles * tenth // 10:,}</text>')
    parts.append("</svg>")
    return "\n".join(parts)


def _line(report: NodeReport, y: int, scale: float, cycles: int, width: int) -> list[str]:
    colour = _COLOURS.get(report.node.operator.label, _OTHER)
    parts = [
        f'<text x="{_LEFT - 6}" y="{y + 11}" text-anchor="end">{escape(report.name)}</text>',
        f'<text x="{width - 4}" y="{y + 11}" text-anchor="end">{report.busy / max(cycles, 1):.0%}</text>',
    ]
    for start, end in merged_intervals(report.intervals, 1 / scale):
        bar = max((end - start) * scale, 0.5)
        parts.append(
            f'<rect x="{_LEFT + start * scale:.1f}" y="{y + 2}" width="{bar:.1f}" height="{_LINE - 4}" '
            f'fill="{colour}"><title>{escape(report.name)}: {start} to {end}</title></rect>'
        )
    return parts


def merged_intervals(intervals: Sequence[tuple[int, int]], gap: float) -> list[tuple[int, int]]:
    """Intervals in order, those closer than `gap` joined.

    >>> merged_intervals([(0, 2), (3, 5), (20, 21)], gap=4)
    [(0, 5), (20, 21)]
    """
    joined: list[tuple[int, int]] = []
    for start, end in intervals:
        if joined and start - joined[-1][1] < gap:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def timeline_html(run: Run, *, title: str = "Stream program") -> str:
    """The timeline, and a table of the utilisation of every node, as one HTML page.

    >>> from polyrhythm.stream import Program, map_tiles, simulate, source, static
    >>> run = simulate(Program(map_tiles("exp", source("x", [1.0], (static(1),)))), tracing=True)
    >>> "<table>" in timeline_html(run)
    True
    """
    rows = "\n".join(
        f"<tr><td>{escape(name)}</td><td>{copies}</td><td>{busy:.1%}</td><td>{flops:,}</td></tr>"
        for name, copies, busy, flops in node_utilisation(run)
    )
    return (
        f"<!doctype html><meta charset='utf-8'><title>{escape(title)}</title>"
        "<style>body{font-family:sans-serif}td,th{padding:2px 10px;text-align:right}"
        "td:first-child{text-align:left}</style>"
        f"<h1>{escape(title)}</h1>{timeline_svg(run)}"
        "<h2>Nodes</h2><table><tr><th>node</th><th>copies</th><th>busy</th><th>FLOPs</th></tr>"
        f"{rows}</table>"
    )


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
