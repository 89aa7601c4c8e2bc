"""What `config.json` says of a model, for the families that are known: GPT-2, Llama and Mistral.

The names are those of Hugging Face, in the spellings of its versions 4 and 5. Nothing is guessed: a value that decides
what the model computes and is not understood is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm.errors import ModelDamagedError, ModelMismatchError, ModelMissingError, UnsupportedError
from polyrhythm.lang.functions.support import as_dtype

FAMILIES = ("gpt2", "llama", "mistral")

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""The functions between linear layers: Hugging Face's names and ours."""


@dataclass(frozen=True)
class Rotary:
    """Rotary positions: the base, and how the speeds are scaled for longer texts."""

    base: float
    kind: str = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def speeds(self, size: int) -> np.ndarray:
        """The angle per step of each pair of elements.

        Scaling "linear" (Chen et al., 2023) slows all of them; "llama3" only those that turn less than `high` times
        within the original length, and fully those that turn less than `low` times.

        >>> Rotary(10000.0).speeds(4).tolist(), Rotary(10000.0, "linear", 2.0).speeds(4).tolist()
        ([1.0, 0.009999999776482582], [0.5, 0.004999999888241291])
        """
        speeds = self.base ** (-np.arange(0, size, 2) / size)
        if self.kind == "linear":
            speeds = speeds / self.factor
        if self.kind == "llama3":
            turns = self.original * speeds / (2 * np.pi)
            kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
            speeds = kept * speeds + (1 - kept) * speeds / self.factor
        return speeds.astype(np.float32)


@dataclass(frozen=True)
class Config:
    """The sizes of a model, and what it does between them."""

    family: str
    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    epsilon: float
    activation: str
    positions: int
    tied: bool
    window: int | None
    rotary: Rotary | None
    attention_bias: bool
    mlp_bias: bool
    dtype: np.dtype
    ends: tuple[int, ...]
    begin: int | None

    @property
    def group(self) -> int:
        """How many heads of queries share one head of keys."""
        return self.heads // self.kv_heads


def read_config(folder: Path) -> Config:
    """The configuration of the model in a folder, checked."""
    given = read_json(folder / "config.json", needed=True)
    path = folder / "config.json"
    family = _known(path, given, "model_type", FAMILIES)
    ends, begin = _tokens(given, read_json(folder / "generation_config.json", needed=False))
    read = _gpt2 if family == "gpt2" else _llama
    config = Config(**read(path, given, family), dtype=_dtype(path, given), ends=ends, begin=begin)
    _check(path, config)
    return config


def read_json(path: Path, needed: bool) -> dict[str, Any]:
    """A JSON file of the folder; empty if it is not there and need not be."""
    if not path.is_file():
        if not needed:
            return {}
        there = ", ".join(sorted(p.name for p in path.parent.iterdir())) if path.parent.is_dir() else ""
        raise ModelMissingError(
            f"there is no {path.name} in {path.parent}" + (f", only {there}" if there else ""),
            fix="give the folder of a Hugging Face checkpoint: config.json beside safetensors files",
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelDamagedError(f"{path} is not JSON: {error}", fix="copy the file again") from None
    if not isinstance(found, dict):
        raise ModelDamagedError(f"{path} holds no JSON object", fix="copy the file again")
    return found


def _gpt2(path: Path, given: Mapping[str, Any], family: str) -> dict[str, Any]:
    for key, plain in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
        if given.get(key, plain) is not plain:
            raise UnsupportedError(f"{path} sets {key} to {given[key]}, which is not known", fix=f"only {plain} is")
    width, heads = _number(path, given, "n_embd"), _number(path, given, "n_head")
    return {
        "family": family,
        "vocabulary": _number(path, given, "vocab_size"),
        "width": width,
        "layers": _number(path, given, "n_layer"),
        "heads": heads,
        "kv_heads": heads,
        "head_size": width // heads,
        "hidden": given.get("n_inner") or 4 * width,
        "epsilon": float(given.get("layer_norm_epsilon", 1e-5)),
        "activation": ACTIVATIONS[_known(path, given, "activation_function", tuple(ACTIVATIONS), "gelu_new")],
        "positions": _number(path, given, "n_positions"),
        "tied": given.get("tie_word_embeddings", True),
        "window": None,
        "rotary": None,
        "attention_bias": True,
        "mlp_bias": True,
    }


def _llama(path: Path, given: Mapping[str, Any], family: str) -> dict[str, Any]:
    width, heads = _number(path, given, "hidden_size"), _number(path, given, "num_attention_heads")
    return {
        "family": family,
        "vocabulary": _number(path, given, "vocab_size"),
        "width": width,
        "layers": _number(path, given, "num_hidden_layers"),
        "heads": heads,
        "kv_heads": given.get("num_key_value_heads") or heads,
        "head_size": given.get("head_dim") or width // heads,
        "hidden": _number(path, given, "intermediate_size"),
        "epsilon": float(given.get("rms_norm_eps", 1e-6)),
        "activation": ACTIVATIONS[_known(path, given, "hidden_act", tuple(ACTIVATIONS), "silu")],
        "positions": given.get("max_position_embeddings", 2048),
        "tied": given.get("tie_word_embeddings", False),
        "window": given.get("sliding_window") if family == "mistral" else None,
        "rotary": _rotary(path, given),
        "attention_bias": given.get("attention_bias", False),
        "mlp_bias": given.get("mlp_bias", False),
    }


def _rotary(path: Path, given: Mapping[str, Any]) -> Rotary:
    """Version 5 keeps base and scaling together, version 4 apart."""
    scaling = given.get("rope_parameters") or given.get("rope_scaling") or {}
    base = float(scaling.get("rope_theta", given.get("rope_theta", 10000.0)))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return Rotary(base)
    if kind == "linear":
        return Rotary(base, kind, float(scaling["factor"]))
    if kind == "llama3":
        low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
        return Rotary(base, kind, float(scaling["factor"]), low, high, int(scaling["original_max_position_embeddings"]))
    raise UnsupportedError(
        f"{path} scales rotary positions by {kind!r}, which is not known", fix="default, linear and llama3 are known"
    )


def _tokens(given: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[tuple[int, ...], int | None]:
    """The tokens that end a text, and the one that begins it; the generation's own file goes first."""
    both = {**given, **{key: value for key, value in generation.items() if value is not None}}
    ends = both.get("eos_token_id")
    begin = both.get("bos_token_id")
    listed = ends if isinstance(ends, list) else [] if ends is None else [ends]
    return tuple(int(end) for end in listed), None if begin is None else int(begin)


def _dtype(path: Path, given: Mapping[str, Any]) -> np.dtype:
    name = given.get("dtype") or given.get("torch_dtype") or "float32"
    if name not in ("float32", "bfloat16", "float16"):
        raise UnsupportedError(f"{path} asks for weights of {name}", fix="give a dtype to llm.load")
    return as_dtype(name)


def _number(path: Path, given: Mapping[str, Any], key: str) -> int:
    value = given.get(key)
    if not isinstance(value, int) or value < 1:
        raise ModelMismatchError(
            f"{path} has {key} = {value!r}, which must be a positive integer",
            fix="take the config.json that belongs to the weights",
        )
    return value


def _known(path: Path, given: Mapping[str, Any], key: str, known: tuple[str, ...], default: str = "") -> str:
    value = given.get(key, default)
    if value not in known:
        raise UnsupportedError(f"{path} has {key} = {value!r}, which is not known", fix=f"known: {', '.join(known)}")
    return str(value)


def _check(path: Path, config: Config) -> None:
    """Sizes that contradict each other."""
    if config.heads % config.kv_heads:
        raise ModelMismatchError(
            f"{path} has {config.heads} heads of queries for {config.kv_heads} heads of keys, not a multiple",
            fix="take the config.json that belongs to the weights",
        )
    if config.family == "gpt2" and config.width % config.heads:
        raise ModelMismatchError(
            f"{path} has a width of {config.width} for {config.heads} heads, not a multiple",
            fix="take the config.json that belongs to the weights",
        )
