"""Running small stream programs in tests."""

from __future__ import annotations

from typing import Any

from polyrhythm.stream import Hardware, Program, Run, Stream, simulate, source
from polyrhythm.stream.simulate import plain
from polyrhythm.stream.tokens import EMPTY, Token, canonical, encode
from tests.stream.nested import Nested, shape_of

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
    return canonical(raw, end.rank)


def assert_tokens(end: Stream, expected: Nested, hardware: Hardware = DEEP, copy: int = 0) -> Run:
    """Run a program with one end and compare it token for token with the oracle."""
    run = simulate(Program(end), hardware)
    assert tokens_of(run, end, copy) == encode(expected, end.rank)
    return run
