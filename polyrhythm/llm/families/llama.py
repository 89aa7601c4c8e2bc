"""Llama 2 and 3 (Touvron et al., 2023; Dubey et al., 2024), SmolLM and SmolLM2, and Mistral (Jiang et al., 2023).

The reader here is that of all families whose config.json has Llama's names.
"""

from __future__ import annotations

from typing import Any

from polyrhythm.errors import UnsupportedError
from polyrhythm.llm.config import Config, Kind
from polyrhythm.llm.fields import Fields
from polyrhythm.llm.rope import Rotary, read_rotary


def common(fields: Fields, rotary: Rotary | None = None, **options: Any) -> Config:
    """What is read in Llama's names; `options` are the fields that a family reads in another way."""
    width, heads = fields.number("hidden_size"), fields.number("num_attention_heads")
    layers = fields.number("num_hidden_layers")
    read: dict[str, Any] = {
        "family": str(fields.get("model_type")),
        "vocabulary": fields.number("vocab_size"),
        "width": width,
        "layers": layers,
        "heads": heads,
        "kv_heads": options.pop("kv_heads", None) or fields.number("num_key_value_heads", heads),
        "head_size": options.pop("head_size", None) or fields.number("head_dim", width // heads),
        "hidden": options.pop("hidden", None) or fields.number("intermediate_size"),
        "epsilon": options.pop("epsilon", None) or fields.real("rms_norm_eps", 1e-6),
        "activation": options.pop("activation", None) or fields.activation("hidden_act"),
        "positions": fields.number("max_position_embeddings", 2048),
        "tied": fields.flag("tie_word_embeddings", options.pop("tied_default", False)),
    }
    if "kinds" not in options:
        options["kinds"] = alike(fields, layers, Kind(rotary=rotary or read_rotary(fields)))
    return Config(**read, **options)


def alike(fields: Fields, layers: int, kind: Kind) -> tuple[Kind, ...]:
    """One kind for all layers, which is what layer_types must say too, if it is there."""
    known = "full_attention" if kind.window is None else "sliding_attention"
    found = fields.get("layer_types")
    if found is not None and not (isinstance(found, list) and all(entry == known for entry in found)):
        raise UnsupportedError(
            f"{fields.path} has layer_types = {found!r}, but sliding_window makes {known!r} of all layers",
            fix="only models are known whose layers attend alike",
        )
    return (kind,) * layers


def windows(fields: Fields, rotary: Rotary | None = None, sliding: tuple[bool, ...] | None = None) -> tuple[Kind, ...]:
    """Layers of which some have a window: as layer_types says, or else `sliding`."""
    layers, both = fields.number("num_hidden_layers"), ("full_attention", "sliding_attention")
    said = fields.layer_kinds(layers, both)
    found = sliding or (False,) * layers if said is None else tuple(kind == both[1] for kind in said)
    size = fields.number("sliding_window") if any(found) else None
    turned = rotary or read_rotary(fields)
    return tuple(Kind(size if has else None, turned) for has in found)


def llama(fields: Fields) -> Config:
    """Llama: one bias switch for attention, one for the network."""
    bias = fields.flag("attention_bias", False)
    return common(fields, qkv_bias=bias, out_bias=bias, mlp_bias=fields.flag("mlp_bias", False))


def mistral(fields: Fields) -> Config:
    """Mistral: a window for all layers. A key that is left out has the value of the first Mistral, null means none."""
    few = "num_key_value_heads" not in fields
    none = "sliding_window" in fields and fields.get("sliding_window") is None
    size = None if none else fields.number("sliding_window", 4096)
    kinds = alike(fields, fields.number("num_hidden_layers"), Kind(size, read_rotary(fields)))
    return common(fields, kinds=kinds, kv_heads=8 if few else None)
