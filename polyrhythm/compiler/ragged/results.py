"""What a caller must know of a program with rows of different lengths."""

from __future__ import annotations

from dataclasses import dataclass, field

from polyrhythm.compiler.ir.graph import Access
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.source import Source


@dataclass(frozen=True)
class Longest:
    """The bound that is the longest row of a ragged dim, and where the lengths come from.

    `given` names the input that has the lengths, if one has; otherwise `output` is the number of the output in which
    the program returns them, so that they can be checked.
    """

    bound: Symbol  # the ragged bound
    longest: Symbol
    lengths: Access
    given: str | None
    output: int | None
    at: Source | None = field(default=None, compare=False)


@dataclass(frozen=True)
class OutputRows:
    """Which axis of an output has rows of different lengths, and the number of the output that has the lengths.

    With `cut` all rows have the one length that was found, and the axis is merely cut to it.
    """

    axis: int
    lengths: int
    cut: bool = False


@dataclass(frozen=True)
class Rows:
    """The ragged bounds of a program and its ragged outputs; the first `count` outputs are the user's."""

    count: int
    longest: tuple[Longest, ...] = ()
    outputs: dict[int, OutputRows] = field(default_factory=dict)
    names: frozenset[str] = frozenset()  # ragged inputs


__all__ = ["Longest", "OutputRows", "Rows"]
