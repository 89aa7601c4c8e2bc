"""Metadata at all of its points at once: whole arrays where the operations allow it, else point by point."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from polyrhythm.compiler.ir.graph import Node
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.stream.lowering.problem import Problem, reads_here
from polyrhythm.stream.lowering.tiles import BROADCASTING


def metadata_grid(problem: Problem, node: Node, dims: tuple[Symbol, ...]) -> np.ndarray:
    """A metadata node of scalars at all steps of some dims; length one along those that it lacks."""
    sizes = [problem.extent(node, symbol) if symbol in node.symbols else 1 for symbol in dims]
    definition = node.definitions[0]
    if len(node.definitions) == 1 and definition.op == "input":
        array = problem.arrays[definition.attributes["name"]]
        assert array is not None
        order = [node.symbols.index(symbol) for symbol in dims if symbol in node.symbols]
        return array.transpose(order).reshape(sizes)
    if len(node.definitions) == 1 and definition.op == "index":
        counted = next((s for s in dims if definition.attributes["value"] is Term.of(s)), None)
        if counted is not None:
            return np.arange(sizes[dims.index(counted)], dtype=node.dtype).reshape(
                [size if symbol is counted else 1 for symbol, size in zip(dims, sizes, strict=True)]
            )
    if len(node.definitions) == 1 and definition.op in BROADCASTING and reads_here(problem.graph, definition):
        parts = []
        for access in definition.operands:
            literal = problem.constant(access.source)
            parts.append(literal if literal is not None else metadata_grid(problem, problem.graph[access.source], dims))
        return np.asarray(TABLE[definition.op].numpy(*parts, **definition.attributes))
    values = [
        problem.metadata(node.name, {s: at for s, at in zip(dims, point, strict=True) if s in node.symbols})
        for point in np.ndindex(*sizes)
    ]
    return np.array(values).reshape(sizes)


def metadata_array(problem: Problem, node: Node, dims: tuple[Symbol, ...], sizes: Mapping[Symbol, int]) -> np.ndarray:
    """A metadata node at all steps of some dims, whatever it lacks repeated; then the axes of its value."""
    full = [sizes[s] if s in sizes else problem.extent(node, s) for s in dims]
    if not node.shape:
        return np.broadcast_to(metadata_grid(problem, node, dims), full)
    points = np.ndindex(*full)
    values = [
        problem.metadata(node.name, {s: n for s, n in zip(dims, at, strict=True) if s in node.symbols}) for at in points
    ]
    return np.array(values).reshape(*full, *values[0].shape)
