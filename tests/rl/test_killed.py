"""Training with host environments, killed at random moments again and again, ends with the same bits.

`python -m tests.rl.test_killed FOLDER KILLS` trains to the end in FOLDER, from wherever it is, after so many kills. The
process that is killed is a copy of this one, so it begins at once: what a kill costs is compiling and the iterations it
makes before.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from polyrhythm.nn.files import save
from polyrhythm.rl.presets import source
from polyrhythm.rl.train import train

KILLS, ITERATIONS = 50, 600


def learn(folder: Path) -> None:
    """Train to the end, from the last checkpoint on."""
    carts = source("CartPole-v1", 2, seed=3)
    result = train(
        "a2c",
        carts,
        ITERATIONS,
        hidden=(8,),
        seed=3,
        steps=16,
        backend="numpy",
        log=f"{folder}/log.csv",
        checkpoint=f"{folder}/checkpoint",
        every=5,
    )
    save(result["weights"], folder / "weights.safetensors")


def lines(folder: Path) -> int:
    """How long the log is."""
    log = folder / "log.csv"
    return len(log.read_text().splitlines()) if log.exists() else 0


def killed(folder: Path, drawn: random.Random) -> bool:
    """Begin or go on, and kill: at any moment of the first second, or when a few more iterations have been made."""
    goal = lines(folder) + drawn.randint(1, 12)
    process = os.fork()
    if not process:
        try:
            learn(folder)
        finally:
            os._exit(0)
    if drawn.random() < 0.3:
        time.sleep(drawn.uniform(0.0, 1.0))
    else:
        while lines(folder) < goal:
            time.sleep(0.002)
        time.sleep(drawn.uniform(0.0, 0.05))
    ended, _ = os.waitpid(process, os.WNOHANG)
    if not ended:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    return not ended


def main(folder: Path, kills: int) -> None:
    """Kill so often, then train to the end."""
    drawn, written = random.Random(0), 0
    for number in range(kills):
        before = sorted((folder / "checkpoint").glob("*"))
        assert killed(folder, drawn), "it was done before it had been killed so often"
        written += sorted((folder / "checkpoint").glob("*")) != before
        print(f"kill {number + 1}, {lines(folder)} lines of the log, {written} kills after new checkpoints", flush=True)
    learn(folder)


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """By SIGKILL, fifty times; what is left is found by the next process."""
    for name, kills in (("whole", 0), ("parts", KILLS)):
        (tmp_path / name).mkdir()
        command = [sys.executable, "-m", "tests.rl.test_killed", str(tmp_path / name), str(kills)]
        subprocess.run(command, check=True, timeout=1200)
    expected, found = (load_file(tmp_path / name / "weights.safetensors") for name in ("whole", "parts"))
    for name, weight in expected.items():
        assert np.array_equal(found[name], weight), name
    assert (tmp_path / "parts" / "log.csv").read_text() == (tmp_path / "whole" / "log.csv").read_text()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
