"""The example of rows of different lengths trains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_example_trains() -> None:
    run = subprocess.run(
        [sys.executable, "examples/ragged.py"], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "iterations, loss" in run.stdout
