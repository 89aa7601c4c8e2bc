"""Finding the first value that is not finite: `pr.settings(check_nan=True)`.

NumPy and torch programs look at every value as it is computed. What counts is what an operation *makes*: a NaN where no
operand has one, or an infinity where all operands are finite. So a mask of `-inf` that the user wrote passes. A JAX
program is run as it is; when an output has a NaN or an infinity the run is repeated on NumPy, which names the line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polyrhythm.compiler.ir.graph import Graph, Node
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.loops.ir import Compute, blocks_of
from polyrhythm.compiler.pipeline import Compiled
from polyrhythm.errors import NotFiniteError
from polyrhythm.runtime.processes import whole


class Checker:
    """Looks at every value of one program as it is computed."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __call__(self, compute: Compute, value: Any, operands: tuple[Any, ...], steps: tuple[int, ...]) -> None:
        """Raise if an operation has made a value that is not finite."""
        array = _floats(value)
        if array is None or np.isfinite(array).all():
            return
        arrays = [floats for floats in map(_floats, operands) if floats is not None]
        if np.isnan(array).any():
            if any(np.isnan(operand).any() for operand in arrays):
                return
            what = "a NaN"
        else:
            empty = any(operand.size == 0 for operand in arrays)
            if empty or not all(np.isfinite(operand).all() for operand in arrays):
                return
            what = "an infinity of finite values"
        name = compute.attributes["function"].name if compute.op == "host" else compute.op
        bad = array[~np.isfinite(array)].reshape(-1)[0]
        self._raise(f"{name} makes {what}", compute, steps, float(bad))

    def _raise(self, what: str, compute: Compute, steps: tuple[int, ...], bad: float) -> None:
        node = self.graph.nodes.get(compute.result)
        symbols: tuple[Any, ...] = node.symbols if node is not None else ()
        point = dict(zip(symbols, steps, strict=False))
        raise NotFiniteError(
            what + ("" if point else f": {bad}"),
            fix="keep its operands where it is finite, or compile without check_nan",
            at=compute.at or (node.at if node is not None else None),
            point=point,
            outcome=f"the value is {bad}",
        )


def check_inputs(graph: Graph, arrays: Mapping[str, Any]) -> None:
    """Raise if an input has a NaN. Infinities are allowed: masks are made of them."""
    for name, value in arrays.items():
        array, node = _floats(value), graph.inputs[name]
        if array is None or not np.isnan(array).any():
            continue
        index = np.argwhere(np.isnan(array))[0]
        point = dict(zip(node.symbols, map(int, index), strict=False))
        element = tuple(map(int, index[len(node.dims) :]))
        raise NotFiniteError(
            f"the input {name!r} has a NaN" + (f" at its element {element}" if element else ""),
            fix="clean the input first, or compile without check_nan",
            at=node.at,
            point=point,
            outcome="it is given as NaN",
        )


def check_step(node: Node, value: Any, dim: Symbol, step: int) -> None:
    """Raise if a step that a stream hands out is not finite."""
    array = _floats(value)
    if array is not None and not np.isfinite(array).all():
        raise NotFiniteError(
            "an output is not finite",
            fix='stream it with backend="numpy" to find the line that makes it',
            at=node.at,
            point={dim: step},
        )


def run_on_jax(
    compiled: Compiled,
    run: Callable[[], list[Any]],
    inputs: Mapping[str, Any],
    bounds: dict[str, int],
    seed: int,
) -> list[Any]:
    """Run on JAX; if an output is not finite, find out why on NumPy. Effects must not happen twice: then NumPy only."""
    from polyrhythm.compiler.backends.python.numpy import NumpyBackend
    from polyrhythm.compiler.backends.python.runs import cut

    if not any(block.host for block in blocks_of(compiled.loops.body)):
        results = run()
        if all(floats is None or np.isfinite(floats).all() for floats in map(_floats, results)):
            return results
    arrays = {name: whole(value) for name, value in inputs.items()}
    checked = NumpyBackend(compiled.loops, checked=True)
    begun, positions = checked.start(arrays, bounds, seed, Checker(compiled.graph))
    for _ in positions:
        pass
    # Infinities that the user wrote: nothing to complain about.
    return cut(compiled.loops, begun, bounds)


def _floats(value: Any) -> np.ndarray | None:
    """The value as NumPy floats; None if it has no floats."""
    array = whole(value)
    if array.dtype.kind == "V" or array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    return array if array.dtype.kind in "fc" else None
