"""Lengths that are data: rows of a ragged dim, and of a dim that ends early at a step of its own for each index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import errors
from polyrhythm.compiler.analysis.check import checked
from polyrhythm.compiler.ir import text
from polyrhythm.compiler.trace import trace
from tests.compiler.ir import parse
from tests.compiler.ir.verify import verify

b, B = pr.dim("b")
t, T = pr.dim("t")
s, S = pr.dim("s", extent=pr.input("lengths", (), (b,), "int32"))
x = pr.input("x", (), (b, s), "int32")
ROWS = {"lengths": np.array([3, 1], "int32"), "x": np.arange(6, dtype="int32").reshape(2, 3)}


def countdown(*order: pr.Dim) -> pr.Recurrent:
    """From a start that differs from row to row."""
    start = pr.input("start", (), (b,), "int32")
    n = pr.recurrent((), order or (b, t), "int32")
    n[{t: 0}] = start
    n[{t: t + 1}] = n - 1
    return n


def ended(outputs: Any, n: pr.Tensor, limit: int = 5, start: tuple[int, ...] = (3, 1, 9)) -> Any:
    """Evaluated until each row is at zero; the graph is also well formed, and prints and parses."""
    until = {t: n <= 0}
    graph = checked(trace([outputs], (), until))
    verify(graph)
    shown = text.show(graph)
    assert text.show(parse.parse(shown)) == shown
    return pr.evaluate(outputs, {"start": np.array(start, "int32")}, {T: limit}, until)


def test_another_row_is_read_at_its_own_end() -> None:
    n = countdown()
    assert ended(n[b, T - 1], n).tolist() == [0, 0, 5]
    assert ended(n[b, T - 1][B - 1 - b], n).tolist() == [5, 0, 0]
    assert ended(n[b, T - 1][0:B], n).tolist() == [0, 0, 5]
    assert ended(n[b, 0:T].sum()[B - 1 - b], n).tolist() == [35, 1, 6]
    assert ended(n[B - 1 - b, 0], n).tolist() == [9, 1, 3]


def test_rows_are_not_read_past_their_end() -> None:
    n = countdown()
    for outside in (n[0:B, t], n[B - 1 - b, T - 1], n[B - 1 - b], n[0, T - 1], n[b, 1], n[0:B, 0:T], n[b, T]):
        with pytest.raises(errors.OutOfRangeError):
            ended(outside, n)
    with pytest.raises(errors.OutOfRangeError):
        pr.evaluate(x[B - 1 - b, S - 1], ROWS)


def test_a_witness_has_rows_that_can_be() -> None:
    n = countdown()
    with pytest.raises(errors.OutOfRangeError) as caught:
        ended(n[B - 1 - b, T - 1], n)
    assert caught.value.point == {"B": 2, "T_b": 2, "T_b_there": 1, "b": 0}


def test_reads_guarded_by_the_length_of_the_row() -> None:
    n = countdown()
    assert ended(pr.where(t < T - 1, n[b, t + 1], 100)[{t: 0}], n).tolist() == [2, 0, 8]
    assert ended(pr.where(T >= 3, n[b, T - 3], -1), n).tolist() == [2, -1, 7]


def test_what_lacks_the_dims_of_the_end_has_the_longest_length() -> None:
    n = countdown()
    assert ended(pr.value(T), n).tolist() == 5
    w = 10 * pr.value(t)
    assert ended(w[T - 1], n).tolist() == 40
    assert ended(pr.value(T), n, start=(0, 0)).tolist() == 1
    assert ended(w[T - 1], n, start=()).tolist() == 0
    with pytest.raises(errors.RequirementError):
        ended(w[T - 1], n, limit=0)


def test_what_follows_from_indices_has_the_length_of_the_row_that_reads_it() -> None:
    """Rows 3 2 1 0 | 1 0 | 9 8 7 6 5, their lengths 4, 2 and 5."""
    n = countdown()
    rows = [np.array(row, "float64") for row in ([3, 2, 1, 0], [1, 0], [9, 8, 7, 6, 5])]
    w, v, y = 10 * pr.value(t), n[b, 0:T], pr.cast(n, "float64")[b, 0:T]
    assert ended((w[T - 1] + n)[b, 0], n).tolist() == [33, 11, 49]
    assert ended(0 * n[b, 0] + pr.value(T), n).tolist() == [4, 2, 5]
    assert ended(0 * n[b, 0] + v.shape[0], n).tolist() == [4, 2, 5]
    assert ended(v.sum(0) * 0 + pr.ones_like(v).sum(0), n).tolist() == [4, 2, 5]
    assert ended((v * pr.value(t)[0:T]).sum(0), n).tolist() == [4, 0, 60]
    assert ended((n * pr.where(T - t > 2, 10, 1))[b, 0:T].sum(0), n).tolist() == [51, 1, 251]
    np.testing.assert_allclose(ended(y.mean(0), n), [row.mean() for row in rows])
    np.testing.assert_allclose(ended(pr.var(y, 0), n), [row.var() for row in rows])
    np.testing.assert_allclose(ended(pr.std(y, 0), n), [row.std() for row in rows])
    np.testing.assert_allclose(ended(pr.mean(y), n), [row.mean() for row in rows])
    weights = (pr.arange(T) + 1) / pr.value(T)
    np.testing.assert_allclose(
        ended((y * weights).sum(0), n), [(row * (np.arange(len(row)) + 1) / len(row)).sum() for row in rows], rtol=1e-6
    )
    assert ended(n[B - 1 - b, 0] * 0 + pr.value(T), n).tolist() == [4, 2, 5]


def test_lengths_of_different_rows_do_not_meet() -> None:
    n = countdown()
    with pytest.raises(errors.RaggedShapeError):
        ended(n[b, 0:T][B - 1 - b], n)
    assert ended((n[b, 0:T] * n[b, 0:T]).sum(), n).tolist() == [14, 1, 81 + 64 + 49 + 36 + 25]


@pytest.mark.parametrize("order", [(b, t), (t, b)], ids=["rows first", "steps first"])
def test_no_effect_runs_after_the_end_of_a_row(order: tuple[pr.Dim, ...]) -> None:
    calls: list[tuple[int, int]] = []

    def note(value: np.ndarray, row: np.ndarray, step: np.ndarray) -> np.int32:
        calls.append((int(row), int(step)))
        return np.int32(value)

    n = countdown(*order)
    noted = pr.host(note, [n, pr.value(b), pr.value(t)], dtype="int32", dims=order, effect="log")
    have = pr.evaluate(noted, {"start": np.array([1, 0, 2], "int32")}, {T: 5}, {t: noted <= 0})
    assert have.lengths.tolist() == [2, 1, 3]
    key = (lambda call: call) if order[0] is b else (lambda call: call[::-1])
    assert calls == sorted([(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)], key=key)


def test_the_limit_of_each_row_is_read_off_an_input() -> None:
    grid = pr.input("grid", (), (b, t), "int32")
    have = pr.evaluate(grid, {"grid": [[1, 5, 2], [1, 1, 1]]}, until={t: grid > 3})
    assert have.lengths.tolist() == [2, 3]
    rows = pr.Ragged.of([[1, 5, 2], [1, 1]])
    with pytest.raises(errors.InputShapeError):
        pr.evaluate(grid, {"grid": rows}, until={t: grid > 3})


def test_dims_whose_ends_depend_on_each_other() -> None:
    grid = pr.input("grid", (), (b, t))
    with pytest.raises(errors.UntilError):
        pr.evaluate(grid, {"grid": [[1.0]]}, until={t: grid > 3, b: grid < 3})
    with pytest.raises(errors.UntilError):
        pr.evaluate(x, ROWS, until={s: x > 3})


def test_a_cycle_through_rows_of_other_lengths() -> None:
    y = pr.recurrent((), (b,), "int32")
    y[S >= 3] = pr.where(b < B - 1, y[pr.min(B - 1, b + 1)], 0) + 1
    y[S < 3] = pr.where(b > 0, y[pr.max(0, b - 1)], 0) + 1
    with pytest.raises(errors.CycleError) as caught:
        pr.evaluate(y, {"lengths": ROWS["lengths"]})
    assert caught.value.point == {"B": 2, "S[0]": 3, "S[1]": 0}


def test_progress_through_rows_in_one_direction() -> None:
    y = pr.recurrent((), (b,), "int32")
    y[S >= 3] = pr.where(b > 0, y[pr.max(0, b - 1)], 0) + 1
    y[S < 3] = pr.where(b > 0, y[pr.max(0, b - 1)], 0) + 2
    assert pr.evaluate(y, {"lengths": ROWS["lengths"]}).tolist() == [1, 3]


def test_rows_of_other_lengths_than_the_dim_has() -> None:
    assert pr.evaluate(x, {**ROWS, "x": pr.Ragged.of([[1, 2, 3], [4]])}).lengths.tolist() == [3, 1]
    for rows in ([[1, 2], [4]], [[1, 2, 3], [4, 5]], [[1, 2, 3], []]):
        with pytest.raises(errors.InputShapeError):
            pr.evaluate(x, {**ROWS, "x": pr.Ragged.of(rows)})
    plain = pr.input("plain", (), (b, t), "int32")
    assert pr.evaluate(plain, {"plain": pr.Ragged.of([[1], [2]])}).tolist() == [[1], [2]]
    with pytest.raises(errors.InputShapeError):
        pr.evaluate(plain, {"plain": pr.Ragged.of([[1], [2, 3]])})


def test_bounds_that_the_program_does_not_have() -> None:
    y = 2 * pr.value(t)
    with pytest.raises(errors.BoundsError, match="its bounds are T"):
        pr.evaluate(y, bounds={"T": 2, "Q": 1})
    assert pr.evaluate(y, bounds={T: 2, B: 1}).tolist() == [0, 2]
    with pytest.raises(errors.BoundsError, match="ragged"):
        pr.evaluate(x, ROWS, bounds={S: 1})


def test_a_witness_of_a_dim_that_ends_early_has_a_step() -> None:
    y = pr.recurrent((), (t,), "int32")
    y[0] = 0
    y[t + 1] = y + 1
    with pytest.raises(errors.OutOfRangeError) as caught:
        pr.evaluate(y[2], bounds={T: 4}, until={t: y >= 2})
    assert caught.value.point == {"T": 1}


def test_a_recurrent_tensor_without_dims() -> None:
    y = pr.recurrent((2,), ())
    with pytest.raises(errors.UndefinedError):
        pr.evaluate(y)
    with pytest.raises(errors.IndexingError):
        y[0] = 1.0
    y[()] = 3.0
    assert pr.evaluate(2 * y).tolist() == [6.0, 6.0]


def test_a_bound_that_ends_early_is_not_fixed_when_compiling() -> None:
    y = pr.recurrent((), (t,), "int32")
    y[0] = 0
    y[t + 1] = y + 1
    with pytest.raises(errors.BoundsError):
        pr.compile(y, bounds={T: 9}, until={t: y >= 3}, backend="numpy")
    assert pr.compile(y, until={t: y >= 3}, backend="numpy")(bounds={T: 9}).tolist() == [0, 1, 2, 3]
