"""What the algorithms share: a run to be compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polyrhythm.lang.index import Bound, Dim
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
