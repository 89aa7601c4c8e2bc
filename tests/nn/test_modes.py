"""What differs between training and use: running statistics and dropout; and weights that vary along dims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import polyrhythm as pr
from polyrhythm import nn, optim
from polyrhythm.nn.errors import WeightsMismatchError
from tests.nn.comparing import random

BACKENDS = ["evaluate", "numpy", "jax", "torch"]
STEPS = 4


def run(outputs: Any, backend: str, given: dict[str, Any], bounds: Any = None, seed: int = 0) -> Any:
    if backend == "evaluate":
        return pr.evaluate(outputs, given, bounds, seed=seed)
    return pr.compile(outputs, backend=backend)(**given, bounds=bounds, seed=seed)


class Network(nn.Module):
    """A layer, a normalisation, a function, a layer."""

    def __init__(self, momentum: float | None) -> None:
        rng = np.random.default_rng(0)
        self.first = nn.Linear(3, 4, rng=rng)
        self.norm = nn.BatchNorm(4, momentum=momentum)
        self.second = nn.Linear(4, 1, rng=rng)

    def __call__(self, x: pr.Tensor, batch: pr.Dim | None = None) -> pr.Tensor:
        return self.second(pr.tanh(self.norm(self.first(x), batch)))


def trained_in_torch(
    weights: dict[str, Any], x: np.ndarray, momentum: float | None
) -> tuple[list[dict[str, np.ndarray]], np.ndarray]:
    """The weights before each iteration and after the last, and what the network then gives in use."""
    model = torch.nn.Sequential()
    model.add_module("first", torch.nn.Linear(3, 4))
    model.add_module("norm", torch.nn.BatchNorm1d(4, momentum=momentum))
    model.add_module("tanh", torch.nn.Tanh())
    model.add_module("second", torch.nn.Linear(4, 1))
    model.load_state_dict({name: torch.tensor(value) for name, value in weights.items()}, strict=True)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)

    def state() -> dict[str, np.ndarray]:
        return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}

    seen = [state()]
    for step in range(STEPS):
        optimiser.zero_grad()
        (model(torch.tensor(x[step])) ** 2).sum().backward()
        optimiser.step()
        seen.append(state())
    model.eval()
    return seen, model(torch.tensor(x[0])).detach().numpy()


@pytest.mark.parametrize(
    ("momentum", "backend"),
    [
        (0.3, "numpy"),
        (None, "torch"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(0.3, "evaluate"), (0.3, "jax"), (None, "jax")]),
    ],
)
def test_batch_norm_in_training_and_in_use(momentum: float | None, backend: str) -> None:
    i, _ = pr.dim("i")
    model = Network(momentum)
    x = random(STEPS, 5, 3).astype(np.float32)
    expected, used_there = trained_in_torch(model.weights(), x, momentum)
    weights = optim.over(i, model.parameters())
    training = model.using(weights).train(i)
    data = pr.input("x", (5, 3), (i,))
    loss = (training(data) ** 2).sum()
    optim.sgd(i, weights, pr.grad(loss, weights), rate=0.1)
    found = run({**weights, **training.buffers()}, backend, {"x": x})
    assert found.keys() == expected[0].keys()
    for name, values in found.items():
        wanted = np.stack([state[name] for state in expected])
        np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-5, err_msg=name)
    last = {name: np.asarray(values)[-1] for name, values in found.items()}
    used = run(model.eval().using(last)(pr.constant(x[0])), backend, {})
    np.testing.assert_allclose(used, used_there, rtol=1e-4, atol=1e-5)


def test_batch_norm_over_a_dim() -> None:
    i, I = pr.dim("i")
    b, _ = pr.dim("b")
    x = random(2, 5, 3, 4)
    norm = nn.BatchNorm(3)
    by_axis, by_dim = norm.train(i), norm.train(i)
    whole, single = pr.input("x", (5, 3, 4), (i,), "float64"), pr.input("y", (3, 4), (i, b), "float64")
    found = pr.evaluate(
        ((by_axis(whole), by_axis.buffers()), (by_dim(single, b), by_dim.buffers())), {"x": x, "y": x}, {I: 2}
    )
    np.testing.assert_allclose(found[0][0], found[1][0])
    for name, wanted in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], wanted)


def test_batch_norm_gradients() -> None:
    x = random(3, 2, 4)
    there = torch.nn.BatchNorm1d(2).double()
    given = torch.tensor(x, requires_grad=True)
    expected = there(given)
    (expected**3).sum().backward()
    tensor = pr.input("x", x.shape, (), "float64")
    y = nn.BatchNorm(2)(tensor)
    found, slope = pr.evaluate((y, pr.grad((y**3).sum(), tensor)), {"x": x})
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-9)
    assert given.grad is not None
    np.testing.assert_allclose(slope, given.grad.numpy(), rtol=1e-8, atol=1e-9)


def test_running_statistics_during_training() -> None:
    """What the network would give in use, after each iteration of the same run."""
    i, I = pr.dim("i")
    norm = nn.BatchNorm(1).train(i)
    x = pr.input("x", (2, 1), (i,))
    outputs = norm(x), norm.eval()(pr.constant([[1.0]]))
    _, used = pr.evaluate(outputs, {"x": random(3, 2, 1).astype(np.float32)}, {I: 3})
    assert used.shape == (4, 1, 1)
    assert used[0] == pytest.approx(1.0, abs=1e-4)
    assert len(np.unique(used)) == 4


def test_batch_norm_is_called_once() -> None:
    i, _ = pr.dim("i")
    norm = nn.BatchNorm(1).train(i)
    x = pr.input("x", (2, 1), (i,))
    norm(x)
    with pytest.raises(pr.errors.DeclarationError, match="called twice"):
        norm(x)


def test_dropout_is_the_same_on_every_backend() -> None:
    i, I = pr.dim("i")
    t, _ = pr.dim("t")
    y = nn.Dropout(0.25, name="drop").train(i)(pr.input("x", (7,), (t,)))
    given = {"x": np.ones((5, 7), np.float32)}
    wanted = run(y, "evaluate", given, {I: 3}, seed=11)
    assert wanted.shape == (3, 5, 7)
    assert not np.array_equal(wanted[0], wanted[1])  # the same x, another iteration
    for backend in BACKENDS[1:]:
        np.testing.assert_array_equal(run(y, backend, given, {I: 3}, seed=11), wanted, err_msg=backend)
        assert not np.array_equal(run(y, backend, given, {I: 3}, seed=12), wanted)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean_and_drops_the_gradient(p: float) -> None:
    count = 4000
    x = pr.input("x", (count,), (), "float64")
    y = nn.Dropout(p, name="drop")(x)
    found, slope = pr.evaluate((y, pr.grad(y.sum(), x)), {"x": np.ones(count)})
    np.testing.assert_array_equal(slope, found)
    np.testing.assert_allclose(np.unique(found), [0, 1 / (1 - p)])
    deviations = ((found == 0).sum() - p * count) / np.sqrt(count * p * (1 - p))
    assert abs(deviations) < 4


def test_dropout_at_its_ends_and_in_use() -> None:
    x = pr.constant([1.0, 2.0])
    assert pr.evaluate(nn.Dropout(0.0)(x)).tolist() == [1, 2]
    assert pr.evaluate(nn.Dropout(1.0)(x)).tolist() == [0, 0]
    assert pr.evaluate(nn.Dropout(0.9).eval()(x)).tolist() == [1, 2]
    assert nn.Dropout(0.9).eval().train().training
    with pytest.raises(pr.errors.DeclarationError, match=r"probability of 1\.5"):
        nn.Dropout(1.5)


def gated(rng: np.random.Generator) -> tuple[nn.Module, Any]:
    module = nn.GatedMLP(4, 6, rng=rng)
    return module, lambda m, x, t: m(x)


def block(rng: np.random.Generator) -> tuple[nn.Module, Any]:
    module = nn.Block(4, hidden=6, heads=2, rng=rng)
    return module, lambda m, x, t: m(x, t)


@pytest.mark.parametrize("make", [gated, pytest.param(block, marks=pytest.mark.slow)])
def test_weights_over_layers(make: Any) -> None:
    """One module whose weights vary along a dim is the modules one after the other, forwards and backwards."""
    l, L = pr.dim("l", max=3)
    t, _ = pr.dim("t")
    rng = np.random.default_rng(0)
    blocks, (_, call) = [make(rng)[0] for _ in range(3)], make(rng)
    x = pr.input("x", (4,), (t,))
    given: dict[str, Any] = {"x": random(3, 4).astype(np.float32)}
    layer = nn.layered(l, blocks, "layers.")
    h = pr.recurrent((4,), ((l, L + 1), t))
    h[0] = x
    h[l + 1] = call(layer, h, t)
    weights = layer.weights()
    found, slopes = pr.compile((h[L], pr.grad((h[L] ** 2).sum(), weights)), backend="numpy")(**given, bounds={L: 3})
    separate = [
        {name: pr.parameter(f"{k}.{name}", value.shape, value) for name, value in each.weights().items()}
        for k, each in enumerate(blocks)
    ]
    y = x
    for each, own in zip(blocks, separate, strict=True):
        y = call(each.using(own), y, t)
    expected, slopes_there = pr.evaluate((y, pr.grad((y**2).sum(), separate)), given)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    for name, slope in slopes.items():
        for k in range(3):
            np.testing.assert_allclose(slope[k], slopes_there[k][name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_buffers_may_be_left_out() -> None:
    norm = nn.BatchNorm(2)
    changed = norm.using({"weight": np.full(2, 3.0, np.float32), "bias": np.zeros(2, np.float32)})
    assert changed.running_mean is norm.running_mean
    assert list(norm.parameters()) == ["weight", "bias"]
    with pytest.raises(WeightsMismatchError, match="missing bias"):
        norm.using({"weight": np.ones(2)})
