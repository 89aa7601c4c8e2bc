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


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
NEOX = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
FALCON = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {"kv_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10}
GROUPS = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, **MOE, "num_experts_per_tok": 3}
STATE = {"hidden_size": 48, "num_hidden_layers": 3}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.3,
}

MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, yarn": ("Llama", llama(48, 2, 4, 2, rope_parameters=YARN)),
    "llama, yarn, not truncated": (
        "Llama",
        llama(48, 2, 4, 2, rope_parameters={**YARN, "truncate": False, "beta_fast": 16.0, "attention_factor": 1.3}),
    ),
    "llama, dynamic": ("Llama", llama(48, 2, 4, 2, rope_parameters={"rope_type": "dynamic", "factor": 2.0})),
    "qwen2": ("Qwen2", llama(48, 2, 4, 2)),
    "qwen2, some windows": (
        "Qwen2",
        llama(48, 4, 4, 1, use_sliding_window=True, sliding_window=8, max_window_layers=2, tie_word_embeddings=True),
    ),
    "qwen3": ("Qwen3", llama(48, 2, 4, 2, head_dim=16)),
    "qwen3, biases": ("Qwen3", llama(64, 3, 8, 8, head_dim=8, attention_bias=True)),
    "smollm3": ("SmolLM3", llama(48, 5, 4, 2)),
    "smollm3, own layers": ("SmolLM3", llama(32, 3, 4, 4, no_rope_layers=[0, 1, 0], tie_word_embeddings=False)),
    "gemma": ("Gemma", llama(48, 2, 4, 1, head_dim=16)),
    "gemma2": ("Gemma2", llama(48, 5, 4, 2, head_dim=16, sliding_window=8, query_pre_attn_scalar=20)),
    "gemma3": ("Gemma3Text", llama(48, 8, 4, 2, head_dim=16, sliding_window=8, query_pre_attn_scalar=20)),
    "phi3": ("Phi3", llama(48, 2, 4, 2)),
    "phi3, a part, window": (
        "Phi3",
        llama(64, 2, 4, 4, sliding_window=9, rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5}),
    ),
    "olmo2": ("Olmo2", llama(48, 2, 4, 2)),
    "granite": ("Granite", llama(48, 2, 4, 2, **MULTIPLIERS)),
    "stablelm": ("StableLm", llama(64, 2, 4, 2)),
    "stablelm, parallel": (
        "StableLm",
        llama(64, 2, 4, 2, use_parallel_residual=True, qk_layernorm=True, use_qkv_bias=True),
    ),
    "starcoder2": ("Starcoder2", llama(48, 2, 4, 2, sliding_window=8)),
    "cohere": ("Cohere", llama(48, 2, 4, 2, logit_scale=0.25)),
    "cohere, norms": ("Cohere", llama(48, 2, 4, 2, use_qk_norm=True, logit_scale=0.25)),
    "gpt_neox": ("GPTNeoX", NEOX),
    "gpt_neox, in turn": ("GPTNeoX", {**NEOX, "use_parallel_residual": False, "rotary_pct": 1.0}),
    "falcon": ("Falcon", FALCON),
    "falcon, new": ("Falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon, alibi": ("Falcon", {**FALCON, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}),
    "bloom": ("Bloom", {"hidden_size": 48, "n_layer": 2, "n_head": 6}),
    "mixtral": ("Mixtral", llama(48, 2, 4, 2, num_local_experts=5, num_experts_per_tok=2)),
    "qwen2_moe": (
        "Qwen2Moe",
        llama(48, 4, 4, 2, num_experts=6, shared_expert_intermediate_size=40, decoder_sparse_step=2, **MOE),
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        llama(48, 3, 4, 2, num_experts=6, norm_topk_prob=True, head_dim=16, mlp_only_layers=[0], **MOE),
    ),
    "gpt_oss": (
        "GptOss",
        llama(48, 4, 4, 2, num_local_experts=5, num_experts_per_tok=2, head_dim=16, sliding_window=8),
    ),
    "deepseek_v3": (
        "DeepseekV3",
        llama(48, 3, 4, 4, q_lora_rank=24, first_k_dense_replace=1, **LATENT, **GROUPS),
    ),
    "deepseek_v3, yarn": (
        "DeepseekV3",
        llama(
            48,
            2,
            4,
            4,
            q_lora_rank=None,
            first_k_dense_replace=0,
            rope_parameters={**YARN, "mscale": 0.8, "mscale_all_dim": 0.7},
            **LATENT,
            **GROUPS,
        ),
    ),
    "mamba": ("Mamba", {**STATE, "state_size": 6}),
    "mamba, biases": ("Mamba", {**STATE, "state_size": 4, "use_bias": True, "use_conv_bias": False, "conv_kernel": 3}),
    "mamba2": ("Mamba2", {**STATE, "state_size": 6, "num_heads": 6, "head_dim": 16, "n_groups": 3, "chunk_size": 8}),
    "rwkv": ("Rwkv", {**STATE, "intermediate_size": 72}),
    "recurrent_gemma": (
        "RecurrentGemma",
        llama(48, 5, 4, 1, lru_width=48, attention_window_size=8, conv1d_width=3, head_dim=12),
    ),
    # Another shape of those that have only one above: heads that share keys or not, other depths, ties and sizes.
    "gemma, three layers": ("Gemma", llama(32, 3, 2, 2, head_dim=24)),
    "gemma2, odd layers": ("Gemma2", llama(64, 3, 8, 8, head_dim=8, sliding_window=5, query_pre_attn_scalar=8)),
    "gemma3, no pattern": ("Gemma3Text", llama(32, 3, 4, 1, head_dim=8, sliding_window=3, query_pre_attn_scalar=8)),
    "olmo2, one layer": ("Olmo2", llama(64, 1, 8, 8, tie_word_embeddings=True)),
    "granite, shared keys": ("Granite", llama(40, 3, 5, 1, **MULTIPLIERS, attention_bias=True)),
    "starcoder2, no window": ("Starcoder2", llama(64, 3, 8, 8, sliding_window=None, use_bias=False)),
    "bloom, five heads": ("Bloom", {"hidden_size": 40, "n_layer": 3, "n_head": 5}),
    "mixtral, one expert": (
        "Mixtral",
        llama(32, 3, 2, 2, num_local_experts=3, num_experts_per_tok=1, sliding_window=7),
    ),
    "qwen2_moe, all sparse": (
        "Qwen2Moe",
        llama(32, 2, 4, 4, num_experts=4, shared_expert_intermediate_size=24, decoder_sparse_step=1, **MOE),
    ),
    "qwen3_moe, not normalised": (
        "Qwen3Moe",
        llama(32, 2, 2, 1, num_experts=4, norm_topk_prob=False, head_dim=8, **MOE),
    ),
    "gpt_oss, three experts": (
        "GptOss",
        llama(32, 2, 8, 1, num_local_experts=3, num_experts_per_tok=3, head_dim=8, sliding_window=4),
    ),
    "mamba2, one group": (
        "Mamba2",
        {**STATE, "hidden_size": 32, "state_size": 5, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 16},
    ),
    "rwkv, wide": ("Rwkv", {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 40}),
    "recurrent_gemma, three layers": (
        "RecurrentGemma",
        llama(32, 3, 2, 1, lru_width=32, attention_window_size=5, conv1d_width=4, head_dim=16),
    ),
}
"""Families that came later, by the names of their classes."""


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
        family, settings = {**SHAPES, **MORE}[self.name]
        if self.name in MORE:
            model_class = family.removesuffix("Text") + "ForCausalLM"
            FAMILIES[family] = getattr(transformers, family + "Config"), getattr(transformers, model_class)
        make_config, make_model = FAMILIES[family]
        settings = settings if self.layers is None else {**settings, "num_hidden_layers": self.layers}
        ends = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
        model = make_model(make_config(vocab_size=VOCABULARY, **ends, **settings)).eval()
        tied = model.config.tie_word_embeddings
        seed = len(self.name) if self.seed is None else self.seed
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            # DeepSeek's correction of its router is a buffer, and decides as a weight does.
            corrections = [pair for pair in model.named_buffers() if pair[0].endswith("correction_bias")]
            for name, weight in [*model.named_parameters(), *corrections]:
                noise = torch.randn(weight.shape, generator=generator)
                if weight.ndim == 1:
                    # Gemma's norms count from one, and sinks from zero.
                    none = name.endswith(("bias", "sinks")) or family.startswith(("Gemma", "RecurrentGemma"))
                    weight.copy_((0.0 if none else 1.0) + 0.1 * noise)
                elif "wte" in name or "embed" in name:
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
        # RecurrentGemma begins a text of one token with the state that the text before left.
        cached = {"use_cache": False} if self.model.config.model_type == "recurrent_gemma" else {}
        with torch.no_grad():
            found = self.model.generate(
                given, attention_mask=torch.ones_like(given), max_new_tokens=count, do_sample=False, **cached
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
