"""Parts of contractions: each rule fires, leaves the results alone, and makes attention's gradients contractions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.loops.ir import For, walk


def attention(width: int = 4) -> tuple[pr.Tensor, dict[str, Any]]:
    """The gradient by the keys and values of causal attention, and inputs for it."""
    t, T = pr.dim("t")
    q, k, v = (pr.input(name, (width,), (t,)) for name in "qkv")
    weights = pr.softmax(pr.einsum("d,sd->s", q * 1.0, (k * 2.0)[0 : t + 1]))
    mixed = pr.einsum("s,sd->d", weights, (v * 3.0)[0 : t + 1])
    loss = (mixed * mixed)[0:T].sum()
    rng = np.random.default_rng(0)
    return pr.grad(loss, [k, v]), {name: rng.normal(size=(5, width)).astype("float32") for name in "qkv"}


def fired(program: pr.Program) -> set[str]:
    return {note.rule for note in program.compiled.notes}


def test_slice_of_contraction_and_reshape_of_contraction() -> None:
    outputs, given = attention()
    expected = pr.evaluate(outputs, given)
    for backend in ("numpy", "jax"):
        program = pr.compile(outputs, backend=backend)
        assert {"slice-of-contraction", "reshape-of-contraction", "sum-of-products"} <= fired(program)
        for have, want in zip(program(**given), expected, strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


def test_no_step_keeps_the_products_with_all_others() -> None:
    program = pr.compile(attention()[0], backend="numpy")
    for node in program.compiled.graph:
        for definition in node.definitions:
            if definition.op == "einsum":
                words, output = parse_spec(definition.attributes["spec"])
                # Some label is summed: no outer product is left.
                assert set("".join(words)) > set(output), node.name


def test_a_part_that_others_read_stays() -> None:
    """A row of a product that is read as a whole too is not multiplied again."""
    t, _ = pr.dim("t")
    x, y = pr.input("x", (3,), (t,)), pr.input("y", (4,), (t,))
    whole = pr.einsum("i,j->ij", x, y)
    column = whole.axes[:, 1]
    program = pr.compile({"column": column, "sum": whole.sum()}, backend="numpy")
    assert "slice-of-contraction" not in fired(program)
    given = {"x": np.arange(6, dtype="float32").reshape(2, 3), "y": np.ones((2, 4), "float32")}
    np.testing.assert_array_equal(program(**dict[str, Any](given))["column"], given["x"])


def test_buffers_of_one_iteration_are_private_to_it() -> None:
    b, _ = pr.dim("b")
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (b, t))
    doubled = x * 2.0
    wide = doubled[{t: slice(0, t + 1)}].sum(0)
    mean = pr.tanh(wide[{t: slice(0, T)}].mean(0))
    program = pr.compile(mean, without=["ranges"])  # which would leave no buffer
    loops = [item for item in walk(program.compiled.loops.body) if isinstance(item, For) and item.parallel]
    buffers = {name for name, place in program.compiled.loops.places.items() if place.kind == "buffer"}
    private = set().union(*(loop.private for loop in loops if loop.counter.name == "b"))
    assert private
    assert private <= buffers
    given = np.random.default_rng(0).normal(size=(4, 5, 3)).astype("float32")
    expected = np.tanh(np.cumsum(2 * given, 1).mean(1))
    np.testing.assert_allclose(program(x=given), expected, rtol=1e-5)


def test_what_a_later_iteration_reads_is_not_private() -> None:
    i, I = pr.dim("i")
    b, B = pr.dim("b")
    t, T = pr.dim("t")
    x = pr.input("x", (), (b, t))
    state = pr.recurrent((), ((i, I + 1), b, t))
    state[0] = x
    state[i + 1] = state + state[{b: slice(0, B), t: slice(0, T)}].sum()
    program = pr.compile(state[I])
    for item in walk(program.compiled.loops.body):
        if isinstance(item, For):
            assert "state" not in item.private
    given = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    expected = given
    for _ in range(3):
        expected = expected + expected.sum()
    np.testing.assert_allclose(program(x=given, bounds={I: 3}), expected, rtol=1e-5)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_the_gradient_of_an_embedding_is_one_scatter(backend: str) -> None:
    """No step keeps a table of its own."""
    t, T = pr.dim("t")
    b, B = pr.dim("b")
    table = pr.input("table", (5, 3))
    letters = pr.input("letters", (2,), (b, t), "int32")
    taken = pr.tanh(pr.take(table, letters, 0))
    outputs = pr.grad((taken * taken)[0:B, 0:T].sum(), table)
    program = pr.compile(outputs, backend=backend)
    assert {note.what for note in program.compiled.notes} & {"a sum over b, t is one scatter"}
    kept = [place for place in program.backend.program.places.values() if place.kind == "buffer"]
    assert all(len(place.whole) <= 4 for place in kept)
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {"table": rng.normal(size=(5, 3)).astype("float32")}
    given["letters"] = rng.integers(-1, 7, (2, 6, 2)).astype("int32")
    np.testing.assert_allclose(program(**given), pr.evaluate(outputs, given), rtol=1e-5)
