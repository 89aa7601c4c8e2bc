"""Models trained inside one compiled program, against the same training in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import polyrhythm as pr
from polyrhythm import nn, optim

TEXT = "a rhythm in three against a rhythm in two "
LETTERS = sorted(set(TEXT))
STEPS = 12


class Letters(nn.Module):
    """A model of text: the next letter from those before it."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.embed = nn.Embedding(len(LETTERS), 4, rng)
        self.lstm = nn.LSTM(4, 8, rng=rng)
        self.head = nn.Linear(8, len(LETTERS), rng=rng)

    def __call__(self, letters: pr.Tensor, t: pr.Dim) -> pr.Tensor:
        h, _ = self.lstm(self.embed(letters), t)
        return self.head(h)


def losses_in_torch(weights: dict[str, np.ndarray], codes: np.ndarray) -> list[float]:
    parts = {"embed": torch.nn.Embedding(len(LETTERS), 4), "lstm": torch.nn.LSTM(4, 8)}
    model = torch.nn.ModuleDict({**parts, "head": torch.nn.Linear(8, len(LETTERS))})
    model.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    places = torch.tensor(codes.astype(np.int64))
    losses = []
    for _ in range(STEPS):
        optimiser.zero_grad()
        out: Any = model["head"](model["lstm"](model["embed"](places[:-1]))[0])
        loss = torch.nn.functional.cross_entropy(out, places[1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("backend", [pytest.param("numpy", marks=pytest.mark.slow), "jax"])
def test_a_model_of_text(backend: str) -> None:
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    model = Letters(np.random.default_rng(0))
    weights = optim.over(i, model.parameters())
    now, following = (pr.input(name, (), (t,), "int32") for name in ("now", "following"))
    logits = model.using(weights)(now, t)
    surprise = -pr.take(pr.log_softmax(logits), following, 0)
    loss = surprise[{t: slice(0, T)}].mean()
    optim.adam(i, weights, optim.clip_by_global_norm(i, pr.grad(loss, weights), 1.0), rate=0.05)
    codes = np.array([LETTERS.index(letter) for letter in TEXT], np.int32)
    found = pr.compile((loss[{i: slice(0, I)}], weights), backend=backend)(
        now=codes[:-1], following=codes[1:], bounds={I: STEPS}
    )
    expected = losses_in_torch(model.weights(), codes)
    assert expected[-1] < 0.75 * expected[0]
    np.testing.assert_allclose(found[0], expected, rtol=1e-3)
