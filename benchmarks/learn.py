"""Learning runs: five seeds each, curves and logs kept in docs/learning.

    python -m benchmarks.learn [name ...] [--seeds 0,1] [--minutes 4]

Seeds of small compiled environments are trained in one call. Long runs are trained seed by seed in `build/learn`: after
`--minutes` they stop at a checkpoint, and the next call goes on from there; environments that cannot be saved train a
whole seed. A curve is drawn of the seeds that are complete, here or in the log that is kept. Its log has at most 200
rows per seed: steps of all environments so far, and the mean return of the episodes that ended since the row before.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm.errors import UnsupportedError
from polyrhythm.rl import presets
from polyrhythm.rl.curves import draw, smoothed
from polyrhythm.rl.runs import Run as Chosen
from polyrhythm.rl.seeds import train_seeds
from polyrhythm.rl.train import Outside, savable, train

ROOT = Path(__file__).parent.parent
FOLDER, WORK = ROOT / "docs" / "learning", ROOT / "build" / "learn"
SEEDS, POINTS = 5, 200


@dataclass(frozen=True)
class Run:
    """One curve of a picture, by its preset."""

    picture: str
    label: str
    algorithm: str
    env: str
    memory: str | None = None
    compiled: bool = True
    together: bool = True
    """All seeds in one call; otherwise one after another."""

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.picture}-{self.label.lower()}"

    @property
    def preset(self) -> Chosen:
        """What `polyrhythm train` makes of it."""
        options = {"env": self.env, "compiled": self.compiled, "memory": self.memory}
        return Chosen(self.algorithm, {name: value for name, value in options.items() if value is not None})


RUNS = [
    Run("cartpole", "PPO", "ppo", "CartPole-v1"),
    Run("cartpole", "DQN", "dqn", "CartPole-v1"),
    Run("acrobot", "PPO", "ppo", "Acrobot-v1"),
    Run("pendulum", "SAC", "sac", "Pendulum-v1"),
    Run("pendulum", "TD3", "td3", "Pendulum-v1"),
    Run("recall", "MLP", "ppo", "Recall"),
    Run("recall", "LSTM", "ppo", "Recall", "lstm"),
    Run("recall", "transformer", "ppo", "Recall", "transformer"),
    Run("breakout", "PPO", "ppo", "Breakout-MinAtar", together=False),
    Run("lunarlander", "PPO", "ppo", "LunarLander-v3", compiled=False, together=False),
    Run("halfcheetah", "PPO", "ppo", "HalfCheetah-v5", compiled=False, together=False),
]


def curves(run: Run, seeds: list[int], minutes: float) -> tuple[dict[int, np.ndarray], float]:
    """Returns by iteration, NaN where no episode ended, of the seeds that are complete; and the minutes."""
    chosen = run.preset
    iterations, settings = chosen.iterations, dict(chosen.settings)
    if run.algorithm == "ppo":
        settings = {"anneal_lr": iterations} | settings
    if run.together:
        began = time.perf_counter()
        found = train_seeds(run.algorithm, chosen.source, iterations, seeds, chosen.hidden, chosen.model, **settings)
        whole = np.where(found["episodes"] > 0, found["return"], np.nan)
        return dict(zip(seeds, whole, strict=True)), (time.perf_counter() - began) / 60
    for seed in seeds:
        folder = WORK / run.name / str(seed)
        if len(_returns(folder)) < iterations:
            folder.mkdir(parents=True, exist_ok=True)
            _go_on(run, seed, folder, settings, minutes)
    folders = [path for path in sorted((WORK / run.name).iterdir()) if len(_returns(path)) >= iterations]
    spent = sum(float((folder / "minutes").read_text()) for folder in folders)
    return {int(folder.name): _returns(folder) for folder in folders}, spent


def _go_on(run: Run, seed: int, folder: Path, settings: dict[str, Any], minutes: float) -> None:
    """Train one seed from where it is, for so many minutes."""
    began, clock, chosen = time.perf_counter(), folder / "minutes", run.preset
    source = presets.source(run.env, chosen.count, run.compiled, seed, algorithm=run.algorithm)
    options: dict[str, Any] = {"hidden": chosen.hidden, "model": chosen.model, "seed": seed}
    options["log"] = str(folder / "log.csv")
    if _can_be_saved(source):
        late = began + 60 * minutes
        options |= {"checkpoint": str(folder / "checkpoint"), "every": 50, "stop": lambda: time.perf_counter() > late}
    with contextlib.suppress(KeyboardInterrupt):
        train(run.algorithm, source, chosen.iterations, **options, **settings)
    spent = (float(clock.read_text()) if clock.exists() else 0.0) + (time.perf_counter() - began) / 60
    clock.write_text(f"{spent:.2f}")
    found = _returns(folder)
    print(f"{run.name} seed {seed}: {len(found)}/{chosen.iterations}, {smoothed(found, 20)[-1]:.1f}", flush=True)


def _can_be_saved(source: Any) -> bool:
    try:
        Outside(savable(source)).save()
    except UnsupportedError:
        return False
    return True


def _returns(folder: Path) -> np.ndarray:
    """The returns of the log of a run, NaN where no episode ended."""
    log = folder / "log.csv"
    if not log.is_file():
        return np.zeros(0)
    with log.open() as file:
        return np.array([float(row["return"] or "nan") for row in csv.DictReader(file)])


def thinned(curve: np.ndarray, rows: int) -> list[tuple[int, float]]:
    """At most so many points: the mean of the iterations between them."""
    parts = np.array_split(np.arange(len(curve)), min(POINTS, len(curve)))
    points = []
    for part in parts:
        known = curve[part][~np.isnan(curve[part])]
        points.append((int(part[-1] + 1) * rows, float(known.mean()) if known.size else float("nan")))
    return points


def main() -> None:
    """Make the runs of some pictures, or all; then draw the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of pictures, or of curves such as cartpole-ppo")
    parser.add_argument("--seeds", default=",".join(map(str, range(SEEDS))), help="those to train")
    parser.add_argument("--minutes", type=float, default=600.0, help="after which a seed stops at a checkpoint")
    given = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    for run in RUNS:
        if given.names and not {run.picture, run.name} & set(given.names):
            continue
        found, minutes = curves(run, [int(seed) for seed in given.seeds.split(",")], given.minutes)
        if found:
            _keep(run, found, minutes)
    for picture in dict.fromkeys(run.picture for run in RUNS):
        _draw(picture)


def _keep(run: Run, found: dict[int, np.ndarray], minutes: float) -> None:
    """Write the log of a curve and what is to be said of it; seeds that were not found stay as they are."""
    log, said = FOLDER / f"{run.name}.csv", FOLDER / f"{run.name}.json"
    points: dict[int, list[tuple[Any, str]]] = {}
    last: dict[int, float] = {}
    if log.is_file():
        before = json.loads(said.read_text())
        with log.open() as file:
            for row in csv.DictReader(file):
                points.setdefault(int(row["seed"]), []).append((row["steps"], row["return"]))
        last = dict(zip(points, before["last"], strict=True))
        minutes += before["minutes"] if set(points) - set(found) else 0.0
    for seed, curve in found.items():
        points[seed] = [(steps, f"{value:.3f}") for steps, value in thinned(curve, run.preset.rows)]
        last[seed] = round(float(smoothed(curve, max(1, len(curve) // 20))[-1]), 1)
    with log.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seed", "steps", "return"])
        writer.writerows((seed, *point) for seed in sorted(points) for point in points[seed])
    steps = run.preset.iterations * run.preset.rows
    facts = {"run": f"{run.label} {run.env}", "steps": steps, "seeds": len(points)}
    facts |= {"minutes": round(minutes, 1), "last": [last[seed] for seed in sorted(last)]}
    said.write_text(json.dumps(facts) + "\n")
    print(json.dumps(facts), flush=True)


def _draw(picture: str) -> None:
    """All curves of a picture that have a log."""
    labels, grids = {}, {}
    for run in RUNS:
        path = FOLDER / f"{run.name}.csv"
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
    main()
