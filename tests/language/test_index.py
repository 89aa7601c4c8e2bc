"""Dims, bounds and index expressions as the user writes them."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import errors


def values(expression: pr.Index | int, T: pr.Bound, steps: int) -> list[int]:
    """An index expression as data, at every step."""
    return np.atleast_1d(pr.evaluate(pr.value(expression), bounds={T: steps})).tolist()


def test_arithmetic_is_that_of_python_integers() -> None:
    t, T = pr.dim("t")
    assert values(3 * t - 2, T, 4) == [-2, 1, 4, 7]
    assert values((t - 3) // 2, T, 6) == [(k - 3) // 2 for k in range(6)]
    assert values((t - 3) % 4, T, 6) == [(k - 3) % 4 for k in range(6)]
    assert values(10 - t, T, 3) == [10, 9, 8]
    assert values(-t, T, 3) == [0, -1, -2]
    assert values(pr.min(t, 2) + pr.max(t, T - 2), T, 5) == [min(k, 2) + max(k, 3) for k in range(5)]
    assert values(np.int64(2) * t, T, 3) == [0, 2, 4]  # type: ignore[operator]


def test_conditions_are_those_of_python() -> None:
    t, T = pr.dim("t")
    cases = {
        t < 2: lambda k: k < 2,
        t <= 2: lambda k: k <= 2,
        t > 2: lambda k: k > 2,
        t >= T - 2: lambda k: k >= 3,
        t == 3: lambda k: k == 3,
        t != 3: lambda k: k != 3,
        (t % 2 == 0) & ~(t == 4) | (t == 1): lambda k: (k % 2 == 0 and k != 4) or k == 1,
    }
    for condition, expected in cases.items():
        have = pr.evaluate(pr.where(condition, pr.value(t) * 0 + 1, 0), bounds={T: 5}).tolist()
        assert have == [int(expected(k)) for k in range(5)], str(condition)


def test_conditions_and_indices_have_no_truth_value() -> None:
    t, T = pr.dim("t")
    with pytest.raises(errors.ConditionValueError):
        bool(t < T)
    with pytest.raises(errors.ConditionValueError):
        0 < t < T
    with pytest.raises(errors.ConditionValueError):
        not (t < 1)
    with pytest.raises(errors.ConditionValueError):
        bool(t)


def test_dims_are_dict_keys_although_equality_builds_a_condition() -> None:
    t, T = pr.dim("t")
    s, S = pr.dim("s")
    table = {t: "t", s: "s", T: "T", S: "S"}
    assert [table[k] for k in (t, s, T, S)] == ["t", "s", "T", "S"]
    assert t + 1 in {t + 1}
    assert isinstance(t == s, pr.Condition)


def test_two_dims_of_one_name_are_two() -> None:
    t, T = pr.dim("t")
    other, Other = pr.dim("t")
    assert len({t, other, T, Other}) == 4
    x = pr.value(t) * 10 + pr.value(other)
    assert pr.evaluate(x, bounds={T: 2, Other: 3}).tolist() == [[0, 1, 2], [10, 11, 12]]


def test_copies_are_the_same_symbol() -> None:
    t, _ = pr.dim("t")
    assert copy.deepcopy(t) is t
    assert pickle.loads(pickle.dumps(t + 1)) is t + 1


def test_products_and_odd_divisors_are_refused() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    with pytest.raises(errors.NonAffineError):
        x[t * T]
    with pytest.raises(errors.NonAffineError):
        t // T
    with pytest.raises(errors.NonAffineError):
        t % 0
    with pytest.raises(errors.NonAffineError):
        t // -2


def test_floats_and_tensors_are_no_indices() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    with pytest.raises(errors.DTypeError):
        t + 0.5  # type: ignore[operator]
    with pytest.raises(errors.DTypeError):
        x[1.0]
    with pytest.raises(errors.DTypeError):
        pr.min(x, t)  # type: ignore[arg-type]
    with pytest.raises(errors.IndexingError):
        x[x]


def test_a_bound_counts_steps_and_a_size_is_free() -> None:
    t, T = pr.dim("t")
    P = pr.size("P")
    assert pr.evaluate(pr.value(P) + pr.value(T), bounds={P: 3, T: 4}).tolist() == 7
    assert pr.evaluate(pr.zeros((P, 2)), bounds={P: 3}).shape == (3, 2)
    assert pr.evaluate(pr.value(t < P), bounds={P: 2, T: 3}).tolist() == [True, True, False]


def test_a_maximum_helps_proofs_and_is_checked() -> None:
    t, T = pr.dim("t")
    P = pr.size("P", max=T)
    x = pr.input("x", (), (t,), "int32")
    total = x[0:P].sum()
    assert pr.evaluate(total, {"x": [1, 2, 4]}, {P: 2}).tolist() == 3
    with pytest.raises(errors.BoundsError):
        pr.evaluate(total, {"x": [1, 2, 4]}, {P: 4})
