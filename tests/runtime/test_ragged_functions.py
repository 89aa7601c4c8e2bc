"""Functions over rows of different lengths: values as in the oracle, slopes as by differences, on every backend.

Linear algebra in a filter, updates in place, convolutions and orders of whole rows, rows of two lists, CTC, a prior
over growing matrices. Beyond the ends of rows inputs have NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import nn

SIZES, OTHERS = np.array([3, 1, 5, 2], "int32"), np.array([2, 4, 1, 3], "int32")


class Form(NamedTuple):
    """What a program returns, its loss, what the loss is differentiated by, and the inputs."""

    outputs: dict[str, pr.Tensor]
    loss: pr.Tensor
    by: list[pr.Tensor]
    given: dict[str, Any]


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def rows(sizes: np.ndarray, *shape: int) -> np.ndarray:
    inside = np.arange(sizes.max()) < sizes[:, None]
    return np.where(inside.reshape(*inside.shape, *[1] * len(shape)), drawn(*inside.shape, *shape), np.nan)


def ragged(name: str = "s") -> tuple[pr.Dim, pr.Bound, pr.Dim, pr.Bound]:
    b, B = pr.dim("b")
    return b, B, *pr.dim(name, extent=pr.input("sizes", (), (b,), "int32"), min=1)


def f8(name: str, shape: tuple[int, ...], dims: tuple[pr.Dim, ...] = ()) -> pr.Tensor:
    return pr.input(name, shape, dims, "float64")


def filtered() -> Form:
    b, B, s, S = ragged()
    x, a, eye = f8("x", (2,), (b, s)), f8("a", (2, 2)), pr.eye(2, dtype="float64")
    mean, spread = pr.recurrent((2,), (b, s), "float64"), pr.recurrent((2, 2), (b, s), "float64")
    mean[b, 0], spread[b, 0] = x[b, 0], eye
    ahead = a @ spread @ a.mT + 0.1 * eye
    gain = ahead @ pr.linalg.inv(ahead + 0.5 * eye)
    mean[b, s + 1] = a @ mean + gain @ (x[b, s + 1] - a @ mean)
    spread[b, s + 1] = (eye - gain) @ ahead
    each = (mean**2).sum(0) + pr.linalg.slogdet(spread)[1]
    return Form({"mean": mean}, each[b, 0:S].sum(0)[0:B].sum(0), [a, x], {"x": rows(SIZES, 2), "a": drawn(2, 2) / 2})


def updated() -> Form:
    b, B, s, S = ragged()
    x, place = f8("x", (), (b, s)), pr.input("place", (), (b, s), "int32")
    table = pr.recurrent((4,), (b, s), "float64")
    table[b, 0] = pr.zeros((4,), "float64").at[place[b, 0]].set(x[b, 0])
    table[b, s + 1] = table.at[place[b, s + 1]].add(2 * x[b, s + 1]).at[0].max(x[b, s + 1])
    given = {"x": rows(SIZES), "place": np.arange(20, dtype="int32").reshape(4, 5) * 7 % 4}
    return Form({"table": table}, (table**2).sum()[b, 0:S].sum(0)[0:B].sum(0), [x], given)


def convolved() -> Form:
    b, B, s, S = ragged()
    x, w = f8("x", (2,), (b, s)), f8("w", (3, 2, 3))
    y = pr.conv1d(x[b, 0:S].mT, w, padding="same", dilation=2)
    return Form({}, (y**2).sum()[0:B].sum(0), [x, w], {"x": rows(SIZES, 2), "w": drawn(3, 2, 3)})


def ordered() -> Form:
    b, B, s, S = ragged()
    x = f8("x", (), (b, s))
    row = x[b, 0:S]
    made = {"median": pr.median(row, 0), "low": pr.quantile(row, 0.3, 0), "top": pr.topk(row, 1, 0)[0].sum()}
    made |= {"sorted": pr.sort(row, 0), "first": row.argmax(0), "picked": pr.take(row, row.argmin(0), axis=0)}
    loss = (made["median"] * made["low"] + made["top"] + pr.std(row, 0) * made["picked"])[0:B].sum(0)
    return Form(made, loss, [x], {"x": rows(SIZES)})


def of_two_lists() -> Form:
    b, B, s, S = ragged()
    q, Q = pr.dim("q", extent=pr.input("others", (), (b,), "int32"), min=1)
    x, y, w = f8("x", (2,), (b, s)), f8("y", (2,), (b, q)), f8("w", (2, 2))
    mixed = pr.softmax(y[b, 0:Q] @ (x @ w), 0) @ y[b, 0:Q]
    h = pr.recurrent((2,), (b, q), "float64")
    h[b, 0] = pr.tanh(y[b, 0] @ w)
    h[b, q + 1] = pr.tanh(h @ w + y[b, q + 1])
    each = (mixed**2).sum(0)[b, 0:S].sum(0) + h[b, Q - 1].sum(0) * mixed[b, S - 1].sum(0)
    given = {"others": OTHERS, "x": rows(SIZES, 2), "y": rows(OTHERS, 2), "w": drawn(2, 2)}
    return Form({"mixed": mixed, "h": h}, each[0:B].sum(0), [w, x, y], given)


def aligned() -> Form:
    b, B, t, _ = ragged("t")
    x, label = f8("x", (5,), (b, t)), pr.input("label", (1,), (b,), "int32")
    given = {"x": rows(SIZES, 5), "label": np.array([[1], [3], [2], [4]], "int32")}
    return Form({}, nn.ctc(t, pr.log_softmax(x), label)[0:B].sum(0), [x], given)


def lost() -> Form:
    b, B, s, S = ragged()
    z, x, y = f8("z", (4,), (b, s)), f8("x", (), (b, s)), pr.input("y", (), (b, s), "int32")
    each = nn.cross_entropy(z, y) + nn.huber(x, z.axes[0], 0.5) + nn.kl_divergence(z, z * 0.5)
    each = each + nn.binary_cross_entropy(x, pr.sigmoid(z.axes[1]))
    given = {"z": rows(SIZES, 4), "x": rows(SIZES), "y": np.arange(20, dtype="int32").reshape(4, 5) % 4}
    return Form({"each": each}, each[b, 0:S].mean(0)[0:B].mean(0), [z, x], given)


def ending() -> Form:
    """Rows that end by `until` once they are sure, and look back at all their steps."""
    b, B, n, N = *pr.dim("b"), *pr.dim("n")
    x, w = f8("x", (2,), (b,)), f8("w", (2, 2))
    h = pr.recurrent((2,), (b, n), "float64")
    h[b, 0] = x
    h[b, n + 1] = pr.tanh(h @ w) + 0.9 * h
    sure, last = pr.sigmoid(h.sum(0)), h[b, N - 1]
    mixed = pr.softmax((h @ w)[b, 0:N] @ last, 0) @ h[b, 0:N]
    loss = ((last**2).sum(0) + mixed.sum(0) + pr.var(sure[b, 0:N], 0))[0:B].sum(0)
    until, given = {n: (sure > 0.93) | (pr.value(n) >= 6)}, {"x": drawn(4, 2), "w": drawn(2, 2) / 2}
    return Form({"last": last, "steps": pr.value(N)}, loss, [w, x], {**given, "until": until, "bounds": {N: 20}})


def prior() -> Form:
    """A Gaussian process at each step over the steps before: matrices that grow by a row and a column."""
    t, T = pr.dim("t")
    x, y, width = f8("x", (2,), (t,)), f8("y", (), (t,)), f8("width", ())
    points = x[0 : t + 1]
    apart = ((points.unsqueeze(1) - points.unsqueeze(0)) ** 2).sum(2)
    factor = pr.linalg.cholesky(pr.exp(-width * apart) + 0.3 * pr.eye(t + 1, dtype="float64"))
    white = pr.linalg.triangular_solve(factor, y[0 : t + 1], lower=True)
    each = (white**2).sum() + 2 * pr.log(pr.diagonal(factor)).sum()
    given = {"x": drawn(5, 2), "y": drawn(5), "width": np.array(0.7)}
    return Form({"each": each}, each[0:T].sum(0), [x, y, width], given)


FORMS: list[Callable[[], Form]] = [filtered, updated, convolved, ordered, of_two_lists, aligned, lost, ending, prior]


def flat(value: Any) -> list[np.ndarray]:
    if isinstance(value, dict):
        return [array for key in sorted(value) for array in flat(value[key])]
    if isinstance(value, list):
        return [array for part in value for array in flat(part)]
    if isinstance(value, pr.Ragged):
        return [np.asarray(value.lengths), np.asarray(value.values)]
    return [np.asarray(value)]


@pytest.mark.parametrize("backend", ["numpy", *(pytest.param(b, marks=pytest.mark.slow) for b in ("torch", "jax"))])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_functions_over_rows(form: Callable[[], Form], backend: str) -> None:
    outputs, loss, by, given = form()
    until, bounds = given.pop("until", None), given.pop("bounds", None)
    given = given if form in (ending, prior) else {"sizes": SIZES, **given}
    everything = {"outputs": outputs, "loss": loss, "slopes": pr.grad(loss, by)}
    program = pr.compile(everything, until=until, backend=backend)
    have = program(bounds=bounds, **given)
    want = pr.evaluate(everything, given, bounds=bounds, until=until)
    for one, other in zip(flat(have), flat(want), strict=True):
        np.testing.assert_allclose(one, other, 1e-7, 1e-8)
    rise, small, names = 0.0, 1e-6, [str(tensor.name) for tensor in by]
    ways = {name: np.random.default_rng(5).normal(size=given[name].shape) for name in names}
    for name, slope in zip(names, have["slopes"], strict=True):
        array = np.asarray(getattr(slope, "values", slope))
        rise += float((array * ways[name][(..., *map(slice, array.shape))]).sum())
    ends = [{**given, **{n: given[n] + sign * small * way for n, way in ways.items()}} for sign in (1, -1)]
    up, down = (float(program(bounds=bounds, **end)["loss"]) for end in ends)
    np.testing.assert_allclose((up - down) / (2 * small), rise, 1e-5, 1e-6)
