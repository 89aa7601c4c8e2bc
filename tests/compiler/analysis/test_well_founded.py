"""Cycles are found, and everything that makes progress is accepted."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyrhythm as pr
from polyrhythm import errors
from polyrhythm.compiler.analysis.farkas import all_rankings
from polyrhythm.compiler.analysis.ranks import Component, Need
from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import TRUE, within
from polyrhythm.compiler.ir.reads import components
from polyrhythm.compiler.ir.terms import Symbol, Term

Distance = tuple[int, int]


def refuse(tensor: pr.Tensor, **bounds: int) -> str:
    with pytest.raises(errors.CycleError) as caught:
        pr.evaluate(tensor, bounds=bounds)
    return str(caught.value)


def test_a_value_that_reads_itself() -> None:
    t, _ = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    y[t] = y + 1
    assert "y[t] = y + 1" in refuse(y, T=0)


def test_a_cycle_through_two_tensors_is_shown_with_its_lines() -> None:
    t, _ = pr.dim("t")
    a = pr.recurrent((), (t,), "int32")
    b = pr.recurrent((), (t,), "int32")
    a[t] = b + 1
    b[t] = a * 2
    message = refuse(a, T=3)
    assert "a[t] = b + 1" in message
    assert "b[t] = a * 2" in message


def test_both_directions() -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    y[0] = 1
    y[t > 0] = y[t - 1] + pr.where(t < T - 1, y[pr.min(t + 1, T - 1)], 0)
    refuse(y, T=1)


def test_a_slice_that_includes_the_current_step() -> None:
    t, _ = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    y[t] = y[0 : t + 1].sum() + 1
    refuse(y, T=1)


def test_a_cycle_only_at_some_steps() -> None:
    t, _ = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    y[t != 7] = 0
    y[7] = y[7] + 1
    with pytest.raises((errors.CycleError, errors.ProgressError)):
        pr.evaluate(y, bounds={"T": 2})


def test_a_cycle_only_at_empty_bounds() -> None:
    t, _ = pr.dim("t")
    P = pr.size("P")
    y = pr.recurrent((), (t,), "int32")
    y[t < P] = 1
    y[t >= P] = y[pr.max(0, t - 1)]
    refuse(y, T=3, P=1)


def test_even_steps_read_themselves_rounded() -> None:
    """`2*(t//2)` is t on even steps, so this is a cycle, though the index is not a constant shift."""
    t, _ = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    y[t % 2 == 0] = y[2 * (t // 2)]
    y[pr.otherwise] = 0
    refuse(y, T=4)


def plain(t: pr.Dim, T: pr.Bound) -> pr.Recurrent:
    return pr.recurrent((), (t,), "int32")


def even_forward_odd_back(t: pr.Dim, T: pr.Bound) -> pr.Tensor:
    """Odd steps read the even step to the right, even steps nothing: two directions without a cycle."""
    y = plain(t, T)
    y[t % 2 == 0] = pr.value(t)
    y[t % 2 == 1] = y[t - 1] + pr.where(t < T - 1, y[pr.min(t + 1, T - 1)], 0)
    return y


def halves(t: pr.Dim, T: pr.Bound) -> pr.Tensor:
    y = plain(t, T)
    y[0] = 1
    y[t > 0] = y[t // 2] + 1
    return y


def doubles(t: pr.Dim, T: pr.Bound) -> pr.Tensor:
    y = plain(t, T)
    y[2 * t + 1 >= T] = 1
    y[2 * t + 1 < T] = y[2 * t + 1] + 1
    return y


def mirrored(t: pr.Dim, T: pr.Bound) -> pr.Tensor:
    y = plain(t, T)
    y[T - 1 - t] = pr.where(t > 0, y[pr.min(T - 1, T - t)], 0) + 1
    return y


def everything_before(t: pr.Dim, T: pr.Bound) -> pr.Tensor:
    y = plain(t, T)
    y[t] = y[0:t].sum() + 1
    return y


def everything_after(t: pr.Dim, T: pr.Bound) -> pr.Tensor:
    y = plain(t, T)
    y[t] = y[t + 1 : T].sum() + 1
    return y


def same_step_chain(t: pr.Dim, T: pr.Bound) -> pr.Tensor:
    a, b, c = plain(t, T), plain(t, T), plain(t, T)
    a[t] = pr.where(t > 0, c[pr.max(0, t - 1)], 0) + 1
    b[t] = a * 2
    c[t] = a + b
    return c


def meeting_in_the_middle(t: pr.Dim, T: pr.Bound) -> pr.Tensor:
    """The left half goes left to right, the right half right to left."""
    y = plain(t, T)
    y[t < T // 2] = pr.where(t > 0, y[pr.max(0, t - 1)], 0) + 1
    y[t >= T // 2] = pr.where(t < T - 1, y[pr.min(t + 1, T - 1)], 0) + 1
    return y


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (even_forward_odd_back, [0, 2, 2, 6, 4, 4]),
        (halves, [1, 2, 3, 3, 4, 4]),
        (doubles, [3, 2, 2, 1, 1, 1]),
        (mirrored, [6, 5, 4, 3, 2, 1]),
        (everything_before, [1, 2, 4, 8, 16, 32]),
        (everything_after, [32, 16, 8, 4, 2, 1]),
        (same_step_chain, [3, 12, 39, 120, 363, 1092]),
        (meeting_in_the_middle, [1, 2, 3, 3, 2, 1]),
    ],
)
def test_progress_is_recognised(build: Callable[[pr.Dim, pr.Bound], pr.Tensor], expected: list[int]) -> None:
    t, T = pr.dim("t")
    assert pr.evaluate(build(t, T), bounds={T: 6}).tolist() == expected


def test_layers_feed_the_next_step() -> None:
    """The last layer of a step is read by the first layer of the next: lexicographic progress."""
    t, T = pr.dim("t")
    n, N = pr.dim("n")
    h = pr.recurrent((), (n, t), "int32")
    h[n > 0] = h[n - 1, t] + 1
    h[n == 0] = pr.where(t > 0, h[N - 1, pr.max(0, t - 1)], 0) * 2
    assert pr.evaluate(h, bounds={T: 3, N: 2}).tolist() == [[0, 2, 6], [1, 3, 7]]


def test_a_step_reads_all_layers_of_the_step_before() -> None:
    t, T = pr.dim("t")
    n, N = pr.dim("n")
    h = pr.recurrent((), (n, t), "int32")
    h[n, 0] = pr.value(n)
    h[n, t + 1] = h[0:N, t].sum() + h[N - 1 - n, t]
    assert pr.evaluate(h, bounds={T: 2, N: 3}).tolist() == [[0, 5], [1, 4], [2, 3]]


def test_components_are_maximal_and_sinks_first() -> None:
    graph = {1: [2], 2: [3], 3: [1, 4], 4: [5], 5: [4], 6: [6, 1]}
    found = [set(component) for component in components(graph)]
    assert found.index({4, 5}) < found.index({1, 2, 3}) < found.index({6})
    assert len(found) == 3


distances = st.tuples(st.integers(-2, 2), st.integers(-2, 2))


def has_cycle(reads: list[tuple[str, str, Distance]], rows: int, columns: int) -> bool:
    """Depth-first search over the points: does a value reach itself?"""
    places = [(name, i, j) for name in "ab" for i, j in product(range(rows), range(columns))]
    state: dict[tuple[str, int, int], int] = {}

    def visit(place: tuple[str, int, int]) -> bool:
        state[place] = 1
        name, i, j = place
        for reader, source, (di, dj) in reads:
            other = (source, i + di, j + dj)
            if reader != name or not (0 <= other[1] < rows and 0 <= other[2] < columns):
                continue
            if state.get(other) == 1 or (other not in state and visit(other)):
                return True
        state[place] = 2
        return False

    return any(place not in state and visit(place) for place in places)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("ab"), distances), min_size=1, max_size=3))
def test_constant_distances_are_decided_exactly(reads: list[tuple[str, str, Distance]]) -> None:
    """Two tensors over two dims that read each other at constant distances, where the read exists.

    What is accepted has no cycle at any small bounds. A cycle there is refused as one. Between these lies only what
    needs larger bounds or a rank along no single dim; it may be refused, never accepted with a cycle.
    """
    i, I = pr.dim("i")
    j, J = pr.dim("j")
    tensors = {name: pr.recurrent((), (i, j), "int32") for name in "ab"}
    for name, tensor in tensors.items():
        total: pr.Tensor = pr.value(i) * 0
        for reader, source, (di, dj) in reads:
            if reader == name:
                inside = (i + di >= 0) & (i + di < I) & (j + dj >= 0) & (j + dj < J)
                total = total + pr.where(inside, tensors[source][i + di, j + dj], 1)
        tensor[i, j] = total
    cyclic = has_cycle(reads, 5, 5)
    try:
        pr.evaluate(tuple(tensors.values()), bounds={I: 3, J: 3})
    except errors.CycleError:
        assert cyclic
    except errors.ProgressError:
        assert not cyclic
    else:
        assert not cyclic


def test_ranks_vary_by_dims_of_their_own_only() -> None:
    """A sum over steps reads at positions; those are no dim of it, and its rank is one number."""
    t, k = Symbol("t", "dim", bound=Symbol("T", "bound")), Symbol("k0", "dim", serial=serials.POSITION)
    steps = within(t, Term.of(t.bound)) if t.bound else TRUE
    needs = [
        Need("sum", "y", steps.substitute({t: Term.of(k)}), {t: Term.of(k)}),
        Need("y", "sum", steps, {}),
    ]
    dims: dict[str, tuple[Symbol, ...]] = {"y": (t,), "sum": ()}
    circle = Component(["y", "sum"], needs, dims, ["y"])
    found = list(all_rankings(circle))
    assert found
    assert all(ranks[name].symbols & {t, k} <= set(dims[name]) for ranks in found for name in dims)
    assert all(circle.left_open(ranks) is None for ranks in found)
