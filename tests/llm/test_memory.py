"""The memory that writing takes, measured in processes of their own.

A window takes the same for any length of text. With all steps seen, buffers grow in steps as the text does: a run that
may write much but has written little holds little.
"""

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
folder, window, length, every, given = sys.argv[1], *map(int, sys.argv[2:])

def memory(what):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) * 1024

model = llm.load(folder)
if window:
    model = model.attending(llm.window(window))
held, prompt = [], np.arange(given) % 7 + 1
for number, piece in enumerate(model.stream(prompt, length - given, chunk=every) if every else ()):
    if number % every == 0:
        held.append(memory("VmRSS"))
if not every:
    model.generate(prompt, length - given)
print(json.dumps({"held": held, "peak": memory("VmHWM")}))
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


def measured(folder: Path, window: int, length: int, every: int, given: int) -> tuple[list[int], int]:
    """What a process holds after every so many tokens that it has written, and its peak, in bytes.

    Some tokens are given. A stream writes the others; if `every` is 0, `generate` does.
    """
    command = [sys.executable, "-c", MEASURE, str(folder), *map(str, (window, length, every, given))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return found["held"], found["peak"]


@pytest.mark.slow
@pytest.mark.parametrize(("every", "given"), [(1024, 1), (1024, 500), (0, 1), (0, 500)])
def test_a_window_takes_the_same_for_any_length(folder: Path, every: int, given: int) -> None:
    peaks = {length: measured(folder, 128, length, every, given)[1] for length in (1024, 4096, 32768)}
    print({length: f"{most / MEGA:.0f} MB" for length, most in peaks.items()})
    # Everything kept would be 8 MB for 1,024 steps and 256 MB for 32,768.
    assert max(peaks.values()) - min(peaks.values()) < 0.1 * (32768 - 1024) * STEP_BYTES


@pytest.mark.slow
def test_all_steps_seen_take_room_as_the_text_grows(folder: Path) -> None:
    every = 1024
    held, most = measured(folder, 0, 16 * every, every, 1)
    print([f"{size / MEGA:.0f}" for size in held], f"peak {most / MEGA:.0f} MB")
    # Entry n was taken when n * 1,024 tokens had been written, with buffers of 4,096, 8,192 and then 16,384 steps.
    for before, after in ((3, 7), (7, 15)):
        growth = (after - before) * every * STEP_BYTES
        assert 0.8 * growth < held[after] - held[before] < 1.6 * growth


def test_the_plan_names_keys_and_values_and_weights(folder: Path) -> None:
    model = llm.load(folder)
    model.generate([1, 2, 3], max_new_tokens=2)
    plan = str(model.programs[0].memory)
    assert "buffer   k_cache " in plan
    assert "buffer   v_cache " in plan
    assert "input    model.layers.self_attn.k_proj.weight " in plan


LOAD = """
import sys
import jax
from polyrhythm import llm

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024

small, large, dtype = sys.argv[1:]
llm.load(small, dtype)  # what the libraries themselves take
before = peak()
model = llm.load(large, dtype)
print(peak() - before, sum(weight.nbytes for weight in model.weights.values()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_holds_the_weights_once(folder: Path, tmp_path: Path, dtype: str) -> None:
    """As they are in the file, and converted."""
    large = llm.write_random(tmp_path, hidden_size=1024, intermediate_size=4096, num_hidden_layers=4, vocab_size=30000)
    given = [sys.executable, "-c", LOAD, str(folder), str(large), dtype]
    more, weights = map(int, subprocess.run(given, capture_output=True, text=True, check=True).stdout.split())
    assert weights > 100 * MEGA
    assert more < 1.15 * weights + 30 * MEGA
