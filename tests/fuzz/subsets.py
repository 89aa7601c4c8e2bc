"""Any subset of the passes: the same results on every backend, and a graph of the grammar after each pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

import polyrhythm as pr
from polyrhythm.autodiff import completed
from polyrhythm.ir.graph import Graph
from polyrhythm.ir.verify import GrammarError, verify
from polyrhythm.lang.trace import trace
from polyrhythm.oracle import run
from polyrhythm.passes import NAMES, optimised
from tests.fuzz.check import Mismatch, check, compiled
from tests.fuzz.program import Name, Program, rewrite
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


def check_gradients(case: Case) -> bool:
    """The passes keep the meaning of a program with gradients: the oracle on both graphs; raises Mismatch.

    False where there is nothing to differentiate, no proof that the gradient makes progress, or where its lengths are
    not proved either before any pass.
    """
    program, without = wide(case[0]), case[1]
    variables, inputs = build(program), widened(data(program))
    leaves = [variables[name] for name, value in inputs.items() if value.dtype == np.float64 and value.size]
    losses = [y for y in variables["outputs"].values() if str(y.dtype) == "float64"]
    if not leaves or not losses:
        return False
    # Every input is an output, so that bounds are known whatever the gradient needs.
    wanted = [g for y in losses for g in pr.grad((y * y + y).sum(), leaves)] + [
        variables[d.name] for d in program.inputs
    ]
    try:
        graph = completed(trace(wanted))
        verify(graph)
    except (pr.errors.PolyrhythmError, GrammarError):
        return False
    bounds = {variables[name]: size for name, size in program.bounds}
    changed = _passed(program, graph, without)
    before, after = run(graph, inputs, bounds), run(changed, inputs, bounds)
    for number, (one, other) in enumerate(zip(before, after, strict=True)):
        a, b = np.asarray(one), np.asarray(other)
        scale = np.max(np.abs(a[np.isfinite(a)]), initial=1.0) if a.dtype.kind == "f" else 1.0
        if not np.allclose(a, b, rtol=1e-6, atol=1e-9 * scale, equal_nan=True):
            what = f"gradient {number} differs without={without!r}:\n{a}\n{b}"
            raise Mismatch(program, what, f"# {what}\n{definition(program)}")
    return True


def check_subset(case: Case, shares: tuple[int, int, int] = (1, 4, 12)) -> bool:
    """Every backend gives what the brute force gives without some passes; raises Mismatch."""
    program, without = case
    backends = zip(("numpy", "torch", "jax"), shares, strict=True)
    try:
        program = repeated(program)
        _inspect(program, without)
        return check(program, [compiled(name, share, without) for name, share in backends])
    except Mismatch as error:
        kept = f"# without {', '.join(without) or 'nothing'}\n"
        raise Mismatch(program, f"{error.what}\nwithout={without!r}", kept + error.script) from error.__cause__


def _inspect(program: Program, without: Collection[str]) -> None:
    variables = build(program)
    try:
        graph = completed(trace(list(variables["outputs"].values()), (), variables["until"] or None))
    except pr.errors.PolyrhythmError:
        return  # the check of the whole says whether that is right
    _passed(program, graph, without)


def _passed(program: Program, graph: Graph, without: Collection[str]) -> Graph:
    """The graph after the passes, the grammar checked after each; which rules applied is counted."""

    def legal(name: str, changed: Graph) -> None:
        try:
            verify(changed)
        except Exception as error:
            what = f"after {name}: {error}"
            raise Mismatch(program, what, f"# {what}") from error

    changed, notes = optimised(graph, without, legal)
    FIRED.update(f"{note.by}: {note.rule}" for note in notes if not note.refused)
    return changed


__all__ = ["FIRED", "Case", "check_gradients", "check_subset", "subsets"]
