"""Pictures as SVG from plain data: graphs, timelines, rooflines, points; and pages of HTML made of them.

Nothing here knows what is drawn. Positions are in pixels. A timeline merges bars that a pixel cannot tell apart, so its
size does not grow with the time it shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log10
from typing import Any

_BOX_WIDTH, _BOX_HEIGHT, _ACROSS, _DOWN = 168, 40, 186, 74
_LINE, _LEFT, _TOP = 16, 190, 46
_STYLE = (
    "body{font-family:sans-serif;margin:1em 2em}td,th{padding:2px 10px;text-align:right;max-width:60em}"
    "td:first-child,th:first-child,#metrics td{text-align:left}section{overflow-x:auto}nav a{margin-right:1em}"
)


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 11) -> str:
    """Words at a place.

    >>> text(1, 2, "a < b")
    '<text x="1" y="2" text-anchor="start" font-size="11">a &lt; b</text>'
    """
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'


def dot(x: float, y: float, title: str, filled: bool = True) -> str:
    """A point of a plot."""
    fill = "#e45756" if filled else "none"
    place = f'cx="{x:.1f}" cy="{y:.1f}" r="4" stroke="#e45756" fill="{fill}"'
    return f"<circle {place}><title>{escape(title)}</title></circle>"


def svg(width: float, height: float, shapes: Sequence[str]) -> str:
    """Shapes on a white page."""
    size = f'width="{width:.0f}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    return "\n".join([head, f'<rect {size} fill="white"/>', *shapes, "</svg>"])


@dataclass(frozen=True)
class Box:
    """A node of a graph, and the boxes before it that it reads; of those in `back`, through a loop."""

    title: str
    detail: str
    fill: str
    reads: tuple[int, ...] = ()
    back: tuple[int, ...] = ()


def graph(boxes: Sequence[Box]) -> str:
    """Boxes below all that they read, near its columns; loops are dashed.

    >>> graph([Box("x", "", "white"), Box("y", "", "white", (0,))]).count("<path")
    1
    """
    places: list[tuple[int, int]] = []
    used: dict[int, set[int]] = {}
    for box in boxes:
        above = [places[other] for other in box.reads]
        line = 1 + max((at[0] for at in above), default=-1)
        wanted = round(sum(at[1] for at in above) / len(above)) if above else 0
        taken = used.setdefault(line, set())
        free = min(set(range(len(boxes))) - taken, key=lambda column: (abs(column - wanted), column))
        taken.add(free)
        places.append((line, free))
    shapes = [
        _arrow(places[other], places[number], other in box.back)
        for number, box in enumerate(boxes)
        for other in sorted({*box.reads, *box.back})
    ]
    for box, (line, column) in zip(boxes, places, strict=True):
        x, y = 10 + column * _ACROSS, 10 + line * _DOWN
        size = f'width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}"'
        shapes.append(f'<rect x="{x}" y="{y}" {size} rx="6" fill="{box.fill}" stroke="#777"/>')
        shapes.append(text(x + _BOX_WIDTH / 2, y + 17, box.title, "middle"))
        detail = box.detail if len(box.detail) < 38 else box.detail[:36] + "…"
        shapes.append(text(x + _BOX_WIDTH / 2, y + 31, detail, "middle", 8))
    height, width = (1 + max(place[side] for place in places) for side in (0, 1))
    return svg(20 + _ACROSS * width, 20 + _DOWN * height, shapes)


def _arrow(start: tuple[int, int], end: tuple[int, int], back: bool) -> str:
    x1, y1 = 10 + start[1] * _ACROSS + _BOX_WIDTH / 2, 10 + start[0] * _DOWN + _BOX_HEIGHT
    x2, y2 = 10 + end[1] * _ACROSS + _BOX_WIDTH / 2, 10 + end[0] * _DOWN
    style = 'stroke="#c44" stroke-dasharray="4 3"' if back else 'stroke="#777"'
    bend = (y1 + y2) / 2
    return f'<path d="M{x1:.0f} {y1} C{x1:.0f} {bend:.0f} {x2:.0f} {bend:.0f} {x2:.0f} {y2}" fill="none" {style}/>'


@dataclass(frozen=True)
class Lane:
    """A line of a timeline: the busy intervals of one thing, or of several that are shaded by how many are busy."""

    name: str
    kind: str
    members: Sequence[Sequence[tuple[int, int]]]
    share: float


def timeline(lanes: Sequence[Lane], end: int, title: str, colours: Mapping[str, str], most: int, width: int) -> str:
    """Lanes over time. Of more than `most`, those of each kind that are busiest are shown, and it says so.

    >>> lanes = [Lane(name, "load", [[(0, 4)]], share) for name, share in (("a", 0.5), ("b", 0.1))]
    >>> "1 of 2 lines" in timeline(lanes, 8, "8 cycles", {"load": "blue"}, 1, 600)
    True
    """
    kept = _busiest(lanes, most)
    scale = (width - _LEFT - 60) / max(end, 1)
    height = _TOP + _LINE * len(kept) + 24
    shapes = [text(4, 16, title, size=12)]
    for place, (kind, colour) in enumerate(colours.items()):
        x = 4 + 70 * place
        shapes += [f'<rect x="{x}" y="24" width="10" height="10" fill="{colour}"/>', text(x + 14, 33, kind, size=10)]
    if len(kept) < len(lanes):
        left = f"{len(lanes) - len(kept)} of {len(lanes)} lines, those busy least, are left out"
        shapes.append(text(4 + 70 * len(colours), 33, left, size=10))
    for place, lane in enumerate(kept):
        shapes.extend(_bars(lane, _TOP + place * _LINE, scale, colours[lane.kind], width))
    for tenth in range(0, 11, 2):
        shapes.append(text(_LEFT + tenth / 10 * end * scale, height - 6, f"{end * tenth // 10:,}", "middle", 10))
    return svg(width, height, shapes)


def _busiest(lanes: Sequence[Lane], most: int) -> list[Lane]:
    """The busiest lanes of each kind in turn, as many as there may be, in their order."""
    by_kind: dict[str, list[int]] = {}
    for place in sorted(range(len(lanes)), key=lambda place: -lanes[place].share):
        by_kind.setdefault(lanes[place].kind, []).append(place)
    ranked = sorted((rank, place) for places in by_kind.values() for rank, place in enumerate(places))
    return [lanes[place] for place in sorted(place for _, place in ranked[:most])]


def _bars(lane: Lane, y: int, scale: float, colour: str, width: int) -> Iterator[str]:
    yield text(_LEFT - 6, y + 11, lane.name if len(lane.name) < 34 else lane.name[:32] + "…", "end", 10)
    yield text(width - 4, y + 11, f"{lane.share:.0%}", "end", 10)
    changes: dict[int, int] = {}
    for intervals in lane.members:
        for start, end in merged_intervals(intervals, 1 / scale):
            changes[start] = changes.get(start, 0) + 1
            changes[end] = changes.get(end, 0) - 1
    count = since = 0
    many = len(lane.members)
    for at in sorted(changes):
        if count and (at - since) * scale >= 0.5 / many:
            bar = f'x="{_LEFT + since * scale:.1f}" y="{y + 2}" width="{max((at - since) * scale, 0.5):.1f}"'
            title = f"{escape(lane.name)}: {since} to {at}" + (f", {count} of {many}" if many > 1 else "")
            shade = f' fill-opacity="{count / many:.2f}"' if count < many else ""
            yield f'<rect {bar} height="{_LINE - 4}" fill="{colour}"{shade}><title>{title}</title></rect>'
        count, since = count + changes[at], at


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


def roofline(points: Mapping[str, tuple[float, float]], peak: float, bandwidth: float) -> str:
    """Points (FLOPs a byte, FLOPs a cycle) under a roof, both axes logarithmic.

    >>> roofline({"exp": (1.0, 50.0)}, peak=100, bandwidth=10).count("<circle")
    1
    """
    ridge = peak / bandwidth
    low = min([ridge, *(x for x, _ in points.values() if x)]) / 4
    high = max([ridge, *(x for x, _ in points.values())]) * 4
    floor = min([peak, *(y for _, y in points.values() if y)]) / 10

    def at(x: float, y: float) -> tuple[float, float]:
        across = log10(max(x, low) / low) / log10(high / low)
        up = log10(max(y, floor) / floor) / log10(2 * peak / floor)
        return round(60 + 480 * across, 1), round(330 - 300 * up, 1)

    roof = " ".join(f"{x},{y}" for x, y in (at(low, low * bandwidth), at(ridge, peak), at(high, peak)))
    shapes = [f'<polyline points="{roof}" fill="none" stroke="#4c78a8" stroke-width="2"/>']
    for name, (intensity, speed) in points.items():
        x, y = at(intensity, speed)
        shapes += [dot(x, y, name), text(x + 7, y + 4, f"{name}: {speed:,.0f} FLOPs a cycle")]
    shapes.append(text(300, 352, f"FLOPs a byte, {low:.3g} to {high:.3g}", "middle"))
    shapes.append(text(62, 24, f"peak {peak:,} FLOPs a cycle"))
    return svg(600, 360, shapes)


def scatter(points: Sequence[tuple[float, float, str, bool]], across: str, up: str) -> str:
    """Points from zero on, with titles; some are filled.

    >>> scatter([(1, 2, "a", True)], "cycles", "bytes").count("<circle")
    1
    """
    most = [max(values, default=1.0) or 1.0 for values in ([x for x, *_ in points], [y for _, y, *_ in points])]
    shapes = [dot(60 + 500 * x / most[0], 330 - 300 * y / most[1], title, filled) for x, y, title, filled in points]
    shapes.append(text(310, 352, f"{across}, 0 to {most[0]:,.0f}", "middle"))
    return svg(600, 360, [*shapes, text(60, 20, f"{up}, 0 to {most[1]:,.0f}")])


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table of HTML.

    >>> table(("a",), [("<b>",)])
    '<table><tr><th>a</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    lines = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>{lines}</table>"


def page(title: str, sections: Mapping[str, str]) -> str:
    """A page of HTML with sections and links to them.

    >>> '<section id="graph">' in page("A run", {"graph": ""})
    True
    """
    links = " ".join(f'<a href="#{name}">{name}</a>' for name in sections)
    body = "".join(f'<section id="{name}"><h2>{name}</h2>{part}</section>' for name, part in sections.items())
    head = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(title)}</title><style>{_STYLE}</style>"
    return f"{head}<h1>{escape(title)}</h1><nav>{links}</nav>{body}</html>"
