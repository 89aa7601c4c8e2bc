"""Integer sets: the one module that touches isl.

`Points` is a set of integer points with named columns, one per symbol; bounds and sizes are columns like the
dims, so that a witness names concrete bounds too. Everything the compiler proves about indices is asked here:
is a set empty, what is its smallest point, is one set inside another, what remains of a condition where another
is known to hold. Answers are exact (Presburger arithmetic) and memoised: a program asks the same about many
tensors, and a question about sets that have met before costs a look into a table. Sets are compared by identity there.

Products of symbols, which only shapes can contain, enter as unknowns of their own: whatever is proved about
them holds for every value they might have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import islpy as isl

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import (
    FALSE,
    TRUE,
    Compare,
    Condition,
    Junction,
    conjunction,
    disjunction,
    eq,
    ge,
    le,
    negation,
    parts_of,
)
from polyrhythm.compiler.ir.differences import least_difference, satisfiable
from polyrhythm.compiler.ir.terms import (
    ZERO,
    Atom,
    Extremum,
    FloorDiv,
    Monomial,
    Symbol,
    Term,
    maximum,
    minimum,
    ordered,
    product,
)

Columns = tuple[Symbol, ...]
Row = tuple[bool, dict[Symbol | int | None, int]]
"""Whether an affine function is zero, and its coefficients: of columns, of quotients by number, the constant (None)."""
_CACHE = 1 << 14


@dataclass(frozen=True, eq=False)
class Points:
    """A set of integer points; `columns` names its coordinates in order.

    >>> t, T = Symbol("t", "dim"), Symbol("T", "bound")
    >>> steps = points(conjunction(ge(Term.of(t), 2), le(Term.of(t) + 1, Term.of(T))), (T, t))
    >>> steps.smallest()
    {T: 3, t: 2}
    """

    columns: Columns
    given_by: isl.Set | Condition

    @cached_property
    def isl_set(self) -> isl.Set:
        """The set in isl, made when it is first needed: making one takes longer than most questions about it."""
        if not isinstance(self.given_by, Condition):
            return self.given_by
        return _set_of(self.given_by, _columns_with_unknowns(self.given_by, self.columns), len(self.columns))

    @cached_property
    def is_empty(self) -> bool:
        found = satisfiable(self.given_by) if isinstance(self.given_by, Condition) else None
        return bool(self.isl_set.is_empty()) if found is None else not found

    def __and__(self, other: Points) -> Points:
        if isinstance(self.given_by, Condition) and isinstance(other.given_by, Condition):
            columns = self.columns if self.columns == other.columns else ordered({*self.columns, *other.columns})
            return points(conjunction(self.given_by, other.given_by), columns)
        return _combined(self, other, "intersect")

    def __or__(self, other: Points) -> Points:
        return _combined(self, other, "union")

    def __sub__(self, other: Points) -> Points:
        return _combined(self, other, "subtract")

    def __le__(self, other: Points) -> bool:
        return self is other or _is_subset(self, other)

    def same(self, other: Points) -> bool:
        """Whether both hold the same points."""
        return self <= other and other <= self

    def without(self, symbols: Iterable[Symbol]) -> Points:
        """The set with some columns projected out: the rest of each point, for whatever they were."""
        dropped = frozenset(symbols).intersection(self.columns)
        return _projection(self, dropped) if dropped else self

    def widened(self, columns: Columns) -> Points:
        """The set in other columns; those it does not have yet are unconstrained."""
        if columns == self.columns:
            return self
        return points(self.given_by, columns) if isinstance(self.given_by, Condition) else _widened(self, columns)

    def smallest(self) -> dict[Symbol, int] | None:
        """The lexicographically smallest point (by column order), or None where there is none.

        Of a set that is unbounded below, any one point.
        """
        if self.is_empty:
            return None
        least = self.isl_set
        # Constraints such as i == j bound each from below and neither in the end; the least values decide.
        if not any(least.dim_min_val(i).is_neginfty() for i in range(len(self.columns))):
            first = least.lexmin()
            # With nested quotients isl may lose every point here; any point is a witness then.
            least = least if first.is_empty() else first
        return self._values(least.sample_point())

    def every(self) -> list[dict[Symbol, int]]:
        """All points; the set must be bounded."""
        found: list[isl.Point] = []
        self.isl_set.foreach_point(found.append)
        return [self._values(point) for point in found]

    def _values(self, point: isl.Point) -> dict[Symbol, int]:
        values = (point.get_coordinate_val(isl.dim_type.set, i) for i in range(len(self.columns)))
        return {column: int(value.to_python()) for column, value in zip(self.columns, values, strict=True)}

    def largest_value(self, term: Term) -> int | None:
        """The greatest value of a term over the set; None when unbounded. The set must not be empty."""
        value = self.isl_set.max_val(_affine_only(term, self.columns))
        return None if value.is_infty() else int(value.to_python())

    def intervals(self, symbol: Symbol) -> list[tuple[Term, Term]]:
        """For each convex part of the set, terms of the other columns between which a column lies: first and last.

        They bound the column from outside; what the set demands besides, such as divisibility, is not in them.

        >>> t, T = Symbol("t", "dim"), Symbol("T", "bound")
        >>> box = points(conjunction(ge(Term.of(t), 2), le(Term.of(t) * 2, Term.of(T))), (T, t))
        >>> [(str(first), str(last)) for first, last in box.intervals(t)]
        [('2', 'T//2')]
        """
        return list(_intervals(self, symbol))

    def _ends(self, basic: isl.BasicSet, symbol: Symbol) -> tuple[list[Term], list[Term], bool]:
        """The terms between which the constraints of a convex set hold a column, and whether these are all."""
        lowest: list[Term] = []
        highest: list[Term] = []
        is_all = True
        for constraint in basic.remove_redundancies().get_constraints():
            term = self._term_of(constraint.get_aff())
            factor = term.coefficient(symbol)
            rest = term - Term.of(symbol) * factor
            if symbol in rest.symbols:
                is_all = False
                continue
            if factor > 0 or (factor and constraint.is_equality()):
                lowest.append(-((rest if factor > 0 else -rest) // abs(factor)))
            if factor < 0 or (factor and constraint.is_equality()):
                highest.append((rest if factor < 0 else -rest) // abs(factor))
        return lowest, highest, is_all

    def rows(self) -> list[list[Row]]:
        """For each convex part of the set, the affine functions that are zero, or at least zero, on it.

        >>> t, T = Symbol("t", "dim"), Symbol("T", "bound")
        >>> points(le(Term.of(t) * 2, Term.of(T)), (T, t)).rows()
        [[(False, {T: 1, t: -2})]]
        """
        return [
            [self._row(constraint) for constraint in basic.get_constraints()]
            for basic in self.isl_set.coalesce().compute_divs().remove_redundancies().get_basic_sets()
            if not basic.is_empty()
        ]

    def _row(self, constraint: isl.Constraint) -> Row:
        found: dict[Symbol | int | None, int] = {None: int(constraint.get_constant_val().to_python())}
        for i, column in enumerate(self.columns):
            found[column] = int(constraint.get_coefficient_val(isl.dim_type.set, i).to_python())
        for i in range(constraint.dim(isl.dim_type.div)):
            found[i] = int(constraint.get_coefficient_val(isl.dim_type.div, i).to_python())
        return bool(constraint.is_equality()), {key: value for key, value in found.items() if value}

    def condition(self) -> Condition:
        """The set as a condition on its columns.

        >>> t = Symbol("t", "dim")
        >>> str(points(eq(Term.of(t) % 2, 1), (t,)).condition())
        '(t + 1) % 2 == 0'
        """
        return self._condition

    @cached_property
    def _condition(self) -> Condition:
        whole = self.isl_set.coalesce().compute_divs().remove_redundancies()
        if whole.is_empty():
            return FALSE
        pieces = [self._basic_condition(basic) for basic in whole.get_basic_sets()]
        return disjunction(*pieces)

    def given(self, other: Points) -> Points:
        """A simpler set that holds the same points inside `other`."""
        columns, a, b = _aligned(self, other)
        return Points(columns, a.gist(b).coalesce())

    def _basic_condition(self, basic: isl.BasicSet) -> Condition:
        parts = []
        for constraint in basic.get_constraints():
            term = self._term_of(constraint.get_aff())
            parts.append(eq(term, 0) if constraint.is_equality() else ge(term, 0))
        return conjunction(*parts)

    def _term_of(self, aff: isl.Aff) -> Term:
        """The term of an isl expression times its denominator, which does not matter to a sign."""
        scale = aff.get_denominator_val()
        return self._scaled_term(aff.scale_val(scale))

    def _scaled_term(self, aff: isl.Aff) -> Term:
        total = Term(int(aff.get_constant_val().to_python()))
        for i, column in enumerate(self.columns):
            coefficient = aff.get_coefficient_val(isl.dim_type.in_, i)
            if not coefficient.is_zero():
                total = total + Term.of(column) * int(coefficient.to_python())
        for i in range(aff.dim(isl.dim_type.div)):
            factor = int(aff.get_coefficient_val(isl.dim_type.div, i).to_python())
            if factor:
                inner = aff.get_div(i)
                scale = inner.get_denominator_val()
                dividend = self._scaled_term(inner.scale_val(scale))
                total = total + (dividend // int(scale.to_python())) * factor
        return total


class TooManyOperationsError(Exception):
    """A question about integer sets was given up: it would take longer than its answer is worth."""


@contextmanager
def at_most(operations: int) -> Iterator[None]:
    """Give up what takes more than so many operations of isl; counted, not timed, so that it is the same everywhere."""
    context = isl.DEFAULT_CONTEXT
    context.reset_operations()
    context.set_max_operations(operations)
    try:
        yield
    except isl.Error as error:
        if "operations" not in str(error):
            raise
        raise TooManyOperationsError from error
    finally:
        context.set_max_operations(0)


@lru_cache(_CACHE)
def _combined(one: Points, other: Points, how: str) -> Points:
    columns, a, b = _aligned(one, other)
    made = getattr(a, how)(b)
    return Points(columns, made.coalesce() if how == "union" else made)


@lru_cache(_CACHE)
def _is_subset(one: Points, other: Points) -> bool:
    _, a, b = _aligned(one, other)
    return bool(a.is_subset(b))


@lru_cache(_CACHE)
def _projection(whole: Points, dropped: frozenset[Symbol]) -> Points:
    result = whole.isl_set
    for position in reversed(range(len(whole.columns))):
        if whole.columns[position] in dropped:
            result = result.project_out(isl.dim_type.set, position, 1)
    return Points(tuple(c for c in whole.columns if c not in dropped), result.coalesce())


@lru_cache(_CACHE)
def _intervals(whole: Points, symbol: Symbol) -> tuple[tuple[Term, Term], ...]:
    found = []
    for basic in whole.isl_set.coalesce().compute_divs().get_basic_sets():
        if basic.is_empty():
            continue
        lowest, highest, is_all = whole._ends(basic, symbol)
        if not is_all:  # bounded also together with a quotient of itself: without the quotients, from further out
            further = whole._ends(basic.remove_divs(), symbol)
            lowest, highest = lowest + further[0], highest + further[1]
        if not lowest or not highest:
            raise ValueError(f"{symbol} has no bounds in {whole.condition()}")
        found.append((maximum(*lowest), minimum(*highest)))
    return tuple(found)


@lru_cache(_CACHE)
def _widened(narrow: Points, columns: Columns) -> Points:
    missing = [c for c in columns if c not in narrow.columns]
    have = (*narrow.columns, *missing)
    assert set(have) == set(columns), "widened() drops no columns"
    result = narrow.isl_set.add_dims(isl.dim_type.set, len(missing))
    order = [have.index(c) for c in columns]
    if order != list(range(len(have))):
        result = result.apply(_permutation(tuple(order)))
    return Points(columns, result)


@lru_cache(_CACHE)
def points(condition: Condition, columns: Columns) -> Points:
    """The points at which a condition holds. Every symbol of the condition must be a column."""
    found = Points(columns, condition)
    if not condition.symbols.issubset(columns):
        found.isl_set  # noqa: B018 - which fails, unless they are in products
    return found


def solutions(condition: Condition) -> Points:
    """The points of a condition over exactly the symbols that occur in it, bounds first."""
    return points(condition, ordered(condition.symbols))


@lru_cache(_CACHE)
def facts(symbols: frozenset[Symbol]) -> Condition:
    """What is known of some symbols by what they are: bounds and sizes keep their `min` and `max`."""
    known = []
    for symbol in symbols:
        if symbol.kind != "dim":
            known.append(ge(Term.of(symbol), symbol.min))
            if symbol.max is not None:
                known.append(le(Term.of(symbol), symbol.max))
                known.append(facts(symbol.max.symbols))
    return conjunction(*known)


def with_facts(condition: Condition) -> Condition:
    """A condition and what is known of its symbols."""
    return conjunction(condition, facts(condition.symbols))


def is_possible(condition: Condition) -> bool:
    """Whether a condition holds anywhere, given what is known of its symbols."""
    return not solutions(with_facts(condition)).is_empty


@lru_cache(_CACHE)
def proves(given: Condition, claim: Condition) -> bool:
    """Whether `claim` holds for all integers for which `given` and the facts about its symbols do.

    >>> t, T = Term.of(Symbol("t", "dim")), Term.of(Symbol("T", "bound"))
    >>> proves(le(t, T), le(t - 1, T)), proves(le(t, T), le(t + 1, T))
    (True, False)
    """
    if claim is TRUE or claim is given:
        return True
    # One part after the other: together, what they exclude is a union that takes isl far longer.
    known = set(parts_of(given))
    return all(part in known or _counterexamples(given, part).is_empty for part in parts_of(claim))


@lru_cache(_CACHE)
def _counterexamples(given: Condition, claim: Condition) -> Points:
    known = conjunction(given, facts(given.symbols | claim.symbols))
    return solutions(conjunction(known, negation(claim)))


def counterexample(given: Condition, claim: Condition) -> dict[Symbol, int] | None:
    """The smallest point at which `given` holds and `claim` does not, or None."""
    return None if proves(given, claim) else _counterexamples(given, claim).smallest()


@lru_cache(_CACHE)
def simplified(condition: Condition, given: Condition) -> Condition:
    """A simpler condition, equal to `condition` wherever `given` and the facts about the symbols hold."""
    if condition is TRUE or condition is FALSE:
        return condition
    known = conjunction(given, facts(given.symbols | condition.symbols))
    columns = ordered(condition.symbols | known.symbols)
    return points(condition, columns).given(points(known, columns)).condition()


@lru_cache(_CACHE)
def simplified_term(term: Term, given: Condition) -> Term:
    """The term without the branches of `min` and `max` that never win where `given` holds."""
    total = Term(term.constant)
    for monomial, coefficient in term.monomials:
        factors = (_simplified_atom(atom, given) for atom in monomial)
        total = total + product(factors) * coefficient
    return total


def _simplified_atom(atom: Atom, given: Condition) -> Term:
    if isinstance(atom, Symbol):
        return Term.of(atom)
    if isinstance(atom, FloorDiv):
        return simplified_term(atom.dividend, given) // atom.divisor
    kept = [simplified_term(argument, given) for argument in atom.arguments]
    never_wins = le if atom.which == "max" else ge
    for argument in tuple(kept):
        rest = [other for other in kept if other is not argument]
        if any(proves(given, never_wins(argument, other)) for other in rest):
            kept = rest
    return maximum(*kept) if atom.which == "max" else minimum(*kept)


@lru_cache(_CACHE)
def least(term: Term, condition: Condition) -> int | None:
    """The smallest value of a term where a condition holds; None when there is none, or it holds nowhere.

    >>> t = Term.of(Symbol("t", "dim"))
    >>> least(2 * t + 1, ge(t, 3))
    7
    >>> least(t, conjunction(ge(t, 3), le(t, 2)))
    """
    if term.is_constant:
        return term.constant
    possible = satisfiable(condition)
    found = least_difference(term, condition) if possible else None
    if possible is False or found is not None:
        return None if found is None else found[0]
    value = Symbol("value", "dim", serial=serials.VALUE)
    where = solutions(conjunction(condition, eq(Term.of(value), -term)))
    largest = None if where.is_empty else where.largest_value(Term.of(value))
    return None if largest is None else -largest


@lru_cache(_CACHE)
def largest(term: Term, known: Condition) -> int | None:
    """The largest value of a term for all bounds; 0 where the condition never holds, None where there is no limit.

    >>> t, T = Term.of(Symbol("t", "dim")), Term.of(Symbol("T", "bound"))
    >>> largest(2 * t, conjunction(ge(t, 0), le(t, 3))), largest(t, conjunction(ge(t, 0), le(t, T)))
    (6, None)
    """
    known = conjunction(known, facts(known.symbols | term.symbols))
    if solutions(known).is_empty:
        return 0
    found = least(-term, known)
    return None if found is None else -found


def equal(a: Term, b: Term, given: Condition) -> bool:
    """Whether two terms have the same value wherever `given` holds."""
    return a is b or proves(given, eq(a, b))


def length(start: Term, stop: Term, step: int) -> Term:
    """How many steps a slice takes; never negative.

    >>> t = Term.of(Symbol("t", "dim"))
    >>> str(length(t, t + 5, 2)), str(length(t, t - 3, -1))
    ('3', '3')
    """
    span = stop - start if step > 0 else start - stop
    return maximum(ZERO, (span + (abs(step) - 1)) // abs(step))


def _aligned(a: Points, b: Points) -> tuple[Columns, isl.Set, isl.Set]:
    if a.columns == b.columns:
        return a.columns, a.isl_set, b.isl_set
    columns = ordered({*a.columns, *b.columns})
    return columns, a.widened(columns).isl_set, b.widened(columns).isl_set


@cache
def _permutation(order: tuple[int, ...]) -> isl.Map:
    """The map that sends the point `p` to `(p[order[0]], p[order[1]], ...)`."""
    space = isl.Space.alloc(isl.DEFAULT_CONTEXT, 0, len(order), len(order))
    result = isl.Map.universe(space)
    for target, origin in enumerate(order):
        result = result.equate(isl.dim_type.in_, origin, isl.dim_type.out, target)
    return result


def _columns_with_unknowns(condition: Condition, columns: Columns) -> dict[Monomial, int]:
    """The column of each monomial: the symbols first, then one extra column per product of symbols."""
    positions: dict[Monomial, int] = {(symbol,): i for i, symbol in enumerate(columns)}
    for monomial in _products(condition):
        positions.setdefault(monomial, len(positions))
    return positions


def _products(condition: Condition) -> list[Monomial]:
    if isinstance(condition, Junction):
        return [m for part in condition.parts for m in _products(part)]
    assert isinstance(condition, Compare)
    return _term_products(condition.term)


def _term_products(term: Term) -> list[Monomial]:
    found: list[Monomial] = []
    for monomial, _ in term.monomials:
        if len(monomial) > 1:
            found.append(monomial)
        elif isinstance(monomial[0], FloorDiv):
            found.extend(_term_products(monomial[0].dividend))
        elif isinstance(monomial[0], Extremum):
            found.extend(m for argument in monomial[0].arguments for m in _term_products(argument))
    return found


def _set_of(condition: Condition, positions: dict[Monomial, int], width: int) -> isl.Set:
    total = len(positions)
    result = _condition_set(condition, positions, _space(total))
    return result.project_out(isl.dim_type.set, width, total - width) if total > width else result


def _condition_set(condition: Condition, positions: dict[Monomial, int], space: isl.Space) -> isl.Set:
    if isinstance(condition, Junction) and condition.word == "or":
        result = isl.Set.empty(space)
        for part in condition.parts:
            result = result.union(_condition_set(part, positions, space))
        return result
    # The affine parts make one convex set, constraint by constraint; that is several times faster than meeting sets.
    convex = isl.BasicSet.universe(space)
    others: list[isl.Set] = []
    for part in condition.parts if isinstance(condition, Junction) else (condition,):
        if isinstance(part, Junction):
            others.append(_condition_set(part, positions, space))
            continue
        assert isinstance(part, Compare)
        if part.relation != "!=" and all(monomial in positions for monomial, _ in part.term.monomials):
            convex = convex.add_constraint(_constraint(part, positions, space))
        else:
            others.append(_compare_set(part, positions, space))
    result = isl.Set.from_basic_set(convex)
    for other in others:
        result = result.intersect(other)
        if len(others) > 2:
            # Pieces that are empty or belong together would be met with those of all that follow.
            result = result.coalesce()
    return result


def _compare_set(condition: Compare, positions: dict[Monomial, int], space: isl.Space) -> isl.Set:
    value = _pw_aff(condition.term, positions, space)
    if condition.relation == ">=":
        return value.nonneg_set()
    return value.zero_set() if condition.relation == "==" else value.non_zero_set()


def _constraint(condition: Compare, positions: dict[Monomial, int], space: isl.Space) -> isl.Constraint:
    """An affine comparison."""
    fresh = isl.Constraint.alloc_equality if condition.relation == "==" else isl.Constraint.alloc_inequality
    constraint = fresh(isl.LocalSpace.from_space(space)).set_constant_val(_value(condition.term.constant))
    for monomial, coefficient in condition.term.monomials:
        constraint = constraint.set_coefficient_val(isl.dim_type.set, positions[monomial], _value(coefficient))
    return constraint


@cache
def _space(width: int) -> isl.Space:
    return isl.Space.set_alloc(isl.DEFAULT_CONTEXT, 0, width)


def _pw_aff(term: Term, positions: dict[Monomial, int], space: isl.Space) -> isl.PwAff:
    affine = isl.Aff.zero_on_domain(isl.LocalSpace.from_space(space)).set_constant_val(_value(term.constant))
    others: list[isl.PwAff] = []
    for monomial, coefficient in term.monomials:
        if monomial in positions:
            affine = affine.set_coefficient_val(isl.dim_type.in_, positions[monomial], _value(coefficient))
            continue
        atom = monomial[0]
        if isinstance(atom, FloorDiv):
            inner = _pw_aff(atom.dividend, positions, space)
            piece = inner.scale_down_val(_value(atom.divisor)).floor()
        elif isinstance(atom, Extremum):
            pieces = [_pw_aff(argument, positions, space) for argument in atom.arguments]
            piece = pieces[0]
            for other in pieces[1:]:
                piece = piece.min(other) if atom.which == "min" else piece.max(other)
        else:
            raise KeyError(f"{atom} is not a column")
        others.append(piece.scale_val(_value(coefficient)))
    result = isl.PwAff.from_aff(affine)
    for piece in others:
        result = result.add(piece)
    return result


def _affine_only(term: Term, columns: Sequence[Symbol]) -> isl.Aff:
    affine = isl.Aff.zero_on_domain(isl.LocalSpace.from_space(_space(len(columns))))
    affine = affine.set_constant_val(_value(term.constant))
    for monomial, coefficient in term.monomials:
        position = list(columns).index(monomial[0])  # type: ignore[arg-type]
        affine = affine.set_coefficient_val(isl.dim_type.in_, position, _value(coefficient))
    return affine


@lru_cache(_CACHE)
def _value(number: int) -> isl.Val:
    return isl.Val(number)
