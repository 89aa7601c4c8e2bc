"""Models that learn in one compiled program reach the loss of the same models in torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import polyrhythm as pr
from tests.nn.learning import Learning, lstm, pictures, transformer


def compared(learning: Learning, mean_over: int, learnt: float) -> None:
    """Every loss close to torch's while rounding has not grown, the last ones within 2 %, and lower than the first."""
    found = np.asarray(pr.compile(learning.outputs)(**learning.given))
    expected = np.array(learning.in_torch())
    np.testing.assert_allclose(found[:5], expected[:5], rtol=1e-3)
    reached, wanted = found[-mean_over:].mean(), expected[-mean_over:].mean()
    assert abs(reached - wanted) <= 0.02 * wanted
    assert wanted < learnt * expected[0]


@pytest.mark.slow
def test_pictures_like_torch() -> None:
    compared(pictures(150), 20, 0.7)


@pytest.mark.slow
@pytest.mark.parametrize("model", [lstm, transformer])
def test_a_few_iterations_like_torch(model: Callable[..., Learning]) -> None:
    compared(model(12), 3, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learning", "learnt"),
    [
        pytest.param(lambda: lstm(400, 16, 32, 48), 0.6, id="lstm"),
        pytest.param(lambda: transformer(300, 8, 32, 32, 2), 0.65, id="transformer"),
        pytest.param(lambda: pictures(200, 16, 8), 0.7, id="pictures"),
    ],
)
def test_it_learns_as_well_as_in_torch(learning: Callable[[], Learning], learnt: float) -> None:
    compared(learning(), 20, learnt)
