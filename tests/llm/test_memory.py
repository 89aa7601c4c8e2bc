"""The memory that writing takes, measured in processes of their own: a window takes the same for any length of text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from polyrhythm import llm

WIDTH, LAYERS, HEADS = 512, 2, 8
STEP_BYTES = 2 * LAYERS * WIDTH * 4
"""What one step leaves behind: keys and values of all layers."""
MEGA = 1 << 20

MEASURE = """
import json, sys
import numpy as np
from polyrhythm import llm
folder, window, length = sys.argv[1], *map(int, sys.argv[2:])

def memory(what):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) * 1024

model = llm.load(folder)
if window:
    model = model.attending(llm.window(window))
for piece in model.stream([1], length - 1, chunk=1024):
    pass
print(json.dumps(memory("VmHWM")))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llm.write_random(
        tmp_path_factory.mktemp("model"),
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=1 << 16,
        eos_token_id=None,
    )


def peak(folder: Path, window: int, length: int) -> int:
    """The most bytes that a process held which wrote so many tokens."""
    command = [sys.executable, "-c", MEASURE, str(folder), str(window), str(length)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=True)
    return int(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_a_window_takes_the_same_for_any_length(folder: Path) -> None:
    peaks = {length: peak(folder, 128, length) for length in (1024, 4096, 32768)}
    print({length: f"{most / MEGA:.0f} MB" for length, most in peaks.items()})
    # Everything kept would be 8 MB for 1,024 steps and 256 MB for 32,768.
    assert max(peaks.values()) - min(peaks.values()) < 0.1 * (32768 - 1024) * STEP_BYTES
