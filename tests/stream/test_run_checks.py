"""What is checked while a program runs: a named error at the user's line, never a wrapped index or a raw exception."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.stream import (
    F32,
    U64,
    DataMismatch,
    Deadlock,
    Hardware,
    OffChip,
    Program,
    Selector,
    ShapeMismatch,
    StopMismatch,
    Stream,
    StreamError,
    Tile,
    accum,
    bufferize,
    feedback,
    flat_map,
    linear_store,
    lower,
    map_tiles,
    partition,
    random_load,
    random_store,
    reassemble,
    restate,
    simulate,
    source,
    static,
    streamify,
    zip_streams,
)
from polyrhythm.stream.types import SelectorValue

TABLE = OffChip("table", 4, 2, F32, np.arange(8.0).reshape(4, 2))


def numbers(*values: float) -> Stream:
    return source("x", list(values), (static(len(values)),))


def addresses(*values: int) -> Stream:
    return source("where", list(values), (static(len(values)),), Tile(1, 1, U64))


def routes(*targets: tuple[int, ...], hot: int | None = None) -> Stream:
    return source("routes", list(targets), (static(len(targets)),), Selector("routes", 2, hot))


def made_routes(*targets: tuple[int, ...]) -> Stream:
    """Selectors that an operator makes from their numbers."""
    kind = Selector("routes", 2)
    count = (static(len(targets)),)
    places = numbers(*range(len(targets)))
    return flat_map(lambda place, _: [(SelectorValue(targets[int(place.data.item())]), 0)], places, count, kind)


CASES: dict[str, tuple[type[StreamError], Callable[[], Any]]] = {
    "load beyond the end": (DataMismatch, lambda: random_load(TABLE, (1, 2), addresses(1, 7))),
    "load before the start": (DataMismatch, lambda: random_load(TABLE, (1, 2), addresses(-1))),
    "store beyond the end": (DataMismatch, lambda: random_store(OffChip("y", 2, 1), addresses(2), numbers(1.0))),
    "more tiles than a tensor holds": (DataMismatch, lambda: linear_store(OffChip("y", 2, 1), numbers(1.0, 2.0, 3.0))),
    "a target that does not exist": (DataMismatch, lambda: partition(numbers(1.0), routes((5,)))),
    "a negative target": (DataMismatch, lambda: partition(numbers(1.0), made_routes((-1,)))),
    "more targets than declared": (DataMismatch, lambda: partition(numbers(1.0), routes((0, 1), hot=1))),
    "a target named twice": (DataMismatch, lambda: partition(numbers(1.0), routes((0, 0)))),
    "fewer selectors than groups": (
        DataMismatch,
        lambda: partition(numbers(1.0, 2.0), restate(routes((0,)), (static(2),))),
    ),
    "a group that was never sent": (
        DataMismatch,
        lambda: reassemble(partition(numbers(1.0), routes((0,))), routes((1,), hot=1)),
    ),
    "groups that are never taken": (
        StopMismatch,
        lambda: reassemble(partition(numbers(1.0, 2.0), routes((0,), (0,))), routes((0,), hot=1)),
    ),
    "longer than declared": (DataMismatch, lambda: source("x", [1.0, 2.0, 3.0], (static(2),))),
    "uneven where regular": (DataMismatch, lambda: source("x", [[1.0], [1.0, 2.0]], (static(2), static(1)))),
    "a larger tile than declared": (DataMismatch, lambda: source("x", [np.ones((2, 2))], (static(1),))),
    "one stream ends early": (
        StopMismatch,
        lambda: map_tiles("add", numbers(1.0), restate(numbers(1.0, 2.0), (static(1),))),
    ),
}


@pytest.mark.parametrize("functional", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_refused_in_a_run(name: str, functional: bool) -> None:
    error, build = CASES[name]
    with pytest.raises(error) as caught:
        simulate(Program(build()), functional=functional)
    assert "test_run_checks.py" in str(caught.value)
    assert "  fix: " in str(caught.value)


def test_a_view_stays_in_its_buffer() -> None:
    held = bufferize(source("x", [[1.0, 2.0]], (static(1), static(2))), 1)
    with pytest.raises(ShapeMismatch, match="leaves the 2 elements"):
        streamify(held, view=((3,), (1,)))
    again = streamify(held, view=((2, 2), (0, 1)))
    assert [v.item() for v in simulate(Program(again)).nested(again)[0][1]] == [1.0, 2.0]


def test_a_function_that_is_not_in_the_table() -> None:
    with pytest.raises(StreamError, match="there is no function 'gelu'"):
        map_tiles("gelu", numbers(1.0))


@pytest.mark.parametrize("place", ["before", "after", "both"])
def test_feedback_through_maps_ends_cleanly(place: str) -> None:
    """y[t] = x[t] + y[t-1] / 2, the half taken anywhere in the loop; the last state is left over."""
    x = numbers(1.0, 2.0, 3.0, 4.0)
    state = feedback("state", (static(4),), Tile(1, 1, F32), initial=[0.0])
    factor = 0.5
    if place == "before":
        back = map_tiles("negate", map_tiles("negate", state.stream))
        y = map_tiles("add", x, back)
        state.connect(_scaled(y, factor))
    elif place == "after":
        y = map_tiles("add", x, state.stream)
        state.connect(_scaled(y, factor))
    else:
        y = map_tiles("add", x, map_tiles("negate", state.stream))
        state.connect(_scaled(map_tiles("negate", y), factor))
    expected, last = [], 0.0
    for value in (1.0, 2.0, 3.0, 4.0):
        last = value + last / 2
        expected.append(last)
    assert [v.item() for v in simulate(Program(y)).nested(y)] == expected


def _scaled(stream: Stream, factor: float) -> Stream:
    """A stream times a number."""
    return flat_map(lambda value, _: [(_times(value, factor), 0)], stream, stream.shape, Tile(1, 1, F32), name="scaled")


def _times(value: Any, factor: float) -> Any:
    from polyrhythm.stream.types import TileValue

    return TileValue(1, 1, 4, data=value.data * factor)


def test_a_second_order_recurrence() -> None:
    """y[t] = x[t] + (y[t-1] - y[t-2]) with two loops, one of them through a map of its own."""
    x = numbers(1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    last = feedback("last", (static(6),), Tile(1, 1, F32), initial=[0.0])
    before = feedback("before", (static(6),), Tile(1, 1, F32), initial=[0.0, 0.0])
    y = map_tiles("add", map_tiles("add", x, last.stream), map_tiles("negate", before.stream))
    last.connect(y)
    before.connect(y)
    assert [v.item() for v in simulate(Program(y)).nested(y)] == [1, 1, 0, -1, -1, 0]


def test_an_unprimed_loop_is_told_to_be_primed() -> None:
    state = feedback("state", (static(2),), Tile(1, 1, F32))
    total = map_tiles("add", numbers(1.0, 2.0), state.stream)
    state.connect(total)
    with pytest.raises(Deadlock, match=r"prime the loop: feedback\('state', ..., initial="):
        simulate(Program(total))


def test_a_deadlock_names_fifos_that_can_be_deepened() -> None:
    x = source("x", [[1.0] * 6], (static(1), static(6)))
    total = accum("add", x)
    both = zip_streams(total, accum("maximum", map_tiles("add", x, restate_spread(total, x))))
    depths: dict[str, int] = {}
    for _ in range(2):
        with pytest.raises(Deadlock) as caught:
            simulate(Program(both), Hardware(fifo_depths=depths))
        depths[str(caught.value).split("full FIFOs: ")[1].split(" (")[0]] = 8
    assert simulate(Program(both), Hardware(fifo_depths=depths)).cycles > 0


def restate_spread(total: Stream, like: Stream) -> Stream:
    from polyrhythm.stream import expand, promote

    return expand(promote(total, 0), like, 1)


def test_a_program_without_values_has_no_outputs() -> None:
    b, B = pr.dim("b")
    x = pr.input("x", (2,), (b,))
    lowered = lower(x * 2, bounds={B: 4})
    assert simulate(lowered.program, functional=False).cycles > 0
    with pytest.raises(DataMismatch, match="lowered without values for x"):
        lowered()
