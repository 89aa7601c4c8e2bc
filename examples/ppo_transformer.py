"""PPO with a transformer that attends to its past: a task that cannot be solved without a memory.

    python examples/ppo_transformer.py

A cue is shown once and asked for eight steps later. The policy attends to the last twelve steps by an index over time:
acting keeps a ring of twelve keys and values, and learning reads the same definition over whole rollouts. No cache is
stored with the transitions. `--memory lstm` or `--memory none` is the same program with another memory, or without.
"""

from __future__ import annotations

import argparse

import numpy as np

import polyrhythm as pr
from polyrhythm import rl


def main(memory: str | None = "transformer", iterations: int = 150, envs: int = 32, backend: str = "jax") -> float:
    """Train, and return the mean return of the last tenth of the iterations: 1 is perfect, -0.5 is chance."""
    games = rl.Arrays(rl.Recall(delay=8, cues=4), envs)
    model = rl.ActorCritic(
        games.observations,
        games.actions,
        hidden=(32,),
        rng=np.random.default_rng(0),
        memory=None
        if memory is None
        else rl.Transformer(32, heads=4, context=12)
        if memory == "transformer"
        else memory,
    )
    settings = rl.PPOSettings(steps=40, epochs=4, minibatches=4, learning_rate=1e-3, entropy_coef=0.01)
    training = rl.ppo(games, model, settings)
    outputs = {name: training.outputs[name] for name in ("return", "episodes", "entropy")}
    program = pr.compile(outputs, bounds=training.bounds, backend=backend)
    found = program(bounds={training.iterations: iterations}, seed=0)
    returns = np.asarray(found["return"])
    for part in np.array_split(np.arange(iterations), 10):
        print(f"{(part[-1] + 1) * settings.steps * envs:7d} steps  return {returns[part].mean():.2f}")
    return float(returns[part].mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", default="transformer", choices=["transformer", "lstm", "gru", "none"])
    parser.add_argument("--iterations", type=int, default=150)
    given = parser.parse_args()
    main(None if given.memory == "none" else given.memory, given.iterations)
