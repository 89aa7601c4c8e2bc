"""`python -m benchmarks.rl_scale [--only what=seeds]`: seeds side by side, large observations, long contexts.

- `seeds`: PPO in CartPole, 16 seeds by `jax.vmap` over the program, and the same program one seed after another.
- `images`: PPO with observations of as many numbers as an image has, up to 3 x 128 x 128: the peak of the process above
  what it had before, over the bytes of the observations of one rollout; ours, JAX by an expert, CleanRL's torch.
- `context`: PPO with a transformer that attends to 128 steps: the peak of the plan, and that of a cache of keys and
  values with every transition.

Each row runs in a process of its own, and is kept in `build/benchmarks/rl_scale.json`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import Only, Rows, add_options, own_peak_mb

OUT = Path("build/benchmarks/rl_scale.json")
KEYS = ("what", "size", "system")
SEEDS, ITERATIONS = 16, 20
ENVS, STEPS = 8, 64
SIDES = (32, 64, 128)
ROWS = [
    {"what": "seeds", "size": SEEDS, "system": "polyrhythm"},
    *({"what": "images", "size": n, "system": s} for n in SIDES for s in ("polyrhythm", "jax", "torch")),
    {"what": "context", "size": 128, "system": "polyrhythm"},
]


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        row = json.loads(given.row)
        print(json.dumps(row | globals()[row["what"]](row["size"], row["system"])))
        return
    kept, only = Rows(OUT, KEYS), Only(given.only)
    for row in filter(only, ROWS):
        if given.again or kept.get(row) is None:
            command = [sys.executable, "-m", "benchmarks.rl_scale", "--row", json.dumps(row)]
            # Memory that is freed goes back at once, so that the peak is what was in use.
            environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
            done = subprocess.run(command, capture_output=True, text=True, timeout=given.limit, env=environment)
            failed = {**row, "failed": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
            kept.add(failed if done.returncode else json.loads(done.stdout.strip().splitlines()[-1]))
    for row in ROWS:
        print(json.dumps(kept.entry(row)))


def seeds(count: int, system: str) -> dict[str, float]:
    """Seconds of all seeds, side by side and one after another, compiling apart."""
    import jax

    import polyrhythm as pr
    from polyrhythm import rl

    carts = rl.Arrays(rl.CartPole(), 4)
    model = rl.ActorCritic(carts.observations, carts.actions, (64, 64), np.random.default_rng(0))
    training = rl.ppo(carts, model, rl.PPOSettings(steps=128))
    outputs = {name: x for name, x in training.outputs.items() if name != "weights"}
    program = pr.compile(outputs, training.bounds, progress=False)
    bounds = {training.iterations: ITERATIONS}
    numbers = np.arange(count, dtype=np.uint32)
    with jax.enable_x64(True):
        every = jax.jit(jax.vmap(lambda seed: program(bounds=bounds, seed=seed)))

        def together() -> Any:
            return jax.block_until_ready(every(numbers))

        def alone() -> Any:
            return [jax.block_until_ready(program(bounds=bounds, seed=int(seed))) for seed in numbers]

        found, wanted = together(), alone()
        np.testing.assert_allclose(found["return"][3], wanted[3]["return"], rtol=1e-3)
        ways = {"together_s": together, "one_after_another_s": alone}
        times = {name: min(_seconds(way) for _ in range(3)) for name, way in ways.items()}
    return times | {"times_faster": times["one_after_another_s"] / times["together_s"]}


def _seconds(way: Any) -> float:
    began = time.perf_counter()
    way()
    return time.perf_counter() - began


def images(side: int, system: str) -> dict[str, float]:
    """The peak of a process in two iterations, above what it is with observations of one number."""
    size, settings_of = 3 * side * side, ENVS * STEPS * 4
    _iterations(system, 1)
    gc.collect()
    before = own_peak_mb()
    _iterations(system, size)
    peak, rollout = own_peak_mb() - before, settings_of * size / 2**20
    return {"peak_mb": peak, "rollout_mb": rollout, "rollouts": peak / rollout}


def _iterations(system: str, size: int) -> None:
    """Two iterations of PPO with observations of so many numbers, in one minibatch after another."""
    import polyrhythm as pr
    from polyrhythm import rl

    settings = rl.PPOSettings(steps=STEPS, minibatches=32, epochs=1)
    lamps = rl.Arrays(rl.Synthetic((size,), 100, 4), ENVS)
    model = rl.ActorCritic(lamps.observations, lamps.actions, (16,), np.random.default_rng(0))
    if system == "polyrhythm":
        training = rl.ppo(lamps, model, settings)
        outputs = {name: x for name, x in training.outputs.items() if name != "weights"}
        pr.compile(outputs, training.bounds, progress=False)(bounds={training.iterations: 2})
    elif system == "jax":
        from benchmarks import rl_jax
        from benchmarks.rl import repeated

        step = rl_jax.synthetic((size,), 100, 4)
        repeated(*rl_jax.trainer(model.weights(), ENVS, step, (size,), 4, settings))(2)
    else:
        from benchmarks import rl_torch

        iteration = rl_torch.trainer(model.weights(), ENVS, (size,), 100, 4, settings)
        iteration()
        iteration()


def context(length: int, system: str) -> dict[str, float]:
    """Bytes of a whole iteration of PPO, and those of a cache with each transition of its rollout."""
    import polyrhythm as pr
    from polyrhythm import rl

    steps, size, layers = 128, 64, 2
    games = rl.Arrays(rl.Recall(), ENVS)
    memory = rl.Transformer(size, heads=4, layers=layers, context=length)
    model = rl.ActorCritic(games.observations, games.actions, (size,), np.random.default_rng(0), memory=memory)
    training = rl.ppo(games, model, rl.PPOSettings(steps=steps, minibatches=8, epochs=1))
    program = pr.compile(training.outputs, training.bounds, progress=False)
    peak, caches = program.memory.peak({str(training.iterations): 2}), steps * ENVS * length * layers * 2 * size * 4
    return {"peak_mb": peak / 2**20, "caches_mb": caches / 2**20, "times_less": caches / peak}


if __name__ == "__main__":
    main()
