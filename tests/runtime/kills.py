"""Training runs on JAX with host effects, killed by SIGKILL at random moments: all resume to the same bits.

`python -m tests.runtime.kills --kills 100 --seed 0` starts runs, kills each at a random moment, and goes on with the
same folder until the run ends; then the digest of the results, and of what the host function has seen, must be that
of a run that was never stopped. A new folder follows, until the kills are used up. `--run FOLDER` is one such run.
The moment is a random step of the environment, of which each says so, and a random time up to that of two iterations
after it: kills fall on steps, on the computing between them, and on the writing of checkpoints. Every tenth falls
anywhere from the start of the process on, on compiling mostly. How many fell after new checkpoints is counted.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import polyrhythm as pr
from polyrhythm import optim
from polyrhythm.runtime import snapshots
from tests.runtime.stopping import digest

ROOT = Path(__file__).parents[2]
ITERATIONS, EVERY, STEPS = 100, 2, 4
PAUSE = 0.004
"""Seconds that a step of the environment takes."""

MOST = 24 * STEPS
"""The most steps of the environment that a process sees before it is killed: about ten kills in a run."""


class Environment:
    """A walk that actions push, with a state of its own outside of the program; it takes its time."""

    def __init__(self, pause: float) -> None:
        self.pause, self.place, self.random = pause, np.zeros(3), np.random.default_rng(0)

    def step(self, action: np.ndarray) -> np.ndarray:
        time.sleep(self.pause)
        if self.pause:
            print("step", flush=True)
        self.place = 0.9 * self.place + 0.1 * action + 0.01 * self.random.normal(size=3)
        return self.place.astype("float32")

    def save(self) -> Mapping[str, Any]:
        state = self.random.bit_generator.state["state"]
        words = [(state[key] >> (64 * k)) % 2**64 for key in ("state", "inc") for k in (0, 1)]
        return {"place": self.place, "random": np.array(words, "uint64")}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.place = np.array(state["place"])
        low, high, step_low, step_high = (int(word) for word in state["random"])
        whole: Any = self.random.bit_generator.state
        whole["state"] = {"state": low + (high << 64), "inc": step_low + (step_high << 64)}
        self.random.bit_generator.state = whole


def train(folder: Path, pause: float) -> str:
    """A run to its end, from wherever the folder has it."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    world = Environment(pause)
    weights = optim.over(i, {"w": pr.parameter("w", (3, 3), init=np.eye(3) * 0.5)})
    state = pr.recurrent((3,), (i, (t, T + 1)))
    action = pr.tanh(pr.detach(state) @ weights["w"]) + 0.1 * pr.normal((3,), dims=(i, t), name="noise")
    seen = pr.host(world.step, [pr.detach(action)], (3,), effect="world")
    state[i, 0], state[i, t + 1] = 0.0, seen
    loss = ((state[i, t + 1] + 0.1 * action - 0.3) ** 2).sum()[i, 0:T].sum()
    optim.adam(i, weights, pr.grad(loss, weights), 0.05)
    program = pr.compile({"losses": loss[0:I], "w": weights["w"][I]}, backend="jax")
    checkpoints = pr.Checkpoints(folder, over=i, every=EVERY, outside=world)
    results = program(bounds={I: ITERATIONS, T: STEPS}, seed=3, checkpoint=checkpoints)
    return digest({**results, "place": world.place})


def child(folder: Path) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "tests.runtime.kills", "--run", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(arguments, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def stopped(process: subprocess.Popen[str], chance: random.Random) -> str:
    """Kill a run at a random moment, unless it ends before; the last line that it has printed until then."""
    anywhere = chance.random() < 0.1
    steps = chance.randint(0, MOST)
    after = chance.uniform(0.0, 5.0 if anywhere else 2 * STEPS * PAUSE)
    assert process.stdout is not None
    line = ""
    if not anywhere:
        for line in process.stdout:
            steps -= line == "step\n"
            if steps < 0:
                break
    time.sleep(after)
    process.kill()
    return line


def survive(kills: int, seed: int) -> tuple[int, int, int]:
    """How many runs came to their end, how many processes were killed on the way, and how many of these inside."""
    chance, ended, killed, inside = random.Random(seed), 0, 0, 0
    with tempfile.TemporaryDirectory() as place:
        expected = train(Path(place) / "whole", 0.0)
        while killed < kills:
            folder, result = Path(place) / "killed", None
            while result is None:
                before = _latest(folder)
                process = child(folder)
                said = stopped(process, chance) if killed < kills else ""
                said += process.communicate(timeout=600)[0]
                if process.returncode == -signal.SIGKILL:
                    killed, inside = killed + 1, inside + (_latest(folder) > before)
                else:
                    assert process.returncode == 0
                    result = said.split()[-1]
            assert result == expected, f"after {killed} kills, seed {seed}"
            ended += 1
            shutil.rmtree(folder)
            print(f"{killed} killed, {inside} after new checkpoints, {ended} ended", flush=True)
    return ended, killed, inside


def _latest(folder: Path) -> int:
    """After how many iterations the latest checkpoint was written."""
    return max(snapshots.found(folder), default=0)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=100)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--run", type=Path)
    given = options.parse_args()
    if given.run is not None:
        print(train(given.run, PAUSE), flush=True)
    else:
        ended, killed, inside = survive(given.kills, given.seed)
        print(
            f"{killed} processes killed, {inside} of them after new checkpoints, {ended} runs ended, all the same bits"
        )


if __name__ == "__main__":
    main()
