"""Tokens stand for nested lists one to one, empty groups included."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.stream.tokens import EMPTY, decode, encode
from tests.stream.nested import Nested, ragged_lists


@given(st.integers(0, 3).flatmap(lambda rank: st.tuples(st.just(rank), ragged_lists(rank))))
def test_decoding_inverts_encoding(case: tuple[int, Nested]) -> None:
    rank, nested = case
    assert decode(encode(nested, rank), rank) == nested


@given(st.integers(0, 3).flatmap(lambda rank: st.tuples(st.just(rank), ragged_lists(rank), st.randoms())))
def test_a_stop_may_ride_or_follow(case: tuple[int, Nested, object]) -> None:
    rank, nested, random = case
    split = []
    for value, level in encode(nested, rank):
        if value is not EMPTY and level and random.random() < 0.5:  # type: ignore[attr-defined]
            split += [(value, 0), (EMPTY, level)]
        else:
            split.append((value, level))
    assert encode(decode(split, rank), rank) == encode(nested, rank)


def test_one_empty_group_is_not_no_group() -> None:
    assert encode([[[]]], 2) == [(EMPTY, 1), (EMPTY, 2)]
    assert encode([[]], 2) == [(EMPTY, 2)]
    assert encode([], 2) == []


def test_the_published_example() -> None:
    assert encode([[[1, 2], [3]], [[4], [5, 6, 7]]], 2) == [(1, 0), (2, 1), (3, 2), (4, 1), (5, 0), (6, 0), (7, 2)]


def test_a_stream_may_not_end_inside_a_group() -> None:
    with pytest.raises(ValueError, match="inside a group"):
        decode([(1, 0)], 1)
