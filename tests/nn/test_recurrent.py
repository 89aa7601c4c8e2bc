"""Recurrent layers and the state space against torch, from the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

import polyrhythm as pr
from polyrhythm import nn
from tests.nn.comparing import BATCH, STEPS, compare, functional, random, weights_of

KINDS: dict[str, tuple[Any, Any]] = {
    "rnn": (nn.RNN, torch.nn.RNN),
    "lstm": (nn.LSTM, torch.nn.LSTM),
    "gru": (nn.GRU, torch.nn.GRU),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "one": {},
    "two_layers_without_bias": {"layers": 2, "bias": False},
    "two_layers_both_ways": {"layers": 2, "bidirectional": True},
}

LONG = {("gru", "two_layers_both_ways"), ("rnn", "two_layers_both_ways"), ("lstm", "two_layers_without_bias")}


def pair(kind: str, options: Mapping[str, Any], **more: Any) -> tuple[Any, Any]:
    """Our module and torch's."""
    ours, theirs = KINDS[kind]
    named = {"num_layers" if name == "layers" else name: value for name, value in options.items()}
    module, counterpart = ours(3, 2, **options, **more), theirs(3, 2, batch_first=True, **named, **more)
    assert {k: v.shape for k, v in module.weights().items()} == {
        k: tuple(v.shape) for k, v in counterpart.state_dict().items()
    }
    return module, counterpart


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(kind, options, marks=[pytest.mark.slow] if (kind, options) in LONG else [])
        for kind in KINDS
        for options in OPTIONS
    ],
)
def test_recurrent_layers(kind: str, options: str) -> None:
    b, _ = pr.dim("b")
    t, _ = pr.dim("t")
    module, counterpart = pair(kind, OPTIONS[options])

    def run(m: Any, x: pr.Tensor) -> pr.Tensor:
        return m(x, t)[0] if kind == "lstm" else m(x, t)

    steps = STEPS if options == "one" else 3
    compare(module, run, lambda w, x: functional(counterpart)(w, x)[0], random(BATCH, steps, 3), (b, t))


def test_rnn_with_relu() -> None:
    b, _ = pr.dim("b")
    t, _ = pr.dim("t")
    module, counterpart = pair("rnn", {}, nonlinearity="relu")
    compare(module, lambda m, x: m(x, t), lambda w, x: functional(counterpart)(w, x)[0], random(2, 4, 3), (b, t))


def test_all_final_states_from_given_ones() -> None:
    t, T = pr.dim("t")
    module, counterpart = pair("lstm", {"layers": 2, "bidirectional": True})
    weights = weights_of(module)
    x, h0, c0 = random(4, 3), random(4, 2, seed=5), random(4, 2, seed=6)
    starts = [[pr.input(f"{name}{k}", (2,), (), "float64") for k in range(4)] for name in "hc"]
    given = {f"{name}{k}": rows[k] for name, rows in (("h", h0), ("c", c0)) for k in range(4)}
    data = pr.input("x", (3,), (t,), "float64")
    h, c = module.using(weights).states(data, t, (starts[0], starts[1]))
    ends = [state[0] if k % 2 else state[T - 1] for states in (h, c) for k, state in enumerate(states)]
    found, first = pr.evaluate((ends, h[1]), {"x": x, **given})
    assert first.shape == (4, 2)
    call = torch.func.functional_call(
        counterpart.double(),
        {name: torch.tensor(value) for name, value in weights.items()},
        (torch.tensor(x), (torch.tensor(h0), torch.tensor(c0))),
    )
    np.testing.assert_allclose(np.stack(found), torch.cat(call[1]).detach().numpy(), rtol=1e-9)


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_compiled_both_ways(backend: str) -> None:
    t, _ = pr.dim("t")
    module = nn.RNN(3, 2, bidirectional=True, rng=np.random.default_rng(0))
    y = module(pr.input("x", (3,), (t,)), t)
    given: dict[str, Any] = {"x": random(5, 3).astype(np.float32)}
    np.testing.assert_allclose(pr.compile(y, backend=backend)(**given), pr.evaluate(y, given), rtol=1e-5, atol=1e-6)


def test_dropout_between_layers_only() -> None:
    t, _ = pr.dim("t")
    module = nn.RNN(3, 2, layers=2, dropout=0.5, rng=np.random.default_rng(0))
    plain = nn.RNN(3, 2, layers=2).using(module.weights())
    x, given = pr.input("x", (3,), (t,)), {"x": random(6, 3).astype(np.float32)}
    first, dropped, kept, expected = pr.evaluate(
        (module.states(x, t)[0], module(x, t), module.eval()(x, t), plain(x, t)), given
    )
    np.testing.assert_array_equal(kept, expected)
    np.testing.assert_array_equal(first, pr.evaluate(plain.states(x, t)[0], given))
    assert not np.allclose(dropped, expected)


def test_a_dim_is_missing() -> None:
    t, _ = pr.dim("t")
    for module in (nn.GRU(3, 2), nn.StateSpace(3, 2)):
        with pytest.raises(pr.errors.DeclarationError, match="without it"):
            module(pr.input("x", (3,)), t)
    for layer in (nn.GRU(3, 2), nn.Attention(3, 1)):
        with pytest.raises(pr.errors.DeclarationError, match=r"fix: call it as layer\(x, t\)"):
            layer(t, pr.input("x", (3,), (t,)))  # type: ignore[arg-type]
    with pytest.raises(pr.errors.DeclarationError, match="1 lists of 2 states"):
        nn.GRU(3, 2, layers=2)(pr.input("x", (3,), (t,)), t, start=[pr.zeros((2,))])


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_state_space_is_the_loop_over_complex_states(method: str) -> None:
    b, _ = pr.dim("b")
    t, _ = pr.dim("t")

    def loop(w: Mapping[str, Any], x: Any) -> Any:
        step, a = w["log_dt"].exp()[:, None], torch.complex(-w["log_A_real"].exp(), w["A_imag"])
        if method == "zoh":
            keep = torch.exp(step * a)
            add = (keep - 1) / a
        else:
            keep = (1 + step * a / 2) / (1 - step * a / 2)
            add = step / (1 - step * a / 2)
        h, out = torch.zeros(x.shape[0], 2, 3, dtype=torch.complex128), []
        for k in range(x.shape[1]):
            h = keep * h + add * x[:, k, :, None]
            out.append(2 * (torch.view_as_complex(w["C"]) * h).sum(-1).real + w["D"] * x[:, k])
        return torch.stack(out, 1)

    compare(nn.StateSpace(2, 3, method), lambda m, x: m(x, t), loop, random(BATCH, STEPS, 2), (b, t))


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_state_space_is_the_published_convolution(backend: str) -> None:
    """The kernel of the minimal S4D, applied to the whole sequence at once."""
    t, _ = pr.dim("t")
    module = nn.StateSpace(2, 4, rng=np.random.default_rng(0))
    w, x = module.weights(), random(8, 2).astype(np.float32)
    a = -np.exp(w["log_A_real"]) + 1j * w["A_imag"]
    z = a * np.exp(w["log_dt"])[:, None]
    c = (w["C"][..., 0] + 1j * w["C"][..., 1]) * (np.exp(z) - 1) / a
    kernel = 2 * np.einsum("hn,hnl->hl", c, np.exp(z[..., None] * np.arange(8))).real
    expected = np.stack([np.convolve(x[:, h], kernel[h])[:8] for h in range(2)], 1) + w["D"] * x
    found = pr.compile(module(pr.input("x", (2,), (t,)), t), backend=backend)(x=x)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_weights_over_iterations() -> None:
    i, _ = pr.dim("i")
    t, _ = pr.dim("t")
    module = nn.LSTM(2, 3)
    weights = {name: np.stack([value, 2 * value]) for name, value in weights_of(module).items()}
    given = {name: pr.input(name, value.shape[1:], (i,), "float64") for name, value in weights.items()}
    x = pr.input("x", (2,), (t,), "float64")
    h, _ = module.using(given)(x, t)
    assert [dim.name for dim in h.dims] == ["i", "t"]
    found = pr.evaluate(h, {**weights, "x": random(4, 2)})
    for step in range(2):
        alone, _ = module.using({name: value[step] for name, value in weights.items()})(x, t)
        np.testing.assert_allclose(found[step], pr.evaluate(alone, {"x": random(4, 2)}))
