"""Each optimiser step by step against torch, or optax where torch has none; and optax's own inside a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
import pytest
import torch

import polyrhythm as pr
from polyrhythm import optim

STEPS = 50

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


def by_optax(transformation: Any) -> Arrays:
    """The same run by optax alone."""

    def loss(params: Any) -> Any:
        return ((jnp.tanh(DATA @ params["w"] + params["b"]) - GOALS) ** 2).sum()

    with jax.enable_x64(True):
        params = {name: jnp.asarray(value) for name, value in start().items()}
        state, seen = transformation.init(params), [params]

        @jax.jit
        def step(params: Any, state: Any) -> Any:
            updates, after = transformation.update(jax.grad(loss)(params), state, params)
            return optax.apply_updates(params, updates), after

        for _ in range(STEPS):
            params, state = step(params, state)
            seen.append(params)
        return {name: np.stack([np.asarray(each[name]) for each in seen]) for name in params}


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


def test_lion_like_optax() -> None:
    rate, betas, decay = 0.01, (0.9, 0.95), 0.1
    found = trained(lambda i, p, g: optim.lion(i, p, g, rate, betas, decay))
    compare(found, by_optax(optax.lion(rate, *betas, weight_decay=decay)))


OPTAX: dict[str, Any] = {
    "adam": optax.adam(0.03),
    "clipping_and_a_schedule": optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 0.2, 10, 40, 0.01), weight_decay=0.1),
    ),
    "every_third_step": optax.MultiSteps(optax.adam(0.1), every_k_schedule=3),
    "noise": optax.noisy_sgd(0.03, key=7),
}


@pytest.mark.parametrize("name", OPTAX)
def test_transformations_of_optax(name: str) -> None:
    """The same run by optax alone; inside one XLA program."""
    programs = []

    def compiled(params: Any, bounds: Any) -> Any:
        programs.append(pr.compile(params))
        return programs[0](bounds=bounds)

    found = trained(lambda i, p, g: optim.optax(i, p, g, OPTAX[name]), compiled)
    compare(found, by_optax(OPTAX[name]))
    assert len(programs[0].stats.compilations) == 1


def test_optax_equals_our_own() -> None:
    compare(
        trained(lambda i, p, g: optim.optax(i, p, g, optax.adam(0.03)), lambda p, bounds: pr.compile(p)(bounds=bounds)),
        trained(lambda i, p, g: optim.adam(i, p, g, 0.03), lambda p, bounds: pr.compile(p)(bounds=bounds)),
    )


def test_optax_sees_parameters_with_dims_whole() -> None:
    i, I = pr.dim("i")
    l, L = pr.dim("l")
    start = np.arange(1.0, 7.0).reshape(3, 2)
    w = pr.parameter("w", (2,), start, ((l, 3),), "float64")
    params = optim.over(i, {"w": w, "b": pr.constant(1.0, "float64")})
    loss = (params["w"] ** 2).sum() + params["b"] ** 2 / 3
    gradients = pr.grad(loss[{l: slice(0, 3)}].sum(), params)
    state = optim.optax(
        i, params, gradients, optax.chain(optax.clip_by_global_norm(1.0), optax.trace(0.9), optax.scale(-0.1))
    )
    found, trace = pr.compile((params, state[1].trace), bounds={L: 3})(bounds={I: 5})
    there: dict[str, Any] = {"w": start, "b": 1.0}
    velocity = {name: 0.0 * value for name, value in there.items()}
    for _ in range(5):
        slopes = {"w": 2 * there["w"], "b": 2 * there["b"]}
        size = np.sqrt((slopes["w"] ** 2).sum() + slopes["b"] ** 2)
        velocity = {name: 0.9 * velocity[name] + slope / max(size, 1) for name, slope in slopes.items()}
        there = {name: value - 0.1 * velocity[name] for name, value in there.items()}
    np.testing.assert_allclose(found["w"][-1], there["w"], rtol=1e-9)
    np.testing.assert_allclose(found["b"][-1], there["b"], rtol=1e-9)
    np.testing.assert_allclose(trace["w"][-1], velocity["w"], rtol=1e-9)


def test_optax_needs_the_jax_backend() -> None:
    i, _ = pr.dim("i")
    p = optim.over(i, pr.constant(1.0))
    optim.optax(i, p, pr.grad(p * p, p), optax.adam(0.1))
    for backend in ("numpy", "torch"):
        with pytest.raises(pr.errors.UnsupportedError, match="the jax function optax_"):
            pr.compile(p, backend=backend)


def test_gradients_through_an_optimiser() -> None:
    """A step of optax is differentiated by JAX: the best rate of one step of a quadratic."""
    i, I = pr.dim("i")
    start = pr.input("start", (), (), "float64")
    p = optim.over(i, start)
    optim.optax(i, p, pr.detach(p) * 0.0 + p, optax.sgd(0.25))
    slope = pr.compile(pr.grad(p[I] ** 2, start))(start=np.float64(3.0), bounds={I: 2})
    np.testing.assert_allclose(slope, 2 * 0.75**4 * 3.0)


SCHEDULES: dict[str, tuple[Callable[[pr.Dim], pr.Tensor], Callable[[int], Any]]] = {
    "linear": (lambda i: optim.linear(i, 0.3, 0.1, 20), optax.linear_schedule(0.3, 0.1, 20)),
    "cosine": (lambda i: optim.cosine(i, 0.4, 0.1, 20), optax.cosine_decay_schedule(0.4, 20, alpha=0.25)),
    "exponential": (lambda i: optim.exponential(i, 0.3, 0.9), optax.exponential_decay(0.3, 1, 0.9)),
    "staircase": (
        lambda i: optim.staircase(i, 0.3, 0.5, 7),
        optax.exponential_decay(0.3, 7, 0.5, staircase=True),
    ),
    "warmup": (lambda i: optim.warmup(i, 0.3, 8), lambda k: optax.linear_schedule(0.0, 0.3, 8)(k + 1)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name: str) -> None:
    i, I = pr.dim("i")
    ours, theirs = SCHEDULES[name]
    found = pr.evaluate(ours(i), bounds={I: 30})
    np.testing.assert_allclose(found, [float(theirs(k)) for k in range(30)], rtol=1e-5, atol=1e-7)


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


def test_lamb_as_in_optax() -> None:
    i, I = pr.dim("i")
    init = {"w": np.array([[1.0, -2.0], [0.5, 3.0]], "float32"), "b": np.zeros(2, "float32")}
    params = optim.over(i, init)
    loss = ((params["w"] @ params["b"] - 1.0) ** 2).sum() + (params["w"] ** 2).sum()
    optim.lamb(i, params, pr.grad(loss, params), rate=0.1, weight_decay=0.01)
    found = pr.evaluate(params, bounds={I: 5})
    rule = optax.lamb(0.1, weight_decay=0.01)
    weights: Any = {k: jnp.asarray(v) for k, v in init.items()}
    state = rule.init(weights)
    for step in range(5):
        slope = jax.grad(lambda p: ((p["w"] @ p["b"] - 1.0) ** 2).sum() + (p["w"] ** 2).sum())(weights)
        updates, state = rule.update(slope, state, weights)
        weights = optax.apply_updates(weights, updates)
        for name, value in weights.items():
            np.testing.assert_allclose(found[name][step + 1], value, rtol=1e-4, atol=1e-6)
