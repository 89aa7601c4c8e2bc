"""Recurrences over several dims as textbooks write them: each function makes a table and the inputs it is made of.

Alignments and grids, tables over spans in several spellings, recurrences that read each other, steps backwards, in
strides and in blocks, and recurrences inside recurrences.
"""

from __future__ import annotations

from collections.abc import Callable

import polyrhythm as pr

Made = tuple[pr.Tensor, list[pr.Tensor]]
RECURRENCES: list[Callable[[], Made]] = []


def recurrence(build: Callable[[], Made]) -> Callable[[], Made]:
    """Note a recurrence for the tests."""
    RECURRENCES.append(build)
    return build


def soft(*values: pr.Tensor) -> pr.Tensor:
    """A smooth maximum, so that every value has a gradient."""
    return pr.logsumexp(pr.stack(list(values)), 0)


def grid() -> tuple[pr.Dim, pr.Bound, pr.Dim, pr.Bound, pr.Tensor]:
    """Two dims and an input over them."""
    i, I = pr.dim("i")
    j, J = pr.dim("j")
    return i, I, j, J, pr.input("x", (), (i, j))


def line() -> tuple[pr.Dim, pr.Bound, pr.Tensor]:
    """A dim and an input along it."""
    t, T = pr.dim("t")
    return t, T, pr.input("x", (), (t,))


def words() -> tuple[pr.Dim, pr.Dim, pr.Bound, pr.Tensor]:
    """The first and the last word of a span, and an input of words."""
    a, T = pr.dim("a")
    return a, pr.dim("b", bound=T)[0], T, pr.input("x", (), (a,))


# ---- alignments and grids


@recurrence
def needleman_wunsch() -> Made:
    i, I, j, J, x = grid()
    score = pr.recurrent((), ((i, I + 1), (j, J + 1)))
    score[0, 0] = 0.0
    score[i + 1, 0] = score[i, 0] - 0.5
    score[0, j + 1] = score[0, j] - 0.5
    score[i + 1, j + 1] = soft(score[i, j] + x, score[i, j + 1] - 0.5, score[i + 1, j] - 0.5)
    return score, [x]


@recurrence
def affine_gaps() -> Made:
    i, I, j, J, x = grid()
    h, e, f = (pr.recurrent((), ((i, I + 1), (j, J + 1))) for _ in range(3))
    for table, start in ((h, 0.0), (e, -1.0), (f, -1.0)):
        table[0, 0] = start
        table[0, j + 1] = start
        table[i + 1, 0] = start
    e[i + 1, j + 1] = soft(e[i + 1, j] - 0.1, h[i + 1, j] - 0.3)
    f[i + 1, j + 1] = soft(f[i, j + 1] - 0.1, h[i, j + 1] - 0.3)
    h[i + 1, j + 1] = soft(h[i, j] + x, e[i + 1, j + 1], f[i + 1, j + 1])
    return h, [x]


@recurrence
def dynamic_time_warping() -> Made:
    i, _ = pr.dim("i")
    j, _ = pr.dim("j")
    a, b = pr.input("a", (2,), (i,)), pr.input("b", (2,), (j,))
    d = pr.recurrent((), (i, j))
    up, left = pr.where(i > 0, d[i - 1, j], 9.0), pr.where(j > 0, d[i, j - 1], 9.0)
    both = pr.where((i > 0) & (j > 0), d[i - 1, j - 1], 9.0)
    d[i, j] = ((a - b) ** 2).sum(0) - soft(-up, -left, -both)
    return d, [a, b]


@recurrence
def edit_distance_from_the_end() -> Made:
    i, I, j, J, x = grid()
    d = pr.recurrent((), ((i, I + 1), (j, J + 1)))
    d[I, J] = 0.0
    d[i, J] = d[i + 1, J] + 1.0
    d[I, j] = d[I, j + 1] + 1.0
    d[i, j] = -soft(-d[i + 1, j] - 1.0, -d[i, j + 1] - 1.0, -d[i + 1, j + 1] - x)
    return d, [x]


@recurrence
def common_subsequence() -> Made:
    i, _, j, _, x = grid()
    best = pr.recurrent((), (i, j))
    before = pr.where((i > 0) & (j > 0), best[i - 1, j - 1], 0.0)
    best[i, j] = soft(before + x, pr.where(i > 0, best[i - 1, j], 0.0), pr.where(j > 0, best[i, j - 1], 0.0))
    return best, [x]


@recurrence
def rnn_over_a_grid() -> Made:
    i, _, j, _, x = grid()
    w = pr.input("w", (2,))
    h = pr.recurrent((), (i, j))
    up, left = pr.where(i > 0, h[i - 1, j], 0.0), pr.where(j > 0, h[i, j - 1], 0.0)
    h[i, j] = pr.tanh(x + w.axes[0] * up + w.axes[1] * left)
    return h, [x, w]


@recurrence
def rnn_over_a_grid_from_another_corner() -> Made:
    i, _, j, J, x = grid()
    h = pr.recurrent((), (i, j))
    h[i, j] = pr.tanh(x + pr.where(i > 0, h[i - 1, j], 0.0) - pr.where(j < J - 1, h[i, j + 1], 0.0))
    return h, [x]


@recurrence
def anti_diagonals() -> Made:
    """A row reads the one above to its right: neither dim alone goes one way for a reader by columns."""
    i, _, j, J, x = grid()
    h = pr.recurrent((), (i, j))
    h[i, j] = pr.tanh(x + pr.where((i > 0) & (j < J - 1), h[i - 1, j + 1], 0.0) + pr.where(j > 0, h[i, j - 1], 0.0))
    return h, [x]


@recurrence
def knights_moves() -> Made:
    i, I, j, J, x = grid()
    h = pr.recurrent((), (i, j))
    one = pr.where((i + 1 < I) & (j + 2 < J), h[i + 1, j + 2], 0.0)
    other = pr.where((i > 0) & (j > 0), h[i - 1, j - 1], 0.0)
    h[i, j] = pr.tanh(x + one + other)
    return h, [x]


@recurrence
def gauss_seidel() -> Made:
    t, T = pr.dim("t")
    i, I = pr.dim("i")
    x = pr.input("x", (), (i,))
    u = pr.recurrent((), ((t, T + 1), i))
    u[0, i] = x
    left = pr.where(i > 0, u[t + 1, i - 1], 0.0)
    u[t + 1, i] = 0.5 * (left + pr.where(i < I - 1, u[t, i + 1], 0.0)) + 0.1 * x
    return u, [x]


@recurrence
def leapfrog() -> Made:
    t, T = pr.dim("t")
    i, I = pr.dim("i")
    x = pr.input("x", (), (i,))
    u = pr.recurrent((), ((t, T + 2), i))
    u[0, i], u[1, i] = x, 0.5 * x
    near = u[t + 1, pr.max(0, i - 1)] + u[t + 1, pr.min(I - 1, i + 1)] - 2.0 * u[t + 1, i]
    u[t + 2, i] = 2.0 * u[t + 1, i] - u[t, i] + 0.1 * near
    return u, [x]


@recurrence
def three_dimensional_grid() -> Made:
    i, _ = pr.dim("i")
    j, _ = pr.dim("j")
    k, _ = pr.dim("k")
    x = pr.input("x", (), (i, j, k))
    h = pr.recurrent((), (i, j, k))
    near = pr.where(i > 0, h[i - 1, j, k], 0.0) + pr.where(j > 0, h[i, j - 1, k], 0.0)
    h[i, j, k] = pr.tanh(x + near + pr.where(k > 0, h[i, j, k - 1], 0.0))
    return h, [x]


@recurrence
def three_dimensional_anti_diagonals() -> Made:
    i, _ = pr.dim("i")
    j, J = pr.dim("j")
    k, K = pr.dim("k")
    x = pr.input("x", (), (i, j, k))
    h = pr.recurrent((), (i, j, k))
    one = pr.where((i > 0) & (j < J - 1), h[i - 1, j + 1, k], 0.0)
    other = pr.where((j > 0) & (k < K - 1), h[i, j - 1, k + 1], 0.0)
    h[i, j, k] = pr.tanh(x + one + other + pr.where(k > 0, h[i, j, k - 1], 0.0))
    return h, [x]


@recurrence
def four_dimensional_grid() -> Made:
    dims = [pr.dim(name)[0] for name in "ijkl"]
    x = pr.input("x", (), tuple(dims))
    h = pr.recurrent((), tuple(dims))
    near = [pr.where(dim > 0, h[{dim: dim - 1}], 0.0) for dim in dims]
    h[tuple(dims)] = pr.tanh(x + near[0] + near[1] - near[2] - near[3])
    return h, [x]


# ---- tables over spans


@recurrence
def spans_by_first_and_last_word() -> Made:
    """CKY with one symbol: `c[a, b]` reads all `c[a, k]` and `c[k + 1, b]`."""
    a, b, T, x = words()
    k, _ = pr.dim("k", bound=T)
    c = pr.recurrent((), (a, b))
    inside = (k >= a) & (k < b)
    pair = pr.where(inside, c[a, pr.min(k, T - 1)] * c[pr.min(k + 1, T - 1), b], 0.0)
    c[a == b] = x
    c[a > b] = 0.0
    c[a < b] = 0.3 * pair[{k: slice(0, T)}].sum(0)
    return c, [x]


@recurrence
def spans_by_length() -> Made:
    """CKY over lengths: `c[l, t]` reads shorter spans, of which t moves both ways."""
    t, T = pr.dim("t")
    l, _ = pr.dim("l", bound=T)
    k, _ = pr.dim("k", bound=T)
    x = pr.input("x", (), (t,))
    c = pr.recurrent((), (l, t))
    inside = (k < l) & (t + l < T)
    pair = pr.where(inside, c[k, t] * c[l - 1 - k, t + k + 1], 0.0)
    c[0, t] = x
    c[l > 0] = 0.3 * pair[{k: slice(0, T)}].sum(0)
    return c, [x]


@recurrence
def spans_by_slices() -> Made:
    t, T = pr.dim("t")
    l, _ = pr.dim("l", bound=T)
    k, _ = pr.dim("k", bound=T)
    x = pr.input("x", (2,), (t,))
    c = pr.recurrent((2,), (l, t))
    left = c[k, t][{k: slice(0, l)}]
    right = pr.where((k < l) & (t + l < T), c[l - 1 - k, pr.min(t + k + 1, T - 1)], 0.0)[{k: slice(0, l)}]
    c[0, t] = x
    c[l > 0] = pr.tanh(pr.einsum("ka,kb->a", left, right))
    return c, [x]


@recurrence
def matrix_chain() -> Made:
    a, b, T, x = words()
    k, _ = pr.dim("k", bound=T)
    m = pr.recurrent((), (a, b))
    split = (k >= a) & (k < b)
    cost = pr.where(split, m[a, k] + m[pr.min(k + 1, T - 1), b] + x[a] * x[k] * x[b], 50.0)
    m[a >= b] = 0.0
    m[a < b] = -pr.logsumexp(-cost[{k: slice(0, T)}], 0)
    return m, [x]


@recurrence
def nussinov() -> Made:
    a, b, T, x = words()
    n = pr.recurrent((), (a, b))
    n[a >= b] = 0.0
    paired = pr.where(a + 1 < b, n[pr.min(a + 1, T - 1), pr.max(b - 1, 0)], 0.0) + x[a] * x[b]
    n[a < b] = soft(n[pr.min(a + 1, T - 1), b], n[a, pr.max(b - 1, 0)], paired)
    return n, [x]


@recurrence
def palindromes_outwards() -> Made:
    a, b, T, x = words()
    p = pr.recurrent((), (a, b))
    p[a >= b] = 1.0
    p[a < b] = p[pr.min(a + 1, T - 1), pr.max(b - 1, 0)] * x[a] * x[b] + 0.5
    return p, [x]


@recurrence
def outside_of_spans() -> Made:
    """From the whole inwards: a span reads the longer ones around it."""
    a, b, T, x = words()
    o = pr.recurrent((), (a, b))
    wider = pr.where(a > 0, o[a - 1, b], 0.0) + pr.where(b < T - 1, o[a, b + 1], 0.0)
    o[a <= b] = pr.tanh(wider + x[a] - x[b])
    o[pr.otherwise] = 0.0
    return o, [x]


@recurrence
def binary_splits_of_prefixes() -> Made:
    t, T, x = line()
    s = pr.recurrent((), ((t, T + 1),))
    k, _ = pr.dim("k", bound=T)
    s[0] = 1.0
    s[t + 1] = 0.3 * pr.where(k <= t, s[k] * s[t - k] * x[k], 0.0)[{k: slice(0, T)}].sum(0)
    return s, [x]


# ---- recurrences that read each other


@recurrence
def hidden_markov_model() -> Made:
    t, _ = pr.dim("t")
    s, S = pr.dim("s")
    r, _ = pr.dim("r", bound=S)
    x, w = pr.input("x", (), (t, s)), pr.input("w", (), (s, r))
    f = pr.recurrent((), (t, s))
    f[0, s] = x[0, s]
    f[t + 1, s] = x[t + 1, s] + pr.logsumexp((f[t, r] + w[r, s])[{r: slice(0, S)}], 0)
    return f, [x, w]


@recurrence
def forward_and_backward() -> Made:
    t, T, x = line()
    f, g = pr.recurrent((), (t,)), pr.recurrent((), (t,))
    f[0] = x[0]
    f[t + 1] = pr.tanh(f + x[t + 1])
    g[T - 1] = f[T - 1]
    g[T - 2 - t] = pr.tanh(g[T - 1 - t] * f[T - 2 - t])
    return f * g, [x]


@recurrence
def three_in_a_circle() -> Made:
    t, _, x = line()
    a, b, c = (pr.recurrent((), (t,)) for _ in range(3))
    a[t] = x + pr.where(t > 0, c[t - 1], 0.0)
    b[t] = pr.tanh(a) + pr.where(t > 1, a[t - 2], 0.0)
    c[t] = a * b + pr.where(t > 0, b[t - 1], 1.0)
    return pr.tanh(c), [x]


@recurrence
def two_fields_of_two_dims() -> Made:
    i, _, j, _, x = grid()
    u, v = pr.recurrent((), (i, j)), pr.recurrent((), (j, i))
    u[i, j] = pr.tanh(x + pr.where(i > 0, v[j, i - 1], 0.0))
    v[j, i] = pr.tanh(u + pr.where(j > 0, u[i, j - 1], 0.0))
    return u + v[j, i], [x]


@recurrence
def layers_and_steps() -> Made:
    t, _ = pr.dim("t")
    n, N = pr.dim("n")
    x = pr.input("x", (), (t,))
    h = pr.recurrent((), ((n, N + 1), t))
    h[0, t] = x + pr.where(t > 0, h[N, t - 1], 0.0)
    h[n + 1, t] = pr.tanh(h[n, t] + 0.5 * h[n, 0 : t + 1].mean(0))
    return h, [x]


@recurrence
def layers_from_both_ends() -> Made:
    """Even layers go forwards, odd ones backwards."""
    t, T = pr.dim("t")
    n, N = pr.dim("n")
    x = pr.input("x", (), (t,))
    h = pr.recurrent((), ((n, N + 1), t))
    h[0, t] = x
    before = pr.where(t > 0, h[n + 1, t - 1], 0.0)
    after = pr.where(t < T - 1, h[n, pr.min(t + 1, T - 1)], 0.0)
    h[n + 1, t] = pr.tanh(h[n, T - 1 - t] + before + after)
    return h, [x]


# ---- backwards, strided, in blocks


@recurrence
def discounted_returns() -> Made:
    t, T, x = line()
    g = pr.recurrent((), ((t, T + 1),))
    g[T] = 0.0
    g[t] = x + 0.9 * g[t + 1]
    return g, [x]


@recurrence
def two_steps_at_a_time() -> Made:
    t, _, x = line()
    y = pr.recurrent((), (t,))
    y[t < 2] = x
    y[t >= 2] = pr.tanh(y[t - 2] + x)
    return y, [x]


@recurrence
def heap_of_steps() -> Made:
    t, _, x = line()
    y = pr.recurrent((), (t,))
    y[0] = x[0]
    y[2 * t + 1] = pr.tanh(y[t] + x[2 * t + 1])
    y[2 * t + 2] = pr.tanh(y[t] - x[2 * t + 2])
    return y, [x]


@recurrence
def tournament() -> Made:
    """From the leaves of a heap to its root."""
    t, T, x = line()
    y = pr.recurrent((), (t,))
    y[2 * t + 1 >= T] = x
    left = y[pr.min(2 * t + 1, T - 1)]
    y[2 * t + 1 < T] = pr.tanh(x + left + pr.where(2 * t + 2 < T, y[pr.min(2 * t + 2, T - 1)], 0.0))
    return y, [x]


@recurrence
def even_and_odd_steps() -> Made:
    t, T, x = line()
    y = pr.recurrent((), (t,))
    y[t % 2 == 0] = x
    y[t % 2 == 1] = pr.tanh(y[t - 1] + pr.where(t < T - 1, y[pr.min(t + 1, T - 1)], 0.0))
    return y, [x]


@recurrence
def blocks_of_four() -> Made:
    """Each block begins anew from the end of the one before."""
    t, _, x = line()
    y = pr.recurrent((), (t,))
    y[t % 4 == 0] = x + pr.where(t > 0, y[t - 1], 0.0)
    y[t % 4 != 0] = pr.tanh(y[t - t % 4] + y[t - 1] + x)
    return y, [x]


@recurrence
def mirrored_steps() -> Made:
    t, T, x = line()
    y = pr.recurrent((), (t,))
    y[T - 1 - t] = pr.tanh(x + pr.where(t > 0, y[pr.min(T - 1, T - t)], 0.0))
    return y, [x]


@recurrence
def from_both_ends_to_the_middle() -> Made:
    t, T, x = line()
    y = pr.recurrent((), (t,))
    y[t < T // 2] = pr.tanh(x + pr.where(t > 0, y[pr.max(0, t - 1)], 0.0))
    y[t >= T // 2] = pr.tanh(x - pr.where(t < T - 1, y[pr.min(t + 1, T - 1)], 0.0))
    return y, [x]


@recurrence
def all_steps_before() -> Made:
    t, _, x = line()
    y = pr.recurrent((), (t,))
    y[t] = pr.tanh(x + y[0:t].sum(0) + y[0 : t // 2].sum(0))
    return y, [x]


# ---- recurrences inside recurrences


@recurrence
def rows_of_recurrences() -> Made:
    i, _, j, J, x = grid()
    h = pr.recurrent((), (i, j))
    start = pr.where(i > 0, h[i - 1, J - 1], 0.0)
    h[i, 0] = x[i, 0] + start
    h[i, j + 1] = pr.tanh(h[i, j] + x[i, j + 1])
    return h, [x]


@recurrence
def renamed_steps() -> Made:
    """A sum over the steps of a row, read by all of the next."""
    i, _, j, J, x = grid()
    k, _ = pr.dim("k", bound=J)
    h = pr.recurrent((), (i, j))
    h[0, j] = x[0, j]
    near = (h[i, k] * x[i, k] * pr.where(k <= j, 1.0, 0.5))[{k: slice(0, J)}]
    h[i + 1, j] = pr.tanh(near.sum(0) + h[i, J - 1 - j])
    return h, [x]


@recurrence
def snake_through_a_grid() -> Made:
    """Rows go forwards and backwards in turn."""
    i, _, j, J, x = grid()
    h = pr.recurrent((), (i, j))
    h[i, 0] = x[i, 0] + pr.where(i > 0, h[i - 1, J - 1], 0.0)
    h[i, j + 1] = pr.tanh(h[i, j] + pr.where(i % 2 == 0, x[i, j + 1], x[i, J - 2 - j]))
    return h, [x]


@recurrence
def power_iteration() -> Made:
    t, T = pr.dim("t")
    i, I = pr.dim("i")
    j, _ = pr.dim("j", bound=I)
    w = pr.input("w", (), (i, j))
    v = pr.recurrent((), ((t, T + 1), i))
    v[0, i] = 1.0
    y = (w * v[t, j])[{j: slice(0, I)}].sum(0)
    v[t + 1, i] = y / (1.0 + (y**2)[{i: slice(0, I)}].sum(0))
    return v, [w]
