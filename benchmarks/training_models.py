"""The models that the training benchmark trains, as a user writes them: a model of text of each kind, and one program
that does some iterations of Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import polyrhythm as pr
from polyrhythm import nn, optim

LETTERS = 64
RATE = 1e-3


class LSTMText(nn.Module):
    """Letters, an LSTM over their vectors, and scores for the next letter. The batch is an axis."""

    def __init__(self, hidden: int, rng: np.random.Generator) -> None:
        self.embed = nn.Embedding(LETTERS, hidden, rng)
        self.lstm = nn.LSTM(hidden, hidden, rng=rng)
        self.head = nn.Linear(hidden, LETTERS, rng=rng)

    def __call__(self, letters: pr.Tensor, t: pr.Dim) -> pr.Tensor:
        h, _ = self.lstm(self.embed(letters), t)
        return self.head(h)


class TransformerText(nn.Module):
    """The parts of a causal transformer with rotary positions: letters, blocks, scores for the next letter."""

    def __init__(self, layers: int, width: int, heads: int, rng: np.random.Generator) -> None:
        self.embed = nn.Embedding(LETTERS, width, rng)
        self.layers = [nn.Block(width, 4 * width, heads, rng=rng) for _ in range(layers)]
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, LETTERS, bias=False, rng=rng)


@dataclass(frozen=True)
class Shape:
    """The sizes of a model and of what it is trained on."""

    steps: int
    batch: int
    width: int
    layers: int = 1
    heads: int = 1

    def letters(self, kind: str, iterations: int) -> tuple[np.ndarray, np.ndarray]:
        """Letters and those that follow, by iteration; the LSTM has time before the batch."""
        rng = np.random.default_rng(1)
        places = (self.steps, self.batch) if kind == "lstm" else (self.batch, self.steps)
        text = [rng.integers(0, LETTERS, (iterations, *places)).astype("int32") for _ in range(2)]
        return text[0], text[1]


def new_lstm(shape: Shape) -> LSTMText:
    """The same weights every time."""
    return LSTMText(shape.width, np.random.default_rng(0))


def new_transformer(shape: Shape) -> TransformerText:
    """The same weights every time."""
    return TransformerText(shape.layers, shape.width, shape.heads, np.random.default_rng(0))


@dataclass(frozen=True)
class Training:
    """A training program: what it returns, and the bound of time."""

    outputs: dict[str, Any]
    steps: pr.Bound


def train_lstm(model: LSTMText, shape: Shape, segment: int | None = None) -> Training:
    """Iterations of Adam on batches that are an axis; states are computed again in segments if asked for."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    weights = optim.over(i, model.parameters())
    now, following = (pr.input(name, (shape.batch,), (i, t), "int32") for name in ("now", "following"))
    scores = pr.log_softmax(model.using(weights)(now, t))
    if segment is not None:
        scores = pr.checkpoint(scores, over=t, every=segment)
    surprise = -(scores * pr.one_hot(following, LETTERS)).sum(-1)
    loss = surprise[{t: slice(0, T)}].mean()
    return _trained(i, I, T, weights, loss)


def train_transformer(model: TransformerText, shape: Shape, again: bool = False) -> Training:
    """Iterations of Adam on batches that are a dim; what is inside a block is computed again if asked for."""
    i, I = pr.dim("i")
    b, B = pr.dim("b")
    t, T = pr.dim("t")
    weights = optim.over(i, model.parameters())
    now, following = (pr.input(name, (), (i, b, t), "int32") for name in ("now", "following"))
    used = model.using(weights)
    x = used.embed(now)
    for layer in used.layers:
        x = pr.checkpoint(layer(x, t)) if again else layer(x, t)
    scores = pr.log_softmax(used.head(used.norm(x)))
    surprise = -(scores * pr.one_hot(following, LETTERS)).sum(-1)
    loss = surprise[{b: slice(0, B), t: slice(0, T)}].mean()
    return _trained(i, I, T, weights, loss)


def _trained(i: pr.Dim, I: pr.Bound, T: pr.Bound, weights: dict[str, Any], loss: pr.Tensor) -> Training:
    optim.adam(i, weights, pr.grad(loss, weights), RATE)
    last = {name: weight[I] for name, weight in weights.items()}
    return Training({"loss": loss, "weights": last}, T)
