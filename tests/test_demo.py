"""The demo, as `make demo` runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.llm.gguf_files import smollm2

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_a_real_model_answers_in_every_pattern() -> None:
    smollm2()
    found = subprocess.run(
        [sys.executable, "examples/demo.py"], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("The capital of France is Paris.") == 2  # with everything, and with a window
    assert "tokens a second" in found.stdout
