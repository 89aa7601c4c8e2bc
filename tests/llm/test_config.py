"""What a config.json may say, and what it may not: nothing in it ends in an error of Python."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from polyrhythm.errors import PolyrhythmError
from polyrhythm.llm.config import Config
from polyrhythm.llm.errors import ModelDamagedError, ModelMismatchError
from polyrhythm.llm.random_models import DEFAULTS
from polyrhythm.llm.read_config import read_config


def read(folder: Path, family: str, **changes: Any) -> Config:
    """What is read of a config.json, beside which there are no weights; `...` leaves a key out."""
    given = {key: value for key, value in {**DEFAULTS[family], **changes}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(given))
    return read_config(folder)


def scaled(kind: Any, **rest: Any) -> dict[str, Any]:
    """How rotary positions are scaled, in the older spelling."""
    return {"rope_scaling": {"rope_type": kind, **rest}}


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}

WRONG: list[tuple[str, str, list[Any]]] = [
    ("llama", "rope_theta", ["1", True, [], 0, -1.0, 10**400, float("inf")]),
    ("llama", "rms_norm_eps", ["1e-6", True, {}, 0.0, float("nan")]),
    ("gpt2", "layer_norm_epsilon", ["1e-5", False, {}]),
    ("gpt2", "n_inner", ["64", 0, 1.5, True]),
    *(("gpt2", key, [None]) for key in ("vocab_size", "n_embd", "n_layer", "n_head", "n_positions")),
    ("llama", "num_key_value_heads", ["2", 0, 2.0, True, [2]]),
    ("llama", "head_dim", ["16", 0, -16, 16.0]),
    ("llama", "max_position_embeddings", ["2048", 0, True]),
    ("mistral", "sliding_window", ["16", 0, -1, 16.5, True]),
    *(("llama", key, ["2", 2.5, True, {}, [1, "2"]]) for key in ("eos_token_id", "bos_token_id")),
    *(("llama", key, [1, "true"]) for key in ("tie_word_embeddings", "attention_bias", "mlp_bias")),
    ("gpt2", "tie_word_embeddings", ["yes"]),
    ("gpt2", "scale_attn_weights", [1]),
    ("llama", "partial_rotary_factor", [1.5, 0, "a"]),
    ("qwen2", "max_window_layers", [-1, "2"]),
    ("smollm3", "no_rope_layers", [[1], 3, [1, 2]]),
    ("qwen2_moe", "mlp_only_layers", [3]),
    ("falcon", "num_ln_in_parallel_attn", [0, "2"]),
    ("bloom", "apply_residual_connection_post_layernorm", [True]),
    ("gemma2", "use_bidirectional_attention", [True]),
    ("llama", "hidden_act", [["silu"]]),
    ("llama", "model_type", [None, {}]),
    ("llama", "dtype", [["float32"], 32]),
    ("llama", "rope_scaling", [[1.0], 0]),
    ("llama", "rope_parameters", ["linear", []]),
]

WRONG_SCALING = [
    *((key, scaled("llama3", **{**LLAMA3, key: None})) for key in LLAMA3),
    *((key, scaled("llama3", **{**LLAMA3, key: "4"})) for key in LLAMA3),
    ("low_freq_factor", scaled("llama3", **{**LLAMA3, "low_freq_factor": 4.0})),
    ("factor", scaled("linear")),
    ("rope_theta", scaled("linear", factor=2.0, rope_theta="10000")),
    ("rope_type", scaled(["linear"], factor=2.0)),
]


@pytest.mark.parametrize(
    ("family", "key", "changes"),
    [(family, key, {key: value}) for family, key, values in WRONG for value in values]
    + [("llama", *rest) for rest in WRONG_SCALING],
)
def test_values_that_no_config_may_have(family: str, key: str, changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(PolyrhythmError, match=rf"^{re.escape(str(tmp_path))}/config.json has {key} = "):
        read(tmp_path, family, **changes)


def test_a_wrong_end_in_the_file_of_the_generation(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": "end"}))
    with pytest.raises(ModelMismatchError, match=r"generation_config.json has eos_token_id = 'end'"):
        read(tmp_path, "llama")


def test_a_number_without_end(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": ' + "9" * 5000 + "}")
    with pytest.raises(ModelDamagedError, match=r"config.json is not JSON"):
        read_config(tmp_path)


def test_heads_that_rotary_positions_cannot_pair(tmp_path: Path) -> None:
    with pytest.raises(ModelMismatchError, match="heads of 15 elements"):
        read(tmp_path, "llama", head_dim=15)


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("gpt2", ["n_inner", "layer_norm_epsilon", "activation_function", "tie_word_embeddings", "scale_attn_weights"]),
        ("llama", ["rope_theta", "rope_scaling", "rope_parameters", "rms_norm_eps", "head_dim", "hidden_act", "dtype"]),
        ("llama", ["tie_word_embeddings", "attention_bias", "mlp_bias", "partial_rotary_factor", "layer_types"]),
    ],
)
def test_null_means_the_default(family: str, keys: list[str], tmp_path: Path) -> None:
    plain = read(tmp_path, family)
    assert read(tmp_path, family, **dict.fromkeys(keys)) == plain


def test_null_and_no_entry_are_not_the_same_for_a_mistral(tmp_path: Path) -> None:
    assert read(tmp_path, "mistral", sliding_window=...).window == 4096
    assert read(tmp_path, "mistral", sliding_window=None).window is None
    assert read(tmp_path, "mistral", num_attention_heads=16, num_key_value_heads=...).kv_heads == 8
    assert read(tmp_path, "mistral", num_attention_heads=16, num_key_value_heads=None).kv_heads == 16
    assert read(tmp_path, "llama", num_key_value_heads=...).kv_heads == 4


def test_tokens_that_a_model_cannot_write_do_not_end_a_text(tmp_path: Path) -> None:
    config = read(tmp_path, "llama", eos_token_id=[-1, 5, 260, 2**40], bos_token_id=260)
    assert (config.ends, config.begin) == ((5,), None)


def test_layers_that_say_what_is_known(tmp_path: Path) -> None:
    assert read(tmp_path, "llama", layer_types=["full_attention"] * 2) == read(tmp_path, "llama")
    windows = {"sliding_window": 8, "layer_types": ["sliding_attention"] * 2}
    assert read(tmp_path, "mistral", **windows).window == 8
