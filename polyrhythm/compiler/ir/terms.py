"""Index terms: the integers a program is indexed by, in one canonical form.

A `Term` is an integer polynomial over atoms: symbols (a dim, a bound, a free size), floor divisions by a
positive constant, minima and maxima. Terms are hash-consed: equal terms are one object, so `==` is identity
and common subexpressions are found for free. `a % k` is kept as `a - k * (a // k)`.

Products of symbols are allowed because a shape may need them (`T * S` after flattening two axes). Whether a
term is quasi-affine, as an index must be, is asked with `is_affine`. Conditions are in `conditions.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from itertools import count
from math import gcd
from typing import Any, ClassVar, Literal
from weakref import KeyedRef

Kind = Literal["dim", "bound", "size"]
Monomial = tuple["Atom", ...]

_BARE = re.compile(r"[^\W\d]\w*")
_WORDS = frozenset({"and", "or", "true", "false", "True", "False", "None"})


class Interned:
    """An immutable object of which there is one per value, so that equality is identity.

    `_names` are its fields. Both the hash and the pool work by identity, without a call of Python code: the compiler
    makes and looks up millions of terms.
    """

    __slots__ = ("__weakref__", "_sort_key", "fields")
    _names: ClassVar[tuple[str, ...]] = ()
    _pool: ClassVar[dict[tuple[Any, ...], KeyedRef[tuple[Any, ...], Interned]]] = {}
    fields: tuple[Any, ...]
    _sort_key: str

    def __new__(cls, *fields: Any) -> Any:
        key = (cls, fields)
        reference = _POOL.get(key)
        found = reference() if reference is not None else None
        if found is None:
            found = object.__new__(cls)
            found.fields = fields
            for name, value in zip(cls._names, fields, strict=True):
                setattr(found, name, value)
            _POOL[key] = KeyedRef(found, _forget, key)
        return found

    def sort_key(self) -> str:
        """What orders objects of one kind; remembered, for it is asked for often and made of text."""
        try:
            return self._sort_key
        except AttributeError:
            self._sort_key = self._order()
            return self._sort_key

    def _order(self) -> str:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.fields

    def __copy__(self) -> Interned:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Interned:
        return self


_POOL = Interned._pool


def _forget(reference: KeyedRef[tuple[Any, ...], Interned], pool: dict[Any, Any] = _POOL) -> None:
    """Drop an object that nobody holds any more, unless an equal one has taken its place.

    The pool is a default, because names of the module are gone when the interpreter ends.
    """
    if pool.get(reference.key) is reference:
        del pool[reference.key]


class Symbol(Interned):
    """A named integer.

    A *dim* is a step symbol and ranges over `0 <= t < bound`. A *bound* is the length of a dim; `over` lists
    the dims its value depends on (ragged lengths). A *size* is a free run-time integer. `max` limits a bound
    or a size, and so does `min`. `serial` tells symbols of one name apart.
    """

    _names = ("name", "kind", "bound", "max", "over", "serial", "min")
    __slots__ = (*_names, "_term")
    name: str
    kind: Kind
    bound: Symbol | None
    max: Term | None
    over: tuple[Symbol, ...]
    serial: int
    min: int
    _term: Term

    def __new__(
        cls,
        name: str,
        kind: Kind,
        bound: Symbol | None = None,
        max: Term | None = None,
        over: tuple[Symbol, ...] = (),
        serial: int = 0,
        min: int = 0,
    ) -> Symbol:
        return super().__new__(cls, name, kind, bound, max, over, serial, min)  # type: ignore[no-any-return]

    @property
    def term(self) -> Term:
        """The term that is this symbol."""
        try:
            return self._term
        except AttributeError:
            self._term = Term(0, (((self,), 1),))
            return self._term

    def _order(self) -> str:
        return f"{self.name}#{self.serial}"

    def __repr__(self) -> str:
        if _BARE.fullmatch(self.name) and self.name not in _WORDS:
            return self.name
        return "`" + json.dumps(self.name, ensure_ascii=False)[1:-1].replace("`", "\\u0060") + "`"

    def with_(self, **changes: Any) -> Symbol:
        """The same symbol with some fields changed."""
        return Symbol(**{**dict(zip(self._names, self.fields, strict=True)), **changes})


_serials = count(1)


def fresh(name: str, kind: Kind = "dim", **fields: Any) -> Symbol:
    """A symbol different from every other, whatever its name.

    >>> fresh("k") == fresh("k")
    False
    """
    return Symbol(name, kind, serial=next(_serials), **fields)


class FloorDiv(Interned):
    """`dividend // divisor`, with a positive constant divisor."""

    _names = ("dividend", "divisor")
    __slots__ = _names
    dividend: Term
    divisor: int

    def _order(self) -> str:
        return f"~{self!r}\0{self.dividend.sort_key()}"

    def __repr__(self) -> str:
        return f"{_wrapped(self.dividend)}//{self.divisor}"


class Extremum(Interned):
    """`min(...)` or `max(...)` of two or more terms."""

    _names = ("which", "arguments")
    __slots__ = _names
    which: Literal["min", "max"]
    arguments: tuple[Term, ...]

    def _order(self) -> str:
        return f"~{self!r}\0{' '.join(argument.sort_key() for argument in self.arguments)}"

    def __repr__(self) -> str:
        return f"{self.which}({', '.join(map(str, self.arguments))})"


Atom = Symbol | FloorDiv | Extremum


class Term(Interned):
    """A canonical integer expression: `constant + sum(coefficient * monomial)`.

    >>> T = Term.of(Symbol("T", "bound"))
    >>> (T + 1) - 1 is T, str((2 * T + 3) // 2), str(T % 2)
    (True, 'T + 1', 'T % 2')
    """

    _names = ("constant", "monomials")
    __slots__ = (*_names, "_symbols")
    constant: int
    monomials: tuple[tuple[Monomial, int], ...]
    _symbols: frozenset[Symbol]

    def __new__(cls, constant: int, monomials: tuple[tuple[Monomial, int], ...] = ()) -> Term:
        reference = _POOL.get((cls, (constant, monomials)))
        found = reference() if reference is not None else None
        return super().__new__(cls, constant, monomials) if found is None else found  # type: ignore[return-value]

    @staticmethod
    def of(value: int | Symbol | Term) -> Term:
        """The term of an integer or a symbol; a term is returned as it is."""
        if isinstance(value, Term):
            return value
        if isinstance(value, Symbol):
            return value.term
        return Term(int(value))

    @property
    def is_constant(self) -> bool:
        return not self.monomials

    @property
    def is_never_zero(self) -> bool:
        """Whether the term is surely not zero: its constant is no multiple of what divides all the rest.

        >>> t = Term.of(Symbol("t", "dim"))
        >>> (t % 2 - (t + 1) % 2).is_never_zero, (t % 2 - (t + 2) % 3).is_never_zero
        (True, False)
        """
        divisor = reduce(gcd, (c for _, c in self.monomials), 0)
        return self.constant % divisor != 0 if divisor else self.constant != 0

    @property
    def is_affine(self) -> bool:
        """Whether the term is quasi-affine: no products of symbols anywhere."""
        return all(
            len(monomial) == 1 and all(part.is_affine for part in _parts(monomial[0])) for monomial, _ in self.monomials
        )

    @property
    def symbols(self) -> frozenset[Symbol]:
        """Every symbol that occurs."""
        try:
            return self._symbols
        except AttributeError:
            found: set[Symbol] = set()
            for monomial, _ in self.monomials:
                for atom in monomial:
                    if isinstance(atom, Symbol):
                        found.add(atom)
                    else:
                        found.update(*(part.symbols for part in _parts(atom)))
            self._symbols = frozenset(found)
            return self._symbols

    def coefficient(self, symbol: Symbol) -> int:
        """The factor of the linear monomial of `symbol`."""
        return dict(self.monomials).get((symbol,), 0)

    def linear_in(self, symbol: Symbol) -> bool:
        """Whether `symbol` occurs only as a linear monomial."""
        return all(monomial == (symbol,) or symbol not in _monomial_symbols(monomial) for monomial, _ in self.monomials)

    def __add__(self, other: int | Term) -> Term:
        if not isinstance(other, Term):
            return Term(self.constant + int(other), self.monomials) if other else self
        if not other.monomials:
            return Term(self.constant + other.constant, self.monomials) if other.constant else self
        if not self.monomials:
            return Term(self.constant + other.constant, other.monomials)
        return _sum(self.constant + other.constant, self.monomials + other.monomials)

    __radd__ = __add__

    def __neg__(self) -> Term:
        return Term(-self.constant, tuple([(monomial, -c) for monomial, c in self.monomials]))

    def __sub__(self, other: int | Term) -> Term:
        if not isinstance(other, Term):
            return Term(self.constant - int(other), self.monomials) if other else self
        if not other.monomials:
            return Term(self.constant - other.constant, self.monomials) if other.constant else self
        if self.monomials == other.monomials:
            return Term(self.constant - other.constant)
        less = tuple([(monomial, -c) for monomial, c in other.monomials])
        if not self.monomials:
            return Term(self.constant - other.constant, less)
        return _sum(self.constant - other.constant, self.monomials + less)

    def __rsub__(self, other: int) -> Term:
        return Term.of(other) - self

    def __mul__(self, other: int | Term) -> Term:
        other = Term.of(other)
        if not other.monomials and other.constant:
            factor = other.constant
            return Term(self.constant * factor, tuple([(monomial, c * factor) for monomial, c in self.monomials]))
        left = [((), self.constant), *self.monomials]
        right = [((), other.constant), *other.monomials]
        products = [(_monomial(a + b), m * n) for a, m in left for b, n in right if m * n]
        return _sum(0, products)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Term:
        """Floor division by a positive integer; whole multiples of it are taken out first."""
        if divisor <= 0:
            raise ValueError("an index is divided by positive integers only")
        whole = _sum(self.constant // divisor, [(m, c // divisor) for m, c in self.monomials])
        rest = _sum(self.constant % divisor, [(m, c % divisor) for m, c in self.monomials])
        if rest.is_constant:
            return whole
        common = reduce(gcd, (c for _, c in rest.monomials), divisor)
        divided = _sum(rest.constant // common, [(m, c // common) for m, c in rest.monomials])
        return (
            whole + Term(0, (((FloorDiv(divided, divisor // common),), 1),)) if divisor > common else (whole + divided)
        )

    def __mod__(self, divisor: int) -> Term:
        return self - (self // divisor) * divisor

    def substitute(self, mapping: Mapping[Symbol, Term]) -> Term:
        """The term with symbols replaced, all at once."""
        if not mapping or self.symbols.isdisjoint(mapping):
            return self
        if len(self.monomials) == 1 and self.monomials[0][1] == 1 and len(self.monomials[0][0]) == 1:
            return _substituted(self.monomials[0][0][0], mapping) + self.constant  # a step, moved or not
        total = self.constant
        monomials: list[tuple[Monomial, int]] = []
        for monomial, coefficient in self.monomials:
            if len(monomial) == 1 and monomial[0] not in mapping and isinstance(monomial[0], Symbol):
                monomials.append((monomial, coefficient))
                continue
            product = _substituted(monomial[0], mapping)
            for atom in monomial[1:]:
                product = product * _substituted(atom, mapping)
            total += product.constant * coefficient
            if coefficient == 1:
                monomials += product.monomials
            else:
                monomials += [(m, c * coefficient) for m, c in product.monomials]
        return _sum(total, monomials)

    def evaluate(self, lookup: Callable[[Symbol], int]) -> int:
        """The integer this term is, given the value of each symbol."""
        total = self.constant
        for monomial, coefficient in self.monomials:
            for atom in monomial:
                coefficient *= _evaluated(atom, lookup)
            total += coefficient
        return total

    def __int__(self) -> int:
        if self.monomials:
            raise ValueError(f"{self} is not a constant")
        return self.constant

    def __str__(self) -> str:
        return _pretty(self)

    def __repr__(self) -> str:
        return f"Term({self})"

    def _order(self) -> str:
        """What orders terms: the text, then the serials of its symbols, which the text does not show."""
        return f"{self}\0{' '.join(atom.sort_key() for monomial, _ in self.monomials for atom in monomial)}"


ZERO, ONE = Term(0), Term(1)


def minimum(*terms: Term) -> Term:
    """The least of some terms."""
    return _extremum("min", terms)


def maximum(*terms: Term) -> Term:
    """The greatest of some terms."""
    return _extremum("max", terms)


def product(terms: Iterable[Term]) -> Term:
    """The product of some terms: the number of elements of a shape.

    >>> str(product([Term(2), Term.of(Symbol("T", "bound"))]))
    '2*T'
    """
    return reduce(lambda a, b: a * b, terms, ONE)


def nested(term: Term) -> Iterator[Term]:
    """A term, and the terms inside its quotients, minima and maxima.

    >>> t = Term.of(Symbol("t", "dim"))
    >>> [str(inner) for inner in nested((t + 1) // 2 + 1)]
    ['(t + 1)//2 + 1', 't + 1']
    """
    yield term
    for monomial, _ in term.monomials:
        for atom in monomial:
            if isinstance(atom, FloorDiv):
                yield from nested(atom.dividend)
            elif isinstance(atom, Extremum):
                for argument in atom.arguments:
                    yield from nested(argument)


def dims_of(term: Term) -> frozenset[Symbol]:
    """The dims a term varies along: those that occur, and those its ragged bounds depend on."""
    found: set[Symbol] = set()
    for symbol in term.symbols:
        if symbol.kind == "dim":
            found.add(symbol)
            found.update(symbol.bound.over if symbol.bound else ())
        found.update(symbol.over)
    return frozenset(found)


def ordered(symbols: Iterable[Symbol]) -> tuple[Symbol, ...]:
    """Symbols in a fixed order: bounds and sizes by name, then dims by name."""
    return tuple(sorted(symbols, key=lambda s: (s.kind == "dim", s.sort_key())))


def _monomial(atoms: Iterable[Atom]) -> Monomial:
    return tuple(sorted(atoms, key=lambda atom: atom.sort_key()))


def _monomial_symbols(monomial: Monomial) -> frozenset[Symbol]:
    return Term(0, ((monomial, 1),)).symbols


def _sum(constant: int, monomials: Iterable[tuple[Monomial, int]]) -> Term:
    totals: dict[Monomial, int] = {}
    for monomial, coefficient in monomials:
        totals[monomial] = totals.get(monomial, 0) + coefficient
    constant += totals.pop((), 0)
    kept = [(monomial, c) for monomial, c in totals.items() if c]
    if len(kept) > 1:
        kept.sort(key=_order_of)
    return Term(constant, tuple(kept))


def _order_of(entry: tuple[Monomial, int]) -> list[str]:
    return [atom.sort_key() for atom in entry[0]]


def _extremum(which: Literal["min", "max"], terms: Iterable[Term]) -> Term:
    flat: list[Term] = []
    for term in terms:
        inner = term.monomials[0][0] if term.constant == 0 and len(term.monomials) == 1 else ()
        nested = inner[0] if len(inner) == 1 and term.monomials[0][1] == 1 else None
        if isinstance(nested, Extremum) and nested.which == which:
            flat.extend(nested.arguments)
        else:
            flat.append(term)
    # Of terms that differ by a constant only one can win.
    best: dict[tuple[tuple[Monomial, int], ...], int] = {}
    choose = min if which == "min" else max
    for term in flat:
        known = best.get(term.monomials, term.constant)
        best[term.monomials] = choose(known, term.constant)
    kept = sorted((Term(c, monomials) for monomials, c in best.items()), key=Term.sort_key)
    if len(kept) == 1:
        return kept[0]
    return Term(0, (((Extremum(which, tuple(kept)),), 1),))


def _parts(atom: Atom) -> tuple[Term, ...]:
    if isinstance(atom, FloorDiv):
        return (atom.dividend,)
    return atom.arguments if isinstance(atom, Extremum) else ()


def _substituted(atom: Atom, mapping: Mapping[Symbol, Term]) -> Term:
    if isinstance(atom, Symbol):
        return mapping.get(atom, atom.term)
    if isinstance(atom, FloorDiv):
        return atom.dividend.substitute(mapping) // atom.divisor
    return _extremum(atom.which, [argument.substitute(mapping) for argument in atom.arguments])


def _evaluated(atom: Atom, lookup: Callable[[Symbol], int]) -> int:
    if isinstance(atom, Symbol):
        return lookup(atom)
    if isinstance(atom, FloorDiv):
        return atom.dividend.evaluate(lookup) // atom.divisor
    choose = min if atom.which == "min" else max
    return choose(argument.evaluate(lookup) for argument in atom.arguments)


def _wrapped(term: Term) -> str:
    text = str(term)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def _pretty(term: Term) -> str:
    """`2*t - 1`, with `a - k*(a//k)` shown as `a % k` where that is shorter."""
    for monomial, coefficient in term.monomials:
        if len(monomial) == 1 and isinstance(monomial[0], FloorDiv):
            division = monomial[0]
            times, left_over = divmod(-coefficient, division.divisor)
            if left_over == 0:
                rest = term - (division.dividend % division.divisor) * times
                if len(rest.monomials) < len(term.monomials) - (rest.constant != 0):
                    shown = f"{_wrapped(division.dividend)} % {division.divisor}"
                    shown = shown if times == 1 else f"{times}*({shown})"
                    if rest is ZERO:
                        return shown
                    shown = f"({shown})" if times == 1 else shown
                    if rest.is_constant:
                        return f"{shown} {'-' if rest.constant < 0 else '+'} {abs(rest.constant)}"
                    return f"{rest} + {shown}" if times > 0 else f"{shown} + {rest}"
    pieces: list[str] = []
    for monomial, coefficient in sorted(term.monomials, key=lambda entry: entry[1] < 0):
        name = "*".join(
            f"({atom})" if len(monomial) > 1 and isinstance(atom, FloorDiv) else str(atom) for atom in monomial
        )
        size = abs(coefficient)
        if size != 1:
            name = f"{size}*({name})" if isinstance(monomial[0], FloorDiv) and len(monomial) == 1 else f"{size}*{name}"
        sign = "-" if coefficient < 0 else "+"
        if sign == "-" and not pieces:
            # `-a//2` would mean (-a)//2.
            name = f"({name})" if size == 1 and len(monomial) == 1 and isinstance(monomial[0], FloorDiv) else name
        pieces.append(f" {sign} {name}" if pieces else (f"-{name}" if sign == "-" else name))
    if term.constant or not pieces:
        sign = "-" if term.constant < 0 else "+"
        pieces.append(f" {sign} {abs(term.constant)}" if pieces else str(term.constant))
    return "".join(pieces)
