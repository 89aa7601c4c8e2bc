"""The dependence graph of a program as a picture, `program.graph`, and programs and plans as notebooks show them.

A tensor is a box, a read an arrow with its index; tensors of one part of a library stand together. Graphviz draws it:
the program `dot` has to be installed; the text of the picture needs nothing.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from polyrhythm.compiler.analysis.naming import brackets
from polyrhythm.compiler.ir.graph import Graph, Node
from polyrhythm.errors import UnsupportedError

if TYPE_CHECKING:
    from polyrhythm.runtime.memory import Memory
    from polyrhythm.runtime.program import Program

COLOURS = {"input": "#cfe3ff", "recurrent": "#ffd8c2", "": "#f1f3f5"}


@dataclass(frozen=True)
class Picture:
    """A dependence graph to look at.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> y = pr.recurrent((), (t,))
    >>> y[0] = 1.0
    >>> y[t + 1] = pr.tanh(y)
    >>> print(pr.compile(y[T - 1], backend="numpy").graph.dot)
    digraph program {
    ...
      "y" -> ...
    """

    dot: str

    @property
    def svg(self) -> str:
        """The picture, drawn by Graphviz."""
        program = shutil.which("dot")
        if program is None:
            raise UnsupportedError(
                "Graphviz draws the graph, and its program dot is not installed",
                fix="apt-get install graphviz, or brew install graphviz; program.graph.dot is the text",
            )
        drawn = subprocess.run([program, "-Tsvg"], input=self.dot, capture_output=True, text=True, check=True).stdout
        return drawn[drawn.index("<svg") :]

    def save(self, path: str | Path) -> Path:
        """Write the picture (`.svg`) or its text (`.dot`)."""
        target = Path(path)
        target.write_text(self.dot if target.suffix == ".dot" else self.svg, encoding="utf-8")
        return target

    def _repr_html_(self) -> str:
        return self.svg if shutil.which("dot") else f"<pre>{escape(self.dot)}</pre>"


def picture(graph: Graph) -> Picture:
    """The picture of a graph."""
    groups: dict[str, list[Node]] = {}
    for node in graph:
        groups.setdefault(node.at.library if node.at is not None else "", []).append(node)
    lines = ["digraph program {", '  node [shape=box, style="rounded,filled", fontname=monospace, fontsize=10]']
    lines += ["  edge [fontname=monospace, fontsize=8, color=gray40]"]
    for number, (name, nodes) in enumerate(groups.items()):
        boxes = [f"    {_box(node, node.name in graph.outputs)}" for node in nodes]
        inside = [
            f"  subgraph cluster_{number} {{",
            f"    label={_quoted(name)}",
            "    fontname=monospace",
            *boxes,
            "  }",
        ]
        lines += inside if name else boxes
    for node in graph:
        for access in dict.fromkeys(node.accesses):
            lines.append(f"  {_quoted(access.source)} -> {_quoted(node.name)} [label={_quoted(brackets(access))}]")
    return Picture("\n".join([*lines, "}"]) + "\n")


def _box(node: Node, output: bool) -> str:
    kind = "input" if node.is_input else "recurrent" if node.recurrent else ""
    operations = ", ".join(dict.fromkeys(definition.op for definition in node.definitions))
    text = "\n".join([f"{node.label or node.name}: {node.type}", operations if not kind else ""]).strip()
    edge = ", penwidth=2" if output else ""
    return f"{_quoted(node.name)} [label={_quoted(text)}, fillcolor={_quoted(COLOURS[kind])}{edge}]"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def program_html(program: Program) -> str:
    """A program in a notebook: what it takes and returns, its loops, its storage."""
    nodes = program.compiled.graph
    given = ", ".join(escape(f"{name}: {node.type}") for name, node in nodes.inputs.items()) or "nothing"
    names = program.wanted.names or (None,) * len(nodes.outputs)
    pairs = zip(names, nodes.outputs, strict=True)
    made = ", ".join(escape(f"{name or 'output'}: {nodes[output].type}") for name, output in pairs)
    return (
        f"<b>program</b> on {program.options.backend}: {given} &rarr; {made}"
        f"<details open><summary>schedule</summary><pre>{escape(program.schedule)}</pre></details>"
        f"<details><summary>storage</summary>{memory_html(program.memory)}</details>"
    )


def memory_html(memory: Memory) -> str:
    """A storage plan in a notebook, the largest first."""
    rows = "".join(
        f"<tr><td>{escape(place.name)}</td><td>{place.kind}</td><td>{escape(str(kind))}</td>"
        f"<td>{escape(str(size))} bytes</td><td>{escape('; '.join(place.folded))}</td><td>{escape(place.why)}</td></tr>"
        for place, kind, size in memory.rows()
    )
    heads = "".join(f"<th>{head}</th>" for head in ("place", "kind", "type", "size", "slots", "why"))
    return f"<table><tr>{heads}</tr>{rows}</table>"
