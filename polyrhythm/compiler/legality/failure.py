"""What the checker raises, and how it names the instances that take part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.errors import PolyrhythmError
from polyrhythm.source import Source

Rule = Literal[
    "form",
    "operation",
    "completeness",
    "order",
    "storage",
    "parallel",
    "effects",
    "until",
    "layout",
    "hold",
    "lanes",
    "growth",
]


class IllegalProgramError(PolyrhythmError):
    """The compiler made loops that do not compute the program: a fault of the compiler, found before anything ran.

    Every compiled program is checked against its definitions. This error says which rule the loops break, where,
    and which two instances of blocks clash. Nothing is wrong with the program it names: please report it. Until it
    is mended, `pr.evaluate` runs the program."""

    def __init__(
        self,
        rule: Rule,
        what: str,
        *,
        at: Source | None,
        point: Mapping[Symbol, int] | None = None,
        outcome: str | None = None,
    ) -> None:
        super().__init__(
            f"the compiled loops break the rule of {rule}: {what}",
            fix="this is a fault of the compiler, please report it; pr.evaluate runs the program meanwhile",
            at=at,
            point=point,
            outcome=outcome,
        )
        self.rule = rule
