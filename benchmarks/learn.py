"""Learning runs: five seeds each, curves and logs kept in docs/learning.

    python -m benchmarks.learn [name ...]

Seeds of compiled environments are trained in one call. A log has at most 200 rows per seed: steps of all environments
so far, and the mean return of the episodes that ended since the row before.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm.rl import presets
from polyrhythm.rl.curves import draw, smoothed
from polyrhythm.rl.seeds import train_seeds
from polyrhythm.rl.train import train

FOLDER = Path(__file__).parent.parent / "docs" / "learning"
SEEDS, POINTS = 5, 200


@dataclass(frozen=True)
class Run:
    """One curve of a picture."""

    picture: str
    label: str
    algorithm: str
    env: str
    steps: int
    """Of all environments together."""
    envs: int = 8
    hidden: tuple[int, ...] = (64, 64)
    model: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    compiled: bool = True


CART_DQN = {"steps": 2, "batch_size": 64, "learning_rate": 1e-3, "buffer_size": 32_000, "n_step": 3, "double": False}
CART_DQN |= {"target_update": 100, "exploration_final": 0.02, "exploration_steps": 16_000}
SWING = {"steps": 32, "updates": 32, "learning_rate": 1e-3, "buffer_size": 20_000}
RECALL = {"steps": 40, "minibatches": 4, "epochs": 4, "learning_rate": 1e-3}

RUNS = [
    Run("cartpole", "PPO", "ppo", "CartPole-v1", 300_000, settings={"learning_rate": 5e-4}),
    Run("cartpole", "DQN", "dqn", "CartPole-v1", 150_000, settings=CART_DQN),
    Run("acrobot", "PPO", "ppo", "Acrobot-v1", 500_000, envs=16, settings={"learning_rate": 1e-3, "gae_lambda": 0.94}),
    Run("pendulum", "SAC", "sac", "Pendulum-v1", 20_000, envs=1, settings=SWING),
    Run("pendulum", "TD3", "td3", "Pendulum-v1", 20_000, envs=1, settings=SWING),
    Run("recall", "MLP", "ppo", "Recall", 300_000, envs=32, hidden=(32,), settings=RECALL),
    Run("recall", "LSTM", "ppo", "Recall", 300_000, envs=32, hidden=(32,), model={"memory": "lstm"}, settings=RECALL),
    Run(
        "recall",
        "transformer",
        "ppo",
        "Recall",
        300_000,
        envs=32,
        hidden=(32,),
        model={"memory": "transformer", "context": 12},
        settings=RECALL,
    ),
    Run(
        "breakout",
        "PPO",
        "ppo",
        "Breakout-MinAtar",
        2_000_000,
        envs=32,
        model={"shared": True},
        settings={"learning_rate": 1e-3, "steps": 64},
    ),
    Run(
        "lunarlander",
        "PPO",
        "ppo",
        "LunarLander-v3",
        600_000,
        envs=16,
        settings={"steps": 256, "gamma": 0.999, "gae_lambda": 0.98},
        compiled=False,
    ),
    Run("halfcheetah", "PPO", "ppo", "HalfCheetah-v5", 1_000_000, envs=1, settings=presets.MUJOCO_PPO, compiled=False),
]


def curves(run: Run) -> tuple[np.ndarray, int]:
    """Returns by seed and iteration, NaN where no episode ended; and the steps of an iteration."""
    source = presets.source(run.env, run.envs, run.compiled)
    rows = run.envs * run.settings.get("steps", 128)
    iterations = run.steps // rows
    settings = presets.settings_for(run.algorithm, run.env) | run.settings
    if run.algorithm == "ppo":
        settings = {"anneal_lr": iterations} | settings
    if run.compiled:
        found = train_seeds(run.algorithm, source, iterations, range(SEEDS), run.hidden, run.model, **settings)
        return np.where(found["episodes"] > 0, found["return"], np.nan), rows
    every = []
    for seed in range(SEEDS):
        source = presets.source(run.env, run.envs, seed=seed)
        result = train(run.algorithm, source, iterations, hidden=run.hidden, model=run.model, seed=seed, **settings)
        every.append(np.where(np.asarray(result["episodes"]) > 0, result["return"], np.nan))
        print(f"  seed {seed}: {smoothed(every[-1], 20)[-1]:.1f}", flush=True)
    return np.stack(every), rows


def thinned(curve: np.ndarray, rows: int) -> list[tuple[int, float]]:
    """At most so many points: the mean of the iterations between them."""
    parts = np.array_split(np.arange(len(curve)), min(POINTS, len(curve)))
    points = []
    for part in parts:
        known = curve[part][~np.isnan(curve[part])]
        points.append((int(part[-1] + 1) * rows, float(known.mean()) if known.size else float("nan")))
    return points


def main(wanted: list[str]) -> None:
    """Make the runs of some pictures, or all; then draw the pictures."""
    FOLDER.mkdir(exist_ok=True)
    for run in RUNS:
        names = (run.picture, f"{run.picture}-{run.label.lower()}")
        if wanted and not set(names) & set(wanted):
            continue
        began = time.perf_counter()
        found, rows = curves(run)
        minutes = (time.perf_counter() - began) / 60
        path = FOLDER / f"{run.picture}-{run.label.lower()}.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["seed", "steps", "return"])
            for seed, curve in enumerate(found):
                writer.writerows((seed, steps, f"{value:.3f}") for steps, value in thinned(curve, rows))
        last = np.array([smoothed(curve, max(1, len(curve) // 20))[-1] for curve in found])
        facts = {"run": f"{run.label} {run.env}", "steps": run.steps, "seeds": len(found)}
        facts |= {"minutes": round(minutes, 1), "last": [round(float(x), 1) for x in last]}
        (FOLDER / f"{run.picture}-{run.label.lower()}.json").write_text(json.dumps(facts) + "\n")
        print(json.dumps(facts), flush=True)
    for picture in dict.fromkeys(run.picture for run in RUNS):
        _draw(picture)


def _draw(picture: str) -> None:
    """All curves of a picture that have a log."""
    labels, grids = {}, {}
    for run in RUNS:
        path = FOLDER / f"{picture}-{run.label.lower()}.csv"
        if run.picture != picture or not path.is_file():
            continue
        with path.open() as file:
            rows = list(csv.DictReader(file))
        seeds = sorted({row["seed"] for row in rows})
        labels[run.label] = np.array(
            [smoothed(np.array([float(r["return"]) for r in rows if r["seed"] == seed]), 5) for seed in seeds]
        )
        grids[run.label] = float(rows[0]["steps"])
    if labels:
        draw(labels, str(FOLDER / f"{picture}.svg"), "return", list(grids.values()))


if __name__ == "__main__":
    main(sys.argv[1:])
