"""The loop that writes updates what it keeps of the past in place: nothing as large is copied at a step.

The loop over layers that reads a prompt runs once in a call, and copies the weights of its layer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyrhythm import llm
from polyrhythm.llm.sampling import sampling
from tests.compiler.backends.hlo import large, loop_bodies, optimised
from tests.compiler.backends.test_copies import COPIES


def pattern(name: str) -> Any:
    return llm.causal if name == "causal" else llm.window(64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kv_heads", "batch"),
    [
        ("causal", 4, 1),
        ("causal", 4, 3),
        ("causal", 2, 1),
        ("causal", 2, 3),
        ("causal", 1, 1),
        ("window", 4, 1),
        ("window", 2, 3),
    ],
)
def test_nothing_large_is_copied_at_a_step(name: str, kv_heads: int, batch: int, tmp_path: Path) -> None:
    folder = llm.write_random(tmp_path, num_hidden_layers=2, num_key_value_heads=kv_heads, eos_token_id=None)
    model = llm.load(folder, attention=pattern(name))
    run = model._run([np.array([1, 2, 3])] * batch, [500] * batch, sampling(model.config.vocabulary, ()))
    assert run is not None
    text = optimised(run.generating.program, bounds=run.bounds, **run.inputs)
    steps = 512 if name == "causal" else 64
    kept = batch * steps * kv_heads * model.config.head_size
    copied = large(loop_bodies(text), COPIES, kept)
    assert 'op_name="jit(_trace)/for t/' in loop_bodies(text), "the loop that writes"
    assert [line for line in copied if 'op_name="jit(_trace)/for l/' not in line] == []
