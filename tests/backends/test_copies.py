"""Loop bodies update their buffers in place: no copy, mask, transpose or gather of a large one in the optimised HLO.

A copy of a buffer at every step makes a loop quadratic. The patterns are those of design section 7: decoding with
attention, recurrent networks, reinforcement learning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import polyrhythm as pr
from polyrhythm import nn
from tests.backends.hlo import large, loop_bodies, optimised

HEADS, DEPTH, STEPS, WINDOW = 4, 16, 512, 64
WIDTH = HEADS * DEPTH
COPIES = ("copy", "transpose", "select", "gather", "slice", "dynamic-slice", "concatenate", "pad")


def decode(window: int | None, heads: int = HEADS) -> pr.Tensor:
    """Each step attends to what earlier steps left."""
    t, T = pr.dim("t")
    x = pr.recurrent((WIDTH,), ((t, T + 1),))
    q, k, v = ((x @ pr.input(name, (WIDTH, WIDTH))).reshape(heads, WIDTH // heads) for name in ("wq", "wk", "wv"))
    past: Any = slice(0, t + 1)
    keys, values = (k[past], v[past]) if window is None else (pr.window(k, t, window), pr.window(v, t, window))
    weights = pr.einsum("hd,shd->hs", q, keys).softmax(-1)
    x[0] = pr.input("first", (WIDTH,))
    x[t + 1] = pr.tanh(pr.einsum("hs,shd->hd", weights, values).reshape(WIDTH) + x)
    return x[t + 1]


def decode_inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(WIDTH, WIDTH)).astype("float32") / 8 for name in ("wq", "wk", "wv")}
    return weights | {"first": rng.normal(size=WIDTH).astype("float32")}


def rnn() -> dict[str, pr.Tensor]:
    """Hidden states are kept, and those three steps back are read."""
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,))
    w = pr.input("w", (WIDTH, WIDTH))
    h = pr.recurrent((WIDTH,), ((t, T + 1),))
    h[0] = 0.0
    h[t + 1] = pr.tanh(x + h @ w + 0.1 * h[pr.max(0, t - 3)])
    return {"h": h, "last": h[T]}


def actor() -> dict[str, pr.Tensor]:
    """A rollout that keeps its observations and rewards, then learns from the returns."""
    t, T = pr.dim("t")
    noise = pr.input("noise", (WIDTH,), (t,))
    w = pr.input("w", (WIDTH, WIDTH))
    state = pr.recurrent((WIDTH,), ((t, T + 1),))
    state[0] = 1.0
    action = pr.tanh(state @ w)
    state[t + 1] = 0.9 * state + 0.1 * action + noise
    reward = (state * action).sum()
    ret = pr.recurrent((), ((t, T + 1),))
    ret[T] = 0.0
    ret[t] = reward + 0.9 * ret[t + 1]
    gradient = ret * state[t]
    return {"gradient": gradient[0:T].sum(0), "returns": ret[t]}


def gated() -> dict[str, pr.Tensor]:
    """The gradient of an LSTM: what a step keeps is read by the next one, by several, and on the way back."""
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,)).reshape(HEADS, DEPTH)
    w = pr.input("w", (WIDTH, WIDTH)).reshape(HEADS * WIDTH, DEPTH)
    model = nn.LSTM(DEPTH, DEPTH, bias=False, rng=np.random.default_rng(0))
    h, _ = model.using({"weight_ih_l0": w.axes[:WIDTH], "weight_hh_l0": w.axes[WIDTH : 2 * WIDTH]})(x, t)
    return {"gradient": pr.grad(pr.square(h)[0:T].sum(), w)}


def steps_of(*names: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=(STEPS, WIDTH)).astype("float32") / 10 for name in names}
    return given | {"w": rng.normal(size=(WIDTH, WIDTH)).astype("float32") / 10}


PATTERNS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]], int]] = {
    "decode, all steps": (lambda: decode(None), lambda: {**decode_inputs(), "bounds": {"T": STEPS}}, STEPS * WIDTH),
    "decode, one head": (lambda: decode(None, 1), lambda: {**decode_inputs(), "bounds": {"T": STEPS}}, STEPS * WIDTH),
    "decode, window": (lambda: decode(WINDOW), lambda: {**decode_inputs(), "bounds": {"T": STEPS}}, WINDOW * WIDTH),
    "recurrent network": (rnn, lambda: steps_of("x"), STEPS * WIDTH),
    "gated network, trained": (gated, lambda: steps_of("x"), STEPS * WIDTH),
    "actor and returns": (actor, lambda: steps_of("noise"), STEPS * WIDTH),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_large_buffer_is_copied_in_a_loop(pattern: str) -> None:
    build, arguments, elements = PATTERNS[pattern]
    bodies = loop_bodies(optimised(pr.compile(build()), **arguments()))
    assert "dynamic-update-slice" in bodies, "the loop is not there"
    assert large(bodies, COPIES, elements) == []


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_was_made_faster_is_still_right(pattern: str) -> None:
    build, arguments, _ = PATTERNS[pattern]
    outputs, given = build(), arguments()
    bounds = {"T": 9} if "bounds" in given else None
    inputs = {n: v[:9] if v.shape[0] == STEPS else v for n, v in given.items() if n != "bounds"}
    have = pr.compile(outputs)(bounds=bounds, **inputs)
    want = pr.evaluate(outputs, inputs, bounds=bounds)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-4), have, want)


def test_the_count_sees_a_copy() -> None:
    """A loop that reads an old version after writing a new one, as we must not emit it."""

    def body(t: jax.Array, buffer: jax.Array) -> jax.Array:
        new = lax.dynamic_update_slice(buffer, buffer[t][None] + 1, (t, 0))
        return lax.dynamic_update_slice(new, new[t][None] + jnp.flip(buffer, 0).max(0), (t + 1, 0))

    def run(buffer: jax.Array) -> jax.Array:
        return lax.fori_loop(0, STEPS - 1, body, buffer)

    text = jax.jit(run).lower(jnp.ones((STEPS, WIDTH))).compile().as_text()
    assert text is not None
    assert large(loop_bodies(text), COPIES, STEPS * WIDTH)
