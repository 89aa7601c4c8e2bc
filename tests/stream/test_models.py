"""Layers of `polyrhythm.llm` as streams, from the library's own definitions: no layer is written again for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.llm.naming import blank_decoder
from polyrhythm.llm.parts import Step
from polyrhythm.llm.random_models import DEFAULTS
from polyrhythm.llm.read_config import read_config
from polyrhythm.stream import Hardware, lower, measure, simulate, smallest_fifos, tile

DEEP = Hardware(fifo_depth=1 << 16)
SMALL = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2, "num_key_value_heads": 1}
LATENT = {"kv_lora_rank": 4, "q_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4}
SPARSE = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "n_shared_experts": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma2": {"head_dim": 4, "query_pre_attn_scalar": 4},
    "mixtral": {},
    "qwen3_moe": {"head_dim": 4, "moe_intermediate_size": 6},
    "deepseek_v3": {**LATENT, **SPARSE, "moe_intermediate_size": 6, "first_k_dense_replace": 0},
    "mamba": {"state_size": 3, "conv_kernel": 3, "expand": 2, "time_step_rank": 2, "intermediate_size": 16},
    "mamba2": {"state_size": 4, "conv_kernel": 3, "num_heads": 4, "head_dim": 4, "n_groups": 1},
}
t, T = pr.dim("t")


def block(family: str, folder: Path, steps: int = 4) -> tuple[pr.Tensor, dict[str, np.ndarray]]:
    """One layer over steps, with its weights as inputs."""
    config = {**DEFAULTS[family], **SMALL, "num_hidden_layers": 1, "vocab_size": 20, **FAMILIES[family]}
    (folder / "config.json").write_text(json.dumps(config))
    known = read_config(folder)
    decoder = blank_decoder(known)
    blanks = decoder.weights()
    layer = decoder.using({name: pr.input(name, blank.shape) for name, blank in blanks.items()}).layer(0)
    rng = np.random.default_rng(5)
    data = {
        name: (0.4 * rng.normal(size=[int(n) for n in blank.shape])).astype(np.float32)
        for name, blank in blanks.items()
        if name.startswith(decoder.layers_at)
    }
    data["x"] = rng.normal(size=(steps, known.width)).astype(np.float32)
    return layer(pr.input("x", (known.width,), (t,)), Step(t)), data


@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_of_a_model(family: str, tmp_path: Path) -> None:
    for steps in (1, 4):
        output, data = block(family, tmp_path, steps)
        lowered = lower(output, inputs=data)
        run = simulate(lowered.program, DEEP)
        np.testing.assert_allclose(lowered.outputs(run), pr.evaluate(output, data), rtol=1e-4, atol=1e-5)
        values = measure(lowered.program, DEEP).evaluate(run.bindings)
        assert (values["off_chip_burst"], values["flops"]) == (run.bytes_moved, run.flops)


def test_fifos_of_a_layer_are_found(tmp_path: Path) -> None:
    output, data = block("llama", tmp_path)
    lowered = lower(output, inputs=data)
    depths = smallest_fifos(lowered.program)
    assert simulate(lowered.program, depths.on(Hardware())).cycles == depths.unlimited


def test_the_network_of_a_layer_in_tiles(tmp_path: Path) -> None:
    output, data = block("mamba", tmp_path)
    projected = output * 2.0
    for schedule in ([], [tile(t, 2, on=projected)]):
        found = lower(projected, schedule, data)(DEEP)
        np.testing.assert_allclose(found, pr.evaluate(projected, data), rtol=1e-4, atol=1e-5)
