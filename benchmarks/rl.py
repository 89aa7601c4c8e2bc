"""`python -m benchmarks.rl [--quick]`: iterations of PPO, ours against an expert's JAX, torch and stable-baselines3.

Each row (an environment, a network and a system) runs in a process of its own. First the losses of all systems but
stable-baselines3 are compared on one batch, with the same weights. The table and `build/benchmarks/rl.json` have one
line for each row and system; ratios are within one run. While others keep the machine busy, the time of the processor
says more than that of the clock; both are given.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path("build/benchmarks/rl.json")
SYSTEMS = ("polyrhythm", "jax", "torch", "stable-baselines3")
SHAPE, LENGTH, ACTIONS = (8,), 100, 4
LIMIT_SECONDS = 1200
BLOCKS = 5


@dataclass(frozen=True)
class Row:
    """What is measured: `cartpole host` and `cartpole compiled` are ours and stable-baselines3's only."""

    env: str
    envs: int
    steps: int
    network: str

    @property
    def hidden(self) -> tuple[int, ...]:
        """The sizes of the hidden layers: `2x64` are two of 64."""
        count, size = self.network.split("x")
        return (int(size),) * int(count)


ROWS = [
    *(Row("synthetic", envs, 250, network) for envs in (32, 512) for network in ("2x64", "16x64", "2x256")),
    Row("cartpole compiled", 32, 250, "2x64"),
    Row("cartpole host", 32, 250, "2x64"),
]
QUICK = [Row("synthetic", 32, 250, "2x64")]


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one row, without stable-baselines3")
    parser.add_argument("--iterations", type=int, default=8, help="how many there are in each timed block")
    parser.add_argument("--systems", help=f"some of: {', '.join(SYSTEMS)}; separated by commas")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        print(json.dumps(measured(**json.loads(given.row))))
        return
    compare()
    systems = given.systems.split(",") if given.systems else SYSTEMS[:3] if given.quick else SYSTEMS
    entries = []
    for row in QUICK if given.quick else ROWS:
        for system in systems:
            if row.env == "synthetic" or system in ("polyrhythm", "stable-baselines3"):
                entries.append(in_a_process(row, system, given.iterations))
                print(json.dumps(entries[-1]), flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"name": "rl", "results": entries}, indent=1) + "\n")


def in_a_process(row: Row, system: str, iterations: int) -> dict[str, Any]:
    """One line of the table."""
    what = json.dumps({"row": asdict(row), "system": system, "iterations": iterations})
    command = [sys.executable, "-m", "benchmarks.rl", "--row", what]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return {**asdict(row), "system": system, "error": f"more than {LIMIT_SECONDS} s"}
    if done.returncode:
        return {**asdict(row), "system": system, "error": done.stderr.strip().splitlines()[-1]}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def measured(row: dict[str, Any], system: str, iterations: int) -> dict[str, Any]:
    """Warm up with one block of iterations, then time several; the median counts, since single blocks may stall."""
    case = Row(**row)
    began = time.perf_counter()
    run = started(case, system)
    run(iterations)
    first = time.perf_counter() - began
    seconds, busy = [], []
    for _ in range(BLOCKS):
        clock, processor = time.perf_counter(), time.process_time()
        run(iterations)
        seconds.append((time.perf_counter() - clock) / iterations)
        busy.append((time.process_time() - processor) / iterations)
    usual = statistics.median(seconds)
    return {
        **row,
        "system": system,
        "ms_per_iteration": 1e3 * usual,
        "ms_range": [1e3 * min(seconds), 1e3 * max(seconds)],
        "cpu_ms_per_iteration": 1e3 * statistics.median(busy),
        "steps_per_s": case.envs * case.steps / usual,
        "compile_s": first - iterations * usual,
        "peak_rss_mb": own_peak_mb(),
    }


def own_peak_mb() -> float:
    """The peak memory of this process. What `getrusage` says begins with that of the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def started(row: Row, system: str) -> Any:
    """A function that makes so many iterations."""
    from polyrhythm import rl

    settings = rl.PPOSettings(steps=row.steps)
    if system == "stable-baselines3":
        return _baselines(row, settings)
    if row.env == "cartpole host":
        import gymnasium

        made = gymnasium.make_vec("CartPole-v1", row.envs, vectorization_mode="sync")
        source: rl.Source = rl.Gym(made)
    else:
        environment = rl.CartPole() if row.env == "cartpole compiled" else rl.Synthetic(SHAPE, LENGTH, ACTIONS)
        source = rl.Arrays(environment, row.envs)
    model = rl.ActorCritic(source.observation_shape, source.actions, row.hidden, np.random.default_rng(0))
    if system == "polyrhythm":
        import polyrhythm as pr

        training = rl.ppo(source, model, settings)
        program = pr.compile(training.outputs, bounds=training.bounds, progress=False)
        return lambda count: program(bounds={training.iterations: count})
    if system == "jax":
        from benchmarks import rl_jax

        iteration, state = rl_jax.trainer(model.weights(), row.envs, SHAPE, LENGTH, ACTIONS, settings)

        def run(count: int) -> None:
            nonlocal state
            for _ in range(count):
                state, last = iteration(state)
            last.block_until_ready()

        return run
    from benchmarks import rl_torch

    step = rl_torch.trainer(model.weights(), row.envs, SHAPE, LENGTH, ACTIONS, settings)
    return lambda count: [step() for _ in range(count)]


def _baselines(row: Row, settings: Any) -> Any:
    import gymnasium

    from benchmarks import rl_torch

    def make() -> Any:
        if row.env == "synthetic":
            return rl_torch.OneLamp(SHAPE, LENGTH, ACTIONS)
        return gymnasium.make("CartPole-v1")

    return rl_torch.baselines(row.envs, make, row.hidden, settings)


def compare() -> None:
    """Raise unless all have the same loss on one batch, with the same weights."""
    import torch

    import polyrhythm as pr
    from benchmarks import rl_jax, rl_torch
    from polyrhythm import rl
    from polyrhythm.rl.ppo import Batch, loss

    random, settings = np.random.default_rng(0), rl.PPOSettings()
    model = rl.ActorCritic(SHAPE, rl.Discrete(ACTIONS), (8, 8), random)
    numbers = [random.normal(size=32).astype("float32") for _ in range(4)]
    batch = (random.normal(size=(32, *SHAPE)).astype("float32"), random.integers(0, ACTIONS, 32), *numbers)
    ours = float(pr.evaluate(loss(model, Batch(*(pr.constant(a) for a in batch)), settings).total))
    by_jax = float(rl_jax.loss(model.weights(), batch, settings))
    policy, value = (rl_torch.module(model.weights(), name) for name in ("policy", "value"))
    by_torch = rl_torch.loss(policy, value, tuple(torch.tensor(a) for a in batch), settings).item()
    np.testing.assert_allclose([by_jax, by_torch], ours, rtol=1e-4)


if __name__ == "__main__":
    main()
