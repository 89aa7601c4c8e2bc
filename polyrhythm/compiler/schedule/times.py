"""When a block runs, as a vector to be compared lexicographically.

The vector alternates the position among its siblings with the counter of the loop that encloses the next level:
`(2, t + 1, 0)` is the third item of the program, a loop; in its iteration t + 1; the first item of the body. Blocks
at different depths are compared on what they have in common, because their positions differ there at the latest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from polyrhythm.compiler.ir.conditions import FALSE, TRUE, Condition, conjunction, eq, lt
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.schedule.scheduler import Item, Loop

Time = tuple[Term, ...]


def times(items: Sequence[Item]) -> dict[str, Time]:
    """The time of every block of a schedule, as terms of the block's own dims."""
    found: dict[str, Time] = {}

    def visit(body: Sequence[Item], prefix: dict[str, Time]) -> None:
        for position, item in enumerate(body):
            if isinstance(item, Loop):
                inner = {}
                for name, member in item.members.items():
                    inner[name] = (*prefix.get(name, ()), Term(position), member.time)
                visit(item.body, inner)
            else:
                found[item] = (*prefix.get(item, ()), Term(position))

    visit(items, {})
    return found


def at(time: Time, steps: Mapping[Symbol, Term]) -> Time:
    """A time with the block's dims replaced."""
    return tuple(term.substitute(steps) for term in time)


def earlier(a: Time, b: Time) -> Iterator[Condition]:
    """Conditions, one per level, that together say: a comes strictly before b."""
    equal: Condition = TRUE
    for x, y in zip(a, b, strict=False):
        yield conjunction(equal, lt(x, y))
        equal = conjunction(equal, eq(x, y))
        if equal is FALSE:
            return


def same(a: Time, b: Time) -> Condition:
    """The condition that two times agree on all levels they share."""
    return conjunction(*(eq(x, y) for x, y in zip(a, b, strict=False)))
