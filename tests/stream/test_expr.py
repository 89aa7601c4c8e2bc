"""Symbolic expressions: the normal form agrees with arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.stream.expr import Expr, as_expr, ceil_div, concatenate, largest, pick, positive, symbol, total

Pair = tuple[Expr, Callable[[dict[str, int]], int]]


def _leaf() -> st.SearchStrategy[Pair]:
    numbers = st.integers(0, 6).map(lambda k: (as_expr(k), lambda env: k))
    names = st.sampled_from("abc").map(lambda name: (symbol(name), lambda env: env[name]))
    return numbers | names


def _grow(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda p: (p[0][0] + p[1][0], lambda env: p[0][1](env) + p[1][1](env))),
        pairs.map(lambda p: (p[0][0] * p[1][0], lambda env: p[0][1](env) * p[1][1](env))),
        st.tuples(inner, st.integers(1, 5)).map(
            lambda p: (ceil_div(p[0][0], p[1]), lambda env: -(-p[0][1](env) // p[1]))
        ),
        inner.map(lambda p: (positive(p[0]), lambda env: int(p[1](env) > 0))),
    )


@given(st.recursive(_leaf(), _grow, max_leaves=12), st.fixed_dictionaries({name: st.integers(0, 9) for name in "abc"}))
def test_normal_form_keeps_the_value(pair: Pair, bindings: dict[str, int]) -> None:
    expr, value = pair
    assert expr.evaluate(bindings) == value(bindings)


@given(st.lists(st.integers(0, 50), min_size=6, max_size=6), st.sampled_from([1, 2, 3, 6]))
def test_sums_and_maxima_over_copies(counts: list[int], parts: int) -> None:
    n = symbol("n", 6)
    grouped = np.array(counts).reshape(parts, -1)
    tiles = -(-grouped // 4)
    assert np.array_equal(
        total(3 * ceil_div(n, 4) + 1, 6, parts).evaluate({"n": counts}), _flat((3 * tiles + 1).sum(1))
    )
    assert np.array_equal(np.atleast_1d(largest(n, 6, parts).evaluate({"n": counts})), grouped.max(1))


def _flat(values: np.ndarray) -> Any:
    return int(values[0]) if len(values) == 1 else values


def test_order_and_grouping_do_not_matter() -> None:
    a, b = symbol("a"), symbol("b")
    assert (a + b) * (a - b) == a * a - b * b
    assert a * 2 + b - a == b + a
    assert str(a * b * 3 + 1) == "1 + 3*a*b"


def test_indicators_vanish_beside_what_they_indicate() -> None:
    n = symbol("n")
    assert positive(n) * n == n
    assert positive(n) * positive(n) == positive(n)
    assert positive(ceil_div(n, 16) * 5) == positive(n)


def test_copies_can_be_picked_and_put_back() -> None:
    n = symbol("n", 6)
    odd, even = pick(n, 1, 2, 3), pick(n, 0, 2, 3)
    again = concatenate([even, odd], 3)
    assert again.evaluate({"n": [1, 2, 3, 4, 5, 6]}).tolist() == [1, 2, 3, 4, 5, 6]  # type: ignore[union-attr]
    assert pick(again, 1, 2, 3) == odd
