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
from polyrhythm.compiler.backends.jax.products import choose, kernel
from tests.compiler.backends.hlo import large, loop_bodies, optimised

HEADS, DEPTH, STEPS, WINDOW = 4, 16, 512, 64
WIDTH = HEADS * DEPTH
COPIES = ("copy", "transpose", "select", "gather", "slice", "dynamic-slice", "concatenate", "pad")


def decode(window: int | None, heads: int = HEADS, stride: int = 1) -> pr.Tensor:
    """Each step attends to what earlier steps left, all of them or every other."""
    t, T = pr.dim("t")
    x = pr.recurrent((WIDTH,), ((t, T + 1),))
    q, k, v = ((x @ pr.input(name, (WIDTH, WIDTH))).reshape(heads, WIDTH // heads) for name in ("wq", "wk", "wv"))
    past: Any = slice(0, t + 1) if stride == 1 else slice(t % stride, t + 1, stride)
    keys, values = (k[past], v[past]) if window is None else (pr.window(k, t, window), pr.window(v, t, window))
    weights = pr.einsum("hd,shd->hs", q, keys).softmax(-1)
    x[0] = pr.input("first", (WIDTH,))
    x[t + 1] = pr.tanh(pr.einsum("hs,shd->hd", weights, values).reshape(WIDTH) + x)
    return x[t + 1]


def decode_several(batch: int = 3) -> pr.Tensor:
    """The same for several texts, which share weights and have keys of their own."""
    t, T = pr.dim("t")
    x = pr.recurrent((batch, WIDTH), ((t, T + 1),))
    q, k, v = ((x @ pr.input(n, (WIDTH, WIDTH))).reshape(batch, HEADS, DEPTH) for n in ("wq", "wk", "wv"))
    weights = pr.einsum("bhd,sbhd->bhs", q, k[0 : t + 1]).softmax(-1)
    x[0] = pr.input("first", (WIDTH,))
    x[t + 1] = pr.tanh(pr.einsum("bhs,sbhd->bhd", weights, v[0 : t + 1]).reshape(batch, WIDTH) + x)
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


def replay() -> dict[str, pr.Tensor]:
    """Every step keeps what it saw and did, of several types, and learns from some steps drawn at random."""
    t, _ = pr.dim("t")
    noise, draws = pr.input("x", (WIDTH,), (t,)), pr.input("draws", (8,), (t,))
    state, q = (pr.recurrent((WIDTH,), (t,)) for _ in range(2))
    action = ((state * q).sum() > 0).cast("int32")
    following = 0.9 * state + 0.1 * noise + 0.1 * action.cast("float32")
    done = (following * following).sum() > 2.0
    state[0] = 0.0
    state[t + 1] = pr.where(done, 0.0, following)
    at = (draws * (pr.value(t) + 1).cast("float32")).cast("int32")
    seen, did, came, ended = (pr.take(z[0 : t + 1], at, 0) for z in (state, action, following, done))
    error = did.cast("float32") + pr.where(ended, 0.0, came @ q) - seen @ q
    q[0] = pr.input("w", (WIDTH, WIDTH)).axes[0]
    q[t + 1] = q + 0.01 * error @ seen
    return {"q": q}


def steps_of(*names: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=(STEPS, WIDTH)).astype("float32") / 10 for name in names}
    return given | {"w": rng.normal(size=(WIDTH, WIDTH)).astype("float32") / 10}


PATTERNS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]], int]] = {
    "decode, all steps": (lambda: decode(None), lambda: {**decode_inputs(), "bounds": {"T": STEPS}}, STEPS * WIDTH),
    "decode, one head": (lambda: decode(None, 1), lambda: {**decode_inputs(), "bounds": {"T": STEPS}}, STEPS * WIDTH),
    "decode, several": (decode_several, lambda: {**decode_inputs(), "bounds": {"T": STEPS}}, STEPS * WIDTH),
    "decode, window": (lambda: decode(WINDOW), lambda: {**decode_inputs(), "bounds": {"T": STEPS}}, WINDOW * WIDTH),
    "decode, every second step": (
        lambda: decode(None, stride=2),
        lambda: {**decode_inputs(), "bounds": {"T": STEPS}},
        STEPS // 2 * WIDTH,
    ),
    "recurrent network": (rnn, lambda: steps_of("x"), STEPS * WIDTH),
    "gated network, trained": (gated, lambda: steps_of("x"), STEPS * WIDTH),
    "actor and returns": (actor, lambda: steps_of("noise"), STEPS * WIDTH),
}


@pytest.fixture(params=["XLA", "kernel"], autouse=True)
def who_multiplies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Matrices of any size are multiplied by our kernel, or none is."""
    if request.param == "kernel":
        for limit in ("LEAST", "LEAST_BATCH"):
            monkeypatch.setattr(choose, limit, 0)
    else:
        monkeypatch.setattr(kernel, "takes", lambda *_: False)
    return str(request.param)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_large_buffer_is_copied_in_a_loop(pattern: str) -> None:
    build, arguments, elements = PATTERNS[pattern]
    bodies = loop_bodies(optimised(pr.compile(build()), **arguments()))
    assert "dynamic-update-slice" in bodies, "the loop is not there"
    assert large(bodies, COPIES, elements) == []


@pytest.mark.parametrize("pattern", [pattern for pattern in PATTERNS if pattern.startswith("decode")])
def test_a_step_updates_keys_and_values_once(pattern: str, who_multiplies: str) -> None:
    """A second update of the same buffer is a copy under another name."""
    build, arguments, elements = PATTERNS[pattern]
    bodies = loop_bodies(optimised(pr.compile(build()), **arguments()))
    every = large(bodies, ("dynamic-update-slice",), elements)
    stores = [store for store in every if f"= f32[{STEPS}," not in store]  # the others keep the output
    remainders = 2 if "second" in pattern else 1
    assert len(stores) == 2 * remainders, "\n".join(stores)
    assert ("polyrhythm_skinny_along" in bodies) == (who_multiplies == "kernel")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_was_made_faster_is_still_right(pattern: str) -> None:
    build, arguments, _ = PATTERNS[pattern]
    outputs, given = build(), arguments()
    bounds = {"T": 9} if "bounds" in given else None
    inputs = {n: v[:9] if v.shape[0] == STEPS else v for n, v in given.items() if n != "bounds"}
    have = pr.compile(outputs)(bounds=bounds, **inputs)
    want = pr.evaluate(outputs, inputs, bounds=bounds)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-4), have, want)


def test_texts_along_a_dim_are_decoded_in_place() -> None:
    """What lanes keep is not turned to where a product wants it; values may be masked, as each lane begins anew."""
    (b, B), (t, T) = pr.dim("b"), pr.dim("t")
    x = pr.recurrent((WIDTH,), (b, (t, T + 1)))
    q, k, v = ((x @ pr.input(name, (WIDTH, WIDTH))).reshape(HEADS, DEPTH) for name in ("wq", "wk", "wv"))
    weights = pr.einsum("hd,shd->hs", q, k[{t: slice(0, t + 1)}]).softmax(-1)
    mixed = pr.einsum("hs,shd->hd", weights, v[{t: slice(0, t + 1)}])
    x[b, 0] = pr.input("first", (WIDTH,), (b,))
    x[b, t + 1] = pr.tanh(mixed.reshape(WIDTH) + x)
    inputs: dict[str, Any] = decode_inputs()
    first = np.stack([inputs["first"], -inputs["first"], 0.5 * inputs["first"]])
    program = pr.compile(x[b, t + 1], bounds={B: 3}, schedule={b: pr.vector()})
    bodies = loop_bodies(optimised(program, **{**inputs, "first": first}, bounds={T: STEPS}))
    assert "dynamic-update-slice" in bodies, "the loop is not there"
    copies = tuple(op for op in COPIES if op != "select")
    assert large(bodies, copies, 3 * STEPS * WIDTH) == []
    found = program(**{**inputs, "first": first}, bounds={T: 9})
    alone = pr.compile(decode(None))
    for row, own in zip(found, first, strict=True):
        np.testing.assert_allclose(row, alone(**{**inputs, "first": own}, bounds={"T": 9}), rtol=0, atol=2e-4)


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


def stencil() -> pr.Tensor:
    t, T = pr.dim("t")
    x, w = pr.input("x", (), (t,)), pr.input("w", (3,))
    y = pr.recurrent((), (t,))
    y[(t > 0) & (t < T - 1)] = w.axes[0] * x[t - 1] + w.axes[1] * x + w.axes[2] * x[t + 1]
    y[pr.otherwise] = x
    return y


def test_a_stencil_is_one_pass_and_its_borders_are_single_steps() -> None:
    """Borders were a pass of their own over all steps, stored by a scatter, and the rest was padded with zeros."""
    program = pr.compile(stencil())
    arrays = {"x": np.random.default_rng(0).normal(size=STEPS), "w": np.array([0.2, 0.5, 0.3])}
    text = optimised(program, **{name: array.astype("float32") for name, array in arrays.items()})
    assert not large(text, ("copy", "gather", "scatter", "pad", "concatenate"), STEPS // 2)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_borders_at_all_lengths(backend: str) -> None:
    program = pr.compile(stencil(), backend=backend)
    w = np.array([0.2, 0.5, 0.3], "float32")
    for steps in (0, 1, 2, 3, 4, 9):
        x = np.random.default_rng(steps).normal(size=steps).astype("float32")
        expected = x.copy()
        if steps > 2:
            expected[1:-1] = w[0] * x[:-2] + w[1] * x[1:-1] + w[2] * x[2:]
        np.testing.assert_allclose(np.asarray(program(x=x, w=w)), expected, rtol=1e-6)


@pytest.mark.parametrize("backend", ["numpy", pytest.param("jax", marks=pytest.mark.slow)])
def test_borders_of_a_table_at_all_sizes(backend: str) -> None:
    """Heat on a plate whose borders are held, step by step."""
    (i, I), (a, A), (b, B) = pr.dim("i"), pr.dim("a"), pr.dim("b")
    start = pr.input("start", (), (a, b))
    u = pr.recurrent((), ((i, I + 1), a, b))
    inside = (a > 0) & (a < A - 1) & (b > 0) & (b < B - 1)
    u[i == 0] = start
    u[(i > 0) & inside] = 0.25 * (u[i - 1, a - 1, b] + u[i - 1, a + 1, b] + u[i - 1, a, b - 1] + u[i - 1, a, b + 1])
    u[pr.otherwise] = u[i - 1]
    program = pr.compile(u[I], backend=backend)
    for sizes in ((1, 1), (1, 3), (2, 4), (3, 3), (5, 4)):
        table = np.random.default_rng(0).normal(size=sizes).astype("float32")
        found = np.asarray(program(start=table, bounds={I: 3}))
        for _ in range(3):
            mean = 0.25 * (table[:-2, 1:-1] + table[2:, 1:-1] + table[1:-1, :-2] + table[1:-1, 2:])
            table = np.pad(mean, 1) + np.where(np.pad(np.ones_like(mean), 1), 0, table) if mean.size else table
        np.testing.assert_allclose(found, table, rtol=1e-5, atol=1e-6)


def replay_inputs(steps: int = STEPS) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    draws = {"draws": rng.random((steps, 8)).astype("float32") * np.float32(0.99)}
    return {name: array[:steps] if name == "x" else array for name, array in steps_of("x").items()} | draws


def test_a_replay_is_stored_and_drawn_from_without_a_copy() -> None:
    """Copies in the loops that keep the order, which never run, turn a buffer around first."""
    bodies = loop_bodies(optimised(pr.compile(replay()), **replay_inputs()))
    found = large(bodies, ("copy", "transpose", "slice", "concatenate", "pad"), STEPS)
    assert [line for line in found if "rev" not in line and f"[{STEPS}" in line.split("(")[0]] == []


def test_a_replay_is_right() -> None:
    outputs = replay()
    for steps in (1, 2, 3, 9):
        inputs = replay_inputs(steps)
        have, want = pr.compile(outputs)(**inputs), pr.evaluate(outputs, inputs)
        np.testing.assert_allclose(have["q"], want["q"], atol=1e-4)


def skips(far: int) -> dict[str, pr.Tensor]:
    """A recurrence that reads a step far back where there is one, with its gradient."""
    t, T = pr.dim("t", min=1)
    x, w = pr.input("x", (WIDTH,), (t,)), pr.input("w", (WIDTH, WIDTH))
    h = pr.recurrent((WIDTH,), (t,))
    h[0] = x[0]
    h[t + 1] = pr.tanh(h @ w + pr.where(t >= far, h[pr.max(0, t - far)], 0.0) + x[t + 1])
    loss = (h[0:T] ** 2).mean()
    return {"loss": loss, "w": pr.grad(loss, w)}


@pytest.mark.parametrize("far", [1, 7])
def test_a_step_far_back_is_read_without_a_copy(far: int) -> None:
    inputs = steps_of("x") | {"w": decode_inputs()["wq"]}
    bodies = loop_bodies(optimised(pr.compile(skips(far)), **inputs))
    found = large(bodies, ("copy", "slice", "concatenate", "pad"), STEPS)
    assert [line for line in found if "reverse" not in line and f"[{STEPS}" in line.split("(")[0]] == []
    small: dict[str, Any] = {"x": inputs["x"][:11], "w": inputs["w"]}
    have, want = pr.compile(skips(far))(**small), pr.evaluate(skips(far), small)
    for name, value in want.items():
        np.testing.assert_allclose(have[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
