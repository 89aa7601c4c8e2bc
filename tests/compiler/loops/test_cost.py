"""The cost model: chunks that fit the cache, fewer of them where starting is dear, and growth where calls pay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyrhythm.compiler.loops.cost import GROWING, LEAST, Lanes, Machine, chunk_for, seconds_of, worthwhile

MACHINE = Machine(call=1e-4, launch=1e-6, near=1e11, far=1e10, cache=1 << 20)


def test_all_at_once_as_long_as_it_fits_the_cache() -> None:
    assert chunk_for(MACHINE, Lanes(512, 4, own=1 << 11, shared=0), most=512) is None
    assert chunk_for(MACHINE, Lanes(513, 4, own=1 << 11, shared=0), most=513) == 512


def test_the_fixed_figures_choose_as_was_measured() -> None:
    """Causal attention of all steps, 4 heads of 64, and a network of two layers: see `docs/decisions.md`."""
    lanes = [Lanes(1024, 4, 66592, 1 << 21), Lanes(2048, 4, 132128, 1 << 22), Lanes(4096, 4, 263200, 1 << 23)]
    assert [chunk_for(Machine(), one, most=one.count) for one in lanes] == [256, 128, 64]
    assert chunk_for(Machine(), Lanes(16384, 2, 9216, 1 << 21), most=16384) == 2048
    assert not Machine().calibrated


def test_what_all_steps_share_needs_room_too() -> None:
    assert chunk_for(MACHINE, Lanes(1024, 4, own=1 << 11, shared=1 << 19), most=1024) == 256


def test_not_where_every_chunk_starts_too_much() -> None:
    lanes = Lanes(1024, 4, own=1 << 11, shared=0)
    assert chunk_for(MACHINE, lanes, most=1024) == 512
    assert chunk_for(replace(MACHINE, launch=1e-4), lanes, most=1024) is None


def test_never_more_than_there_is_room_for() -> None:
    lanes = Lanes(4096, 4, own=16, shared=0)
    assert chunk_for(MACHINE, lanes, most=4096) is None
    assert chunk_for(MACHINE, lanes, most=100) == 64
    assert chunk_for(MACHINE, lanes, most=1) == 1


@pytest.mark.parametrize("count", [0, 1])
def test_no_choice_with_a_single_step(count: int) -> None:
    assert chunk_for(MACHINE, Lanes(count, 1, 1 << 30, 0), most=1) is None


def test_seconds_by_hand() -> None:
    lanes = Lanes(10, 3, own=1000, shared=5000)
    assert seconds_of(MACHINE, lanes, 4) == pytest.approx(3 * (3e-6 + 5000 / 1e11) + 10_000 / 1e11)
    assert seconds_of(replace(MACHINE, cache=8999), lanes, 4) == pytest.approx(3 * (3e-6 + 5000 / 1e10) + 10_000 / 1e11)
    assert seconds_of(replace(MACHINE, cache=3999), lanes, 4) == pytest.approx(3 * (3e-6 + 5000 / 1e10) + 10_000 / 1e10)


def test_growing_is_worth_what_some_steps_save() -> None:
    assert worthwhile(MACHINE) == 1e11 * 1e-4 * GROWING // LEAST
