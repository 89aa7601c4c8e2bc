"""Programs over rows of different lengths as strangers write them: every backend equals the oracle and plain loops.

What lies beyond the rows of an input is NaN, or an index that no table has: nothing may come of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.trace import trace

BACKENDS = ["numpy", "torch", pytest.param("jax", marks=pytest.mark.slow)]
SIZES = [[3, 1, 0, 5], [1], [0, 0], [4, 4, 4]]
WEIGHTS = np.array([[0.3, -0.5], [0.2, 0.7]])

Given = dict[str, Any]
Rows = list[np.ndarray]


class Case(NamedTuple):
    """Outputs, and what plain loops find for some of them."""

    outputs: dict[str, pr.Tensor]
    loops: Callable[[Given], dict[str, Any]]
    more: Callable[[list[int]], Given] = lambda sizes: {}
    bounds: dict[pr.Bound, int] | None = None
    until: dict[pr.Dim, pr.Tensor] | None = None


b, B = pr.dim("b")
t, T = pr.dim("t")
i, I = pr.dim("i")
n, m = pr.input("n", (), (b,), "int32"), pr.input("m", (), (b,), "int32")
s, S = pr.dim("s", extent=n)
u, U = pr.dim("u", extent=m)
x, y = pr.input("x", (), (b, s)), pr.input("y", (), (b, u))
v = pr.input("v", (2,), (b, s))
words = pr.input("words", (), (b, s), "int32")
w = pr.input("w", (2, 2))
a = pr.input("a", ())


def given(sizes: list[int]) -> Given:
    random = np.random.default_rng(7)
    others = [k + 1 if k % 2 else max(0, k - 1) for k in sizes]

    def rows(lengths: list[int], shape: tuple[int, ...] = ()) -> np.ndarray:
        found = np.full((len(lengths), max(lengths) + 2, *shape), np.nan, "float32")
        for row, size in zip(found, lengths, strict=True):
            row[:size] = random.normal(size=(size, *shape))
        return found

    named = np.full((len(sizes), max(sizes) + 2), 10**6, "int32")
    for row, size in zip(named, sizes, strict=True):
        row[:size] = random.integers(0, 5, size)
    return {
        "n": np.array(sizes, "int32"),
        "m": np.array(others, "int32"),
        "x": rows(sizes),
        "y": rows(others),
        "v": rows(sizes, (2,)),
        "words": named,
        "w": WEIGHTS.astype("float32"),
        "a": np.float32(0.6),
    }


def cut(inputs: Given, name: str = "x", lengths: str = "n") -> Rows:
    return [row[:k].astype("float64") for row, k in zip(inputs[name], inputs[lengths], strict=True)]


def ragged(rows: Any, shape: tuple[int, ...] = ()) -> pr.Ragged:
    return pr.Ragged.of([np.asarray(row, "float64").reshape(-1, *shape) for row in rows])


def slope(value: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """The gradient by central differences."""
    found = np.zeros(at.shape)
    for place in np.ndindex(at.shape):
        moved = np.zeros(at.shape)
        moved[place] = step
        found[place] = (value(at + moved) - value(at - moved)) / (2 * step)
    return found


def total(rows: pr.Tensor) -> pr.Tensor:
    return rows[b, 0:S].sum(0)[0:B].sum(0)


def reductions() -> Case:
    row = x[b, 0:S]

    def loops(inputs: Given) -> dict[str, Any]:
        rows = cut(inputs)
        with np.errstate(all="ignore"):
            return {
                "least": [r.min(initial=np.inf) for r in rows],
                "mean": [r.mean() if r.size else np.nan for r in rows],
                "variance": [r.var() if r.size else np.nan for r in rows],
                "product": [r.prod() for r in rows],
                "any": [(r > 0).any() for r in rows],
                "logsumexp": [np.log(np.exp(r).sum()) for r in rows],
                "softmax": ragged([np.exp(r) / np.exp(r).sum() for r in rows]),
                "position": [r.argmax() if r.size else -1 for r in rows],
                "median": [np.median(r) if r.size else 0.0 for r in rows],
                "descending": ragged([np.sort(r)[::-1] for r in rows]),
                "greatest so far": ragged([np.maximum.accumulate(r) for r in rows]),
                "order": ragged([np.argsort(r, kind="stable") for r in rows]),
                "place": [np.searchsorted(np.sort(r), 0.1) for r in rows],
                "every other": [r[::2].sum() for r in rows],
                "half": [r[: len(r) // 2].sum() for r in rows],
            }

    outputs = {
        "least": row.min(0),
        "mean": row.mean(0),
        "variance": pr.var(row, 0),
        "product": row.prod(0),
        "any": (row > 0).any(0),
        "logsumexp": pr.logsumexp(row, 0),
        "softmax": pr.softmax(row, 0),
        "position": pr.where(S >= 1, row.argmax(0), -1),
        "median": pr.where(S >= 1, pr.median(row, 0), 0.0),
        "descending": pr.sort(row, 0, descending=True),
        "greatest so far": pr.cummax(row, 0),
        "order": pr.argsort(row, 0),
        "place": pr.searchsorted(pr.sort(row, 0), pr.constant(0.1)),
        "every other": x[b, 0:S:2].sum(0),
        "half": x[b, 0 : S // 2].sum(0),
    }
    return Case(outputs, loops)


def windows() -> Case:
    smooth = pr.tanh(a * x[b, pr.max(0, s - 2) : s + 1].sum(0))
    loss = total(smooth * smooth)

    def loss_of(rows: Rows, factor: Any) -> float:
        sums = [r[max(0, k - 2) : k + 1].sum() for r in rows for k in range(len(r))]
        return float((np.tanh(factor * np.array(sums)) ** 2).sum())

    def loops(inputs: Given) -> dict[str, Any]:
        rows = cut(inputs)
        return {
            "loss": loss_of(rows, 0.6),
            "by a": slope(lambda factor: loss_of(rows, factor), np.array(0.6)),
            "around": ragged([[r[max(0, k - 1) : k + 2].max() for k in range(len(r))] for r in rows]),
            "next": ragged([[*r[1:], 0.0] if r.size else [] for r in rows]),
        }

    around = x[b, pr.max(0, s - 1) : pr.min(S, s + 2)].max(0)
    following = pr.where(s + 1 < S, x[b, s + 1], 0.0)
    outputs = {"loss": loss, "by a": pr.grad(loss, a), "by x": pr.grad(loss, x), "around": around, "next": following}
    return Case(outputs, loops)


def both_ways() -> Case:
    """A recurrence from each end of the rows, their product, and its gradient by a matrix that all share."""
    ahead, back = pr.recurrent((2,), (b, s)), pr.recurrent((2,), (b, s))
    ahead[b, 0] = pr.tanh(v[b, 0])
    ahead[b, s + 1] = pr.tanh(ahead @ w + v[b, s + 1])
    back[s == S - 1] = pr.tanh(v)
    back[s < S - 1] = pr.tanh(back[b, s + 1] @ w + v)
    loss = total((ahead * back).sum(0))

    def states(row: np.ndarray, weights: np.ndarray) -> np.ndarray:
        found: list[np.ndarray] = []
        for item in row:
            found.append(np.tanh(item + (found[-1] @ weights if found else 0)))
        return np.array(found).reshape(-1, 2)

    def loss_of(rows: Rows, weights: np.ndarray) -> float:
        return float(sum((states(r, weights) * states(r[::-1], weights)[::-1]).sum() for r in rows))

    def loops(inputs: Given) -> dict[str, Any]:
        rows = cut(inputs, "v")
        return {"loss": loss_of(rows, WEIGHTS), "by w": slope(lambda weights: loss_of(rows, weights), WEIGHTS)}

    return Case({"loss": loss, "by w": pr.grad(loss, w), "by v": pr.grad(loss, v)}, loops)


def second_derivatives() -> Case:
    h = pr.recurrent((), (b, s))
    h[b, 0] = x[b, 0]
    h[b, s + 1] = pr.tanh(a * h + x[b, s + 1])
    first = pr.grad(total(h * h), a)

    def loss_of(rows: Rows, factor: float) -> float:
        found = 0.0
        for row in rows:
            state = None
            for item in row:
                state = item if state is None else np.tanh(factor * state + item)
                found += state * state
        return found

    def loops(inputs: Given) -> dict[str, Any]:
        rows = cut(inputs)
        ends = [loss_of(rows, 0.6 + step) for step in (-1e-4, 0.0, 1e-4)]
        return {"first": (ends[2] - ends[0]) / 2e-4, "second": (ends[2] - 2 * ends[1] + ends[0]) / 1e-8}

    return Case({"first": first, "second": pr.grad(first, a)}, loops)


def two_lengths_in_a_value() -> Case:
    """A value over one ragged dim with an axis of another length: sums over both count what is inside both."""
    table = pr.tanh(y[b, 0:U] * x)
    both = table[b, 0:S].sum()
    loss = (both * both)[0:B].sum(0)

    def loops(inputs: Given) -> dict[str, Any]:
        tables = [np.tanh(np.outer(p, q)) for p, q in zip(cut(inputs), cut(inputs, "y", "m"), strict=True)]
        return {
            "both": [rows.sum() for rows in tables],
            "contracted": [rows.sum() for rows in tables],
            "columns": ragged([rows.sum(0) for rows in tables]),
            "greatest": [rows.max(initial=-np.inf) for rows in tables],
        }

    outputs = {
        "both": both,
        "contracted": pr.einsum("su->", table[b, 0:S]),
        "columns": table[b, 0:S].sum(0),
        "greatest": pr.tanh(x * y)[b, 0:S, 0:U].max(),
        "by x": pr.grad(loss, x),
        "by y": pr.grad(loss, y),
    }
    return Case(outputs, loops)


def attention_across() -> Case:
    weights = pr.softmax(x[b, 0:S] * y, 0)
    found = pr.einsum("us,s->u", weights[b, 0:U], x[b, 0:S])
    loss = (found * found).sum(0)[0:B].sum(0)

    def attended(keys: np.ndarray, queries: np.ndarray) -> np.ndarray:
        scores = np.exp(np.outer(queries, keys))
        return scores / scores.sum(1, keepdims=True) @ keys if keys.size else np.zeros(len(queries))

    def loops(inputs: Given) -> dict[str, Any]:
        pairs = zip(cut(inputs), cut(inputs, "y", "m"), strict=True)
        return {"found": ragged([attended(*pair) for pair in pairs])}

    return Case({"found": found, "by x": pr.grad(loss, x), "by y": pr.grad(loss, y)}, loops)


def warping() -> Case:
    """The cost of aligning two rows: a table over two ragged dims."""
    cost = pr.recurrent((), (b, s, u))
    cost[b, 0, 0] = pr.abs(x[b, 0] - y[b, 0])
    cost[b, s + 1, 0] = cost[b, s, 0] + pr.abs(x[b, s + 1] - y[b, 0])
    cost[b, 0, u + 1] = cost[b, 0, u] + pr.abs(x[b, 0] - y[b, u + 1])
    before = pr.minimum(cost[b, s, u], pr.minimum(cost[b, s + 1, u], cost[b, s, u + 1]))
    cost[b, s + 1, u + 1] = pr.abs(x[b, s + 1] - y[b, u + 1]) + before
    last = pr.where((S >= 1) & (U >= 1), cost[b, pr.max(0, S - 1), pr.max(0, U - 1)], 0.0)

    def aligned(one: np.ndarray, other: np.ndarray) -> float:
        found = np.full((len(one) + 1, len(other) + 1), np.inf)
        found[0, 0] = 0
        for p, q in np.ndindex(len(one), len(other)):
            found[p + 1, q + 1] = abs(one[p] - other[q]) + min(found[p, q], found[p, q + 1], found[p + 1, q])
        return float(found[-1, -1]) if one.size and other.size else 0.0

    def loops(inputs: Given) -> dict[str, Any]:
        return {"last": [aligned(*pair) for pair in zip(cut(inputs), cut(inputs, "y", "m"), strict=True)]}

    return Case({"last": last, "by x": pr.grad(last[0:B].sum(0), x)}, loops)


def tables() -> Case:
    """Rows of indices: embeddings and their gradient, counts, and updates of which the last or the greatest stays."""
    table = pr.input("table", (5, 2))
    row, values = words[b, 0:S], x[b, 0:S]
    pooled = pr.take(table, words, 0)[b, 0:S].sum(0)
    stored = pr.zeros((5,)).at[row].set(values)
    loss = (pooled * pooled).sum(0)[0:B].sum(0)

    def loops(inputs: Given) -> dict[str, Any]:
        numbers, entries = [r.astype(int) for r in cut(inputs, "words")], inputs["table"].astype("float64")
        sums, slopes = [entries[r].sum(0) for r in numbers], np.zeros((5, 2))
        last, most = np.zeros((len(numbers), 5)), np.full((len(numbers), 5), -9.0)
        for number, (r, found, items) in enumerate(zip(numbers, sums, cut(inputs), strict=True)):
            for word, item in zip(r, items, strict=True):
                slopes[word] += 2 * found
                last[number, word], most[number, word] = item, max(most[number, word], item)
        counts = [np.bincount(r, minlength=5) for r in numbers]
        return {"pooled": sums, "by table": slopes, "counts": counts, "stored": last, "greatest": most}

    outputs = {
        "pooled": pooled,
        "by table": pr.grad(loss, table),
        "counts": pr.zeros((5,)).at[row].add(1.0),
        "stored": stored,
        "greatest": pr.full((5,), -9.0).at[row].max(values),
        "by stored": pr.grad(pr.sin(stored).sum(0)[0:B].sum(0), x),
    }
    return Case(outputs, loops, lambda sizes: {"table": np.linspace(-1, 1, 10, dtype="float32").reshape(5, 2)})


def updates_of_rows() -> Case:
    places = pr.input("places", (2,), (b,), "int32")
    row = x[b, 0:S]
    outputs = {
        "set": row.at[places].set(pr.constant([7.0, 8.0])),
        "most": row.at[places].max(0.5),
        "first": row.at[pr.constant(np.int32(0))].set(9.0),
    }
    outputs["by x"] = pr.grad(pr.sin(outputs["set"] * outputs["most"]).sum(0)[0:B].sum(0), x)

    def loops(inputs: Given) -> dict[str, Any]:
        found: dict[str, list[np.ndarray]] = {"set": [], "most": [], "first": []}
        for row, chosen in zip(cut(inputs), inputs["places"], strict=True):
            put, most, first = row.copy(), row.copy(), row.copy()
            for place, value in zip(chosen, (7.0, 8.0), strict=True):
                if place < len(row):
                    put[place], most[place] = value, max(most[place], 0.5)
            first[:1] = 9.0
            for name, made in (("set", put), ("most", most), ("first", first)):
                found[name].append(made)
        return {name: ragged(rows) for name, rows in found.items()}

    return Case(
        outputs, loops, lambda sizes: {"places": np.array([[0, k] for k in range(len(sizes))], "int32").reshape(-1, 2)}
    )


def layers() -> Case:
    """Attention inside rows, layer upon layer, and its gradient by the matrices of the layers."""
    k, K = pr.dim("k")
    matrices = pr.input("matrices", (2, 2), (k,))
    h = pr.recurrent((2,), (b, s, (k, K + 1)))
    h[b, s, 0] = v
    h[b, s, k + 1] = pr.softmax(h[b, 0:S, k] @ h, 0) @ h[b, 0:S, k] @ matrices
    top = h[b, s, K]

    def loops(inputs: Given) -> dict[str, Any]:
        found = []
        for row in cut(inputs, "v"):
            for matrix in inputs["matrices"].astype("float64"):
                scores = np.exp(row @ row.T)
                row = scores / scores.sum(1, keepdims=True) @ row @ matrix
            found.append(row)
        return {"top": ragged(found, (2,))}

    outputs = {"top": top, "by matrices": pr.grad(total(top.sum(0)), matrices)}
    return Case(outputs, loops, lambda sizes: {"matrices": np.stack([WEIGHTS, -WEIGHTS.T]).astype("float32")})


def early_stopping() -> Case:
    """Training on a ragged batch until the loss falls no further."""
    weight = pr.recurrent((), ((i, I + 1),))
    loss = ((weight - x) ** 2)[{s: slice(0, S)}].sum(0)[{b: slice(0, B)}].sum(0)
    weight[0] = 1.0
    weight[i + 1] = weight - 0.02 * pr.grad(loss, weight)
    done = pr.where(i >= 1, loss[pr.max(0, i - 1)] - loss < 0.3, False)

    def loops(inputs: Given) -> dict[str, Any]:
        values = np.concatenate(cut(inputs))
        weights, losses = [1.0], list[float]()
        for step in range(20):
            losses.append(float(((weights[-1] - values) ** 2).sum()))
            weights.append(weights[-1] - 0.04 * float((weights[-1] - values).sum()))
            if step >= 1 and losses[-2] - losses[-1] < 0.3:
                break
        return {"weight": weights}

    return Case({"weight": weight}, loops, bounds={I: 20}, until={i: done})


def rows_that_end_in_training() -> Case:
    """Each row of each iteration ends at a step of its own, which the weights of the iteration decide."""
    start = pr.input("start", (), (i, b))
    weight = pr.recurrent((), ((i, I + 1),))
    z = pr.recurrent((), (i, b, t))
    z[i, b, 0] = start
    z[i, b, t + 1] = z * weight
    loss = (z * z)[i, b, 0:T].sum(0)[{b: slice(0, B)}].sum(0)
    weight[0] = 0.6
    weight[i + 1] = weight - 0.01 * pr.grad(loss, weight)

    def loss_of(starts: np.ndarray, factor: float, deciding: float) -> float:
        found = 0.0
        for value in starts:
            decides = value
            for _ in range(6):
                found += value * value
                if decides < 0.5:
                    break
                value, decides = value * factor, decides * deciding
        return found

    def loops(inputs: Given) -> dict[str, Any]:
        factor, losses = 0.6, []
        for starts in inputs["start"].astype("float64"):
            losses.append(loss_of(starts, factor, factor))
            ends = [loss_of(starts, factor + step, factor) for step in (1e-6, -1e-6)]
            factor -= 0.01 * (ends[0] - ends[1]) / 2e-6
        return {"loss": losses, "last": factor}

    def more(sizes: list[int]) -> Given:
        return {"start": np.linspace(0.2, 3.1, 3 * len(sizes)).reshape(3, -1).astype("float32")}

    return Case({"loss": loss, "last": weight[I]}, loops, more, {T: 6}, {t: z < 0.5})


def ends_inside_rows() -> Case:
    """Each row is read from its end, as long as there is something left."""
    left = pr.recurrent((), (b, t), "int32")
    left[b, 0] = n
    left[b, t + 1] = left - 1
    item = pr.where(S >= 1, pr.take(x[b, 0:S], pr.maximum(left - 1, 0), 0), 0.0)
    sums = pr.recurrent((), (b, t))
    sums[b, 0] = 0.0
    sums[b, t + 1] = sums + item
    last = sums[b, T - 1]

    def loops(inputs: Given) -> dict[str, Any]:
        rows = cut(inputs)
        return {"last": [r.sum() for r in rows], "by x": ragged([np.ones(len(r)) for r in rows])}

    outputs = {"last": last, "by x": pr.grad(last[0:B].sum(0), x)}
    return Case(outputs, loops, bounds={T: 12}, until={t: left <= 0})


def joined() -> Case:
    both = pr.concat([x[b, 0:S], y[b, 0:U]], 0)
    loss = (pr.sin(both) * pr.cumsum(both, 0)).sum(0)[0:B].sum(0)

    def loops(inputs: Given) -> dict[str, Any]:
        rows = [np.concatenate(pair) for pair in zip(cut(inputs), cut(inputs, "y", "m"), strict=True)]
        return {"both": ragged(rows), "sorted": ragged([np.sort(row) for row in rows])}

    outputs = {"both": both, "sorted": pr.sort(both, 0), "by x": pr.grad(loss, x), "by y": pr.grad(loss, y)}
    return Case(outputs, loops)


def normalised() -> Case:
    row = v[b, 0:S]
    centred = (v - row.mean(0)) / pr.sqrt(pr.var(row, 0) + 0.1)

    def loops(inputs: Given) -> dict[str, Any]:
        rows = cut(inputs, "v")
        made = [(r - r.mean(0)) / np.sqrt(r.var(0) + 0.1) if r.size else r for r in rows]
        return {"centred": ragged(made, (2,))}

    return Case({"centred": centred, "by v": pr.grad(total((centred**3).sum(0)), v)}, loops)


def rows_after_rows() -> Case:
    """A recurrence over the rows themselves, of what each is reduced to."""
    sums = x[b, 0:S].sum(0)
    running = pr.recurrent((), (b,))
    running[0] = sums[0]
    running[b + 1] = 0.5 * running + sums[b + 1]

    def loops(inputs: Given) -> dict[str, Any]:
        found = list[float]()
        for row in cut(inputs):
            found.append((0.5 * found[-1] if found else 0.0) + row.sum())
        return {"running": found}

    return Case({"running": running, "by x": pr.grad(running[0:B].sum(0), x)}, loops)


CASES: list[Callable[[], Case]] = [
    reductions,
    windows,
    both_ways,
    second_derivatives,
    two_lengths_in_a_value,
    attention_across,
    warping,
    tables,
    updates_of_rows,
    layers,
    early_stopping,
    rows_that_end_in_training,
    ends_inside_rows,
    joined,
    normalised,
    rows_after_rows,
]


def same(have: Any, want: Any, name: str) -> None:
    if isinstance(want, pr.Ragged):
        np.testing.assert_array_equal(have.lengths, want.lengths, name)
        for row, (one, other) in enumerate(zip(have.values, want.values, strict=True)):
            size = int(want.lengths[row])
            np.testing.assert_allclose(one[:size], other[:size], 2e-3, 2e-4, err_msg=f"{name} of row {row}")
        return
    assert np.shape(have) == np.shape(want), name
    np.testing.assert_allclose(have, want, 2e-3, 2e-4, err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_programs_over_rows(case: Callable[[], Case], backend: str) -> None:
    outputs, loops, more, bounds, until = case()
    program = pr.compile(outputs, backend=backend, until=until)
    read = trace(list(outputs.values()), (), until).inputs
    for sizes in SIZES if backend != "jax" else SIZES[:1]:
        whole = given(sizes) | more(sizes)
        inputs = {name: whole[name] for name in read}
        want = pr.evaluate(outputs, inputs, bounds, until)
        have = program(**inputs, bounds=bounds)
        for name, value in loops(whole).items():
            same(want[name], value, f"the oracle's {name} of {sizes}")
        for name in outputs:
            same(have[name], want[name], f"{name} of {sizes}")
