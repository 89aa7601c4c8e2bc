"""The base of all errors: what a message consists of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyrhythm.source import Source, here


class PolyrhythmError(Exception):
    """The base of all errors.

    `at` is the user's line (by default the one being executed), `point` a concrete counterexample,
    `outcome` what happens there, and `also` names further lines that take part.
    """

    def __init__(
        self,
        what: str,
        *,
        fix: str,
        at: Source | None = None,
        point: Mapping[Any, int] | None = None,
        outcome: str | None = None,
        also: tuple[tuple[str, Source], ...] = (),
    ) -> None:
        self.what, self.fix, self.at, self.also = what, fix, at or here(), also
        self.point = {str(symbol): value for symbol, value in point.items()} if point is not None else None
        lines = [what, f"  at {self.at}: {self.at.text}"]
        lines += [f"  in {self.at.library}"] if self.at.library else []
        lines += [f"  {label} {source}: {source.text}" for label, source in also]
        if self.point:
            values = ", ".join(f"{symbol} = {value}" for symbol, value in self.point.items())
            lines.append(f"  for example at {values}" + (f": {outcome}" if outcome else ""))
        lines.append(f"  fix: {fix}")
        super().__init__("\n".join(lines))
