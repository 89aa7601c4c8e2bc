"""Dynamic programming over sequences and trees: CTC, soft-DTW, spans, trees by pointers. All with gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import polyrhythm as pr
from benchmarks.natural_programs import Natural, normal

SYMBOLS, LABEL, BATCH, WIDTH, SOFT, LOW = 8, 17, 4, 16, 0.1, -1e30


def ctc() -> Any:
    """The loss over all alignments of a label with blanks, for a batch."""
    b, B = pr.dim("b")
    t, T = pr.dim("t", min=1)
    s, S = pr.dim("s", min=2)
    logits = pr.input("logits", (SYMBOLS,), (b, t))
    label = pr.input("label", (), (b, s), "int32")
    here = (pr.log_softmax(logits, 0) * pr.one_hot(label, SYMBOLS)).sum(0)
    alpha = pr.recurrent((), (b, t, s))
    step = pr.where(s >= 1, alpha[b, t, s - 1], LOW)
    may_skip = (label != 0) & (label != label[b, pr.max(0, s - 2)])
    skip = pr.where(s >= 2, pr.where(may_skip, alpha[b, t, pr.max(0, s - 2)], LOW), LOW)
    alpha[b, 0, s] = pr.where(s <= 1, here[{t: 0}], LOW)
    alpha[b, t + 1, s] = pr.logsumexp(pr.stack([alpha, step, skip]), 0) + here[{t: t + 1}]
    loss = -pr.logsumexp(pr.stack([alpha[b, T - 1, S - 1], alpha[b, T - 1, S - 2]]), 0)[0:B].mean(0)
    return {"loss": loss, "logits": pr.grad(loss, logits)}


def peer_ctc(logits: Any, label: Any) -> Any:
    def loss(logits: Any) -> Any:
        log_p = jax.nn.log_softmax(logits)
        here = jnp.take_along_axis(log_p, jnp.broadcast_to(label[:, None], (*logits.shape[:2], LABEL)), 2)
        here = here.swapaxes(0, 1)
        may_skip = jnp.pad((label[:, 2:] != 0) & (label[:, 2:] != label[:, :-2]), ((0, 0), (2, 0)))

        def step(alpha: Any, now: Any) -> Any:
            one = jnp.pad(alpha, ((0, 0), (1, 0)), constant_values=LOW)[:, :-1]
            two = jnp.where(may_skip, jnp.pad(alpha, ((0, 0), (2, 0)), constant_values=LOW)[:, :-2], LOW)
            return jax.nn.logsumexp(jnp.stack([alpha, one, two]), 0) + now, None

        first = jnp.where(jnp.arange(LABEL) <= 1, here[0], LOW)
        alpha, _ = lax.scan(step, first, here[1:])
        return -jax.nn.logsumexp(alpha[:, -2:], 1).mean()

    value, gradient = jax.value_and_grad(loss)(logits)
    return {"loss": value, "logits": gradient}


def _label() -> np.ndarray:
    label = np.zeros((BATCH, LABEL), "int32")
    label[:, 1::2] = np.random.default_rng(3).integers(1, SYMBOLS, (BATCH, LABEL // 2))
    return label


def soft_dtw() -> Any:
    """A soft alignment of two signals."""
    i, I = pr.dim("i", min=1)
    j, J = pr.dim("j", min=1)
    x, y = pr.input("x", (), (i,)), pr.input("y", (), (j,))
    cost = pr.recurrent((), (i, j))
    up = pr.where(i > 0, cost[i - 1, j], 1e9)
    left = pr.where(j > 0, cost[i, j - 1], 1e9)
    both = pr.where((i > 0) & (j > 0), cost[i - 1, j - 1], 1e9)
    least = -SOFT * pr.logsumexp(-pr.stack([up, left, both]) / SOFT, 0)
    cost[i, j] = (x - y) ** 2 + pr.where((i > 0) | (j > 0), least, 0.0)
    distance = cost[I - 1, J - 1]
    return {"distance": distance, "x": pr.grad(distance, x)}


def peer_soft_dtw(x: Any, y: Any) -> Any:
    """By antidiagonals, all cells of one at once."""
    rows, columns = x.shape[0], y.shape[0]

    def distance(x: Any) -> Any:
        near = (x[:, None] - y[None]) ** 2
        at = jnp.arange(rows)

        def step(carry: Any, diagonal: Any) -> Any:
            before, last = carry  # the diagonals two and one before, by row
            column = diagonal - at
            up = jnp.pad(last, (1, 0), constant_values=1e9)[:-1]
            both = jnp.pad(before, (1, 0), constant_values=1e9)[:-1]
            least = -SOFT * jax.nn.logsumexp(-jnp.stack([up, last, both]) / SOFT, 0)
            here = near[at, jnp.clip(column, 0, columns - 1)] + jnp.where(diagonal == 0, 0.0, least)
            here = jnp.where((column >= 0) & (column < columns), here, 1e9)
            return (last, here), here[-1]

        start = jnp.full(rows, 1e9), jnp.full(rows, 1e9)
        return lax.scan(step, start, jnp.arange(rows + columns - 1))[1][-1]

    value, gradient = jax.value_and_grad(distance)(x)
    return {"distance": value, "x": gradient}


def spans() -> Any:
    """The inside score of all binary trees over a sentence, with a score for each span, as a table by length."""
    t, T = pr.dim("t", min=1)
    n, _ = pr.dim("n", bound=T)
    score = pr.input("score", (), (n, t))  # of the span of n + 1 words that begins at t
    k, _ = pr.dim("k", bound=T)
    c = pr.recurrent((), (n, t))
    pairs = c[k, t] + c[n - 1 - k, t + k + 1]
    c[n == 0] = score
    c[(n >= 1) & (t + n < T)] = pr.logsumexp(pairs[{k: slice(0, n)}], 0) + score
    c[pr.otherwise] = 0.0
    whole = c[T - 1, 0]
    return {"whole": whole, "score": pr.grad(whole, score)}


def peer_spans(score: Any) -> Any:
    size = score.shape[0]

    def whole(score: Any) -> Any:
        at, cut = jnp.arange(size), jnp.arange(size)

        def step(chart: Any, n: Any) -> Any:
            left = chart.T  # by beginning and cut
            right = chart[jnp.clip(n - 1 - cut, 0)[None], jnp.clip(at[:, None] + cut[None] + 1, 0, size - 1)]
            inside = (cut[None] < n) & (at[:, None] + n < size)
            pairs = jnp.where(inside, left + right, LOW)
            made = jnp.where(at + n < size, jax.nn.logsumexp(pairs, 1) + score[n], 0.0)
            return chart.at[n].set(made), None

        first = jnp.zeros((size, size)).at[0].set(score[0])
        return lax.scan(step, first, jnp.arange(1, size))[0][-1, 0]

    value, gradient = jax.value_and_grad(whole)(score)
    return {"whole": value, "score": gradient}


def tree() -> Any:
    """A recursive network over trees whose nodes are in topological order; children are given by their places."""
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,))
    left, right = (pr.input(name, (), (t,), "int32") for name in ("left", "right"))
    u, v = pr.input("u", (WIDTH, WIDTH)), pr.input("v", (WIDTH, WIDTH))
    h = pr.recurrent((WIDTH,), ((t, T + 1),))
    h[0] = 0.0
    below = pr.take(h[0 : t + 1], left, 0) @ u + pr.take(h[0 : t + 1], right, 0) @ v
    h[t + 1] = pr.tanh(below + x)
    loss = pr.square(h[T]).sum()
    return {"loss": loss, "u": pr.grad(loss, u), "v": pr.grad(loss, v)}


def peer_tree(x: Any, left: Any, right: Any, u: Any, v: Any) -> Any:
    steps = x.shape[0]

    def loss(weights: Any) -> Any:
        u, v = weights

        def step(h: Any, now: Any) -> Any:
            t, x, left, right = now
            return h.at[t + 1].set(jnp.tanh(h[left] @ u + h[right] @ v + x)), None

        h, _ = lax.scan(step, jnp.zeros((steps + 1, WIDTH)), (jnp.arange(steps), x, left, right))
        return jnp.square(h[-1]).sum()

    value, (u, v) = jax.value_and_grad(loss)((u, v))
    return {"loss": value, "u": u, "v": v}


def _tree(steps: int) -> dict[str, np.ndarray]:
    rng, at = np.random.default_rng(5), np.arange(1, steps + 1)
    return {
        "x": normal(0, steps, WIDTH),
        "left": (at - 1).astype("int32"),
        "right": rng.integers(0, at).astype("int32"),
        "u": normal(1, WIDTH, WIDTH, scale=0.2),
        "v": normal(2, WIDTH, WIDTH, scale=0.2),
    }


ROWS = (
    Natural("CTC, gradient", ctc, lambda n: {"logits": normal(0, BATCH, n, SYMBOLS), "label": _label()}, peer_ctc, 256),
    Natural(
        "soft-DTW, gradient",
        soft_dtw,
        lambda n: {"x": normal(0, n), "y": normal(1, n)},
        peer_soft_dtw,
        128,
        tolerance=1e-3,
    ),
    Natural("CKY by spans, gradient", spans, lambda n: {"score": normal(0, n, n)}, peer_spans, 32),
    Natural("tree by pointers, gradient", tree, _tree, peer_tree, 512),
)
