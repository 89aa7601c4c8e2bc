"""Calling a program: which arrays go in and come out, bounds, seeds, parameters, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import polyrhythm as pr
from polyrhythm.errors import (
    BoundsError,
    DeclarationError,
    InputDTypeError,
    InputShapeError,
    MissingInputError,
    UnknownInputError,
    UnsupportedError,
)

BACKENDS = ["numpy", "torch", "jax"]

t, T = pr.dim("t")
x = pr.input("x", (2,), (t,))
VALUES = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_kind_comes_out(backend: str) -> None:
    program = pr.compile((x * 2, x[0:T].sum(0)), backend=backend)
    for make, kind in (
        (np.asarray, np.ndarray),
        (jnp.asarray, jax.Array),
        (lambda values: torch.from_numpy(values.copy()), torch.Tensor),
    ):
        doubled, total = program(x=make(VALUES))
        assert isinstance(doubled, kind)
        assert isinstance(total, kind)
        np.testing.assert_array_equal(np.asarray(doubled), VALUES * 2)
        np.testing.assert_array_equal(np.asarray(total), VALUES.sum(0))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int64", "uint8", "bool"])
def test_dtypes_survive(backend: str, dtype: str) -> None:
    u = pr.input("u", (), (t,), dtype)
    program = pr.compile({"u": pr.where(t > 0, u, u)}, backend=backend)
    own = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    given = np.array([0, 1, 1], own)
    assert program(u=given)["u"].dtype == own
    tensor = torch.tensor([0, 1, 1]).to(getattr(torch, dtype))
    assert program(u=tensor)["u"].dtype == tensor.dtype
    np.testing.assert_array_equal(program(u=given)["u"].astype(np.float32), [0, 1, 1])


def test_inputs_are_not_copied_by_numpy() -> None:
    seen: list[Any] = []
    program = pr.compile(x * 2, backend="numpy")
    start = program.backend.start
    program.backend.start = lambda inputs, *rest, **how: seen.append(inputs["x"]) or start(inputs, *rest, **how)  # type: ignore[func-returns-value]
    values = VALUES.copy()
    program(x=values)
    assert np.shares_memory(seen[0], values)
    program(x=torch.from_numpy(values))
    assert np.shares_memory(seen[1], values)


def test_an_output_that_is_an_input_is_a_copy() -> None:
    values = VALUES.copy()
    for backend in BACKENDS:
        out = pr.compile(x, backend=backend)(x=values)
        assert not np.shares_memory(out, values)
        np.testing.assert_array_equal(out, values)


def test_lists_and_other_float_widths() -> None:
    program = pr.compile(x * 2, backend="numpy")
    assert program(x=[[1, 2]]).tolist() == [[2.0, 4.0]]
    assert program(x=np.ones((1, 2))).dtype == np.float32


def test_bounds_differ_from_call_to_call() -> None:
    y = pr.recurrent((), (t,))
    y[0] = 1.0
    y[t + 1] = 2 * y
    for backend in BACKENDS:
        program = pr.compile(y, backend=backend)
        for steps in (0, 1, 5, 3):
            assert program(bounds={T: steps}).tolist() == [2.0**k for k in range(steps)]
            assert program(bounds={"T": steps}).shape == (steps,)


def test_bounds_fixed_by_name_are_refused() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    with pytest.raises(pr.errors.DeclarationError, match=r"'T' is not a bound(?s:.)*bounds=\{T: 8\}"):
        pr.compile(2 * x, bounds={"T": 8})  # type: ignore[dict-item]


def test_bounds_fixed_when_compiling() -> None:
    program = pr.compile(x[0:T].sum(0), bounds={T: 3}, backend="numpy")
    np.testing.assert_array_equal(program(x=VALUES), VALUES.sum(0))
    with pytest.raises(InputShapeError):
        program(x=VALUES[:2])


def test_seeds() -> None:
    u = pr.uniform((3,), dims=(t,))
    drawn = {b: pr.compile(u, backend=b)(bounds={T: 4}, seed=7) for b in BACKENDS}
    for values in drawn.values():
        np.testing.assert_array_equal(values, pr.evaluate(u, bounds={T: 4}, seed=7))
    assert not np.array_equal(pr.compile(u, backend="numpy")(bounds={T: 4}, seed=8), drawn["numpy"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_are_given_per_call_or_for_good_and_never_changed(backend: str) -> None:
    w = pr.parameter("w", (2,), init=[1.0, 2.0])
    program = pr.compile({"y": w * x, "w": w}, backend=backend)
    ones = np.ones((1, 2), np.float32)
    assert program(x=ones)["y"].tolist() == [[1.0, 2.0]]
    assert program(x=ones, w=[5.0, 6.0])["y"].tolist() == [[5.0, 6.0]]
    out = program(x=ones)
    np.array(out["w"])[:] = 9
    assert out["y"].tolist() == [[1.0, 2.0]]
    assert program.params["w"].tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        program.params["w"][0] = 3.0
    program.params["w"] = np.array([0.0, 1.0], np.float32)
    assert program(x=ones)["y"].tolist() == [[0.0, 1.0]]
    program.params["w"][0] = 7.0
    assert program(x=ones)["y"].tolist() == [[7.0, 1.0]]


def test_an_output_never_shares_memory_with_a_parameter() -> None:
    w = pr.parameter("w", (2,), init=[1.0, 2.0])
    program = pr.compile(w, backend="numpy")
    program()[0] = 9
    assert program().tolist() == [1.0, 2.0]


def test_iterators_are_read_to_their_end() -> None:
    program = pr.compile(x[0:T].sum(0), backend="numpy")

    def items(count: int) -> Iterator[np.ndarray]:
        for number in range(count):
            yield np.full(2, number, np.float32)

    for count in (0, 1, 3, 600):
        assert program(x=items(count)).tolist() == [sum(range(count))] * 2
    with pytest.raises(InputShapeError, match="different shapes"):
        program(x=iter([np.zeros(2), np.zeros(3)]))


def test_what_is_refused() -> None:
    program = pr.compile(x * 2, backend="numpy")
    with pytest.raises(InputShapeError, match="steps in a row of 2"):
        program(x=pr.Ragged.of([[1.0], [1.0, 2.0]]))
    with pytest.raises(MissingInputError):
        program()
    with pytest.raises(UnknownInputError):
        program(x=VALUES, z=1)
    with pytest.raises(InputDTypeError):
        program(x=VALUES.astype("int32"))
    with pytest.raises(BoundsError):
        program(x=VALUES, bounds={T: 5})
    with pytest.raises(UnsupportedError, match="no backend"):
        pr.compile(x * 2, backend="fortran")
    for name in ("bounds", "seed", "over", "at"):
        with pytest.raises(DeclarationError, match="argument of the call"):
            pr.compile(pr.input(name) * 2, backend="numpy")


@pytest.mark.parametrize("backend", BACKENDS)
def test_host_exceptions_surface_and_the_program_can_be_used_again(backend: str) -> None:
    class Trouble(Exception):
        pass

    def careful(value: np.ndarray) -> np.ndarray:
        if value[0] == 2:
            raise Trouble("at two")
        return value + 1

    program = pr.compile(pr.host(careful, [x], (2,)), backend=backend)
    with pytest.raises(Trouble, match="at two") as raised:
        program(x=VALUES)
    assert raised.traceback[-1].name == "careful"
    np.testing.assert_array_equal(program(x=VALUES + 10), VALUES + 11)


@pytest.mark.parametrize("backend", BACKENDS)
def test_host_functions_take_and_give_lengths_of_the_run(backend: str) -> None:
    """With room for eight steps, five are passed and five come back; eight fill it."""
    i, I = pr.dim("i")
    seen: list[int] = []

    def one(past: np.ndarray) -> np.ndarray:
        seen.append(len(past))
        return past.cumsum(0)

    def two(past: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return past[::-1] * 1, past.sum(0)

    given = pr.input("given", (), (i,))
    single = pr.host(one, [given[0:I]], shape=(I,))
    several = pr.host(two, [given[0:I]], shape=[(I,), ()], dtype=["float32", "float32"])
    outputs = {"single": single, "turned": several[0], "sum": several[1]}
    program = pr.compile(outputs, backend=backend)
    for steps in (5, 8):
        values = np.arange(1, steps + 1, dtype="float32")
        for out in (program(given=values), pr.evaluate(outputs, {"given": values})):
            np.testing.assert_array_equal(out["single"], values.cumsum())
            np.testing.assert_array_equal(out["turned"], values[::-1])
            np.testing.assert_array_equal(out["sum"], values.sum())
    assert seen == [5, 5, 8, 8]


@pytest.mark.parametrize("backend", BACKENDS)
def test_host_functions_take_and_give_lengths_of_the_step(backend: str) -> None:
    doubled = pr.host(lambda past: past * 2, [x[0 : t + 1]], shape=(t + 1, 2))
    found = pr.compile(doubled.sum(0), backend=backend)(x=VALUES)
    np.testing.assert_allclose(found, 2 * VALUES.cumsum(0))
    # What calls make is kept with room for all steps, and passed between the regions of a program.
    y = pr.recurrent((), (t,))
    y[t] = pr.host(lambda value: value - 1, [x.axes[0] + pr.where(t > 0, y[t - 1], 1)], effect="log")
    doubled = pr.host(lambda past: past * 2, [y[0 : t + 1]], shape=(t + 1,))
    found = pr.compile({"y": y, "sum": doubled.sum(0)}, backend=backend)(x=VALUES)["sum"]
    kept = VALUES[:, 0].cumsum() - np.arange(3)
    np.testing.assert_allclose(found, 2 * kept.cumsum())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", [(2, 3), (0, 3), (2, 0)])
def test_host_functions_that_are_never_called(backend: str, sizes: tuple[int, int]) -> None:
    """What an empty batch makes between the calls is nothing, at every step."""
    b, _ = pr.dim("b")
    given = pr.input("given", (), (b, t))
    y = pr.recurrent((), (b, t))
    y[b, t] = pr.host(lambda value: value * 2, [given + pr.where(t > 0, y[b, t - 1], 1)])
    values = np.arange(sizes[0] * sizes[1], dtype="float32").reshape(sizes)
    expected = np.ones((sizes[0], sizes[1] + 1), "float32")
    for step in range(sizes[1]):
        expected[:, step + 1] = 2 * (values[:, step] + expected[:, step])
    np.testing.assert_array_equal(pr.compile(y, backend=backend)(given=values), expected[:, 1:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_host_function_cannot_change_what_it_is_given(backend: str) -> None:
    def rude(value: np.ndarray) -> np.ndarray:
        value[:] = 0
        return value

    values = VALUES.copy()
    out = pr.compile({"host": pr.host(rude, [x], (2,)), "x": x * 1}, backend=backend)(x=values)
    assert not out["host"].any()
    np.testing.assert_array_equal(out["x"], VALUES)
    np.testing.assert_array_equal(values, VALUES)


def test_inside_a_jitted_function() -> None:
    y = pr.recurrent((2,), (t,))
    y[0] = x[0]
    y[t + 1] = 0.5 * y + x[t + 1]
    program = pr.compile({"y": y, "last": y[T - 1]}, backend="jax")
    outer = jax.jit(lambda values: program(x=values * 2)["last"] + 1)
    for length in (1, 3):
        want = program(x=VALUES[:length] * 2)["last"] + 1
        np.testing.assert_allclose(outer(VALUES[:length]), want, rtol=1e-6)
    batched = jax.vmap(lambda values: program(x=values)["y"])(jnp.stack([VALUES, VALUES + 1]))
    np.testing.assert_allclose(batched[1], program(x=VALUES + 1)["y"], rtol=1e-6)


def test_what_cannot_be_inside_a_jitted_function() -> None:
    with pytest.raises(UnsupportedError, match="backend"):
        jax.jit(lambda values: pr.compile(x * 2, backend="numpy")(x=values))(VALUES)
    early = pr.compile(x * 2, until={t: x.axes[0] > 1}, backend="jax")
    with pytest.raises(UnsupportedError, match="early"):
        jax.jit(lambda values: early(x=values))(VALUES)


def test_as_a_torch_function() -> None:
    for backend in BACKENDS:
        function = pr.compile({"y": (x * 2,)}, backend=backend).as_torch()
        values = torch.from_numpy(VALUES.copy())
        (doubled,) = function(x=values)["y"]
        torch.testing.assert_close(doubled, values * 2)
        (traced,) = function(x=values.clone().requires_grad_())["y"]
        with pytest.raises(UnsupportedError, match="no gradients"):
            traced.sum().backward()
