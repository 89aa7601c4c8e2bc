"""Tables over spans, as in the textbook: a span is made of two shorter ones, wherever they begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr

t, T = pr.dim("t")
l, _ = pr.dim("l", bound=T)
k, _ = pr.dim("k", bound=T)
rules, words = pr.input("rules", (3, 3, 3)), pr.input("words", (3,), (t,))
INPUTS: dict[str, Any] = {
    "rules": np.random.default_rng(0).random((3, 3, 3)).astype("float32"),
    "words": np.random.default_rng(1).random((4, 3)).astype("float32"),
}


def table(body: Callable[[pr.Tensor], pr.Tensor]) -> pr.Tensor:
    """`c[l, t]` is the span of l + 1 words that begins at t."""
    c = pr.recurrent((3,), (l, t))
    c[l == 0] = words
    c[(l >= 1) & (t + l < T)] = body(c)
    c[pr.otherwise] = 0.0
    return c[T - 1, 0]


def shorter_first(c: pr.Tensor) -> pr.Tensor:
    pairs = pr.einsum("abc,b,c->a", rules, c[{l: k}], c[{l: l - 1 - k, t: t + k + 1}])
    return pairs[{k: slice(0, l)}].sum(0)


def longer_first(c: pr.Tensor) -> pr.Tensor:
    pairs = pr.einsum("abc,c,b->a", rules, c[{l: l - 1 - k, t: t + k + 1}], c[{l: k}])
    return pairs[{k: slice(0, l)}].sum(0)


def by_a_diagonal(c: pr.Tensor) -> pr.Tensor:
    diagonal = c[{l: l - 1 - k, t: t + k + 1}][{k: slice(0, l)}]
    return pr.einsum("abc,kb,kc->a", rules, c[{l: slice(0, l)}], diagonal)


def by_two_slices(c: pr.Tensor) -> pr.Tensor:
    left = c[{l: k}][{k: slice(0, l)}]
    return pr.einsum("abc,kb,kc->a", rules, left, c[{l: l - 1 - k, t: t + k + 1}][{k: slice(0, l)}])


def by_a_table_of_pairs(c: pr.Tensor) -> pr.Tensor:
    pairs = pr.recurrent((3,), (k, l, t))
    made = pr.einsum("abc,b,c->a", rules, c[{l: k}], c[{l: l - 1 - k, t: t + k + 1}])
    pairs[(l >= 1) & (k < l) & (t + l < T)] = made
    pairs[pr.otherwise] = 0.0
    return pairs[{k: slice(0, l)}].sum(0)


FORMS = [shorter_first, longer_first, by_a_diagonal, by_two_slices, by_a_table_of_pairs]


def whole(inputs: dict[str, np.ndarray]) -> np.ndarray:
    size = len(inputs["words"])
    c = np.zeros((size, size, 3))
    c[0] = inputs["words"]
    for length in range(1, size):
        for first in range(size - length):
            for cut in range(length):
                right = c[length - 1 - cut, first + cut + 1]
                c[length, first] += np.einsum("abc,b,c->a", inputs["rules"], c[cut, first], right)
    return c[size - 1, 0]


def slope() -> np.ndarray:
    found = np.zeros((4, 3))
    for place in np.ndindex(4, 3):
        ends = []
        for step in (1e-5, -1e-5):
            words_moved = INPUTS["words"].astype("float64")
            words_moved[place] += step
            ends.append(whole({"rules": INPUTS["rules"].astype("float64"), "words": words_moved}).sum())
        found[place] = (ends[0] - ends[1]) / 2e-5
    return found


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_spans(form: Callable[[pr.Tensor], pr.Tensor]) -> None:
    outputs = {"whole": table(form)}
    outputs["slope"] = pr.grad(outputs["whole"].sum(0), words)
    want = {"whole": whole(INPUTS), "slope": slope()}
    results = [pr.evaluate(outputs, INPUTS)]
    results += [pr.compile(outputs, backend=backend)(**INPUTS) for backend in ("numpy", "torch")]
    for have in results:
        for name in outputs:
            np.testing.assert_allclose(have[name], want[name], 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_spans_on_jax(form: Callable[[pr.Tensor], pr.Tensor]) -> None:
    outputs = {"whole": table(form)}
    outputs["slope"] = pr.grad(outputs["whole"].sum(0), words)
    have = pr.compile(outputs)(**INPUTS)
    np.testing.assert_allclose(have["whole"], whole(INPUTS), 1e-4)
    np.testing.assert_allclose(have["slope"], slope(), 1e-3)


def test_spans_forwards_on_jax() -> None:
    np.testing.assert_allclose(pr.compile(table(shorter_first))(**INPUTS), whole(INPUTS), 1e-4)
