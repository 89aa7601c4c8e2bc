"""Where the loop of a stopping condition goes."""

from __future__ import annotations

import numpy as np
import pytest

import polyrhythm as pr

t, T = pr.dim("t")
BACKENDS = ["numpy", "torch", "jax"]


def doubling() -> pr.Recurrent:
    y = pr.recurrent((), (t,), "int32")
    y[0] = 1
    y[t + 1] = 2 * y
    return y


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_condition_on_the_step_alone_is_looked_at_before_anything_is_computed(backend: str) -> None:
    limit, x = pr.input("limit", (), (), "int32"), pr.input("x", (), (t,))
    calls: list[int] = []

    def noted(value: np.ndarray) -> np.ndarray:
        calls.append(int(value))
        return value

    y = doubling()
    seen = pr.host(noted, [y], dtype="int32")
    program = pr.compile({"y": y, "x": x * 2, "seen": seen}, until={t: pr.value(t) >= limit}, backend=backend)
    made = program(bounds={T: 20}, x=np.ones(20, "float32"), limit=3)
    assert made["y"].tolist() == made["seen"].tolist() == [1, 2, 4, 8]
    assert made["x"].tolist() == [2] * 4
    assert sorted(calls) == [1, 2, 4, 8]
    assert " until " in str(program.schedule).splitlines()[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stream_ends_there(backend: str) -> None:
    program = pr.compile({"y": doubling()}, until={t: pr.value(t) >= 3}, backend=backend)
    assert [int(item["y"]) for item in program.stream(over=t, bounds={T: 20})] == [1, 2, 4, 8]


def test_a_condition_on_values_stays_in_their_loop() -> None:
    y = doubling()
    program = pr.compile({"y": y}, until={t: (y > 5) | (pr.value(t) >= 9)}, backend="numpy")
    assert program(bounds={T: 20})["y"].tolist() == [1, 2, 4, 8]
    assert str(program.schedule).count("for t") == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loop_that_ends_early_beside_host_calls_elsewhere(backend: str) -> None:
    y = doubling()
    total = pr.host(lambda v: v, [y[0:T].sum(0)], dtype="int32")
    program = pr.compile({"y": y, "total": total}, until={t: y > 5}, backend=backend)
    made = program(bounds={T: 20})
    assert made["y"].tolist() == [1, 2, 4, 8]
    assert int(made["total"]) == 15
