"""Values of index expressions are 32-bit integers: what does not fit is refused by oracle and backends."""

from __future__ import annotations

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.errors import BoundsError

t, T = pr.dim("t")
i, I = pr.dim("i")
RUNS = ("oracle", "numpy", "torch", "jax")


def last(value: pr.Index | int, run: str, **lengths: int) -> int:
    """The value at the last step."""
    bounds = {{"T": T, "I": I}[name]: length for name, length in lengths.items()}
    made = pr.value(value)
    at = made[tuple({t: T - 1, i: I - 1}[dim] for dim in made.dims)] if made.dims else made
    found = pr.evaluate(at, bounds=bounds) if run == "oracle" else pr.compile(at, backend=run)(bounds=bounds)
    return int(np.asarray(found))


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(
    ("value", "steps", "shown"),
    [
        (t * 70000, 30682, "2,147,670,000"),
        (-t * 70000, 30682, "-2,147,670,000"),
        (T * 70000, 30682, "2,147,740,000"),
        (t * 70000 + 2**31 - 1, 2, "2,147,553,647"),
        (pr.min(t * 70000, 5), 30682, "2,147,670,000"),
    ],
    ids=["step", "below", "bound", "constant", "inside a minimum"],
)
def test_a_value_that_does_not_fit_is_refused(run: str, value: pr.Index | int, steps: int, shown: str) -> None:
    with pytest.raises(BoundsError, match=f"does not fit into a 32-bit integer: it is {shown}"):
        last(value, run, T=steps)


@pytest.mark.parametrize("run", RUNS)
def test_values_that_fit(run: str) -> None:
    assert last(t * 70000, run, T=30679) == 30678 * 70000 <= 2**31 - 1
    assert last(-t * 70000, run, T=30679) == -30678 * 70000
    assert last((t * 1234571) % 1000, run, T=100_000) == (99_999 * 1234571) % 1000
    assert last((t * 70000) // 70000, run, T=100_000) == 99_999
    assert last(pr.min(t * 70000, 5), run, T=30_000) == 5


@pytest.mark.parametrize("run", RUNS)
def test_only_steps_at_which_the_value_is_needed_count(run: str) -> None:
    small = pr.where(t < 3, pr.value(t * 10**9), 7)[0:T].max(0)
    found = pr.evaluate(small, bounds={T: 9}) if run == "oracle" else pr.compile(small, backend=run)(bounds={T: 9})
    assert int(np.asarray(found)) == 2 * 10**9


def test_a_wider_type_holds_more() -> None:
    wide = (pr.value(t).cast("int64") * 70000)[T - 1]
    assert int(pr.evaluate(wide, bounds={T: 100_000})) == 99_999 * 70000
    assert int(pr.compile(wide, backend="numpy")(bounds={T: 100_000})) == 99_999 * 70000
