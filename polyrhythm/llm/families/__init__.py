"""The families of models that are known: for each, how its config.json is read and what decoder it is.

A family is a reader that returns a `Config`; most share one decoder, `polyrhythm.llm.transformer`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polyrhythm.llm.config import Config
from polyrhythm.llm.families import (
    bloom,
    falcon,
    gemma,
    gpt2,
    gpt_neox,
    llama,
    mamba,
    mamba2,
    mixtures,
    others,
    qwen,
    recurrent_gemma,
    rwkv,
)
from polyrhythm.llm.fields import Fields
from polyrhythm.llm.transformer import Transformer


@dataclass(frozen=True)
class Family:
    """How the config.json of a family is read, and the decoder without weights that it configures."""

    read: Callable[[Fields], Config]
    decoder: Callable[[Config], Any] = Transformer


FAMILIES = {
    "gpt2": Family(gpt2.gpt2, gpt2.GPT2),
    "llama": Family(llama.llama),
    "mistral": Family(llama.mistral),
    "qwen2": Family(qwen.qwen2),
    "qwen3": Family(qwen.qwen3),
    "smollm3": Family(others.smollm3),
    "gemma": Family(gemma.gemma),
    "gemma2": Family(gemma.gemma2),
    "gemma3_text": Family(gemma.gemma3),
    "phi3": Family(others.phi3, others.phi3_decoder),
    "olmo2": Family(others.olmo2),
    "granite": Family(others.granite),
    "stablelm": Family(others.stablelm, others.stablelm_decoder),
    "starcoder2": Family(others.starcoder2, others.starcoder2_decoder),
    "cohere": Family(others.cohere, others.cohere_decoder),
    "gpt_neox": Family(gpt_neox.gpt_neox, gpt_neox.gpt_neox_decoder),
    "falcon": Family(falcon.falcon, falcon.falcon_decoder),
    "bloom": Family(bloom.bloom, bloom.Bloom),
    "mixtral": Family(mixtures.mixtral, mixtures.mixtral_decoder),
    "qwen2_moe": Family(qwen.qwen2_moe, mixtures.mixture_decoder),
    "qwen3_moe": Family(qwen.qwen3_moe, mixtures.mixture_decoder),
    "gpt_oss": Family(mixtures.gpt_oss, mixtures.gpt_oss_decoder),
    "deepseek_v3": Family(mixtures.deepseek_v3, mixtures.deepseek_decoder),
    "mamba": Family(mamba.mamba, mamba.Mamba),
    "mamba2": Family(mamba2.mamba2, mamba2.mamba2_decoder),
    "rwkv": Family(rwkv.rwkv, rwkv.rwkv_decoder),
    "recurrent_gemma": Family(recurrent_gemma.recurrent_gemma, recurrent_gemma.RecurrentGemma),
}
"""By the name in `model_type`."""


def blank_decoder(config: Config) -> Any:
    """The decoder of a configuration, without weights."""
    return FAMILIES[config.family].decoder(config)
