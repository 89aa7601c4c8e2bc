"""Random index terms and conditions, each with an evaluator of its own that knows nothing of canonical forms."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

from hypothesis import strategies as st

from polyrhythm.compiler.ir import conditions, terms
from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.terms import Symbol, Term

T, P = Symbol("T", "bound"), Symbol("P", "size")
t = Symbol("t", "dim", bound=T)
SYMBOLS = (T, P, t)
BY_NAME = {symbol.name: symbol for symbol in SYMBOLS}
Values = Mapping[Symbol, int]


@dataclass(frozen=True)
class Sample:
    """A term, and what it was made from as a Python function."""

    term: Term
    value: Callable[[Values], int]

    def __repr__(self) -> str:
        return f"<{self.term}>"


@dataclass(frozen=True)
class ConditionSample:
    condition: Condition
    value: Callable[[Values], bool]

    def __repr__(self) -> str:
        return f"<{self.condition}>"


def _leaf(symbol: Symbol) -> Sample:
    return Sample(Term.of(symbol), lambda values: values[symbol])


def _number(number: int) -> Sample:
    return Sample(Term(number), lambda values: number)


LEAVES = st.one_of(st.sampled_from(SYMBOLS).map(_leaf), st.integers(-4, 4).map(_number))


def _combined(inner: st.SearchStrategy[Sample], products: bool) -> st.SearchStrategy[Sample]:
    small = st.integers(-3, 3)
    positive = st.integers(1, 5)
    options = [
        st.builds(lambda a, b: Sample(a.term + b.term, lambda v: a.value(v) + b.value(v)), inner, inner),
        st.builds(lambda a, b: Sample(a.term - b.term, lambda v: a.value(v) - b.value(v)), inner, inner),
        st.builds(lambda a, k: Sample(a.term * k, lambda v: a.value(v) * k), inner, small),
        st.builds(lambda a, k: Sample(a.term // k, lambda v: a.value(v) // k), inner, positive),
        st.builds(lambda a, k: Sample(a.term % k, lambda v: a.value(v) % k), inner, positive),
        st.builds(
            lambda *a: Sample(terms.minimum(*(s.term for s in a)), lambda v: min(s.value(v) for s in a)),
            inner,
            inner,
            inner,
        ),
        st.builds(
            lambda a, b: Sample(terms.maximum(a.term, b.term), lambda v: max(a.value(v), b.value(v))), inner, inner
        ),
    ]
    if products:
        options.append(st.builds(lambda a, b: Sample(a.term * b.term, lambda v: a.value(v) * b.value(v)), inner, inner))
    return st.one_of(options)


POLYNOMIALS = st.recursive(LEAVES, lambda inner: _combined(inner, products=True), max_leaves=6)
AFFINE = st.recursive(LEAVES, lambda inner: _combined(inner, products=False), max_leaves=5)


def _comparisons(samples: st.SearchStrategy[Sample]) -> st.SearchStrategy[ConditionSample]:
    relations: list[tuple[Callable[[Term, Term], Condition], Callable[[int, int], bool]]] = [
        (conditions.ge, lambda a, b: a >= b),
        (conditions.gt, lambda a, b: a > b),
        (conditions.le, lambda a, b: a <= b),
        (conditions.lt, lambda a, b: a < b),
        (conditions.eq, lambda a, b: a == b),
        (conditions.ne, lambda a, b: a != b),
    ]

    def build(a: Sample, b: Sample, which: int) -> ConditionSample:
        make, compare = relations[which]
        return ConditionSample(make(a.term, b.term), lambda v: compare(a.value(v), b.value(v)))

    return st.builds(build, samples, samples, st.integers(0, len(relations) - 1))


def _junctions(inner: st.SearchStrategy[ConditionSample]) -> st.SearchStrategy[ConditionSample]:
    def build(parts: list[ConditionSample], every: bool) -> ConditionSample:
        join, holds = (conditions.conjunction, all) if every else (conditions.disjunction, any)
        return ConditionSample(join(*(p.condition for p in parts)), lambda v: holds(p.value(v) for p in parts))

    def negated(part: ConditionSample) -> ConditionSample:
        return ConditionSample(conditions.negation(part.condition), lambda v: not part.value(v))

    return st.one_of(st.builds(build, st.lists(inner, max_size=3), st.booleans()), inner.map(negated))


def conditions_of(samples: st.SearchStrategy[Sample]) -> st.SearchStrategy[ConditionSample]:
    return st.recursive(_comparisons(samples), _junctions, max_leaves=4)


def box(low: int, high: int, symbols: tuple[Symbol, ...] = SYMBOLS) -> list[dict[Symbol, int]]:
    """Every point of a small box."""
    return [dict(zip(symbols, point, strict=True)) for point in product(range(low, high + 1), repeat=len(symbols))]


def in_box(low: int, high: int, symbols: tuple[Symbol, ...] = SYMBOLS) -> Condition:
    """The condition of a small box."""
    sides = [(conditions.ge(Term.of(s), low), conditions.le(Term.of(s), high)) for s in symbols]
    return conditions.conjunction(*(side for pair in sides for side in pair))


POINTS = st.fixed_dictionaries({symbol: st.integers(-9, 9) for symbol in SYMBOLS})
