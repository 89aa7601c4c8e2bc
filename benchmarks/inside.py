"""What XLA made of a program that has run: its programs, how often a call starts them, their memory and operations."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polyrhythm as pr

_WORKING = re.compile(r"= \S.* (fusion|dot|custom-call|call|scatter|gather|sort|reduce|while)\(")


@dataclass(frozen=True)
class Inside:
    """Figures of the XLA programs of one call.

    `launches` are programs started, `loops` and `operations` what the largest of them contains, `bytes` what it takes.
    """

    launches: int
    loops: int
    operations: int
    bytes: int


def executables(program: pr.Program) -> dict[Any, Any]:
    """The compiled XLA programs, in the order of compilation."""
    backend = program.backend
    found: dict[Any, Any] = backend.executor.programs
    return found


def inside(program: pr.Program, call: Callable[[], Any]) -> Inside:
    """Look at a program; `call` runs it once more."""
    kept = executables(program)
    largest = max(kept.values(), key=planned)
    text = largest.as_text()
    words = [match[1] for line in text.splitlines() if (match := _WORKING.search(line))]
    return Inside(_launches(kept, call), words.count("while"), len(words), planned(largest))


def planned(compiled: Any) -> int:
    """The bytes that XLA plans for a program: arguments, results and what is temporary."""
    plan = compiled.memory_analysis()
    total: int = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    return total - plan.alias_size_in_bytes


def _launches(kept: dict[Any, Any], call: Callable[[], Any]) -> int:
    """How many XLA programs a call starts."""
    count = 0

    def counted(compiled: Any) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            return compiled(*arguments)

        return run

    originals = dict(kept)
    kept.update({key: counted(compiled) for key, compiled in originals.items()})
    try:
        call()
    finally:
        kept.update(originals)
    return count
