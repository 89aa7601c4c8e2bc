"""Products with windows that slide are products with copies of the windows, whatever lanes add to them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.products import choose, windows

# The contracted axes of both operands and their batch axes, the shapes of both, and which axis of the second slides.
FORMS: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...], int]] = {
    "scores": ((((2,), (2,)), ((0,), (0,))), (3, 2, 5), (3, 20, 5), 1),
    "values": ((((2,), (1,)), ((0,), (0,))), (3, 2, 7), (3, 20, 5), 1),
    "steps first": ((((1,), (2,)), ((0,), (1,))), (3, 5), (20, 3, 5), 0),
    "two batch axes": ((((2,), (3,)), ((0, 1), (1, 0))), (3, 4, 5), (4, 3, 20, 5), 2),
    "no batch": ((((0,), (0,)), ((), ())), (7,), (20, 5), 0),
    "two contracted axes": ((((1, 2), (3, 2)), ((0,), (0,))), (3, 5, 2), (3, 20, 2, 5), 1),
    "several axes of a step": ((((1,), (1,)), ((0,), (0,))), (3, 7), (3, 20, 2, 5), 1),
    "the window is last": ((((1,), (1,)), ((0,), (0,))), (3, 5), (3, 5, 20), 2),
}
COPIED = {"the window is last"}
SIZE, STARTS = 7, (0, 1, 2, 9, 13)


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "LEAST_BATCH", 0)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype("float32")


def own(form: str) -> Any:
    dimensions, _, _, axis = FORMS[form]
    return lambda a, whole, start: windows.product(a, whole, start, dimensions, np.float32, axis, SIZE)


def plain(form: str) -> Any:
    dimensions, _, _, axis = FORMS[form]
    return lambda a, whole, start: lax.dot_general(a, lax.dynamic_slice_in_dim(whole, start, SIZE, axis), dimensions)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lanes", [(0, None, 0), (None, None, 0), (0, None, None), (0, 0, 0), (1, None, 0)], ids=str)
def test_lanes(form: str, lanes: tuple[int | None, ...]) -> None:
    _, *shapes, _ = FORMS[form]
    count = len(STARTS)
    given: list[Any] = []
    for shape, lane in zip(shapes, lanes[:2], strict=True):
        given.append(normal(*shape) if lane is None else np.moveaxis(normal(count, *shape), 0, lane))
    given.append(jnp.int32(9) if lanes[2] is None else jnp.array(STARTS, jnp.int32))
    found, wanted = (jax.jit(jax.vmap(f(form), lanes))(*given) for f in (own, plain))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    twice = [np.stack([array, 2 * array]) for array in given[:2]]
    for outer in ((0, None, None), (0, 0, None), (None, 0, None)):
        several = [pair if at is not None else one for pair, one, at in zip(twice, given[:2], outer[:2], strict=True)]
        found, wanted = (jax.jit(jax.vmap(jax.vmap(f(form), lanes), outer))(*several, given[2]) for f in (own, plain))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_which_forms_are_the_kernel(form: str) -> None:
    _, *shapes, _ = FORMS[form]
    made = jax.jit(jax.vmap(own(form), (0, None, 0)))
    text = made.lower(normal(5, *shapes[0]), normal(*shapes[1]), jnp.array(STARTS, jnp.int32)).as_text()
    assert text.count("@polyrhythm_window") == (form not in COPIED)


def test_starts_outside_are_moved_inside() -> None:
    """As those of a slice are: nothing is read beyond the array."""
    a, whole, starts = normal(3, 3, 2, 5), normal(3, 20, 5), jnp.array([-4, 17, 10**9], jnp.int32)
    found, wanted = (jax.vmap(f("scores"), (0, None, 0))(a, whole, jnp.clip(starts, 0, 13)) for f in (own, plain))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    moved = jax.jit(jax.vmap(own("scores"), (0, None, 0)))(a, whole, starts)
    np.testing.assert_allclose(moved, wanted, rtol=1e-4, atol=1e-4)


def test_gradients() -> None:
    given = normal(5, 3, 2, 5), normal(3, 20, 5)

    def total(f: Any) -> Any:
        each = jax.vmap(f("scores"), (0, None, 0))
        return lambda a, whole: jnp.sin(each(a, whole, jnp.array(STARTS, jnp.int32))).sum()

    found, wanted = (jax.jit(jax.grad(total(f), (0, 1)))(*given) for f in (own, plain))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def attention(heads: int) -> dict[str, pr.Tensor]:
    """To the last four of five or more, with its gradients."""
    t, T = pr.dim("t")
    b = 2
    x = pr.input("x", (b, heads, 3), ((t, T + 3),))
    w_k, w_v = pr.input("w_k", (3, 3)), pr.input("w_v", (3, 3))
    keys, values = x @ w_k, x @ w_v
    scores = pr.einsum("nhd,cnhd->nhc", x[t + 3], keys[t : t + 4])
    mixed = pr.einsum("nhc,cnhd->nhd", pr.softmax(scores, -1), values[t : t + 4])
    slopes = pr.grad(pr.square(mixed).sum((0, 1, 2))[0:T].sum(0), [w_k, w_v])
    return {"mixed": mixed, "of_keys": slopes[0], "of_values": slopes[1]}


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("far", [False, True], ids=["finite", "not finite"])
def test_a_program(heads: int, far: bool) -> None:
    """What one window has that is not finite does not reach the lanes of others."""
    x = normal(14, 2, heads, 3)
    if far:
        x[9] = np.inf
    given: dict[str, Any] = {"x": x, "w_k": normal(3, 3), "w_v": normal(3, 3)}
    program = pr.compile(attention(heads))
    found, wanted = program(**given), pr.evaluate(attention(heads), given)
    for name, value in found.items():
        np.testing.assert_allclose(value, wanted[name], rtol=2e-3, atol=1e-3, err_msg=name)
