"""The NumPy and torch backends write what a user of the library would: direct operations, many iterations at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends.python.runs import ring_parts

BACKENDS = ("numpy", "torch")
Random = np.random.Generator


def compiled(outputs: Any, backend: str) -> tuple[pr.Program, str]:
    """A program and its source."""
    program = pr.compile(outputs, backend=backend)
    return program, program.backend.source.text


def same(outputs: Any, inputs: Any, bounds: Any = None, seed: int = 0) -> None:
    """Both backends against the oracle; inputs are not written to."""
    wanted = jax.tree.leaves(pr.evaluate(outputs, inputs, bounds, seed=seed))
    before = {name: array.copy() for name, array in inputs.items()}
    for backend in BACKENDS:
        found = jax.tree.leaves(compiled(outputs, backend)[0](bounds=bounds or {}, seed=seed, **inputs))
        for have, want in zip(found, wanted, strict=True):
            assert np.asarray(have).dtype == want.dtype
            scale = max(1.0, float(np.abs(want).max(initial=0)))
            np.testing.assert_allclose(np.asarray(have), want, rtol=1e-3, atol=1e-4 * scale, err_msg=backend)
        assert all((inputs[name] == array).all() for name, array in before.items())


def expression(random: Random, leaves: list[pr.Tensor], w: pr.Tensor, places: pr.Tensor, depth: int) -> pr.Tensor:
    """A (2, 4) value of operations that are written directly, fused, done in place, or many iterations at once."""
    if depth == 0:
        return leaves[random.integers(len(leaves))]
    a, b = (expression(random, leaves, w, places, depth - 1) for _ in range(2))
    makers: list[Callable[[], pr.Tensor]] = [
        lambda: a + b,
        lambda: a - b * 0.5,
        lambda: 2.0 - a,
        lambda: pr.tanh(a),
        lambda: pr.sigmoid(a),
        lambda: pr.softmax(a, -1),
        lambda: pr.softmax(a, 0) * b,
        lambda: pr.maximum(a, b),
        lambda: pr.where(a > 0.25, a, b),
        lambda: pr.where((a > 0) & (b < 1), 0.0, a),
        lambda: a / (1.5 + pr.square(b)),
        lambda: a.axes[..., 1:3].sum(-1, keepdims=True) + a,
        lambda: a.max(-1, keepdims=True) * 0.5 + a,
        lambda: pr.einsum("ij,kj->ik", a, w) @ w,
        lambda: (a @ w.T) @ w + pr.einsum("ij,ij->i", a, b).unsqueeze(1),
        lambda: pr.einsum("ij,kl->ijkl", a, b).sum((0, 3)).T,
        lambda: pr.take(a, places, 0),
        lambda: pr.concat([b.axes[:, 2:], a.axes[:, :2]], 1),
        lambda: a.reshape((-1,)).reshape((2, 4)) * 0.3 + a.mean(-1, keepdims=True),
        lambda: pr.split(pr.concat([a, b], 1), 2, 1)[1] * 2.0 + a,
    ]
    return makers[random.integers(len(makers))]()


@pytest.mark.parametrize("seed", range(18))
def test_random_programs(seed: int) -> None:
    random = np.random.default_rng(seed)
    t, T = pr.dim("t", min=1)
    i, I = pr.dim("i", min=1)
    x, y, s = pr.input("x", (2, 4), (t,)), pr.input("y", (2, 4), (t,)), pr.input("s", (), (t,))
    w, places = pr.input("w", (3, 4)), pr.input("places", (2,), (t,), "int32")
    leaves = [x, y, x * s, pr.value(t).cast("float32") * x, x[0], y[T - 1]]
    z = expression(random, leaves, w, places, 3) + 0 * x + 0 * y + 0 * s
    kind = seed % 6
    if kind == 0:
        outputs: Any = [z, z[0:T].sum(0)]
    elif kind == 1:
        h = pr.recurrent((2, 4), ((t, T + 1),))
        h[0] = 0.0
        h[t + 1] = 0.5 * pr.tanh(h + 0.3 * z)
        outputs = [h, pr.tanh(h[t + 1]) * x]
    elif kind == 2:
        loss = pr.square(pr.tanh(z))[0:T].mean((0, 1, 2))
        outputs = [loss, *pr.grad(loss, [x, s])]
    elif kind == 3:
        h = pr.recurrent((2, 4), (t,))
        h[T - 1] = z[T - 1]
        h[t - 1] = z[t - 1] + 0.5 * h
        outputs = [h + z, pr.where(t > 0, z[t - 1], 0.0), pr.window(h, t, 3).sum(0)]
    elif kind == 4:
        h = pr.recurrent((), ((t, T + 1),))
        h[0] = 0.1
        h[t + 1] = 0.9 * h + pr.sigmoid(s) * 2.0 - 0.5 * pr.maximum(h, s) / (1.0 + pr.square(s))
        outputs = [h, z * h[t + 1], pr.where(h > 0, h, 1.0) * 0.5]
    else:
        u = pr.recurrent((2, 4), ((i, I + 1), t))
        u[0] = z
        u[i + 1] = 0.5 * u + pr.sigmoid(pr.where(t > 0, u[i, t - 1], x))
        outputs = [u[I], u.sum((0, 1))]
    steps = int(random.integers(1, 7))
    inputs = {
        "x": random.normal(size=(steps, 2, 4)).astype("float32"),
        "y": random.normal(size=(steps, 2, 4)).astype("float32"),
        "s": random.normal(size=steps).astype("float32"),
        "w": random.normal(size=(3, 4)).astype("float32"),
        "places": random.integers(-1, 3, (steps, 2)).astype("int32"),
    }
    known = pr.compile(outputs, backend="numpy").compiled.graph.inputs
    same(outputs, {name: array for name, array in inputs.items() if name in known}, {I: 2} if kind == 5 else None)


def cell(t: pr.Dim, T: pr.Bound) -> tuple[pr.Tensor, pr.Tensor, pr.Tensor]:
    """A gated recurrence: its states, its weights, and those of its inputs."""
    x, w, u = pr.input("x", (2, 4), (t,)), pr.input("w", (4, 64)), pr.input("u", (32, 64))
    h = pr.recurrent((2, 32), ((t, T + 1),))
    gate, new = pr.split(x @ w + h @ u, 2, 1)
    h[0] = 0.0
    h[t + 1] = pr.sigmoid(gate) * h + pr.tanh(new)
    return h, u, w


def cell_inputs(steps: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    sizes = {"x": (steps, 2, 4), "w": (4, 64), "u": (32, 64)}
    return {name: (random.normal(size=size) / 4).astype("float32") for name, size in sizes.items()}


@pytest.mark.parametrize("backend", BACKENDS)
def test_small_operations_are_written_directly(backend: str) -> None:
    t, T = pr.dim("t", min=1)
    source = compiled(cell(t, T)[0], backend)[1]
    assert "@" in source
    assert not any(f"_{op}_(" in source for op in ("einsum", "add", "mul", "tanh", "slice", "copy"))
    assert ("sigmoid" in source) == (backend == "torch")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loop_without_a_recurrence_takes_many_iterations_at_once(backend: str) -> None:
    t, _ = pr.dim("t")
    x, w = pr.input("x", (4,), (t,)), pr.input("w", (4, 4))
    program, source = compiled(pr.tanh(x @ w) * pr.value(t), backend)
    assert "t_count" in source
    given: dict[str, Any] = {"x": np.ones((9, 4), "float32"), "w": np.eye(4, dtype="float32")}
    wanted = np.tanh(given["x"]) * np.arange(9, dtype="float32")[:, None]
    np.testing.assert_allclose(program(**given), wanted, rtol=1e-6)
    assert program(x=given["x"][:0], w=given["w"]).shape == (0, 4)


def test_gradients_of_a_split_are_joined() -> None:
    t, T = pr.dim("t", min=1)
    h, u, w = cell(t, T)
    outputs = pr.grad(pr.square(h[T]).sum(), [u, w])
    assert "torch.cat" in compiled(outputs, "torch")[1]
    assert "np.concatenate" in compiled(outputs, "numpy")[1]
    for steps in (1, 2, 7):
        same(outputs, cell_inputs(steps))


def test_a_shared_part_of_a_pattern_stays() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (5,), (t,))
    half = pr.tanh(0.5 * x)
    top = x.max(0, keepdims=True)
    weights = pr.exp(x - pr.where(pr.isfinite(top), top, 0.0))
    outputs = [0.5 * half + 0.5, half, weights / weights.sum(0, keepdims=True), weights]
    same(outputs, {"x": np.random.default_rng(0).normal(size=(6, 5)).astype("float32")})


def test_draws_of_many_steps_are_those_of_each() -> None:
    t, T = pr.dim("t", min=1)
    i, I = pr.dim("i", min=1)
    h = pr.recurrent((3,), (i, (t, T + 1)))
    h[i, 0] = pr.normal((3,))
    h[i, t + 1] = 0.5 * h + pr.uniform((3,), dims=(i, t))
    back = pr.recurrent((), (t,))
    back[T - 1] = 0.0
    back[t - 1] = back + pr.normal((), dims=(t,))
    outputs = [h, back, pr.permutation(5, dims=(t,))]
    same(outputs, {}, {I: 3, T: 11}, seed=2**40 + 5)
    assert all("draws(" in compiled(outputs, backend)[1] for backend in BACKENDS)


def test_a_host_function_hears_of_what_it_divides_by_zero() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    program = pr.compile(pr.host(lambda v: v / np.float32(0), [x]), backend="numpy")
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        program(x=[1.0])


def test_slots_of_a_ring_are_slices() -> None:
    for ring in (1, 3, 5):
        for start in range(-7, 12):
            for length in range(1, ring + 1):
                slots = np.arange(ring)
                found = np.concatenate([slots[a:b] for a, b in ring_parts(start, length, ring)])
                assert (found == (start + np.arange(length)) % ring).all()


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_tensors_may_be_called_like_what_the_text_uses(backend: str) -> None:
    """The names of tensors are the names of variables in the text."""
    t, T = pr.dim("t")
    names = (
        "abs",
        "softmax",
        "contracted",
        "np",
        "torch",
        "functional",
        "max",
        "range",
        "draws",
        "len",
        "slice",
        "tuple",
    )
    given = pr.input("given", (3,), (t,))
    state = pr.recurrent((3,), (t,), name="state")
    found = {
        name: getattr(pr, name)(state) if name in ("abs", "softmax") else state * n for n, name in enumerate(names)
    }
    total = sum(found.values(), start=given)
    state[0] = given[0]
    state[t + 1] = 0.1 * pr.softmax(total) + pr.abs(given[t + 1] * state) @ pr.constant(np.eye(3, dtype="float32"))
    outputs = {**{name: value[0:T] for name, value in found.items()}, "noise": pr.normal((3,)) + state[T - 1]}
    data = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    results = pr.compile(outputs, backend=backend)(given=data, seed=3)
    for name, value in pr.evaluate(outputs, {"given": data}, seed=3).items():
        np.testing.assert_allclose(results[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_rows_of_a_place_that_is_as_long_as_the_longest(backend: str) -> None:
    """With bounds fixed at compile a place has a plain shape, and steps store to a part of a row."""
    t, T = pr.dim("t")
    x, z = pr.input("x", (), (t,)), pr.input("z", (), (t,))
    y = (pr.tanh(x[0 : t + 1] * x) * z[0 : t + 1]).sum(0)
    outputs = pr.grad(pr.square(y)[0:T].sum(0), [x, z])
    given = {"x": np.linspace(-1, 1, 4).astype("float32"), "z": np.linspace(0.5, 1, 4).astype("float32")}
    for found, want in zip(
        pr.compile(outputs, bounds={T: 4}, backend=backend)(x=given["x"], z=given["z"]),
        pr.evaluate(outputs, given),
        strict=True,
    ):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
