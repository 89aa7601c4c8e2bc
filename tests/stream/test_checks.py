"""What is refused when a program is built: the class of the error, the user's line, and a fix."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polyrhythm.stream import (
    BF16,
    F32,
    ElementMismatch,
    OffChip,
    RankOutOfRange,
    Selector,
    ShapeMismatch,
    Stream,
    StreamError,
    Tile,
    accum,
    bufferize,
    dynamic,
    eager_merge,
    expand,
    feedback,
    flat_map,
    flatten,
    linear_load,
    linear_store,
    map_tiles,
    partition,
    promote,
    ragged,
    random_store,
    reassemble,
    repeat,
    reshape,
    restate,
    scan,
    source,
    stack,
    static,
    streamify,
    symbol,
    unstack,
    zip_streams,
)

N = dynamic("n")


NUMBER = Tile(1, 1, F32)


def x(*shape: object, tile: Tile = NUMBER, name: str = "x") -> Stream:
    return source(name, [], tuple(shape), tile)  # type: ignore[arg-type]


def routes(*shape: object, targets: int = 2) -> Stream:
    return source("routes", [], tuple(shape), Selector("routes", targets))  # type: ignore[arg-type]


CASES: list[tuple[type[StreamError], str, Callable[[], object]]] = [
    (ShapeMismatch, r"x has shape \[2\], stream y", lambda: map_tiles("add", x(static(2)), x(N, name="y"))),
    (ShapeMismatch, "zip", lambda: zip_streams(x(static(2)), x(static(3)))),
    (ShapeMismatch, "zip", lambda: zip_streams(x(static(2), ragged("r", 5)), x(static(2), ragged("s", 5)))),
    (ElementMismatch, "matmul", lambda: map_tiles("matmul", x(N, tile=Tile(4, 8)), x(N, tile=Tile(4, 8)))),
    (ElementMismatch, "tiles are needed", lambda: map_tiles("exp", routes(N))),
    (RankOutOfRange, "dims 0 to 1", lambda: flatten(x(N), 0, 1)),
    (RankOutOfRange, "dims 1 to 1", lambda: accum("add", x(N))),
    (RankOutOfRange, "position 3", lambda: promote(x(N), 3)),
    (ElementMismatch, "change its shape", lambda: scan("pack_rows", x(static(1), N))),
    (ShapeMismatch, "chunks of 2", lambda: reshape(x(static(3)), 0, 2)),
    (ShapeMismatch, "chunks of 2", lambda: reshape(x(N, static(3)), 1, 2, pad=0.0)),
    (ShapeMismatch, "0 times", lambda: repeat(x(N), 0)),
    (ShapeMismatch, "cannot follow", lambda: expand(x(N), x(N, static(2)), 1)),
    (ShapeMismatch, "cannot follow", lambda: expand(x(static(3), static(1)), x(N, static(2)), 1)),
    (ShapeMismatch, "does not fit the outer dims", lambda: partition(x(static(3)), routes(N))),
    (ShapeMismatch, "partition with rank=1", lambda: partition(x(N, static(2)), routes(N))),
    (ElementMismatch, "selectors are needed", lambda: partition(x(N), x(N))),
    (ShapeMismatch, "one copy for every target", lambda: reassemble(x(N), routes(N, targets=2))),
    (ShapeMismatch, "rank 1, and groups of rank 0", lambda: eager_merge(x(N, static(2)))),
    (ShapeMismatch, "in 2 groups", lambda: eager_merge(x(N), groups=2)),
    (ShapeMismatch, "copies into 2", lambda: unstack(x(N), 2)),
    (ElementMismatch, "stack", lambda: stack([x(N), x(N, tile=Tile(2, 2))])),
    (ShapeMismatch, "only sizes", lambda: restate(x(N), (N, N))),
    (ShapeMismatch, "inner dim n is not static", lambda: bufferize(x(N, static(2), N), 2)),
    (ElementMismatch, "no buffers", lambda: streamify(x(N))),
    (ShapeMismatch, "a view", lambda: streamify(bufferize(x(static(1), N), 1), view=((2,), (1,)))),
    (ShapeMismatch, "tiles of 3 x 4", lambda: linear_load(OffChip("w", 8, 8), (3, 4), (2,))),
    (ShapeMismatch, "stride", lambda: linear_load(OffChip("w", 8, 8), (4, 4), (2, 2), (1,))),
    (ShapeMismatch, "4 slabs", lambda: linear_load(OffChip("w", 8, 8, slabs=4), (4, 4), (2,), ref=x(N))),
    (ElementMismatch, "whose shape is dynamic", lambda: linear_store(OffChip("y", 8, 8), accum("pack_rows", x(N, N)))),
    (ShapeMismatch, "random_store", lambda: random_store(OffChip("y", 8, 8), x(N), x(static(2)))),
    (ShapeMismatch, "no dims", lambda: flat_map(lambda value, copy: [], x(N), (), Tile(1, 1))),
    (ShapeMismatch, "lists for 3 copies", lambda: source("x", [[1]], (N,), copies=3)),
    (ShapeMismatch, "promised", lambda: feedback("f", (N,), Tile(1, 1, BF16)).connect(x(N))),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "build"), CASES, ids=[f"{k.__name__}: {m}" for k, m, _ in CASES])
def test_refused(kind: type[StreamError], message: str, build: Callable[[], object]) -> None:
    with pytest.raises(kind, match=message) as caught:
        build()
    assert caught.value.fix
    assert "test_checks.py" in str(caught.value)


def test_routing_by_one_selector_gives_equal_shapes() -> None:
    """The outer dim is named after the selector, so two routed streams can be combined."""
    tokens, weights = x(static(4), tile=Tile(1, 8)), x(static(4))
    combined = map_tiles("multiply", partition(tokens, routes(static(4))), partition(weights, routes(static(4))))
    assert str(combined) == "multiply: [routes[i]] of tile[1,8] f32 x2"


def test_absorption_makes_a_new_ragged_dim_with_the_exact_total() -> None:
    merged = flatten(x(static(2), static(3), ragged("r", symbol("sum_r"))), 0, 1)
    assert merged.shape[1].is_ragged
    assert str(merged) == "flatten: [2, flatten(3,r~)~] of tile[1,1] f32"
    assert str(merged.shape[1].total) == "sum_r"
    flat = flatten(merged, 0, 1)
    assert str(flat.shape[0].size) == "sum_r"


def test_reassemble_is_ragged_unless_the_selector_is_k_hot() -> None:
    data = x(static(4))
    some = source("some", [], (static(4),), Selector("some", 2))
    pairs = source("pairs", [], (static(4),), Selector("pairs", 2, hot=2))
    assert reassemble(partition(data, some), some).shape[1].is_ragged
    assert str(reassemble(partition(data, pairs), pairs)) == "reassemble: [4, 2] of tile[1,1] f32"
