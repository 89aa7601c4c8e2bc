"""Training with host environments, killed at random moments again and again, ends with the same bits."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

SCRIPT = """
import sys
from polyrhythm.rl.presets import source
from polyrhythm.rl.train import train
from polyrhythm.nn.files import save
folder = sys.argv[1]
carts = source("CartPole-v1", 2, seed=3)
options = {"hidden": (8,), "seed": 3, "steps": 16, "minibatches": 2, "backend": "numpy", "every": 5}
result = train("ppo", carts, 3000, log=folder + "/log.csv", checkpoint=folder + "/checkpoint", **options)
save(result["weights"], folder + "/weights.safetensors")
"""


KILLS = 50


def killed(folder: Path, drawn: random.Random) -> bool:
    """Begin or go on, and kill: at any moment of the first seconds, or soon after something more was written."""
    log = folder / "log.csv"
    before = log.stat().st_mtime_ns if log.exists() else 0
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)])
    if drawn.random() < 0.3:
        time.sleep(drawn.uniform(0.0, 2.0))
    else:
        while process.poll() is None and (log.stat().st_mtime_ns if log.exists() else 0) == before:
            time.sleep(0.01)
        time.sleep(drawn.uniform(0.0, 0.3))
    alive = process.poll() is None
    process.kill()
    process.wait(timeout=60)
    return alive


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """By SIGKILL, fifty times; what is left is found by the next process."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    subprocess.run([sys.executable, "-c", SCRIPT, str(whole)], check=True, timeout=600)
    drawn = random.Random(0)
    assert all(killed(parts, drawn) for _ in range(KILLS)), "it was done before it had been killed so often"
    subprocess.run([sys.executable, "-c", SCRIPT, str(parts)], check=True, timeout=600)
    expected, found = (load_file(folder / "weights.safetensors") for folder in (whole, parts))
    for name, weight in expected.items():
        assert np.array_equal(found[name], weight), name
    assert (parts / "log.csv").read_text() == (whole / "log.csv").read_text()
