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
from polyrhythm.language.functions.support import as_dtype

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

DTYPES = ("float32", "bfloat16", "float16")
"""What weights are converted to."""

LARGEST = float(np.finfo(np.float32).max)
"""The largest number that a model computes with."""


@dataclass(frozen=True)
class Rotary:
    """Rotary positions: the base, and how the speeds are scaled for longer texts."""

    base: float
    kind: str = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192
    factors: tuple[float, ...] = ()

    def speeds(self, size: int) -> np.ndarray:
        """The angle per step of each pair of elements.

        Scaling "linear" (Chen et al., 2023) slows all of them; "factors" each by its own; "llama3" only those that turn
        less than `high` times within the original length, and fully those that turn less than `low` times.

        >>> Rotary(10000.0).speeds(4).tolist(), Rotary(10000.0, "linear", 2.0).speeds(4).tolist()
        ([1.0, 0.009999999776482582], [0.5, 0.004999999888241291])
        """
        speeds = self.base ** (-np.arange(0, size, 2) / size)
        if self.kind == "linear":
            speeds = speeds / self.factor
        if self.kind == "factors":
            speeds = speeds / np.array(self.factors)
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


def read_config(folder: Path, dtype: Any = None) -> Config:
    """The configuration of the model in a folder, checked. A dtype that is given counts instead of the model's own."""
    given = read_json(folder / "config.json", needed=True)
    return config_of(folder / "config.json", given, read_json(folder / "generation_config.json", needed=False), dtype)


def config_of(path: Path, given: Mapping[str, Any], generation: Mapping[str, Any], dtype: Any = None) -> Config:
    """The configuration that the entries of a config.json and a generation_config.json give, checked."""
    family = _known(path, given, "model_type", FAMILIES)
    sizes = (_gpt2 if family == "gpt2" else _llama)(path, given, family)
    ends, begins = (
        _tokens(path, given, generation, key, sizes["vocabulary"]) for key in ("eos_token_id", "bos_token_id")
    )
    config = Config(**sizes, dtype=_dtype(path, given, dtype), ends=ends, begin=begins[0] if begins else None)
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
    except (ValueError, RecursionError) as error:  # bytes that are no text, text that is no JSON, numbers without end
        raise ModelDamagedError(f"{path} is not JSON: {error}", fix="copy the file again") from None
    if not isinstance(found, dict):
        raise ModelDamagedError(f"{path} holds no JSON object", fix="copy the file again")
    return found


def _gpt2(path: Path, given: Mapping[str, Any], family: str) -> dict[str, Any]:
    for key, plain in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
        if _flag(path, given, key, plain) is not plain:
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
        "hidden": _number(path, given, "n_inner", 4 * width),
        "epsilon": _real(path, given, "layer_norm_epsilon", 1e-5),
        "activation": ACTIVATIONS[_known(path, given, "activation_function", tuple(ACTIVATIONS), "gelu_new")],
        "positions": _number(path, given, "n_positions"),
        "tied": _flag(path, given, "tie_word_embeddings", True),
        "window": None,
        "rotary": None,
        "attention_bias": True,
        "mlp_bias": True,
    }


def _llama(path: Path, given: Mapping[str, Any], family: str) -> dict[str, Any]:
    width, heads = _number(path, given, "hidden_size"), _number(path, given, "num_attention_heads")
    # For Mistral, transformers tell a key that is left out from one that is null.
    few = family == "mistral" and "num_key_value_heads" not in given
    window = _window(path, given) if family == "mistral" else None
    _check_layers(path, given, window)
    return {
        "family": family,
        "vocabulary": _number(path, given, "vocab_size"),
        "width": width,
        "layers": _number(path, given, "num_hidden_layers"),
        "heads": heads,
        "kv_heads": _number(path, given, "num_key_value_heads", 8 if few else heads),
        "head_size": _number(path, given, "head_dim", width // heads),
        "hidden": _number(path, given, "intermediate_size"),
        "epsilon": _real(path, given, "rms_norm_eps", 1e-6),
        "activation": ACTIVATIONS[_known(path, given, "hidden_act", tuple(ACTIVATIONS), "silu")],
        "positions": _number(path, given, "max_position_embeddings", 2048),
        "tied": _flag(path, given, "tie_word_embeddings", False),
        "window": window,
        "rotary": _rotary(path, given),
        "attention_bias": _flag(path, given, "attention_bias", False),
        "mlp_bias": _flag(path, given, "mlp_bias", False),
    }


def _window(path: Path, given: Mapping[str, Any]) -> int | None:
    """The window of a Mistral: null means none, and no entry that of the first Mistral."""
    if given.get("sliding_window", 4096) is None:
        return None
    return _number(path, given, "sliding_window", 4096)


def _check_layers(path: Path, given: Mapping[str, Any], window: int | None) -> None:
    """All layers attend alike here."""
    kinds, known = given.get("layer_types"), "full_attention" if window is None else "sliding_attention"
    if kinds is not None and not (isinstance(kinds, list) and all(kind == known for kind in kinds)):
        raise UnsupportedError(
            f"{path} has layer_types = {kinds!r}, but sliding_window makes {known!r} of all layers",
            fix="only models are known whose layers attend alike",
        )


def _rotary(path: Path, given: Mapping[str, Any]) -> Rotary:
    """Version 5 keeps base and scaling together, version 4 apart. If a file has both, the older key counts."""
    key = "rope_parameters" if given.get("rope_scaling") in (None, {}) else "rope_scaling"
    scaling = {} if given.get(key) is None else given[key]
    if not isinstance(scaling, dict):
        raise _mismatch(path, key, scaling, "an object")
    if any(isinstance(value, dict) for value in scaling.values()):
        raise UnsupportedError(
            f"{path} has {key} = {scaling!r}, positions that differ from layer to layer",
            fix="only models are known whose layers turn alike",
        )
    for part in (given, scaling):
        if part.get("partial_rotary_factor") not in (None, 1):
            raise UnsupportedError(
                f"{path} has partial_rotary_factor = {part['partial_rotary_factor']!r}, which is not known",
                fix="only 1 is",
            )
    base = _real(path, scaling, "rope_theta", _real(path, given, "rope_theta", 10000.0))
    kind = _given(scaling, "rope_type", _given(scaling, "type", "default"))
    if kind == "default":
        return Rotary(base)
    if kind == "factors":  # GGUF files have a tensor of them
        return Rotary(base, kind, factors=tuple(_real(path, {key: f}, key) for f in scaling["factors"]))
    if kind == "linear":
        return Rotary(base, kind, _real(path, scaling, "factor"))
    if kind == "llama3":
        factor, low, high = (_real(path, scaling, key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
        if low >= high:
            raise _mismatch(path, "low_freq_factor", low, f"below high_freq_factor = {high}")
        return Rotary(base, kind, factor, low, high, _number(path, scaling, "original_max_position_embeddings"))
    raise UnsupportedError(
        f"{path} has rope_type = {kind!r}, which is not known", fix="default, linear and llama3 are known"
    )


def _tokens(
    path: Path, given: Mapping[str, Any], generation: Mapping[str, Any], key: str, vocabulary: int
) -> tuple[int, ...]:
    """The tokens under a key; the generation's own file goes first. One that the model cannot write does not count."""
    file, value = path.with_name("generation_config.json"), generation.get(key)
    if value is None:
        file, value = path, given.get(key)
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(token, bool) or not isinstance(token, int) for token in listed):
        raise _mismatch(file, key, value, "a token or a list of tokens")
    return tuple(token for token in listed if 0 <= token < vocabulary)


def _dtype(path: Path, given: Mapping[str, Any], asked: Any) -> np.dtype:
    if asked is not None:
        found = as_dtype(asked)
        if found.name not in DTYPES:
            raise UnsupportedError(f"weights of {found.name}", fix=f"give one of {', '.join(DTYPES)}")
        return found
    name = _given(given, "dtype", _given(given, "torch_dtype", "float32"))
    if name not in DTYPES:
        raise UnsupportedError(f"{path} has dtype = {name!r}", fix=f"give llm.load a dtype: {', '.join(DTYPES)}")
    return as_dtype(name)


def _given(given: Mapping[str, Any], key: str, default: Any) -> Any:
    """The value of an optional key. Null means that there is none."""
    return default if given.get(key) is None else given[key]


def _number(path: Path, given: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = _given(given, key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _mismatch(path, key, value, "a positive integer")
    return value


def _real(path: Path, given: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = _given(given, key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST:
        raise _mismatch(path, key, value, "a positive number")
    return float(value)


def _flag(path: Path, given: Mapping[str, Any], key: str, default: bool) -> bool:
    value = _given(given, key, default)
    if not isinstance(value, bool):
        raise _mismatch(path, key, value, "true or false")
    return value


def _known(path: Path, given: Mapping[str, Any], key: str, known: tuple[str, ...], default: str = "") -> str:
    value = _given(given, key, default)
    if value not in known:
        raise UnsupportedError(f"{path} has {key} = {value!r}, which is not known", fix=f"known: {', '.join(known)}")
    return str(value)


def _mismatch(path: Path, key: str, value: Any, needed: str) -> ModelMismatchError:
    return ModelMismatchError(
        f"{path} has {key} = {value!r}, which must be {needed}", fix="take the config.json that belongs to the weights"
    )


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
    if config.rotary is not None and config.head_size % 2:
        raise ModelMismatchError(
            f"{path} makes heads of {config.head_size} elements, which rotary positions cannot pair",
            fix="take the config.json that belongs to the weights",
        )
