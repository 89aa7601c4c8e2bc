"""Attention, rotary positions and transformer blocks against torch and Hugging Face, from the same weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import polyrhythm as pr
from polyrhythm import nn
from tests.nn.comparing import BATCH, STEPS, compare, random, weights_of


def turned(x: Any, base: float) -> Any:
    """Rotary positions as Hugging Face's Llama has them; x is (batch, heads, steps, size)."""
    size = x.shape[-1]
    angles = torch.outer(torch.arange(x.shape[-2]), 1.0 / base ** (torch.arange(0, size, 2).double() / size))
    angles = torch.cat((angles, angles), -1)
    half = torch.cat((-x[..., size // 2 :], x[..., : size // 2]), -1)
    return x * angles.cos() + half * angles.sin()


def attention(w: Mapping[str, Any], x: Any, heads: int, kv_heads: int, base: float | None, mask: Any) -> Any:
    def headed(name: str, count: int) -> Any:
        y = F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))
        return y.reshape(*x.shape[:2], count, -1).transpose(1, 2)

    q, k, v = headed("q_proj", heads), headed("k_proj", kv_heads), headed("v_proj", kv_heads)
    if "q_norm.weight" in w:
        q, k = (F.rms_norm(x, x.shape[-1:], w[f"{name}_norm.weight"], 1e-6) for name, x in (("q", q), ("k", k)))
    if base is not None:
        q, k = turned(q, base), turned(k, base)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return F.linear(mixed.transpose(1, 2).flatten(2), w["o_proj.weight"], w.get("o_proj.bias"))


PLACES = torch.arange(STEPS)
EVERY_SECOND = PLACES[:, None] % 2 == PLACES % 2
SAME_BLOCK = PLACES[:, None] // 2 == PLACES // 2
FIRST = (PLACES == 0).expand(STEPS, STEPS)
CAUSAL = torch.ones(STEPS, STEPS, dtype=torch.bool).tril()

MASKS: dict[str, tuple[Callable[[Any, Any], slice | int | None], Any]] = {
    "causal": (lambda t, T: None, CAUSAL),
    "all": (lambda t, T: slice(0, T), torch.ones_like(CAUSAL)),
    "window": (lambda t, T: slice(pr.max(0, t - 1), t + 1), CAUSAL & ~CAUSAL.tril(-2)),
    "both_sides": (lambda t, T: slice(pr.max(0, t - 1), pr.min(T, t + 2)), torch.ones_like(CAUSAL).tril(1).triu(-1)),
    "future": (lambda t, T: slice(t, T), CAUSAL.T),
    "every_second": (lambda t, T: slice(t % 2, t + 1, 2), CAUSAL & EVERY_SECOND),
    "own_block": (lambda t, T: slice(t // 2 * 2, t + 1), CAUSAL & SAME_BLOCK),
    "first_and_only": (lambda t, T: 0, FIRST),
}


def test_attention_to_another_tensor() -> None:
    b, _ = pr.dim("b")
    t, _ = pr.dim("t")
    s, _ = pr.dim("s")
    module = nn.Attention(8, 4, 2)
    other = random(BATCH, 3, 8, seed=3)

    def theirs(w: Mapping[str, Any], x: Any) -> Any:
        def headed(name: str, value: Any, count: int) -> Any:
            return F.linear(value, w[f"{name}.weight"]).reshape(BATCH, -1, count, 2).transpose(1, 2)

        y = torch.tensor(other)
        q, k, v = headed("q_proj", x, 4), headed("k_proj", y, 2), headed("v_proj", y, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return F.linear(mixed.transpose(1, 2).flatten(2), w["o_proj.weight"])

    memory = pr.input("memory", (8,), (b, s), "float64")
    given = {"memory": other}
    compare(module, lambda m, x: m(x, t, memory=memory, over=s), theirs, random(BATCH, STEPS, 8), (b, t), given=given)


@pytest.mark.parametrize(
    ("mask", "kv_heads", "base"),
    [(mask, 2, None) for mask in MASKS] + [("causal", 4, None), ("causal", 2, 100.0), ("window", 1, 100.0)],
)
def test_attention(mask: str, kv_heads: int, base: float | None) -> None:
    b, _ = pr.dim("b")
    t, T = pr.dim("t")
    steps, allowed = MASKS[mask]
    module = nn.Attention(8, 4, kv_heads, bias=kv_heads == 4, rotary_base=base)

    def theirs(w: Mapping[str, Any], x: Any) -> Any:
        return attention(w, x, 4, kv_heads, base, allowed)

    # The angles are float32, as in Hugging Face's models.
    tolerance = 1e-9 if base is None else 2e-5
    compare(module, lambda m, x: m(x, t, steps(t, T)), theirs, random(BATCH, STEPS, 8), (b, t), tolerance)


def test_attention_with_normalised_heads() -> None:
    b, _ = pr.dim("b")
    t, _ = pr.dim("t")
    module = nn.Attention(8, 4, 2, head_size=3, qk_norm=True)

    def theirs(w: Mapping[str, Any], x: Any) -> Any:
        return attention(w, x, 4, 2, None, CAUSAL)

    compare(module, lambda m, x: m(x, t), theirs, random(BATCH, STEPS, 8), (b, t))


def test_transformer_block() -> None:
    b, _ = pr.dim("b")
    t, _ = pr.dim("t")
    module = nn.Block(8, hidden=12, heads=4, kv_heads=2, rotary_base=None)

    def theirs(w: Mapping[str, Any], x: Any) -> Any:
        inner = {name.removeprefix("self_attn."): value for name, value in w.items()}
        normal = F.rms_norm(x, (8,), w["input_layernorm.weight"], 1e-6)
        x = x + attention(inner, normal, 4, 2, None, CAUSAL)
        normal = F.rms_norm(x, (8,), w["post_attention_layernorm.weight"], 1e-6)
        gate = F.silu(F.linear(normal, w["mlp.gate_proj.weight"])) * F.linear(normal, w["mlp.up_proj.weight"])
        return x + F.linear(gate, w["mlp.down_proj.weight"])

    compare(module, lambda m, x: m(x, t), theirs, random(BATCH, STEPS, 8), (b, t))


@pytest.mark.parametrize(
    "backend", ["numpy", *(pytest.param(name, marks=pytest.mark.slow) for name in ("jax", "torch"))]
)
def test_attention_compiled(backend: str) -> None:
    t, T = pr.dim("t")
    module = nn.Attention(8, 4, 2, rotary_base=100.0, rng=np.random.default_rng(0))
    x = pr.input("x", (8,), (t,))
    y = {name: module(x, t, steps(t, T)) for name, (steps, _) in MASKS.items()}
    given: dict[str, Any] = {"x": random(STEPS, 8).astype(np.float32)}
    found, expected = pr.compile(y, backend=backend)(**given), pr.evaluate(y, given)
    for name, wanted in expected.items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5, err_msg=name)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def llama3_by_hand(speed: float) -> float:
    """One pair of Llama 3.1, by the length of its wave."""
    length = 2 * math.pi / speed
    if length < 64 / 4:
        return speed
    if length > 64:
        return speed / 8
    smooth = (64 / length - 1) / (4 - 1)
    return (1 - smooth) * speed / 8 + smooth * speed


def test_speeds() -> None:
    plain = [100.0 ** -(2 * k / 16) for k in range(8)]
    np.testing.assert_allclose(nn.rotary_speeds(16, 100.0), plain, rtol=1e-6)
    linear = {"rope_type": "linear", "factor": 4.0}
    np.testing.assert_allclose(nn.rotary_speeds(16, 100.0, linear), [speed / 4 for speed in plain], rtol=1e-6)
    expected = [llama3_by_hand(speed) for speed in plain]
    assert len({round(a / b, 3) for a, b in zip(expected, plain, strict=True)}) >= 3  # fast, slow and between
    np.testing.assert_allclose(nn.rotary_speeds(16, 100.0, LLAMA3), expected, rtol=1e-5)


def test_unknown_or_incomplete_scalings() -> None:
    with pytest.raises(pr.errors.DeclarationError, match="'yarn'"):
        nn.rotary_speeds(4, scaling={"rope_type": "yarn", "factor": 2.0})
    with pytest.raises(pr.errors.DeclarationError, match="lacks high_freq_factor"):
        nn.rotary_speeds(4, scaling={k: v for k, v in LLAMA3.items() if k != "high_freq_factor"})
    with pytest.raises(pr.errors.DeclarationError, match="evenly"):
        nn.Attention(8, heads=4, kv_heads=3)


@pytest.mark.parametrize("interleaved", [False, True])
def test_layouts_are_turns_in_the_plane(interleaved: bool) -> None:
    t, _ = pr.dim("t")
    x = random(STEPS, 2, 6)
    tensor = pr.input("x", (2, 6), (t,), "float64")
    found = pr.evaluate(nn.rotary(tensor, t, 100.0, interleaved=interleaved), {"x": x})
    pairs = [(2 * k, 2 * k + 1) if interleaved else (k, 3 + k) for k in range(3)]
    for step in range(STEPS):
        for number, (a, b) in enumerate(pairs):
            turned = (x[step, :, a] + 1j * x[step, :, b]) * np.exp(1j * step * 100.0 ** (-2 * number / 6))
            np.testing.assert_allclose(found[step, :, a], turned.real, atol=1e-6)
            np.testing.assert_allclose(found[step, :, b], turned.imag, atol=1e-6)


def test_positions_that_are_data() -> None:
    t, _ = pr.dim("t")
    x, places = pr.input("x", (4,), (t,)), pr.input("places", (), (t,), "int32")
    given = {"x": random(3, 4).astype(np.float32)}
    by_index = pr.evaluate(nn.rotary(x, t + 5), given)
    by_data = pr.evaluate(nn.rotary(x, places), {**given, "places": np.array([5, 6, 7], np.int32)})
    np.testing.assert_array_equal(by_index, by_data)


@pytest.mark.slow  # importing transformers takes long
@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 2.0}, LLAMA3])
def test_block_is_the_layer_of_hugging_face(scaling: dict[str, Any] | None) -> None:
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    rope = {"rope_theta": 500.0, **(scaling or {"rope_type": "default"})}
    options: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
        "rope_parameters": rope,
        "attn_implementation": "eager",
    }
    config = LlamaConfig(**options)
    theirs: Any = LlamaDecoderLayer(config, 0)
    turns = LlamaRotaryEmbedding(config)
    np.testing.assert_allclose(nn.rotary_speeds(4, 500.0, scaling), turns.inv_freq.numpy(), rtol=1e-6)
    module = nn.Block(16, 24, heads=4, kv_heads=2, rotary_base=500.0, rope_scaling=scaling, epsilon=1e-5)
    weights: dict[str, Any] = {name: value.astype(np.float32) for name, value in weights_of(module).items()}
    theirs.load_state_dict({name: torch.tensor(value) for name, value in weights.items()}, strict=True)
    steps = 100
    x = random(steps, 16).astype(np.float32)
    there: Any = torch.tensor(x[None], requires_grad=True)
    places = torch.arange(steps)[None]
    mask = torch.full((steps, steps), -torch.inf).triu(1)[None, None]
    expected = theirs(there, mask, places, position_embeddings=turns(there, places))
    expected = expected[0] if isinstance(expected, tuple) else expected
    (expected**2).sum().backward()
    t, _ = pr.dim("t")
    tensor, given = pr.input("x", (16,), (t,)), module.parameters()
    y = module.using(given)(tensor, t)
    leaves = {**given, "x": tensor}
    program = pr.compile((y, pr.grad((y**2).sum(), leaves)))
    found, slopes = program(x=x, **weights)
    np.testing.assert_allclose(found, expected.detach().numpy()[0], rtol=2e-3, atol=2e-3)
    slopes_there = {name: p.grad.numpy() for name, p in theirs.named_parameters()} | {"x": there.grad.numpy()[0]}
    for name, wanted in slopes_there.items():
        np.testing.assert_allclose(slopes[name], wanted, rtol=1e-2, atol=1e-2 * abs(wanted).max(), err_msg=name)
