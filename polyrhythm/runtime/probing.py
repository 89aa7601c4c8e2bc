"""Looking at any value of a program, in a variant that has it as its output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from polyrhythm.errors import BoundsError, UnknownDimError
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor

if TYPE_CHECKING:
    from polyrhythm.runtime.program import Program


def probe(
    program: Program,
    variant_of: Callable[[Tensor], Program],
    tensor: Tensor,
    at: Mapping[Dim, int],
    inputs: Mapping[str, Any],
    bounds: Mapping[Any, int] | None,
    seed: int,
) -> Any:
    """The value of a tensor at some steps; dims that `at` does not name lead.

    `variant_of` compiles the program once more, with the tensor as its only result.
    """
    for dim in at:
        if not isinstance(dim, Dim) or dim.symbol not in tensor.symbols:
            raise UnknownDimError(
                f"the tensor does not vary along {dim}; its dims are {tensor.dims}",
                fix="name dims of the tensor in at=",
            )
    variant = variant_of(tensor)
    used = variant.compiled.graph.inputs
    params = {name: value for name, value in program.params.items() if name in used}
    given = {name: value for name, value in inputs.items() if name in used or name not in program.compiled.graph.inputs}
    value = variant(bounds=bounds, seed=seed, **{**params, **given})
    index = tuple(at.get(dim, slice(None)) for dim in tensor.dims)
    for dim, step, length in zip(tensor.dims, index, value.shape, strict=False):
        if not isinstance(step, slice) and not 0 <= step < length:
            raise BoundsError(f"there is no step {dim} = {step}: the run has {length}", fix="name an earlier step")
    return np.asarray(value[index]) if isinstance(value, np.ndarray) else value[index]
