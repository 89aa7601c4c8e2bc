"""How messages name tensors: by the user's own name, or else by the user's line.

A value without a name is called after the line that computes it, or after the part of a library that does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polyrhythm.compiler.ir.graph import Access, Node, Range
from polyrhythm.compiler.ir.terms import Symbol


def is_named(node: Node) -> bool:
    """Whether the user gave the node its name."""
    return node.label is not None


def described(node: Node) -> str:
    """The node as a user knows it.

    >>> from polyrhythm.compiler.ir.conditions import TRUE
    >>> from polyrhythm.compiler.ir.graph import Definition
    >>> from polyrhythm.compiler.ir.types import TensorType
    >>> import numpy as np
    >>> given = Definition(TRUE, "input", (), {"name": "x"})
    >>> described(Node("x_2", (), TensorType((), np.dtype("float32")), (given,), label="x"))
    'x'
    """
    if node.label is not None:
        return node.label
    if node.at is None:
        return node.name
    kind = "the recurrent tensor" if node.recurrent else "the value"
    return f"{kind} of {node.at.shown}"


def described_call(node: Node, steps: Iterable[int]) -> str:
    """A node at a point, or the call of a host function there."""
    at = ", ".join(f"{symbol} = {step}" for symbol, step in zip(node.symbols, steps, strict=True))
    hosts = [d.attributes["function"].name for d in node.definitions if d.op == "host"]
    what = f"the call of {hosts[0]}" if hosts else described(node)
    return f"{what} at {at}" if at else what


def brackets(access: Access) -> str:
    """The index of a read as it is written, `[t - 1]` or `[0:t + 1]`."""
    parts = []
    for step in access.steps:
        if isinstance(step, Range):
            stop = step.start + step.length * step.step
            parts.append(f"{step.start}:{stop}" + (f":{step.step}" if step.step != 1 else ""))
        else:
            parts.append(str(step))
    return f"[{', '.join(parts)}]" if parts else ""


def read(access: Access, source: Node) -> str:
    """A read, for a sentence that goes on to name its source."""
    return f"{source.label}{brackets(access)}" if is_named(source) else f"the index {brackets(access)}"


def point(node: Node, values: Mapping[Symbol, int]) -> str:
    """The steps of a point of a node, as an index."""
    return f"[{', '.join(str(values[symbol]) for symbol in node.symbols)}]" if node.symbols else ""
