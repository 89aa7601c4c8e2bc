"""Ordinary programs as a stranger would spread them: each is what the oracle gives, at lengths that do not divide."""

import tempfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import polyrhythm as pr

DEVICES = jax.device_count()
RANDOM = np.random.default_rng(0)
Made = tuple[dict[str, Any], dict[Any, Any], Callable[[int], dict[str, Any]], dict[Any, int]]
"""Outputs, what is spread, the inputs for some rows, and bounds."""


def _normal(*shape: int) -> Any:
    return RANDOM.normal(size=shape).astype("float32")


def _least_squares() -> Made:
    (b, B), (i, I) = pr.dim("b"), pr.dim("i")
    x, y = pr.input("x", (3,), (b,)), pr.input("y", (), (b,))
    w = pr.recurrent((3,), (i,))
    loss = ((x @ w - y) ** 2)[{b: slice(0, B)}].mean() + 0.1 * (w * w).sum()
    w[0] = pr.zeros((3,))
    w[i + 1] = w - 0.1 * pr.grad(loss, w)
    return {"loss": loss, "w": w[I - 1]}, {b: "data"}, lambda n: {"x": _normal(n, 3), "y": _normal(n)}, {I: 5}


def _lstm() -> Made:
    (b, B), (t, T) = pr.dim("b"), pr.dim("t")
    x, wx, wh = pr.input("x", (3,), (b, t)), pr.input("wx", (3, 16)), pr.input("wh", (4, 16))
    h, c = (pr.recurrent((4,), (b, (t, T + 1))) for _ in range(2))
    into, forget, cell, out = pr.split(x @ wx + h @ wh, 4)
    h[b, 0], c[b, 0] = 0.0, 0.0
    c[b, t + 1] = pr.sigmoid(forget) * c + pr.sigmoid(into) * pr.tanh(cell)
    h[b, t + 1] = pr.sigmoid(out) * pr.tanh(c[b, t + 1])
    loss = (h[b, T] ** 2).sum()[{b: slice(0, B)}].mean()
    slope = pr.grad(loss, wh)
    make = lambda n: {"x": _normal(n, 6, 3), "wx": _normal(3, 16), "wh": _normal(4, 16)}  # noqa: E731
    return {"last": h[b, T], "slope": slope}, {b: "data"}, make, {}


def _k_means() -> Made:
    (b, B), (i, I) = pr.dim("b"), pr.dim("i")
    x = pr.input("x", (2,), (b,))
    centres = pr.recurrent((3, 2), (i,))
    nearest = pr.argmin(((centres - x) ** 2).sum(-1), 0)
    own = pr.one_hot(nearest, 3)
    count, total = own[{b: slice(0, B)}].sum(0).reshape((3, 1)), pr.einsum("bk,bd->kd", own[{b: slice(0, B)}], x[0:B])
    centres[0] = pr.input("start", (3, 2))
    centres[i + 1] = pr.where(count > 0, total / pr.maximum(count, 1.0), centres)
    make = lambda n: {"x": _normal(n, 2), "start": _normal(3, 2)}  # noqa: E731
    return {"nearest": nearest, "centres": centres[I - 1]}, {b: "data"}, make, {I: 4}


def _monte_carlo() -> Made:
    b, B = pr.dim("b")
    x = pr.input("x", (), (b,))
    point = pr.uniform((2,), dims=(b,), name="point")
    inside = ((point**2).sum() < 1.0).cast("float32")
    return {"share": inside[0:B].mean(), "moved": x + point}, {b: "data"}, lambda n: {"x": _normal(n)}, {}


def _returns() -> Made:
    (e, E), (t, T) = pr.dim("e"), pr.dim("t")
    reward = pr.input("reward", (), (e, t))
    g = pr.recurrent((), (e, t))
    g[e, T - 1] = reward[e, T - 1]
    g[e, t - 1] = reward[e, t - 1] + 0.9 * g
    centred = g - g[0:E, t].mean(0)
    return {"returns": g, "advantages": centred}, {e: "data"}, lambda n: {"reward": _normal(n, 7)}, {}


def _power_iteration() -> Made:
    (b, B), (i, I) = pr.dim("b"), pr.dim("i")
    x = pr.input("x", (4,), (b,))
    v = pr.recurrent((4,), (i,))
    u = pr.einsum("bd,b->d", x[0:B], (x @ v)[{b: slice(0, B)}])
    v[0] = pr.ones((4,))
    v[i + 1] = u / pr.norm(u)
    return {"v": pr.abs(v[I - 1])}, {b: "data"}, lambda n: {"x": _normal(n, 4)}, {I: 6}


def _attention_gradient() -> Made:
    (b, B), (t, T) = pr.dim("b"), pr.dim("t")
    x, w = pr.input("x", (4,), (b, t)), pr.input("w", (4, 4))
    k = x @ w
    y = pr.softmax(k[b, 0 : t + 1] @ x) @ x[b, 0 : t + 1]
    loss = (y * y).sum()[{b: slice(0, B), t: slice(0, T)}].sum()
    make = lambda n: {"x": _normal(n, 5, 4), "w": _normal(4, 4)}  # noqa: E731
    return {"y": y, "slope": pr.grad(loss, w)}, {b: "data"}, make, {}


def _images() -> Made:
    b, B = pr.dim("b")
    x, w = pr.input("x", (2, 6, 6), (b,)), pr.input("w", (3, 2, 3, 3))
    y = pr.relu(pr.conv2d(x, w))
    pooled = pr.max_pool(y, (2, 2))
    loss = pooled.sum()[{b: slice(0, B)}].mean()
    make = lambda n: {"x": _normal(n, 2, 6, 6), "w": _normal(3, 2, 3, 3)}  # noqa: E731
    return {"pooled": pooled, "slope": pr.grad(loss, w)}, {b: "data"}, make, {}


def _normalised_batch() -> Made:
    b, B = pr.dim("b")
    x, w = pr.input("x", (3,), (b,)), pr.input("w", (3, 3))
    h = x @ w
    all = h[{b: slice(0, B)}]
    y = (h - all.mean(0)) / pr.sqrt(all.var(0) + 1e-3)
    loss = (pr.tanh(y) * x).sum()[{b: slice(0, B)}].sum()
    make = lambda n: {"x": _normal(n, 3), "w": _normal(3, 3)}  # noqa: E731
    return {"y": y, "slope": pr.grad(loss, w)}, {b: "data"}, make, {}


def _dropout() -> Made:
    b, B = pr.dim("b")
    x = pr.input("x", (4,), (b,))
    kept = pr.bernoulli(0.5, (4,), dims=(b,), name="kept")
    y = pr.where(kept, 2.0 * x, 0.0)
    return {"y": y, "mean": y[0:B].mean(0)}, {b: "data"}, lambda n: {"x": _normal(n, 4)}, {}


def _bodies() -> Made:
    (n, N), (i, I) = pr.dim("n"), pr.dim("i")
    p = pr.recurrent((2,), (i, n))
    apart = p[i, 0:N] - p
    force = (apart / (1.0 + (apart * apart).sum(-1, keepdims=True))).sum(0)
    p[0, n] = pr.input("x", (2,), (n,))
    p[i + 1, n] = p + 0.1 * force
    return {"p": p[I - 1, n]}, {n: "data"}, lambda count: {"x": _normal(count, 2)}, {I: 4}


def _life() -> Made:
    (i, I), (r, R) = pr.dim("i"), pr.dim("r")
    board = pr.recurrent((6,), (i, r))
    above = pr.where(r > 0, board[i, r - 1], 0.0)
    below = pr.where(r < R - 1, board[i, r + 1], 0.0)
    column = above + board + below
    near = column + pr.roll(column, 1, -1) + pr.roll(column, -1, -1) - board
    board[0, r] = pr.input("x", (6,), (r,))
    board[i + 1, r] = ((near == 3.0) | ((near == 2.0) & (board > 0.5))).cast("float32")
    make = lambda n: {"x": RANDOM.integers(0, 2, (n, 6)).astype("float32")}  # noqa: E731
    return {"board": board[I - 1, r]}, {r: "data"}, make, {I: 4}


def _value_iteration() -> Made:
    (s, S), (i, I) = pr.dim("s"), pr.dim("i")
    reward, follows = pr.input("reward", (2,), (s,)), pr.input("follows", (2,), (s,), dtype="int32")
    v = pr.recurrent((), (i, s))
    v[0, s] = 0.0
    v[i + 1, s] = (reward + 0.9 * pr.take(v[i, 0:S], follows, 0)).max(0)
    make = lambda n: {"reward": _normal(n, 2), "follows": RANDOM.integers(0, n, (n, 2)).astype("int32")}  # noqa: E731
    return {"v": v[I - 1, s]}, {s: "data"}, make, {I: 6}


def _embedding() -> Made:
    (b, B), (i, I) = pr.dim("b"), pr.dim("i")
    token = pr.input("token", (5,), (b,), dtype="int32")
    table = pr.recurrent((24, 4), (i,))
    rows = pr.take(table, token, 0)
    loss = (rows.sum(0) ** 2).sum()[{b: slice(0, B)}].mean()
    table[0] = pr.input("table", (24, 4))
    table[i + 1] = table - 0.1 * pr.grad(loss, table)
    make = lambda n: {"token": RANDOM.integers(0, 24, (n, 5)).astype("int32"), "table": _normal(24, 4)}  # noqa: E731
    return {"loss": loss, "table": table[I - 1]}, {b: "data", "table": ("data", None)}, make, {I: 3}


def _quantiles() -> Made:
    b, B = pr.dim("b")
    x = pr.input("x", (3,), (b,))
    ranked = pr.argsort(x[0:B], 0)
    best, place = pr.topk(x, 2)
    return (
        {"median": pr.median(x[0:B], 0), "order": ranked, "best": best, "place": place},
        {b: "data"},
        lambda n: {"x": _normal(n, 3)},
        {},
    )


def _smoothed() -> Made:
    (n, N), (t, T) = pr.dim("n"), pr.dim("t")
    x = pr.input("x", (), (n, t))
    level = pr.recurrent((), (n, t))
    level[n, 0] = x[n, 0]
    level[n, t + 1] = 0.7 * level + 0.3 * x[n, t + 1]
    best = level[n, 0 : t + 1].max(0)
    return (
        {"level": level, "best": best, "all": level[0:N, T - 1].sum(0)},
        {n: "data"},
        lambda k: {"x": _normal(k, 9)},
        {},
    )


def _halves() -> Made:
    b, B = pr.dim("b")
    x, w = pr.input("x", (8,), (b,), dtype="bfloat16"), pr.input("w", (8, 8), dtype="bfloat16")
    y = pr.tanh(x @ w)
    make = lambda n: {"x": np.round(_normal(n, 8) * 4) / 4, "w": np.round(_normal(8, 8) * 2) / 4}  # noqa: E731
    return {"y": y.cast("float32"), "sum": y[0:B].cast("float32").sum(0)}, {b: "data"}, make, {}


def _ragged() -> Made:
    b, B = pr.dim("b")
    lengths = pr.input("lengths", (), (b,), dtype="int32")
    s, S = pr.dim("s", extent=lengths, max=5)
    word = pr.input("word", (2,), (b, s))
    total = word[b, 0:S].sum(0)
    return (
        {"total": total, "mean": total[0:B].mean(0)},
        {b: "data"},
        lambda n: {"word": _normal(n, 5, 2), "lengths": RANDOM.integers(0, 6, n).astype("int32")},
        {},
    )


PROGRAMS = (
    *(_least_squares, _lstm, _k_means, _monte_carlo, _returns, _power_iteration, _attention_gradient, _images),
    *(_normalised_batch, _dropout, _bodies, _life, _value_iteration, _embedding, _quantiles, _smoothed, _halves),
    _ragged,
)


def _check(make: Callable[[], Made]) -> None:
    outputs, shard, inputs, bounds = make()
    mesh = jax.make_mesh((DEVICES,), ("data",))
    program = pr.compile(outputs, mesh=mesh, shard=shard)
    for rows in (DEVICES + 2, 2 * DEVICES, 3, 1):
        given = inputs(rows)
        expected, found = pr.evaluate(outputs, given, bounds=bounds, seed=3), program(**given, bounds=bounds, seed=3)
        for name, value in expected.items():
            have = np.asarray(found[name])
            assert have.shape == value.shape, (rows, name)
            close = np.allclose(
                have, value, rtol=1e-3 if make is _halves else 2e-4, atol=1e-2 if make is _halves else 2e-4
            )
            assert close, (rows, name, have, value)


def case_ordinary_programs() -> int:
    failed = []
    for make in PROGRAMS:
        try:
            _check(make)
        except Exception as error:
            failed.append(f"{make.__name__}: {type(error).__name__}: {str(error)[:700]}")
    assert not failed, "\n".join(failed)
    return len(PROGRAMS)


def case_around_the_edges() -> str:
    """What is put around or before one tensor along an axis that is spread is different for each of its readers."""
    b, B = pr.dim("b")
    x = pr.input("x", (4,), (b,))
    all = x[0:B]
    pools = {"highest": pr.max_pool(all.transpose(), 3, 1, 1), "mean": pr.avg_pool(all.transpose(), 3, 1, 1)}
    running = {"sum": pr.cumsum(all, 0), "product": pr.cumprod(all, 0), "max": pr.cummax(all, 0)}
    padded = {f"by {fill}": pr.pad(all, [(1, 1), (0, 0)], fill) for fill in (0.0, 1.0, -2.0)}
    outputs = {**pools, **running, **padded}
    program = pr.compile(outputs, mesh=jax.make_mesh((DEVICES,), ("data",)), shard={b: "data"})
    for rows in (3 * DEVICES, DEVICES + 1, 1):
        given: dict[str, Any] = {"x": RANDOM.integers(-3, 4, (rows, 4)).astype("float32") / 2}
        found, expected = program(**given), pr.evaluate(outputs, given)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=f"{name} of {rows} rows")
    return "ok"


def case_updates_that_do_not_divide() -> str:
    """Gradients of windows add an odd number of rows, where another axis of the mesh has the same ones."""
    x, w = pr.input("x", (8, 8)), pr.input("w", (1, 1, 2, 2))
    losses = {"convolution": pr.conv2d(x.reshape((1, 8, 8)), w), "pool": pr.max_pool(x, 2, 1)}
    outputs = {name: pr.grad(pr.tanh(loss).sum(), x) for name, loss in losses.items()}
    outputs["most"] = pr.zeros((8, 8)).at[1:].max(x.axes[:-1])
    given: dict[str, Any] = {"x": _normal(8, 8), "w": _normal(1, 1, 2, 2)}
    expected = pr.evaluate(outputs, given)
    mesh = jax.make_mesh((2, DEVICES // 2) if DEVICES % 2 == 0 else (DEVICES, 1), ("data", "model"))
    for spec in (("data", None), (None, "data")) if 8 % mesh.shape["data"] == 0 else ():
        found = pr.compile(outputs, mesh=mesh, shard={"x": spec})(**given)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=f"{name} {spec}")
    return "ok"


def case_weights_in_parts() -> str:
    """Convolutions with weights made of arrays that are spread, of images that are spread otherwise, and in groups."""
    x, w, flat = pr.input("x", (2, 8, 8)), pr.input("w", (8, 8)), pr.input("flat", (64,))
    made = {
        "reshaped": pr.reshape(w, (4, 4, 2, 2)).axes[:, :2],
        "cut": w.axes[:4, :4].reshape((4, 1, 2, 2)),
        "transposed": pr.transpose(w).reshape((8, 2, 2, 2)),
        "broadcast": pr.broadcast_to(w.reshape((8, 1, 2, 4)), (8, 2, 2, 4)),
        "flat": flat.reshape((8, 2, 2, 2)),
    }
    y = {
        name: pr.conv2d(x.reshape((1, 2, 8, 8)), weights, groups=2 // weights.type.shape[1].constant)
        for name, weights in made.items()
    }
    y["channels"] = pr.conv2d(pr.reshape(flat, (1, 1, 8, 8)), w.reshape((8, 1, 4, 2)), padding=1)
    y["slope"] = pr.grad((y["flat"] * pr.tanh(y["flat"])).sum(), flat)
    given: dict[str, Any] = {"x": _normal(2, 8, 8), "w": _normal(8, 8), "flat": _normal(64)}
    expected = pr.evaluate(y, given)
    line = jax.make_mesh((DEVICES,), ("data",))
    grid = jax.make_mesh((2, DEVICES // 2), ("data", "model")) if DEVICES % 2 == 0 else line
    last = grid.axis_names[-1]
    for mesh, shard in (
        (line, {"x": (None, "data"), "w": ("data",), "flat": ("data",)}),
        (grid, {"x": (None, "data"), "w": (last,), "flat": (last,)}),
        (grid, {"x": (None, None, last), "w": (None, "data"), "flat": ("data",)}),
    ):
        if all(8 % n == 0 for n in mesh.shape.values()):
            found = pr.compile(y, mesh=mesh, shard=shard)(**given)
            for name, value in expected.items():
                np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4, err_msg=f"{name} {shard}")
    return "ok"


def case_fourier() -> str:
    """Transforms along an axis that is spread, forth and back, with gradients."""
    x, k = pr.input("x", (8, 16)), pr.input("k", (16,))
    both = pr.fft.rfft(x) * pr.fft.rfft(k)
    y = pr.fft.irfft(both, 16)
    slopes = dict(zip("xk", pr.grad((y * pr.tanh(y)).sum(), [x, k]), strict=True))
    outputs = {"there": pr.abs(both), "back": y, **slopes}
    given: dict[str, Any] = {"x": _normal(8, 16), "k": _normal(16)}
    expected = pr.evaluate(outputs, given)
    mesh = jax.make_mesh((2, DEVICES // 2) if DEVICES % 2 == 0 else (DEVICES, 1), ("data", "model"))
    shards: list[dict[Any, Any]] = [{"x": ("model", "data"), "k": ("data",)}, {"x": (None, ("data", "model"))}]
    for shard in shards if DEVICES in (1, 2, 4, 8) else ():
        found = pr.compile(outputs, mesh=mesh, shard=shard)(**given)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-3, err_msg=f"{name} {shard}")
    return "ok"


def case_items_and_files() -> str:
    """Batches that come one by one, or lie in a file, with their rows spread: as a dim, and as an axis of the input."""
    (b, B), (i, I) = pr.dim("b"), pr.dim("i")
    rows, whole = pr.input("x", (4,), (i, b)), pr.input("x", (24, 4), (i,))
    mesh = jax.make_mesh((DEVICES,), ("data",))
    shards: list[tuple[Any, dict[Any, Any]]] = [(rows[{b: slice(0, B)}], {b: "data"}), (whole, {"x": (None, "data")})]
    for batch, shard in shards:
        w = pr.recurrent((4,), (i,))
        loss = ((batch @ w - 1.0) ** 2).mean()
        w[0] = 0.0
        w[i + 1] = w - 0.1 * pr.grad(loss, w)
        outputs = {"loss": loss, "last": w[I - 1]}
        program = pr.compile(outputs, mesh=mesh, shard=shard)
        for count in (24, 5) if b in shard else (24,):
            data = _normal(9, count, 4)
            expected = pr.evaluate(outputs, {"x": data})
            bounds = {I: 9, B: count} if b in shard else {I: 9}
            with tempfile.TemporaryDirectory() as folder:
                np.save(f"{folder}/x.npy", data)
                ways: list[tuple[Any, Any]] = [(iter(data), bounds), (np.load(f"{folder}/x.npy", mmap_mode="r"), None)]
                for given, known in ways:
                    found = program(x=given, bounds=known)
                    for name, value in expected.items():
                        assert np.allclose(found[name], value, rtol=2e-4, atol=2e-4), (name, count)
    return "ok"
