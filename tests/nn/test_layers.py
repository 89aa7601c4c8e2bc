"""Each module against its torch counterpart, from the same weights: results, and gradients of inputs and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import polyrhythm as pr
from polyrhythm import nn

BATCH, STEPS = 2, 5


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def weights_of(module: nn.Module, seed: int = 1) -> dict[str, np.ndarray]:
    """Random weights for a module; those it begins with may be ones and zeros, which hide errors."""
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=value.shape) / 2 for name, value in module.weights().items()}


def tensors(weights: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: torch.tensor(value, requires_grad=True) for name, value in weights.items()}


def compare(
    module: nn.Module,
    ours: Callable[[Any, pr.Tensor], pr.Tensor],
    theirs: Callable[[Mapping[str, Any], Any], Any],
    x: np.ndarray,
    dims: tuple[pr.Dim, ...] = (),
    tolerance: float = 1e-9,
) -> None:
    """`ours(module, x)` over dims equals `theirs(weights, x)` with leading axes, forwards and backwards."""
    weights = weights_of(module)
    given = {name: pr.input(name, value.shape, (), "float64") for name, value in weights.items()}
    tensor = pr.input("x", x.shape[len(dims) :], dims, "float64")
    y = ours(module.using(given), tensor)
    leaves = {**given, "x": tensor}
    slopes = pr.grad((y**3).sum(), leaves)
    found, gradients, _ = pr.evaluate((y, slopes, leaves), {**weights, "x": x})
    there = tensors(weights)
    start = torch.tensor(x, requires_grad=True)
    expected = theirs(there, start)
    (expected**3).sum().backward()
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=tolerance, atol=tolerance)
    for name, leaf in {**there, "x": start}.items():
        np.testing.assert_allclose(
            gradients[name], leaf.grad.numpy(), rtol=tolerance, atol=10 * tolerance, err_msg=name
        )


def functional(module: torch.nn.Module) -> Callable[[Mapping[str, Any], Any], Any]:
    return lambda weights, x: torch.func.functional_call(module.double(), dict(weights), (x,))


SIMPLE: dict[str, tuple[nn.Module, torch.nn.Module, np.ndarray]] = {
    "linear": (nn.Linear(3, 4), torch.nn.Linear(3, 4), random(2, 3)),
    "linear_without_bias": (nn.Linear(3, 4, bias=False), torch.nn.Linear(3, 4, bias=False), random(3)),
    "layer_norm": (nn.LayerNorm(4), torch.nn.LayerNorm(4), random(3, 4)),
    "rms_norm": (nn.RMSNorm(4), torch.nn.RMSNorm(4, eps=1e-6), random(3, 4)),
    "group_norm": (nn.GroupNorm(2, 4), torch.nn.GroupNorm(2, 4), random(2, 4, 3)),
    "group_norm_2d": (nn.GroupNorm(3, 6), torch.nn.GroupNorm(3, 6), random(1, 6, 2, 3)),
    "conv1d": (nn.Conv1d(2, 3, 3, stride=2, padding=1), torch.nn.Conv1d(2, 3, 3, 2, 1), random(2, 2, 6)),
    "conv1d_groups": (
        nn.Conv1d(4, 4, 2, dilation=2, groups=2, bias=False),
        torch.nn.Conv1d(4, 4, 2, dilation=2, groups=2, bias=False),
        random(1, 4, 5),
    ),
    "conv2d": (
        nn.Conv2d(2, 3, (2, 3), padding=1),
        torch.nn.Conv2d(2, 3, (2, 3), padding=1),
        random(1, 2, 3, 4),
    ),
}


@pytest.mark.parametrize("name", SIMPLE)
def test_like_torch(name: str) -> None:
    ours, theirs, x = SIMPLE[name]
    assert {k: v.shape for k, v in ours.weights().items()} == {
        k: tuple(v.shape) for k, v in theirs.state_dict().items()
    }
    compare(ours, lambda module, x: module(x), functional(theirs), x)


def test_mlp() -> None:
    def theirs(w: Mapping[str, Any], x: Any) -> Any:
        hidden = torch.tanh(F.linear(x, w["layers.0.weight"], w["layers.0.bias"]))
        return F.linear(hidden, w["layers.1.weight"], w["layers.1.bias"])

    compare(nn.MLP([3, 4, 2], between=pr.tanh), lambda module, x: module(x), theirs, random(2, 3))


def test_embedding() -> None:
    places = np.array([[0, 2, 2], [1, 0, 2]], np.int32)

    def ours(module: Any, x: pr.Tensor) -> pr.Tensor:
        return module(pr.constant(places)) * x

    def theirs(w: Mapping[str, Any], x: Any) -> Any:
        return F.embedding(torch.tensor(places), w["weight"]) * x

    compare(nn.Embedding(3, 4), ours, theirs, random(2, 3, 4))


CELLS: dict[str, tuple[Any, Any]] = {
    "rnn": (nn.RNN(3, 4), torch.nn.RNN(3, 4, batch_first=True)),
    "lstm": (nn.LSTM(3, 4), torch.nn.LSTM(3, 4, batch_first=True)),
    "gru": (nn.GRU(3, 4), torch.nn.GRU(3, 4, batch_first=True)),
}


@pytest.mark.parametrize("name", CELLS)
def test_recurrent_layers(name: str) -> None:
    b, _ = pr.dim("b")
    t, _ = pr.dim("t")
    ours, theirs = CELLS[name]
    assert {k: v.shape for k, v in ours.weights().items()} == {
        k: tuple(v.shape) for k, v in theirs.state_dict().items()
    }

    def run(module: Any, x: pr.Tensor) -> pr.Tensor:
        return module(x, t)[0] if name == "lstm" else module(x, t)

    compare(ours, run, lambda w, x: functional(theirs)(w, x)[0], random(BATCH, STEPS, 3), (b, t))


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
    if base is not None:
        q, k = turned(q, base), turned(k, base)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return F.linear(mixed.transpose(1, 2).flatten(2), w["o_proj.weight"], w.get("o_proj.bias"))


CAUSAL = torch.ones(STEPS, STEPS, dtype=torch.bool).tril()

MASKS: dict[str, tuple[Callable[[Any, Any], slice | None], Any]] = {
    "causal": (lambda t, T: None, CAUSAL),
    "all": (lambda t, T: slice(0, T), torch.ones_like(CAUSAL)),
    "window": (lambda t, T: slice(pr.max(0, t - 1), t + 1), CAUSAL & ~CAUSAL.tril(-2)),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("kv_heads", "base"), [(4, None), (2, 100.0)])
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


def test_dropout_keeps_the_mean_and_drops_the_gradient() -> None:
    x = pr.input("x", (2000,), (), "float64")
    y = nn.Dropout(0.25, name="drop")(x)
    found, slope = pr.evaluate((y, pr.grad(y.sum(), x)), {"x": np.ones(2000)})
    assert abs(found.mean() - 1) < 0.1
    np.testing.assert_array_equal(slope, found)
    np.testing.assert_allclose(np.unique(found), [0, 4 / 3])


def test_weights_with_dims() -> None:
    i, _ = pr.dim("i")
    t, _ = pr.dim("t")
    module = nn.LSTM(2, 3)
    weights = {name: np.stack([value, 2 * value]) for name, value in weights_of(module).items()}
    given = {name: pr.input(name, value.shape[1:], (i,), "float64") for name, value in weights.items()}
    x = pr.input("x", (2,), (t,), "float64")
    h, _ = module.using(given)(x, t)
    assert [dim.name for dim in h.dims] == ["t", "i"]
    found = pr.evaluate(h, {**weights, "x": random(4, 2)})
    for step in range(2):
        alone, _ = module.using({name: value[step] for name, value in weights.items()})(x, t)
        np.testing.assert_allclose(found[:, step], pr.evaluate(alone, {"x": random(4, 2)}))


def test_wrong_weights_are_refused() -> None:
    module = nn.Linear(2, 1)
    with pytest.raises(pr.errors.DeclarationError, match=r"missing \['bias'\]"):
        module.using({"weight": np.zeros((1, 2))})
    with pytest.raises(pr.errors.DeclarationError, match="has shape"):
        module.using({"weight": np.zeros((2, 1)), "bias": np.zeros(1)})
