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
result = train("ppo", carts, 400, log=folder + "/log.csv", checkpoint=folder + "/checkpoint", **options)
save(result["weights"], folder + "/weights.safetensors")
"""


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """By SIGKILL, after a random while; what is left is found by the next process."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    subprocess.run([sys.executable, "-c", SCRIPT, str(whole)], check=True, timeout=600)
    drawn, kills = random.Random(0), 0
    while not (parts / "weights.safetensors").exists():
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(parts)])
        if kills < 50:
            time.sleep(drawn.uniform(1.5, 4.0))
            kills += process.poll() is None
            process.kill()
        process.wait(timeout=600)
    assert kills > 2
    expected, found = (load_file(folder / "weights.safetensors") for folder in (whole, parts))
    for name, weight in expected.items():
        assert np.array_equal(found[name], weight), name
    assert (parts / "log.csv").read_text() == (whole / "log.csv").read_text()
