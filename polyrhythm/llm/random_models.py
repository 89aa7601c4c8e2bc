"""Folders with models of random weights, to try things out: they are whole checkpoints, and their text is noise.

Weights are drawn large enough that the text varies: a model with small random weights repeats one token for ever.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm.extras import needs
from polyrhythm.llm.families import FAMILIES
from polyrhythm.llm.naming import tensors_of
from polyrhythm.llm.read_config import read_config
from polyrhythm.nn.files import save

LLAMA = {
    "model_type": "llama",
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": 256,
    "eos_token_id": 257,
}

GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 260,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "bos_token_id": 256,
    "eos_token_id": 257,
}

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
OWN: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 16},
    "gemma2": {"sliding_window": 16, "head_dim": 16, "tie_word_embeddings": False},
    "gemma3_text": {"sliding_window": 16, "head_dim": 16, "tie_word_embeddings": False},
    "gemma": {"head_dim": 16, "tie_word_embeddings": False},
    "qwen3": {"head_dim": 16},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 48},
    "qwen3_moe": {**EXPERTS, "head_dim": 16},
}
"""What the config.json of a family has beside, or instead of, a Llama's."""

DEFAULTS: dict[str, dict[str, Any]] = {
    family: GPT2 if family == "gpt2" else {**LLAMA, "model_type": family, **OWN.get(family, {})} for family in FAMILIES
}


def write_random(folder: str | os.PathLike[str], family: str = "llama", seed: int = 0, **config: Any) -> Path:
    """A folder with a random model: `config.json`, `model.safetensors` and a tokenizer of bytes.

    `config` overrides entries of config.json.

    >>> import tempfile
    >>> from polyrhythm import llm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = llm.load(write_random(folder, "gpt2", n_layer=3))
    >>> model.config.layers, model.config.width
    (3, 64)
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({**DEFAULTS[family], **config}, indent=1) + "\n")
    known = read_config(path)
    rng = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}
    for own in tensors_of(known).values():
        for name in own.paths:
            weights[name] = _drawn(name, own.shape, known.tied, rng).astype(known.dtype)
    save(weights, path / "model.safetensors", {"format": "pt"})
    (path / "tokenizer.json").write_text(json.dumps(_tokenizer(known.vocabulary)))
    return path


def _drawn(name: str, shape: tuple[int, ...], tied: bool, rng: np.random.Generator) -> np.ndarray:
    """Vectors near one or zero, matrices that keep the size of what they multiply.

    An embedding that is also the output layer is small, or the model would repeat the token it reads.
    """
    if len(shape) == 1:
        return (0.0 if name.endswith("bias") else 1.0) + 0.1 * rng.normal(size=shape)
    if "wte" in name or "embed_tokens" in name:
        return rng.normal(size=shape) * (0.1 if tied else 1.0)
    if "wpe" in name:
        return rng.normal(size=shape)
    inputs = shape[0] if ".c_" in name else shape[-1]  # GPT-2 keeps its matrices the other way round
    return rng.normal(size=shape) * 2.5 / np.sqrt(inputs)


def _tokenizer(vocabulary: int) -> dict[str, Any]:
    """Each byte is a token; then come two to begin and end with, and words that mean nothing."""
    needs("tokenizers", "llm", "a tokenizer")
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*letters, "<begin>", "<end>", *(f"<{n}>" for n in range(258, vocabulary))][:vocabulary]
    tokenizer = Tokenizer(BPE({name: number for number, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(names[256:258])
    return dict(json.loads(tokenizer.to_str()))
