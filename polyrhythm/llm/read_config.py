"""Reading the configuration of a model in a folder: by its family, then checked as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm.errors import UnsupportedError
from polyrhythm.language.functions.support import as_dtype
from polyrhythm.llm.config import Config
from polyrhythm.llm.errors import ModelDamagedError, ModelMismatchError, ModelMissingError
from polyrhythm.llm.families import FAMILIES
from polyrhythm.llm.fields import Fields

DTYPES = ("float32", "bfloat16", "float16")
"""What weights are converted to."""


def read_config(folder: Path, dtype: Any = None) -> Config:
    """The configuration of the model in a folder, checked. A dtype that is given counts instead of the model's own."""
    given = read_json(folder / "config.json", needed=True)
    return config_of(folder / "config.json", given, read_json(folder / "generation_config.json", needed=False), dtype)


def config_of(path: Path, given: Mapping[str, Any], generation: Mapping[str, Any], dtype: Any = None) -> Config:
    """The configuration that the entries of a config.json and a generation_config.json give, checked."""
    fields = Fields(path, given)
    config = FAMILIES[fields.known("model_type", tuple(FAMILIES))].read(fields)
    ends, begins = (_tokens(fields, generation, key, config.vocabulary) for key in ("eos_token_id", "bos_token_id"))
    config = replace(config, dtype=_dtype(fields, dtype), ends=ends, begin=begins[0] if begins else None)
    _check(fields, config)
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


def _tokens(fields: Fields, generation: Mapping[str, Any], key: str, vocabulary: int) -> tuple[int, ...]:
    """The tokens under a key; the generation's own file goes first. One that the model cannot write does not count."""
    own = Fields(fields.path.with_name("generation_config.json"), generation)
    source = fields if own.get(key) is None else own
    entry = source.get(key)
    listed = entry if isinstance(entry, list) else [] if entry is None else [entry]
    if any(isinstance(token, bool) or not isinstance(token, int) for token in listed):
        raise source.mismatch(key, entry, "a token or a list of tokens")
    return tuple(token for token in listed if 0 <= token < vocabulary)


def as_weights_dtype(asked: Any) -> np.dtype:
    """A dtype that weights, keys and values may have."""
    found = as_dtype(asked)
    if found.name not in DTYPES:
        raise UnsupportedError(f"weights of {found.name}", fix=f"give one of {', '.join(DTYPES)}")
    return found


def _dtype(fields: Fields, asked: Any) -> np.dtype:
    if asked is not None:
        return as_weights_dtype(asked)
    name = fields.get("dtype", fields.get("torch_dtype", "float32"))
    if name not in DTYPES:
        raise UnsupportedError(f"{fields.path} has dtype = {name!r}", fix=f"give llm.load a dtype: {', '.join(DTYPES)}")
    return as_dtype(name)


def _check(fields: Fields, config: Config) -> None:
    """Sizes that contradict each other."""
    fix = "take the config.json that belongs to the weights"
    if config.heads % config.kv_heads:
        raise ModelMismatchError(
            f"{fields.path} has {config.heads} heads of queries for {config.kv_heads} heads of keys, not a multiple",
            fix=fix,
        )
    if "head_dim" not in fields and config.width % config.heads:
        raise ModelMismatchError(
            f"{fields.path} has a width of {config.width} for {config.heads} heads, not a multiple", fix=fix
        )
    for kind in config.kinds:
        if kind.rotary is None:
            continue
        if int(config.head_size * kind.rotary.part) % 2:
            raise ModelMismatchError(
                f"{fields.path} makes heads of {config.head_size} elements, which rotary positions cannot pair", fix=fix
            )
        if kind.rotary.factors and len(kind.rotary.factors) != int(config.head_size * kind.rotary.part) // 2:
            raise ModelMismatchError(
                f"{fields.path} has {len(kind.rotary.factors)} factors for the pairs of heads of {config.head_size}",
                fix=fix,
            )
