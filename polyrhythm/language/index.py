"""What a user indexes with: dims, bounds, sizes, expressions of them, and conditions.

`Index` and `Condition` are thin faces of the compiler's terms and conditions. There is one `Index` object per
term, so they can be dict keys although `==` builds a condition.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, overload
from weakref import WeakValueDictionary

import numpy as np

from polyrhythm.compiler.ir import conditions
from polyrhythm.compiler.ir.conditions import Condition as IrCondition
from polyrhythm.compiler.ir.terms import Symbol, Term, fresh, maximum, minimum
from polyrhythm.errors import ConditionValueError, DeclarationError, IndexValueError, NonAffineError


class Index:
    """An integer expression of dims, bounds and sizes.

    >>> t, T = dim("t")
    >>> T - 1 - t
    T - t - 1
    >>> (t + 1) // 2 * 3
    3*((t + 1)//2)
    """

    __slots__ = ("__weakref__", "term")
    _pool: ClassVar[WeakValueDictionary[Term, Index]] = WeakValueDictionary()
    term: Term

    def __new__(cls, term: Term) -> Index:
        found = Index._pool.get(term)
        if found is None:
            found = object.__new__(_class_of(term))
            found.term = term
            Index._pool[term] = found
        return found

    def __hash__(self) -> int:
        return hash(self.term)

    def __repr__(self) -> str:
        return str(self.term)

    def __reduce__(self) -> tuple[Any, ...]:
        return Index, (self.term,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Index:
        return self

    def __add__(self, other: int | Index) -> Index:
        return NotImplemented if _foreign(other) else Index(self.term + term_of(other))

    __radd__ = __add__

    def __sub__(self, other: int | Index) -> Index:
        return NotImplemented if _foreign(other) else Index(self.term - term_of(other))

    def __rsub__(self, other: int | Index) -> Index:
        return NotImplemented if _foreign(other) else Index(term_of(other) - self.term)

    def __neg__(self) -> Index:
        return Index(-self.term)

    def __mul__(self, other: int | Index) -> Index:
        return NotImplemented if _foreign(other) else Index(self.term * term_of(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: int | Index) -> Index:
        return NotImplemented if _foreign(other) else Index(self.term // _divisor(self, other, "//"))

    @overload
    def __mod__(self, other: int) -> Index: ...

    @overload
    def __mod__(self, other: Index) -> Wrapped: ...

    def __mod__(self, other: int | Index) -> Index | Wrapped:
        if isinstance(other, Index):
            return Wrapped(self, other)
        return NotImplemented if _foreign(other) else Index(self.term % _divisor(self, other, "%"))

    def __lt__(self, other: int | Index) -> Condition:
        return NotImplemented if _foreign(other) else Condition(conditions.lt(self.term, term_of(other)))

    def __le__(self, other: int | Index) -> Condition:
        return NotImplemented if _foreign(other) else Condition(conditions.le(self.term, term_of(other)))

    def __gt__(self, other: int | Index) -> Condition:
        return NotImplemented if _foreign(other) else Condition(conditions.gt(self.term, term_of(other)))

    def __ge__(self, other: int | Index) -> Condition:
        return NotImplemented if _foreign(other) else Condition(conditions.ge(self.term, term_of(other)))

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return NotImplemented if _foreign(other) else Condition(conditions.eq(self.term, term_of(other)))

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return NotImplemented if _foreign(other) else Condition(conditions.ne(self.term, term_of(other)))

    def __bool__(self) -> bool:
        raise ConditionValueError(
            f"the index {self} has no truth value",
            fix="its value is known only when the program runs; compare it and use pr.where(condition, a, b)",
        )

    def __index__(self) -> int:
        raise ConditionValueError(
            f"Python needs the value of {self} now, but it is known only when the program runs",
            fix="write the equation for one step of a dim instead of a loop; inside a program its value is "
            f"pr.value({self})",
        )

    __int__ = __float__ = __index__

    def __truediv__(self, other: object) -> Index:
        if _foreign(other):
            return NotImplemented
        raise IndexValueError(
            f"{self} / {other} is not an integer",
            fix=f"write {self} // {other} for an index, or pr.value({self}) / {other} for a number",
        )

    def __rtruediv__(self, other: object) -> Index:
        raise IndexValueError(f"{other} / {self} is not an integer", fix=f"write {other} / pr.value({self})")

    def __rfloordiv__(self, other: object) -> Index:
        return Index(term_of(other) // _divisor(other, self, "//"))

    def __rmod__(self, other: int) -> Wrapped:
        return Wrapped(Index(term_of(other)), self)

    def __pow__(self, other: object) -> Index:
        if _foreign(other):
            return NotImplemented
        raise NonAffineError(
            f"the index {self} ** {other} is not affine", fix=f"compute with the value, pr.value({self}) ** {other}"
        )

    __array_ufunc__ = None  # let NumPy scalars and arrays defer to this class


class _Single(Index):
    """An index that is one symbol."""

    __slots__ = ()

    @property
    def symbol(self) -> Symbol:
        symbol = self.term.monomials[0][0][0]
        assert isinstance(symbol, Symbol)
        return symbol

    @property
    def name(self) -> str:
        return self.symbol.name


class Dim(_Single):
    """A step symbol: `0 <= t < T`. Made by `dim`."""

    __slots__ = ()


class Bound(_Single):
    """The number of steps of a dim, or a free size. Made by `dim` and `size`."""

    __slots__ = ()


class Wrapped:
    """An index modulo the number of steps of a dim: behind the last step comes the first.

    A tensor is read at it along a dim of so many steps, and `pr.value` is its number; nothing else is made of it,
    since it is not affine.

    >>> i, N = dim("i")
    >>> (i + 1) % N
    (i + 1) % I
    """

    __slots__ = ("index", "steps")

    def __init__(self, index: Index, steps: Index) -> None:
        self.index, self.steps = index, steps

    def __repr__(self) -> str:
        return f"({self.index}) % {self.steps}" if " " in str(self.index) else f"{self.index} % {self.steps}"

    def alone(self, *_: object) -> NoReturn:
        """Refuse to be a part of something."""
        raise NonAffineError(
            f"{self} is not affine: only the whole index of a read may be a remainder by a symbol",
            fix=f"read x[{self}], where x has {self.steps} steps along the dim; as a number it is pr.value({self})",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = __mod__ = __floordiv__ = alone
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __bool__ = __index__ = alone
    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None


class Condition:
    """A condition on index expressions; combine with `&`, `|`, `~`.

    >>> t, T = dim("t")
    >>> (t > 0) & ~(t == T - 1)
    Condition(t != T - 1 and t >= 1)
    """

    __slots__ = ("condition",)

    def __init__(self, condition: IrCondition) -> None:
        self.condition = condition

    def __and__(self, other: Condition) -> Condition:
        if not isinstance(other, Condition):
            return NotImplemented
        return Condition(conditions.conjunction(self.condition, other.condition))

    def __or__(self, other: Condition) -> Condition:
        if not isinstance(other, Condition):
            return NotImplemented
        return Condition(conditions.disjunction(self.condition, other.condition))

    def __invert__(self) -> Condition:
        return Condition(conditions.negation(self.condition))

    def __bool__(self) -> bool:
        raise ConditionValueError(
            f"the condition {self.condition} has no truth value",
            fix="combine conditions with & | ~ (not and, or, not, and no chained a < t < b), "
            "and choose values with pr.where(condition, a, b) or y[condition] = ...",
        )

    __array_ufunc__ = None

    def __repr__(self) -> str:
        return f"Condition({self.condition})"


def dim(
    name: str, *, min: int = 0, max: int | Index | None = None, extent: Any = None, bound: Bound | None = None
) -> tuple[Dim, Bound]:
    """A step symbol and its bound, `0 <= t < T`.

    The bound is called like the dim in capitals. It is known when the program runs: read off the inputs, given
    as `bounds={T: 9}`, or ended early by `until`. `min` and `max` promise that it is never below or above a value,
    which proofs use and every call is held to. With `extent`, an integer tensor such as `lengths[b]`, the dim is
    ragged: its bound differs along the dims of that tensor. With `bound=T` it is a second dim over the bound of
    another, for pairs of steps.

    >>> t, T = dim("t", min=1)
    >>> k, _ = dim("k", bound=T)
    >>> t, k, T
    (t, k, T)
    """
    if not isinstance(name, str):
        raise DeclarationError(f"the name of a dim is a string, not {name!r}", fix='write t, T = pr.dim("t")')
    if bound is not None:
        if min or max is not None or extent is not None:
            raise DeclarationError("a second dim over a bound has the limits of that bound", fix="give bound= alone")
        if not isinstance(bound, Bound) or bound.symbol.kind != "bound":
            raise DeclarationError(
                f"bound= takes the bound of another dim, not {bound!r}", fix='write k, _ = pr.dim("k", bound=T)'
            )
        return Index(Term.of(fresh(name, "dim", bound=bound.symbol))), bound  # type: ignore[return-value]
    over: tuple[Symbol, ...] = ()
    if extent is not None:
        if not hasattr(extent, "as_length"):
            raise DeclarationError(
                f"the extent of a ragged dim is a tensor of lengths, not {extent!r}",
                fix="leave it out and give the bound at the call, bounds={T: 9}; other extents belong to a tensor, "
                "as in dims=((t, T + 1),)",
            )
        over = extent.symbols
    called = name.upper() if name.upper() != name else f"{name}_bound"
    made = fresh(called, "bound", over=over, **_limits(min, max))
    if extent is not None:
        extent_of[made] = extent.as_length()
    step = fresh(name, "dim", bound=made)
    return Index(Term.of(step)), Index(Term.of(made))  # type: ignore[return-value]


def size(name: str, *, min: int = 0, max: int | Index | None = None) -> Bound:
    """A free run-time integer, not negative; for shapes, and for marks such as the length of a prompt.

    `min` and `max` promise that it is never below or above a value.

    >>> P = size("P", min=1)
    >>> P + 1
    P + 1
    """
    return Index(Term.of(fresh(name, "size", **_limits(min, max))))  # type: ignore[return-value]


def _limits(least: object, most: int | Index | None) -> dict[str, Any]:
    """What a declaration promises of a bound or a size."""
    if isinstance(least, bool) or not isinstance(least, (int, np.integer)) or least < 0:
        raise DeclarationError(f"min= is an integer that is not negative, not {least!r}", fix="write min=1")
    limit = None if most is None else term_of(most)
    if limit is not None and limit.is_constant and limit.constant < least:
        raise DeclarationError(f"min={least} is above max={most}", fix="let min be at most max")
    return {"min": int(least), "max": limit}


def index_min(*values: int | Index) -> Index | int:
    """The least of some index expressions.

    >>> t, T = dim("t")
    >>> index_min(t + 4, T)
    min(T, t + 4)
    """
    _no_tensors(values, "pr.min", "pr.minimum(a, b) elementwise, or x.min(axis) as a reduction")
    return index_of(minimum(*map(term_of, values)))


def index_max(*values: int | Index) -> Index | int:
    """The greatest of some index expressions.

    >>> t, T = dim("t")
    >>> index_max(0, t - 3)
    max(0, t - 3)
    """
    _no_tensors(values, "pr.max", "pr.maximum(a, b) elementwise, or x.max(axis) as a reduction")
    return index_of(maximum(*map(term_of, values)))


extent_of: dict[Symbol, Any] = {}
"""The tensor that is the value of each ragged bound. Filled by `dim`, read by the tracer."""


def term_of(value: object) -> Term:
    """The compiler's term of an integer or an index expression."""
    if isinstance(value, Index):
        return value.term
    if isinstance(value, Wrapped):
        value.alone()
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return Term(int(value))
    raise IndexValueError(
        "an index must be an integer or an index expression, not "
        + ("a tensor" if hasattr(value, "as_length") else f"{type(value).__name__} {value!r}"),
        fix="use integers and dims here; for arithmetic on values write pr.value(t) first",
    )


def index_of(term: Term) -> int | Index:
    """A term as the user sees it: a plain int where it is constant."""
    return term.constant if term.is_constant else Index(term)


def affine(value: object) -> Term:
    """The term of an index, which must be quasi-affine."""
    term = term_of(value)
    if not term.is_affine:
        raise NonAffineError(
            f"the index {term} is not affine: it multiplies symbols with each other",
            fix="index with sums of dims and bounds times integers; make the product a dim or a pr.size of its own",
        )
    return term


def _class_of(term: Term) -> type[Index]:
    if term.constant == 0 and len(term.monomials) == 1:
        monomial, coefficient = term.monomials[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return Dim if monomial[0].kind == "dim" else Bound
    return Index


def _foreign(value: object) -> bool:
    """Whether an operand is neither an integer nor an index, so that it should handle the operator itself."""
    if isinstance(value, float):
        raise IndexValueError(
            f"index expressions are integers; {value} is not",
            fix="write pr.value(t) to compute with the number of a step",
        )
    return not isinstance(value, (int, np.integer, Index)) or isinstance(value, bool)


def _divisor(dividend: object, value: object, operator: str) -> int:
    divisor = term_of(value)
    if not divisor.is_constant or divisor.constant <= 0:
        raise NonAffineError(
            f"{dividend} {operator} {divisor}: an index is divided by positive integers only",
            fix="divide by a positive Python integer",
        )
    return divisor.constant


def _no_tensors(values: tuple[object, ...], name: str, instead: str) -> None:
    for value in values:
        if not isinstance(value, (int, np.integer, Index)):
            what = f"{type(value).__name__} {value!r}" if isinstance(value, float) else "tensors"
            raise IndexValueError(f"{name} is for index expressions, not {what}", fix=f"use {instead}")
