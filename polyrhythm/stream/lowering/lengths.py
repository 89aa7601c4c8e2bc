"""Lengths that are data: how far a dim has to be walked for each entry of another.

A program says `pr.where(pr.value(s) <= length, score, -inf)` and then takes a maximum or a sum over all of s. Beyond
the last step where the condition holds the value is the identity of that maximum or sum, so the steps there need not
be walked at all: the dim becomes ragged. The conditions are metadata, so where they hold is known. What a value is
beyond them follows from the operations: a literal through `where`, minus infinity through `exp` to zero, zero through
products (values that are not read are taken to be finite, as everywhere in the compiler).

Updates in place: outputs that are an input with some step of every entry replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import permutations

import numpy as np

from polyrhythm.compiler.ir.dtypes import identity
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, Range, operand_type
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.stream.directives import TileDirective
from polyrhythm.stream.lowering.problem import Problem, components, is_whole, metadata_grid, reads_here
from polyrhythm.stream.lowering.tiles import BROADCASTING

_RELABELLING = ("copy", "broadcast", "reshape", "transpose", "cast", "detach")


def walked_lengths(problem: Problem, dims: tuple[Symbol, ...], walked: Symbol, updates: Collection[str]) -> np.ndarray:
    """How many steps of a dim matter at each step of others: all, or those up to where some condition last holds.

    `updates` names the nodes that may be outputs although they are not walked to the end.
    """
    *counts, steps = (max(problem.extent(n, s) for n in problem.graph if s in n.symbols) for s in (*dims, walked))
    best = np.full(counts, steps)
    for mask in _masks(problem, dims, walked):
        if _is_enough(problem, walked, mask, updates):
            held = metadata_grid(problem, problem.graph[mask], (*dims, walked))
            reach = np.where(held.any(-1), steps - np.argmax(held[..., ::-1], axis=-1), 0)
            best = np.minimum(best, reach)
    return best


def ragged_entry(problem: Problem) -> Symbol | None:
    """A dim whose entries need different lengths of a dim of some input, without being dealt out."""
    for node in problem.graph.inputs.values():
        for entry, walked in permutations(node.symbols if node.dtype.kind == "f" else (), 2):
            if walked_lengths(problem, (entry,), walked, ()).min() < problem.extent(node, walked):
                return entry
    return None


def _masks(problem: Problem, dims: tuple[Symbol, ...], walked: Symbol) -> list[str]:
    """Conditions over entries and a step that choose between values."""
    found: dict[str, None] = {}
    for node in problem.graph:
        for definition in node.definitions:
            if definition.op == "select":
                mask = problem.graph[definition.operands[0].source]
                fits = {walked} < set(mask.symbols) <= {*dims, walked}
                if fits and problem.is_metadata(mask.name) and not mask.shape:
                    found[mask.name] = None
    return list(found)


def _is_enough(problem: Problem, walked: Symbol, mask: str, updates: Collection[str]) -> bool:
    """Whether nothing of a program depends on what lies beyond a condition."""
    graph = problem.graph
    beyond: dict[str, float | None] = {}
    for name in _in_order(graph):
        beyond[name] = 0.0 if name == mask else _beyond(problem, graph[name], walked, beyond)
    if any(walked in graph[name].symbols and name not in updates for name in graph.outputs):
        return False
    return all(_reads_enough(problem, definition, walked, beyond) for node in graph for definition in node.definitions)


def _in_order(graph: Graph) -> Iterable[str]:
    return [name for component in components(graph) for name in component]


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
            whole.append((number, _axis(source, access, walked)))
    if not whole:
        return True
    types = tuple(operand_type(access, problem.graph[access.source]) for access in definition.operands)
    signature = TABLE[definition.op].signature(types, definition.attributes)
    labels = {signature.operands[number][axis] for number, axis in whole}
    if len(labels) != 1 or None in labels:
        return False
    (label,) = labels
    assert label is not None
    role = signature.roles[label]
    if role.kind != "reduce" or role.monoid is None:
        return False
    found = [beyond.get(definition.operands[number].source) for number, _ in whole]
    if len(definition.operands) > 1:
        return 0.0 in found
    return found[0] == float(identity(role.monoid, types[0].dtype)[()])


def _axis(source: Node, access: Access, walked: Symbol) -> int:
    """The axis that the range along a dim becomes."""
    ranges = [symbol for symbol, step in source.steps(access).items() if isinstance(step, Range)]
    return ranges.index(walked)


def changed_input(problem: Problem, node: Node, dims: tuple[Symbol, ...], walked: Symbol) -> Definition | None:
    """The definition of a node that is an input over entries and steps, changed in one tile of every entry."""
    if len(node.definitions) != 1 or node.definitions[0].op != "select":
        return None
    definition = node.definitions[0]
    mask, new, old = (problem.graph[access.source] for access in definition.operands)
    current = reads_here(problem.graph, definition)
    is_input = len(old.definitions) == 1 and old.definitions[0].op == "input" and not problem.is_metadata(old.name)
    fits = walked in mask.symbols and not mask.shape and problem.is_metadata(mask.name)
    own = set(mask.symbols) <= {*dims, walked} == set(old.symbols) and set(new.symbols) <= set(dims)
    if not (current and is_input and fits and own):
        return None
    if old.shape != node.shape or new.shape != node.shape:
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
    found = {}
    for name in problem.graph.outputs:
        node = problem.graph[name]
        while (
            len(node.definitions) == 1
            and node.definitions[0].op in ("copy", "broadcast")
            and not node.definitions[0].operands[0].ranges
            and problem.graph[node.definitions[0].operands[0].source].shape == node.shape
            and reads_here(problem.graph, node.definitions[0])
        ):
            node = problem.graph[node.definitions[0].operands[0].source]
        found[name] = node.name
    return found
