"""Programs that are spread over a mesh of all devices in tests and benchmarks, and what is said of them there."""

from typing import Any

import jax
import numpy as np

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.run.collectives import Collective, collectives

DEVICES = jax.device_count()
RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RANDOM.normal(size=shape).astype("float32")


def mesh_of(*names: str) -> Any:
    if len(names) == 1:
        return jax.make_mesh((DEVICES,), names)
    first = 2 if DEVICES % 2 == 0 else 1
    return jax.make_mesh((first, DEVICES // first), names)


def collectives_of(program: pr.Program) -> list[Collective]:
    """The collectives of everything that a program has compiled."""
    texts = [compiled.as_text() for compiled in program.backend.executor.programs.values()]
    return [one for text in texts for one in collectives(text, DEVICES)]


def counted(program: pr.Program) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in collectives_of(program):
        found[one.kind] = found.get(one.kind, 0) + 1
    return found


def close(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape, (a.shape, b.shape)
        assert np.allclose(a, b, rtol=tolerance, atol=tolerance), np.abs(a - b).max()


def training(width: int = 8, hidden: int = 16) -> tuple[dict[str, pr.Tensor], pr.Dim, pr.Bound, pr.Dim, pr.Bound]:
    """A perceptron with two layers, trained by Adam over iterations i on a batch b."""
    b, B = pr.dim("b")
    i, I = pr.dim("i")
    x, y = pr.input("x", (width,), (b,)), pr.input("y", (), (b,))
    start = {"w1": pr.input("w1", (width, hidden)), "w2": pr.input("w2", (hidden,))}
    w = {name: pr.recurrent(value.shape, (i,)) for name, value in start.items()}
    m = {name: pr.recurrent(value.shape, (i,)) for name, value in start.items()}
    v = {name: pr.recurrent(value.shape, (i,)) for name, value in start.items()}
    error = pr.tanh(x @ w["w1"]) @ w["w2"] - y
    loss = (error * error)[{b: slice(0, B)}].mean(0)
    slopes = dict(zip(w, pr.grad(loss, list(w.values())), strict=True))
    for name, value in start.items():
        slope = slopes[name]
        w[name][0] = value
        m[name][0] = pr.zeros(value.shape)
        v[name][0] = pr.zeros(value.shape)
        m[name][i + 1] = 0.9 * m[name] + 0.1 * slope
        v[name][i + 1] = 0.99 * v[name] + 0.01 * slope * slope
        w[name][i + 1] = w[name] - 0.01 * m[name][i + 1] / (pr.sqrt(v[name][i + 1]) + 1e-4)
    outputs = {"losses": loss, "w1": w["w1"][I - 1], "w2": w["w2"][I - 1], "m1": m["w1"][I - 1]}
    return outputs, b, B, i, I


def training_data(rows: int) -> dict[str, Any]:
    return {"x": normal(rows, 8), "y": normal(rows), "w1": 0.3 * normal(8, 16), "w2": 0.3 * normal(16)}


def attention(heads: int = 8, width: int = 16) -> tuple[pr.Tensor, pr.Dim, pr.Dim, dict[str, Any]]:
    """Causal attention over t with weights by head, for a batch b."""
    b, _ = pr.dim("b")
    t, _ = pr.dim("t")
    x = pr.input("x", (width,), (b, t))
    w = {n: pr.input(n, (width, heads, 4)) for n in ("q", "k", "v")}
    out = pr.input("o", (heads, 4, width))
    q, k, v = (pr.einsum("i,ihd->hd", x, w[n]) for n in ("q", "k", "v"))
    weights = pr.softmax(pr.einsum("hd,shd->hs", q, k[b, 0 : t + 1]) / 2.0, axis=-1)
    y = pr.einsum("hd,hdi->i", pr.einsum("hs,shd->hd", weights, v[b, 0 : t + 1]), out)
    data = {n: 0.3 * normal(width, heads, 4) for n in ("q", "k", "v")}
    return y, b, t, {**data, "o": 0.3 * normal(heads, 4, width), "x": normal(5, 12, width)}


HEADS = {"[qkv]": (None, "model", None), "o": ("model", None, None)}


def decoding(heads: int = 8, width: int = 16) -> tuple[pr.Tensor, pr.Dim, pr.Dim, pr.Bound, dict[str, Any]]:
    """Sequences b that each go on from their own outputs, step by step, with a cache of keys and values."""
    b, _ = pr.dim("b")
    t, T = pr.dim("t")
    start = pr.input("start", (width,), (b,))
    w = {n: pr.input(n, (width, heads, 4)) for n in ("q", "k", "v")}
    out = pr.input("o", (heads, 4, width))
    h = pr.recurrent((width,), (b, t))
    q, k, v = (pr.einsum("i,ihd->hd", h, w[n]) for n in ("q", "k", "v"))
    weights = pr.softmax(pr.einsum("hd,shd->hs", q, k[b, 0 : t + 1]) / 2.0, axis=-1)
    mixed = pr.einsum("hs,shd->hd", weights, v[b, 0 : t + 1])
    h[b, 0] = start
    h[b, t + 1] = pr.tanh(0.5 * h + pr.einsum("hd,hdi->i", mixed, out))
    data = {n: 0.3 * normal(width, heads, 4) for n in ("q", "k", "v")}
    return h[b, T - 1], b, t, T, {**data, "o": 0.1 * normal(heads, 4, width), "start": normal(40, width)}


def stencils() -> dict[str, tuple[Any, list[pr.Dim]]]:
    """Reads beside the own step of a dim, as users write them."""
    t, T = pr.dim("t")
    x = pr.input("x", (4,), (t,))
    shifted = pr.recurrent((4,), (t,))
    shifted[0] = x[0]
    shifted[t >= 1] = x[t - 1] + x
    ends = pr.recurrent((4,), ((t, T + 1),))
    ends[0] = 0.5 * x[0]
    ends[t + 1] = x * x
    turned = pr.recurrent((4,), (t,))
    turned[T - 1] = x[0]
    turned[pr.otherwise] = x[t + 1] - x
    return {
        "around": (pr.where(t > 0, x[t - 1], 0.0) + x + pr.where(t < T - 1, x[t + 1], 0.0), [t]),
        "window": (x[pr.max(t - 2, 0) : t + 1].sum(0), [t]),
        "shifted": (shifted, [t]),
        "one more": (ends, [t]),
        "from the end": (turned, [t]),
        "twice": (pr.where(t > 1, shifted[t - 2], 1.0) * x, [t]),
    }


STENCILS = {
    "around": ([1, 1], 0),
    "window": ([1, 2], 1),
    "shifted": ([1], 1),
    "from the end": ([1], 1),
    "twice": ([2, 3], 2),
}
"""How many rows go to a neighbour, once for each step beside the own one that is read, and how many steps go to all."""


def heat() -> tuple[pr.Tensor, pr.Dim]:
    """The heat equation over i steps of time, and the dim of space."""
    (i, I), (t, T) = pr.dim("i"), pr.dim("t")
    h = pr.recurrent((), (i, t))
    h[0, t] = pr.input("x", (), (t,))
    before, after = pr.where(t > 0, h[i, t - 1], h), pr.where(t < T - 1, h[i, t + 1], h)
    h[i + 1, t] = h + 0.1 * (before + after - 2 * h)
    return h[I - 1], t


def every_step() -> tuple[pr.Tensor, pr.Dim, pr.Dim, pr.Bound]:
    """The same as `decoding`, with all steps as the output."""
    b, _ = pr.dim("b")
    t, T = pr.dim("t")
    start = pr.input("start", (16,), (b,))
    w = {n: pr.input(n, (16, 8, 4)) for n in ("q", "k", "v")}
    out = pr.input("o", (8, 4, 16))
    h = pr.recurrent((16,), (b, t))
    q, k, v = (pr.einsum("i,ihd->hd", h, w[n]) for n in ("q", "k", "v"))
    weights = pr.softmax(pr.einsum("hd,shd->hs", q, k[b, 0 : t + 1]) / 2.0, axis=-1)
    mixed = pr.einsum("hs,shd->hd", weights, v[b, 0 : t + 1])
    h[b, 0] = start
    h[b, t + 1] = pr.tanh(0.5 * h + pr.einsum("hd,hdi->i", mixed, out))
    return h, b, t, T
