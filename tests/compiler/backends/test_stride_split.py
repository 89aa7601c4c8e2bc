"""Buffers that are read with a stride are kept apart by remainder while a loop runs; what comes of it is the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.trace.places import separated, together
from polyrhythm.compiler.legality import IllegalProgramError, check_splits
from polyrhythm.compiler.loops.ir import For, Item, Split, mapped, walk


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 6, 7])
@pytest.mark.parametrize("at", [0, 1])
def test_an_array_is_taken_apart_and_put_together(step: int, size: int, at: int) -> None:
    whole = np.arange(2 * size).reshape((size, 2) if at == 0 else (2, size))
    parts = separated(jnp.asarray(whole), at, step)
    for number, part in enumerate(parts.arrays):
        own = whole.take(np.arange(number, size, step), at)
        np.testing.assert_array_equal(np.asarray(part).take(np.arange(own.shape[at]), at), own)
    np.testing.assert_array_equal(together(parts, size), whole)


@dataclass(frozen=True)
class Attention:
    """Steps that attend to every so many before them; `kind` is what else happens."""

    t: pr.Dim
    h: pr.Tensor
    until: dict[Any, Any] | None

    def compiled(self) -> pr.Program:
        return pr.compile(self.h, until=self.until)

    def expected(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(pr.evaluate(self.h, {"x": x}, until=self.until))


def attention(stride: int, kind: str = "plain") -> Attention:
    t, _ = pr.dim("t")
    x = pr.input("x", (2, 4), (t,))
    h = pr.recurrent((2, 4), (t,))
    past: Any = slice(t % stride, t + 1, stride)
    weights = pr.einsum("hd,shd->hs", h, (h * 0.5)[past]).softmax(-1)
    seen = pr.einsum("hs,shd->hd", weights, pr.tanh(h)[past])
    h[0] = x[0]
    if kind == "two pieces":  # under a guard, so that stores are masked by more than the remainder
        h[(t > 0) & (t % 3 == 1)] = x - 0.1 * h[t - 1]
        h[(t > 0) & (t % 3 != 1)] = x + 0.3 * seen[t - 1]
    else:
        h[t + 1] = x[t + 1] + 0.3 * seen
    return Attention(t, h, {t: h.sum() > 1.5} if kind == "until" else None)


def steps(count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, 2, 4)).astype("float32")


def apart(program: pr.Program) -> int:
    """How many buffers some loop keeps apart."""
    loops = [item for item in walk(program.backend.program.body) if isinstance(item, For) and not item.parallel]
    return sum(len(loop.splits) for loop in loops)


@pytest.mark.parametrize(
    ("stride", "kind"),
    [
        (2, "plain"),
        (3, "until"),
        *(pytest.param(stride, kind, marks=pytest.mark.slow) for stride in (2, 3) for kind in ("two pieces", "plain")),
    ],
)
def test_results_are_those_of_the_oracle(stride: int, kind: str) -> None:
    some = attention(stride, kind)
    program = some.compiled()
    assert apart(program), "nothing is kept apart"
    for count in (2, 19):
        np.testing.assert_allclose(program(x=steps(count)), some.expected(steps(count)), rtol=0, atol=1e-5)


def test_a_value_that_is_not_finite_does_not_reach_the_other_steps() -> None:
    """Slots of the other remainder are not touched: what is not read cannot spoil a step."""
    some, x = attention(2), steps(9)
    x[4] = np.inf
    np.testing.assert_array_equal(np.isfinite(some.compiled()(x=x)), np.isfinite(some.expected(x)))


def test_a_stream_goes_on_with_the_same_values() -> None:
    some, x = attention(2), steps(9)
    found = [np.asarray(step) for step in some.compiled().stream(over=some.t, x=x)]
    np.testing.assert_allclose(np.stack(found), some.expected(x), rtol=0, atol=1e-5)


def test_reads_with_different_strides_are_left_as_they_are() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (2, 4), (t,))
    h = pr.recurrent((2, 4), (t,))
    past: Any = slice(t % 2, t + 1, 2)
    other: Any = slice(t % 3, t + 1, 3)
    h[0] = x[0]
    scores = pr.einsum("hd,shd->hs", h, h[past]).sum() + pr.einsum("hd,shd->hs", h, h[other]).sum()
    h[t + 1] = x[t + 1] + 0.1 * pr.tanh(scores)
    program = pr.compile(h)
    assert not apart(program)
    np.testing.assert_allclose(program(x=steps(7)), pr.evaluate(h, {"x": steps(7)}), rtol=0, atol=1e-5)


def test_a_loop_that_reads_otherwise_keeps_nothing_apart() -> None:
    """The checker refuses other strides, other axes, and what is read as a whole."""
    program = pr.compile(attention(2).h).compiled.executable
    loop = next(item for item in walk(program.body) if isinstance(item, For) and item.splits)
    (split, *_) = loop.splits
    check_splits(program)

    def changed(wrong: Split) -> tuple[Item, ...]:
        return mapped(program.body, lambda item: replace(loop, splits=(wrong,)) if item is loop else item)

    for wrong in (replace(split, step=3), replace(split, axis=1), replace(split, place=program.outputs[0])):
        with pytest.raises(IllegalProgramError, match="cannot be kept apart"):
            check_splits(replace(program, body=changed(wrong)))
