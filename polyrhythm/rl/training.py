"""What the algorithms share: a run to be compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polyrhythm.language.functions import maximum
from polyrhythm.language.index import Bound, Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.rl.running import Steps


@dataclass(frozen=True)
class Training:
    """Tensors to be compiled, and the bounds they need: `pr.compile(training.outputs, bounds=training.bounds)`.

    How many `iterations` there are is a bound of the call. All outputs but the last weights vary along i.
    """

    i: Dim
    iterations: Bound
    outputs: dict[str, Any]
    bounds: dict[Bound, int]
    steps: Steps
    weights: dict[str, Tensor]
    """The weights after each iteration, over i."""
    mesh: Any = None
    """The devices that it is spread over, for `pr.compile(..., mesh=training.mesh)`."""


def mean_of(x: Tensor, weight: Tensor | None) -> Tensor:
    """The mean of rows, or of those of weight 1; 0 if there are none.

    >>> import polyrhythm as pr
    >>> float(pr.evaluate(mean_of(pr.constant([1.0, 5.0]), pr.constant([0.0, 1.0]))))
    5.0
    """
    return x.mean() if weight is None else (x * weight).sum() / maximum(weight.sum(), 1.0)
