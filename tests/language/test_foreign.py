"""Functions of JAX and torch inside programs: values, gradients, types, and where they cannot run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import polyrhythm as pr
from polyrhythm.compiler.front_end import completed
from polyrhythm.compiler.ir.text import functions, show
from polyrhythm.compiler.trace import trace
from tests.compiler.ir.parse import ParseError, parse
from tests.compiler.ir.verify import verify

X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
W = np.random.default_rng(1).normal(size=3).astype(np.float32)


def cell(h: jax.Array, x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(h * w + jax.nn.softmax(x))


def loop(w: jax.Array, x: jax.Array) -> jax.Array:
    h = jnp.zeros(3, x.dtype)
    for row in x:
        h = cell(h, row, w)
    return (h**2).sum()


def recurrence(dtype: str = "float32") -> tuple[pr.Tensor, pr.Tensor, pr.Tensor]:
    """The same loop as a recurrence around the opaque cell: the loss and its inputs."""
    t, T = pr.dim("t")
    x, w = pr.input("x", (3,), (t,), dtype), pr.input("w", (3,), (), dtype)
    h = pr.recurrent((3,), ((t, T + 1),), dtype)
    h[0] = 0.0
    h[t + 1] = pr.jax_function(cell, [h, x, w])
    return (h[T] ** 2).sum(), w, x


@pytest.mark.parametrize("backend", ["evaluate", "jax"])
def test_a_cell_of_jax_in_a_recurrence(backend: str) -> None:
    loss, w, x = recurrence()
    outputs = loss, pr.grad(loss, [w, x])
    given: dict[str, Any] = {"x": X, "w": W}
    found = pr.evaluate(outputs, given) if backend == "evaluate" else pr.compile(outputs)(**given)
    value, slopes = jax.value_and_grad(loop, (0, 1))(W, X)
    np.testing.assert_allclose(found[0], value, rtol=1e-5)
    for mine, theirs in zip(found[1], slopes, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_it_is_one_xla_program() -> None:
    loss, _, _ = recurrence()
    program = pr.compile(loss)
    program(x=X, w=W)
    assert len(program.stats.compilations) == 1
    assert "pure_callback" not in next(iter(program.backend.executor.programs.values())).as_text()


def test_second_derivatives_in_float64() -> None:
    w = pr.input("w", (), (), "float64")
    y = pr.jax_function(lambda v: v**3 * jnp.sin(v), [w], name="curve")
    slope = pr.grad(y, w)
    found = pr.compile((y, slope, pr.grad(slope, w)))(w=np.float64(0.7))
    v = 0.7
    expected = [
        v**3 * np.sin(v),
        3 * v**2 * np.sin(v) + v**3 * np.cos(v),
        6 * v * np.sin(v) + 6 * v**2 * np.cos(v) - v**3 * np.sin(v),
    ]
    np.testing.assert_allclose(np.array(found), expected, rtol=1e-12)


@pytest.mark.parametrize("wide", [False, True])
def test_trees_and_integers(wide: bool) -> None:
    """Trees in and out; what JAX counts in 64 bits elsewhere stays as it was declared."""
    t, _ = pr.dim("t")
    x, places = pr.input("x", (3,), (t,)), pr.input("places", (2,), (), "int32")

    def function(tree: dict[str, Any], offset: Any) -> dict[str, Any]:
        return {"picked": tree["x"][tree["at"]], "rest": (tree["x"].sum() + offset, jnp.arange(2))}

    y = pr.jax_function(function, [{"x": x, "at": places}, 1.5])
    assert y["rest"][1].dtype == np.int32
    outputs = y, pr.grad((y["picked"] ** 2).sum() * y["rest"][0], x)
    if wide:
        outputs += (pr.constant(1.0, "float64") * pr.constant([2.0], "float64"),)  # type: ignore[assignment]
    given: dict[str, Any] = {"x": X, "places": np.array([2, 0], np.int32)}
    found = pr.compile(outputs)(**given)
    np.testing.assert_array_equal(found[0]["picked"], X[:, [2, 0]])
    np.testing.assert_allclose(found[0]["rest"][0], X.sum(1) + 1.5, rtol=1e-6)
    np.testing.assert_array_equal(found[0]["rest"][1], [[0, 1]] * 5)
    np.testing.assert_allclose(found[1], pr.evaluate(outputs, given)[1], rtol=1e-5)


def test_a_function_with_several_results_is_traced_once() -> None:
    t, _ = pr.dim("t")
    traced = []

    def several(x: Any) -> tuple[Any, ...]:
        traced.append(x)
        return x + 1, x * 2, x.sum()

    a, b, c = pr.jax_function(several, [pr.input("x", (3,), (t,))])
    program = pr.compile((a, b, c))
    before = len(traced)
    np.testing.assert_allclose(program(x=X)[2], X.sum(1), rtol=1e-6)
    assert len(traced) == before + 1


@pytest.mark.parametrize("backend", ["evaluate", "torch"])
def test_functions_of_torch(backend: str) -> None:
    t, _ = pr.dim("t")
    x, w = pr.input("x", (3,), (t,)), pr.input("w", (3,))

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.nn.functional.softplus(x * w).sum(), x.sort().values

    total, ordered = pr.torch_function(function, [x, w])
    loss = (total * ordered).sum()
    outputs = ordered, pr.grad(loss, [w, x])
    given: dict[str, Any] = {"x": X, "w": W}
    found = pr.evaluate(outputs, given) if backend == "evaluate" else pr.compile(outputs, backend="torch")(**given)
    there = [torch.tensor(W, requires_grad=True), torch.tensor(X, requires_grad=True)]
    sum((function(row, there[0])[0] * function(row, there[0])[1]).sum() for row in there[1]).backward()  # type: ignore[union-attr]
    np.testing.assert_array_equal(found[0], np.sort(X, 1))
    for mine, leaf in zip(found[1], there, strict=True):
        assert leaf.grad is not None
        np.testing.assert_allclose(mine, leaf.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_torch_in_bfloat16() -> None:
    x = pr.input("x", (2,), (), "bfloat16")
    y = pr.torch_function(lambda v: v * 2, [x])
    given = {"x": np.array([1.5, -3.0], np.float32).astype(x.dtype)}
    assert pr.evaluate(y, given).astype(np.float32).tolist() == [3.0, -6.0]


@pytest.mark.parametrize(
    ("library", "backend"), [("jax", "numpy"), ("jax", "torch"), ("torch", "numpy"), ("torch", "jax")]
)
def test_other_backends_refuse(library: str, backend: str) -> None:
    x = pr.input("x", (2,))
    y = pr.jax_function(jnp.sin, [x]) if library == "jax" else pr.torch_function(torch.sin, [x])
    with pytest.raises(
        pr.errors.UnsupportedError, match=f"{library} function sin cannot run on the backend '{backend}'"
    ):
        pr.compile(y, backend=backend)


def test_shapes_must_be_fixed() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    with pytest.raises(pr.errors.ShapeError, match=r"\(T\), which is known only at run time"):
        pr.jax_function(jnp.sort, [x[0:T]])
    program = pr.compile(pr.jax_function(jnp.sort, [x[2 * t : 2 * t + 2]])[0])
    assert program(x=np.array([3, 1, 2], np.float32)).tolist() == [1, 3]


def test_mistakes_show_where_the_function_is_written_down() -> None:
    x = pr.input("x", (2,))
    with pytest.raises(pr.errors.OpaqueError, match=r"dot cannot be called with float32\[2\]"):
        pr.jax_function(jnp.dot, [x])
    with pytest.raises(pr.errors.OpaqueError, match="float8"):
        pr.jax_function(lambda x: x.astype(jnp.float8_e4m3fn), [x])
    with pytest.raises(pr.errors.OpaqueError, match="float8"):
        pr.torch_function(lambda x: x.to(torch.float8_e4m3fn), [x])


def test_the_graph_prints_and_parses() -> None:
    loss, w, _ = recurrence()
    graph = completed(trace([loss, pr.grad(loss, w)]))
    verify(graph)
    text = show(graph)
    assert 'opaque @cell: (f32[3], f32[3], f32[3]) to (f32[3]) by "jax"' in text
    again = parse(text, functions(graph))
    assert show(again) == text
    with pytest.raises(ParseError, match="is not what is declared"):
        parse(text.replace('by "jax"', 'by "torch"', 1), functions(graph))
