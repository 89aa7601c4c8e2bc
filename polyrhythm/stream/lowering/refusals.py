"""Refusals: a schedule that has no streams is refused with the directive, the reason and what would work.

A schedule gives the values of the program or is refused; nothing is ignored. The rules of the lowering refuse what
they cannot do, the operators check the shapes of what they are given, and what is left over has had no effect. All of
that ends here. What would work is found by trying: directives are added one by one as long as the program still lowers.
That costs one lowering for each directive, of a schedule that is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.graph import Node
from polyrhythm.source import Source
from polyrhythm.stream.directives import Directive, ParallelizeDirective, TileDirective, TimeMultiplexDirective
from polyrhythm.stream.errors import (
    DirectiveMismatch,
    ElementMismatch,
    OperationNotStreamable,
    RankOutOfRange,
    ShapeMismatch,
    StreamError,
)


@contextmanager
def streams_of(node: Node, at: Source | None = None) -> Iterator[None]:
    """While a node is lowered: what an operator finds wrong with its streams is said of the node."""
    try:
        yield
    except (ShapeMismatch, RankOutOfRange, ElementMismatch) as error:
        raise OperationNotStreamable(
            f"{described(node)} has streams that do not fit together: {error.what}",
            fix="leave out the directives for its dims",
            at=at or node.at,
        ) from error


def check_schedule(schedule: Any) -> Sequence[Directive]:
    """A schedule is a sequence of directives."""
    fix = "give a list of directives: tile(...), time_multiplex(...), parallelize(...)"
    if isinstance(schedule, str) or not isinstance(schedule, Sequence):
        raise DirectiveMismatch(f"{schedule}: the schedule is no list", fix=fix)
    for directive in schedule:
        if not isinstance(directive, TileDirective | TimeMultiplexDirective | ParallelizeDirective):
            raise DirectiveMismatch(f"{directive!r}: the schedule has an entry that is no directive", fix=fix)
    return schedule


def without_effect(directive: Directive) -> DirectiveMismatch:
    """The refusal of a directive that changes nothing."""
    reason, fix = {
        TileDirective: ("nothing that is lowered has tiles along this dim", "tile a dim of an input or of a routing"),
        TimeMultiplexDirective: (
            "no step combines its own values with a part that a number of the step chooses along this dim",
            "name the dim of the parts of a gather, pr.take(w[0:E], route, 0)",
        ),
        ParallelizeDirective: ("nothing belongs to single entries of this dim", "deal out a dim of the inputs"),
    }[type(directive)]
    return DirectiveMismatch(f"{directive}: {reason}, so it has no effect", fix=fix)


def refusal(
    error: StreamError, schedule: Sequence[Directive], attempt: Callable[[Sequence[Directive]], object]
) -> StreamError:
    """The error for a schedule that was refused: whose fault it is, and what lowers instead."""
    if not schedule:
        return error
    try:
        attempt(())
    except StreamError as own:
        return own  # the program itself has no streams
    kept: list[Directive] = []
    left_out: list[Directive] = []
    reason = error
    # What the error names is tried last, so that it is left out and not what it does not go with.
    for directive in sorted(schedule, key=lambda directive: str(directive) in error.what):
        try:
            attempt([*kept, directive])
            kept.append(directive)
        except StreamError as refused:
            reason = refused if not left_out else reason
            left_out.append(directive)
    named = ", ".join(map(str, left_out))
    known = any(str(directive) in reason.what for directive in left_out)
    fix = f"leave out {named}" + (f"; {', '.join(map(str, kept))} works" if kept else "")
    found = DirectiveMismatch(
        reason.what if known else f"{left_out[0]}: {reason.what}", fix=f"{reason.fix}; or {fix}", at=reason.at
    )
    found.works = tuple(kept)
    return found
