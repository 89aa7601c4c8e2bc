"""One program for any number of steps: compilations by XLA are counted by JAX, not by us."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import polyrhythm as pr

LENGTHS = sorted({0, *range(1, 33), *(2**k + d for k in range(5, 11) for d in (-1, 0, 1)), 100, 300})[:50]

t, T = pr.dim("t")


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """One entry for every program that XLA compiles."""
    found: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def test_one_compilation_where_no_buffer_is_sized_by_the_bound(compilations: list[str]) -> None:
    a, b = pr.recurrent((), (t,), "int32"), pr.recurrent((), (t,), "int32")
    a[0], b[0] = 0, 1
    a[t + 1], b[t + 1] = b, (a + b) % 1000
    program = pr.compile(pr.where(T > 0, a[pr.max(T - 1, 0)], -1), backend="jax")
    want = [0, 1]
    while len(want) < 2000:
        want.append((want[-1] + want[-2]) % 1000)
    assert len(LENGTHS) == 50
    assert int(program(bounds={T: 5})) == want[4]
    compilations.clear()
    for length in LENGTHS[1:]:
        assert int(program(bounds={T: length})) == want[length - 1] % 1000
    assert compilations == []
    assert len(program.stats.compilations) == 1


def test_at_most_one_compilation_per_power_of_two(compilations: list[str]) -> None:
    x = pr.input("x", (), (t,))
    y = pr.recurrent((), (t,))
    y[0] = x[0]
    y[t + 1] = 0.5 * y + x[t + 1]
    program = pr.compile({"y": y, "mean": x[0:T].sum(0)}, backend="jax")
    rng = np.random.default_rng(0)
    compilations.clear()
    buckets = set()
    for length in rng.permutation(LENGTHS).tolist():
        values = rng.normal(size=length).astype("float32")
        before = len(program.stats.compilations)
        out = program(x=values)
        want, carried = [], 0.0
        for value in values:
            carried = 0.5 * carried + value
            want.append(carried)
        np.testing.assert_allclose(out["y"], want, atol=1e-5)
        np.testing.assert_allclose(out["mean"], values.sum(), atol=1e-4)
        bucket = 0 if length == 0 else 1 << (length - 1).bit_length()
        assert len(program.stats.compilations) - before == (bucket not in buckets)
        buckets.add(bucket)
    assert len(compilations) == len(program.stats.compilations) <= len(buckets)


@pytest.mark.parametrize("sized", [True, False])
def test_a_loop_between_two_bounds_has_all_its_steps(sized: bool) -> None:
    """However their powers of two compare: there are 3 steps from 5 to 8, and both bounds are padded to 8."""
    t, T = pr.dim("t")
    P = pr.size("P", max=T)
    x = pr.input("x", (), (t,))
    few = pr.input("few", (P,), ())
    y = pr.recurrent((), (t,))
    y[t < P] = x * 2
    y[t >= P] = x * x + (few.sum() if sized else 1.0)
    program = pr.compile(y)
    for steps, first in [(8, 5), (7, 6), (8, 8), (8, 1), (9, 8)]:
        values = np.arange(steps, dtype="float32")
        given: dict[str, Any] = {"x": values, "few": np.ones(first, "float32")} if sized else {"x": values}
        added = first if sized else 1
        expected = np.where(np.arange(steps) < first, values * 2, values * values + added)
        np.testing.assert_allclose(program(bounds={P: first}, **given), expected)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (0, 1), (2, 1), (2, 3)])
def test_points_beside_empty_ranges_are_not_read(backend: str, shape: tuple[int, int]) -> None:
    """With no rows there is no step to read either, whatever the index says."""
    i, I = pr.dim("i")
    x = pr.input("x", (2,), (i, t))
    outputs = {"first": x[0:I, 0].sum(0), "last": x[0:I, T - 1].sum(0)}
    array = np.arange(2 * np.prod(shape), dtype="float32").reshape(*shape, 2)
    want = pr.evaluate(outputs, {"x": array})
    found = pr.compile(outputs, backend=backend)(x=array)
    for name, value in want.items():
        np.testing.assert_array_equal(found[name], value, name)
