"""Each optimiser step by step against torch, or the published formula where torch has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import polyrhythm as pr
from polyrhythm import optim

STEPS = 30

Arrays = dict[str, np.ndarray]


def start() -> Arrays:
    random = np.random.default_rng(0)
    return {"w": random.normal(size=(3, 2)), "b": random.normal(size=2)}


DATA = np.random.default_rng(1).normal(size=(4, 3))
GOALS = np.random.default_rng(2).normal(size=(4, 2))


def trained(optimiser: Callable[..., Any], evaluate: Callable[..., Any] | None = None) -> Arrays:
    """The parameters over all iterations."""
    i, I = pr.dim("i")
    params = optim.over(i, {name: pr.constant(value, "float64") for name, value in start().items()})
    guess = pr.tanh(pr.constant(DATA, "float64") @ params["w"] + params["b"])
    loss = ((guess - pr.constant(GOALS, "float64")) ** 2).sum()
    optimiser(i, params, pr.grad(loss, params))
    found: Arrays = (evaluate or pr.evaluate)(params, bounds={I: STEPS})
    return found


def by_torch(make: Callable[[Any], torch.optim.Optimizer], after: Callable[..., Any] | None = None) -> Arrays:
    """The same run in torch; `after` may change the gradients or the rate at each step."""
    params = {name: torch.tensor(value, requires_grad=True) for name, value in start().items()}
    optimiser = make(list(params.values()))
    seen: dict[str, list[np.ndarray]] = {name: [p.detach().numpy().copy()] for name, p in params.items()}
    for step in range(STEPS):
        optimiser.zero_grad()
        guess = torch.tanh(torch.tensor(DATA) @ params["w"] + params["b"])
        ((guess - torch.tensor(GOALS)) ** 2).sum().backward()
        if after is not None:
            after(step, optimiser, list(params.values()))
        optimiser.step()
        for name, p in params.items():
            seen[name].append(p.detach().numpy().copy())
    return {name: np.stack(values) for name, values in seen.items()}


def compare(found: Arrays, expected: Arrays, tolerance: float = 1e-9) -> None:
    for name, wanted in expected.items():
        np.testing.assert_allclose(found[name], wanted, rtol=tolerance, atol=tolerance)


CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], Any, dict[str, Any]]] = {
    "sgd": (optim.sgd, {}, torch.optim.SGD, {}),
    "momentum": (optim.sgd, {"momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    "nesterov": (
        optim.sgd,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    "rmsprop": (optim.rmsprop, {}, torch.optim.RMSprop, {}),
    "rmsprop_momentum": (
        optim.rmsprop,
        {"decay": 0.9, "momentum": 0.5, "weight_decay": 0.1},
        torch.optim.RMSprop,
        {"alpha": 0.9, "momentum": 0.5, "weight_decay": 0.1},
    ),
    "adam": (optim.adam, {}, torch.optim.Adam, {}),
    "adam_decay": (
        optim.adam,
        {"betas": (0.8, 0.9), "weight_decay": 0.1},
        torch.optim.Adam,
        {"betas": (0.8, 0.9), "weight_decay": 0.1},
    ),
    "adamw": (optim.adamw, {"weight_decay": 0.2}, torch.optim.AdamW, {"weight_decay": 0.2}),
}


@pytest.mark.parametrize("name", CASES)
def test_like_torch(name: str) -> None:
    ours, options, theirs, their_options = CASES[name]
    found = trained(lambda i, p, g: ours(i, p, g, rate=0.03, **options))
    compare(found, by_torch(lambda p: theirs(p, lr=0.03, **their_options)))


def test_lion() -> None:
    rate, betas, decay = 0.01, (0.9, 0.95), 0.1

    class Lion(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for p in self.param_groups[0]["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                p -= rate * (torch.sign(betas[0] * mean + (1 - betas[0]) * p.grad) + decay * p)
                mean.mul_(betas[1]).add_((1 - betas[1]) * p.grad)

    found = trained(lambda i, p, g: optim.lion(i, p, g, rate, betas, decay))
    compare(found, by_torch(Lion))


@pytest.mark.parametrize("backend", ["evaluate", "numpy", "jax"])
def test_clipping_with_a_schedule(backend: str) -> None:
    def optimiser(i: pr.Dim, params: Any, gradients: Any) -> None:
        rate = optim.warmup(i, optim.cosine(i, 0.25, 0.0, 20), 4)
        optim.adamw(i, params, optim.clip_by_global_norm(i, gradients, 0.5), rate)

    def after(step: int, optimiser: torch.optim.Optimizer, params: Any) -> None:
        torch.nn.utils.clip_grad_norm_(params, 0.5)
        rate = 0.125 * (1 + np.cos(np.pi * min(step / 20, 1)))
        optimiser.param_groups[0]["lr"] = rate * min((step + 1) / 4, 1)

    def compiled(params: Any, bounds: Any) -> Any:
        return pr.compile(params, backend=backend)(bounds=bounds)

    found = trained(optimiser, None if backend == "evaluate" else compiled)
    compare(found, by_torch(lambda p: torch.optim.AdamW(p), after), 1e-4)


def test_trees_and_further_dims() -> None:
    i, I = pr.dim("i")
    l, _ = pr.dim("l")
    w = pr.input("w", (2,), (l,), "float64")
    params = optim.over(i, [w, {"b": pr.constant(1.0, "float64")}])
    loss = (params[0] ** 2).sum() + params[1]["b"]
    gradients = optim.clip_by_global_norm(i, pr.grad(loss, params), 1.0)
    optim.sgd(i, params, gradients, rate=0.5)
    given = np.arange(6.0).reshape(3, 2)
    found = pr.evaluate((params, loss), {"w": given}, {I: 1})[0]
    slopes, slope = 2 * given, 3.0  # the loss is summed over l, so b counts three times
    size = np.sqrt((slopes**2).sum() + slope**2)
    np.testing.assert_allclose(found[0][1], given - 0.5 * slopes / size)
    np.testing.assert_allclose(found[1]["b"], [1.0, 1.0 - 0.5 * slope / size])


def test_digits_of_the_first_steps_in_float32() -> None:
    i, I = pr.dim("i")
    p = optim.over(i, pr.constant(1.0))
    optim.adam(i, p, pr.grad(p * 1e-3, p), rate=1.0)
    assert abs(float(pr.evaluate(p, bounds={I: 1})[1])) < 2e-5  # epsilon, and no more
