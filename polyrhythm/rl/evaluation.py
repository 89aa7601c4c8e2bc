"""Evaluation: whole episodes by an agent without exploration, in environments of their own with seeds of their own.

The program takes weights as inputs, and the statistics by which observations were normalised, so it is compiled once
however often a run is evaluated. Each environment plays one episode, of at most as many steps as its limit allows.
Returns are of the rewards that the environments give, not of normalised or clipped ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import where, zeros
from polyrhythm.language.index import dim
from polyrhythm.language.inputs import input
from polyrhythm.language.tensor import Tensor
from polyrhythm.rl.memory import Acting
from polyrhythm.rl.normalization import Normalized
from polyrhythm.rl.running import Source, carried, limit_of, unwrapped
from polyrhythm.runtime.program import compile
from polyrhythm.runtime.settings import quiet


class Evaluator:
    """Plays episodes with an agent; one environment for each.

    >>> from polyrhythm import rl
    >>> carts = rl.Arrays(rl.CartPole(limit=20), 3)
    >>> model = rl.QNetwork(carts.observations, carts.actions, (4,), np.random.default_rng(0))
    >>> Evaluator(carts, model, backend="numpy")(model.weights()).shape
    (3,)
    """

    def __init__(self, source: Source, model: Any, seed: int = 1_000_003, backend: str = "jax") -> None:
        self.seed = seed
        i, iterations = dim("i")
        t, last = dim("t")
        bare, given = unwrapped(source), model.parameters()
        agent = model.using(given)
        along = Acting(i, t, source.count) if getattr(model, "remembers", False) else None
        statistics = {}
        if isinstance(source, Normalized) and source.observation:
            names = ("observation_mean", "observation_variance")
            statistics = {name: input(name, source.observations.shape) for name in names}

        def act(seen: Any) -> Tensor:
            return agent.act(source.applied(seen, statistics) if statistics else seen, along)  # type: ignore[attr-defined]

        steps = bare.run(i, t, act)
        if along is not None:
            along.ended(steps)
        total = carried(i, t, zeros((source.count,)), "return")
        over = carried(i, t, zeros((source.count,), "bool"), "over")
        total[i, t + 1] = total + where(over, 0.0, steps.reward)
        over[i, t + 1] = over | steps.terminated | steps.truncated
        bounds = {iterations: 1, last: limit_of(bare)}
        with quiet():
            self._program = compile(total[{i: 0, t: last}], bounds, backend=backend)
        self._statistics = tuple(statistics)

    def __call__(
        self, weights: Mapping[str, np.ndarray], statistics: Mapping[str, np.ndarray] | None = None
    ) -> np.ndarray:
        """The return of each episode."""
        known = {**weights, **{name: (statistics or {}).get(name) for name in self._statistics}}
        lacking = [name for name in (*self._program.params, *self._statistics) if known.get(name) is None]
        if lacking:
            raise DeclarationError(
                f"an agent cannot be evaluated without {lacking[0]!r}, which the weights do not have",
                fix="give the weights, and the statistics of normalised observations, of one run of this model",
            )
        used: dict[str, Any] = {name: known[name] for name in (*self._program.params, *self._statistics)}
        return np.asarray(self._program(seed=self.seed, **used))
