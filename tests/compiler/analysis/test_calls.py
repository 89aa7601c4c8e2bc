"""Calling: inputs are checked, bounds are solved, and what is missing or wrong is named."""

from __future__ import annotations

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import errors


def zeros(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.zeros(shape, dtype)


def test_bounds_are_read_off_extents_and_shapes() -> None:
    t, T = pr.dim("t")
    n = pr.size("n")
    x = pr.input("x", (n, 2 * n), ((t, T + 1),))
    have = pr.evaluate({"T": pr.value(T), "n": pr.value(n), "x": x}, {"x": zeros(4, 3, 6)})
    assert (have["T"], have["n"]) == (3, 3)


def test_multiples_and_sums_are_solved() -> None:
    t, T = pr.dim("t")
    s, S = pr.dim("s")
    x = pr.input("x", (), ((t, 2 * T),))
    y = pr.input("y", (), ((s, T + S),))
    have = pr.evaluate((pr.value(T), pr.value(S), x, y), {"x": zeros(6), "y": zeros(5)})
    assert (have[0], have[1]) == (3, 2)
    with pytest.raises(errors.InputShapeError):
        pr.evaluate((x, y), {"x": zeros(7), "y": zeros(5)})
    with pytest.raises(errors.InputShapeError):
        pr.evaluate((x, y), {"x": zeros(6), "y": zeros(2)})


def test_disagreement_names_both_sources() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    y = pr.input("y", (), (t,))
    with pytest.raises(errors.BoundsError) as caught:
        pr.evaluate(x + y, {"x": zeros(3), "y": zeros(4)})
    assert "'x'" in str(caught.value)
    assert "'y'" in str(caught.value)
    with pytest.raises(errors.BoundsError) as caught:
        pr.evaluate(x, {"x": zeros(3)}, {T: 4})
    assert "'x'" in str(caught.value)
    assert "bounds" in str(caught.value)
    assert pr.evaluate(x, {"x": zeros(3)}, {T: 3}).shape == (3,)


def test_a_bound_that_nothing_tells_is_missing() -> None:
    t, T = pr.dim("t")
    with pytest.raises(errors.MissingBoundError, match="T"):
        pr.evaluate(pr.value(t))
    assert pr.evaluate(pr.value(t), bounds={T: 0}).shape == (0,)
    assert pr.evaluate(pr.value(t), bounds={"T": 2}).tolist() == [0, 1]


def test_a_bound_that_nothing_uses_need_not_be_given() -> None:
    i, I = pr.dim("i")
    j, _ = pr.dim("j")
    y = pr.recurrent((), (i, (j, I)), "int32")
    y[pr.otherwise] = pr.value(i) - pr.value(j)
    assert pr.evaluate(y, bounds={I: 2}).tolist() == [[0, -1], [1, 0]]


@pytest.mark.parametrize("value", [-1, 2.0, True, "3"])
def test_a_bound_is_a_natural_number(value: object) -> None:
    t, T = pr.dim("t")
    with pytest.raises(errors.BoundsError):
        pr.evaluate(pr.value(t), bounds={T: value})  # type: ignore[dict-item]


def test_the_maximum_of_a_dim() -> None:
    t, T = pr.dim("t", max=3)
    assert pr.evaluate(pr.value(t), bounds={T: 3}).shape == (3,)
    with pytest.raises(errors.BoundsError):
        pr.evaluate(pr.value(t), bounds={T: 4})


def test_two_dims_of_one_name_have_their_own_bounds() -> None:
    t, T = pr.dim("t")
    s, S = pr.dim("t")
    have = pr.evaluate((pr.value(t), pr.value(s)), bounds={T: 2, S: 3})
    assert [len(array) for array in have] == [2, 3]


def test_missing_unknown_and_misshapen_inputs() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    with pytest.raises(errors.MissingInputError, match="'x'"):
        pr.evaluate(x)
    with pytest.raises(errors.UnknownInputError, match="'z'"):
        pr.evaluate(x, {"x": zeros(2, 3), "z": zeros(1)})
    with pytest.raises(errors.InputShapeError):
        pr.evaluate(x, {"x": zeros(2, 4)})
    with pytest.raises(errors.InputShapeError):
        pr.evaluate(x, {"x": zeros(3)})
    with pytest.raises(errors.InputShapeError):
        pr.evaluate(x, {"x": [[1, 2, 3], [1]]})


def test_inputs_are_cast_within_a_kind_only() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    n = pr.input("n", (), (t,), "int32")
    m = pr.input("m", (), (t,), "bool")
    assert pr.evaluate(x, {"x": zeros(2, dtype="float64")}).dtype == np.dtype("float32")
    assert pr.evaluate(n, {"n": zeros(2, dtype="int64")}).dtype == np.dtype("int32")
    assert pr.evaluate(x, {"x": [1, 2]}).tolist() == [1, 2]
    for tensor, wrong in ((x, "int32"), (n, "float32"), (n, "bool"), (m, "int32"), (x, "complex64")):
        with pytest.raises(errors.InputDTypeError):
            pr.evaluate(
                tensor, {name: zeros(2, dtype=wrong) for name in "xnm" if tensor is {"x": x, "n": n, "m": m}[name]}
            )


def test_the_caller_keeps_its_arrays() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    array = np.array([1.0, 2.0], "float32")
    result = pr.evaluate(x, {"x": array})
    result[0] = 9
    assert array.tolist() == [1, 2]


def test_ragged_inputs_and_lengths() -> None:
    b, _ = pr.dim("b")
    lengths = pr.input("lengths", (), (b,), "int32")
    t, T = pr.dim("t", extent=lengths, max=3)
    x = pr.input("x", (), (b, t), "int32")
    total = x[b, 0:T].sum()
    rows = pr.Ragged.of([[1, 2, 3], [], [4]])
    assert rows.lengths.tolist() == [3, 0, 1]
    assert pr.evaluate(total, {"x": rows, "lengths": rows.lengths}).tolist() == [6, 0, 4]
    padded = np.full((3, 3), 99, "int32")
    padded[0] = 1
    assert pr.evaluate(total, {"x": padded, "lengths": np.array([3, 0, 1])}).tolist() == [3, 0, 99]
    with pytest.raises(errors.LengthError):
        pr.evaluate(total, {"x": padded, "lengths": np.array([4, 0, 1])})
    with pytest.raises(errors.LengthError):
        pr.evaluate(total, {"x": padded, "lengths": np.array([-1, 0, 1])})


def test_ragged_values_must_reach_the_lengths() -> None:
    b, _ = pr.dim("b")
    lengths = pr.input("lengths", (), (b,), "int32")
    t, T = pr.dim("t", extent=lengths, max=5)
    x = pr.input("x", (), (b, t), "int32")
    with pytest.raises(errors.InputShapeError):
        pr.evaluate(x[b, 0:T].sum(), {"x": np.zeros((2, 3), "int32"), "lengths": np.array([4, 1])})
