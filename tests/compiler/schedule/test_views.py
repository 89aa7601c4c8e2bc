"""Views of stored values are read through, and what narrows is computed before it has to be stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import rl

t, T = pr.dim("t")
i, I = pr.dim("i")


def buffers(program: pr.Program) -> dict[str, Any]:
    return {name: p for name, p in program.compiled.loops.places.items() if p.kind == "buffer"}


def agrees(outputs: Any, inputs: dict[str, Any], bounds: dict[Any, int]) -> None:
    for backend in ("numpy", "jax"):
        found = pr.compile(outputs, backend=backend)(bounds=bounds, **inputs)
        np.testing.assert_allclose(found, pr.evaluate(outputs, inputs, bounds=bounds), rtol=1e-5, atol=1e-5)


def images() -> tuple[pr.Recurrent, pr.Tensor]:
    """Images in uint8 that are read as floats, there and back."""
    first = pr.input("first", (4, 6), dtype="uint8")
    x = pr.recurrent((4, 6), (t,), "uint8", name="x")
    x[0] = first
    x[t + 1] = x + pr.constant(3, "uint8")
    back = pr.recurrent((6,), (t,))
    bright = pr.transpose(x.cast("float32"), (1, 0)).sum(1)
    back[T - 1] = bright[T - 1]
    back[t - 1] = 0.5 * back + bright[t - 1]
    return x, back


def test_a_wider_cast_is_not_stored() -> None:
    _, back = images()
    program = pr.compile(back[0], backend="numpy")
    assert all(p.type.dtype == np.uint8 or p.type.shape != (4, 6) for p in buffers(program).values())
    agrees(back[0], {"first": np.arange(24, dtype="uint8").reshape(4, 6)}, {T: 7})


def test_rows_of_a_flattened_rollout_need_no_copy() -> None:
    s = pr.recurrent((2, 50), (i, (t, T + 1)), name="s")
    s[0, 0] = pr.ones((2, 50))
    s[i + 1, 0] = s[i, T]
    s[i, t + 1] = 0.9 * s + 1.0
    u, _ = pr.dim("u")
    order = pr.input("order", (3,), (u,), dtype="int32")
    taken = pr.take(pr.reshape(s[i, 0:T], (2 * T, 50)), order, 0).sum()
    program = pr.compile(taken, backend="numpy")
    large = [name for name, p in program.compiled.loops.places.items() if any("T" in str(n) for n in p.whole)]
    assert large == ["s"]
    agrees(taken, {"order": np.array([[0, 3, 5], [1, 1, 99]], "int32")}, {T: 5, I: 3})


@pytest.mark.parametrize("steps", [None, 40])
def test_a_state_carried_over_iterations_is_stored_once(steps: int | None) -> None:
    s = pr.recurrent((50,), (i, (t, T + 1)), name="s")
    s[0, 0] = pr.ones((50,))
    s[i + 1, 0] = s[i, T]
    s[i, t + 1] = 0.9 * s + 1.0
    back = pr.recurrent((50,), (i, t))
    back[i, T - 1] = s[i, T]
    back[i, t - 1] = 0.5 * back + s[i, t - 1]
    bounds = {} if steps is None else {T: steps}
    program = pr.compile(back[i, 0], bounds=bounds, backend="numpy")
    assert program.memory.kept({I: 9, T: 40}) < 1.2 * 41 * 50 * 4


def test_what_narrows_is_computed_with_what_it_reads() -> None:
    """A value of a large state, for returns that go backwards: the value is stored, the state is not."""
    w = pr.input("w", (9000,))
    s, back = pr.recurrent((9000,), (t,), name="s"), pr.recurrent((), (t,))
    s[0] = pr.ones((9000,))
    s[t + 1] = 0.9 * s
    value = pr.einsum("d,d->", pr.tanh(s), w)
    back[T - 1] = value[T - 1]
    back[t - 1] = 0.5 * back + value[t - 1]
    program = pr.compile(back[0], backend="numpy")
    assert program.memory.kept({T: 1000}) < 300_000
    agrees(back[0], {"w": np.linspace(0, 1, 9000, dtype="float32")}, {T: 5})


@pytest.mark.parametrize(("states", "of_scores"), [(16, False), (4, True)])
def test_pointers_are_kept_and_not_what_they_are_found_in(states: int, of_scores: bool) -> None:
    """The best path through a chain: an eighth of the numbers is worth it, a quarter of a few is not."""
    seen, moves = pr.input("seen", (states,), (t,)), pr.input("moves", (states, states))
    best, path = pr.recurrent((states,), (t,)), pr.recurrent((), (t,), "int32")
    scores = best.unsqueeze(1) + moves
    best[0] = seen[0]
    best[t + 1] = scores.max(0) + seen[t + 1]
    path[T - 1] = best[T - 1].argmax(0)
    path[t - 1] = pr.take(scores.argmax(0)[t - 1], path, 0)
    program = pr.compile(path, backend="numpy")
    kept = {int(place.type.size) for place in buffers(program).values()}
    assert (states * states in kept) == of_scores
    random = np.random.default_rng(0)
    shapes = {"seen": (7, states), "moves": (states, states)}
    agrees(path, {name: random.normal(size=shape).astype("float32") for name, shape in shapes.items()}, {})


@pytest.mark.parametrize("read", [lambda x, w: x[t + 1] @ w, lambda x, w: pr.einsum("of,nf->no", w.T, x[t + 1])])
def test_a_contraction_of_some_slots_has_no_copy_of_all(read: Any) -> None:
    """XLA cuts out what is contracted of a longer place; of 32 MB that is a chunk at a time."""
    x, w = pr.input("x", (8, 4096), ((t, T + 1),)), pr.input("w", (4096, 16))
    made = pr.tanh(read(x, w)).sum()
    program = pr.compile(made, bounds={T: 256})
    held = 257 * 8 * 4096 * 4
    assert program.memory.peak({}) < 1.6 * held
    drawn = np.random.default_rng(0)
    given: dict[str, Any] = {"x": drawn.normal(size=(257, 8, 4096)).astype("float32") / 64}
    given["w"] = drawn.normal(size=(4096, 16)).astype("float32")
    np.testing.assert_allclose(program(**given), np.tanh(given["x"][1:] @ given["w"]).sum((1, 2)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("algorithm", "most"), [("ppo", 1.3), ("a2c", 1.2)])
def test_rollouts_of_images_are_stored_once(algorithm: str, most: float) -> None:
    steps, count, shape = 2048, 8, (192, 64)
    lamps = rl.Arrays(rl.Synthetic(shape, length=50), count)
    model = rl.ActorCritic(lamps.observations, lamps.actions, (16,), np.random.default_rng(0))
    if algorithm == "ppo":
        training = rl.ppo(lamps, model, rl.PPOSettings(steps=steps, epochs=2, minibatches=4))
    else:
        training = rl.a2c(lamps, model, rl.A2CSettings(steps=steps))
    program = pr.compile(training.outputs, bounds=training.bounds)
    stored = program.memory.bytes({training.iterations: 2})
    assert stored < most * 4 * steps * count * 192 * 64


@pytest.mark.slow
@pytest.mark.parametrize("side", [32, 64, 128])
def test_xla_has_one_rollout_of_images(side: int) -> None:
    """What XLA says that PPO takes, weights and gradients included; minibatches are a 32nd of the rollout."""
    steps, count, size = 512, 8, 3 * side * side
    lamps = rl.Arrays(rl.Synthetic((size,), 100, 4), count)
    model = rl.ActorCritic(lamps.observations, lamps.actions, (16,), np.random.default_rng(0))
    training = rl.ppo(lamps, model, rl.PPOSettings(steps=steps, minibatches=32, epochs=1))
    outputs = {name: x for name, x in training.outputs.items() if name != "weights"}
    program = pr.compile(outputs, training.bounds)
    assert program.memory.peak({str(training.iterations): 2}) < 1.3 * 4 * steps * count * size
