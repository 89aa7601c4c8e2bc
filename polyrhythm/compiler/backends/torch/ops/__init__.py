"""Every operation of the op table on torch tensors, called as the NumPy functions are.

Shapes are exact, attributes are plain numbers, and the result has the torch dtype of the same name as NumPy's.
Integers, truth values and random bits are equal to NumPy's, floats within rounding. `carriers.py` says how the
dtypes are computed that torch does not compute in; `from_numpy` and `to_numpy` convert every supported dtype.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from polyrhythm.compiler.backends.torch.ops import axes, elementwise, factors, shapes
from polyrhythm.compiler.backends.torch.ops.carriers import NUMPY_DTYPES, TORCH_DTYPES, from_numpy, to_numpy
from polyrhythm.compiler.ir.ops.grouped import taken_spec


def _grouped(x: torch.Tensor, table: torch.Tensor, which: torch.Tensor, spec: str) -> torch.Tensor:
    taken = shapes.IMPLEMENTATIONS["take"](table, which, axis=0)
    return axes.IMPLEMENTATIONS["einsum"](x, taken, spec=taken_spec(spec))


IMPLEMENTATIONS: dict[str, Callable[..., torch.Tensor]] = {
    **elementwise.IMPLEMENTATIONS,
    **axes.IMPLEMENTATIONS,
    **factors.IMPLEMENTATIONS,
    **shapes.IMPLEMENTATIONS,
    "grouped": _grouped,
}
"""Each operation under its name."""

__all__ = ["IMPLEMENTATIONS", "NUMPY_DTYPES", "TORCH_DTYPES", "from_numpy", "to_numpy"]
