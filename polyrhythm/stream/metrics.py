"""Symbolic metrics: traffic, memory, work and operational intensity, before anything runs.

Every metric is a sum over the nodes, an expression over routing counts and lengths by name. Two accountings of on-chip
memory are kept: that of the published figures (an off-chip operator holds one tile) and the paper's (it holds two, and
a matrix unit holds weights and inputs). `active_only` leaves out the memory of copies that receive nothing, such as
experts without tokens. `fifo` counts what the FIFOs hold when they are full, which neither accounting does.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyrhythm.stream.copies import total
from polyrhythm.stream.dims import cardinality
from polyrhythm.stream.expr import Bindings, Expr, as_expr, positive
from polyrhythm.stream.graph import Node, Program, Stream
from polyrhythm.stream.hardware import Hardware

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
        present = _present(node) if active_only else as_expr(1)
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
    held = as_expr(0)
    for number, port in enumerate(node.outputs if not node.operator.virtual else ()):
        depth = hardware.depth(port.role, Stream(node, number).name)
        held = held + total(port.element.nbytes * depth, port.copies, node.copies)
    return held


def _present(node: Node) -> Expr:
    """1 for the copies of a replicated node that receive something. A node of its own is always there."""
    if node.copies == 1 or not node.inputs:
        return as_expr(1)
    return positive(cardinality(node.inputs[0].shape))
