"""Running small stream programs in tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyrhythm.stream import Hardware, Program, Run, Stream, measure, simulate, source
from polyrhythm.stream.graph import Node
from polyrhythm.stream.simulate import plain
from polyrhythm.stream.tokens import EMPTY, Token, decode, encode
from polyrhythm.stream.types import DynTile, Tile, TileValue
from tests.stream.nested import Nested, assert_shape, shape_of

DEEP = Hardware(fifo_depth=4096)


def stream_of(nested: Nested, rank: int, name: str = "x") -> Stream:
    """A source with the given values, declared ragged in every inner dim."""
    return source(name, nested, shape_of(nested, rank, name))


def scalar(value: Any) -> Any:
    """A value as the oracle writes it: 1 x 1 tiles as numbers."""
    value = plain(value)
    if isinstance(value, tuple):
        return tuple(scalar(part) for part in value)
    return value.item() if hasattr(value, "item") and value.size == 1 else value


def tokens_of(run: Run, end: Stream, copy: int = 0) -> list[Token]:
    """The canonical tokens that left at an end."""
    raw = [(value if value is EMPTY else scalar(value), level) for value, level in run.tokens(end, copy)]
    return encode(decode(raw, end.rank), end.rank)


def assert_tokens(end: Stream, expected: Nested, hardware: Hardware = DEEP, copy: int = 0) -> Run:
    """Run a program with one end and compare it token for token with the oracle."""
    run = simulate(Program(end), hardware)
    assert tokens_of(run, end, copy) == encode(expected, end.rank)
    return run


def assert_consistent(program: Program, hardware: Hardware, timed: bool = True) -> None:
    """Every stream has the shape that was inferred for it, the run moves and computes what the metrics say.

    Without `timed`, values decide what happens, so that there is no run without them.
    """
    # A loop of credits ends with some left over, and so do the choices that are made by them.
    nodes = [node for node in program.nodes if node.operator.label != "broadcast" and not _counts_credits(node)]
    streams = [Stream(node, port) for node in nodes for port in range(len(node.outputs))]
    tapped = simulate(Program(*program.ends, *streams), hardware)
    for stream in streams:
        _assert_elements(stream, tapped)
        for copy in range(stream.copies):
            tokens = [(plain(value), level) for value, level in tapped.tokens(stream, copy)]
            assert_shape(stream.shape, decode(tokens, stream.rank), tapped.bindings, copy)
    run = simulate(program, hardware)
    values = measure(program, hardware).evaluate(run.bindings)
    assert values["off_chip_burst"] == run.bytes_moved
    assert values["flops"] == run.flops
    if timed:
        assert_same(simulate(program, hardware, functional=False), run)


def assert_same(run: Run, other: Run) -> None:
    """Two runs did the same in every cycle, as far as a run can tell: one with values and one in compiled code."""
    assert (run.cycles, run.flops, run.bytes_moved) == (other.cycles, other.flops, other.bytes_moved)
    for mine, its in zip(run.reports, other.reports, strict=True):
        assert (mine.busy, mine.flops, mine.finished_at) == (its.busy, its.flops, its.finished_at), mine.name
    for fifo, its_fifo in zip(run.fifos, other.fifos, strict=True):
        assert (fifo.stalled, fifo.starved) == (its_fifo.stalled, its_fifo.starved), fifo.name
    assert str(run.bindings) == str(other.bindings)


def _assert_elements(stream: Stream, run: Run) -> None:
    """The largest element of each copy of a stream has the bytes that memory is counted with."""
    if not isinstance(stream.element, Tile | DynTile):
        return
    sizes = [
        max((value.nbytes for value, _ in run.tokens(stream, copy) if isinstance(value, TileValue)), default=None)
        for copy in range(stream.copies)
    ]
    declared = np.broadcast_to(stream.element.nbytes.evaluate(run.bindings), (stream.copies,))
    assert all(size in (None, most) for size, most in zip(sizes, declared.tolist(), strict=True)), f"{stream}: {sizes}"


def _counts_credits(node: Node) -> bool:
    """Whether a stream is a loop that starts with elements in it, or only chooses by one."""
    if getattr(node.operator, "initial", ()):
        return True
    chooses = node.operator.label in ("eager_merge", "restate")
    return chooses and all(_counts_credits(stream.node) for stream in node.inputs)
