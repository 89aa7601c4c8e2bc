"""Symbolic metrics: traffic, memory, work and operational intensity, before anything runs.

Every metric is a sum over the nodes, an expression over routing counts and lengths by name. Two accountings of on-chip
memory are kept: that of the published figures (an off-chip operator holds one tile) and the paper's (it holds two, and
a matrix unit holds weights and inputs). `active_only` leaves out the memory of copies that receive nothing, such as
experts without tokens. `fifo` counts what the FIFOs hold when they are full, which neither accounting does.

Observed sizes: reads the values of shape symbols off the tokens of a run.

Metrics are evaluated with routing counts and lengths by name. Where a run decides them (a dynamic dispatch, a ragged
address stream), the run itself says what they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyrhythm.stream.dims import Dim, Shape, cardinality
from polyrhythm.stream.expr import Bindings, Expr, Symbol, as_expr, from_atom, positive, total
from polyrhythm.stream.graph import Node, Program, Stream
from polyrhythm.stream.hardware import Hardware
from polyrhythm.stream.tokens import Token, decode

_NOTHING = as_expr(0)
_NAMES = ("off_chip", "off_chip_burst", "on_chip", "on_chip_paper", "flops", "fifo")


@dataclass(frozen=True)
class Metrics:
    """The metrics of a program as expressions; `evaluate` binds the symbols.

    >>> from polyrhythm.stream import BF16, OffChip, Program, linear_load
    >>> metrics = measure(Program(linear_load(OffChip("x", 8, 48, BF16), (1, 48), (8,))))
    >>> print(metrics.off_chip, metrics.off_chip_burst, metrics.on_chip, metrics.on_chip_paper)
    768 1024 96 192
    """

    off_chip: Expr
    off_chip_burst: Expr
    on_chip: Expr
    on_chip_paper: Expr
    flops: Expr
    fifo: Expr = _NOTHING

    def __str__(self) -> str:
        return "\n".join(f"{name}: {getattr(self, name)}" for name in _NAMES)

    def evaluate(self, bindings: Bindings) -> dict[str, int]:
        """All metrics as numbers.

        >>> from polyrhythm.stream.expr import symbol
        >>> Metrics(*[symbol("n") * k for k in range(5)]).evaluate({"n": 2})["flops"]
        8
        """
        return {name: int(getattr(self, name).evaluate(bindings)) for name in _NAMES}

    def intensity(self, bindings: Bindings, *, burst: bool = False) -> float:
        """Operational intensity: FLOPs for every byte of off-chip traffic.

        >>> from polyrhythm.stream.expr import symbol
        >>> n = symbol("n")
        >>> Metrics(n * 2, n * 4, n, n, n * 8).intensity({"n": 3})
        4.0
        """
        traffic = self.off_chip_burst if burst else self.off_chip
        moved = int(traffic.evaluate(bindings))
        return int(self.flops.evaluate(bindings)) / moved if moved else float("inf")


def measure(program: Program, hardware: Hardware | None = None, *, active_only: bool = False) -> Metrics:
    """The metrics of a program.

    >>> from polyrhythm.stream import map_tiles, source, static
    >>> x = source("x", [1.0, 2.0], (static(2),))
    >>> print(measure(Program(map_tiles("exp", x))).flops)
    8
    """
    hardware = hardware or Hardware()
    burst = hardware.burst
    sums = [as_expr(0)] * len(_NAMES)
    for node in program.nodes:
        operator = node.operator
        # Copies of a replicated node that receive nothing; a node of its own is always there.
        may_idle = active_only and node.copies > 1 and node.inputs
        present = positive(cardinality(node.inputs[0].shape)) if may_idle else as_expr(1)
        parts = (
            operator.off_chip(node, 1),
            operator.off_chip(node, burst),
            operator.on_chip(node, paper=False) * present,
            operator.on_chip(node, paper=True) * present,
            operator.flops(node),
            _fifo_bytes(node, hardware),
        )
        sums = [sum_ + total(part, node.copies) for sum_, part in zip(sums, parts, strict=True)]
    return Metrics(*sums)


def _fifo_bytes(node: Node, hardware: Hardware) -> Expr:
    """Bytes of the FIFOs that one copy of a node writes; what only renames a stream has none."""
    streams = [Stream(node, port) for port in range(0 if node.operator.virtual else len(node.outputs))]
    sizes = [s.element.nbytes * hardware.depth(s.role, s.name) for s in streams]
    return sum((total(n, s.copies, node.copies) for n, s in zip(sizes, streams, strict=True)), as_expr(0))


def _named(dim: Dim) -> Symbol | None:
    """The symbol that the size of a dim consists of, or None."""
    expression = dim.size if dim.total is None else dim.total
    symbols = expression.symbols()
    return next((found for found in symbols if expression == from_atom(found)), None)


def named_symbols(shape: Shape) -> set[Symbol]:
    """The symbols that are dims by themselves, whose values a run can observe.

    >>> from polyrhythm.stream.dims import dynamic, static
    >>> named_symbols((dynamic("n"), static(2)))
    {Symbol(name='n', size=None)}
    """
    return {symbol for dim in shape if (symbol := _named(dim)) is not None}


def dim_sizes(nested: Sequence[Any], depth: int) -> list[list[int]]:
    """For every dim, outermost first, its sizes at all outer indices.

    >>> dim_sizes([[1, 2], [3]], 2)
    [[2], [2, 1]]
    """
    sizes = [[len(nested)]]
    members: list[Any] = list(nested)
    for _ in range(depth - 1):
        sizes.append([len(member) for member in members])
        members = [item for member in members for item in member]
    return sizes


def observed_bindings(logs: Sequence[tuple[Shape, list[list[Token]]]]) -> dict[str, Any]:
    """The values of all symbols that are dims by themselves, from the tokens of each copy of each stream.

    >>> from polyrhythm.stream.dims import dynamic
    >>> observed_bindings([((dynamic("n"),), [[("x", 0), ("y", 0)]])])
    {'n': 2}
    """
    bindings: dict[str, Any] = {}
    for shape, copies in logs:
        sizes = [dim_sizes(decode(tokens, len(shape) - 1), len(shape)) for tokens in copies]
        for position, dim in enumerate(shape):
            name = _named(dim)
            if name is None or name.name in bindings:
                continue
            values = [sum(s[position]) if dim.is_ragged else max(s[position], default=0) for s in sizes]
            if dim.is_ragged:
                largest = max((max(s[position], default=0) for s in sizes), default=0)
                bindings.setdefault(f"max({dim.name})", largest)
            bindings[name.name] = values[0] if name.size is None else np.array(values)
    return bindings
