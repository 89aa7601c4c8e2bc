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


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_sliding_window_keeps_no_products_either(backend: str) -> None:
    """The gradient by what a window of 70 steps attends to: nothing that is kept has windows of whole keys."""
    context, width, steps = 70, 5, 90
    t, T = pr.dim("t")
    keys, query = pr.input("keys", (2, width), ((t, T + context - 1),)), pr.input("query", (2, width), (t,))
    window = (keys * 2.0)[{t: slice(t, t + context)}]
    weights = pr.softmax(pr.einsum("nd,cnd->nc", query, window), -1)
    mixed = pr.einsum("nc,cnd->nd", weights, window)
    outputs = pr.grad((mixed * mixed).sum()[0:T].sum(), [keys, query])
    program = pr.compile(outputs, backend=backend)
    assert {"slice-of-contraction", "reshape-of-contraction"} <= fired(program)
    kept = [place for place in program.compiled.loops.places.values() if place.kind == "buffer"]
    bounds = {T: steps}
    assert all(program.memory.bytes_of(place, bounds) < steps * context * 2 * width * 4 / 2 for place in kept)
    rng = np.random.default_rng(0)
    sizes = {"keys": (steps + context - 1, 2, width), "query": (steps, 2, width)}
    given = {name: rng.normal(scale=0.3, size=size) for name, size in sizes.items()}
    whole = 2.0 * np.stack([given["keys"][at : at + context] for at in range(steps)])
    scores = np.einsum("tnd,tcnd->tnc", given["query"], whole)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    d_mixed = 2.0 * np.einsum("tnc,tcnd->tnd", p, whole)
    d_p = np.einsum("tnd,tcnd->tnc", d_mixed, whole)
    d_scores = p * (d_p - (p * d_p).sum(-1, keepdims=True))
    d_query = np.einsum("tnc,tcnd->tnd", d_scores, whole)
    d_keys = np.zeros_like(given["keys"])
    for at in range(steps):
        rows = np.einsum("nc,nd->cnd", p[at], d_mixed[at]) + np.einsum("nc,nd->cnd", d_scores[at], given["query"][at])
        d_keys[at : at + context] += 2.0 * rows
    found = program(**dict[str, Any]({name: array.astype("float32") for name, array in given.items()}))
    for have, want in zip(found, (d_keys, d_query), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-3, atol=1e-4)


def test_what_all_steps_share_is_not_cut_for_each() -> None:
    """The gradient by what a convolution of a window reads: a part of the kernel would be copied at every step."""
    t, T = pr.dim("t")
    x, kernel = pr.input("x", (3,), ((t, T + 69),)), pr.input("kernel", (70, 3, 2))
    made = pr.einsum("kc,kcd->d", (x * 1.0)[{t: slice(t, t + 70)}], kernel)
    program = pr.compile(pr.grad(pr.square(made).sum()[0:T].sum(), x), backend="numpy")
    assert "slice-of-contraction" not in fired(program)


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
    with pr.settings(without=["ranges"]):  # which would leave no buffer
        program = pr.compile(mean)
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


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_long_convolution_reads_ranges(backend: str) -> None:
    """The past, turned round and weighted: its gradients sum products of two ranges, of which none is stored."""
    t, T = pr.dim("t")
    x, kernel = pr.input("x", (3,), (t,)), pr.input("kernel", (3,), (t,))
    y = (x[0 : t + 1] * pr.flip(kernel[0 : t + 1], 0)).sum(0)
    outputs = pr.grad(pr.square(y)[0:T].sum(), [x, kernel])
    program = pr.compile(outputs, backend=backend)
    assert {"slice-of-range", "reshape-of-range", "sum-of-products"} <= fired(program)
    assert program.memory.kept({T: 2000}) <= 2.1 * program.memory.kept({T: 1000})
    given: Any = {
        name: np.random.default_rng(n).normal(size=(9, 3)).astype("float32") for n, name in enumerate(["x", "kernel"])
    }
    for have, want in zip(program(**given), pr.evaluate(outputs, given), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


def test_a_turned_range_that_is_differentiated_by_stays() -> None:
    t, T = pr.dim("t")
    x, kernel = pr.input("x", (2,), (t,)), pr.input("kernel", (2,), (t,))
    turned = pr.flip(kernel[0 : t + 1], 0)
    slope = pr.grad(pr.square((x[0 : t + 1] * turned).sum(0))[0:T].sum(), turned)
    given: Any = {name: np.arange(8, dtype="float32").reshape(4, 2) + n for n, name in enumerate(["x", "kernel"])}
    want, have = pr.evaluate(slope, given), pr.compile(slope, backend="numpy")(**given)
    np.testing.assert_allclose(have.values, want.values, rtol=1e-5)
