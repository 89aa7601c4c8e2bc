"""Any subset of the passes: the same results on every backend, and a graph of the grammar after each pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

import polyrhythm as pr
from polyrhythm.compiler.front_end import completed
from polyrhythm.compiler.ir.graph import Graph
from polyrhythm.compiler.passes import NAMES, optimised
from polyrhythm.compiler.trace import trace
from polyrhythm.oracle import run
from tests.compiler.ir.verify import GrammarError, verify
from tests.fuzz.check import Compiled, Evaluator, Mismatch, check, oracle
from tests.fuzz.program import (
    Apply,
    Arith,
    Choose,
    Compare,
    Expr,
    Extremum,
    Index,
    InputDecl,
    Int,
    Literal,
    Name,
    Piece,
    Program,
    Read,
    RecurrentDecl,
    Slice,
    Sym,
    Value,
    add,
    rewrite,
)
from tests.fuzz.programs import data
from tests.fuzz.script import build, definition

Case = tuple[Program, tuple[str, ...]]
"""A program, and the passes that are left out."""

FIRED: Counter[str] = Counter()
"""How often each rule of each pass changed something."""


def subsets() -> st.SearchStrategy[tuple[str, ...]]:
    """Passes to leave out: often none, any number otherwise."""
    some = st.lists(st.sampled_from(NAMES), unique=True).map(tuple)
    return st.one_of(st.just(()), some, some)


def pairs() -> st.SearchStrategy[tuple[str, ...]]:
    """Passes to leave out: all but two, which then meet what no other has tidied up."""
    two = st.lists(st.sampled_from(NAMES), min_size=2, max_size=2, unique=True)
    return two.map(lambda kept: tuple(name for name in NAMES if name not in kept))


def wide(node: Any) -> Any:
    """A program in float64 instead of float32."""
    if isinstance(node, tuple):
        return tuple(map(wide, node))
    if is_dataclass(node) and not isinstance(node, type):
        return replace(node, **{field.name: wide(getattr(node, field.name)) for field in fields(node)})
    return "float64" if isinstance(node, str) and node == "float32" else node


def widened(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in inputs.items()}


def repeated(program: Program) -> Program:
    """The program with its named expressions written out once more in further outputs: work to be shared."""
    lets = {let.name: let.value for let in program.lets}

    def written_out(node: Any) -> Any:
        return lets[node.name] if isinstance(node, Name) and node.name in lets else node

    again = tuple((f"{name}_again", rewrite(value, written_out)) for name, value in program.outputs)
    return replace(program, outputs=(*program.outputs, *again))


def twins(program: Program) -> Program:
    """The program with outputs in which passes find much to do.

    They read an input alike but at different steps, which no pass may take for the same; read an index at another step;
    cast back and forth, choose by what always holds, and accumulate.
    """
    sizes = dict(program.bounds)
    more: list[tuple[str, Expr]] = []
    recurrents: list[RecurrentDecl] = []
    for x in program.inputs:
        if not x.spans or any(sizes.get(span.dim.upper(), 0) < 2 for span in x.spans):
            continue
        here, step = Name(x.name), Sym(x.spans[0].dim)
        first = Read(here, tuple(Int(0) for _ in x.spans))
        last = Read(here, tuple(add(span.extent, -1) for span in x.spans))
        both = "|" if x.dtype == "bool" else "+"
        always, began = Value(Compare(">=", step, Int(0))), Compare(">=", step, Int(1))
        more += [
            (f"{x.name}_first", Apply(both, (first, first))),
            (f"{x.name}_last", Apply(both, (last, last))),
            (f"{x.name}_late", Choose(began, here, last)),
            (f"{x.name}_still", Choose(began, first, here)),
            (f"{x.name}_masked", Apply("where", (always, here, first))),
        ]
        if x.dtype == "float32":
            more.append((f"{x.name}_cut", Apply("cast", (Apply("cast", (here,), ("int32",)),), ("float32",))))
        if len(x.spans) == 1:
            turned = Arith("-", add(x.spans[0].extent, -1), step)
            more.append((f"{x.name}_turned", Apply(both, (Read(Apply(both, (here, here)), (turned,)), here))))
            left = Arith("-", add(Sym(x.spans[0].dim.upper()), -1), step)
            more.append((f"{x.name}_left", Apply("+", (Read(Value(step), (left,)), Value(step)))))
        if len(x.spans) == 1 and x.dtype != "bool":
            up, down, most = (f"{x.name}_{name}" for name in ("up", "down", "most"))
            recurrents += [_accumulated(x, up, "+"), _accumulated(x, most, "maximum"), _accumulated(x, down, "+", True)]
            more += [(f"{name}_all", Apply("cumsum", (Read(Name(name), (Slice(),)),), (0,))) for name in (up, down)]
            more.append((f"{most}_last", Read(Name(most), (add(x.spans[0].extent, -1),))))
            fade, grow = (f"{x.name}_{name}" for name in ("fade", "grow"))
            factor = Literal(0.5) if x.dtype == "float32" else Literal(2)
            recurrents += [_accumulated(x, fade, "+", True, factor), _accumulated(x, grow, "+", False, factor)]
            more.append((f"{fade}_all", Apply("cumsum", (Read(Name(fade), (Slice(),)),), (0,))))
            more.append((f"{grow}_last", Read(Name(grow), (add(x.spans[0].extent, -1),))))
    outputs = (*program.outputs, *more)
    return replace(program, outputs=outputs, recurrents=(*program.recurrents, *recurrents))


def sliding(program: Program) -> Program:
    """The program with outputs over a few steps: products at a later step, windows and convolutions, both ways."""
    sizes = dict(program.bounds)
    more: list[tuple[str, Expr]] = []
    for number, x in enumerate(program.inputs):
        if len(x.spans) != 1 or x.dtype == "bool" or sizes.get(x.spans[0].dim.upper(), 0) < 2:
            continue
        here, step, end = Name(x.name), Sym(x.spans[0].dim), x.spans[0].extent
        taps = 2 + (number + len(program.lets)) % 5
        square = Apply("*", (here, here))
        later = Choose(Compare("<", add(step, 1), end), Read(square, (add(step, 1),)), here)
        past = Slice(Extremum("max", Int(0), add(step, 1 - taps)), add(step, 1))
        ahead = Slice(step, Extremum("min", end, add(step, taps)))
        pairs = Apply("*", (Read(square, (past,)), here))
        monoid = ("sum", "max", "min", "prod")[number % 4]
        more += [
            (f"{x.name}_later", Apply("*", (later, here))),
            (f"{x.name}_past", Apply(monoid, (Read(square, (past,)),), (0,))),
            (f"{x.name}_ahead", Apply(monoid, (Read(here, (ahead,)),), (0,))),
            (f"{x.name}_pairs", Apply("sum", (pairs,), (0,))),
        ]
        if x.dtype == "float32":
            so_far = Read(here, (Slice(Int(0), add(step, 1)),))
            more.append((f"{x.name}_online", Apply("logsumexp", (so_far,), (0,))))
    return replace(program, outputs=(*program.outputs, *more))


def _accumulated(
    x: InputDecl, name: str, op: str, backwards: bool = False, factor: Literal | None = None
) -> RecurrentDecl:
    """What an input adds up to, from its first step on or from its last; with a factor for what was before."""
    step, end = Sym(x.spans[0].dim), add(x.spans[0].extent, -1)
    after: tuple[Index, ...] = (add(step, 1),)
    left: tuple[Index, ...] | Compare = Compare("<", step, end) if backwards else after
    more = Name(x.name) if backwards else Read(Name(x.name), after)
    before: Expr = Read(Name(name), after) if backwards else Name(name)
    if factor is not None:
        before = Apply("*", (before, factor))
    start: Index = end if backwards else Int(0)
    pieces = (Piece((start,), Read(Name(x.name), (start,))), Piece(left, Apply(op, (before, more))))
    return RecurrentDecl(name, x.shape, x.spans, x.dtype, pieces)


def _is_small(program: Program) -> bool:
    """Whether the gradient of a gradient stays small enough to be evaluated point by point."""
    return len(definition(program)) < 900


def check_gradients(case: Case) -> str:
    """The passes keep the meaning of a program with gradients: the oracle on both graphs, and NumPy; raises Mismatch.

    The verdict is "compared", "nothing" where there is nothing to differentiate, or "not shown to progress", of the
    program or its gradient.
    """
    program, without = wide(sliding(case[0])), case[1]
    variables, inputs = build(program), widened(data(program))
    leaves = [variables[name] for name, value in inputs.items() if value.dtype == np.float64 and value.size]
    losses = [y for y in variables["outputs"].values() if str(y.dtype) == "float64"]
    if not leaves or not losses:
        return "nothing"
    # Every input is an output, so that bounds are known whatever the gradient needs.
    first = [g for y in losses for g in pr.grad((y * y + y).sum(), leaves)]
    # Second derivatives of small programs: by one leaf, through its own gradient.
    twice = [pr.grad((first[0] * first[0]).sum(), leaves[0])] if _is_small(program) else []
    wanted = [*first, *twice, *(variables[d.name] for d in program.inputs)]
    try:
        graph = completed(trace(wanted))
        verify(graph)
    except pr.errors.ProgressError:
        return "not shown to progress"
    except (pr.errors.PolyrhythmError, GrammarError) as error:
        what = f"no gradient: {type(error).__name__}: {error}"
        raise Mismatch(program, what, f"# {what}\n{definition(program)}") from error
    bounds = {variables[name]: size for name, size in program.bounds}
    changed = _passed(program, graph, without)
    before = run(graph, inputs, bounds)
    compiled_too = Compiled("numpy", 1, without)(wanted, inputs, bounds, None, 0)
    for found in (run(changed, inputs, bounds), *([] if compiled_too is None else [compiled_too])):
        for number, (one, other) in enumerate(zip(before, found, strict=True)):
            a, b = np.asarray(one), np.asarray(other)
            scale = np.max(np.abs(a[np.isfinite(a)]), initial=1.0) if a.dtype.kind == "f" else 1.0
            if not np.allclose(a, b, rtol=1e-6, atol=1e-9 * scale, equal_nan=True):
                what = f"gradient {number} differs without={without!r}:\n{a}\n{b}"
                raise Mismatch(program, what, f"# {what}\n{definition(program)}")
    return "compared"


def check_lengths(program: Program) -> str:
    """Gradients of a program whose rows have lengths of their own: the backends against the oracle; raises Mismatch."""
    variables, inputs = build(program), data(program)
    x = variables["x"]
    if not inputs["x"].size:
        return "nothing"
    wanted = {name: pr.grad((y * y + y).sum(), x) for name, y in variables["outputs"].items()}
    bounds = {variables[name]: size for name, size in program.bounds}
    until = variables["until"] or None
    expected = oracle(wanted, inputs, bounds, until, 0)
    for backend, share in (("numpy", 1), ("torch", 2), ("jax", 4)):
        found = Compiled(backend, share)(wanted, inputs, bounds, until, 0)
        if found is None:
            continue
        for name, one in expected.items():
            a, b = (np.asarray(getattr(result, "values", result)) for result in (one, found[name]))
            scale = np.max(np.abs(a[np.isfinite(a)]), initial=1.0)
            if not np.allclose(a, b, rtol=1e-3, atol=1e-4 * scale, equal_nan=True):
                what = f"{backend}: the gradient of {name!r} differs:\n{a}\n{b}"
                raise Mismatch(program, what, f"# {what}\n{definition(program)}")
    return "compared"


def check_subset(case: Case, shares: tuple[int, int, int] = (3, 8, 12)) -> bool:
    """The graph after some passes, and what backends make of it, give what the brute force gives; raises Mismatch.

    The oracle evaluates every graph; a backend compiles one program in its share, none for 0.
    """
    program, without = case
    program = sliding(twins(repeated(program)))
    backends = zip(("numpy", "torch", "jax"), shares, strict=True)
    evaluators: list[Evaluator] = [
        passed(program, without),
        *(Compiled(name, share, without) for name, share in backends),
    ]
    try:
        return check(program, evaluators)
    except Mismatch as error:
        kept = f"# without {', '.join(without) or 'nothing'}\n"
        raise Mismatch(program, f"{error.what}\nwithout={without!r}", kept + error.script) from error.__cause__


def passed(program: Program, without: Collection[str]) -> Evaluator:
    """The oracle on the graph after the passes, as an evaluator."""

    def evaluator(outputs: Any, inputs: Mapping[str, Any], bounds: Any, until: Any, seed: int) -> Mapping[str, Any]:
        graph = _passed(program, completed(trace(list(outputs.values()), (), until)), without)
        return dict(zip(outputs, run(graph, inputs, bounds, seed), strict=True))

    return evaluator


def _passed(program: Program, graph: Graph, without: Collection[str]) -> Graph:
    """The graph after the passes, the grammar checked after each that did something; which rules applied is counted."""
    last = graph

    def legal(name: str, changed: Graph) -> None:
        nonlocal last
        if changed == last:
            return
        last = changed
        try:
            verify(changed)
        except Exception as error:
            what = f"after {name}: {error}"
            raise Mismatch(program, what, f"# {what}\n{definition(program)}") from error

    # Some passes are for backends that compile loops only.
    changed, notes = optimised(graph, without, legal, compiled_loops=len(graph.nodes) % 2 == 0)
    FIRED.update(f"{note.by}: {note.rule}" for note in notes if not note.refused)
    return changed


__all__ = ["FIRED", "Case", "check_gradients", "check_lengths", "check_subset", "pairs", "subsets"]
