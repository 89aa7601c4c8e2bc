"""Index terms: canonical form keeps the value, and equal terms are one object."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.compiler.ir.terms import ONE, ZERO, Symbol, Term, dims_of, fresh, maximum, minimum, ordered, product
from tests.compiler.ir.parse import parse_term
from tests.compiler.ir.strategies import AFFINE, BY_NAME, POINTS, POLYNOMIALS, SYMBOLS, P, Sample, T, Values, t


@given(POLYNOMIALS, POINTS)
def test_canonical_form_keeps_the_value(sample: Sample, point: Values) -> None:
    assert sample.term.evaluate(point.__getitem__) == sample.value(point)


@given(POLYNOMIALS, st.fixed_dictionaries(dict.fromkeys(SYMBOLS, POLYNOMIALS)), POINTS)
def test_substitute_commutes_with_evaluate(sample: Sample, replacement: dict[Symbol, Sample], point: Values) -> None:
    replaced = sample.term.substitute({s: r.term for s, r in replacement.items()})
    inner = {s: r.value(point) for s, r in replacement.items()}
    assert replaced.evaluate(point.__getitem__) == sample.value(inner)


@given(POLYNOMIALS)
def test_text_reads_back_as_the_same_object(sample: Sample) -> None:
    assert parse_term(str(sample.term), BY_NAME) is sample.term


@given(POLYNOMIALS, POINTS)
def test_text_means_in_python_what_the_term_means(sample: Sample, point: Values) -> None:
    names = {symbol.name: value for symbol, value in point.items()}
    functions = {"min": lambda *a: min(a), "max": lambda *a: max(a)}
    assert eval(str(sample.term), {**functions, **names}) == sample.value(point)


@given(POLYNOMIALS)
def test_a_term_survives_copying_and_pickling_as_itself(sample: Sample) -> None:
    assert pickle.loads(pickle.dumps(sample.term)) is sample.term
    assert copy.deepcopy(sample.term) is sample.term


@given(POLYNOMIALS, POLYNOMIALS, POLYNOMIALS, st.integers(1, 6))
def test_laws_hold_as_identity(a: Sample, b: Sample, c: Sample, k: int) -> None:
    x, y, z = a.term, b.term, c.term
    assert x + y is y + x
    assert x * y is y * x
    assert (x + y) + z is x + (y + z)
    assert (x * y) * z is x * (y * z)
    assert x * (y + z) is x * y + x * z
    assert x - x is ZERO
    assert x + y - y is x
    assert minimum(x, y) is minimum(y, x)
    assert maximum(x, maximum(y, z)) is maximum(maximum(z, y), x)
    assert minimum(x, x) is x
    assert (x + k * y) // k is x // k + y
    assert (x + k * y) % k is x % k
    assert x // k * k + x % k is x


@given(POLYNOMIALS, st.integers(1, 6), st.integers(1, 6), POINTS)
def test_division_and_remainder(a: Sample, k: int, m: int, point: Values) -> None:
    value = a.value(point)
    assert 0 <= (a.term % k).evaluate(point.__getitem__) < k
    assert (a.term // k // m).evaluate(point.__getitem__) == value // (k * m)
    assert (a.term * m // (k * m)) is a.term // k


@given(AFFINE)
def test_terms_without_products_are_affine(sample: Sample) -> None:
    assert sample.term.is_affine


@given(POLYNOMIALS, POINTS)
def test_symbols_are_all_that_the_value_depends_on(sample: Sample, point: Values) -> None:
    assert sample.term.symbols <= set(SYMBOLS)
    moved = {s: v if s in sample.term.symbols else v + 17 for s, v in point.items()}
    assert sample.value(moved) == sample.value(point)


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (Term.of(T) - 1 - Term.of(t), "T - t - 1"),
        (-(Term.of(t) // 2), "-(t//2)"),
        ((Term.of(t) + 1) // 2 * 3, "3*((t + 1)//2)"),
        (Term.of(t) % 2, "t % 2"),
        (Term.of(t) % 2 + 1, "(t % 2) + 1"),
        (Term.of(t) * Term.of(T) * 2, "2*T*t"),
        (maximum(ZERO, Term.of(t) - 3), "max(0, t - 3)"),
        (minimum(Term.of(t) + 4, Term.of(t) + 2), "t + 2"),
        (Term(-3), "-3"),
    ],
)
def test_text(term: Term, text: str) -> None:
    assert str(term) == text


def test_products_are_not_affine() -> None:
    square = Term.of(T) * Term.of(T)
    assert not square.is_affine
    assert not (square // 2).is_affine
    assert not minimum(square, Term.of(t)).is_affine


def test_division_is_by_positive_integers_only() -> None:
    for divisor in (0, -2):
        with pytest.raises(ValueError, match="positive"):
            Term.of(t) // divisor


def test_symbols_of_one_name_are_told_apart_and_ordered() -> None:
    a, b = Term.of(fresh("k")), Term.of(fresh("k"))
    assert a is not b
    assert minimum(a, b) is minimum(b, a)
    assert a // 2 + b // 2 is b // 2 + a // 2
    assert (a // 2) * (b // 2) is (b // 2) * (a // 2)
    assert minimum(a // 2, b // 2) is minimum(b // 2, a // 2)


@pytest.mark.parametrize(
    "name", ["time step", "and", "true", "3d", "a`b", 'quo"te', "back\\slash", "", "new\nline", "λ"]
)
def test_odd_names_read_back(name: str) -> None:
    symbol = Symbol(name, "dim")
    term = 2 * Term.of(symbol) + 1
    assert parse_term(str(term), {name: symbol}) is term


def test_coefficient_and_linearity() -> None:
    term = 3 * Term.of(t) + (Term.of(t) // 2) + Term.of(T)
    assert term.coefficient(t) == 3
    assert term.coefficient(P) == 0
    assert term.linear_in(T)
    assert not term.linear_in(t)


def test_int_of_a_constant_only() -> None:
    assert int(ONE + 2) == 3
    with pytest.raises(ValueError, match="not a constant"):
        int(Term.of(t))


def test_dims_of_include_those_of_ragged_bounds() -> None:
    b = Symbol("b", "dim", bound=Symbol("B", "bound"))
    length = Symbol("L", "bound", over=(b,))
    step = Symbol("s", "dim", bound=length)
    assert dims_of(Term.of(length)) == {b}
    assert dims_of(Term.of(step) + 1) == {step, b}
    assert dims_of(Term.of(T)) == frozenset()


def test_order_puts_bounds_first() -> None:
    assert ordered([t, T, P]) == (P, T, t)


def test_product_of_nothing_is_one() -> None:
    assert product([]) is ONE
    assert t.with_(serial=3) != t
