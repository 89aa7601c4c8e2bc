"""Values that a stream has stored, replaced by others: the steps that follow read those."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.run.replacing import replaced, share
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.loops.ir import Place
from polyrhythm.compiler.loops.replacing import together
from polyrhythm.errors import UnsupportedError

ROWS, SIZE, WINDOW, STEPS = 2, 4, 5, 40


def program(backend: str, layers: int) -> Any:
    """Layers, each of which sums a window of what the layer before made: a ring for each, of some rows."""
    (t, _), (l, L) = pr.dim("t"), pr.dim("l")
    x = pr.input("x", (ROWS, SIZE), (t,))
    h = pr.recurrent((ROWS, SIZE), ((l, L + 1), t), name="h")
    k = pr.sin(h)
    k.name = "kept"
    h[0] = x
    h[l + 1] = k[{t: slice(pr.max(0, t - WINDOW + 1), t + 1)}].sum(0) * 0.5
    return t, pr.compile(h[L], bounds={L: layers}, backend=backend)


def by_hand(x: np.ndarray, changes: dict[int, Any], layers: int) -> np.ndarray:
    kept, found = np.zeros((layers, STEPS, ROWS, SIZE)), []
    for t in range(STEPS):
        if t in changes:
            steps, row, values = changes[t]
            kept[:, steps, row] = values
        h = x[t]
        for l in range(layers):
            kept[l, t] = np.sin(h)
            h = kept[l, max(0, t - WINDOW + 1) : t + 1].sum(0) * 0.5
        found.append(h)
    return np.stack(found)


@pytest.mark.parametrize("layers", [3, 1])
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_later_steps_read_what_was_written(backend: str, layers: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS, ROWS, SIZE)).astype("float32")
    steps = {n: np.arange(n - 3, n) for n in (4, 13, 22)}
    changes = {n: (own, n % ROWS, rng.normal(size=(layers, 3, SIZE)).astype("float32")) for n, own in steps.items()}
    t, made = program(backend, layers)
    found = []
    with made.stream(over=t, library="numpy", x=iter(x), bounds={"T": STEPS}) as stream:
        for number in range(STEPS):
            if number in changes:
                own, row, values = changes[number]
                stream.replace("kept", [slice(None), own, row], values)
            found.append(next(stream))
    np.testing.assert_allclose(np.stack(found), by_hand(x, changes, layers), atol=1e-5)


def test_what_is_not_stored() -> None:
    t, made = program("numpy", 2)
    stream = made.stream(over=t, x=np.zeros((4, ROWS, SIZE), "float32"))
    with pytest.raises(UnsupportedError, match=r"no tensors named 'other' are stored(.|\n)*stored are: .*kept"):
        stream.replace("other", [0], 1.0)


@pytest.mark.parametrize("axes", [(), (0, 2, 3, 1, 4), (1, 0, 4, 3, 2), (4, 2, 1, 0)])
@pytest.mark.parametrize(
    "index",
    [
        (slice(None), np.array([1, 3]), 0),
        (slice(None), 2, 0),
        (1, slice(None), 0, np.array([0, 1, 1])),
        (np.array([0, 2]), slice(None), slice(None), np.array([1, 0])),
        (slice(None),) * 5,
    ],
)
def test_places_as_they_lie_in_memory(axes: tuple[int, ...], index: tuple[Any, ...]) -> None:
    rng = np.random.default_rng(0)
    shape = (3, 4, 2, 2, 5) if len(axes) != 4 else (3, 4, 2, 1, 5)
    if len(axes) == 4:  # an axis of length one is left out
        index = tuple(
            0 * entry if axis == 3 and not isinstance(entry, slice) else entry for axis, entry in enumerate(index)
        )
    whole = rng.normal(size=shape).astype("float32")
    values = rng.normal(size=whole[index].shape).astype("float32")
    wanted = whole.copy()
    wanted[index] = values
    sizes = tuple(map(Term.of, shape))
    place = Place("x", "buffer", sizes[:2], TensorType(sizes[2:], np.dtype("float32")), axes=axes)

    def lying(array: np.ndarray) -> np.ndarray:
        left_out = tuple(axis for axis in range(5) if axes and axis not in axes)
        moved = array.transpose(*axes, *left_out) if axes else array
        return moved.reshape(moved.shape[: len(axes)]) if left_out else moved

    entries = [*index, *(slice(None),) * (5 - len(index))]
    own, shared = share(place, *together(entries, values))
    found = replaced({"x": np.array(lying(whole))}, own, {"x": shared})["x"]
    np.testing.assert_array_equal(found, lying(wanted))
