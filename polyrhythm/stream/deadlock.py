"""Deadlocks and the FIFO lint.

A run deadlocks when nothing can move. The report follows who waits for whom until it meets a process again, and names
that cycle and the full FIFOs on it. The lint looks for the usual cause before anything runs: a fork whose branches meet
again, where one branch holds back more tokens than the FIFOs of the other can keep.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyrhythm.stream.dims import cardinality
from polyrhythm.stream.engine import Channel, Engine, Process
from polyrhythm.stream.errors import Deadlock
from polyrhythm.stream.graph import Node, Program, Stream, connections
from polyrhythm.stream.hardware import Hardware


def report_deadlock(engine: Engine) -> Deadlock:
    """The error that describes why an engine stopped."""
    stuck = [process for process in engine.processes if not process.finished]
    cycle = _cycle(stuck)
    full = _full(cycle) or _full(stuck)
    steps = " -> ".join(f"{p.name} ({_reason(p)})" for p in cycle)
    names = ", ".join(dict.fromkeys(f"{c.name} (depth {c.capacity})" for c in full)) or "none"
    fix = "give one of the full FIFOs more depth (Hardware.fifo_depths by name or role), or buffer the faster branch"
    inputs = [stream for process in cycle for stream in process.node.inputs]
    unprimed = [loop.name for loop in inputs if getattr(loop.node.operator, "initial", None) == ()]
    if not full and unprimed:
        fix = f"prime the loop: feedback({unprimed[0]!r}, ..., initial=[...])"
    found = Deadlock(
        f"deadlock at cycle {max(process.clock for process in stuck)}: {steps} -> {cycle[0].name}\n"
        f"  full FIFOs: {names}",
        fix=fix,
        at=cycle[0].node.source,
    )
    found.fifos = tuple(dict.fromkeys(c.name.split("[")[0] for c in full))
    return found


def _full(processes: list[Process]) -> list[Channel]:
    return [channel for p in processes for channel in p.waits_for[1] if p.waits_for[0] == "space"]


def _reason(process: Process) -> str:
    kind, channels = process.waits_for
    return f"waits for {kind} of {', '.join(c.name for c in channels)}" if channels else f"waits for {kind}"


def _blocker(process: Process) -> Process | None:
    kind, channels = process.waits_for
    for channel in channels:
        other = channel.reader if kind == "space" else channel.writer
        if other is not None and not other.finished:
            return other
    return None


def _cycle(stuck: list[Process]) -> list[Process]:
    """The processes that wait for each other in a ring; the whole chain when there is no ring."""
    path: list[Process] = []
    current: Process | None = stuck[0]
    while current is not None and current not in path:
        path.append(current)
        current = _blocker(current)
    return path[path.index(current) :] if current is not None else path


@dataclass(frozen=True)
class FifoWarning:
    """A fork and join whose branches are skewed deeper than the FIFOs allow."""

    fork: Node
    join: Node
    skew: int
    depth: int

    def __str__(self) -> str:
        return (
            f"{self.fork.name} -> {self.join.name}: one branch holds {self.skew} tokens back, "
            f"the other keeps {self.depth} (at {self.join.source})"
        )


def held_back(node: Node) -> int | None:
    """How many input tokens a node takes before it sends its first one; None when only a run can tell."""
    inner = len(node.inputs[0].shape) - len(node.outputs[0].shape) if node.inputs and node.outputs else 0
    if node.operator.label in ("accum", "bufferize"):
        return cardinality(node.inputs[0].shape[-inner:]).constant
    return int(not getattr(node.operator, "outermost", False))


def lint(program: Program, hardware: Hardware | None = None) -> list[FifoWarning]:
    """Fork-joins whose branches are skewed deeper than their FIFOs.

    >>> from polyrhythm.stream import accum, expand, map_tiles, promote, source, static
    >>> x = source("x", [[1.0] * 8], (static(1), static(8)))
    >>> mean = expand(promote(accum("add", x), 0), x, 1)
    >>> for warning in lint(Program(map_tiles("subtract", x, mean))):
    ...     print(str(warning).split(" (")[0])
    x -> expand: one branch holds 8 tokens back, the other keeps 2
    x -> subtract: one branch holds 8 tokens back, the other keeps 2
    """
    hardware = hardware or Hardware()
    reach: dict[Node, dict[Node, tuple[int, int]]] = {}
    warnings: list[FifoWarning] = []
    for node in program.nodes:
        merged: dict[Node, tuple[int, int]] = {}
        branches = [] if hasattr(node.operator, "connected") else connections(node)
        for index in range(len(branches)):
            stream = program.read_by(node, index)
            for fork, (hold, keep) in _through(stream, reach, hardware).items():
                if fork in merged:
                    warnings.extend(_skewed(fork, node, merged[fork], (hold, keep)))
                    merged[fork] = (max(hold, merged[fork][0]), min(keep, merged[fork][1]))
                else:
                    merged[fork] = (hold, keep)
        reach[node] = merged
    return list(dict.fromkeys(warnings))


def _skewed(fork: Node, join: Node, one: tuple[int, int], other: tuple[int, int]) -> list[FifoWarning]:
    found = []
    for (hold, _), (_, keep) in ((one, other), (other, one)):
        if hold > keep:
            origin = fork.inputs[0].node if fork.operator.label == "broadcast" else fork
            found.append(FifoWarning(origin, join, hold, keep))
    return found[:1]


def _through(
    stream: Stream, reach: dict[Node, dict[Node, tuple[int, int]]], hardware: Hardware
) -> dict[Node, tuple[int, int]]:
    """For every fork upstream: tokens held back and tokens kept on the way through this stream."""
    node, depth = stream.node, hardware.depth(stream.role, stream.name)
    hold = held_back(node) or 0
    found = {}
    for fork, (held, kept) in reach.get(node, {}).items():
        size = -(-hold // _expansion(fork, node))
        found[fork] = (max(held, size), kept + depth + max(size, 1))
    if len(node.outputs) > 1:
        found[node] = (1, depth)
    return found


def _expansion(fork: Node, node: Node) -> int:
    """How many tokens reach a node for each that left the fork; 1 where the shapes do not tell."""
    sent, arriving = cardinality(fork.outputs[0].shape), cardinality(node.inputs[0].shape)
    if not sent.terms or not arriving.terms:
        return 1
    factor = max(1, arriving.terms[0][1] // sent.terms[0][1])
    return factor if sent * factor == arriving else 1
