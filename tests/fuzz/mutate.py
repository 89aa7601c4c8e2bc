"""Programs made wrong on purpose, and a judge: the checker must refuse exactly what the brute force finds invalid.

A valid program is changed in one place: a piece dropped or doubled, an index or a left side moved, a guard removed or
turned. The result may still be valid. The brute force decides at all small bounds; the checker must agree at each of
them, and the counterexample of its error must be one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from hypothesis import strategies as st

import polyrhythm as pr
from polyrhythm.compiler.analysis.calls import prepare
from polyrhythm.compiler.analysis.check import checked
from polyrhythm.compiler.trace import trace
from tests.fuzz.brute import Brute
from tests.fuzz.brute_ops import Invalid
from tests.fuzz.program import Choose, Compare, Program, Read, Slice, add, rewrite
from tests.fuzz.programs import data, programs, pruned
from tests.fuzz.reads import Draws
from tests.fuzz.script import build, definition
from tests.fuzz.whole import output

KINDS = {
    "GapError": "gap",
    "UndefinedError": "gap",
    "OverlapError": "overlap",
    "OutOfRangeError": "range",
    "CycleError": "cycle",
    "EmptyAxisError": "empty",
}


@st.composite
def mutants(draw: Callable[[Any], Any], kind: str | None = None) -> tuple[Program, str]:
    """A program changed in one place, and how: in a given way or in any."""
    draws = Draws(draw)
    name = draws.pick(list(MUTATIONS)) if kind is None else kind
    program = draw(programs("int"))
    changed = MUTATIONS[name](program, draws.number(0, 20), draws.pick([1, -1, 2, -2]))
    return (program, "none") if changed is None else (pruned(changed), name)


def _drop(program: Program, which: int, _: int) -> Program | None:
    return _pieces(program, which, lambda pieces, i: pieces[:i] + pieces[i + 1 :])


def _double(program: Program, which: int, _: int) -> Program | None:
    return _pieces(program, which, lambda pieces, i: pieces if pieces[i].left is None else (*pieces, pieces[i]))


def _move_left(program: Program, which: int, by: int) -> Program | None:
    def moved(pieces: tuple[Any, ...], i: int) -> tuple[Any, ...]:
        left = pieces[i].left
        if not isinstance(left, tuple):
            return pieces
        return (*pieces[:i], replace(pieces[i], left=(add(left[0], by), *left[1:])), *pieces[i + 1 :])

    return _pieces(program, which, moved)


def _pieces(program: Program, which: int, change: Callable[[tuple[Any, ...], int], tuple[Any, ...]]) -> Program | None:
    places = [(r, i) for r in program.recurrents for i in range(len(r.pieces))]
    if not places:
        return None
    recurrent, place = places[which % len(places)]
    changed = replace(recurrent, pieces=change(recurrent.pieces, place))
    return replace(program, recurrents=tuple(changed if r is recurrent else r for r in program.recurrents))


def _changed(kind: type, change: Callable[[Any, int], Any]) -> Callable[[Program, int, int], Program | None]:
    """Change the n-th node of a kind."""

    def make(program: Program, which: int, by: int) -> Program | None:
        count = 0

        def tally(node: Any) -> Any:
            nonlocal count
            count += isinstance(node, kind)
            return node

        rewrite(program, tally)
        if not count:
            return None
        target, count = which % count, 0

        def once(node: Any) -> Any:
            nonlocal count
            if not isinstance(node, kind):
                return node
            count += 1
            return change(node, by) if count - 1 == target else node

        return rewrite(program, once)

    return make


def _moved_read(node: Read, by: int) -> Read:
    first = node.entries[0]
    if isinstance(first, Slice):
        moved: Any = Slice(first.start, add(first.stop, by), first.step) if first.stop is not None else first
    else:
        moved = add(first, by)
    return replace(node, entries=(moved, *node.entries[1:]))


def _unguarded(node: Choose, by: int) -> Any:
    """The first branch alone, or the condition turned around."""
    if by > 0:
        return node.first
    return replace(node, first=node.second, second=node.first)


def _other_comparison(node: Compare, by: int) -> Compare:
    return replace(node, op={"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "<=", "!=": "=="}[node.op])


MUTATIONS: Mapping[str, Callable[[Program, int, int], Program | None]] = {
    "drop a piece": _drop,
    "double a piece": _double,
    "move a left side": _move_left,
    "move a read": _changed(Read, _moved_read),
    "remove a guard": _changed(Choose, _unguarded),
    "turn a comparison": _changed(Compare, _other_comparison),
}


def small_bounds(program: Program) -> Iterator[dict[str, int]]:
    sizes = range(5) if len(program.dims) < 3 else range(3)
    for choice in product(sizes, repeat=len(program.dims)):
        yield dict(zip((d.bound for d in program.dims), choice, strict=True))


def problems(program: Program, bounds: dict[str, int]) -> set[str]:
    """Everything the brute force finds wrong at some bounds."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 60000))
    run = Brute(program, data(program, bounds), bounds)
    found: set[str] = set()

    def attempt(work: Callable[[], Any]) -> None:
        try:
            work()
        except Invalid as problem:
            found.add(problem.kind)

    try:
        for declared in run.reachable():
            attempt(partial(run.table, declared))
        if not found:
            for declared in run.reachable():
                names = [s.dim for s in declared.spans]
                for point in run.table(declared):
                    env = dict(zip(names, point, strict=True))
                    attempt(partial(run.named, declared.name, env))
            for _, node in program.outputs:
                attempt(partial(output, run, node))
    finally:
        sys.setrecursionlimit(limit)
    return found


def judge(program: Program) -> str:
    """Compare the checker with the brute force; the verdict both reach, or an AssertionError."""
    try:
        variables = build(program)
    except pr.errors.PolyrhythmError as error:
        return f"not built: {type(error).__name__}"
    try:
        graph = checked(trace(list(variables["outputs"].values())))
    except pr.errors.ProgressError:
        return "not shown to progress"
    except pr.errors.PolyrhythmError as error:
        return confirm_refusal(program, error)
    worst = "valid"
    for bounds in small_bounds(program):
        try:
            found = problems(program, bounds)
        except ValueError:
            return "shapes differ at some bounds"
        if "unclear" in found:
            return "unclear"
        try:
            prepare(graph, data(program, bounds), {variables[name]: size for name, size in bounds.items()})
            refused = False
        except pr.errors.RequirementError:
            refused, worst = True, "valid from some bounds on"
        said = "refuses" if refused else "accepts"
        assert refused == bool(found), f"{said} {bounds}, but brute force finds {found}\n{definition(program)}"
    return worst


def confirm_refusal(program: Program, error: pr.errors.PolyrhythmError) -> str:
    """The counterexample of an error is one."""
    name = type(error).__name__
    point = error.point or {}
    tried = []
    for bounds in small_bounds(program):
        bounds = {bound: point.get(bound, size) for bound, size in bounds.items()}
        if bounds in tried:
            continue
        tried.append(bounds)
        found = problems(program, bounds)
        if "unclear" in found:
            return "unclear"
        if KINDS.get(name) in found:
            return name
        if found:
            # Where one value has several faults, evaluation meets only the first.
            return f"{name} (brute force: {', '.join(sorted(found))})"
    raise AssertionError(f"{error}\nbut the brute force finds no such problem at {tried[:9]}\n{definition(program)}")


def rightly_refused(program: Program, error: Exception) -> bool:
    """Guards are drawn so that they hold at small bounds; a program may still be wrong at larger ones.

    Then the checker refuses it, and its counterexample must be one for the brute force too.
    """
    cause = error.__cause__
    if not isinstance(cause, pr.errors.OutOfRangeError):
        return False
    try:
        confirm_refusal(program, cause)
    except AssertionError:
        return False
    return True
