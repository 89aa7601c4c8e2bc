"""Whole outputs by brute force: every point of a domain, dims leading, and the calls with an effect."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.fuzz.brute import Brute, Point
from tests.fuzz.brute_ops import strong
from tests.fuzz.dims import extents_of
from tests.fuzz.kinds import dtype_of
from tests.fuzz.program import Expr, Index, Program, Sym, walk


@dataclass(frozen=True)
class Output:
    """An output over its whole domain; `mask` says which points of a ragged one count."""

    values: np.ndarray
    scale: np.ndarray | None
    dtype: str
    mask: np.ndarray | None = None


def output(run: Brute, node: Expr) -> Output:
    """An expression over its whole domain, dims leading, padded with zeros where it is ragged."""
    dims = run.dims(node)
    extents = extents_of(node, run.program)
    points: list[Point] = [()]
    for dim in dims:
        points = [
            (*p, step)
            for p in points
            for step in range(min(run.index(e, dict(zip(dims, p, strict=False))) for e in extents[dim]))
        ]
    values = {p: strong(run.at(node, dict(zip(dims, p, strict=True)))) for p in points}
    dtype = next((x.dtype for x in values.values()), None)
    if dtype is None:
        dtype = dtype_of(node, run.program)
        dtype = {"int": "int32", "float": "float32"}.get(dtype, dtype)
        return Output(np.zeros(0), None, dtype, None)
    lead = tuple(leading(run, d, extents[d], [p[axis] for p in points]) for axis, d in enumerate(dims))
    shape = tuple(int(n) for n in np.max([x.v.shape for x in values.values()], axis=0))
    whole = np.zeros((*lead, *shape))
    scale, mask = np.zeros_like(whole), np.zeros(whole.shape, bool)
    for point, x in values.items():
        place: tuple[Any, ...] = (*point, *map(slice, x.v.shape))
        whole[place], scale[place], mask[place] = x.v, x.scale, True
    return Output(whole, scale if dtype == "float32" else None, dtype, mask)


def leading(run: Brute, dim: str, extents: list[Index], steps: list[int]) -> int:
    """The length of the axis of a dim: its extent, or of a ragged one the longest."""
    names = {n.name for e in extents for n in walk(e) if isinstance(n, Sym)}
    varying = {d.bound for d in run.program.dims if d.extent is not None}
    varying |= {d.upper() for d, done in run.stops.items() if len(run.dims(done)) > 1}
    return max(steps) + 1 if names & varying else min(run.index(e, {}) for e in extents)


def outputs(run: Brute) -> dict[str, Output]:
    """Every output; raises Invalid if any part of the program means nothing."""
    run.check()
    return {name: output(run, node) for name, node in run.program.outputs}


def evaluate(
    program: Program, inputs: Mapping[str, np.ndarray], bounds: Mapping[str, int] | None = None
) -> tuple[dict[str, Output], list[tuple[str, Any]]]:
    """The outputs of a program by brute force, and the calls with an effect in their order."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 60000))
    try:
        run = Brute(program, inputs, dict(program.bounds) if bounds is None else bounds)
        return outputs(run), run.log()
    finally:
        sys.setrecursionlimit(limit)
