"""Evaluation: whole episodes by an agent without exploration, in environments of their own with seeds of their own.

The program takes weights as inputs, so it is compiled once however often a run is evaluated. Each environment plays one
episode, of at most as many steps as its limit allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polyrhythm.language.functions import clip, constant, sqrt, where, zeros
from polyrhythm.language.index import dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.rl.memory import Acting
from polyrhythm.rl.normalization import Normalized
from polyrhythm.rl.running import Arrays, Source, carried
from polyrhythm.runtime.program import compile


class Evaluator:
    """Plays episodes with an agent; one environment for each.

    >>> from polyrhythm import rl
    >>> carts = rl.Arrays(rl.CartPole(limit=20), 3)
    >>> model = rl.QNetwork(carts.observations, carts.actions, (4,), np.random.default_rng(0))
    >>> Evaluator(carts, model, backend="numpy")(model.weights()).shape
    (3,)
    """

    def __init__(
        self,
        source: Source,
        model: Any,
        seed: int = 1_000_003,
        backend: str = "jax",
        statistics: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.seed = seed
        i, iterations = dim("i")
        t, last = dim("t")
        inner = source.source if isinstance(source, Normalized) else source
        given = model.parameters()
        agent = model.using(given)
        along = Acting(i, t, source.count) if getattr(model, "remembers", False) else None

        def act(seen: Any) -> Tensor:
            if statistics is not None and isinstance(source, Normalized):
                mean, variance = (constant(statistics[f"observation_{name}"]) for name in ("mean", "variance"))
                seen = clip((seen.cast("float32") - mean) / sqrt(variance + source.epsilon), -source.clip, source.clip)
            return agent.act(seen, along)

        steps = inner.run(i, t, act)
        if along is not None:
            along.ended(steps)
        total = carried(i, t, zeros((source.count,)), "return")
        over = carried(i, t, zeros((source.count,), "bool"), "over")
        total[i, t + 1] = total + where(over, 0.0, steps.reward)
        over[i, t + 1] = over | steps.terminated | steps.truncated
        limit = inner.environment.limit if isinstance(inner, Arrays) else inner.limit  # type: ignore[attr-defined]
        bounds = {iterations: 1, last: limit}
        self._program = compile(total[{i: 0, t: last}], bounds, backend=backend, progress=False)

    def __call__(self, weights: Mapping[str, np.ndarray]) -> np.ndarray:
        """The return of each episode."""
        used: dict[str, Any] = {name: weight for name, weight in weights.items() if name in self._program.params}
        return np.asarray(self._program(seed=self.seed, **used))
