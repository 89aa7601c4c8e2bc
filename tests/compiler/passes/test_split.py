"""Recurrences cut where their definitions change: what is given is computed all at once, and nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.front_end import completed
from polyrhythm.compiler.ir.graph import Graph
from polyrhythm.compiler.passes import optimised
from polyrhythm.compiler.schedule.scheduler import Item, Loop
from polyrhythm.compiler.trace import trace
from tests.compiler.ir.verify import verify

WORDS, WIDTH, LAYERS = 7, 4, 3


def decoder(window: int | None = None, batch: bool = False) -> tuple[pr.Tensor, pr.Tensor, dict[str, Any]]:
    """Greedy decoding after a prompt by layers of attention; the tokens, the scores, and the symbols."""
    t, T = pr.dim("t")
    layer, L = pr.dim("layer")
    b, _ = pr.dim("b")
    P = pr.size("P", max=T)
    own = (b,) if batch else ()
    prompt = pr.input("prompt", (), (*own, t) if batch else (t,), "int32")
    lengths = pr.input("lengths", (), own, "int32")
    table = pr.input("table", (WORDS, WIDTH))
    wk, wv = (pr.input(name, (WIDTH, WIDTH), (layer,)) for name in ("wk", "wv"))
    token = pr.recurrent((), (*own, t), "int32", name="token")
    state = pr.recurrent((WIDTH,), (*own, t, (layer, L + 1)), name="state")
    state[(*own, t, 0)] = pr.take(table, token, 0)
    keys, values = state @ wk, state @ wv
    seen = slice(0 if window is None else pr.max(0, t - window + 1), t + 1)
    mixed = pr.softmax(keys[(*own, seen, layer)] @ state, 0) @ values[(*own, seen, layer)]
    state[(*own, t, layer + 1)] = pr.tanh(state + mixed)
    scores = state[(*own, t, L)] @ table.transpose()
    best = scores[(*own, t - 1)].argmax().cast("int32")
    token[t < P] = prompt
    token[t >= P] = pr.where(pr.value(t) < lengths, prompt, best) if batch else best
    return token, scores, {"t": t, "T": T, "P": P, "L": L, "layer": layer}


def given(rng: np.random.Generator, steps: int, rows: int | None = None) -> dict[str, Any]:
    shape = (steps,) if rows is None else (rows, steps)
    arrays = {
        "prompt": rng.integers(0, WORDS, shape).astype("int32"),
        "table": rng.normal(size=(WORDS, WIDTH)).astype("float32"),
        "wk": rng.normal(size=(LAYERS, WIDTH, WIDTH)).astype("float32"),
        "wv": rng.normal(size=(LAYERS, WIDTH, WIDTH)).astype("float32"),
    }
    if rows is not None:
        arrays["lengths"] = rng.integers(1, steps + 1, rows).astype("int32")
    return arrays


def graph_of(*outputs: pr.Tensor) -> Graph:
    """The optimised graph; the grammar holds after every pass."""
    graph, _ = optimised(completed(trace(outputs)), inspect=lambda _, after: verify(after))
    return graph


def nest(items: tuple[Item, ...], name: str) -> list[tuple[str, bool]]:
    """The dims of the loops around a block, outermost first, and which of them are parallel."""
    for item in items:
        if item == name:
            return []
        if isinstance(item, Loop) and name in item.members:
            dim = item.members[name].dim
            return [(str(dim), item.parallel), *nest(item.body, name)]
    raise AssertionError(f"no block {name}")


@pytest.mark.parametrize("window", [None, 3])
def test_a_prompt_is_computed_layer_by_layer_all_steps_at_once(window: int | None) -> None:
    token, _, _ = decoder(window)
    program = pr.compile({"token": token}, backend="numpy")
    assert nest(program.compiled.schedule, "state_before.1") == [("layer", False), ("t", True)]
    assert nest(program.compiled.schedule, "state.1") == [("t", False), ("layer", False)]


def test_storage_of_a_prompt_and_of_what_follows() -> None:
    """Keys of a window are kept in a ring after the prompt, and for one layer at a time within it."""
    token, _, _ = decoder(window=3)
    storage = pr.compile({"token": token}, backend="numpy").compiled.storage
    plain = {
        name: [str(slot) for slot in kept.slots]
        for name, kept in storage.items()
        if name.startswith(("keys", "values"))
    }
    assert ["all P of t", "1 of layer"] in plain.values()
    assert ["3 of t", "all LAYER of layer"] in plain.values()
    assert not any("all T of t" in slots for slots in plain.values())


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("far", [False, True])
def test_what_both_parts_read_at_their_own_steps_is_cut_too(backend: str, far: bool) -> None:
    """A table of positions is kept for the prompt alone, unless later steps read of it what the prompt reads."""
    t, T = pr.dim("t")
    layer, L = pr.dim("layer")
    P = pr.size("P", max=T)
    prompt, w = pr.input("prompt", (), (t,)), pr.input("w", (), (layer,))
    turn = pr.cos(pr.value(t).cast("float32") * 0.3)
    token, h = pr.recurrent((), (t,), name="token"), pr.recurrent((), ((layer, L + 1), t), name="h")
    h[0] = token
    keys = h * w * turn
    seen = keys[layer, pr.max(0, t - 2) : t + 1].sum(0) * turn
    h[layer + 1] = pr.tanh(seen + (pr.tanh(turn[0 : t + 1] * turn).sum(0) if far else 0.0))
    token[t < P] = prompt
    token[t >= P] = h[L, t - 1] + 0.5
    program = pr.compile(token, backend=backend)
    kept = {name: [str(slot) for slot in one.slots] for name, one in program.compiled.storage.items()}
    whole = {name.rstrip("_0123456789") for name, slots in kept.items() if "all T of t" in slots}
    assert whole == {"token", *(["turn", "h_reduce"] if far else [])}
    rng = np.random.default_rng(2)
    for steps, length in [(1, 1), (9, 1), (9, 4), (8, 8)]:
        arrays: Any = {name: rng.normal(size=n).astype("float32") for name, n in (("prompt", steps), ("w", LAYERS))}
        expected = pr.evaluate(token, arrays, bounds={P: length})
        np.testing.assert_allclose(program(bounds={P: length}, **arrays), expected, rtol=1e-5, atol=1e-6)


def test_scores_before_the_end_of_the_prompt_are_not_computed() -> None:
    token, scores, _ = decoder()
    for outputs, expected in (((token,), "P < T and t == P - 1"), ((token, scores), "true")):
        graph = graph_of(*outputs)
        (readers,) = [n for n in graph if n.name.endswith("before") and n.shape and str(n.shape[0]) == str(WORDS)]
        assert str(readers.domain) == expected


@pytest.mark.parametrize(
    ("window", "backend"),
    [(None, "numpy"), (3, "numpy"), *(pytest.param(n, "jax", marks=pytest.mark.slow) for n in (None, 3))],
)
def test_tokens_and_scores_are_those_of_the_oracle(backend: str, window: int | None) -> None:
    token, scores, symbols = decoder(window)
    outputs = {"token": token, "scores": scores}
    program = pr.compile(outputs, backend=backend)
    rng = np.random.default_rng(3)
    for steps, prompt in [(1, 1), (2, 1), (9, 4), (8, 8), (11, 10)]:
        arrays = given(rng, steps)
        expected = pr.evaluate(outputs, arrays, bounds={symbols["P"]: prompt})
        found = program(bounds={symbols["P"]: prompt}, **arrays)
        np.testing.assert_array_equal(found["token"], expected["token"])
        np.testing.assert_allclose(found["scores"], expected["scores"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_prompts_of_different_lengths_are_cut_at_the_shortest(backend: str) -> None:
    token, _, symbols = decoder(batch=True)
    program = pr.compile({"token": token}, backend=backend)
    assert ("t", True) in nest(program.compiled.schedule, "state_before.1")
    rng = np.random.default_rng(4)
    for steps, rows in [(7, 3), (5, 1)]:
        arrays = given(rng, steps, rows)
        shortest = int(arrays["lengths"].min())
        expected = pr.evaluate({"token": token}, arrays, bounds={symbols["P"]: shortest})
        found = program(bounds={symbols["P"]: shortest}, **arrays)
        np.testing.assert_array_equal(found["token"], expected["token"])


def test_what_is_given_last_is_computed_first() -> None:
    """A backward recurrence: the steps from P on are given."""
    t, T = pr.dim("t")
    P = pr.size("P", max=T)
    x = pr.input("x", (), (t,))
    y = pr.recurrent((), ((t, T + 1),), name="y")
    mean = pr.tanh(y[t : T + 1] * y).mean(0)
    y[t < P] = mean[t + 1]
    y[(t >= P) & (t < T)] = x
    y[T] = 1.0
    program = pr.compile({"y": y, "mean": mean}, backend="numpy")
    assert any(node.name == "y_after" for node in program.compiled.graph)
    arrays = {"x": np.random.default_rng(5).normal(size=13).astype("float32")}
    for size in (0, 4, 13):
        expected = pr.evaluate({"y": y, "mean": mean}, arrays, bounds={P: size})
        found = program(bounds={P: size}, **dict[str, Any](arrays))
        np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5)
        np.testing.assert_allclose(found["mean"], expected["mean"], rtol=1e-5)


def test_nothing_is_cut_where_the_part_is_as_serial_as_the_whole() -> None:
    """A recurrent state goes through the prompt step by step in any case."""
    t, T = pr.dim("t")
    P = pr.size("P", max=T)
    prompt = pr.input("prompt", (), (t,))
    x = pr.recurrent((), (t,))
    h = pr.recurrent((), ((t, T + 1),))
    x[t < P] = prompt
    x[t >= P] = h
    h[0] = 0.0
    h[t + 1] = pr.tanh(h + x)
    assert not any("before" in node.name or "after" in node.name for node in graph_of(h))


def test_nothing_is_cut_where_the_part_needs_the_rest() -> None:
    """The first steps are not serial by themselves, but need what the last ones lead to."""
    t, T = pr.dim("t")
    P = pr.size("P", max=T)
    x = pr.input("x", (), (t,))
    y = pr.recurrent((), ((t, T + 1),))
    first = pr.tanh(y[T] * x)
    y[t < P] = first
    y[(t >= P) & (t < T)] = y[t + 1] * x
    y[T] = 1.0
    outputs = (y, first[0:P].sum(0))
    assert not any("before" in node.name or "after" in node.name for node in graph_of(*outputs))


def test_a_prompt_that_may_end_the_text() -> None:
    """A stopping condition may hold at the last step of the prompt, but not before: P is at most the length found."""
    t, T = pr.dim("t")
    P = pr.size("P", max=T)
    prompt = pr.input("prompt", (), (t,), "int32")
    token = pr.recurrent((), (t,), "int32")
    total = token[0 : t + 1].sum(0)
    token[t < P] = prompt
    token[t >= P] = (total[t - 1] * 5 + 3) % 11
    outputs = {"token": token, "last": token[T - 1]}
    until = {t: token == 7}
    program = pr.compile(outputs, until=until, backend="numpy")
    for arrays in ([1, 7, 2, 3, 4, 5, 6, 1], [1, 2, 3, 4, 5, 6, 1, 2]):
        given_tokens = {"prompt": np.array(arrays, "int32")}
        for size in (1, 2, 3, 8):
            if 7 in arrays[: size - 1]:
                with pytest.raises(pr.errors.BoundsError):
                    pr.evaluate(outputs, given_tokens, bounds={P: size}, until=until)
                with pytest.raises(pr.errors.BoundsError):
                    program(bounds={P: size}, **dict[str, Any](given_tokens))
                continue
            expected = pr.evaluate(outputs, given_tokens, bounds={P: size}, until=until)
            found = program(bounds={P: size}, **dict[str, Any](given_tokens))
            for name in outputs:
                np.testing.assert_array_equal(found[name], expected[name])


def test_a_window_of_two_that_may_end_early() -> None:
    """One step of the prompt is read afterwards: its copy lags behind the loop, which may have ended before."""
    token, _, symbols = decoder(window=2)
    until = {symbols["t"]: token == 3}
    program = pr.compile({"token": token}, until=until, backend="numpy")
    rng = np.random.default_rng(6)
    for steps, size in [(1, 1), (2, 1), (2, 2), (6, 3), (9, 1)]:
        arrays = given(rng, steps)
        expected = pr.evaluate({"token": token}, arrays, bounds={symbols["P"]: size}, until=until)
        found = program(bounds={symbols["P"]: size}, **arrays)
        np.testing.assert_array_equal(found["token"], expected["token"])


def test_a_prompt_of_one_layer_is_computed_all_at_once() -> None:
    """No recurrence goes through the prompt then, but what reads all of it is not left to the steps that follow."""
    t, T = pr.dim("t")
    P = pr.size("P", max=T)
    prompt = pr.input("prompt", (), (t,), "int32")
    table = pr.input("table", (WORDS, WIDTH))
    token = pr.recurrent((), (t,), "int32", name="token")
    state = pr.take(table, token, 0)
    mixed = pr.softmax(state[0 : t + 1] @ state, 0) @ state[0 : t + 1]
    token[t < P] = prompt
    token[t >= P] = (mixed @ table.transpose())[t - 1].argmax().cast("int32")
    outputs = {"token": token, "mixed": mixed[0:T].sum()}
    program = pr.compile(outputs, until={t: token == 3}, backend="numpy")
    mixing = next(name for name in program.compiled.blocks if name.startswith("mixed") and name.endswith("_before"))
    assert nest(program.compiled.schedule, mixing) == [("t", True)]
    arrays = given(np.random.default_rng(7), 8)
    some = {name: arrays[name] for name in ("prompt", "table")}
    expected = pr.evaluate(outputs, some, bounds={P: 4}, until={t: token == 3})
    found = program(bounds={P: 4}, **some)
    np.testing.assert_array_equal(found["token"], expected["token"])


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_the_recurrence_of_a_gradient_is_cut(backend: str) -> None:
    """None of its nodes was declared by the user; `explain` names a line all the same."""
    t, _ = pr.dim("t")
    i, I = pr.dim("i")
    x = pr.input("x", (), (t,))
    y = pr.recurrent((), (i, t))
    y[i == t] = pr.where(t >= 1, y[i, t // 2], 1.0) * x
    y[pr.otherwise] = pr.where(i >= 1, y[i - 1, t], 1.0)
    (slope,) = pr.grad((y * y).sum(), [x])
    program = pr.compile({"slope": slope, "y": y}, backend=backend)
    (cut,) = [note for note in program.compiled.notes if note.by == "split"]
    assert cut.at is not None
    assert cut.at.file == __file__
    values = np.random.default_rng(8).normal(size=5).astype("float32")
    expected = pr.evaluate({"slope": slope, "y": y}, {"x": values}, bounds={I: 4})
    found = program(x=values, bounds={I: 4})
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)
