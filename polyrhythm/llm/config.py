"""What a model is: its sizes, what each layer does, and what is done between them.

A family reads its `config.json` into a `Config` (see `polyrhythm.llm.families`). Nothing is guessed: a value that
decides what the model computes and is not understood is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm.errors import UnsupportedError
from polyrhythm.language.functions.support import as_dtype
from polyrhythm.llm.errors import ModelDamagedError, ModelMismatchError, ModelMissingError
from polyrhythm.llm.fields import Fields
from polyrhythm.llm.rope import Rotary

DTYPES = ("float32", "bfloat16", "float16")
"""What weights are converted to."""


@dataclass(frozen=True)
class Kind:
    """What a layer does where layers differ: a window, positions, experts, or something else than attention."""

    window: int | None = None
    rotary: Rotary | None = None
    experts: bool = False
    mixer: str = "attention"


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: of `count` networks each token goes through the `active` ones that its router prefers.

    `normalised` makes their weights add up to 1; `shared` is the size of a network that every token goes through, and
    `gated` whether that one has a gate. `groups` and `active_groups` restrict the choice (DeepSeek); `scale` multiplies
    the weights. `form` is the family's own way of routing.
    """

    count: int
    active: int
    hidden: int
    normalised: bool = False
    shared: int = 0
    gated: bool = False
    form: str = "softmax"
    groups: int = 1
    active_groups: int = 1
    scale: float = 1.0


@dataclass(frozen=True)
class Config:
    """The sizes of a model, and what it does between them. Defaults are those of Llama."""

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
    kinds: tuple[Kind, ...]
    dtype: np.dtype = np.dtype("float32")  # noqa: RUF009
    ends: tuple[int, ...] = ()
    begin: int | None = None
    limit: int | None = None  # the longest text, where positions are learnt
    norm: str = "rms"  # rms, rms+1 (Gemma), layer, or layer without a bias
    order: str = "pre"  # where the norms are: pre, post, both, or pre with attention and network in parallel
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: str | None = None  # of each head, or of the whole width
    scale: float | None = None  # of attention, instead of one over the root of the size of a head
    softcap: float | None = None  # of the scores of attention
    final_softcap: float | None = None  # of the logits
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    experts: Experts | None = None
    wide: bool = False  # whether what layers add to is float32 whatever the weights are
    detail: Any = None  # what only one family has

    @property
    def group(self) -> int:
        """How many heads of queries share one head of keys."""
        return self.heads // self.kv_heads

    @property
    def window(self) -> int | None:
        """The window of all layers; None if one of them attends to everything."""
        sizes = [kind.window for kind in self.kinds]
        return None if None in sizes else max(size for size in sizes if size is not None)


@dataclass(frozen=True)
class Stack:
    """Layers that are one loop: `repeats` times the `period` layers from `start` on."""

    start: int
    period: int
    repeats: int


def stacks(kinds: Sequence[Any]) -> list[Stack]:
    """The loops that layers make: in each, the kinds of layers repeat with a period.

    >>> stacks("sssss"), stacks("sfsfs")
    ([Stack(start=0, period=1, repeats=5)], [Stack(start=0, period=2, repeats=2), Stack(start=4, period=1, repeats=1)])
    """
    found: list[Stack] = []
    start = 0
    while start < len(kinds):
        best = Stack(start, 1, 1)
        for period in range(1, (len(kinds) - start) // 2 + 1):
            first, repeats = kinds[start : start + period], 1
            while kinds[start + repeats * period : start + (repeats + 1) * period] == first:
                repeats += 1
            if repeats > 1 and repeats * period > best.repeats * best.period:
                best = Stack(start, period, repeats)
        found.append(best)
        start += best.repeats * best.period
    return found


def read_config(folder: Path, dtype: Any = None) -> Config:
    """The configuration of the model in a folder, checked. A dtype that is given counts instead of the model's own."""
    given = read_json(folder / "config.json", needed=True)
    return config_of(folder / "config.json", given, read_json(folder / "generation_config.json", needed=False), dtype)


def config_of(path: Path, given: Mapping[str, Any], generation: Mapping[str, Any], dtype: Any = None) -> Config:
    """The configuration that the entries of a config.json and a generation_config.json give, checked."""
    from polyrhythm.llm.families import FAMILIES

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


def _dtype(fields: Fields, asked: Any) -> np.dtype:
    if asked is not None:
        found = as_dtype(asked)
        if found.name not in DTYPES:
            raise UnsupportedError(f"weights of {found.name}", fix=f"give one of {', '.join(DTYPES)}")
        return found
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
