"""Compile time before the backend, in seconds of the processor, which other processes do not stretch."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from polyrhythm import llm
from polyrhythm.llm.config import read_config
from polyrhythm.llm.patterns import causal
from polyrhythm.llm.programs import generating
from polyrhythm.llm.sampling import GREEDY

DECODER_SECONDS = 5.0
"""For 28 layers; measured: 1.5 to 2.5."""


@pytest.mark.slow
def test_layers_are_a_dim_and_cost_nothing(tmp_path: Path) -> None:
    seconds = {}
    for layers in (28, 64):
        config = read_config(llm.write_random(tmp_path / str(layers), num_hidden_layers=layers, eos_token_id=2))
        started = time.process_time()
        generating(config, 1, GREEDY, causal, "numpy")
        seconds[layers] = time.process_time() - started
    assert seconds[28] < DECODER_SECONDS
    assert seconds[64] < 1.5 * max(seconds[28], 1.0)
