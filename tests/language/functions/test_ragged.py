"""The functions on an axis whose length differs from row to row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import polyrhythm as pr
from tests.language.functions.helpers import assert_close, random_array

ROWS = [random_array((n, 2), seed=n) for n in (3, 1, 5, 0)]


@pytest.mark.parametrize(
    ("function", "reference"),
    [
        (lambda x: x.sum(0), lambda x: x.sum(0)),
        (lambda x: x.logsumexp(), lambda x: np.log(np.exp(x).sum()) if len(x) else np.float32(-np.inf)),
        (lambda x: pr.softmax(x.axes[:, 0]).sum(), lambda x: np.float32(len(x) > 0)),
        (lambda x: x.axes[1:].sum(0), lambda x: x[1:].sum(0)),
        (lambda x: x.reshape(-1).cumsum(0, reverse=True).sum(), lambda x: x.ravel()[::-1].cumsum()[::-1].sum()),
        (lambda x: x.T @ x, lambda x: x.T @ x),
        (lambda x: pr.tril(x @ x.T).sum(), lambda x: np.tril(x @ x.T).sum()),
    ],
)
def test_functions_of_ragged_rows(
    function: Callable[[pr.Tensor], pr.Tensor], reference: Callable[[np.ndarray], np.ndarray]
) -> None:
    b, _ = pr.dim("b")
    lengths = pr.input("lengths", (), (b,), "int32")
    t, T = pr.dim("t", extent=lengths[b], max=5)
    x = pr.input("x", (2,), (b, t))
    inputs = {"x": pr.Ragged.of(ROWS), "lengths": [len(row) for row in ROWS]}
    result = pr.evaluate(function(x[b, 0:T]), inputs)
    assert_close(result, np.stack([reference(row) for row in ROWS]).astype("float32"), 8)
