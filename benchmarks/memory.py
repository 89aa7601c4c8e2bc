"""`python -m benchmarks.memory [reinforce|spilling]`: what programs store, by their plan and by the process.

`reinforce`: REINFORCE with returns that look ahead differently far, two environments, observations of 3 x 16 x 16 and
3 x 64 x 64, at T = 100, 1,000 and 10,000. Stored are the bytes of all places; resident is how much the memory of the
process grew during a call, at its peak.

`spilling`: PPO on images, 3 x 64 x 64 in float32, with the rollout in memory and in a file, and the peak of the
process, imports and compiler included. The time is that of the fastest of three calls. `--full` is the rollout of
256 environments and 1,000 steps, 12.6 GB, within 4 GB: it takes a while and 13 GB of the disk.

Each row runs in a process of its own; rows go to `build/benchmarks` as they finish, and a run that was stopped goes on
with what is missing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import polyrhythm as pr
from benchmarks.rows import Rows, own_peak_mb
from polyrhythm import rl

RETURNS = {"Monte Carlo": None, "8 steps": 8, "TD": 1}
SIDES = (16, 64)
STEPS = (100, 1000, 10_000)
ENVIRONMENTS, LENGTH, HIDDEN = 2, 50, (16,)
SPILLED = ((16, 64, 8), (64, 128, 32))
FULL = (256, 1000, 256)
BUDGET = {(16, 64, 8): "40MB", (64, 128, 32): "200MB", FULL: "4GB"}


def main() -> None:
    """Run and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("reinforce", "spilling"))
    parser.add_argument("--full", action="store_true", help="the rollout of 12.6 GB only")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        what, arguments = json.loads(given.row)
        print(json.dumps({"reinforce": reinforce, "spilling": spilling}[what](*arguments)))
        return
    for what in ("reinforce", "spilling") if given.what is None else (given.what,):
        keys = {"reinforce": ("observations", "returns", "T"), "spilling": ("environments", "T", "rollout")}[what]
        name = {"reinforce": "memory", "spilling": "spilling"}[what]
        kept = Rows(Path(f"build/benchmarks/{name}.json"), keys)
        for arguments in rows(what, given.full):
            if kept.get(key_of(what, arguments)) is not None:
                continue
            started = time.time()
            command = [sys.executable, "-m", "benchmarks.memory", "--row", json.dumps([what, arguments])]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            kept.add(found)
            print(found, f"{time.time() - started:.0f} s")


def rows(what: str, full: bool) -> Iterator[list[Any]]:
    """What is measured."""
    if what == "reinforce":
        yield from ([side, name, steps] for side in SIDES for name in RETURNS for steps in STEPS)
    else:
        for sizes in (FULL,) if full else SPILLED:
            yield from ([*sizes, spill] for spill in ((True,) if full else (False, True)))


def key_of(what: str, arguments: list[Any]) -> dict[str, str]:
    """The columns that a row is known by."""
    if what == "reinforce":
        side, returns, steps = arguments
        return {"observations": f"3 x {side} x {side}", "returns": returns, "T": f"{steps:,}"}
    count, steps, _, spill = arguments
    return {"environments": str(count), "T": f"{steps:,}", "rollout": "in a file" if spill else "in memory"}


def reinforce(side: int, returns: str, steps: int) -> dict[str, Any]:
    """One program, at one number of steps."""
    lamps = rl.Arrays(rl.Synthetic((3 * side, side), length=LENGTH), ENVIRONMENTS)
    model = rl.ActorCritic(lamps.observations, lamps.actions, HIDDEN, np.random.default_rng(0))
    training = rl.reinforce(lamps, model, rl.ReinforceSettings(steps=steps, n=RETURNS[returns]))
    bounds: dict[Any, int] = {training.iterations: 1}
    program = pr.compile(training.outputs, bounds=training.bounds)
    stored = program.memory.bytes(bounds)
    program.memory.peak(bounds)  # and all is compiled
    grown = growth(lambda: program(bounds=bounds))
    return {
        **key_of("reinforce", [side, returns, steps]),
        "MB stored": f"{stored / 1e6:,.2f}",
        "MB resident": f"{grown:,.1f}",
    }


def growth(call: Any) -> float:
    """How much the memory of the process grows during a call, at its peak, in MB."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    lines = Path("/proc/self/status").read_text().splitlines()
    before = int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024
    call()
    return (own_peak_mb() - before) * 1.048576


def spilling(count: int, steps: int, minibatches: int, spill: bool) -> dict[str, Any]:
    """Two iterations of PPO, with the rollout in memory or in a file."""
    lamps = rl.Arrays(rl.Synthetic((3 * 64, 64), length=LENGTH), count)
    model = rl.ActorCritic(lamps.observations, lamps.actions, HIDDEN, np.random.default_rng(0))
    settings = rl.PPOSettings(steps=steps, epochs=1, minibatches=minibatches)
    training = rl.ppo(lamps, model, settings)
    bounds: dict[Any, int] = {training.iterations: 1}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        limit = pr.Budget(BUDGET[count, steps, minibatches], spill=folder) if spill else None
        program = pr.compile(training.outputs, bounds=training.bounds, memory_budget=limit)
        seconds = []
        found: Any = None

        def call() -> None:
            nonlocal found
            started = time.perf_counter()
            found = program(bounds=bounds)
            seconds.append(time.perf_counter() - started)

        for _ in range(1 if (count, steps, minibatches) == FULL else 3):  # the first compiles
            call()
    rollout = 4 * 3 * 64 * 64 * count * steps
    return {
        **key_of("spilling", [count, steps, minibatches, spill]),
        "MB of a rollout": f"{rollout / 1e6:,.0f}",
        "budget": BUDGET[count, steps, minibatches] if spill else "",
        "MB of the process": f"{own_peak_mb() * 1.048576:,.0f}",
        "s an iteration": f"{min(seconds):.2f}",
        "steps a second": f"{count * steps / min(seconds):,.0f}",
        "MB to files": f"{sum(one.stored for one in program.spilled.values()) / 1e6:,.0f}",
        "MB from files": f"{sum(one.fetched for one in program.spilled.values()) / 1e6:,.0f}",
        "policy loss": f"{float(found['policy_loss'][-1]):.6f}",
        "value loss": f"{float(found['value_loss'][-1]):.6f}",
    }


if __name__ == "__main__":
    main()
