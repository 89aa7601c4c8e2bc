"""Updates in place: outputs that are an input with some step of every entry replaced."""

from __future__ import annotations

import numpy as np

from polyrhythm.compiler.ir.graph import Definition, Node
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.stream.directives import TileDirective
from polyrhythm.stream.lowering.grids import metadata_grid
from polyrhythm.stream.lowering.problem import Problem, reads_here


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
