"""A collection of small programs, for tests that want graphs of every kind."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import polyrhythm as pr
from polyrhythm.compiler.analysis.check import checked
from polyrhythm.compiler.ir.conditions import TRUE
from polyrhythm.compiler.ir.graph import Definition, Graph
from polyrhythm.compiler.trace import trace
from polyrhythm.language.trees import flattened

PROGRAMS: dict[str, Callable[[], Graph]] = {}


def graph_of(outputs: Any, effects: Any = (), until: Mapping[Any, Any] | None = None) -> Graph:
    """The checked graph of some outputs."""
    return checked(trace(flattened(outputs)[0], effects, until))


def program(build: Callable[[], Graph]) -> Callable[[], Graph]:
    PROGRAMS[build.__name__] = build
    return build


@program
def moving_average() -> Graph:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    y = pr.recurrent((3,), (t,))
    y[0] = x[0]
    y[t + 1] = 0.9 * y + 0.1 * x[t + 1]
    return graph_of({"last": y[T - 1], "mean": y[0:T].mean(0)})


@program
def fibonacci() -> Graph:
    t, _ = pr.dim("t")
    f = pr.recurrent((), (t,), "int32")
    f[0] = 0
    f[1] = 1
    f[t + 2] = f[t + 1] + f
    return graph_of(f)


@program
def causal_attention() -> Graph:
    t, _ = pr.dim("t", max=128)
    q, k, v = (pr.input(name, (8,), (t,)) for name in "qkv")
    scores = pr.einsum("sd,d->s", k[0 : t + 1], q) * 0.5
    return graph_of(pr.einsum("s,sd->d", pr.softmax(scores, 0), v[0 : t + 1]))


@program
def windowed_sum() -> Graph:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    return graph_of(pr.window(x, t, 4).sum(0))


@program
def returns() -> Graph:
    t, T = pr.dim("t")
    r = pr.input("r", (), (t,))
    value = pr.recurrent((), ((t, T + 1),))
    value[T] = 0.0
    value[t] = r + 0.99 * value[t + 1]
    return graph_of((value, r[t:T].sum(0), pr.where(t < T - 2, r[pr.min(t + 2, T - 1)], 0.0)))


@program
def edit_distance() -> Graph:
    i, _ = pr.dim("i")
    j, _ = pr.dim("j")
    a, b = pr.input("a", (), (i,), "int32"), pr.input("b", (), (j,), "int32")
    d = pr.recurrent((), (i, j), "int32")
    d[(i == 0) | (j == 0)] = pr.value(pr.max(i, j))
    d[pr.otherwise] = pr.minimum(d[i - 1, j - 1] + pr.cast(a != b, "int32"), pr.minimum(d[i - 1, j], d[i, j - 1]) + 1)
    return graph_of(d)


@program
def strides() -> Graph:
    t, T = pr.dim("t")
    x = pr.input("x", (2,), (t,))
    even = x[2 * (t // 2)]
    backwards = x[::-1]
    other = x[0:T:3]
    parity = pr.where(t % 2 == 1, x[t - 1], x)
    return graph_of((even, backwards, other, parity))


@program
def prompt() -> Graph:
    t, T = pr.dim("t")
    P = pr.size("P", max=T)
    given = pr.input("prompt", (), (t,), "int32")
    token = pr.recurrent((), (t,), "int32")
    token[t < P] = given
    token[pr.otherwise] = pr.where(t > 0, token[pr.max(t - 1, 0)] + 1, 0)
    return graph_of(token)


@program
def ragged() -> Graph:
    b, _ = pr.dim("b")
    lengths = pr.input("lengths", (), (b,), "int32")
    t, T = pr.dim("t", max=16, extent=lengths)
    x = pr.input("x", (), (b, t))
    y = pr.recurrent((), (b, t))
    y[b, 0] = x[b, 0]
    y[b, t + 1] = y + x[b, t + 1]
    return graph_of((y, x[b, 0:T].sum(0)))


@program
def decoding() -> Graph:
    t, _ = pr.dim("t", max=32)
    token = pr.recurrent((), (t,), "int32")
    token[0] = 1
    token[t + 1] = token * 5 % 17
    return graph_of(token, until={t: token == 11})


@program
def host_calls() -> Graph:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    pair = pr.host(lambda v: (v, v), [x], [(), (2,)], ["f32", "i32"])
    log = pr.host(print, [pair[1]], (), "int32", effect="console")
    other = pr.host(lambda v: v, [x], ())
    return graph_of((pair[0], other), effects=[log])


@program
def randomness() -> Graph:
    t, _ = pr.dim("t")
    return graph_of((pr.normal((3,), dims=(t,)), pr.uniform((2,), name="a site")))


@program
def literals() -> Graph:
    w = pr.constant(np.arange(40, dtype=np.float32).reshape(4, 10) / 7)
    z = pr.constant(np.zeros((4, 10), np.float32))
    nan = pr.constant(np.array([np.nan, -0.0, np.inf, 1e-30], np.float32))
    half = pr.cast(pr.constant(np.array([0.1, 2.0, 3e4, 0.0]), "bf16"), "f16")
    bits = pr.constant(np.array([[True], [False], [True], [True]]))
    return graph_of((w + z, nan, half, bits, pr.pad(nan, 1, value=-np.inf)))


@program
def parameters() -> Graph:
    w = pr.parameter("layers.0.weight", (2, 3), init=np.ones((2, 3)))
    odd = pr.input("an odd name", (3,))
    return graph_of(pr.einsum("ij,j->i", w, odd))


@program
def array_functions() -> Graph:
    t, T = pr.dim("t")
    N = pr.size("N")
    x = pr.input("x", (N, 4), (t,))
    image = pr.input("image", (1, 2, 8, 8))
    kernel = pr.input("kernel", (3, 2, 3, 3))
    return graph_of(
        (
            pr.sort(x, 0),
            pr.concat([x, x], 0),
            x.reshape((4 * N,)),
            pr.cumsum(x, 0),
            pr.take(x, pr.arange(2), 1),
            pr.conv2d(image, kernel),
            pr.one_hot(pr.value(t % 3), 5),
            x[0:T].sum(0).T,
        )
    )


@program
def three_dims() -> Graph:
    b, B = pr.dim("b")
    i, _ = pr.dim("i")
    t, T = pr.dim("t")
    x = pr.input("x", (2,), (b, t))
    w = pr.recurrent((2,), (i,))
    h = pr.recurrent((2,), (b, i, t))
    h[b, i, 0] = x[b, 0] * w
    h[b, i, t + 1] = h * 0.5 + x[b, t + 1] * w
    w[0] = pr.ones((2,))
    w[i + 1] = w - 0.1 * h[0:B, i, T - 1].sum(0)
    return graph_of(w)


@program
def same_names() -> Graph:
    t, _ = pr.dim("t")
    other, _ = pr.dim("t")
    x, y = pr.input("x", (), (t,)), pr.input("y", (), (other,))
    return graph_of(x + y)


def everywhere(op: str, **attributes: Any) -> Definition:
    """A definition without a condition and operands."""
    return Definition(TRUE, op, (), attributes)
