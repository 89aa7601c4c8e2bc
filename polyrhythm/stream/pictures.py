"""Pictures of streams: how nested groups become tokens, and programs as graphs, as SVG.

Every picture comes from the same objects that the simulator runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from polyrhythm.stream.dims import shape_text
from polyrhythm.stream.graph import Node, Program, connections
from polyrhythm.stream.tokens import EMPTY, encode

_FILLS = {
    "source": "#eeeeee",
    "linear_load": "#cfe0f3",
    "random_load": "#cfe0f3",
    "linear_store": "#d5ecd0",
    "random_store": "#d5ecd0",
    "map": "#fde3c8",
    "accum": "#f8d3d3",
    "scan": "#f8d3d3",
    "window": "#fff3b8",
    "partition": "#e6daf2",
    "reassemble": "#e6daf2",
    "eager_merge": "#e6daf2",
    "parallelize": "#e6daf2",
}
_BOX_WIDTH, _BOX_HEIGHT, _ACROSS, _DOWN = 168, 40, 186, 74


def tokens_svg(nested: Sequence[Any], rank: int) -> str:
    """Nested groups as frames around their elements, and below them the tokens they are sent as.

    >>> tokens_svg([[1, 2], []], 1).startswith("<svg")
    True
    """
    shapes: list[str] = []
    middle, right = 14 + 11 * (rank + 1), 16

    def draw(item: Any, depth: int) -> None:
        nonlocal right
        if depth > rank:
            shapes.append(_text(right + 14, middle + 4, str(item), "middle"))
            right += 28
            return
        left, reach = right, 11 * (rank + 1 - depth) + 4
        right += 10
        for member in item:
            draw(member, depth + 1)
        right += 24 if not item else 10
        frame = f'<rect x="{left}" y="{middle - reach}" width="{right - left}" height="{2 * reach}" rx="6"'
        shapes.append(f'{frame} fill="none" stroke="#4c78a8"/>')
        right += 8

    for group in nested:
        draw(group, 1)
    line, x = middle + 11 * (rank + 1) + 22, 16
    for value, level in encode(list(nested), rank):
        text = ("EMPTY" if value is EMPTY else str(value)) + (f", S{level}" if level else "")
        width = 16 + 7 * len(text)
        fill = "#f8d3d3" if value is EMPTY else "#cfe0f3" if level == 0 else "#fde3c8"
        shapes.append(f'<rect x="{x}" y="{line}" width="{width}" height="22" rx="4" fill="{fill}" stroke="#777"/>')
        shapes.append(_text(x + width / 2, line + 15, text, "middle"))
        x += width + 6
    shapes.append(_text(x + 4, line + 15, "Done", "start"))
    return _svg(max(x + 48, right + 16), line + 34, shapes)


def program_svg(program: Program) -> str:
    """A program as a graph, from sources at the top to stores at the bottom; feedback loops are dashed.

    >>> from polyrhythm.stream import map_tiles, source, static
    >>> "negate" in program_svg(Program(map_tiles("negate", source("x", [1.0], (static(1),)))))
    True
    """
    shown = [n for n in program.nodes if n.operator.label != "broadcast" and not n.operator.virtual]
    places = _places(shown)
    height = 20 + _DOWN * (1 + max(line for line, _ in places.values()))
    width = 20 + _ACROSS * (1 + max(column for _, column in places.values()))
    shapes: list[str] = []
    for node in shown:
        for other, back in _producers(node):
            shapes.append(_arrow(places[other], places[node], back))
    for node in shown:
        shapes.extend(_box(node, *places[node]))
    return _svg(width, height, shapes)


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


def _places(nodes: Sequence[Node]) -> dict[Node, tuple[int, int]]:
    """Line and column of every node: below all its producers, near their columns."""
    places: dict[Node, tuple[int, int]] = {}
    used: dict[int, set[int]] = {}
    for node in nodes:
        above = [places[other] for other, back in _producers(node) if not back and other in places]
        line = 1 + max((at[0] for at in above), default=-1)
        wanted = round(sum(at[1] for at in above) / len(above)) if above else 0
        taken = used.setdefault(line, set())
        free = sorted(set(range(len(nodes))) - taken, key=lambda column: (abs(column - wanted), column))
        taken.add(free[0])
        places[node] = (line, free[0])
    return places


def _box(node: Node, line: int, column: int) -> list[str]:
    x, y = 10 + column * _ACROSS, 10 + line * _DOWN
    fill = _FILLS.get(node.operator.label, "#f7f7f7")
    copies = f" ×{node.copies}" if node.copies > 1 else ""
    shape = shape_text(node.outputs[0].shape) if node.outputs else ""
    detail = f"{node.operator.label} {shape}"
    return [
        f'<rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6" fill="{fill}" stroke="#777"/>',
        _text(x + _BOX_WIDTH / 2, y + 17, node.name + copies, "middle"),
        _text(x + _BOX_WIDTH / 2, y + 31, detail if len(detail) < 38 else detail[:36] + "…", "middle", 8),
    ]


def _arrow(start: tuple[int, int], end: tuple[int, int], back: bool) -> str:
    x1, y1 = 10 + start[1] * _ACROSS + _BOX_WIDTH / 2, 10 + start[0] * _DOWN + _BOX_HEIGHT
    x2, y2 = 10 + end[1] * _ACROSS + _BOX_WIDTH / 2, 10 + end[0] * _DOWN
    style = 'stroke="#c44" stroke-dasharray="4 3"' if back else 'stroke="#777"'
    bend = (y1 + y2) / 2
    return f'<path d="M{x1:.0f} {y1} C{x1:.0f} {bend:.0f} {x2:.0f} {bend:.0f} {x2:.0f} {y2}" fill="none" {style}/>'


def _text(x: float, y: float, text: str, anchor: str, size: int = 11) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _svg(width: float, height: float, shapes: Sequence[str]) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    return "\n".join([head, f'<rect {size} fill="white"/>', *shapes, "</svg>"])
