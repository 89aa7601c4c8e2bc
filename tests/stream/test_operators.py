"""Every operator against the nested-list oracle, token for token, with empty groups and ragged dims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.stream import (
    F32,
    U64,
    Hardware,
    OffChip,
    Program,
    Selector,
    Tile,
    accum,
    bufferize,
    eager_merge,
    expand,
    flat_map,
    flatten,
    linear_load,
    linear_store,
    map_tiles,
    parallelize_stream,
    partition,
    promote,
    ragged,
    random_load,
    random_store,
    reassemble,
    repeat,
    replicate,
    reshape,
    restate,
    scan,
    simulate,
    source,
    stack,
    static,
    streamify,
    streamify_by,
    symbol,
    unstack,
    window,
    zip_streams,
)
from polyrhythm.stream.operators.structure import as_value
from polyrhythm.stream.tokens import decode, encode
from tests.stream import nested as oracle
from tests.stream.nested import Nested, assert_shape, leaves, ragged_lists, shape_of
from tests.stream.running import DEEP, assert_tokens, stream_of, tokens_of

NUMBER = Tile(1, 1, F32)
SHALLOW = Hardware(fifo_depth=1)


def ranked(low: int, high: int) -> st.SearchStrategy[tuple[int, Nested]]:
    """Streams with their ranks."""
    return st.integers(low, high).flatmap(lambda rank: st.tuples(st.just(rank), ragged_lists(rank)))


@given(ranked(0, 3))
def test_map_and_zip(case: tuple[int, Nested]) -> None:
    rank, nested = case
    x, y = stream_of(nested, rank), stream_of(nested, rank)
    assert_tokens(map_tiles("negate", x), oracle.map_leaves(nested, rank, lambda v: -v), SHALLOW)
    assert_tokens(map_tiles("add", x, y), oracle.map_leaves(nested, rank, lambda v: v + v), SHALLOW)
    assert_tokens(zip_streams(x, y), oracle.map_leaves(nested, rank, lambda v: (v, v)), SHALLOW)


@given(ranked(1, 3), st.data())
def test_accum_and_scan(case: tuple[int, Nested], data: st.DataObject) -> None:
    rank, nested = case
    inner = data.draw(st.integers(1, rank))
    assert_tokens(accum("add", stream_of(nested, rank), rank=inner), oracle.accumulate(nested, rank, inner), SHALLOW)
    assert_tokens(scan("add", stream_of(nested, rank), rank=inner), oracle.running(nested, rank, inner), SHALLOW)


@given(ranked(1, 3), st.data())
def test_window(case: tuple[int, Nested], data: st.DataObject) -> None:
    """Any table of positions that all groups have, with empty parts, one read again and again, and none at all."""
    rank, nested = case
    inner, depth = data.draw(st.integers(1, rank)), data.draw(st.integers(1, 3))
    fewest = min((len(leaves(group, inner - 1)) for group in oracle.groups(nested, rank, inner)), default=0)
    position = st.integers(0, fewest - 1) if fewest else st.nothing()
    layout: st.SearchStrategy[Any] = st.lists(position, max_size=4) if fewest else st.just([])
    for _ in range(depth - 1):
        layout = st.lists(layout, max_size=3)
    table = data.draw(layout)
    end = window(stream_of(nested, rank), inner, table, depth)
    expected = oracle.window(nested, rank, inner, table, depth)
    run = assert_tokens(end, expected, SHALLOW)
    assert_shape(end.shape, expected, run.bindings)


def test_window_holds_no_more_than_it_needs() -> None:
    """A shift passes elements on, a sliding window of 3 holds 2, prefixes all but the last, the reverse everything."""
    numbers = source("x", [[1.0, 2.0, 3.0, 4.0, 5.0]], (static(1), static(5)))
    sliding = [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    prefixes = [list(range(end + 1)) for end in range(5)]
    for kept, table, depth in ((1, [0, 1, 2], 1), (2, sliding, 2), (4, prefixes, 2), (5, [4, 3, 2, 1, 0], 1)):
        end = window(numbers, 1, table, depth)
        assert end.node.operator.on_chip(end.node, paper=False).constant == 4 * kept


@given(ranked(1, 2))
def test_fused_map_and_accumulate(case: tuple[int, Nested]) -> None:
    rank, nested = case
    end = accum("matmul", stream_of(nested, rank), stream_of(nested, rank))
    squares = oracle.map_leaves(nested, rank, lambda v: v * v)
    assert_tokens(end, oracle.accumulate(squares, rank, 1), SHALLOW)


@given(ranked(0, 3), st.data())
def test_flatten(case: tuple[int, Nested], data: st.DataObject) -> None:
    rank, nested = case
    low = data.draw(st.integers(0, rank))
    high = data.draw(st.integers(low, rank))
    assert_tokens(flatten(stream_of(nested, rank), low, high), oracle.flatten(nested, rank, low, high), SHALLOW)


@given(ranked(0, 3), st.data())
def test_flatten_of_flatten(case: tuple[int, Nested], data: st.DataObject) -> None:
    """Bare stops that one Flatten leaves behind must not disturb the next operator."""
    rank, nested = case
    low = data.draw(st.integers(0, rank))
    high = data.draw(st.integers(low, rank))
    once = oracle.flatten(nested, rank, low, high)
    left = rank - (high - low)
    again = data.draw(st.integers(0, left))
    end = flatten(flatten(stream_of(nested, rank), low, high), again, left)
    assert_tokens(end, oracle.flatten(once, left, again, left), SHALLOW)
    if left >= 1:
        merged = flatten(stream_of(nested, rank), low, high)
        assert_tokens(accum("add", merged), oracle.accumulate(once, left, 1), SHALLOW)
        assert_tokens(repeat(merged, 2), oracle.repeat(once, left, 2), SHALLOW)
        restated = source("again", once, merged.shape)
        pairs = oracle.map_leaves(once, left, lambda v: (v, v))
        assert_tokens(zip_streams(merged, restated), pairs, DEEP)
        assert_tokens(zip_streams(restated, merged), pairs, DEEP)


@given(ranked(0, 3), st.integers(1, 4))
def test_reshape_pads_the_innermost_dim(case: tuple[int, Nested], chunk: int) -> None:
    rank, nested = case
    end = reshape(stream_of(nested, rank), 0, chunk, pad=-1.0)
    assert_tokens(end, oracle.reshape(nested, rank, 0, chunk, -1.0), SHALLOW)


@given(st.integers(1, 3), st.integers(1, 3), st.data())
def test_reshape_splits_an_outer_dim(rank: int, chunk: int, data: st.DataObject) -> None:
    dim = data.draw(st.integers(1, rank))
    inner = ragged_lists(dim - 1, most=2)
    count = data.draw(st.integers(0, 2)) * chunk
    group = st.lists(inner, min_size=count, max_size=count)
    for _ in range(rank - dim):
        group = st.lists(group, max_size=2)
    nested = oracle.number(data.draw(group), rank)
    shape = list(shape_of(nested, rank))
    shape[len(shape) - 1 - dim] = static(count)
    end = reshape(source("x", nested, tuple(shape)), dim, chunk)
    assert_tokens(end, oracle.reshape(nested, rank, dim, chunk), SHALLOW)


@given(ranked(0, 3), st.data())
def test_promote(case: tuple[int, Nested], data: st.DataObject) -> None:
    rank, nested = case
    dim = data.draw(st.none() | st.integers(0, rank))
    assert_tokens(promote(stream_of(nested, rank), dim), oracle.promote(nested, rank, dim), SHALLOW)


@given(ranked(0, 2), st.integers(1, 3))
def test_repeat(case: tuple[int, Nested], count: int) -> None:
    rank, nested = case
    assert_tokens(repeat(stream_of(nested, rank), count), oracle.repeat(nested, rank, count), SHALLOW)


@given(ranked(0, 3), st.data())
def test_expand(case: tuple[int, Nested], data: st.DataObject) -> None:
    rank, nested = case
    inner = data.draw(st.integers(0, rank))
    ref = stream_of(nested, rank, "ref")
    values = oracle.number(oracle.at(nested, rank, inner, lambda _: _one(inner)), rank, start=100)
    shape = (*ref.shape[: len(ref.shape) - inner], *(static(1) for _ in range(inner)))
    end = expand(source("x", values, shape), ref, inner)
    assert_tokens(end, oracle.expand(values, nested, rank, inner), SHALLOW)


def _one(depth: int) -> Any:
    return 0 if depth == 0 else [_one(depth - 1)]


@given(ranked(1, 3), st.data(), st.lists(st.integers(1, 3), max_size=2))
def test_bufferize_and_streamify(case: tuple[int, Nested], data: st.DataObject, repeats: list[int]) -> None:
    rank, nested = case
    inner = 1 if rank == 1 else data.draw(st.integers(1, rank))
    x = stream_of(nested, rank)
    shape = x.shape[: len(x.shape) - inner + 1] + tuple(static(7) for _ in range(inner - 1))
    held = bufferize(restate(x, shape), inner)
    assert_tokens(streamify(held, repeats), oracle.replay(nested, rank, inner, repeats), SHALLOW)


@given(ranked(1, 2), st.data())
def test_streamify_by_reference(case: tuple[int, Nested], data: st.DataObject) -> None:
    """One buffer for every group of the reference, replayed for every element of that group."""
    rank, ref_nested = case
    count = len(oracle.groups(ref_nested, rank, 1))
    buffers = data.draw(st.lists(ragged_lists(0), min_size=count, max_size=count))
    buffers = oracle.number(buffers, 1)
    ref = stream_of(ref_nested, rank, "ref")
    waiting = iter(buffers)
    layout = oracle.at(ref_nested, rank, 1, lambda _: next(waiting))
    inner = ragged("b", sum(map(len, buffers)))
    held = promote(bufferize(source("x", layout, (*ref.shape[:-1], inner)), 1), 0)
    again = iter(buffers)

    def replayed(group: Nested) -> Nested:
        buffer = next(again)
        return [buffer for _ in group]

    assert_tokens(streamify_by(held, ref, 1), oracle.at(ref_nested, rank, 1, replayed), DEEP)


def test_streamify_walks_a_static_buffer_by_a_view() -> None:
    held = bufferize(source("x", [[[1.0, 2.0], [3.0, 4.0]]], (static(1), static(2), static(2))), 2)
    assert_tokens(streamify(held, view=((2, 2), (1, 2))), [[[1.0, 3.0], [2.0, 4.0]]])


@given(ranked(0, 2), st.integers(0, 1), st.data())
def test_flat_map(case: tuple[int, Nested], inner: int, data: st.DataObject) -> None:
    rank, nested = case
    table = {leaf: oracle.number(data.draw(ragged_lists(inner, 2)), inner, 10) for leaf in leaves(nested, rank)}

    def produce(value: Any, copy: int) -> list[tuple[Any, int]]:
        produced = encode(table[value.data.item()], inner)
        return [(as_value(v, NUMBER) if isinstance(v, float) else v, level) for v, level in produced]

    dims = tuple(ragged(f"d{k}", symbol(f"sum_d{k}")) for k in range(inner + 1))
    end = flat_map(produce, stream_of(nested, rank), dims, NUMBER)
    assert_tokens(end, oracle.flat_map(nested, rank, lambda leaf: table[leaf]), SHALLOW)


def _selectors(nested: Nested, rank: int, inner: int, chosen: list[tuple[int, ...]], targets: int) -> Any:
    waiting = iter(chosen)
    layout = oracle.at(nested, rank, inner, lambda _: next(waiting))
    outer = shape_of(nested, rank, "x")[: rank + 1 - inner]
    return layout, source("routing", layout, outer, Selector("routing", targets))


@given(ranked(0, 3), st.data())
def test_partition(case: tuple[int, Nested], data: st.DataObject) -> None:
    rank, nested = case
    inner, targets = data.draw(st.integers(0, rank)), 3
    choice = st.sets(st.integers(0, targets - 1)).map(lambda s: tuple(sorted(s)))
    count = len(oracle.groups(nested, rank, inner))
    chosen = data.draw(st.lists(choice, min_size=count, max_size=count))
    _, routing = _selectors(nested, rank, inner, chosen, targets)
    end = partition(stream_of(nested, rank), routing, inner)
    run = simulate(Program(end), SHALLOW)
    for target, expected in enumerate(oracle.partition(nested, rank, inner, chosen, targets)):
        assert tokens_of(run, end, target) == encode(expected, inner)
        assert_shape(end.shape, expected, run.bindings, target)


@given(ranked(0, 2), st.integers(0, 1), st.data())
def test_reassemble_takes_whole_groups_from_every_selected_input(
    case: tuple[int, Nested], inner: int, data: st.DataObject
) -> None:
    rank, where = case
    targets = 3
    choice = st.sets(st.integers(0, targets - 1)).map(lambda s: tuple(sorted(s)))
    count = len(leaves(where, rank))
    chosen = data.draw(st.lists(choice, min_size=count, max_size=count))
    layout, routing = _selectors(where, rank, 0, chosen, targets)
    inputs: list[Nested] = []
    for target in range(targets):
        needed = sum(target in selector for selector in chosen)
        group = ragged_lists(inner - 1) if inner else st.just(0)
        drawn = data.draw(st.lists(group, min_size=needed, max_size=needed))
        inputs.append(oracle.number(drawn, inner, start=1000 * (target + 1)))
    parts = stack([stream_of(part, inner, f"in{t}") for t, part in enumerate(inputs)])
    end = reassemble(parts, routing, inner)
    run = simulate(Program(end), DEEP)
    waiting = [iter(part) for part in inputs]
    expected = oracle.map_leaves(layout, rank, lambda selector: [next(waiting[target]) for target in selector])

    def sorted_bunches(nested: Nested) -> Nested:
        """The order of arrival within one selector is a matter of time; everything else is not."""
        return oracle.at(nested, end.rank, inner + 1, lambda bunch: sorted(bunch, key=repr))

    assert sorted_bunches(_nested(run, end)) == sorted_bunches(expected)
    assert_shape(end.shape, expected, run.bindings)


@given(st.lists(ragged_lists(1), min_size=2, max_size=4))
def test_eager_merge_keeps_groups_whole_and_names_their_origin(inputs: list[Nested]) -> None:
    numbered = [oracle.number(part, 1, 100 * k) for k, part in enumerate(inputs)]
    merged, origin = eager_merge(stack([stream_of(part, 1, f"in{k}") for k, part in enumerate(numbered)]), 1)
    run = simulate(Program(merged, origin), SHALLOW)
    data = _nested(run, merged)
    origins = [selector[0] for selector in _nested(run, origin)]
    assert_shape(merged.shape, data, run.bindings)
    for k, part in enumerate(numbered):
        assert [group for group, which in zip(data, origins, strict=True) if which == k] == part


def _nested(run: Any, end: Any) -> Nested:
    return decode(tokens_of(run, end), end.rank)


@given(ranked(0, 1), st.integers(1, 4))
def test_parallelize_deals_in_rotation(case: tuple[int, Nested], count: int) -> None:
    rank, nested = case
    end = parallelize_stream(stream_of(nested, rank), count)
    run = simulate(Program(end), DEEP)
    for turn in range(count):
        assert tokens_of(run, end, turn) == encode(nested[turn::count], rank)
        assert_shape(end.shape, nested[turn::count], run.bindings, turn)


@given(ranked(0, 2))
def test_broadcast_is_inserted_for_several_readers(case: tuple[int, Nested]) -> None:
    rank, nested = case
    x = stream_of(nested, rank)
    ends = [map_tiles("negate", x) for _ in range(3)]
    run = simulate(Program(*ends), SHALLOW)
    for end in ends:
        assert tokens_of(run, end) == encode(oracle.map_leaves(nested, rank, lambda v: -v), rank)


@given(ragged_lists(1))
def test_replicated_copies_and_unstack(nested: Nested) -> None:
    copies = replicate(stream_of(nested, 1), 3)
    first, second, third = unstack(map_tiles("negate", copies), 3)
    run = simulate(Program(first, third), DEEP)
    expected = encode(oracle.map_leaves(nested, 1, lambda v: -v), 1)
    assert tokens_of(run, first) == tokens_of(run, third) == expected
    assert tokens_of(run, second) == expected


@given(ranked(0, 2), st.lists(st.integers(1, 3), min_size=1, max_size=2), st.booleans())
def test_linear_load_by_reference(case: tuple[int, Nested], walk: list[int], reread: bool) -> None:
    rank, nested = case
    matrix = np.arange(12.0).reshape(12, 1)
    stride = [0] * len(walk) if reread else [5, 2][: len(walk)]
    end = linear_load(OffChip("w", 12, 1, F32, matrix), (1, 1), walk, stride, ref=stream_of(nested, rank))

    def read(position: int, dims: list[tuple[int, int]]) -> Any:
        if not dims:
            return float(position % 12)
        (size, step), rest = dims[0], dims[1:]
        return [read(position + i * step, rest) for i in range(size)]

    one = read(0, list(zip(walk, stride, strict=True)))
    assert_tokens(end, oracle.map_leaves(nested, rank, lambda _: one), SHALLOW)


def test_linear_load_without_reference_reads_once() -> None:
    matrix = np.arange(6.0).reshape(6, 1)
    end = linear_load(OffChip("w", 6, 1, F32, matrix), (1, 1), (3, 2))
    assert_tokens(end, [[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]])


@given(ranked(0, 2), st.data())
def test_random_load(case: tuple[int, Nested], data: st.DataObject) -> None:
    rank, nested = case
    picks = oracle.map_leaves(nested, rank, lambda _: data.draw(st.integers(0, 5)))
    indices = source("indices", picks, shape_of(nested, rank), Tile(1, 1, U64))
    matrix = 10.0 * np.arange(6).reshape(6, 1)
    end = random_load(OffChip("w", 6, 1, F32, matrix), (1, 1), indices)
    assert_tokens(end, oracle.map_leaves(picks, rank, lambda i: 10.0 * i), SHALLOW)


@given(ranked(0, 2))
def test_stores_write_and_acknowledge(case: tuple[int, Nested]) -> None:
    rank, nested = case
    values = leaves(nested, rank)
    size = max(1, len(values))
    end = linear_store(OffChip("y", size, 1, F32), stream_of(nested, rank))
    assert simulate(Program(end)).arrays["y"].ravel()[: len(values)].tolist() == values
    back = iter(range(len(values) - 1, -1, -1))
    where = oracle.map_leaves(nested, rank, lambda _: next(back))
    addresses = source("where", where, shape_of(nested, rank, "x"), Tile(1, 1, U64))
    acks = random_store(OffChip("y", size, 1, F32), addresses, stream_of(nested, rank))
    run = assert_tokens(acks, oracle.map_leaves(nested, rank, lambda _: True))
    assert run.arrays["y"].ravel()[: len(values)].tolist() == values[::-1]


def test_pack_rows_makes_dynamic_tiles() -> None:
    x = source("x", [[1.0, 2.0, 3.0], []], (static(2), ragged("r", 3)))
    packed = accum("pack_rows", x)
    run = simulate(Program(packed))
    first, second = run.nested(packed)
    assert first.ravel().tolist() == [1.0, 2.0, 3.0]
    assert second.shape == (0, 1)


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_results_do_not_depend_on_fifo_depth(depth: int) -> None:
    nested = [[1.0, 2.0], [], [3.0, 4.0, 5.0]]
    end = accum("add", reshape(stream_of(nested, 1), 0, 2, pad=0.0))
    assert_tokens(end, [[3.0], [], [7.0, 5.0]], Hardware(fifo_depth=depth))
