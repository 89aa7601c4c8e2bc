"""Updates within iterations: parameters and state go on from the last update of one to the first of the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import polyrhythm as pr
from polyrhythm import optim

ITERATIONS, UPDATES, MOST = 3, 4, 0.7

CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], Any, dict[str, Any]]] = {
    "momentum": (optim.sgd, {"momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    "rmsprop": (optim.rmsprop, {}, torch.optim.RMSprop, {}),
    "adam": (optim.adam, {}, torch.optim.Adam, {}),
    "adamw": (optim.adamw, {}, torch.optim.AdamW, {}),
}


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(ITERATIONS, 5, 2)), random.normal(size=(ITERATIONS, 5)), random.normal(size=2)


@pytest.mark.parametrize(("name", "backend"), [*((name, "numpy") for name in CASES), ("adam", "jax")])
def test_like_torch(name: str, backend: str) -> None:
    """Each iteration has data of its own, used for every update of it; gradients are clipped, the rate falls."""
    ours, options, theirs, their_options = CASES[name]
    x, goal, first = data()
    i, _ = pr.dim("i")
    u, U = pr.dim("u")
    w = optim.over(u, pr.input("w", (2,), dtype="float64"), outer=i)
    seen, wanted = pr.input("x", (5, 2), (i,), "float64"), pr.input("goal", (5,), (i,), "float64")
    loss = ((pr.tanh(seen @ w) - wanted) ** 2).sum()
    gradient = optim.clip_by_global_norm(u, pr.grad(loss, w), MOST, outer=i)
    ours(u, w, gradient, optim.linear(i, 0.1, 0.0, ITERATIONS).cast("float64"), outer=i, **options)
    program = pr.compile(w, backend=backend)
    found = program(w=first, x=x, goal=goal, bounds={U: UPDATES})

    p = torch.tensor(first, requires_grad=True)
    optimiser = theirs([p], lr=0.1, **their_options)
    for iteration in range(ITERATIONS):
        optimiser.param_groups[0]["lr"] = 0.1 * (1 - iteration / ITERATIONS)
        for update in range(UPDATES):
            np.testing.assert_allclose(found[update, iteration], p.detach().numpy(), rtol=1e-6, atol=1e-6)
            optimiser.zero_grad()
            ((torch.tanh(torch.tensor(x[iteration]) @ p) - torch.tensor(goal[iteration])) ** 2).sum().backward()
            assert p.grad is not None
            p.grad *= min(1.0, MOST / float(p.grad.norm()))  # torch's own function adds 1e-6 to the norm
            optimiser.step()
        np.testing.assert_allclose(found[UPDATES, iteration], p.detach().numpy(), rtol=1e-6, atol=1e-6)
