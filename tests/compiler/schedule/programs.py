"""Programs whose best schedule and storage are known. Each returns its outputs."""

from __future__ import annotations

from collections.abc import Callable

import polyrhythm as pr

Outputs = dict[str, pr.Tensor]
SIZE = 4


def reinforce(returns: str, n: int = 3) -> Outputs:
    """REINFORCE with a linear policy and a baseline; the gradient is gathered step by step, weights change per episode.

    `returns` is "monte_carlo", "td" (TD(1)), "rewards" (n rewards ahead) or "values" (the value n steps ahead).
    """
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    noise = pr.input("noise", (SIZE,), (i, t))
    weights = pr.recurrent((SIZE,), ((i, I + 1),))
    seen = pr.recurrent((SIZE,), (i, (t, T + 1)))
    action = pr.tanh((weights * seen).sum())
    value = (weights * weights * seen).sum()
    reward = -(action * action)
    seen[i, 0] = 1.0
    seen[i, t + 1] = 0.9 * seen + action * noise
    if returns == "monte_carlo":
        gain = reward[i, t:T].sum(0)
    elif returns == "td":
        gain = reward + 0.9 * value[i, t + 1]
    elif returns == "rewards":
        gain = reward[i, t : pr.min(t + n, T)].sum(0)
    else:
        gain = value[i, pr.min(t + n, T)]
    gradient = pr.recurrent((SIZE,), (i, (t, T + 1)))
    gradient[i, 0] = 0.0
    gradient[i, t + 1] = gradient + (gain - value) * seen
    weights[0] = 0.1
    weights[i + 1] = weights + 0.1 * gradient[i, T]
    return {"weights": weights[I]}


def taps(k: int = 4) -> Outputs:
    """A filter over the last k values of a computed signal."""
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    return {"y": pr.tanh(x)[pr.max(0, t - k + 1) : t + 1].sum(0)}


def ema() -> Outputs:
    """The last exponential moving average."""
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    y = pr.recurrent((), (t,))
    y[0] = x[0]
    y[t + 1] = 0.9 * y + 0.1 * x[t + 1]
    return {"last": y[T - 1]}


def window(w: int = 3) -> Outputs:
    """Attention to the last w keys."""
    t, _ = pr.dim("t")
    x = pr.input("x", (SIZE,), (t,))
    wq, wk, wv = (pr.input(name, (SIZE, SIZE)) for name in ("wq", "wk", "wv"))
    near = slice(pr.max(0, t - w + 1), t + 1)
    shares = pr.softmax((x @ wk)[near] @ (x @ wq), 0)
    return {"y": shares @ (x @ wv)[near]}


def edit_distance() -> Outputs:
    """Only the distance, not the table."""
    i, I = pr.dim("i")
    j, J = pr.dim("j")
    a = pr.input("a", (), (i,), "int32")
    b = pr.input("b", (), (j,), "int32")
    d = pr.recurrent((), ((i, I + 1), (j, J + 1)), "int32")
    d[i == 0] = pr.value(j)
    d[(j == 0) & (i > 0)] = pr.value(i)
    d[i + 1, j + 1] = pr.minimum(d + pr.where(a == b, 0, 1), pr.minimum(d[i, j + 1], d[i + 1, j]) + 1)
    return {"distance": d[I, J]}


def bidirectional() -> Outputs:
    """A forward and a backward RNN, read together."""
    t, T = pr.dim("t")
    x = pr.input("x", (SIZE,), (t,))
    w = pr.input("w", (SIZE, SIZE))
    forwards = pr.recurrent((SIZE,), ((t, T + 1),))
    forwards[0] = 0.0
    forwards[t + 1] = pr.tanh(x + forwards @ w)
    backwards = pr.recurrent((SIZE,), ((t, T + 1),))
    backwards[T] = 0.0
    backwards[t] = pr.tanh(x + backwards[t + 1] @ w)
    return {"y": forwards[t + 1] * backwards}


def gae() -> Outputs:
    """Generalised advantages, from the back."""
    t, T = pr.dim("t")
    r = pr.input("r", (), (t,))
    v = pr.input("v", (), ((t, T + 1),))
    advantage = pr.recurrent((), ((t, T + 1),))
    advantage[T] = 0.0
    advantage[t] = r + 0.9 * v[t + 1] - v + 0.7 * advantage[t + 1]
    return {"first": advantage[0], "targets": advantage[t] + v}


def decode() -> Outputs:
    """Greedy decoding with one layer of causal attention."""
    t, _ = pr.dim("t")
    embedding = pr.input("embedding", (5, SIZE))
    wq, wk, wv = (pr.input(name, (SIZE, SIZE)) for name in ("wq", "wk", "wv"))
    token = pr.recurrent((), (t,), "int32")
    x = pr.one_hot(token, 5) @ embedding
    shares = pr.softmax((x @ wk)[0 : t + 1] @ (x @ wq), 0)
    scores = (shares @ (x @ wv)[0 : t + 1]) @ embedding.transpose()
    token[0] = 1
    token[t + 1] = scores.argmax().cast("int32")
    return {"tokens": token}


def training() -> Outputs:
    """Back-propagation through time over batch, iteration and step, with hand-written gradients."""
    i, I = pr.dim("i")
    b, B = pr.dim("b")
    t, T = pr.dim("t")
    x = pr.input("x", (), (b, t))
    goal = pr.input("goal", (), (b, t))
    keep = pr.recurrent((), ((i, I + 1),))
    h = pr.recurrent((), (b, i, (t, T + 1)))
    h[b, i, 0] = 0.0
    h[b, i, t + 1] = keep * h + x
    error = h[b, i, t + 1] - goal
    later = pr.recurrent((), (b, i, (t, T + 1)))
    later[b, i, T] = 0.0
    later[b, i, t] = error + keep * later[b, i, t + 1]
    keep[0] = 0.5
    keep[i + 1] = keep - 0.05 * (later[b, i, t] * h)[0:B, i, 0:T].sum()
    return {"keep": keep[I], "loss": (error * error)[0:B, i, 0:T].sum()}


PROGRAMS: dict[str, Callable[[], Outputs]] = {
    "reinforce_monte_carlo": lambda: reinforce("monte_carlo"),
    "reinforce_td": lambda: reinforce("td"),
    "reinforce_n_rewards": lambda: reinforce("rewards"),
    "reinforce_n_values": lambda: reinforce("values"),
    "taps": taps,
    "ema": ema,
    "window": window,
    "edit_distance": edit_distance,
    "bidirectional": bidirectional,
    "gae": gae,
    "decode": decode,
    "training": training,
}
