"""Streams, nodes and programs: what an operator builds.

There is no global graph: a stream knows the node that produces it, and a `Program` walks back from its ends. A node
may stand for several identical copies (the experts of a layer, the regions of an accelerator); its streams then have
as many copies. A stream has one reader at run time; where the user reads it more than once the program inserts a
Broadcast.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from polyrhythm.source import Source, here
from polyrhythm.stream.dims import Shape, shape_text
from polyrhythm.stream.errors import OpenFeedback
from polyrhythm.stream.expr import Expr, as_expr
from polyrhythm.stream.types import Element

if TYPE_CHECKING:
    from polyrhythm.stream.engine import Process, Steps

_creation_order = itertools.count()


class Operator:
    """What a node does: its run-time steps and its share of the metrics, all per copy.

    The defaults are those of an operator without traffic, memory or arithmetic.
    """

    label: ClassVar[str]
    virtual: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """An operator is called like its class."""
        words = re.findall("[A-Z][a-z]*", cls.__name__.replace("OffChip", ""))
        cls.label = "_".join(words).lower()

    def run(self, process: Process) -> Steps:
        """The steps of one copy."""
        raise NotImplementedError

    def off_chip(self, node: Node, burst: int) -> Expr:
        """Bytes moved to or from off-chip memory; every tile row rounded up to `burst` bytes."""
        return as_expr(0)

    def on_chip(self, node: Node, paper: bool) -> Expr:
        """Bytes of on-chip memory, by the accounting of the published figures or by the paper's formulae."""
        return as_expr(0)

    def flops(self, node: Node) -> Expr:
        """Floating-point operations."""
        return as_expr(0)

    @property
    def computes(self) -> bool:
        """Whether the node owns arithmetic units."""
        return False


@dataclass(frozen=True)
class Port:
    """The type of one output of a node. `role` picks the depth of its FIFO in `Hardware`."""

    shape: Shape
    element: Element
    copies: int = 1
    role: str = ""


@dataclass(frozen=True, eq=False)
class Node:
    """An operator applied to streams."""

    operator: Operator
    inputs: tuple[Stream, ...]
    outputs: tuple[Port, ...]
    name: str
    copies: int
    source: Source
    order: int = field(default_factory=lambda: next(_creation_order))

    def __repr__(self) -> str:
        return f"<{self.name}: {self.operator.label} at {self.source}>"


@dataclass(frozen=True)
class Stream:
    """One output of a node.

    >>> from polyrhythm.stream import source, static
    >>> print(source("numbers", [1, 2], (static(2),)))
    numbers: [2] of tile[1,1] f32
    """

    node: Node
    port: int = 0

    @property
    def _port(self) -> Port:
        return self.node.outputs[self.port]

    @property
    def shape(self) -> Shape:
        """The dims, outermost first."""
        return self._port.shape

    @property
    def rank(self) -> int:
        """The number of dims below the outermost."""
        return len(self.shape) - 1

    @property
    def element(self) -> Element:
        """The type of the elements."""
        return self._port.element

    @property
    def copies(self) -> int:
        """How many parallel streams this stands for."""
        return self._port.copies

    @property
    def role(self) -> str:
        """The role that decides the depth of the FIFO."""
        return self._port.role

    @property
    def name(self) -> str:
        """The name of the node, with the port where there are several."""
        return self.node.name if len(self.node.outputs) == 1 else f"{self.node.name}.{self.port}"

    def __str__(self) -> str:
        copies = f" x{self.copies}" if self.copies > 1 else ""
        return f"{self.name}: {shape_text(self.shape)} of {self.element}{copies}"


def make_node(
    operator: Operator,
    inputs: tuple[Stream, ...],
    outputs: Iterable[Port],
    name: str | None,
    copies: int | None = None,
) -> Node:
    """A new node; it has as many copies as its first input unless told otherwise."""
    if copies is None:
        copies = inputs[0].copies if inputs else 1
    return Node(operator, inputs, tuple(outputs), name or operator.label, copies, here())


def make(
    operator: Operator,
    inputs: Iterable[Stream],
    outputs: Iterable[Port],
    name: str | None,
    copies: int | None = None,
) -> tuple[Stream, ...]:
    """A new node, and its output streams."""
    streams = tuple(inputs)
    node = make_node(operator, streams, outputs, name, copies)
    return tuple(Stream(node, port) for port in range(len(node.outputs)))


@dataclass(frozen=True)
class Broadcast(Operator):
    """Copies every token to all readers; waits until all of them have space."""

    def run(self, process: Process) -> Steps:
        channel = process.inputs[0][0]
        targets = [c for group in process.outputs for c in group]
        while (token := process.take(channel) if channel.items else (yield from process.get(channel))) is not None:
            for target in targets:
                yield from process.wait_space(target)
            for target in targets:
                yield from process.put(target, token[0], token[1])


class Program:
    """Everything that the given ends depend on, ready to be measured, checked or run.

    >>> from polyrhythm.stream import source, static, map_tiles
    >>> numbers = source("numbers", [1.0, 2.0], (static(2),))
    >>> program = Program(map_tiles("add", numbers, numbers))
    >>> [node.name for node in program.nodes]
    ['numbers', 'broadcast numbers', 'add']
    """

    def __init__(self, *ends: Stream | Node) -> None:
        self.ends = ends
        self.nodes: list[Node] = []
        self.drains: list[Stream] = []
        self._reads: dict[tuple[Node, int], Stream] = {}
        self._taps: dict[Stream, Stream] = {}
        original = _walk(ends)
        readers: dict[Stream, list[tuple[Node, int] | None]] = {}
        for node in original:
            for index, stream in enumerate(connections(node)):
                readers.setdefault(stream, []).append((node, index))
        for end in ends:
            if isinstance(end, Stream):
                readers.setdefault(end, []).append(None)
        for node in original:
            self.nodes.append(node)
            for port in range(len(node.outputs)):
                stream = Stream(node, port)
                self._connect(stream, readers.get(stream, [None]))

    def _connect(self, stream: Stream, users: list[tuple[Node, int] | None]) -> None:
        """Give every reader its own stream; None stands for the outside world, which drains what nobody reads."""
        views: tuple[Stream, ...] = (stream,)
        if len(users) > 1:
            ports = [Port(stream.shape, stream.element, stream.copies, stream.role) for _ in users]
            views = make(Broadcast(), (stream,), ports, f"broadcast {stream.name}")
            self.nodes.append(views[0].node)
            self._reads[(views[0].node, 0)] = stream
        for user, view in zip(users, views, strict=True):
            if user is None:
                self.drains.append(view)
                self._taps[stream] = view
            else:
                self._reads[user] = view

    def read_by(self, node: Node, index: int) -> Stream:
        """The stream that a node reads as its input `index`, after Broadcasts were inserted."""
        return self._reads[(node, index)]

    def tap(self, end: Stream) -> Stream:
        """The stream that is drained to show what an end carried."""
        return self._taps[end]

    def __str__(self) -> str:
        """The program as text, one line a node.

        >>> from polyrhythm.stream import source, static
        >>> print(Program(source("numbers", [1.0], (static(1),))))
        numbers = source() : [1] of tile[1,1] f32
        """
        lines = []
        for node in self.nodes:
            reads = ", ".join(self._reads[(node, i)].name for i in range(len(connections(node))))
            types = "; ".join(f"{shape_text(p.shape)} of {p.element}" for p in node.outputs)
            copies = f" x{node.copies}" if node.copies > 1 else ""
            lines.append(f"{node.name} = {node.operator.label}({reads}){copies} : {types or 'sink'}")
        return "\n".join(lines)


def connections(node: Node) -> tuple[Stream, ...]:
    """The inputs of a node; for a feedback stream, the source it was connected to."""
    back = getattr(node.operator, "connected", None)
    if back is None:
        return node.inputs
    if not back:
        raise OpenFeedback(
            f"the feedback stream {node.name} was never connected",
            fix=f"call {node.name}.connect(stream) before the program is built",
            at=node.source,
        )
    return (back[0],)


def _walk(ends: Iterable[Stream | Node]) -> list[Node]:
    """All nodes that the ends depend on, in the order in which they were created."""
    seen: set[Node] = set()
    stack = [end.node if isinstance(end, Stream) else end for end in ends]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(stream.node for stream in connections(node))
    return sorted(seen, key=lambda node: node.order)
