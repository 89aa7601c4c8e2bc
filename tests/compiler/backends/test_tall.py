"""Products over rows that two matrices share: the same numbers, and the form that XLA has a fast product for."""

from __future__ import annotations

import re
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.ops import reductions
from tests.compiler.backends.hlo import optimised

SLOW = re.compile(r" dot\(.*lhs_contracting_dims=\{0\}")


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


@pytest.mark.parametrize("spec", ["ri,ro->oi", "ri,ro->io", "abi,abo->oi", "abi,abo->io", "ria,ro->oia", "ri,rob->bio"])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize(("m", "n"), [(5, 7), (7, 5), (6, 6), (1, 4)])
def test_the_product_is_that_of_numpy(spec: str, rows: int, m: int, n: int) -> None:
    sizes = {"r": rows, "a": 2, "b": 3, "i": m, "o": n}
    words = spec.split("->")[0].split(",")
    given: dict[str, Any] = {name: normal(*(sizes[c] for c in word)) for name, word in zip("xy", words, strict=True)}
    x, y = (pr.input(name, array.shape) for name, array in given.items())
    found = pr.compile(pr.einsum(spec, x, y))(**given)
    np.testing.assert_allclose(found, np.einsum(spec, *given.values()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("inside", "outside"), [(8, 64), (64, 8), (64, 64)])
def test_the_gradient_of_a_weight_has_the_fast_form(inside: int, outside: int) -> None:
    x, w = pr.input("x", (512, inside)), pr.input("w", (outside, inside))
    slope = pr.grad(pr.square(pr.tanh(pr.einsum("ri,oi->ro", x, w))).sum(), w)
    program = pr.compile(slope)
    text = optimised(program, x=normal(512, inside), w=normal(outside, inside))
    assert " dot(" in text or "ynn_fusion" in text
    assert not SLOW.search(text)


def test_rows_of_an_unknown_number() -> None:
    t, _ = pr.dim("t")
    x, w = pr.input("x", (4,), (t,)), pr.input("w", (3, 4))
    slope = pr.grad(pr.tanh(pr.einsum("i,oi->o", x, w)).sum(), w)
    program = pr.compile(slope)
    for steps in (1, 5, 37):
        given: dict[str, Any] = {"x": normal(steps, 4), "w": normal(3, 4)}
        np.testing.assert_allclose(program(**given), pr.evaluate(slope, given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "columns", "is_product"), [(40, 6, True), (40, 1, False), (2**14, 64, False)])
def test_the_gradient_of_a_bias_is_a_product_with_ones(
    rows: int, columns: int, is_product: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is summed is read by a product too, so it is there as an array; unless that is too large."""
    counted = Mock(wraps=reductions._sum_of_rows)
    monkeypatch.setattr(reductions, "_sum_of_rows", counted)
    x, w, b = pr.input("x", (rows, 4)), pr.input("w", (columns, 4)), pr.input("b", (columns,))
    slopes = pr.grad(pr.square(pr.tanh(pr.einsum("ri,oi->ro", x, w) + b)).sum(), [w, b])
    given: dict[str, Any] = {"x": normal(rows, 4), "w": normal(columns, 4), "b": normal(columns)}
    found = pr.compile(tuple(slopes))(**given)
    for one, expected in zip(found, pr.evaluate(tuple(slopes), given), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-3, atol=1e-3)
    assert counted.called is is_product


def test_a_sum_of_rows_keeps_what_is_not_finite_where_it_is() -> None:
    x = pr.input("x", (3, 4))
    program = pr.compile((x.sum(0), pr.einsum("ri,ro->io", x, x)))
    given = normal(3, 4)
    given[1, 2], given[0, 3] = np.nan, np.inf
    np.testing.assert_allclose(program(x=given)[0], given.sum(0), rtol=1e-5)
