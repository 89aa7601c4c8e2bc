"""What a recurrence takes over is not stored beside its states, however it is written; the results are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr

b, B = pr.dim("b")
t, T = pr.dim("t")
WIDTH = 4

Made = dict[str, Any]


def forwards() -> Made:
    """The textbook's network: the gradient of `tanh` reads its result."""
    x, w = pr.input("x", (WIDTH,), (t,)), pr.input("w", (WIDTH, WIDTH))
    h = pr.recurrent((WIDTH,), (t,), name="h")
    h[0] = x[0]
    h[t + 1] = pr.tanh(h @ w + x[t + 1])
    return {"slopes": pr.grad((h[T - 1] ** 2).sum(), [w, x])}


def longer() -> Made:
    """States from before the first step to after the last; a name for the new state, which a head reads."""
    x, w, v = pr.input("x", (WIDTH,), (t,)), pr.input("w", (WIDTH, WIDTH)), pr.input("v", (WIDTH,))
    h = pr.recurrent((WIDTH,), ((t, T + 1),), name="h")
    new = pr.tanh(h @ w + x)
    h[0] = pr.zeros((WIDTH,))
    h[t + 1] = new
    return {"slopes": pr.grad(((new @ v) ** 2)[0:T].sum(), [w, x, v])}


def backwards() -> Made:
    """From the last step to the first."""
    x, w = pr.input("x", (WIDTH,), (t,)), pr.input("w", (WIDTH,))
    h = pr.recurrent((WIDTH,), (t,), name="h")
    h[T - 1] = x[T - 1]
    h[t - 1] = pr.exp(-pr.abs(h * w))
    return {"slopes": pr.grad((h[0] * x[0]).sum(), [w, x])}


def rows() -> Made:
    """A dim beside the steps, and the states as an output."""
    x, w = pr.input("x", (WIDTH,), (b, t)), pr.input("w", (WIDTH, WIDTH))
    h = pr.recurrent((WIDTH,), (b, t), name="h")
    h[b, 0] = x[b, 0]
    h[b, t + 1] = pr.tanh(x[b, t + 1] - h @ w)
    return {"slope": pr.grad((h[0:B, T - 1] ** 2).sum(), w), "h": h[0:B, 0:T]}


def two_steps() -> Made:
    """States that go on from two steps before."""
    x, w = pr.input("x", (WIDTH,), (t,)), pr.input("w", (WIDTH, WIDTH))
    h = pr.recurrent((WIDTH,), (t,), name="h")
    h[0] = x[0]
    h[1] = pr.where(T > 1, x[1 : pr.min(T, 2)].sum(0), x[0])
    h[t + 2] = pr.tanh(h @ w) + h[t + 1]
    return {"slope": pr.grad((h[T - 1] ** 2).sum(), w)}


PROGRAMS: tuple[Callable[[], Made], ...] = (forwards, longer, backwards, rows, two_steps)
APPLIES = (forwards, longer, backwards, rows)


def data(steps: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        "x": random.normal(size=(steps, WIDTH)).astype("float32"),
        "rows": random.normal(size=(2, steps, WIDTH)).astype("float32"),
        "v": random.normal(size=WIDTH).astype("float32"),
        "w": random.normal(size=(WIDTH, WIDTH)).astype("float32"),
    }


def given(made: Callable[[], Made], steps: int) -> dict[str, Any]:
    arrays = data(steps)
    named = {forwards: "xw", longer: "xwv", backwards: "xw", rows: "xw", two_steps: "xw"}[made]
    found = {name: arrays[name] for name in named}
    return {**found, **({"x": arrays["rows"]} if made is rows else {"w": arrays["v"]} if made is backwards else {})}


def applied(program: pr.Program) -> int:
    return sum(note.by == "states" for note in program.compiled.notes)


@pytest.mark.parametrize("made", APPLIES)
def test_one_of_both_is_stored(made: Callable[[], Made]) -> None:
    program = pr.compile(made(), backend="numpy")
    with pr.settings(without=["states"]):
        plain = pr.compile(made(), backend="numpy")
    (note,) = (note for note in program.compiled.notes if note.by == "states")
    value = note.what.split()[0]
    for one, stored in ((program, False), (plain, True)):
        slots = [str(slot) for slot in one.compiled.storage[value].slots] if value in one.compiled.storage else []
        assert any(slot.startswith("all") for slot in slots) == stored


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("made", PROGRAMS)
def test_the_results_are_the_same(made: Callable[[], Made], backend: str) -> None:
    program = pr.compile(made(), backend=backend)
    for steps in (2, 3, 6):
        inputs = given(made, steps)
        want = pr.evaluate(made(), inputs)
        found = program(**inputs)
        for name, value in want.items():
            for one, other in zip(_list(found[name]), _list(value), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5, err_msg=f"{name} {steps}")


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def test_without_a_gradient_nothing_changes() -> None:
    """What nobody goes back to is not stored anyway."""
    x, w = pr.input("x", (WIDTH,), (t,)), pr.input("w", (WIDTH, WIDTH))
    h = pr.recurrent((WIDTH,), (t,), name="h")
    new = pr.tanh(h @ w + x)
    h[0] = pr.zeros((WIDTH,))
    h[t + 1] = new
    assert applied(pr.compile({"y": (new * 2.0)[0:T], "last": h[T - 1]}, backend="numpy")) == 0
