"""Rows of different lengths, compiled: every backend equals plain Python loops, or the oracle, also in gradients.

What lies beyond the rows of an input is NaN everywhere here: nothing may come of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import errors

BACKENDS = ["numpy", "torch", "jax"]
LENGTHS = [[3, 1, 0, 5], [1], [0, 0], [], [4, 4, 4]]

b, B = pr.dim("b")
t, T = pr.dim("t")
lengths = pr.input("lengths", (), (b,), "int32")
s, S = pr.dim("s", extent=lengths)
x = pr.input("x", (2,), (b, s))
w = pr.input("w", (2, 2))


def given(sizes: list[int], width: int | None = None) -> dict[str, Any]:
    """Rows of random numbers in an array of NaN, wider than need be."""
    random = np.random.default_rng(3)
    values = np.full((len(sizes), width or max(sizes, default=0) + 2, 2), np.nan, "float32")
    for row, size in zip(values, sizes, strict=True):
        row[:size] = random.normal(size=(size, 2))
    return {"lengths": np.array(sizes, "int32"), "x": values, "w": random.normal(size=(2, 2)).astype("float32")}


def rows_of(inputs: dict[str, Any]) -> list[np.ndarray]:
    return [row[:n].astype("float64") for row, n in zip(inputs["x"], inputs["lengths"], strict=True)]


def same(have: Any, want: Any, name: str) -> None:
    if isinstance(want, pr.Ragged):
        assert isinstance(have, pr.Ragged), name
        np.testing.assert_array_equal(have.lengths, want.lengths, name)
        have, want = have.values, want.values
    assert np.shape(have) == np.shape(want), name
    np.testing.assert_allclose(have, want, 2e-4, 2e-5, err_msg=name)


def recurrence() -> pr.Recurrent:
    h = pr.recurrent((2,), (b, s))
    h[b, 0] = pr.tanh(x[b, 0])
    h[b, s + 1] = pr.tanh(h @ w + x[b, s + 1])
    return h


def attended() -> pr.Tensor:
    return pr.softmax(x[b, 0:S] @ x, 0) @ x[b, 0:S]


def loss_of(y: pr.Tensor) -> pr.Tensor:
    return y[b, 0:S].sum(0).sum(0)[0:B].sum(0)


def programs() -> dict[str, pr.Tensor]:
    row, h = x[b, 0:S], recurrence()
    reverse = pr.recurrent((2,), (b, s))
    reverse[s == S - 1] = x
    reverse[s < S - 1] = 0.5 * reverse[b, s + 1] + x
    return {
        "twice": x * 2,
        "row": row * 1.0,
        "sum": row.sum(0),
        "mean": row.sum(0) / pr.maximum(1, pr.value(S)),
        "most": row.max(0),
        "state": h,
        "last": pr.where(S >= 1, h[b, pr.max(0, S - 1)], 0.0),
        "total": h[b, 0:S].sum(0)[0:B].sum(0),
        "backwards": reverse,
        "turned": x[b, S - 1 - s],
        "rest": x[b, s:S].sum(0),
        "few": x[b, pr.max(0, S - 2) : S].sum(0),
        "attended": attended(),
        "flipped": pr.flip(row, 0),
        "running": pr.cumsum(row, 0),
        "sorted": pr.sort(row, 0),
        "joined": pr.concat([row, row], 0),
        "shifted": pr.concat([pr.zeros((1, 2)), row], 0),
        "long": pr.where(S >= 3, x[b, pr.min(S - 1, 2)], -1.0),
        "by state": pr.grad(loss_of(h), x),
        "by weights": pr.grad(loss_of(h), w),
        "by attended": pr.grad(loss_of(attended() * pr.sin(x)), x),
    }


def in_loops(inputs: dict[str, Any]) -> dict[str, Any]:
    """The same by plain loops over each row alone."""
    rows = rows_of(inputs)
    sizes, weights = inputs["lengths"].astype(int), inputs["w"].astype("float64")
    none = np.zeros((0, 2))

    def states(row: np.ndarray) -> np.ndarray:
        found: list[np.ndarray] = []
        for item in row:
            found.append(np.tanh(item + (found[-1] @ weights if found else 0)))
        return np.array(found).reshape(-1, 2)

    def back(row: np.ndarray) -> np.ndarray:
        found: list[np.ndarray] = []
        for item in row[::-1]:
            found.append(item + (0.5 * found[-1] if found else 0))
        return np.array(found[::-1]).reshape(-1, 2)

    def attention(row: np.ndarray) -> np.ndarray:
        scores = np.exp(row @ row.T)
        return scores / scores.sum(1, keepdims=True) @ row

    def ragged(each: Any) -> pr.Ragged:
        made = [np.asarray(each(row)).reshape(-1, 2) for row in rows]
        return pr.Ragged.of(made) if made else pr.Ragged(np.zeros((0, 0, 2)), np.zeros(0, "int64"))

    def dense(each: Any) -> np.ndarray:
        return np.array([each(row) for row in rows]).reshape(-1, 2)

    return {
        "twice": ragged(lambda r: 2 * r),
        "row": ragged(lambda r: r),
        "sum": dense(lambda r: r.sum(0)),
        "mean": dense(lambda r: r.sum(0) / max(1, len(r))),
        "most": dense(lambda r: r.max(0, initial=-np.inf)),
        "state": ragged(states),
        "last": dense(lambda r: states(r)[-1] if len(r) else np.zeros(2)),
        "total": np.concatenate([none, *map(states, rows)]).sum(0),
        "backwards": ragged(back),
        "turned": ragged(lambda r: r[::-1]),
        "rest": ragged(lambda r: np.cumsum(r[::-1], 0)[::-1]),
        "few": dense(lambda r: r[-2:].sum(0)),
        "attended": ragged(attention),
        "flipped": ragged(lambda r: r[::-1]),
        "running": ragged(lambda r: np.cumsum(r, 0)),
        "sorted": ragged(lambda r: np.sort(r, 0)),
        "joined": ragged(lambda r: np.concatenate([r, r])),
        "shifted": ragged(lambda r: np.concatenate([np.zeros((1, 2)), r])),
        "long": dense(lambda r: r[2] if len(r) >= 3 else [-1.0, -1.0]),
    } | ({} if not sizes.size else _slopes(rows, weights, states, attention))


def _slopes(rows: list[np.ndarray], weights: np.ndarray, states: Any, attention: Any) -> dict[str, Any]:
    """Gradients by central differences."""

    def slope(value: Any, at: np.ndarray) -> np.ndarray:
        found = np.zeros_like(at)
        for place in np.ndindex(at.shape):
            kept, ends = at[place], []
            for step in (1e-5, -1e-5):
                at[place] = kept + step
                ends.append(value())
            at[place] = kept
            found[place] = (ends[0] - ends[1]) / 2e-5
        return found

    return {
        "by state": pr.Ragged.of([slope(lambda r=r: states(r).sum(), r) for r in rows]),
        "by weights": slope(lambda: sum(states(r).sum() for r in rows), weights),
        "by attended": pr.Ragged.of([slope(lambda r=r: (attention(r) * np.sin(r)).sum(), r) for r in rows]),
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_by_loops(backend: str) -> None:
    program = pr.compile(programs(), backend=backend)
    for sizes in LENGTHS if backend != "jax" else LENGTHS[:1]:
        inputs = given(sizes)
        have = program(**inputs)
        for name, want in in_loops(inputs).items():
            same(have[name], want, f"{name} of {sizes}")


@pytest.mark.slow
def test_rows_by_loops_on_jax() -> None:
    program = pr.compile(programs())
    for sizes in LENGTHS:
        inputs = given(sizes)
        have = program(**inputs)
        for name, want in in_loops(inputs).items():
            same(have[name], want, f"{name} of {sizes}")


def test_the_oracle_by_loops() -> None:
    for sizes in ([3, 1, 0, 5], [1], []):
        inputs = given(sizes)
        have = pr.evaluate(programs(), inputs)
        for name, want in in_loops(inputs).items():
            same(have[name], want, f"{name} of {sizes}")


def rows_that_end() -> tuple[dict[str, pr.Tensor], dict[pr.Dim, pr.Tensor]]:
    start = pr.input("start", (), (b,), "int32")
    a = pr.input("a", ())
    n = pr.recurrent((), (b, t), "int32")
    n[b, 0] = start
    n[b, t + 1] = n - 1
    y = pr.recurrent((), (b, t))
    y[b, 0] = a * pr.cast(start, "float32")
    y[b, t + 1] = pr.tanh(y * a)
    wide = pr.cast(n, "float64")[b, 0:T]
    outputs = {
        "n": n,
        "last": n[b, T - 1],
        "another": n[b, T - 1][B - 1 - b],
        "sum": n[b, 0:T].sum(0),
        "mean": wide.mean(0),
        "variance": pr.var(wide, 0),
        "longest": pr.value(T),
        "own": 0 * n[b, 0] + pr.value(T),
        "steps": 10 * pr.value(t),
        "end": (10 * pr.value(t))[T - 1],
        "third": pr.where(T >= 3, n[b, T - 3], -1),
        "weighted": (n * pr.where(T - t > 2, 10, 1))[b, 0:T].sum(0),
        "past": n[b, 0 : t + 1].sum(0),
        "future": n[b, t:T].sum(0),
        "by all": pr.grad(y[b, 0:T].sum(0)[0:B].sum(0), a),
        "by last": pr.grad(y[b, T - 1][0:B].sum(0), a),
    }
    return outputs, {t: n <= 0}


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_that_end_at_steps_of_their_own(backend: str) -> None:
    outputs, until = rows_that_end()
    program = pr.compile(outputs, until=until, backend=backend)
    for start in ([3, 1, 9], [0, 0], [20, 2], []) if backend != "jax" else ([3, 1, 9], [0, 0, 2]):
        inputs: dict[str, Any] = {"start": np.array(start, "int32"), "a": np.float32(0.7)}
        want = pr.evaluate(outputs, inputs, {T: 5}, until)
        have = program(**inputs, bounds={T: 5})
        for name in outputs:
            same(have[name], want[name], f"{name} of {start}")
    rows = [[3, 2, 1, 0], [1, 0], [9, 8, 7, 6, 5]]
    have = program(start=np.array([3, 1, 9], "int32"), a=np.float32(0.7), bounds={T: 5})
    assert have["n"].lengths.tolist() == [4, 2, 5]
    np.testing.assert_allclose(have["mean"], [np.mean(row) for row in rows])
    np.testing.assert_allclose(have["variance"], [np.var(row) for row in rows])
    assert have["future"].values.tolist() == [[6, 3, 1, 0, 0], [1, 0, 0, 0, 0], [35, 26, 18, 11, 5]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_shapes_that_differ_from_step_to_step(backend: str) -> None:
    v = pr.input("v", (), (t,))
    outputs = {"past": v[0 : t + 1] * 2, "future": v[t:T] * 2, "window": pr.window(v, t, 3) + 1}
    program = pr.compile(outputs, backend=backend)
    for size in (0, 1, 5):
        inputs: dict[str, Any] = {"v": np.arange(size, dtype="float32")}
        want = pr.evaluate(outputs, inputs)
        have = program(**inputs)
        for name in outputs:
            same(have[name], want[name], name)
    past = program(v=np.arange(3, dtype="float32"))["past"]
    assert past.values.tolist() == [[0, 0, 0], [0, 2, 0], [0, 2, 4]]
    assert past.lengths.tolist() == [1, 2, 3]


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_on_rows(backend: str) -> None:
    """Weights that all rows share, updated in every iteration, with a batch of other lengths in each."""
    i, I = pr.dim("i")
    counts = pr.input("counts", (), (i, b), "int32")
    k, K = pr.dim("k", extent=counts)
    u = pr.input("u", (2,), (i, b, k))
    goal, first = pr.input("goal", (), (i, b)), pr.input("first", (2,))
    weights = pr.recurrent((2,), ((i, I + 1),))
    h = pr.recurrent((2,), (i, b, k))
    h[i, b, 0] = pr.tanh(u[i, b, 0] * weights)
    h[i, b, k + 1] = pr.tanh(h * weights + u[i, b, k + 1])
    loss = ((h[i, b, 0:K].sum(0).sum(0) / pr.maximum(1, pr.value(K)) - goal) ** 2)[{b: slice(0, B)}].mean(0)
    weights[0] = first
    weights[i + 1] = weights - 0.1 * pr.grad(loss, weights)
    random = np.random.default_rng(0)
    inputs: dict[str, Any] = {
        "counts": np.array([[3, 1, 4], [0, 2, 5]], "int32"),
        "u": random.normal(size=(2, 3, 6, 2)).astype("float32"),
        "goal": random.normal(size=(2, 3)).astype("float32"),
        "first": np.ones(2, "float32"),
    }
    want = pr.evaluate({"weights": weights, "loss": loss}, inputs)
    have = pr.compile({"weights": weights, "loss": loss}, backend=backend)(**inputs)
    same(have["weights"], want["weights"], "weights")
    same(have["loss"], want["loss"], "loss")


def test_the_gradient_of_what_all_rows_read_at_a_step() -> None:
    """A table of positions: step k of each row reads entry k, and rows end apart."""
    p, P = pr.dim("p")
    position = pr.input("position", (), (p,))
    k, K = pr.dim("k", extent=lengths, max=P)
    u = pr.input("u", (), (b, k))
    slope = pr.grad((u * position[k])[b, 0:K].sum(0)[0:B].sum(0), position)
    inputs: dict[str, Any] = {
        "lengths": np.array([2, 0, 3], "int32"),
        "u": np.arange(12, dtype="float32").reshape(3, 4),
    }
    inputs["position"] = np.ones(4, "float32")
    want = [0 + 8, 1 + 9, 10, 0]
    assert pr.evaluate(slope, inputs).tolist() == want
    for backend in BACKENDS:
        assert pr.compile(slope, backend=backend)(**inputs).tolist() == want


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_rows(backend: str) -> None:
    nested = pr.input("nested", (), (b, s), "int32")
    k, K = pr.dim("k", extent=nested)
    v = pr.input("v", (), (b, s, k))
    total = v[b, s, 0:K].sum(0)[b, 0:S].sum(0)
    inputs: dict[str, Any] = {
        "lengths": np.array([2, 1], "int32"),
        "nested": np.array([[3, 1], [2, 0]], "int32"),
        "v": np.arange(12, dtype="float32").reshape(2, 2, 3),
    }
    assert pr.compile(total, backend=backend)(**inputs).tolist() == [0 + 1 + 2 + 3, 6 + 7]


@pytest.mark.parametrize("backend", BACKENDS)
def test_lengths_that_the_program_computes(backend: str) -> None:
    k, K = pr.dim("k", extent=2 * lengths)
    program = pr.compile(pr.value(k) + pr.value(b), backend=backend)
    have = program(lengths=np.array([2, 0, 3], "int32"))
    assert have.lengths.tolist() == [4, 0, 6]
    assert have.values[2].tolist() == [2, 3, 4, 5, 6, 7]
    u = pr.input("u", (), (b, k))
    program = pr.compile(u[b, 0:K].sum(0), backend=backend)
    assert program(lengths=np.array([2, 0, 3], "int32"), u=np.ones((3, 6), "float32")).tolist() == [4, 0, 6]
    with pytest.raises(errors.LengthError, match="above its maximum 5"):
        program(lengths=np.array([2, 0, 3], "int32"), u=np.ones((3, 5), "float32"))


def test_rows_in_and_out() -> None:
    program = pr.compile(x * 2, backend="numpy")
    rows = pr.Ragged.of([np.ones((3, 2), "float32"), np.ones((1, 2), "float32")])
    have = program(lengths=rows.lengths.astype("int32"), x=rows)
    assert have.lengths.tolist() == [3, 1]
    assert have.values.shape == (2, 3, 2)
    with pytest.raises(errors.InputShapeError):
        program(lengths=np.array([2, 1], "int32"), x=rows)
    with pytest.raises(errors.InputShapeError, match="longest row has 4"):
        program(lengths=np.array([4, 1], "int32"), x=rows.values)
    with pytest.raises(errors.LengthError):
        program(lengths=np.array([-1, 1], "int32"), x=rows.values)
    with pytest.raises(errors.BoundsError, match="ragged"):
        program(lengths=np.array([3, 1], "int32"), x=rows.values, bounds={S: 3})


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stream_of_steps_and_of_rows(backend: str) -> None:
    inputs = {k: v for k, v in given([3, 1]).items() if k != "w"}
    program = pr.compile(x * 2, backend=backend)
    whole = program(**inputs)
    steps = list(program.stream(over=s, **inputs))
    np.testing.assert_array_equal(np.stack(steps, 1), whole.values)
    rows = list(program.stream(over=b, **inputs))
    assert [row.shape for row in rows] == [(3, 2), (1, 2)]
    np.testing.assert_array_equal(rows[0], whole.values[0])


def test_no_step_is_wider_than_the_longest_row() -> None:
    """An array padded to 5,000 steps costs what its longest row does."""
    program = pr.compile(recurrence(), backend="numpy")
    assert program(**given([3, 1], 5000)).values.shape == (2, 3, 2)


@pytest.mark.parametrize("backend", ["oracle", "numpy"])
def test_rows_given_as_lists(backend: str) -> None:
    """Whole numbers in a list are no type of their own; rows of different lengths in one are told what to use."""
    b, _ = pr.dim("b")
    lengths = pr.input("lengths", (), (b,), "int32")
    s, S = pr.dim("s", extent=lengths)
    total = pr.input("x", (), (b, s))[b, 0:S].sum(0)
    program = pr.compile(total, backend="numpy") if backend == "numpy" else None

    def call(rows: Any) -> Any:
        given = {"lengths": [1, 3], "x": rows}
        return pr.evaluate(total, given) if program is None else program(lengths=given["lengths"], x=rows)

    np.testing.assert_array_equal(call([[1, 0, 0], [1, 2, 3]]), [1.0, 6.0])
    np.testing.assert_array_equal(call(pr.Ragged.of([np.ones(1, "f4"), np.ones(3, "f4")])), [1.0, 3.0])
    with pytest.raises(pr.errors.InputShapeError, match=r"pr\.Ragged\.of\(rows\)"):
        call([[1], [1, 2, 3]])
