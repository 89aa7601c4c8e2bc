"""Lengths that are data: how far a dim has to be walked for each entry of another.

A program says `pr.where(pr.value(s) <= length, score, -inf)` and then takes a maximum or a sum over all of s. Beyond
the last step where the condition holds the value is the identity of that maximum or sum, so the steps there need not
be walked at all: the dim becomes ragged. The conditions are metadata, so where they hold is known. What a value is
beyond them follows from the operations: a literal through `where`, minus infinity through `exp` to zero, zero through
products (values that are not read are taken to be finite, as everywhere in the compiler).

Updates in place: outputs that are an input with some step of every entry replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from polyrhythm.compiler.ir.dtypes import identity
from polyrhythm.compiler.ir.graph import Definition, Node, Range
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.stream.directives import TileDirective
from polyrhythm.stream.lowering.problem import (
    Problem,
    components,
    is_whole,
    metadata_grid,
    only,
    reads_here,
    signature_of,
)
from polyrhythm.stream.lowering.tiles import BROADCASTING

_RELABELLING = ("copy", "broadcast", "reshape", "transpose", "cast", "detach")


def walked_lengths(problem: Problem, dims: tuple[Symbol, ...], walked: Symbol, updates: Collection[str]) -> np.ndarray:
    """How many steps of a dim matter at each step of others: all, or those up to where some condition last holds.

    `updates` names the nodes that may be outputs although they are not walked to the end.
    """
    *counts, steps = (max(problem.extent(n, s) for n in problem.graph if s in n.symbols) for s in (*dims, walked))
    best = np.full(counts, steps)
    for mask in _masks(problem, dims, walked):
        if problem.is_metadata(mask.name) and _is_enough(problem, walked, mask.name, updates):
            held = metadata_grid(problem, mask, (*dims, walked))
            reach = np.where(held.any(-1), steps - np.argmax(held[..., ::-1], axis=-1), 0)
            best = np.minimum(best, reach)
    return best


@dataclass(frozen=True)
class RunTimeLength:
    """A length that is read or computed while the program runs: steps below the value of a node, and `more`, matter."""

    node: str
    more: int


def run_time_length(problem: Problem, dims: tuple[Symbol, ...], walked: Symbol) -> RunTimeLength | None:
    """The length beyond which nothing matters, where a condition compares the step with numbers that are not known."""
    graph = problem.graph
    for mask in _masks(problem, dims, walked):
        compared = only(graph, mask.name, *_COMPARED)
        if compared is None or not reads_here(graph, compared) or not _is_enough(problem, walked, mask.name, ()):
            continue
        place, more = _COMPARED[compared.op]
        counted = only(graph, compared.operands[place].source, "index")
        length = graph[compared.operands[1 - place].source]
        is_length = length.dims and length.dtype.kind == "i" and not problem.is_metadata(length.name)
        if is_length and counted is not None and counted.attributes["value"] is walked.term:
            return RunTimeLength(length.name, more)
    return None


_COMPARED = {"lt": (0, 0), "le": (0, 1), "gt": (1, 0), "ge": (1, 1)}
"""Which side of a comparison is the step, and what is added to the length on the other side."""


def ragged_entry(problem: Problem) -> Symbol | None:
    """A dim whose entries need different lengths of a dim of some input, without being dealt out."""
    for node in problem.graph.inputs.values():
        for entry, walked in permutations(node.symbols if node.dtype.kind == "f" else (), 2):
            known = walked_lengths(problem, (entry,), walked, ())
            if known.min() < problem.extent(node, walked) or run_time_length(problem, (entry,), walked) is not None:
                return entry
    return None


def _masks(problem: Problem, dims: tuple[Symbol, ...], walked: Symbol) -> list[Node]:
    """Conditions over entries and a step that choose between values."""
    selects = [definition for node in problem.graph for definition in node.definitions if definition.op == "select"]
    masks = [problem.graph[name] for name in dict.fromkeys(select.operands[0].source for select in selects)]
    return [mask for mask in masks if {walked} < set(mask.symbols) <= {*dims, walked} and not mask.shape]


def _is_enough(problem: Problem, walked: Symbol, mask: str, updates: Collection[str]) -> bool:
    """Whether nothing of a program depends on what lies beyond a condition."""
    graph = problem.graph
    beyond: dict[str, float | None] = {}
    for name in (name for component in components(graph) for name in component):
        beyond[name] = 0.0 if name == mask else _beyond(problem, graph[name], walked, beyond)
    if any(walked in graph[name].symbols and name not in updates for name in graph.outputs):
        return False
    return all(_reads_enough(problem, definition, walked, beyond) for node in graph for definition in node.definitions)


def _beyond(problem: Problem, node: Node, walked: Symbol, beyond: Mapping[str, float | None]) -> float | None:
    """The value of a node where the condition has ended, if it is one number."""
    literal = problem.constant(node.name)
    if literal is not None:
        return float(literal.flat[0]) if literal.size and (literal == literal.flat[0]).all() else None
    if len(node.definitions) != 1 or walked not in node.symbols or problem.is_metadata(node.name):
        return None
    (definition,) = node.definitions
    if any(access.ranges for access in definition.operands):
        return None
    values = [beyond.get(access.source) for access in definition.operands]
    if definition.op == "select":
        condition, first, second = values
        return None if condition is None else first if condition else second
    if definition.op in _RELABELLING:
        return values[0]
    if definition.op == "sub" and values[0] == -np.inf:
        return -np.inf
    if definition.op in ("mul", "einsum") and 0.0 in values:
        return 0.0
    if definition.op in BROADCASTING and None not in values:
        return float(TABLE[definition.op].numpy(*(np.asarray(v, node.dtype) for v in values)))
    return None


def _reads_enough(problem: Problem, definition: Definition, walked: Symbol, beyond: Mapping[str, float | None]) -> bool:
    """Whether a definition reads only the current step along a dim, or folds it with nothing added beyond."""
    whole = []
    for number, access in enumerate(definition.operands):
        source = problem.graph[access.source]
        if walked not in source.symbols:
            continue
        step = source.steps(access)[walked]
        if isinstance(step, Term):
            if step is not Term.of(walked):
                return False
        elif not is_whole(step, next(d.extent for d in source.dims if d.symbol is walked)):
            return False
        else:
            ranges = [symbol for symbol, read in source.steps(access).items() if isinstance(read, Range)]
            whole.append((number, ranges.index(walked)))
    if not whole:
        return True
    signature = signature_of(problem.graph, definition)
    labels = {signature.operands[number][axis] for number, axis in whole}
    roles = [signature.roles[label] for label in labels if label is not None]
    if len(labels) != 1 or not roles or roles[0].kind != "reduce" or roles[0].monoid is None:
        return False
    found = [beyond.get(definition.operands[number].source) for number, _ in whole]
    if len(definition.operands) > 1:
        return 0.0 in found
    return found[0] == float(identity(roles[0].monoid, problem.graph[definition.operands[0].source].dtype)[()])


def changed_input(problem: Problem, node: Node, dims: tuple[Symbol, ...], walked: Symbol) -> Definition | None:
    """The definition of a node that is an input over entries and steps, changed in one tile of every entry."""
    definition = only(problem.graph, node.name, "select")
    if definition is None:
        return None
    mask, new, old = (problem.graph[access.source] for access in definition.operands)
    is_input = old.is_input and not problem.is_metadata(old.name) and reads_here(problem.graph, definition)
    fits = walked in mask.symbols and not mask.shape and problem.is_metadata(mask.name)
    own = set(mask.symbols) <= {*dims, walked} == set(old.symbols) and set(new.symbols) <= set(dims)
    if not (is_input and fits and own and old.shape == new.shape == node.shape):
        return None
    tiled = problem.directive(TileDirective, walked)
    chunk = 1 if tiled is None or tiled.size is None else tiled.size
    sizes = [problem.extent(old, symbol) for symbol in (*dims, walked)]
    grid = np.broadcast_to(metadata_grid(problem, mask, (*dims, walked)), sizes).reshape(-1, sizes[-1])
    if grid.shape[1] % chunk:
        return None
    tiles = grid.reshape(len(grid), -1, chunk).any(2)
    return definition if bool((tiles.sum(1) == 1).all()) else None


def hit_tiles(grid: np.ndarray, chunk: int) -> np.ndarray:
    """The tile of every entry in which a condition holds."""
    return np.asarray(np.argmax(grid.reshape(len(grid), -1, chunk).any(2), axis=1))


def output_roots(problem: Problem) -> dict[str, str]:
    """What each output is a copy of."""
    graph, found = problem.graph, {}
    for name in graph.outputs:
        root = name
        while (
            (copied := only(graph, root, "copy", "broadcast")) is not None
            and reads_here(graph, copied)
            and graph[copied.operands[0].source].shape == graph[root].shape
        ):
            root = copied.operands[0].source
        found[name] = root
    return found
