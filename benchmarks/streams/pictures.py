"""The pictures of docs/streams.md, drawn from running programs.

    python -m benchmarks.streams.pictures docs/pictures

draws how nested groups become tokens, stream programs as graphs, and timelines of runs. None can go out of date
silently: a test compares them with the files.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.streams.attention import attention_hardware, build_attention
from benchmarks.streams.moe import MoeShape, build_moe
from benchmarks.streams.traces import synthetic_routing
from polyrhythm.language.index import dim
from polyrhythm.language.inputs import input
from polyrhythm.language.recurrent import recurrent
from polyrhythm.runtime.report.drawing import svg, text
from polyrhythm.stream.directives import Policy, parallelize, tile
from polyrhythm.stream.graph import Program
from polyrhythm.stream.hardware import Hardware
from polyrhythm.stream.lowering import lower
from polyrhythm.stream.pictures import program_svg, timeline_svg
from polyrhythm.stream.simulate import simulate
from polyrhythm.stream.tokens import EMPTY, encode


def pictures() -> dict[str, str]:
    """All pictures of the documentation page, by file name.

    >>> sorted(pictures())[0]
    'streams-attention-coarse.svg'
    """
    routing = synthetic_routing((11, 2, 9, 10), 16)
    shape = MoeShape(hidden=256, intermediate=512, experts=4, chosen=2)
    layers = {
        "static": build_moe(shape, routing, [tile("token", 4), tile("intermediate", 64)]),
        "dynamic": build_moe(shape, routing, [tile("token", dynamic=True), tile("intermediate", 64)]),
    }
    drawn = {
        "streams-tokens.svg": tokens_svg([[[1, 2], [3]], [[4], []], []], 2),
        "streams-lowering.svg": program_svg(_recurrence()),
        "streams-moe-graph.svg": program_svg(layers["static"]),
    }
    for name, layer in layers.items():
        run = simulate(layer, Hardware(compute=512), functional=False, tracing=True)
        drawn[f"streams-moe-{name}.svg"] = timeline_svg(run, most_lines=28)
    lengths = np.array([700, 60, 90, 500, 80, 300, 40, 200]).tolist()
    policies: tuple[Policy, ...] = ("coarse", "interleave", "dynamic")
    for policy in policies:
        program = build_attention(lengths, [parallelize("request", 2, policy, block=4)])
        run = simulate(program, attention_hardware(), functional=False, tracing=True)
        drawn[f"streams-attention-{policy}.svg"] = timeline_svg(run, most_lines=12)
        if policy == "dynamic":
            drawn["streams-attention-graph.svg"] = program_svg(program)
    return drawn


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
            shapes.append(text(right + 14, middle + 4, str(item), "middle"))
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
        shown = ("EMPTY" if value is EMPTY else str(value)) + (f", S{level}" if level else "")
        width = 16 + 7 * len(shown)
        fill = "#f8d3d3" if value is EMPTY else "#cfe0f3" if level == 0 else "#fde3c8"
        shapes.append(f'<rect x="{x}" y="{line}" width="{width}" height="22" rx="4" fill="{fill}" stroke="#777"/>')
        shapes.append(text(x + width / 2, line + 15, shown, "middle"))
        x += width + 6
    shapes.append(text(x + 4, line + 15, "Done", "start"))
    return svg(max(x + 48, right + 16), line + 34, shapes)


def _recurrence() -> Program:
    """A running mean and the largest value of it so far, lowered."""
    t, T = dim("t")
    x = input("x", (), (t,))
    y = recurrent((), (t,), name="y")
    y[0] = x[0]
    y[t + 1] = 0.9 * y + 0.1 * x[t + 1]
    return lower(y[0 : t + 1].max(0), bounds={T: 6}).program


def main(folder: str) -> None:
    """Write all pictures."""
    for name, drawn in pictures().items():
        (Path(folder) / name).write_text(drawn + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
