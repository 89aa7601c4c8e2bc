"""The example of sharded training runs as it is, on eight forced host devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_sharded_training() -> None:
    script = ROOT / "examples" / "sharded_training.py"
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "8 devices, 1 processes: loss 0.904 -> 0.00" in done.stdout
    assert "b over data: 4 devices" in done.stdout
    assert "all-gather" not in done.stdout


@pytest.mark.slow
def test_the_scaling_estimate_agrees_with_what_is_counted() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks.scaling"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count(" 512 ") == 8
