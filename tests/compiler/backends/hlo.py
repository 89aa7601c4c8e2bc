"""What XLA made of a program: copies in the bodies of its loops."""

from __future__ import annotations

import math
import re
from typing import Any

import polyrhythm as pr

_COMPUTATION = re.compile(r"^(?:ENTRY )?%(\S+) \(.*\{$")
_RESULT = re.compile(r"= \(?\w+\[([\d,]*)\]\S* ([\w-]+)\(")
_CALLED = re.compile(r"(?:body|calls|to_apply|true_computation|false_computation)=%([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")


def optimised(program: pr.Program, **arguments: Any) -> str:
    """Run a program once and return its optimised HLO, that of the largest capacity if its buffers grow."""
    program(**arguments)
    backend = program.backend
    compiled = list(backend.executor.programs.values())
    assert len(compiled) == 1 or backend.growing is not None
    return str(compiled[-1].as_text())


def loop_bodies(text: str) -> str:
    """The lines of everything that the bodies of loops run, fusions included."""
    computations = _computations(text)
    wanted = [n for lines in computations.values() for line in lines if " while(" in line for n in _called(line)]
    seen: dict[str, None] = {}
    while wanted:
        name = wanted.pop()
        if name not in seen and name in computations:
            seen[name] = None
            wanted += [n for line in computations[name] for n in _called(line)]
    return "\n".join(line for name in seen for line in computations[name])


def _called(line: str) -> list[str]:
    """The computations that an instruction runs."""
    branches = (name.strip(" %") for found in _BRANCHES.findall(line) for name in found.split(","))
    return [*_CALLED.findall(line), *branches]


def large(text: str, ops: tuple[str, ...], elements: int) -> list[str]:
    """The instructions of some kinds whose result has at least so many elements."""
    found = []
    for line in text.splitlines():
        match = _RESULT.search(line)
        if match and match[2] in ops and math.prod(int(n) for n in match[1].split(",") if n) >= elements:
            found.append(line.strip())
    return found


def _computations(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        match = _COMPUTATION.match(line)
        if match:
            lines = found.setdefault(match[1], [])
        elif line.startswith("}"):
            lines = []
        else:
            lines.append(line)
    return found
