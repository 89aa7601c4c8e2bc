"""Rows times the entries that they choose: every way gives the same, and so do lanes of any operand."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from polyrhythm.compiler.backends.jax.products import grouped as module
from polyrhythm.compiler.backends.jax.products.grouped import TILES, grouped

WAYS = (0, 1, *TILES)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """One way is the cheapest, whatever the sizes."""
    monkeypatch.setattr(module, "_costs", lambda *_: {way: float(way != request.param) for way in WAYS})
    return int(request.param)


@pytest.mark.parametrize("rows", [1, 7, 8, 33, 300])
def test_every_way(way: int, rows: int) -> None:
    random = np.random.default_rng(rows)
    for entries in (1, 5, 40):
        x, table = random.normal(size=(rows, 6)).astype("f"), random.normal(size=(entries, 4, 6)).astype("f")
        which = random.integers(0, entries, rows).astype("int32")
        which[: rows // 2] = entries - 1  # many of one, and some that nobody chooses
        found = jax.jit(lambda x, table, which: grouped(x, table, which, "i", "oi", "o"))(x, table, which)
        np.testing.assert_allclose(found, np.einsum("ri,roi->ro", x, table[which]), rtol=1e-4, atol=1e-5)


def test_rows_and_entries_that_are_not_finite_stay_apart(way: int) -> None:
    x, table, which = np.ones((20, 3), "f"), np.ones((4, 2, 3), "f"), np.array([0, 1, 2, 1, 0] * 4, "int32")
    x[1], table[2], table[3] = np.nan, np.inf, np.nan
    found = np.asarray(jax.jit(lambda x, table, which: grouped(x, table, which, "i", "oi", "o"))(x, table, which))
    expected = np.einsum("ri,roi->ro", x, table[which])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("lanes", [(0, None, 0), (0, None, None), (None, None, 0), (1, None, 1), (0, 0, None)], ids=str)
def test_lanes(way: int, lanes: tuple[int | None, ...]) -> None:
    random = np.random.default_rng(0)
    x, table = random.normal(size=(5, 3)).astype("f"), random.normal(size=(4, 3, 2)).astype("f")
    which = random.integers(0, 4, 5).astype("int32")
    given = [
        v if lane is None else np.stack([v, v[::-1].copy()], lane)
        for v, lane in zip((x, table, which), lanes, strict=True)
    ]
    found = jax.jit(jax.vmap(lambda x, table, which: grouped(x, table, which, "i", "io", "o"), in_axes=lanes))(*given)
    for number in range(2):
        one, two, three = (
            v if lane is None else np.take(v, number, lane) for v, lane in zip(given, lanes, strict=True)
        )
        np.testing.assert_allclose(found[number], np.einsum("ri,rio->ro", one, two[three]), rtol=1e-4, atol=1e-5)


def test_many_rows_take_tiles_and_few_entries_all() -> None:
    """The cost decides: not by hundreds of copies of large matrices."""
    large, table = np.zeros((512, 256), "f"), np.zeros((64, 256, 256), "f")
    costs = module._costs(512, large, table, "i", "io", "o")
    assert min(costs, key=lambda way: costs[way]) in TILES
    costs = module._costs(512, large[:, :4], table[:2, :4, :4], "i", "io", "o")
    assert min(costs, key=lambda way: costs[way]) == 0
