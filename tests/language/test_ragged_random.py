"""Random ragged programs: what the checks accept never reads outside a row, and has the values of a plain loop.

Rows differ in length by an extent or by `until`. The plain loop knows nothing of the compiler: it evaluates the same
expression tree at one point after another and checks every read against the row it meets.
`python -m tests.language.test_ragged_random 500` tries more of them and counts the valid programs that are refused.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import errors
from polyrhythm.compiler.analysis.check import checked
from polyrhythm.compiler.ir.graph import Graph
from polyrhythm.compiler.trace import trace
from polyrhythm.oracle import run
from tests.compiler.ir.verify import verify

LIMIT = 3
Names = dict[str, Any]
"""The dims, bounds and functions of an index, as symbols or as numbers."""

ROWS = ["b", "b - 1", "b + 1", "B - 1 - b", "0", "lo(b - 1, 0)", "hi(b + 1, B - 1)"]
STEPS = ["t", "t - 1", "t + 1", "T - 1", "0", "T - 1 - t", "T - 2", "hi(t, 1)", "hi(t + 1, T - 1)"]
RANGES = [("0", "T"), ("0", "t"), ("t", "T"), ("0", "t + 1"), ("t + 1", "T"), ("0", "1")]
GUARDS = [
    "b > 0",
    "b < B - 1",
    "t > 0",
    "t < T - 1",
    "T >= 2",
    "T < 2",
    "b == B - 1 - b",
    "t == 0",
    "(t > 0) & (b > 0)",
]
NEEDED = {"b - 1": "b > 0", "b + 1": "b < B - 1", "t - 1": "t > 0", "t + 1": "t < T - 1", "T - 2": "T >= 2"}
"""The guard that an index needs."""
PIECES = [
    (("t", "0"), ("t", "t + 1")),
    ("t == T - 1", None),
    ("T >= 2", "T < 2"),
    ("b == 0", None),
    ("t % 2 == 0", None),
]


class Invalid(Exception):
    """A read outside a row, or a value that depends on itself."""


@dataclass(frozen=True)
class Read:
    """A tensor at a row and a step, or summed over a range of steps; chained, the row is chosen by a second index."""

    source: str
    row: str
    step: str | tuple[str, str]
    chained: bool

    def build(self, names: Names) -> pr.Tensor:
        source: pr.Tensor = names[self.source]
        row = eval(self.row, names)
        step: Any
        if isinstance(self.step, tuple):
            step = slice(*(eval(part, names) for part in self.step))
        else:
            step = eval(self.step, names)
        if self.source == "w":
            value = source[step]
        elif self.chained and not isinstance(self.step, tuple):
            value = source[names["b"], step][{names["b"]: row}]
        else:
            value = source[row, step]
        return value.sum(0) if isinstance(self.step, tuple) else value

    def value(self, names: Names, loop: Loop) -> int:
        row = eval(self.row, names)
        inside = names
        if self.source == "w":
            row = names["b"]
        elif self.chained and not isinstance(self.step, tuple):
            if not 0 <= row < len(loop.lengths):
                raise Invalid
            inside = names | {"b": row, "T": loop.lengths[row]}
        if isinstance(self.step, tuple):
            start, stop = (eval(part, inside) for part in self.step)
            return sum(loop.at(self.source, row, step) for step in range(start, stop))
        return loop.at(self.source, row, eval(self.step, inside))


@dataclass(frozen=True)
class Where:
    condition: str
    first: Expr
    second: Expr

    def build(self, names: Names) -> pr.Tensor:
        return pr.where(eval(self.condition, names), self.first.build(names), self.second.build(names))

    def value(self, names: Names, loop: Loop) -> int:
        return (self.first if eval(self.condition, names) else self.second).value(names, loop)


@dataclass(frozen=True)
class Sum:
    first: Expr
    second: Expr

    def build(self, names: Names) -> pr.Tensor:
        return self.first.build(names) + self.second.build(names)

    def value(self, names: Names, loop: Loop) -> int:
        return self.first.value(names, loop) + self.second.value(names, loop)


@dataclass(frozen=True)
class Number:
    number: int

    def build(self, names: Names) -> pr.Tensor:
        return pr.cast(self.number, "int32")

    def value(self, names: Names, loop: Loop) -> int:
        return self.number


Expr = Read | Where | Sum | Number


@dataclass(frozen=True)
class Program:
    """`y` over (b, t) in two pieces, and an expression of it over (b, t)."""

    until: bool
    pieces: tuple[Any, Any]
    rights: tuple[Expr, Expr]
    output: Expr

    def build(self) -> tuple[Graph, pr.Bound]:
        b, B = pr.dim("b")
        x: pr.Tensor
        if self.until:
            start = pr.input("data", (), (b,), "int32")
            t, T = pr.dim("t")
            countdown = pr.recurrent((), (b, t), "int32")
            countdown[b, 0] = start
            countdown[b, t + 1] = countdown - 1
            until = {t: countdown <= 1}
        else:
            t, T = pr.dim("t", extent=pr.input("data", (), (b,), "int32"), max=LIMIT)
            until = None
        x = pr.input("x", (), (b, t), "int32")
        y = pr.recurrent((), (b, t), "int32")
        names: Names = {"b": b, "B": B, "t": t, "T": T, "lo": pr.max, "hi": pr.min, "x": x, "y": y}
        names["w"] = pr.value(t) * 7
        for piece, right in zip(self.pieces, self.rights, strict=True):
            value = right.build(names)
            if piece is None:
                y[pr.otherwise] = value
            elif isinstance(piece, tuple):
                y[b, eval(piece[1], names)] = value if piece[1] != "0" else pr.cast(0, "int32")
            else:
                y[eval(piece, names)] = value
        outputs = [y, y[b, 0:T].sum(0), 0 * x + self.output.build(names)]
        return checked(trace(outputs, (), until)), T


class Loop:
    """The values of a program by definition, with every read checked."""

    def __init__(self, program: Program, lengths: tuple[int, ...]) -> None:
        self.program, self.lengths = program, lengths
        self.known: dict[tuple[int, int], int | None] = {}

    def names(self, row: int, step: int) -> Names:
        return {"b": row, "B": len(self.lengths), "t": step, "T": self.lengths[row], "lo": max, "hi": min}

    def at(self, source: str, row: int, step: int) -> int:
        if not (0 <= row < len(self.lengths) and 0 <= step < self.lengths[row]):
            raise Invalid
        if source == "w":
            return 7 * step
        return data(row, step) if source == "x" else self.y(row, step)

    def y(self, row: int, step: int) -> int:
        if (row, step) in self.known:
            found = self.known[row, step]
            if found is None:
                raise Invalid
            return found
        self.known[row, step] = None
        names = self.names(row, step)
        first, _ = self.program.pieces
        if isinstance(first, tuple):
            # The right side of y[b, t + 1] is written for the step before.
            value = 0 if step == 0 else self.program.rights[1].value(names | {"t": step - 1}, self)
        else:
            value = self.program.rights[0 if eval(first, names) else 1].value(names, self)
        self.known[row, step] = value
        return value

    def outputs(self) -> list[dict[tuple[int, ...], int]]:
        places = [(row, step) for row, length in enumerate(self.lengths) for step in range(length)]
        return [
            {place: self.y(*place) for place in places},
            {(row,): sum(self.y(row, step) for step in range(n)) for row, n in enumerate(self.lengths)},
            {place: self.program.output.value(self.names(*place), self) for place in places},
        ]


def data(row: int, step: int) -> int:
    return 100 * row + 10 * step + 1


def random_program(rng: random.Random) -> Program:
    until = rng.random() < 0.5
    pieces = rng.choice(PIECES)
    sources = "xxw" if until else "xx"
    rights = expression(rng, sources, 1), expression(rng, sources + "yy", 1)
    return Program(until, pieces, rights, expression(rng, sources + "y", 1))


def expression(rng: random.Random, sources: str, depth: int) -> Expr:
    if depth and rng.random() < 0.3:
        return Sum(expression(rng, sources, depth - 1), expression(rng, sources, depth - 1))
    step = rng.choice(RANGES) if rng.random() < 0.3 else rng.choice(STEPS)
    row = "b" if rng.random() < 0.5 else rng.choice(ROWS)
    read: Expr = Read(rng.choice(sources), row, step, row != "b" and rng.random() < 0.5)
    guards = [rng.choice(GUARDS)] if rng.random() < 0.2 else []
    guards += [NEEDED[part] for part in (row, step) if part in NEEDED and rng.random() < 0.9]
    for guard in guards:
        other = Number(3) if rng.random() < 0.8 else expression(rng, sources, 0)
        read = Where(guard, read, other)
    return read


def tables(until: bool) -> Iterator[tuple[int, ...]]:
    """Every length of up to three rows."""
    for rows in range(4):
        yield from product(range(1 if until else 0, LIMIT + 1), repeat=rows)


def verdict(program: Program) -> str:
    """Compare a program with the loop; says whether it was accepted and whether it is valid."""
    loops = {lengths: _expected(program, lengths) for lengths in tables(program.until)}
    valid = all(values is not None for values in loops.values())
    try:
        graph, T = program.build()
    except (errors.OutOfRangeError, errors.CycleError, errors.ProgressError, errors.RaggedShapeError):
        return "valid but refused" if valid else "refused"
    verify(graph)
    for lengths, expected in loops.items():
        x = np.array([[data(row, step) for step in range(LIMIT)] for row in range(len(lengths))], "int32")
        inputs = {"data": np.array(lengths, "int32"), "x": x.reshape(len(lengths), LIMIT)}
        try:
            results = run(graph, inputs, {T: LIMIT} if program.until else None)
        except errors.RequirementError:
            continue
        assert expected is not None, f"accepted, but it reads outside a row at lengths {lengths}"
        for have, want in zip(results, expected, strict=True):
            values = np.asarray(getattr(have, "values", have))
            assert {place: int(values[place]) for place in want} == want, f"at lengths {lengths}"
    return "accepted"


def _expected(program: Program, lengths: tuple[int, ...]) -> list[dict[tuple[int, ...], int]] | None:
    """The outputs at some lengths, or None where the program has none."""
    try:
        return Loop(program, lengths).outputs()
    except Invalid:
        return None


@pytest.mark.parametrize("seed", [*range(40), 1316])
def test_random_ragged_programs(seed: int) -> None:
    verdict(random_program(random.Random(seed)))


def main(count: int) -> None:
    found: Counter[str] = Counter()
    for seed in range(1000, 1000 + count):
        program = random_program(random.Random(seed))
        try:
            result = verdict(program)
        except Exception as error:
            result = "FAILED"
            print(f"seed {seed}: {type(error).__name__}: {error}\n  {program}")
        found[result] += 1
        if result == "valid but refused":
            print(f"seed {seed} is valid but refused: {program}")
    print(dict(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
