"""Integer sets, against enumeration of a small box."""

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from polyrhythm.compiler.ir.conditions import FALSE, TRUE, conjunction, disjunction, eq, ge, le, lt, ne, negation
from polyrhythm.compiler.ir.differences import least_difference, satisfiable
from polyrhythm.compiler.ir.sets import (
    Points,
    counterexample,
    equal,
    facts,
    length,
    points,
    proves,
    simplified,
    simplified_term,
    solutions,
)
from polyrhythm.compiler.ir.terms import Symbol, Term, maximum, minimum, ordered
from tests.compiler.ir.strategies import (
    AFFINE,
    POLYNOMIALS,
    SYMBOLS,
    ConditionSample,
    P,
    Sample,
    T,
    Values,
    box,
    conditions_of,
    in_box,
    t,
)

LOW, HIGH = -2, 3
COLUMNS = ordered(SYMBOLS)
BOX = box(LOW, HIGH, COLUMNS)
INSIDE = in_box(LOW, HIGH)
CONDITIONS = conditions_of(AFFINE)
STEP, BOUND, SIZE = Term.of(t), Term.of(T), Term.of(P)

quick = settings(max_examples=60)


def where(sample: ConditionSample) -> list[dict[Symbol, int]]:
    return [point for point in BOX if sample.value(point)]


def known(point: Values) -> bool:
    """The facts about the symbols: bounds and sizes are not negative."""
    return point[T] >= 0 and point[P] >= 0


def listed(found: list[dict[Symbol, int]]) -> set[tuple[int, ...]]:
    return {tuple(point[column] for column in point) for point in found}


@quick
@given(CONDITIONS)
def test_points_are_where_the_condition_holds(sample: ConditionSample) -> None:
    found = points(conjunction(sample.condition, INSIDE), COLUMNS)
    assert listed(found.every()) == listed(where(sample))
    assert found.is_empty == (not where(sample))


@quick
@given(CONDITIONS)
def test_the_condition_of_a_set_holds_at_its_points(sample: ConditionSample) -> None:
    again = points(sample.condition, COLUMNS).condition()
    assert all(again.evaluate(point.__getitem__) == sample.value(point) for point in BOX)


@quick
@given(CONDITIONS)
def test_the_smallest_point(sample: ConditionSample) -> None:
    found = points(conjunction(sample.condition, INSIDE), COLUMNS).smallest()
    expected = min(where(sample), key=lambda p: tuple(p.values()), default=None)
    assert found == expected


@quick
@given(CONDITIONS, CONDITIONS)
def test_union_intersection_difference_inclusion(a: ConditionSample, b: ConditionSample) -> None:
    x, y = (points(conjunction(s.condition, INSIDE), COLUMNS) for s in (a, b))
    in_x, in_y = listed(where(a)), listed(where(b))
    assert listed((x & y).every()) == in_x & in_y
    assert listed((x | y).every()) == in_x | in_y
    assert listed((x - y).every()) == in_x - in_y
    assert (x <= y) == (in_x <= in_y)
    assert x.same(y) == (in_x == in_y)


@quick
@given(CONDITIONS, st.sets(st.sampled_from(SYMBOLS), max_size=2))
def test_projection(sample: ConditionSample, dropped: set[Symbol]) -> None:
    found = points(conjunction(sample.condition, INSIDE), COLUMNS).without(dropped)
    assert found.columns == tuple(c for c in COLUMNS if c not in dropped)
    expected = {tuple(point[c] for c in found.columns) for point in where(sample)}
    assert listed(found.every()) == expected


@quick
@given(CONDITIONS, st.permutations(COLUMNS))
def test_widening_adds_free_columns_in_any_order(sample: ConditionSample, order: list[Symbol]) -> None:
    narrow = solutions(sample.condition)
    wide = narrow.widened(tuple(order)) & points(INSIDE, tuple(order))
    assert wide.columns == tuple(order)
    assert {frozenset(point.items()) for point in wide.every()} == {frozenset(p.items()) for p in where(sample)}


@quick
@given(CONDITIONS, CONDITIONS)
def test_given_agrees_inside_the_other_set(a: ConditionSample, b: ConditionSample) -> None:
    simpler = points(a.condition, COLUMNS).given(points(b.condition, COLUMNS)).condition()
    for point in where(b):
        assert simpler.evaluate(point.__getitem__) == a.value(point)


@quick
@given(CONDITIONS, CONDITIONS)
def test_simplified_agrees_where_the_given_holds(a: ConditionSample, b: ConditionSample) -> None:
    simpler = simplified(a.condition, b.condition)
    for point in where(b):
        if known(point):
            assert simpler.evaluate(point.__getitem__) == a.value(point)


@quick
@given(AFFINE, CONDITIONS)
def test_simplified_term_agrees_where_the_given_holds(a: Sample, b: ConditionSample) -> None:
    simpler = simplified_term(a.term, b.condition)
    for point in where(b):
        if known(point):
            assert simpler.evaluate(point.__getitem__) == a.value(point)


@quick
@given(CONDITIONS)
def test_intervals_hold_a_column_and_stay_inside_its_bounds(sample: ConditionSample) -> None:
    inside = conjunction(sample.condition, INSIDE, ge(STEP, 0), lt(STEP, BOUND))
    parts = points(inside, COLUMNS).intervals(t)
    for point in where(sample):
        if 0 <= point[t] < point[T]:
            spans = [[end.evaluate(point.__getitem__) for end in part] for part in parts]
            assert any(first <= point[t] <= last for first, last in spans)
            assert len(spans) > 1 or 0 <= spans[0][0] <= spans[0][1] < point[T]


def test_an_empty_set_has_no_intervals() -> None:
    """Nor does an empty part of a set, though its constraints may not bound the column."""
    assert points(conjunction(ge(STEP, 0), lt(STEP * 2, STEP * 2)), (T, t)).intervals(t) == []


def test_an_interval_that_is_bounded_by_a_quotient_of_the_column() -> None:
    """That the column is below T follows from the quotient, so the set does not say it again."""
    other = Symbol("i", "dim")
    first = Term.of(other)
    bounded = conjunction(ge(first, 0), ge(STEP, 0), lt(STEP, SIZE), lt(first + STEP * 2, (BOUND + STEP) // 2 * 2))
    ((_, last),) = points(bounded, (T, P, other, t)).intervals(t)
    for point in box(0, 5, (T, P, other, t)):
        if bounded.evaluate(point.__getitem__):
            assert point[t] <= last.evaluate(point.__getitem__) < min(point[T], point[P])


@quick
@given(CONDITIONS, CONDITIONS)
def test_proves_and_the_smallest_counterexample(a: ConditionSample, b: ConditionSample) -> None:
    premise = conjunction(a.condition, INSIDE)
    bad = [point for point in where(a) if known(point) and not b.value(point)]
    assert proves(premise, b.condition) == (not bad)
    assert counterexample(premise, b.condition) == min(bad, key=lambda p: tuple(p.values()), default=None)


@quick
@given(conditions_of(POLYNOMIALS), conditions_of(POLYNOMIALS))
def test_what_is_proved_of_products_is_true(a: ConditionSample, b: ConditionSample) -> None:
    if proves(conjunction(a.condition, INSIDE), b.condition):
        assert all(b.value(point) for point in where(a) if known(point))


@quick
@given(AFFINE, AFFINE, CONDITIONS)
def test_equal_terms(a: Sample, b: Sample, c: ConditionSample) -> None:
    expected = all(a.value(point) == b.value(point) for point in where(c) if known(point))
    assert equal(a.term, b.term, conjunction(c.condition, INSIDE)) == expected


@quick
@given(CONDITIONS, st.lists(st.integers(-3, 3), min_size=4, max_size=4))
def test_the_largest_value(sample: ConditionSample, factors: list[int]) -> None:
    assume(where(sample))
    term = sum((Term.of(s) * k for s, k in zip(COLUMNS, factors, strict=False)), Term(factors[-1]))
    found = points(conjunction(sample.condition, INSIDE), COLUMNS).largest_value(term)
    assert found == max(term.evaluate(point.__getitem__) for point in where(sample))


def test_the_largest_value_may_not_exist() -> None:
    assert points(ge(STEP, 0), (t,)).largest_value(STEP) is None
    assert points(le(STEP, 7), (t,)).largest_value(2 * STEP) == 14


@given(st.integers(-6, 6), st.integers(-6, 6), st.sampled_from([-4, -3, -2, -1, 1, 2, 3, 4]))
def test_length_is_that_of_a_python_range(start: int, stop: int, step: int) -> None:
    assert length(Term(start), Term(stop), step) is Term(len(range(start, stop, step)))
    symbolic = length(STEP, STEP + (stop - start), step)
    assert symbolic is Term(len(range(start, stop, step)))


def test_facts_are_what_bounds_are_known_for() -> None:
    limited = Symbol("S", "size", max=BOUND + 1)
    assert facts(frozenset({t})) is TRUE
    assert facts(frozenset({limited})) is conjunction(
        ge(Term.of(limited), 0), le(Term.of(limited), BOUND + 1), ge(BOUND, 0)
    )
    assert proves(TRUE, le(Term.of(limited), BOUND + 1))
    assert not proves(TRUE, le(Term.of(limited), BOUND))


def test_a_counterexample_names_the_smallest_bounds() -> None:
    inside = conjunction(ge(STEP, 0), lt(STEP, BOUND))
    assert counterexample(inside, lt(STEP + 1, BOUND)) == {T: 1, t: 0}
    assert counterexample(inside, lt(STEP, BOUND)) is None


def test_a_set_unbounded_below_still_has_a_sample() -> None:
    found = points(le(STEP, -5), (t,)).smallest()
    assert found is not None
    assert found[t] <= -5


def test_branches_that_never_win_disappear() -> None:
    inside = conjunction(ge(STEP, 0), lt(STEP, BOUND))
    assert simplified_term(maximum(Term(0), BOUND - STEP), inside) is BOUND - STEP
    assert simplified_term(minimum(STEP, BOUND), inside) is STEP
    assert simplified_term(maximum(Term(0), STEP - 3), inside) is maximum(Term(0), STEP - 3)


def test_simplified_drops_what_is_known() -> None:
    inside = conjunction(ge(STEP, 0), lt(STEP, BOUND))
    assert simplified(conjunction(inside, ge(STEP, 2)), inside) is ge(STEP, 2)
    assert simplified(ge(STEP, 0), inside) is TRUE
    assert simplified(eq(STEP, BOUND), inside) is FALSE


def test_products_are_unknowns() -> None:
    product = BOUND * SIZE
    assert proves(ge(product, 3), ge(product + 1, 4))
    assert not proves(TRUE, ge(product, 0))


def test_every_column_must_be_named() -> None:
    with pytest.raises(KeyError, match="not a column"):
        points(ge(BOUND, 0), (t,))


def test_a_chain_of_inclusions() -> None:
    sets = [points(conjunction(ge(STEP, 0), le(STEP, n)), (t,)) for n in range(4)]
    assert all(a <= b and not b <= a for a, b in pairwise(sets))
    assert points(negation(disjunction(lt(STEP, 0), ne(STEP % 2, 1))), (t,)).smallest() == {t: 1}


def test_a_set_of_which_one_part_is_unbounded_below_has_a_sample() -> None:
    found = solutions(conjunction(ge(SIZE, 0), lt(SIZE, BOUND), ne(BOUND, STEP))).smallest()
    assert found is not None
    assert 0 <= found[P] < found[T] != found[t]
    assert solutions(eq(BOUND, STEP)).smallest() is not None


@quick
@given(conditions_of(AFFINE), st.sampled_from(SYMBOLS), st.sampled_from(SYMBOLS), st.integers(-3, 3))
def test_what_differences_decide_is_what_isl_finds(sample: ConditionSample, a: Symbol, b: Symbol, n: int) -> None:
    """Half of the conditions are made of limits of differences alone, of which nothing is left open."""
    for condition in (sample.condition, conjunction(sample.condition, INSIDE, le(Term.of(a), Term.of(b) + n))):
        found = Points(COLUMNS, condition)
        decided = satisfiable(condition)
        assert decided in (None, not found.isl_set.is_empty())
        least_value = least_difference(Term.of(a) - Term.of(b) + n, condition) if decided and a is not b else None
        if least_value is not None:
            greatest = found.largest_value(Term.of(b) - Term.of(a) - n)
            assert least_value == (None if greatest is None else -greatest,)


LIMITS = st.lists(
    st.tuples(st.sampled_from([None, *SYMBOLS]), st.sampled_from([None, *SYMBOLS]), st.integers(-3, 3)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150)
@given(LIMITS, LIMITS)
def test_limits_of_differences_are_decided(
    one: list[tuple[Symbol | None, Symbol | None, int]], other: list[tuple[Symbol | None, Symbol | None, int]]
) -> None:
    """Alone, and of two alternatives one; the least differences are those that isl finds."""

    def value(node: Symbol | None) -> Term:
        return Term(0) if node is None else Term.of(node)

    limits, alternatives = ([le(value(b), value(a) + n) for a, b, n in some] for some in (one, other))
    alone, both = conjunction(*limits), conjunction(*limits, disjunction(*alternatives))
    assert satisfiable(alone) == (not Points(COLUMNS, alone).isl_set.is_empty())
    assert satisfiable(both) == (not Points(COLUMNS, both).isl_set.is_empty())
    if satisfiable(alone):
        for a, b in ((t, T), (T, t), (P, None), (None, T)):
            term = value(a) - value(b)
            greatest = Points(COLUMNS, alone).largest_value(-term)
            assert least_difference(term, alone) == (None if greatest is None else -greatest,)
