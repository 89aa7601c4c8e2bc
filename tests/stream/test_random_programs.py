"""Random chains of operators: values equal the oracle's, and inferred shapes equal observed shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.stream import (
    F32,
    Hardware,
    Program,
    Selector,
    Stream,
    Tile,
    accum,
    bufferize,
    dynamic,
    expand,
    flat_map,
    flatten,
    map_tiles,
    partition,
    promote,
    ragged,
    reassemble,
    repeat,
    reshape,
    scan,
    simulate,
    source,
    stack,
    static,
    streamify,
    symbol,
    unstack,
    window,
)
from polyrhythm.stream.dims import Shape
from polyrhythm.stream.metrics import dim_sizes
from polyrhythm.stream.tokens import decode, encode
from tests.stream import nested as oracle
from tests.stream.nested import Nested, assert_shape, leaves
from tests.stream.running import tokens_of

MOST_LEAVES, MOST_RANK = 150, 4


@dataclass(frozen=True)
class Step:
    """A stream and what it must carry."""

    stream: Stream
    nested: Nested

    @property
    def rank(self) -> int:
        return self.stream.rank


def _declared(nested: Nested, rank: int, draw: Any) -> Shape:
    """A true shape: regular dims may be declared static or dynamic, others are ragged."""
    shape = []
    for position, sizes in enumerate(dim_sizes(nested, rank + 1)):
        if position == 0 or len(set(sizes)) <= 1:
            size = max(sizes, default=0)
            shape.append(static(size) if draw(st.booleans()) else dynamic(f"n{position}"))
        else:
            shape.append(ragged(f"r{position}", symbol(f"sum_r{position}")))
    return tuple(shape)


def _negate(step: Step, draw: Any) -> Step:
    return Step(map_tiles("negate", step.stream), oracle.map_leaves(step.nested, step.rank, lambda v: -v))


def _flatten(step: Step, draw: Any) -> Step:
    low = draw(st.integers(0, step.rank))
    high = draw(st.integers(low, step.rank))
    return Step(flatten(step.stream, low, high), oracle.flatten(step.nested, step.rank, low, high))


def _reshape(step: Step, draw: Any) -> Step:
    chunk = draw(st.integers(1, 3))
    return Step(reshape(step.stream, 0, chunk, pad=0.0), oracle.reshape(step.nested, step.rank, 0, chunk, 0.0))


def _promote(step: Step, draw: Any) -> Step:
    dim = draw(st.none() | st.integers(0, step.rank))
    return Step(promote(step.stream, dim), oracle.promote(step.nested, step.rank, dim))


def _repeat(step: Step, draw: Any) -> Step:
    count = draw(st.integers(1, 3))
    return Step(repeat(step.stream, count), oracle.repeat(step.nested, step.rank, count))


def _accum(step: Step, draw: Any) -> Step:
    if step.rank == 0:
        return step
    inner = draw(st.integers(1, step.rank))
    return Step(accum("add", step.stream, rank=inner), oracle.accumulate(step.nested, step.rank, inner))


def _scan(step: Step, draw: Any) -> Step:
    if step.rank == 0:
        return step
    inner = draw(st.integers(1, step.rank))
    return Step(scan("add", step.stream, rank=inner), oracle.running(step.nested, step.rank, inner))


def _buffer(step: Step, draw: Any) -> Step:
    if step.rank == 0:
        return step
    count = draw(st.integers(1, 2))
    end = streamify(bufferize(step.stream, 1), (count,))
    return Step(end, oracle.replay(step.nested, step.rank, 1, (count,)))


def _flat_map(step: Step, draw: Any) -> Step:
    """Every element becomes two, or none when it is negative."""

    def produce(value: Any, copy: int) -> list[tuple[Any, int]]:
        return [(value, 0), (value, 0)] if value.data.item() >= 0 else []

    name = f"twice{step.stream.node.order}"
    end = flat_map(produce, step.stream, (ragged(name, symbol(f"sum_{name}")),), Tile(1, 1, F32))
    if step.rank == 0:
        end = flat_map(produce, step.stream, (dynamic(name),), Tile(1, 1, F32))
    return Step(end, oracle.flat_map(step.nested, step.rank, lambda v: [v, v] if v >= 0 else []))


def _route(step: Step, draw: Any) -> Step:
    """Partition by a one-hot selector and Reassemble by the same one: every element gets a dim of size 1."""
    layout = oracle.map_leaves(step.nested, step.rank, lambda _: (draw(st.integers(0, 2)),))
    routing = source("routing", layout, step.stream.shape, Selector(f"routing{step.stream.node.order}", 3, 1))
    parts = unstack(partition(step.stream, routing), 3)
    end = reassemble(stack(parts), routing)
    return Step(end, oracle.promote(step.nested, step.rank, 0))


def _expand(step: Step, draw: Any) -> Step:
    """The sum of every group, given back to all of its members."""
    if step.rank == 0:
        return step
    sums = accum("add", step.stream, rank=1)
    once = promote(sums, 0)
    expected = oracle.promote(oracle.accumulate(step.nested, step.rank, 1), step.rank - 1, 0)
    return Step(expand(once, step.stream, 1), oracle.expand(expected, step.nested, step.rank, 1))


def _window(step: Step, draw: Any) -> Step:
    """Positions that every group has, some again and again, in groups that may be empty."""
    if step.rank == 0:
        return step
    found = oracle.groups(step.nested, step.rank, 1)
    fewest = min((len(group) for group in found), default=0)
    position = st.integers(0, max(0, fewest - 1))
    table = draw(st.lists(st.lists(position, max_size=3 if fewest else 0), max_size=3))
    return Step(window(step.stream, 1, table, 2), oracle.window(step.nested, step.rank, 1, table, 2))


STEPS = [_negate, _window, _flatten, _reshape, _promote, _repeat, _accum, _scan, _buffer, _flat_map, _route, _expand]


@given(st.integers(0, 2).flatmap(lambda rank: st.tuples(st.just(rank), oracle.ragged_lists(rank))), st.data())
def test_random_chain(case: tuple[int, Nested], data: st.DataObject) -> None:
    rank, nested = case
    step = Step(source("x", nested, _declared(nested, rank, data.draw)), nested)
    for operator in data.draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=6)):
        following = operator(step, data.draw)
        if following.rank <= MOST_RANK and len(leaves(following.nested, following.rank)) <= MOST_LEAVES:
            step = following
    run = simulate(Program(step.stream), Hardware(fifo_depth=4096))
    assert tokens_of(run, step.stream) == encode(step.nested, step.rank)
    assert_shape(step.stream.shape, decode(tokens_of(run, step.stream), step.rank), run.bindings)
