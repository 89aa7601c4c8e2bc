"""Conditions: normal forms keep the truth value, and equal conditions are one object."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.compiler.ir.conditions import (
    FALSE,
    TRUE,
    Condition,
    conjunction,
    disjunction,
    eq,
    ge,
    gt,
    le,
    lt,
    ne,
    negation,
    within,
)
from polyrhythm.compiler.ir.terms import Symbol, Term, fresh
from tests.compiler.ir.parse import parse_condition
from tests.compiler.ir.strategies import (
    BY_NAME,
    POINTS,
    POLYNOMIALS,
    SYMBOLS,
    ConditionSample,
    P,
    Sample,
    T,
    Values,
    conditions_of,
    t,
)

CONDITIONS = conditions_of(POLYNOMIALS)
STEP, BOUND, SIZE = Term.of(t), Term.of(T), Term.of(P)


@given(CONDITIONS, POINTS)
def test_normal_form_keeps_the_truth_value(sample: ConditionSample, point: Values) -> None:
    assert sample.condition.evaluate(point.__getitem__) == sample.value(point)


@given(CONDITIONS, POINTS)
def test_negation_is_the_opposite_and_its_own_inverse(sample: ConditionSample, point: Values) -> None:
    opposite = negation(sample.condition)
    assert opposite.evaluate(point.__getitem__) != sample.value(point)
    assert negation(opposite) is sample.condition


@given(CONDITIONS, st.fixed_dictionaries(dict.fromkeys(SYMBOLS, POLYNOMIALS)), POINTS)
def test_substitute_commutes_with_evaluate(
    sample: ConditionSample, replacement: dict[Symbol, Sample], point: Values
) -> None:
    replaced = sample.condition.substitute({s: r.term for s, r in replacement.items()})
    inner = {s: r.value(point) for s, r in replacement.items()}
    assert replaced.evaluate(point.__getitem__) == sample.value(inner)


@given(CONDITIONS)
def test_text_reads_back_as_the_same_object(sample: ConditionSample) -> None:
    assert parse_condition(str(sample.condition), BY_NAME) is sample.condition


@given(CONDITIONS, POINTS)
def test_text_means_in_python_what_the_condition_means(sample: ConditionSample, point: Values) -> None:
    names = {symbol.name: value for symbol, value in point.items()}
    words = {"true": True, "false": False, "min": lambda *a: min(a), "max": lambda *a: max(a)}
    assert eval(str(sample.condition), {**words, **names}) == sample.value(point)


@given(CONDITIONS, CONDITIONS, CONDITIONS)
def test_junctions_do_not_depend_on_order_or_grouping(
    a: ConditionSample, b: ConditionSample, c: ConditionSample
) -> None:
    x, y, z = a.condition, b.condition, c.condition
    for join, other in ((conjunction, disjunction), (disjunction, conjunction)):
        assert join(x, y) is join(y, x)
        assert join(join(x, y), z) is join(x, join(y, z))
        assert join(x, x) is x
        assert join(x) is x
        assert join(x, other()) is other()
        assert join(x, join()) is x


@given(CONDITIONS)
def test_symbols(sample: ConditionSample) -> None:
    assert sample.condition.symbols <= set(SYMBOLS)


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (lt(STEP, BOUND), "t < T"),
        (le(STEP, BOUND), "t <= T"),
        (gt(STEP, 0), "t >= 1"),
        (lt(STEP, 3), "t <= 2"),
        (ge(2 * STEP, 3), "t >= 2"),
        (eq(STEP, BOUND - 1), "t == T - 1"),
        (ne(STEP % 2, 0), "t % 2 != 0"),
        (eq(2 * STEP, 3), "false"),
        (ne(2 * STEP, 3), "true"),
        (le(STEP, SIZE - 2), "t <= P - 2"),
        (disjunction(conjunction(gt(STEP, 0), lt(STEP, SIZE)), eq(STEP, BOUND)), "(t < P and t >= 1) or t == T"),
    ],
)
def test_text(condition: Condition, text: str) -> None:
    assert str(condition) == text


def test_comparisons_with_one_meaning_are_one_object() -> None:
    assert lt(STEP, BOUND) is gt(BOUND, STEP)
    assert le(STEP + 1, BOUND) is lt(STEP, BOUND)
    assert eq(STEP, BOUND) is eq(BOUND, STEP)
    assert ge(2 * STEP + 1, 0) is ge(STEP, 0)
    assert negation(lt(STEP, BOUND)) is ge(STEP, BOUND)
    assert within(t, BOUND) is conjunction(ge(STEP, 0), lt(STEP, BOUND))


def test_constants() -> None:
    assert ge(Term(1), 0) is TRUE
    assert eq(Term(1), 0) is FALSE
    assert conjunction() is TRUE
    assert disjunction() is FALSE


def test_symbols_of_one_name_are_ordered() -> None:
    a, b = Term.of(fresh("k")), Term.of(fresh("k"))
    assert conjunction(ge(a, 1), ge(b, 1)) is conjunction(ge(b, 1), ge(a, 1))
    assert eq(a, b) is eq(b, a)
