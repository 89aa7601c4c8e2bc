"""Models, data and torch peers for the tests of training: the same weights, the same batches, the same optimiser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import polyrhythm as pr
from polyrhythm import nn, optim

RATE = 0.01


@dataclass(frozen=True)
class Learning:
    """A training program with its peer: what comes back, what it is given, and the losses that torch has."""

    outputs: Any
    given: dict[str, Any]
    in_torch: Callable[[], list[float]]


def book() -> tuple[np.ndarray, int]:
    """The numbers of the letters of a page that comes with the project, and how many letters there are."""
    page = (Path(__file__).resolve().parent.parent.parent / "docs" / "language.md").read_text().lower()
    text = "".join(c if c.isascii() and (c.isalnum() or c in " .,\n") else " " for c in page)
    letters = sorted(set(text))
    return np.array([letters.index(c) for c in text], np.int32), len(letters)


def batches(iterations: int, batch: int, steps: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Pieces of the text by (iteration, batch, step), the letters that follow, and the number of letters."""
    text, count = book()
    starts = np.random.default_rng(1).integers(0, len(text) - steps - 1, (iterations, batch))
    places = starts[..., None] + np.arange(steps)
    return text[places], text[places + 1], count


def trained_in_torch(
    model: torch.nn.Module, weights: dict[str, Any], loss: Callable[..., torch.Tensor], data: tuple[np.ndarray, ...]
) -> list[float]:
    """The losses of Adam in torch, batch after batch."""
    model.load_state_dict({name: torch.tensor(np.asarray(value)) for name, value in weights.items()})
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    losses = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the threads of such small models wait for each other most of the time
    try:
        for batch in zip(*map(torch.tensor, data), strict=True):
            optimiser.zero_grad()
            value = loss(model, *batch)
            value.backward()
            optimiser.step()
            losses.append(float(value.detach()))
    finally:
        torch.set_num_threads(threads)
    return losses


class LSTMText(nn.Module):
    """The next letter from those before it, by an LSTM."""

    def __init__(self, letters: int, hidden: int, rng: np.random.Generator) -> None:
        self.embed = nn.Embedding(letters, hidden, rng)
        self.lstm = nn.LSTM(hidden, hidden, rng=rng)
        self.head = nn.Linear(hidden, letters, rng=rng)


def lstm(iterations: int, batch: int = 4, steps: int = 12, hidden: int = 16) -> Learning:
    """A character model with the batch as an axis."""
    now, following, count = batches(iterations, batch, steps)
    model = LSTMText(count, hidden, np.random.default_rng(0))
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    weights = optim.over(i, model.parameters())
    used = model.using(weights)
    letters, wanted = (pr.input(name, (batch,), (i, t), "int32") for name in ("now", "following"))
    h, _ = used.lstm(used.embed(letters), t)
    surprise = -(pr.log_softmax(used.head(h)) * pr.one_hot(wanted, count)).sum(-1)
    loss = surprise[{t: slice(0, T)}].mean()
    optim.adam(i, weights, pr.grad(loss, weights), RATE)

    def in_torch() -> list[float]:
        parts = {"embed": torch.nn.Embedding(count, hidden), "lstm": torch.nn.LSTM(hidden, hidden, batch_first=True)}
        peer = torch.nn.ModuleDict({**parts, "head": torch.nn.Linear(hidden, count)})

        def loss(peer: Any, now: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
            scores = peer["head"](peer["lstm"](peer["embed"](now))[0])
            return torch.nn.functional.cross_entropy(scores.reshape(-1, count), following.reshape(-1).long())

        return trained_in_torch(peer, model.weights(), loss, (now.astype(np.int64), following))

    given = {"now": now.transpose(0, 2, 1), "following": following.transpose(0, 2, 1)}
    return Learning(loss[{i: slice(0, I)}], given, in_torch)


class TransformerText(nn.Module):
    """The next letter from those before it, by blocks of attention."""

    def __init__(self, letters: int, width: int, heads: int, layers: int, rng: np.random.Generator) -> None:
        self.embed = nn.Embedding(letters, width, rng)
        self.layers = [nn.Block(width, 2 * width, heads, rng=rng) for _ in range(layers)]
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, letters, bias=False, rng=rng)


class _TorchBlock(torch.nn.Module):
    """A block with the names and the rules of Llama."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.input_layernorm = torch.nn.RMSNorm(width, eps=1e-6)
        self.post_attention_layernorm = torch.nn.RMSNorm(width, eps=1e-6)
        names = ("q_proj", "k_proj", "v_proj", "o_proj")
        self.self_attn = torch.nn.ModuleDict({name: torch.nn.Linear(width, width, bias=False) for name in names})
        sizes = {"gate_proj": (width, 2 * width), "up_proj": (width, 2 * width), "down_proj": (2 * width, width)}
        self.mlp = torch.nn.ModuleDict({n: torch.nn.Linear(a, b, bias=False) for n, (a, b) in sizes.items()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, steps, width = x.shape
        depth = width // self.heads
        angles = torch.arange(steps)[:, None] * 10000.0 ** (-torch.arange(0, depth, 2) / depth)

        def by_head(name: str) -> torch.Tensor:
            return self.self_attn[name](y).view(batch, steps, self.heads, depth).transpose(1, 2)

        def turned(z: torch.Tensor) -> torch.Tensor:
            first, second = z.chunk(2, -1)
            turn, lift = angles.cos(), angles.sin()
            return torch.cat([first * turn - second * lift, second * turn + first * lift], -1)

        y = self.input_layernorm(x)
        q, k, v = turned(by_head("q_proj")), turned(by_head("k_proj")), by_head("v_proj")
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.self_attn["o_proj"](mixed.transpose(1, 2).reshape(batch, steps, width))
        y = self.post_attention_layernorm(x)
        gated = torch.nn.functional.silu(self.mlp["gate_proj"](y)) * self.mlp["up_proj"](y)
        return x + self.mlp["down_proj"](gated)


def transformer(iterations: int, batch: int = 2, steps: int = 12, width: int = 16, layers: int = 1) -> Learning:
    """A character model with the batch as a dim."""
    heads = 2
    now, following, count = batches(iterations, batch, steps)
    model = TransformerText(count, width, heads, layers, np.random.default_rng(0))
    i, I = pr.dim("i")
    b, B = pr.dim("b")
    t, T = pr.dim("t")
    weights = optim.over(i, model.parameters())
    used = model.using(weights)
    letters, wanted = (pr.input(name, (), (i, b, t), "int32") for name in ("now", "following"))
    x = used.embed(letters)
    for layer in used.layers:
        x = layer(x, t)
    surprise = -(pr.log_softmax(used.head(used.norm(x))) * pr.one_hot(wanted, count)).sum(-1)
    loss = surprise[{b: slice(0, B), t: slice(0, T)}].mean()
    optim.adam(i, weights, pr.grad(loss, weights), RATE)

    def in_torch() -> list[float]:
        blocks = torch.nn.ModuleList(_TorchBlock(width, heads) for _ in range(layers))
        parts = {"embed": torch.nn.Embedding(count, width), "layers": blocks}
        head = {"norm": torch.nn.RMSNorm(width, eps=1e-6), "head": torch.nn.Linear(width, count, bias=False)}
        peer = torch.nn.ModuleDict({**parts, **head})

        def loss(peer: Any, now: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
            x = peer["embed"](now)
            for block in peer["layers"]:
                x = block(x)
            scores = peer["head"](peer["norm"](x))
            return torch.nn.functional.cross_entropy(scores.reshape(-1, count), following.reshape(-1).long())

        return trained_in_torch(peer, model.weights(), loss, (now.astype(np.int64), following))

    return Learning(loss[{i: slice(0, I)}], {"now": now, "following": following}, in_torch)


class Pictures(nn.Module):
    """Two convolutions and a linear map."""

    def __init__(self, channels: int, rng: np.random.Generator) -> None:
        self.first = nn.Conv2d(1, channels, 3, padding=1, rng=rng)
        self.second = nn.Conv2d(channels, 2 * channels, 3, padding=1, rng=rng)
        self.head = nn.Linear(2 * channels * 4, 10, rng=rng)

    def __call__(self, x: pr.Tensor) -> pr.Tensor:
        x = pr.max_pool(pr.relu(self.first(x)), (2, 2))
        x = pr.max_pool(pr.relu(self.second(x)), (2, 2))
        return self.head(x.reshape(x.shape[0], -1))


def digits(iterations: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of 8 by 8 like handwritten digits: ten prototypes, moved by a pixel, with noise."""
    rng = np.random.default_rng(2)
    prototypes = (rng.random((10, 8, 8)) < 0.35).astype(np.float32)
    labels = rng.integers(0, 10, (iterations, batch)).astype(np.int32)
    shifts = rng.integers(-1, 2, (iterations, batch, 2))
    moved = np.stack(
        [np.roll(prototypes[n], tuple(s), (0, 1)) for n, s in zip(labels.ravel(), shifts.reshape(-1, 2), strict=True)]
    ).reshape(iterations, batch, 1, 8, 8)
    return (moved + rng.normal(size=moved.shape) * 0.3).astype(np.float32), labels


def pictures(iterations: int, batch: int = 8, channels: int = 4) -> Learning:
    """A network of convolutions that tells digits apart."""
    x, labels = digits(iterations, batch)
    model = Pictures(channels, np.random.default_rng(0))
    i, I = pr.dim("i")
    weights = optim.over(i, model.parameters())
    scores = model.using(weights)(pr.input("x", (batch, 1, 8, 8), (i,)))
    wanted = pr.input("labels", (batch,), (i,), "int32")
    loss = -(pr.log_softmax(scores) * pr.one_hot(wanted, 10)).sum(-1).mean()
    optim.adam(i, weights, pr.grad(loss, weights), RATE)

    def in_torch() -> list[float]:
        first = torch.nn.Conv2d(1, channels, 3, padding=1)
        second = torch.nn.Conv2d(channels, 2 * channels, 3, padding=1)
        peer = torch.nn.ModuleDict({"first": first, "second": second, "head": torch.nn.Linear(8 * channels, 10)})

        def loss(peer: Any, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            functions = torch.nn.functional
            x = functions.max_pool2d(functions.relu(peer["first"](x)), 2)
            x = functions.max_pool2d(functions.relu(peer["second"](x)), 2)
            return functions.cross_entropy(peer["head"](x.flatten(1)), labels.long())

        return trained_in_torch(peer, model.weights(), loss, (x, labels))

    return Learning(loss[{i: slice(0, I)}], {"x": x, "labels": labels}, in_torch)
