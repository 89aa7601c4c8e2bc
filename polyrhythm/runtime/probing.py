"""Looking at any value of a program: a variant that has it as its output is compiled and kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from polyrhythm.errors import BoundsError, UnknownDimError
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor

if TYPE_CHECKING:
    from polyrhythm.runtime.program import Program

_variants: WeakKeyDictionary[Program, dict[int, tuple[Tensor, Program]]] = WeakKeyDictionary()


def probe(
    program: Program,
    tensor: Tensor,
    at: Mapping[Dim, int],
    inputs: Mapping[str, Any],
    bounds: Mapping[Any, int] | None,
    seed: int,
) -> Any:
    """The value of a tensor at some steps; dims that `at` does not name lead."""
    for dim in at:
        if not isinstance(dim, Dim) or dim.symbol not in tensor.symbols:
            raise UnknownDimError(
                f"the tensor does not vary along {dim}; its dims are {tensor.dims}",
                fix="name dims of the tensor in at=",
            )
    variant = _variant(program, tensor)
    used = variant.compiled.graph.inputs
    params = {name: value for name, value in program.params.items() if name in used}
    given = {name: value for name, value in inputs.items() if name in used or name not in program.compiled.graph.inputs}
    value = variant(bounds=bounds, seed=seed, **{**params, **given})
    index = tuple(at.get(dim, slice(None)) for dim in tensor.dims)
    for dim, step, length in zip(tensor.dims, index, value.shape, strict=False):
        if not isinstance(step, slice) and not 0 <= step < length:
            raise BoundsError(f"there is no step {dim} = {step}: the run has {length}", fix="name an earlier step")
    return np.asarray(value[index]) if isinstance(value, np.ndarray) else value[index]


def _variant(program: Program, tensor: Tensor) -> Program:
    from polyrhythm.runtime.program import Program, Wanted

    kept = _variants.setdefault(program, {})
    if id(tensor) not in kept:
        wanted = program.wanted
        # The outputs are compiled too: random sites without a name are numbered in the order of the walk.
        rebuild = lambda results: results[-1]  # noqa: E731
        outputs = (*wanted.outputs, tensor)
        changed = Wanted(outputs, rebuild, wanted.bounds, wanted.until, wanted.effects)
        kept[id(tensor)] = tensor, Program(changed, program.options)
    return kept[id(tensor)][1]
