"""Slices at a place that lanes share stay slices, and lanes see one row of what all steps share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.trace.places import put, put_along, taken, taken_along

ARRAY = jnp.arange(120.0).reshape(2, 3, 4, 5)
SLOTS = -jnp.arange(1.0, 31.0).reshape(2, 3, 1, 5)


@pytest.mark.parametrize("mapped", [(0, 0), (0, None), (None, 0), (None, None)])
@pytest.mark.parametrize("own", [False, True])
def test_equal_to_one_after_the_other(mapped: tuple[int | None, int | None], own: bool) -> None:
    """Lanes inside of lanes, of which each has an array, a slot or a place of its own, or shares it."""
    array = ARRAY if mapped[0] == 0 else ARRAY[0, 0]
    slot = SLOTS if mapped[1] == 0 else SLOTS[0, 0]
    place = jnp.array([[1, 2, 3], [0, 1, 2]]) if own else jnp.int32(2)
    axes = (*mapped, 0 if own else None)

    def stored(array: Any, slot: Any, place: Any) -> Any:
        return put(array, slot, [place, jnp.int32(0)]), taken(array, (1, 5), [place, jnp.int32(0)])

    if axes == (None, None, None):
        found = jax.jit(stored)(array, slot, place)
    else:
        found = jax.jit(jax.vmap(jax.vmap(stored, axes), axes))(array, slot, place)
    for row in np.ndindex(2, 3):
        one = array[row] if mapped[0] == 0 else array
        at = int(place[row]) if own else 2
        if axes[0] is not None or axes[1] is not None or own:
            new = np.asarray(one).copy()
            new[at] = np.asarray(slot[row] if mapped[1] == 0 else slot)[0]
            np.testing.assert_array_equal(found[0][row], new)
            taken_row = found[1][row]
            np.testing.assert_array_equal(taken_row, np.asarray(one)[at : at + 1])


def test_rows_of_an_axis() -> None:
    rows = jax.vmap(lambda array: taken_along(array, jnp.int32(1), 2, 1))(ARRAY)
    np.testing.assert_array_equal(rows, ARRAY[:, :, 1:3])
    again = jax.vmap(lambda array, new: put_along(array, new, jnp.int32(2), 1))(ARRAY, rows)
    np.testing.assert_array_equal(again, ARRAY.at[:, :, 2:4].set(ARRAY[:, :, 1:3]))


def _network() -> Any:
    """A recurrent network whose batch is a dim."""
    b, B = pr.dim("b")
    t, T = pr.dim("t", min=1)
    x, w = pr.input("x", (4,), (b, t)), pr.input("w", (4, 4))
    h = pr.recurrent((4,), (b, t))
    h[b, 0] = x[b, 0]
    h[b, t + 1] = pr.tanh(h @ w + x[b, t + 1])
    return pr.grad(pr.square(h)[0:B, 0:T].sum((0, 1, 2)), w), {"x": (3, 40, 4), "w": (4, 4)}


def _table() -> Any:
    """A table over two dims, all of which is wanted, and its gradient."""
    t, T = pr.dim("t", min=1)
    s, S = pr.dim("s", min=1)
    x, w = pr.input("x", (), (t, s)), pr.input("w", ())
    y = pr.recurrent((), (t, s))
    y[0, s] = x[0]
    left = pr.where(s >= 1, y[t, s - 1], 0.5)
    y[t + 1, s] = pr.tanh(w * (y + left)) + x[t + 1]
    return pr.grad(pr.square(y)[0:T, 0:S].sum((0, 1)), x), {"x": (40, 3), "w": ()}


@pytest.mark.parametrize("written", [_network, _table])
def test_no_step_scatters_or_selects_what_all_steps_have(written: Callable[[], Any]) -> None:
    output, shapes = written()
    rng = np.random.default_rng(0)
    given = {name: (rng.normal(size=shape) * 0.3).astype("float32") for name, shape in shapes.items()}
    program = pr.compile(output)
    np.testing.assert_allclose(program(**given), pr.evaluate(output, given), rtol=1e-4, atol=1e-5)
    (compiled,) = program.backend.executor.programs.values()
    text = compiled.as_text()
    assert " scatter(" not in text
    assert "and_reduce" not in text  # what XLA makes of a scatter looks whether all places are inside
