"""Ranges that begin at a step are read where they lie on JAX: whatever is done with them, and whatever lies around."""

from __future__ import annotations

from typing import Any

import numpy as np

import polyrhythm as pr
from tests.compiler.backends.hlo import large, optimised

WIDTH = 3


def tails(t: pr.Dim, T: pr.Bound) -> dict[str, pr.Tensor]:
    """What can be done with the steps from the current one on: along that axis alike, or by position."""
    x, y = (pr.tanh(pr.input(name, (WIDTH,), (t,))) for name in "xy")
    later, same, after = x[t:T], y[t:T], y[t + 1 : T]
    return {
        "sum": later.sum(0),
        "greatest": (later * 2.0 - same).max(0),
        "softmax": pr.einsum("s,sd->d", pr.softmax(later @ x, 0), same),
        "square": pr.einsum("ad,bd->ab", later, later).sum(),
        "transposed": (pr.transpose(later, (1, 0)) @ same).sum(0),
        "strictly later": pr.einsum("sd,s->d", after, after @ x),
        "from the front too": (later * y[0 : T - t]).sum(0),
        "numbered": (later * pr.value(t).cast("float32") + pr.arange(T - t).cast("float32").reshape(T - t, 1)).sum(0),
        "running": later.cumsum(0).max(0) + later.axes[0],
        "turned": pr.concat([same, later], 0).sum(0) + later.argmax(0).cast("float32"),
        "folded": (later.reshape((T - t) * WIDTH) * pr.exp(same).reshape((T - t) * WIDTH)).sum(),
    }


def given(steps: int, spoiled: tuple[int, float] | None = None) -> dict[str, Any]:
    rng = np.random.default_rng(steps)
    arrays = {name: rng.normal(size=(steps, WIDTH)).astype("float32") for name in "xy"}
    if spoiled is not None:
        arrays["x"][spoiled[0]] = spoiled[1]
    return arrays


def check(outputs: Any, program: pr.Program, arrays: dict[str, Any]) -> None:
    with np.errstate(all="ignore"):
        expected = pr.evaluate(outputs, arrays)
    found = program(**arrays)
    for name in expected:
        np.testing.assert_allclose(np.asarray(found[name]), expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_whatever_is_done_along_the_axis() -> None:
    """Also where steps before the range hold no numbers: they are not read."""
    t, T = pr.dim("t")
    outputs = tails(t, T)
    program = pr.compile(outputs)
    for steps in (1, 2, 5, 8):
        check(outputs, program, given(steps))
    check(outputs, program, given(8, (2, np.nan)))


def test_step_after_step() -> None:
    """A recurrence that reads what is still to come, as it lies."""
    t, T = pr.dim("t")
    x = pr.tanh(pr.input("x", (WIDTH,), (t,)))
    h = pr.recurrent((WIDTH,), ((t, T + 1),))
    h[0] = 0.0
    h[t + 1] = pr.tanh(h + pr.einsum("sd,s->d", x[t:T], pr.softmax(x[t:T] @ h, 0)))
    outputs = {"h": h}
    program = pr.compile(outputs)
    for steps in (1, 5, 8):
        arrays = {"x": given(steps)["x"]}
        check(outputs, program, arrays)
    arrays["x"][2] = np.nan
    check(outputs, program, arrays)


def attention(width: int, dtype: str = "float32") -> Any:
    """The gradients of causal attention, for rows of a batch."""
    b, B = pr.dim("b")
    t, T = pr.dim("t")
    q, k, v = (pr.input(name, (2, width), (b, t), dtype) for name in "qkv")
    past = (b, slice(0, t + 1))
    weights = pr.softmax(pr.einsum("hd,shd->hs", q * 1.0, (k * 2.0)[past]))
    mixed = pr.einsum("hs,shd->hd", weights, (v * 3.0)[past])
    return pr.grad((mixed * mixed)[0:B, 0:T].sum(), {"q": q, "k": k, "v": v})


def test_gradients_of_attention() -> None:
    outputs = attention(4, "float64")
    program = pr.compile(outputs)
    rng = np.random.default_rng(0)
    for steps in (5, 8):
        check(outputs, program, {name: rng.normal(size=(2, steps, 2, 4)) for name in "qkv"})


def test_no_step_has_a_copy_of_all_others() -> None:
    """Nothing is as large as steps times steps times width, and no step looks for its part of all weights."""
    steps, width = 32, 16
    arrays = {name: np.ones((2, steps, 2, width), "float32") for name in "qkv"}
    text = optimised(pr.compile(attention(width)), **arrays)
    anything = tuple({line.split("(")[0].split()[-1] for line in text.splitlines() if " = " in line and "(" in line})
    assert {"dot", "fusion"} & set(anything)
    assert large(text, anything, steps * steps * width) == []
    assert large(text, ("gather",), steps * steps) == []
