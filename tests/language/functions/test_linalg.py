from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyrhythm as pr
from polyrhythm.errors import ShapeError
from tests.language.functions.helpers import (
    BFLOAT16,
    assert_close,
    f32,
    on_constants,
    on_dynamic_axis,
    on_prefixes,
    random_array,
)

LENGTHS = dict(zip("abcdef", (2, 3, 1, 4, 2, 3), strict=True))


@st.composite
def contractions(draw: st.DrawFn) -> tuple[str, list[np.ndarray]]:
    """A specification of one to four operands, and integer operands for it."""
    words = draw(st.lists(st.text("abcdef", max_size=3), min_size=1, max_size=4))
    dots = draw(st.booleans())
    leading = [draw(st.sampled_from([(), (1,), (3,), (2, 3), (2, 1)])) if dots else () for _ in words]
    used = sorted(set("".join(words)))
    left = ",".join(("..." if dots else "") + word for word in words)
    output = "".join(draw(st.permutations(used)))[: draw(st.integers(0, len(used)))]
    spec = left if draw(st.booleans()) else f"{left}->{'...' if dots else ''}{output}"
    shapes = [(*lead, *(LENGTHS[label] for label in word)) for lead, word in zip(leading, words, strict=True)]
    return spec, [random_array(shape, "int32", i) for i, shape in enumerate(shapes)]


@given(contractions())
def test_einsum_as_in_numpy(case: tuple[str, list[np.ndarray]]) -> None:
    spec, operands = case
    result = on_constants(lambda *xs: pr.einsum(spec, *xs), *operands)
    assert_close(result, np.asarray(np.einsum(spec, *operands)))


@given(
    st.sampled_from([(), (1,), (2,), (3, 1), (3, 2)]),
    st.sampled_from([(), (1,), (2,), (3, 1), (1, 2)]),
    st.booleans(),
    st.booleans(),
)
def test_matmul_as_in_numpy(a: tuple[int, ...], b: tuple[int, ...], row: bool, column: bool) -> None:
    left = random_array((4,) if row else (*a, 5, 4), "int32", 1)
    right = random_array((4,) if column else (*b, 4, 3), "int32", 2)
    assert_close(on_constants(lambda x, y: x @ y, left, right), np.asarray(left @ right))


def test_contraction_over_a_dynamic_axis() -> None:
    a, b = random_array((4, 3), seed=1), random_array((4, 2), seed=2)
    assert_close(on_dynamic_axis(lambda x, y: x.T @ y, a, b), a.T @ b)
    assert_close(on_dynamic_axis(lambda x, y: pr.einsum("ti,tj->tij", x, y), a, b), np.einsum("ti,tj->tij", a, b))


def test_attention_over_prefixes() -> None:
    x = random_array((5, 3))

    def attend(x: pr.Tensor) -> pr.Tensor:
        return pr.softmax(x @ pr.ones(3)) @ x

    expected = []
    for t in range(5):
        scores = np.exp(x[: t + 1].sum(1).astype("float64"))
        expected.append((scores / scores.sum()) @ x[: t + 1])
    assert_close(on_prefixes(attend, x), f32(expected), 4)


def test_narrow_floats_accumulate_wide() -> None:
    x = np.ones((1, 1000), BFLOAT16)
    assert on_constants(lambda x: x @ x.T, x)[0, 0] == 1000


def test_dot_and_outer() -> None:
    a, b = random_array((3,), seed=1), random_array((3,), seed=2)
    assert_close(on_constants(pr.dot, a, b), np.asarray(a @ b))
    assert_close(on_constants(pr.outer, a, b), np.outer(a, b))


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ("ij,jk", [(2, 3)]),
        ("ij", [(2, 3, 4)]),
        ("...ij", [(2,)]),
        ("i->ii", [(2,)]),
        ("i->j", [(2,)]),
        ("i1", [(2, 3)]),
        ("i..j", [(2, 3)]),
        ("i,i->", [(2,), (3,)]),
    ],
)
def test_wrong_specifications(spec: str, shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(ShapeError, match="einsum"):
        pr.einsum(spec, *map(pr.zeros, shapes))


def test_wrong_products() -> None:
    with pytest.raises(ShapeError, match="3 columns meet 2 rows"):
        pr.zeros((2, 3)) @ pr.zeros((2, 3))
    with pytest.raises(ShapeError, match="scalar"):
        pr.zeros(()) @ pr.zeros((2,))
    with pytest.raises(ShapeError, match="vectors"):
        pr.dot(pr.zeros((2, 2)), pr.zeros((2,)))


def test_only_axes_under_an_ellipsis_broadcast() -> None:
    _, T = pr.dim("t")
    with pytest.raises(ShapeError, match="lengths 1 and T"):
        pr.zeros((2, 1)) @ pr.zeros((T, 3))
    with pytest.raises(ShapeError, match="lengths 1 and 3"):
        pr.einsum("i,i->", pr.zeros(1), pr.zeros(3))
