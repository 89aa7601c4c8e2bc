"""Random models of transformers, written to disk, and what transformers make of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

VOCABULARY = 256
STEPS = 128
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES = {
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
}


def gpt2(width: int, layers: int, heads: int, **rest: Any) -> dict[str, Any]:
    return {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": 256, **rest}


def llama(width: int, layers: int, heads: int, kv_heads: int, **rest: Any) -> dict[str, Any]:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": 2 * width + 8}
    attention = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "max_position_embeddings": 512}
    return {**sizes, **attention, **rest}


SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", gpt2(48, 2, 4)),
    "gpt2, one head": ("gpt2", gpt2(32, 3, 1, n_inner=80)),
    "gpt2, not tied": ("gpt2", gpt2(64, 1, 8, tie_word_embeddings=False, activation_function="gelu")),
    "llama 2": ("llama", llama(64, 2, 4, 4)),
    "llama 3, scaled": ("llama", llama(64, 2, 4, 2, rope_parameters=LLAMA3)),
    "llama 3.2, tied": ("llama", llama(48, 3, 6, 2, rope_parameters=LLAMA3, tie_word_embeddings=True)),
    "llama, linear, biases": (
        "llama",
        llama(
            32,
            2,
            4,
            1,
            head_dim=16,
            attention_bias=True,
            mlp_bias=True,
            rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
        ),
    ),
    "mistral, window 16": ("mistral", llama(64, 2, 4, 2, sliding_window=16)),
    "mistral, window 3": ("mistral", llama(48, 2, 4, 4, sliding_window=3)),
    "mistral, long window": ("mistral", llama(64, 2, 4, 2, sliding_window=500)),
    "mistral, no window": ("mistral", llama(64, 1, 8, 4, sliding_window=None, head_dim=32)),
}


@dataclass
class Reference:
    """A model of transformers. With the usual gain its weights are large enough that what it writes varies.

    With `signed` a Llama's last normalisation has weights of both signs, so that a model whose output layer is its
    embedding does not repeat what it has read, even if the gain is small. `layers` overrides those of the shape.
    """

    name: str
    gain: float = 2.5
    seed: int | None = None
    layers: int | None = None
    signed: bool = False

    @cached_property
    def model(self) -> Any:
        family, settings = SHAPES[self.name]
        make_config, make_model = FAMILIES[family]
        settings = settings if self.layers is None else {**settings, "num_hidden_layers": self.layers}
        ends = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
        model = make_model(make_config(vocab_size=VOCABULARY, **ends, **settings)).eval()
        tied = model.config.tie_word_embeddings
        seed = len(self.name) if self.seed is None else self.seed
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                noise = torch.randn(weight.shape, generator=generator)
                if weight.ndim == 1:
                    weight.copy_((0.0 if name.endswith("bias") else 1.0) + 0.1 * noise)
                elif "wte" in name or "embed_tokens" in name:
                    weight.copy_(noise * (0.1 if tied else 1.0))
                elif "wpe" in name:
                    weight.copy_(noise)
                else:  # GPT-2 keeps its matrices the other way round
                    inputs = weight.shape[0] if ".c_" in name else weight.shape[-1]
                    weight.copy_(noise * self.gain * inputs**-0.5)
            if self.signed:
                last = model.model.norm.weight
                signs = torch.rand(last.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
                last.mul_(torch.where(signs, -1.0, 1.0))
        return model

    def save(self, folder: Path, **options: Any) -> Path:
        """Write the model as transformers do."""
        self.model.save_pretrained(folder, **options)
        return folder

    def tokens(self, prompt: list[int], count: int) -> list[int]:
        """What follows a prompt greedily."""
        given = torch.tensor([prompt])
        with torch.no_grad():
            found = self.model.generate(
                given, attention_mask=torch.ones_like(given), max_new_tokens=count, do_sample=False
            )
        return found[0, len(prompt) :].tolist()

    def logits(self, tokens: list[int], seen: np.ndarray | None = None, bias: np.ndarray | None = None) -> np.ndarray:
        """The logits after each token; `seen` says which steps see which, `bias` what is added for each head."""
        mask = None
        if seen is not None:
            mask = torch.from_numpy(np.where(seen, 0.0, -np.inf).astype("float32"))[None, None]
            mask = mask if bias is None else mask + torch.from_numpy(bias.astype("float32"))[None]
            self.model.set_attn_implementation("eager")
        with torch.no_grad():
            found = self.model(torch.tensor([tokens]), attention_mask=mask, use_cache=False).logits[0]
        return found.float().numpy()


PROMPTS = [[7, 3, 11], [200, 4, 9, 31, 77, 5, 101], [42]]
"""Of different lengths."""
