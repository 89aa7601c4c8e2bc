"""Arrays of JAX stay where they are: inside a trace, and on whichever devices a caller has put them."""

import jax
import numpy as np
import pytest

import polyrhythm as pr
from tests.devices.running import run_cases


def test_program_with_parameters_called_first_inside_jit() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    w = pr.parameter("w", (3, 3), init=np.eye(3, dtype="float32"))
    program = pr.compile((x @ w)[0:T].sum(0))
    ones = np.ones((4, 3), "float32")
    expected = [4.0, 4.0, 4.0]
    assert jax.jit(lambda x: program(x=x))(ones).tolist() == expected
    assert jax.jit(lambda x: 2 * program(x=x))(ones).tolist() == [8.0, 8.0, 8.0]
    assert program(x=ones).tolist() == expected


CASES = [
    "case_numpy_then_sharded",
    "case_odd_lengths_stay",
    "case_stream",
    "case_growing",
    "case_device",
]


@pytest.mark.parametrize("case", CASES)
def test_arrays_that_the_user_sharded(case: str, placed: dict[str, object]) -> None:
    assert placed[case] == "ok", placed[case]


@pytest.fixture(scope="module")
def placed() -> dict[str, object]:
    """The cases of `placed_cases.py` on four devices."""
    return run_cases("tests.devices.placed_cases", 4)
