"""The quick lane asks XLA for simple code (`tests/conftest.py`); here a sample has the code that users get."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SAMPLE = ("leapfrog", "needleman_wunsch", "power_iteration", "rnn_over_a_grid")


def test_a_sample_runs_with_the_code_that_users_get() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    chosen = f"jax and ({' or '.join(SAMPLE)})"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-k", chosen, "tests/programs/test_recurrences.py"]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr  # nothing failed, and something ran
