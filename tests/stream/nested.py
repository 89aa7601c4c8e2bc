"""The oracle of the stream operators: what each does to nested lists, without tokens, levels or time.

A stream of rank N is a list of depth N + 1. `at(nested, rank, k, f)` applies f to every group of rank k; the whole
stream counts as a group of rank N + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from polyrhythm.stream import dynamic, ragged, static
from polyrhythm.stream.dims import Dim, Shape
from polyrhythm.stream.metrics import dim_sizes

Nested = list[Any]


def at(nested: Any, rank: int, k: int, f: Callable[[Any], Any]) -> Any:
    """Apply f to every group of rank k of a stream of the given rank."""
    if k == rank + 1:
        return f(nested)
    return [at(group, rank - 1, k, f) for group in nested]


def groups(nested: Nested, rank: int, k: int) -> list[Any]:
    """All groups of rank k, in order."""
    found: list[Any] = []
    at(nested, rank, k, found.append)
    return found


def leaves(nested: Nested, rank: int) -> list[Any]:
    return groups(nested, rank, 0)


def map_leaves(nested: Nested, rank: int, f: Callable[[Any], Any]) -> Nested:
    return at(nested, rank, 0, f)


def concatenated(lists: Sequence[Sequence[Any]]) -> list[Any]:
    return [item for part in lists for item in part]


def flatten(nested: Nested, rank: int, low: int, high: int) -> Nested:
    def merge(group: Nested) -> Nested:
        for _ in range(high - low):
            group = concatenated(group)
        return group

    return at(nested, rank, high + 1, merge)


def reshape(nested: Nested, rank: int, dim: int, chunk: int, pad: Any = None) -> Nested:
    def split(group: Nested) -> Nested:
        pieces = [group[start : start + chunk] for start in range(0, len(group), chunk)]
        return [piece + [pad] * (chunk - len(piece)) for piece in pieces]

    return at(nested, rank, dim + 1, split)


def promote(nested: Nested, rank: int, dim: int | None) -> Nested:
    if dim is None:
        return [nested] if nested else []
    return at(nested, rank, dim + 1, lambda group: [[member] for member in group])


def repeat(nested: Nested, rank: int, count: int) -> Nested:
    return map_leaves(nested, rank, lambda leaf: [leaf] * count)


def expand(data: Nested, ref: Nested, rank: int, inner: int) -> Nested:
    """`data` has one leaf for every group of rank `inner` of `ref`."""
    values = iter(leaves(data, rank))

    def fill(group: Any) -> Any:
        value = next(values)
        return value if inner == 0 else map_leaves(group, inner - 1, lambda _: value)

    return at(ref, rank, inner, fill)


def accumulate(nested: Nested, rank: int, inner: int) -> Nested:
    return at(nested, rank, inner, lambda group: float(sum(leaves(group, inner - 1))))


def running(nested: Nested, rank: int, inner: int) -> Nested:
    def sums(group: Nested) -> Nested:
        total = 0.0

        def add(leaf: float) -> float:
            nonlocal total
            total += leaf
            return total

        return map_leaves(group, inner - 1, add)

    return at(nested, rank, inner, sums)


def flat_map(nested: Nested, rank: int, f: Callable[[Any], Nested]) -> Nested:
    return at(nested, rank, 1, lambda group: concatenated([f(leaf) for leaf in group]))


def replay(nested: Nested, rank: int, inner: int, repeats: Sequence[int]) -> Nested:
    """Every group of rank `inner`, repeated along new dims."""

    def again(group: Any) -> Any:
        for count in reversed(repeats):
            group = [group] * count
        return group

    return at(nested, rank, inner, again)


def window(nested: Nested, rank: int, inner: int, table: Nested, depth: int) -> Nested:
    """Every group of rank `inner`, read at the positions of a table."""

    def read(group: Any) -> Any:
        found = leaves(group, inner - 1)
        return map_leaves(table, depth - 1, lambda position: found[position])

    return at(nested, rank, inner, read)


def partition(nested: Nested, rank: int, inner: int, chosen: list[tuple[int, ...]], targets: int) -> list[Nested]:
    everything = groups(nested, rank, inner)
    return [[g for g, where in zip(everything, chosen, strict=True) if t in where] for t in range(targets)]


def number(nested: Nested, rank: int, start: int = 1) -> Nested:
    """The same structure with leaves 1.0, 2.0, ..."""
    counter: Iterator[int] = iter(range(start, 1 << 30))
    return map_leaves(nested, rank, lambda _: float(next(counter)))


def ragged_lists(rank: int, most: int = 3) -> st.SearchStrategy[Nested]:
    """Streams of a rank, ragged, with empty groups."""
    strategy: st.SearchStrategy[Any] = st.just(0)
    for _ in range(rank + 1):
        strategy = st.lists(strategy, max_size=most)
    return strategy.map(lambda nested: number(nested, rank))


def regular_list(sizes: Sequence[int]) -> Nested:
    nested: Any = 0
    for size in reversed(sizes):
        nested = [nested] * size
    return number(nested, len(sizes) - 1)


def shape_of(nested: Nested, rank: int, name: str = "r") -> Shape:
    """The declared shape of a test stream: every inner dim ragged, with its true total."""
    sizes = dim_sizes(nested, rank + 1)
    inner: list[Dim] = [ragged(f"{name}{rank - 1 - k}", sum(found)) for k, found in enumerate(sizes[1:])]
    return (static(len(nested)), *inner)


def assert_shape(shape: Shape, nested: Nested, bindings: Any, copy: int | None = None) -> None:
    """Inferred dims must be those observed in the nested lists."""
    for dim, found in zip(shape, dim_sizes(nested, len(shape)), strict=True):
        if dim.total is not None:
            assert sum(found) == _value(dim.total.evaluate(bindings), copy), (str(dim), found)
        else:
            expected = _value(dynamic(dim.size).size.evaluate(bindings), copy)
            assert all(size == expected for size in found), (str(dim), expected, found)


def _value(value: Any, copy: int | None) -> int:
    return int(value[copy]) if copy is not None and hasattr(value, "__len__") else int(value)
