"""The torch and NumPy backends against the loop that a user of the library writes: LSTM, decode, PPO, a training step.

The loops multiply what they can before they begin, keep preallocated caches, and use the library's own operations where
it has them. Torch has one thread, for both alike: the operations are small. The iterations of PPO draw other numbers,
so only their times are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import polyrhythm as pr
from benchmarks import programs, rl_torch, training_torch
from benchmarks.harness import OURS, Fact, Result, Way, measured, race, raced
from benchmarks.training_models import RATE, Shape, new_lstm, new_transformer, train_lstm, train_transformer
from polyrhythm import optim, rl

LIMIT = 1.2
HIDDEN, HEADS, DEPTH = 128, 4, 64
LOOP, KERNEL = "a loop by hand", "torch.nn.LSTM"
Arrays = Mapping[str, Any]


def run(quick: bool) -> list[Result | Fact]:
    """Everything; `quick` only shows that it runs."""
    torch.set_num_threads(1)
    rounds, scale = (3, 16) if quick else (11, 1)
    results: list[Result | Fact] = []
    for backend in ("torch", "numpy"):
        results += [lstm(backend, batch, 256 // scale, rounds) for batch in (1, 32)]
        results += [decode(backend, window, 512 // scale, rounds) for window in (None, 64)]
        results.append(regression(backend, 64 // scale, rounds))
        results += [attention(backend, steps // scale, rounds) for steps in (128, 1024)]
    results += [training("lstm", Shape(64 // scale, 32, 128), rounds)]
    for steps in (32, 128, 512):
        results.append(training("transformer", Shape(steps // scale, 8, 64, layers=2, heads=4), rounds))
    results.append(ppo(128 // scale, rounds))
    return results


def given(backend: str, **arrays: np.ndarray) -> dict[str, Any]:
    """Arrays of the library."""
    return {name: torch.from_numpy(a) if backend == "torch" else a for name, a in arrays.items()}


def normal(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Random numbers for an input."""
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype("float32")


def sigmoid(x: np.ndarray) -> np.ndarray:
    """NumPy has none."""
    one = np.float32(1)
    result: np.ndarray = one / (one + np.exp(-x))
    return result


def lstm(backend: str, batch: int, steps: int, rounds: int) -> Result:
    """The states of an LSTM; the inputs are multiplied before the loop."""
    x = given(
        backend,
        x=normal(0, steps, batch, HIDDEN),
        wx=normal(1, HIDDEN, 4 * HIDDEN, scale=1 / 12),
        wh=normal(2, HIDDEN, 4 * HIDDEN, scale=1 / 12),
        bias=normal(3, 4 * HIDDEN),
    )
    program = pr.compile(programs.lstm(batch, HIDDEN, HIDDEN)[0], backend=backend)

    def in_torch() -> Arrays:
        with torch.inference_mode():
            before = x["x"] @ x["wx"] + x["bias"]
            h, c = torch.zeros(batch, HIDDEN), torch.zeros(batch, HIDDEN)
            kept = torch.empty(steps, batch, HIDDEN)
            for t in range(steps):
                into, forget, cell, out = (before[t] + h @ x["wh"]).chunk(4, -1)
                c = forget.sigmoid() * c + into.sigmoid() * cell.tanh()
                kept[t] = h = out.sigmoid() * c.tanh()
            return {"h": kept, "c": c}

    def in_numpy() -> Arrays:
        before = x["x"] @ x["wx"] + x["bias"]
        h, c = np.zeros((batch, HIDDEN), "float32"), np.zeros((batch, HIDDEN), "float32")
        kept = np.empty((steps, batch, HIDDEN), "float32")
        for t in range(steps):
            into, forget, cell, out = np.split(before[t] + h @ x["wh"], 4, -1)
            c = sigmoid(forget) * c + sigmoid(into) * np.tanh(cell)
            kept[t] = h = sigmoid(out) * np.tanh(c)
        return {"h": kept, "c": c}

    ways = {OURS: lambda: program(**x), LOOP: in_torch if backend == "torch" else in_numpy}
    return race(f"{backend}: LSTM {HIDDEN}, T={steps}, batch {batch}", ways, {LOOP: LIMIT}, rounds)


def decode(backend: str, window: int | None, steps: int, rounds: int) -> Result:
    """Attention of each step to those before it; keys and values lie in arrays of all steps."""
    width = HEADS * DEPTH
    x = given(
        backend,
        first=normal(0, width),
        **{name: normal(n + 1, width, width, scale=width**-0.5) for n, name in enumerate(("wq", "wk", "wv"))},
    )
    program = pr.compile(programs.decode(HEADS, DEPTH, window), backend=backend)
    bound = {"T": steps}

    def in_torch() -> torch.Tensor:
        with torch.inference_mode():
            now, found = x["first"], torch.empty(steps, width)
            keys, values = torch.empty(HEADS, steps, DEPTH), torch.empty(HEADS, steps, DEPTH)
            for t in range(steps):
                start = 0 if window is None else max(0, t + 1 - window)
                keys[:, t] = (now @ x["wk"]).view(HEADS, DEPTH)
                values[:, t] = (now @ x["wv"]).view(HEADS, DEPTH)
                q = (now @ x["wq"]).view(1, HEADS, 1, DEPTH)
                seen = slice(start, t + 1)
                mixed = F.scaled_dot_product_attention(q, keys[None, :, seen], values[None, :, seen])
                found[t] = now = torch.tanh(mixed.reshape(width) + 0.5 * now)
            return found

    def in_numpy() -> np.ndarray:
        now, found = x["first"], np.empty((steps, width), "float32")
        keys, values = (np.empty((HEADS, steps, DEPTH), "float32") for _ in range(2))
        scale, half = np.float32(DEPTH**-0.5), np.float32(0.5)
        for t in range(steps):
            start = 0 if window is None else max(0, t + 1 - window)
            keys[:, t] = (now @ x["wk"]).reshape(HEADS, DEPTH)
            values[:, t] = (now @ x["wv"]).reshape(HEADS, DEPTH)
            q = (now @ x["wq"]).reshape(HEADS, DEPTH, 1)
            scores = (keys[:, start : t + 1] @ q)[..., 0] * scale
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            mixed = (weights[:, None] @ values[:, start : t + 1]).reshape(width)
            found[t] = now = np.tanh(mixed + half * now)
        return found

    seen = "all before" if window is None else f"window {window}"
    ways: dict[str, Way] = {
        OURS: lambda: program(bounds=bound, **x),
        LOOP: in_torch if backend == "torch" else in_numpy,
    }
    return race(f"{backend}: decode {HEADS} x {DEPTH}, T={steps}, {seen}", ways, {LOOP: LIMIT}, rounds, 1e-3)


def attention(backend: str, steps: int, rounds: int) -> Result:
    """Attention of all steps at once, each to those before it, as a prompt is read."""
    width, wide = HEADS * DEPTH, (HEADS, DEPTH)
    names = ("wq", "wk", "wv")
    x = given(
        backend,
        x=normal(0, steps, width),
        **{name: normal(n + 1, width, width, scale=width**-0.5) for n, name in enumerate(names)},
    )
    t, _ = pr.dim("t")
    now = pr.input("x", (width,), (t,))
    q, k, v = ((now @ pr.input(name, (width, width))).reshape(wide) for name in names)
    weights = pr.softmax(pr.einsum("hd,shd->hs", q, k[0 : t + 1]) * DEPTH**-0.5, -1)
    mixed = pr.einsum("hs,shd->hd", weights, v[0 : t + 1]).reshape((width,))
    program = pr.compile(mixed, backend=backend)

    def in_torch() -> torch.Tensor:
        with torch.inference_mode():
            q, k, v = ((x["x"] @ x[name]).view(steps, *wide).transpose(0, 1)[None] for name in names)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return mixed[0].transpose(0, 1).reshape(steps, width)

    def in_numpy() -> np.ndarray:
        q, k, v = ((x["x"] @ x[name]).reshape(steps, *wide).transpose(1, 0, 2) for name in names)
        scores = q @ k.transpose(0, 2, 1) * np.float32(DEPTH**-0.5)
        scores += np.triu(np.full((steps, steps), -np.inf, "float32"), 1)
        scores -= scores.max(-1, keepdims=True)
        weights = np.exp(scores, out=scores)
        weights /= weights.sum(-1, keepdims=True)
        return (weights @ v).transpose(1, 0, 2).reshape(steps, width)

    ways: dict[str, Way] = {OURS: lambda: program(**x), LOOP: in_torch if backend == "torch" else in_numpy}
    return race(f"{backend}: attention {HEADS} x {DEPTH}, a prompt of {steps}", ways, {LOOP: LIMIT}, rounds, 1e-3)


def regression(backend: str, iterations: int, rounds: int) -> Result:
    """Iterations of Adam on a network of two layers; in NumPy the gradient is written by hand, in torch autograd's."""
    rows, wide, out = 64, 256, 8
    x = given(
        backend,
        x=normal(0, iterations, rows, wide),
        y=normal(1, iterations, rows, out),
        w0=normal(2, wide, wide, scale=wide**-0.5),
        v0=normal(3, wide, out, scale=wide**-0.5),
    )
    i, I = pr.dim("i")
    weights = {name: pr.recurrent(x[f"{name}0"].shape, ((i, I + 1),)) for name in "wv"}
    for name, weight in weights.items():
        weight[0] = pr.input(f"{name}0", weight.shape)
    error = pr.tanh(pr.input("x", (rows, wide), (i,)) @ weights["w"]) @ weights["v"] - pr.input("y", (rows, out), (i,))
    loss = pr.square(error).mean()
    optim.adam(i, weights, pr.grad(loss, weights), RATE)
    outputs = {"loss": loss, **{name: weight[I] for name, weight in weights.items()}}
    program = pr.compile(outputs, backend=backend)

    def in_torch() -> Arrays:
        w, v = (x[name].clone().requires_grad_() for name in ("w0", "v0"))
        optimiser, losses = torch.optim.Adam([w, v], lr=RATE), []
        for x_now, y_now in zip(x["x"], x["y"], strict=True):
            optimiser.zero_grad()
            loss = F.mse_loss(torch.tanh(x_now @ w) @ v, y_now)
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        return {"loss": torch.stack(losses), "w": w.detach(), "v": v.detach()}

    def in_numpy() -> Arrays:
        now = [x["w0"].copy(), x["v0"].copy()]
        first, second = ([np.zeros_like(a) for a in now] for _ in range(2))
        losses = np.empty(iterations, "float32")
        for n, (x_now, y_now) in enumerate(zip(x["x"], x["y"], strict=True)):
            hidden = np.tanh(x_now @ now[0])
            error = hidden @ now[1] - y_now
            losses[n] = np.square(error).mean()
            error *= np.float32(2 / error.size)
            slopes = [x_now.T @ (error @ now[1].T * (1 - hidden * hidden)), hidden.T @ error]
            one, two = np.float32(1 - 0.9 ** (n + 1)), np.float32(1 - 0.999 ** (n + 1))
            for a, m, s, g in zip(now, first, second, slopes, strict=True):
                m *= np.float32(0.9)
                m += np.float32(0.1) * g
                s *= np.float32(0.999)
                s += np.float32(0.001) * g * g
                a -= np.float32(RATE) * (m / one) / (np.sqrt(s / two) + np.float32(1e-8))
        return {"loss": losses, "w": now[0], "v": now[1]}

    ways = {OURS: lambda: program(**x), LOOP: in_torch if backend == "torch" else in_numpy}
    return race(f"{backend}: two layers of {wide}, {iterations} steps of Adam", ways, {LOOP: LIMIT}, rounds, 1e-2)


def training(kind: str, shape: Shape, rounds: int) -> Result:
    """Two iterations of Adam as in `benchmarks.training`; an LSTM is beside torch's own too, a kernel of its own."""
    model = (new_lstm if kind == "lstm" else new_transformer)(shape)
    made = train_lstm(model, shape) if kind == "lstm" else train_transformer(model, shape)  # type: ignore[arg-type]
    program = pr.compile(made.outputs, backend="torch")
    now, following = shape.letters(kind, 2)
    ways: dict[str, Way] = {OURS: lambda: program(now=now, following=following)}
    for peer, what in {LOOP: "loop", KERNEL: "lstm"}.items() if kind == "lstm" else [(LOOP, kind)]:
        ways[peer] = partial(training_torch.trained(what, shape, model.weights()), now, following)
    name = f"torch: training step, {kind}, width {shape.width}, T={shape.steps}, batch {shape.batch}"
    return race(name, ways, {LOOP: LIMIT}, rounds, 1e-2)


def ppo(steps: int, rounds: int) -> Result:
    """An iteration of PPO in environments of arrays, 32 at once, networks of two layers."""
    envs, shape, length, actions = 32, (8,), 100, 4
    settings = rl.PPOSettings(steps=steps)
    source = rl.Arrays(rl.Synthetic(shape, length, actions), envs)
    model = rl.ActorCritic(source.observations, source.actions, (64, 64), np.random.default_rng(0))
    made = rl.ppo(source, model, settings)
    program = pr.compile(made.outputs, bounds=made.bounds, backend="torch")
    step = rl_torch.trainer(model.weights(), envs, shape, length, actions, settings)
    ways: dict[str, Way] = {OURS: lambda: program(bounds={made.iterations: 1}), LOOP: step}
    for way in ways.values():
        way()
    return raced(f"torch: an iteration of PPO, {envs} x {steps}", measured(ways, rounds), {LOOP: LIMIT})
