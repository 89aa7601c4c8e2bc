"""Models over rows of different lengths and runs that end early: losses and gradients as plain Python loops have them.

Each model is a loss by some leaves, and the same loss in NumPy over one row after the other. Its gradient is that by
central differences of the NumPy loss. Beyond the ends of rows inputs have NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.trace import trace

BACKENDS = ["numpy", "torch", pytest.param("jax", marks=pytest.mark.slow)]
LENGTHS = [3, 1, 5, 2]
D = 2

Values = dict[str, Any]


class Model(NamedTuple):
    """A loss, the leaves of its gradient by name, and the loss by loops."""

    loss: pr.Tensor
    leaves: dict[str, pr.Tensor]
    by_loops: Callable[[Values], float]
    until: dict[pr.Dim, pr.Tensor] | None = None
    bounds: dict[pr.Bound, int] | None = None


b, B = pr.dim("b", min=1)
c, C = pr.dim("c", bound=B)
t, T = pr.dim("t")
i, I = pr.dim("i")
n = pr.input("n", (), (b,), "int32")
s, S = pr.dim("s", extent=n, min=1)
u, U = pr.dim("u", bound=S)
x = pr.input("x", (D,), (b, s), "float64")
r = pr.input("r", (), (b, s), "float64")
words = pr.input("words", (), (b, s), "int32")
w, v, z = (pr.input(name, (D, D), (), "float64") for name in "wvz")
q = pr.input("q", (D,), (), "float64")
start = pr.input("start", (D,), (b,), "float64")
LEAVES = {"x": x, "w": w, "q": q}


def values() -> Values:
    random = np.random.default_rng(5)
    most = max(LENGTHS) + 1
    found: Values = {name: random.normal(size=(D, D)) * 0.7 for name in "wvz"}
    found |= {"q": random.normal(size=D), "start": random.normal(size=(len(LENGTHS), D))}
    found |= {"n": np.array(LENGTHS, "int32"), "x": np.full((len(LENGTHS), most, D), np.nan)}
    found |= {"r": np.full((len(LENGTHS), most), np.nan), "words": np.full((len(LENGTHS), most), 99, "int32")}
    for row, size in enumerate(LENGTHS):
        found["x"][row, :size] = random.normal(size=(size, D))
        found["r"][row, :size] = random.normal(size=size)
        found["words"][row, :size] = random.integers(0, D, size)
    return found


def rows(given: Values, name: str) -> list[np.ndarray]:
    return [row[:size] for row, size in zip(given[name], given["n"], strict=True)]


def over_rows(value: pr.Tensor) -> pr.Tensor:
    return value[0:B].sum(0)


def sigmoid(a: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-a))


def logsumexp(a: np.ndarray, axis: int = 0) -> np.ndarray:
    top = a.max(axis, keepdims=True)
    return np.log(np.exp(a - top).sum(axis)) + top.squeeze(axis)


def softmax(a: np.ndarray, axis: int = 0) -> np.ndarray:
    e = np.exp(a - a.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def lstm_read_at_its_end() -> Model:
    h, cell = pr.recurrent((D,), (b, s), "float64"), pr.recurrent((D,), (b, s), "float64")
    before = pr.where(s > 0, h[b, s - 1], 0.0)
    gate = pr.sigmoid(x @ w + before @ v)
    cell[b, s] = gate * pr.where(s > 0, cell[b, s - 1], 0.0) + (1 - gate) * pr.tanh(x @ v + before @ w)
    h[b, s] = gate * pr.tanh(cell)
    loss = over_rows(-pr.log_softmax(h[b, S - 1] + q, 0).axes[0])

    def loops(given: Values) -> float:
        total = 0.0
        for row in rows(given, "x"):
            h, cell = np.zeros(D), np.zeros(D)
            for item in row:
                gate = sigmoid(item @ given["w"] + h @ given["v"])
                cell = gate * cell + (1 - gate) * np.tanh(item @ given["v"] + h @ given["w"])
                h = gate * np.tanh(cell)
            total += logsumexp(h + given["q"]) - (h + given["q"])[0]
        return total

    return Model(loss, LEAVES | {"v": v}, loops)


def both_directions_pooled() -> Model:
    there, back = pr.recurrent((D,), (b, s), "float64"), pr.recurrent((D,), (b, s), "float64")
    there[b, 0] = pr.tanh(x[b, 0])
    there[b, s + 1] = pr.tanh(there @ w + x[b, s + 1])
    back[b, S - 1] = pr.tanh(x[b, S - 1])
    back[b, s - 1] = pr.tanh(back @ v + x[b, s - 1])
    both = pr.concat([there, back], 0)
    loss = over_rows((both[b, 0:S].max(0) * pr.concat([q, q * q], 0)).sum())

    def loops(given: Values) -> float:
        total = 0.0
        for row in rows(given, "x"):
            states = []
            for weights, items in ((given["w"], row), (given["v"], row[::-1])):
                h, found = None, []
                for item in items:
                    h = np.tanh(item if h is None else h @ weights + item)
                    found.append(h)
                states.append(np.array(found))
            both = np.concatenate([states[0], states[1][::-1]], 1)
            total += (both.max(0) * np.concatenate([given["q"], given["q"] ** 2])).sum()
        return total

    return Model(loss, LEAVES | {"v": v}, loops)


def conditional_random_field() -> Model:
    forward = pr.recurrent((D,), (b, s), "float64")
    forward[b, 0] = x[b, 0]
    forward[b, s + 1] = x[b, s + 1] + pr.logsumexp(forward.unsqueeze(1) + w, 0)
    norm = pr.logsumexp(forward[b, S - 1] + q, 0)
    said = pr.take(x, words, 0)
    moved = pr.where(s > 0, pr.take(pr.take(w, words[b, pr.max(0, s - 1)], 0), words, 0), 0.0)
    gold = (said + moved)[b, 0:S].sum(0) + pr.take(q, words[b, S - 1], 0)
    loss = over_rows(norm - gold)

    def loops(given: Values) -> float:
        total = 0.0
        for row, tags in zip(rows(given, "x"), rows(given, "words"), strict=True):
            alpha, gold = row[0], row[0][tags[0]]
            for k in range(1, len(row)):
                alpha = row[k] + logsumexp(alpha[:, None] + given["w"], 0)
                gold = gold + row[k][tags[k]] + given["w"][tags[k - 1], tags[k]]
            total += logsumexp(alpha + given["q"]) - gold - given["q"][tags[-1]]
        return float(total)

    return Model(loss, LEAVES, loops)


def generalised_advantages() -> Model:
    value = (x * q).sum()
    after = pr.where(s < S - 1, value[b, pr.min(s + 1, S - 1)], 0.0)
    error = r + 0.9 * after - value
    advantage = pr.recurrent((), (b, s), "float64")
    advantage[b, S - 1] = error[b, S - 1]
    advantage[b, s - 1] = error[b, s - 1] + 0.72 * advantage
    chosen = pr.take(pr.log_softmax(x @ w, 0), words, 0)
    each = (-chosen * pr.detach(advantage) + 0.5 * advantage * advantage)[b, 0:S].sum(0)
    count = pr.value(S).cast("float64")
    loss = over_rows(each) / over_rows(count)

    def loops(given: Values, fixed: list[np.ndarray]) -> float:
        total, count = 0.0, 0
        for row, rewards, taken, seen in zip(
            rows(given, "x"), rows(given, "r"), rows(given, "words"), fixed, strict=True
        ):
            advantage = gae(row, rewards, given["q"])
            for k in range(len(row)):
                logits = row[k] @ given["w"]
                total += -(logits[taken[k]] - logsumexp(logits)) * seen[k] + 0.5 * advantage[k] ** 2
            count += len(row)
        return total / count

    def gae(row: np.ndarray, rewards: np.ndarray, q: np.ndarray) -> np.ndarray:
        value, found, last = row @ q, np.zeros(len(row)), 0.0
        for k in reversed(range(len(row))):
            after = value[k + 1] if k + 1 < len(row) else 0.0
            last = rewards[k] + 0.9 * after - value[k] + 0.72 * last
            found[k] = last
        return found

    first = values()
    fixed = [gae(row, rewards, first["q"]) for row, rewards in zip(rows(first, "x"), rows(first, "r"), strict=True)]
    return Model(loss, {"w": w, "q": q, "x": x}, lambda given: loops(given, fixed))


def words_after_words() -> Model:
    scores = pr.log_softmax(pr.take(w, words, 0) @ v, 0)
    right = pr.where(s < S - 1, pr.take(scores, words[b, pr.min(s + 1, S - 1)], 0), 0.0)
    loss = over_rows(-right[b, 0:S].sum(0) / pr.maximum(1, pr.value(S) - 1))

    def loops(given: Values) -> float:
        total = 0.0
        for row in rows(given, "words"):
            logits = given["w"][row] @ given["v"]
            right = [logits[k][row[k + 1]] - logsumexp(logits[k]) for k in range(len(row) - 1)]
            total -= sum(right) / max(1, len(row) - 1)
        return total

    return Model(loss, {"w": w, "v": v}, loops)


def causal_attention_and_a_norm() -> Model:
    keys, query = (x @ v)[b, 0 : s + 1], x @ w
    mixed = pr.softmax(keys @ query, 0) @ (x @ z)[b, 0 : s + 1] + x
    centre = mixed - mixed.mean(0, keepdims=True)
    normal = centre / pr.sqrt((centre * centre).mean(0, keepdims=True) + 0.1)
    loss = over_rows(((normal * q).sum() ** 2)[b, 0:S].mean(0))

    def loops(given: Values) -> float:
        total = 0.0
        for row in rows(given, "x"):
            each = []
            for k in range(len(row)):
                weights = softmax((row[: k + 1] @ given["v"]) @ (row[k] @ given["w"]))
                mixed = weights @ (row[: k + 1] @ given["z"]) + row[k]
                centre = mixed - mixed.mean()
                each.append((centre / np.sqrt((centre**2).mean() + 0.1)) @ given["q"])
            total += float(np.mean(np.square(each)))
        return total

    return Model(loss, LEAVES | {"v": v, "z": z}, loops)


def causal_convolution() -> Model:
    taps = [pr.where(s >= k, x[b, pr.max(0, s - k)], 0.0) @ m for k, m in enumerate((w, v, z))]
    made = pr.relu(taps[0] + taps[1] + taps[2]) + 0.1 * x
    pooled = made[b, 0:S].mean(0)
    loss = over_rows((pooled * q).sum() ** 2)

    def loops(given: Values) -> float:
        total = 0.0
        for row in rows(given, "x"):
            made = []
            for k in range(len(row)):
                terms = [row[k - j] @ given[name] for j, name in enumerate("wvz") if k >= j]
                made.append(np.maximum(0, sum(terms)) + 0.1 * row[k])
            total += (np.mean(made, 0) @ given["q"]) ** 2
        return float(total)

    return Model(loss, LEAVES | {"v": v, "z": z}, loops)


def filter_and_smoother() -> Model:
    spread = pr.exp(q.axes[0])
    mean, var = pr.recurrent((), (b, s), "float64"), pr.recurrent((), (b, s), "float64")
    guess = pr.where(s > 0, 0.9 * mean[b, pr.max(0, s - 1)], 0.0)
    wide = pr.where(s > 0, 0.81 * var[b, pr.max(0, s - 1)], 1.0) + spread
    gain = wide / (wide + 0.5)
    mean[b, s], var[b, s] = guess + gain * (r - guess), (1 - gain) * wide
    smooth = pr.recurrent((), (b, s), "float64")
    smooth[b, S - 1] = mean[b, S - 1]
    smooth[b, s - 1] = mean[b, s - 1] + 0.9 * var[b, s - 1] / wide * (smooth - guess)
    loss = over_rows(((smooth - r) ** 2)[b, 0:S].sum(0))

    def loops(given: Values) -> float:
        total = 0.0
        for row in rows(given, "r"):
            mean: list[float] = []
            var: list[float] = []
            guesses: list[float] = []
            wides: list[float] = []
            for k, item in enumerate(row):
                guesses.append(0.9 * mean[-1] if k else 0.0)
                wides.append((0.81 * var[-1] if k else 1.0) + np.exp(given["q"][0]))
                gain = wides[-1] / (wides[-1] + 0.5)
                mean.append(guesses[-1] + gain * (item - guesses[-1]))
                var.append((1 - gain) * wides[-1])
            smooth = list(mean)
            for k in reversed(range(len(row) - 1)):
                smooth[k] = mean[k] + 0.9 * var[k] / wides[k + 1] * (smooth[k + 1] - guesses[k + 1])
            total += float(np.square(np.array(smooth) - row).sum())
        return total

    return Model(loss, {"r": r, "q": q}, loops)


def rows_against_rows() -> Model:
    one, other = pr.tanh(x @ w)[b, 0:S].mean(0), pr.tanh(x @ v)[b, 0:S].max(0)
    scores = other[0:B] @ one
    loss = over_rows(pr.logsumexp(scores, 0) - (one * other).sum())

    def loops(given: Values) -> float:
        one = [np.tanh(row @ given["w"]).mean(0) for row in rows(given, "x")]
        other = np.array([np.tanh(row @ given["v"]).max(0) for row in rows(given, "x")])
        return float(sum(logsumexp(other @ a) - other[k] @ a for k, a in enumerate(one)))

    return Model(loss, {"x": x, "w": w, "v": v}, loops)


def every_pair_of_a_row() -> Model:
    later = x[b, pr.min(s + 1, S - 1)]
    near = pr.exp(-((x[b, 0:S] - x.unsqueeze(0)) ** 2).sum(1))
    loss = over_rows((near.sum(0) * (later * q).sum())[b, 0:S].sum(0))

    def loops(given: Values) -> float:
        total = 0.0
        for row in rows(given, "x"):
            for k in range(len(row)):
                near = np.exp(-np.square(row - row[k]).sum(1)).sum()
                total += near * (row[min(k + 1, len(row) - 1)] @ given["q"])
        return float(total)

    return Model(loss, {"x": x, "q": q}, loops)


def running_extremes() -> Model:
    best, drop = r[b, 0 : s + 1].max(0), r[b, s:S].min(0)
    ranked = pr.sort(r[b, 0:S], 0)
    weights = (pr.arange(S) + 1).cast("float64") / pr.value(S)
    loss = over_rows(((best - drop) ** 2)[b, 0:S].sum(0) + (ranked * weights).sum(0) * q.axes[1])

    def loops(given: Values) -> float:
        total = 0.0
        for row in rows(given, "r"):
            for k in range(len(row)):
                total += (row[: k + 1].max() - row[k:].min()) ** 2
            total += (np.sort(row) * np.arange(1, len(row) + 1) / len(row)).sum() * given["q"][1]
        return float(total)

    return Model(loss, {"r": r, "q": q}, loops)


def standardised_rows() -> Model:
    row = r[b, 0:S]
    normal = (r - row.mean(0)) / pr.sqrt(pr.var(row, 0) + 0.01)
    loss = over_rows((pr.tanh(normal * q.axes[0]) * r)[b, 0:S].sum(0))

    def loops(given: Values) -> float:
        normal = [(row - row.mean()) / np.sqrt(row.var() + 0.01) for row in rows(given, "r")]
        return float(
            sum((np.tanh(a * given["q"][0]) * row).sum() for a, row in zip(normal, rows(given, "r"), strict=True))
        )

    return Model(loss, {"r": r, "q": q}, loops)


def descent_on_rows() -> Model:
    weights, speed = (pr.recurrent((D,), ((i, I + 1),), "float64") for _ in range(2))
    wrong = (x * weights).sum() - r
    loss = (wrong * wrong)[{s: slice(0, S)}].mean(0)[{b: slice(0, B)}].mean(0)
    slope = pr.grad(loss, weights)
    weights[0], speed[0] = q, 0.0
    speed[i + 1] = 0.9 * speed + slope
    weights[i + 1] = weights - 0.1 * speed[i + 1]
    final = (weights[I] ** 2).sum()

    def loops(given: Values) -> float:
        weights, speed = given["q"], np.zeros(D)
        for _ in range(4):
            slope = np.zeros(D)
            for row, wanted in zip(rows(given, "x"), rows(given, "r"), strict=True):
                slope += 2 * ((row @ weights - wanted) @ row) / len(row) / len(LENGTHS)
            speed = 0.9 * speed + slope
            weights = weights - 0.1 * speed
        return float((weights**2).sum())

    return Model(final, {"q": q, "x": x}, loops, None, {I: 4})


def euler_to_an_end_of_its_own() -> Model:
    state = pr.recurrent((D,), (b, (s, S + 1)), "float64")
    state[b, 0] = start
    state[b, s + 1] = state + 0.3 * pr.tanh(state @ w) * pr.exp(0.2 * r)
    loss = over_rows((state[b, S] * q).sum())

    def loops(given: Values) -> float:
        total = 0.0
        for a, row in zip(given["start"], rows(given, "r"), strict=True):
            for item in row:
                a = a + 0.3 * np.tanh(a @ given["w"]) * np.exp(0.2 * item)
            total += a @ given["q"]
        return total

    return Model(loss, {"w": w, "q": q, "r": r, "start": start}, loops)


def roots_by_newton() -> Model:
    goal = pr.exp((start * q).sum())
    root = pr.recurrent((), (b, t), "float64")
    root[b, 0] = goal
    root[b, t + 1] = 0.5 * (root + goal / root)
    done = pr.abs(root * root - goal) < 1e-3
    loss = over_rows(root[b, T - 1] * 3 + 0.1 * pr.value(T).cast("float64"))

    def loops(given: Values) -> float:
        total = 0.0
        for row in given["start"]:
            goal = np.exp(row @ given["q"])
            root, steps = goal, 1
            while abs(root * root - goal) >= 1e-3:
                root, steps = 0.5 * (root + goal / root), steps + 1
            total += root * 3 + 0.1 * steps
        return total

    return Model(loss, {"q": q, "start": start}, loops, {t: done}, {T: 30})


def pondering() -> Model:
    state, halted = pr.recurrent((D,), (b, t), "float64"), pr.recurrent((), (b, t), "float64")
    state[b, 0] = start
    state[b, t + 1] = pr.tanh(state @ w)
    halt = pr.sigmoid((state * q).sum()) * 0.4
    halted[b, 0] = halt[b, 0]
    halted[b, t + 1] = halted + halt[b, t + 1]
    mixed = (halt.unsqueeze(0) * state)[b, 0:T].sum(0) / halted[b, T - 1]
    loss = over_rows((mixed**2).sum() + 0.01 * halted[b, 0:T].mean(0))

    def loops(given: Values) -> float:
        total = 0.0
        for row in given["start"]:
            states, halts = [row], [sigmoid(row @ given["q"]) * 0.4]
            while sum(halts) < 0.9:
                states.append(np.tanh(states[-1] @ given["w"]))
                halts.append(sigmoid(states[-1] @ given["q"]) * 0.4)
            mixed = np.array(halts) @ np.array(states) / sum(halts)
            total += (mixed**2).sum() + 0.01 * np.cumsum(halts).mean()
        return float(total)

    return Model(loss, {"w": w, "q": q, "start": start}, loops, {t: halted >= 0.9}, {T: 25})


def greedy_words_until_the_end() -> Model:
    token, state = pr.recurrent((), (b, t), "int32"), pr.recurrent((D,), (b, t), "float64")
    token[b, 0], state[b, 0] = 0, start
    scores = pr.log_softmax(state @ v, 0)
    token[b, t + 1] = pr.argmax(scores, 0).cast("int32")
    state[b, t + 1] = pr.tanh(state @ w + pr.take(z, token[b, t + 1], 0))
    said = pr.where(t > 0, pr.take(scores[b, pr.max(0, t - 1)], token, 0), 0.0)
    loss = over_rows(said[b, 0:T].sum(0) / pr.value(T))

    def loops(given: Values) -> float:
        total = 0.0
        for state in given["start"]:
            token, said, steps = 0, 0.0, 1
            while token != 1 and steps < 7:
                logits = state @ given["v"]
                token = int(np.argmax(logits))
                said += logits[token] - logsumexp(logits)
                state, steps = np.tanh(state @ given["w"] + given["z"][token]), steps + 1
            total += said / steps
        return total

    return Model(loss, {"w": w, "v": v, "z": z, "start": start}, loops, {t: token == 1}, {T: 7})


def power_iteration() -> Model:
    matrix = w @ w.T + pr.eye(D, dtype="float64")
    vector = pr.recurrent((D,), (t,), "float64")
    vector[0] = q / pr.sqrt((q * q).sum())
    image = matrix @ vector
    vector[t + 1] = image / pr.sqrt((image * image).sum())
    change = pr.where(t > 0, ((vector - vector[pr.max(0, t - 1)]) ** 2).sum(), 1.0)
    loss = vector[T - 1] @ matrix @ vector[T - 1] + (vector[0:T].mean(0) * q).sum()

    def loops(given: Values) -> float:
        matrix = given["w"] @ given["w"].T + np.eye(D)
        found = [given["q"] / np.sqrt(given["q"] @ given["q"])]
        while len(found) < 50 and (len(found) < 2 or np.square(found[-1] - found[-2]).sum() >= 1e-6):
            image = matrix @ found[-1]
            found.append(image / np.sqrt(image @ image))
        return float(found[-1] @ matrix @ found[-1] + np.mean(found, 0) @ given["q"])

    return Model(loss, {"w": w, "q": q}, loops, {t: change < 1e-6}, {T: 50})


def attention_between_two_rows() -> Model:
    m = (n + 1) // 2
    k, K = pr.dim("k", extent=m, min=1)
    near = (x @ w)[b, 0:S]
    short = x[b, pr.min(2 * k, S - 1)]
    weights = pr.softmax(near @ short, 0)
    loss = over_rows(((weights @ x[b, 0:S]) * q).sum()[b, 0:K].max(0))

    def loops(given: Values) -> float:
        total = 0.0
        for row in rows(given, "x"):
            found = [softmax((row @ given["w"]) @ row[2 * j]) @ row @ given["q"] for j in range((len(row) + 1) // 2)]
            total += max(found)
        return float(total)

    return Model(loss, LEAVES, loops)


def documents_of_sentences() -> Model:
    lengths = pr.input("lengths", (), (b, s), "int32")
    k, K = pr.dim("k", extent=lengths, min=1)
    word = pr.input("word", (D,), (b, s, k), "float64")
    sentence = pr.softmax((pr.tanh(word @ w) * q).sum()[b, s, 0:K], 0) @ word[b, s, 0:K]
    state = pr.recurrent((D,), (b, s), "float64")
    state[b, 0] = sentence[b, 0]
    state[b, s + 1] = pr.tanh(state @ v + sentence[b, s + 1])
    loss = over_rows((state[b, S - 1] * q).sum() + 0.1 * pr.value(S).cast("float64"))

    def loops(given: Values) -> float:
        total = 0.0
        for document, sizes in zip(given["word"], rows(given, "lengths"), strict=True):
            state = None
            for block, size in zip(document, sizes, strict=False):
                found = block[:size]
                sentence = softmax(np.tanh(found @ given["w"]) @ given["q"]) @ found
                state = sentence if state is None else np.tanh(state @ given["v"] + sentence)
            assert state is not None
            total += state @ given["q"] + 0.1 * len(sizes)
        return float(total)

    return Model(loss, {"w": w, "v": v, "q": q}, loops)


MODELS = [
    lstm_read_at_its_end,
    both_directions_pooled,
    conditional_random_field,
    generalised_advantages,
    words_after_words,
    causal_attention_and_a_norm,
    causal_convolution,
    filter_and_smoother,
    rows_against_rows,
    every_pair_of_a_row,
    running_extremes,
    standardised_rows,
    descent_on_rows,
    euler_to_an_end_of_its_own,
    roots_by_newton,
    pondering,
    greedy_words_until_the_end,
    power_iteration,
    attention_between_two_rows,
    documents_of_sentences,
]


def more(found: Values) -> Values:
    """Sentences of documents: as many as a row has steps, each of words of its own number."""
    random = np.random.default_rng(8)
    count, most = found["r"].shape
    lengths, word = np.full((count, most), 99, "int32"), np.full((count, most, 3, D), np.nan)
    for row, size in enumerate(LENGTHS):
        lengths[row, :size] = random.integers(1, 4, size)
        for k in range(size):
            word[row, k, : lengths[row, k]] = random.normal(size=(lengths[row, k], D))
    return found | {"lengths": lengths, "word": word}


def slope(value: Callable[[Values], float], given: Values, name: str) -> np.ndarray:
    """The gradient by central differences; 0 where there is nothing."""
    found = np.zeros(given[name].shape)
    for place in np.ndindex(found.shape):
        if np.isnan(given[name][place]):
            continue
        moved = np.zeros(found.shape)
        moved[place] = 1e-5
        up, down = (value({**given, name: given[name] + sign * moved}) for sign in (1, -1))
        found[place] = (up - down) / 2e-5
    return found


def wanted(model: Model, given: Values) -> dict[str, np.ndarray]:
    return {name: slope(model.by_loops, given, name) for name in model.leaves}


def compared(results: dict[str, Any], loss: float, slopes: dict[str, np.ndarray], path: str) -> None:
    np.testing.assert_allclose(results["loss"], loss, 1e-9, 1e-9, err_msg=path)
    for name, right in slopes.items():
        found = results["slopes"][name]
        have = np.asarray(getattr(found, "values", found))
        cut = right[tuple(slice(0, size) for size in have.shape)]
        np.testing.assert_allclose(have, cut, 1e-6, 1e-7, err_msg=f"{path}: by {name}")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", MODELS, ids=lambda case: case.__name__)
def test_models_over_rows(case: Callable[[], Model], backend: str) -> None:
    model = case()
    outputs = {"loss": model.loss, "slopes": pr.grad(model.loss, model.leaves)}
    whole = more(values())
    program = pr.compile(outputs, backend=backend, until=model.until)
    given = {name: whole[name] for name in trace([model.loss], (), model.until).inputs}
    loss, slopes = model.by_loops(whole), wanted(model, whole)
    if backend == "numpy":
        compared(pr.evaluate(outputs, given, model.bounds, model.until), loss, slopes, "the oracle")
    compared(program(**given, bounds=model.bounds), loss, slopes, backend)
