"""Several seeds of a training run in one call: `jax.vmap` over the program, its first weights and its seed."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm.rl.running import Source
from polyrhythm.rl.settings import made
from polyrhythm.rl.train import algorithm_of, model_for
from polyrhythm.runtime.program import compile
from polyrhythm.runtime.settings import quiet


def train_seeds(
    algorithm: str,
    environments: Source,
    iterations: int,
    seeds: Sequence[int],
    hidden: Sequence[int] = (64, 64),
    model: Mapping[str, Any] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    **settings: Any,
) -> dict[str, np.ndarray]:
    """The figures of all iterations, with a leading axis of seeds; each row is what that seed gives alone.

    Settings that are inputs of the program, such as `learning_rate=pr.input("rate", ())`, take one value per seed
    from `inputs`.

    >>> from polyrhythm import rl
    >>> carts = rl.Arrays(rl.CartPole(), 2)
    >>> train_seeds("reinforce", carts, 2, [0, 1, 2], hidden=(4,), steps=8)["return"].shape
    (3, 2)
    """
    import jax

    chosen = algorithm_of(algorithm)

    def agent(seed: int) -> Any:
        return model_for(algorithm, environments, hidden, np.random.default_rng(seed), **(model or {}))

    first = agent(seeds[0])
    training = chosen.make(environments, first, made(chosen.settings, settings))
    figures = {name: tensor for name, tensor in training.outputs.items() if name != "weights"}
    with quiet():
        program = compile(figures, training.bounds)
    every = [{n: w for n, w in agent(seed).weights().items() if n in program.params} for seed in seeds]
    stacked = {name: np.stack([weights[name] for weights in every]) for name in every[0]} | dict(inputs or {})

    def one(seed: Any, given: Any) -> Any:
        return program(bounds={training.iterations: iterations}, seed=seed, **given)

    with jax.enable_x64(True):  # random integers are made of 64 bits
        found = jax.jit(jax.vmap(one))(np.asarray(list(seeds), np.uint32), stacked)
    return {name: np.asarray(array) for name, array in found.items()}


def write(curves: Mapping[str, np.ndarray], path: str) -> None:
    """A CSV file with a row for each seed and iteration."""
    seeds, iterations = curves["return"].shape
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seed", "iteration", *curves])
        for seed in range(seeds):
            for iteration in range(iterations):
                row = {name: float(array[seed, iteration]) for name, array in curves.items()}
                if not row.get("episodes", 1.0):
                    row["return"] = ""  # type: ignore[assignment]
                writer.writerow([seed, iteration, *row.values()])
