"""`python -m benchmarks.rl [--only env=synthetic,network=2x64]`: iterations of PPO and DQN, and other implementations.

Each row (an environment, a network and a system) runs in a process of its own. First the losses of all systems but
stable-baselines3 and their gradients are compared on one batch, with the same weights. Systems in torch run with as
many threads as they are fastest with. While others keep the machine busy, the time of the processor says more than
that of the clock; both are given.

Rows go to `build/benchmarks/rl.json` as they finish, and a run that was stopped goes on with what is missing. The
table at the end has all rows of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.rows import Only, Rows, add_options, own_peak_mb

OUT = Path("build/benchmarks/rl.json")
SYSTEMS = ("polyrhythm", "jax", "torch", "stable-baselines3", "sbx")
SHAPE, LENGTH, ACTIONS = (8,), 100, 4
KEYS = ("env", "envs", "steps", "network", "system")
BLOCKS = 5


@dataclass(frozen=True)
class Row:
    """What is measured. Of CartPole there is `cartpole host`, Gymnasium's, and `cartpole compiled`; `dqn` before a name
    says that it is not PPO."""

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
    Row("dqn cartpole compiled", 8, 4, "2x64"),
    Row("dqn cartpole host", 8, 4, "2x64"),
]
QUICK = [Row("synthetic", 32, 250, "2x64")]


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one row, without stable-baselines3")
    parser.add_argument("--iterations", type=int, default=8, help="how many there are in each timed block")
    parser.add_argument("--table", action="store_true", help="measure nothing, show what the file has")
    add_options(parser)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        print(json.dumps(measured(**json.loads(given.row))))
        return
    kept, only = Rows(OUT, KEYS), Only(given.only)
    kept.facts["name"] = "rl"
    if not given.table:
        compare()
        rows = [key for key in every(QUICK if given.quick else ROWS) if only(key)]
        for key in rows:
            if given.quick and key["system"] == "stable-baselines3":
                continue
            if given.again or kept.get(key) is None:
                entry = in_a_process(key, given.iterations, given.limit)
                kept.add(entry)
                print(json.dumps(entry), flush=True)
    report(kept)


def every(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each row of each system that has it."""
    host = ("polyrhythm", "stable-baselines3", "sbx")
    has = {"cartpole host": host, "cartpole compiled": ("polyrhythm", "jax")}
    has |= {"dqn cartpole host": (*host, "torch"), "dqn cartpole compiled": ("polyrhythm", "jax")}
    return [{**asdict(row), "system": system} for row in rows for system in has.get(row.env, SYSTEMS)]


def report(kept: Rows) -> None:
    """All rows so far as a table, in the order of the benchmark."""
    table = Table(title=f"ms per iteration of PPO, per {DQN_ITERATIONS} of DQN")
    for heading in ("env", "envs", "steps", "network", "system"):
        table.add_column(heading, justify="right" if heading in ("envs", "steps") else "left")
    for heading in ("ms", "over ours", "processor", "over ours", "steps/s", "compile s", "MB", "load"):
        table.add_column(heading, justify="right")
    for key in every(ROWS):
        entry, ours = kept.entry(key), kept.get({**key, "system": "polyrhythm"})
        if entry is None:
            continue
        words = [str(key[name]) for name in KEYS]
        if "failed" in entry:
            table.add_row(*words, entry["failed"])
            continue
        pairs = [(entry[k], entry[k] / (ours or entry)[k]) for k in ("ms_per_iteration", "cpu_ms_per_iteration")]
        times = [text for ms, over in pairs for text in (f"{ms:.1f}", f"{over:.2f}")]
        costs = (f"{entry['steps_per_s']:,.0f}", *(f"{entry[k]:.1f}" for k in ("compile_s", "peak_rss_mb", "load")))
        table.add_row(*words, *times, *costs)
    Console(width=150).print(table)
    print(f"written to {kept.path}")


def in_a_process(key: dict[str, Any], iterations: int, limit: int) -> dict[str, Any]:
    """One line of the table; an entry with `failed` if it does not finish."""
    row = {name: value for name, value in key.items() if name != "system"}
    what = json.dumps({"row": row, "system": key["system"], "iterations": iterations})
    command = [sys.executable, "-m", "benchmarks.rl", "--row", what]
    # What an earlier run has compiled would hide the time of compiling.
    environment = {**os.environ, "POLYRHYTHM_CACHE": ""}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {**key, "failed": f"not finished after {limit} s"}
    if done.returncode:
        return {**key, "failed": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def measured(row: dict[str, Any], system: str, iterations: int) -> dict[str, Any]:
    """Warm up with one block of iterations, then time several; the median counts, since single blocks may stall."""
    case = Row(**row)
    began = time.perf_counter()
    run = started(case, system)
    run(iterations)
    first = time.perf_counter() - began
    threads = best_threads(run) if system in ("torch", "stable-baselines3", "sbx") else None
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
        "steps_per_s": case.envs * case.steps * (DQN_ITERATIONS if case.env.startswith("dqn") else 1) / usual,
        "compile_s": first - iterations * usual,
        "peak_rss_mb": own_peak_mb(),
        "threads": threads,
    }


def best_threads(run: Any) -> int:
    """With how many threads torch is fastest; those of small products may wait for each other most of the time."""
    import torch

    counts = range(1, (os.cpu_count() or 1) + 1)
    times = dict.fromkeys(counts, float("inf"))
    for threads in [*counts] * 3:  # in turn, and the fastest of each: a single one may be disturbed
        torch.set_num_threads(threads)
        began = time.perf_counter()
        run(1)
        times[threads] = min(times[threads], time.perf_counter() - began)
    best = min(times, key=times.__getitem__)
    torch.set_num_threads(best)
    return best


def started(row: Row, system: str) -> Any:
    """A function that makes so many iterations."""
    from polyrhythm import rl

    if row.env.startswith("dqn"):
        return started_dqn(row, system)
    settings = rl.PPOSettings(steps=row.steps)
    if system in ("stable-baselines3", "sbx"):
        from benchmarks import rl_baselines

        if row.env == "synthetic":
            made = rl_baselines.ManyLamps(row.envs, SHAPE, LENGTH, ACTIONS)
        else:
            made = rl_baselines.cartpoles(row.envs)
        return rl_baselines.trainer(made, row.hidden, settings, system)
    if row.env == "cartpole host":
        import gymnasium

        source: rl.Source = rl.Gym(gymnasium.make_vec("CartPole-v1", row.envs, vectorization_mode="sync"))
    else:
        environment = rl.CartPole() if row.env == "cartpole compiled" else rl.Synthetic(SHAPE, LENGTH, ACTIONS)
        source = rl.Arrays(environment, row.envs)
    model = rl.ActorCritic(source.observations, source.actions, row.hidden, np.random.default_rng(0))
    if system == "polyrhythm":
        import polyrhythm as pr

        training = rl.ppo(source, model, settings)
        program = pr.compile(training.outputs, bounds=training.bounds, progress=False)
        return lambda count: program(bounds={training.iterations: count})
    if system == "jax":
        from benchmarks import rl_jax

        compiled = row.env == "cartpole compiled"
        step = rl_jax.cartpole(500) if compiled else rl_jax.synthetic(SHAPE, LENGTH, ACTIONS)
        sizes: Any = ((4,), 2) if compiled else (SHAPE, ACTIONS)
        return repeated(*rl_jax.trainer(model.weights(), row.envs, step, *sizes, settings))
    from benchmarks import rl_torch

    step = rl_torch.trainer(model.weights(), row.envs, SHAPE, LENGTH, ACTIONS, settings)
    return lambda count: [step() for _ in range(count)]


def repeated(iteration: Any, state: Any) -> Any:
    """A function that makes so many iterations of JAX."""

    def run(count: int) -> None:
        nonlocal state
        for _ in range(count):
            state, last = iteration(state)
        last.block_until_ready()

    return run


DQN_ITERATIONS = 200
"""So many are timed as one: an iteration of DQN is a few steps and one update."""


def started_dqn(row: Row, system: str) -> Any:
    """A function that makes so many blocks of iterations."""
    from polyrhythm import rl

    settings = rl.DQNSettings(steps=row.steps, learning_starts=0)
    if system in ("stable-baselines3", "sbx"):
        from benchmarks import rl_baselines

        one = rl_baselines.dqn_trainer(rl_baselines.cartpoles(row.envs), row.hidden, settings, system)
    else:
        source: rl.Source = rl.Arrays(rl.CartPole(), row.envs)
        if "host" in row.env and system == "polyrhythm":
            import gymnasium

            source = rl.Gym(gymnasium.make_vec("CartPole-v1", row.envs, vectorization_mode="sync"))
        model = rl.QNetwork(source.observations, source.actions, row.hidden, np.random.default_rng(0))
        if system == "polyrhythm":
            import polyrhythm as pr

            training = rl.dqn(source, model, settings)
            program = pr.compile(training.outputs, bounds=training.bounds, progress=False)
            return lambda count: program(bounds={training.iterations: DQN_ITERATIONS * count})
        from benchmarks import rl_dqn

        if system == "jax":
            one = repeated(*rl_dqn.jax_trainer(model.weights(), row.envs, settings))
        else:
            step = rl_dqn.torch_trainer(model.weights(), row.envs, settings)
            return lambda count: [step() for _ in range(DQN_ITERATIONS * count)]
    return lambda count: one(DQN_ITERATIONS * count)


def compare() -> None:
    """Raise unless all have the same loss and gradients on one batch, with the same weights."""
    import jax
    import torch

    import polyrhythm as pr
    from benchmarks import rl_jax, rl_torch
    from polyrhythm import rl
    from polyrhythm.rl.ppo import Batch, loss

    random, settings = np.random.default_rng(0), rl.PPOSettings()
    model = rl.ActorCritic(SHAPE, rl.Discrete(ACTIONS), (8, 8), random)
    numbers = [random.normal(size=32).astype("float32") for _ in range(4)]
    batch = (random.normal(size=(32, *SHAPE)).astype("float32"), random.integers(0, ACTIONS, 32), *numbers)
    weights = model.parameters()
    total = loss(model.using(weights), Batch(*(pr.constant(a) for a in batch)), settings).total
    ours, slopes = pr.evaluate((total, pr.grad(total, weights)))
    by_jax, jax_slopes = jax.value_and_grad(rl_jax.loss)(model.weights(), batch, settings)
    modules = {name: rl_torch.module(model.weights(), name) for name in ("policy", "value")}
    by_torch = rl_torch.loss(*modules.values(), tuple(torch.tensor(a) for a in batch), settings)
    by_torch.backward()
    np.testing.assert_allclose([by_jax, by_torch.item()], ours, rtol=1e-4)
    for name, slope in slopes.items():
        network, _, number, part = name.split(".")
        theirs = getattr(modules[network][2 * int(number)], part).grad.numpy()
        np.testing.assert_allclose(jax_slopes[name], slope, rtol=1e-3, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(theirs, slope, rtol=1e-3, atol=1e-5, err_msg=name)
    compare_dqn()


def compare_dqn() -> None:
    """The same for DQN."""
    import jax
    import torch

    import polyrhythm as pr
    from benchmarks import rl_dqn
    from polyrhythm import rl
    from polyrhythm.rl.dqn import td_loss

    random, settings = np.random.default_rng(0), rl.DQNSettings()
    model, slow = (rl.QNetwork((4,), rl.Discrete(2), (8, 8), random) for _ in range(2))
    seen, after = (random.normal(size=(32, 4)).astype("float32") for _ in range(2))
    over = random.integers(0, 2, 32).astype("float32")
    arrays = (seen, random.integers(0, 2, 32), random.normal(size=32).astype("float32"), after, over)
    batch = dict(zip(rl_dqn.NAMES, arrays, strict=True))
    discounted = [*arrays[:4], np.float32(settings.gamma) * (1 - over)]
    weights = model.parameters()
    total = td_loss(model.using(weights), slow, rl.Transitions(*map(pr.constant, discounted))).each.mean()
    ours, slopes = pr.evaluate((total, pr.grad(total, weights)))
    by_jax, jax_slopes = jax.value_and_grad(rl_dqn.loss)(model.weights(), slow.weights(), batch, settings)
    w = {name: torch.tensor(a, requires_grad=True) for name, a in model.weights().items()}
    other = {name: torch.tensor(a) for name, a in slow.weights().items()}
    by_torch = rl_dqn.torch_loss(w, other, {name: torch.tensor(a) for name, a in batch.items()}, settings)
    by_torch.backward()
    np.testing.assert_allclose([by_jax, by_torch.item()], ours, rtol=1e-4)
    for name, slope in slopes.items():
        for theirs in (jax_slopes[name], w[name].grad):
            np.testing.assert_allclose(theirs, slope, rtol=1e-3, atol=1e-5, err_msg=name)


if __name__ == "__main__":
    main()
