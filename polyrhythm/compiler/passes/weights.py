"""Weights whose quotient from one reader to the next is the same for all elements: powers of the distance.

In `sum(r[t + k] * gamma ** k)` the element at step u has the weight `gamma ** (u - t)`: from the reader at t + 1 to the
reader at t every weight is multiplied by gamma. Found for products of such factors, `g ** e` and `exp(e)` with an
exponent e that is linear in the steps (`exp(-k / tau)`, `lam ** (2 * k + 1)`), each free to vary along other dims.
Exact but for rounding, and better than the powers themselves, which are rounded where they are large. Where the base
is zero, `0 ** 0` is one, as it is at the first element.

In `exp(x[u] - m[t])` with m the greatest of the same elements so far, as in a softmax, every weight is multiplied by
`exp(m[t - 1] - m[t])`, which is at most one: online softmax (Milakov and Gimelshein). Infinite maxima must count as a
number, as in `pr.softmax` and `pr.logsumexp`; a sum of zeros then stays zero whatever the factor. In `x[u] == m[t]`,
which says where the greatest is, it is multiplied by `m[t - 1] == m[t]`: a new maximum has no equal before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from polyrhythm.compiler.ir.graph import Access
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.ir.types import Array, Shape
from polyrhythm.compiler.passes.elements import Element, Made, renamed, symbols_of, type_of, walk
from polyrhythm.compiler.passes.rewriting import Nodes
from polyrhythm.errors import ShapeError

SHAPING = frozenset({"broadcast", "reshape"})


@dataclass(frozen=True)
class Peak:
    """A running maximum or minimum: of which elements, from where on, and which way."""

    element: Element
    monoid: str
    begin: Term
    reverse: bool
    inclusive: bool


@dataclass(frozen=True)
class Weights:
    """Elements whose weights change with a symbol; `fixed` numbers the elements, which begin at `begin`."""

    nodes: Nodes
    symbol: Symbol
    fixed: Symbol
    dtype: np.dtype
    begin: Term | None = None
    peaks: Mapping[str, Peak] = field(default_factory=dict)  # running maxima and minima by name

    def quotient(self, element: Element, by: int) -> Element | None:
        """The element divided by itself with the symbol moved by one step, which depends on neither symbol.

        None where that differs from element to element, or is not known.
        """
        if self.symbol not in symbols_of(element):
            return number(1, self.dtype)
        if not isinstance(element, Made):
            return None
        if element.op in ("mul", "div"):
            left, right = (self.quotient(operand, by) for operand in element.operands)
            if left is None or right is None or _is_one(right):
                return None if right is None else left
            return _combined(element.op, left, right)
        if element.op == "einsum":
            return self._contracted(element, by)
        if element.op == "neg":
            return self.quotient(element.operands[0], by)
        if element.op in SHAPING:
            inner = self.quotient(element.operands[0], by)
            return None if inner is None else self._shaped(element, inner)
        if element.op == "cast":
            return self._tied(element, by)
        if element.op not in ("pow", "exp"):
            return None
        if element.op == "exp" and (found := self._peaked(element.operands[0], by)) is not None:
            return found
        slope = self._slope(element.operands[-1], self.dtype)
        if slope is None or symbols_of(slope) & {self.symbol, self.fixed}:
            return None
        slope = _negative(slope) if by > 0 else slope  # f(s) / f(s + 1) goes down where f goes up
        if element.op == "exp":
            return Made("exp", (slope,))
        base = element.operands[0]
        if symbols_of(base) & {self.symbol, self.fixed}:
            return None
        return base if _is_one(slope) else Made("pow", (base, slope))

    def _peaked(self, exponent: Element, by: int) -> Element | None:
        """The quotient of exponentials of elements less the greatest of them."""
        if not isinstance(exponent, Made) or exponent.op != "sub":
            return None
        own, peak = exponent.operands
        if not self._is_peak(own, peak, by, "max"):
            return None
        least = Made("exp", (Made("sub", (self._before(peak, by), peak)),))
        return Made("minimum", (least, number(1, self.dtype)))  # beside a maximum that counts as a number

    def _tied(self, element: Made, by: int) -> Element | None:
        """The quotient of comparisons of elements with the greatest of them, as numbers."""
        inner = element.operands[0]
        if not isinstance(inner, Made) or inner.op != "eq":
            return None
        for own, peak in (inner.operands, inner.operands[::-1]):
            if self._is_peak(own, peak, by):
                return Made("cast", (Made("eq", (self._before(peak, by), peak)),), element.attributes)
        return None

    def _before(self, peak: Element, by: int) -> Element:
        """The maximum without the newest element."""
        return renamed(peak, {self.symbol: Term.of(self.symbol) + by})

    def _is_peak(self, own: Element, peak: Element, by: int, monoid: str | None = None) -> bool:
        """Whether one is the greatest of the others, from the same on and up to the symbol; `monoid` None is either."""
        if self.symbol in symbols_of(own) or self.fixed in symbols_of(peak):
            return False
        read = guarded(peak, self.symbol, monoid is not None)
        found = None if read is None else self.peaks.get(read.source)
        if read is None or found is None or read.steps[-1] is not Term.of(self.symbol):
            return False
        alike = found.inclusive and found.reverse == (by > 0) and found.begin == self.begin
        return alike and monoid in (None, found.monoid) and same(found.element, own)

    def _contracted(self, element: Made, by: int) -> Element | None:
        """The quotient of a contraction: of its one operand that changes, if that is a scalar or as the result."""
        words, output = parse_spec(element.attributes["spec"])
        changing = [n for n, operand in enumerate(element.operands) if self.symbol in symbols_of(operand)]
        found = self.quotient(element.operands[changing[0]], by) if len(changing) == 1 else None
        if found is None or self._shape(found) == ():
            return found
        same = self._shape(found) == self._shape(element.operands[changing[0]])
        return found if same and words[changing[0]] == output else None

    def _shape(self, element: Element) -> Shape | None:
        """The shape of an element; None where its lengths cannot be shown to fit without more to go by."""
        try:
            return type_of(self.nodes, element).shape
        except ShapeError:
            return None

    def _shaped(self, element: Made, inner: Element) -> Element | None:
        """A quotient in the shape of an element; a scalar fits as it is."""
        shape = self._shape(inner)
        if shape == ():
            return inner
        same = shape is not None and shape == self._shape(element.operands[0])
        return Made(element.op, (inner,), element.attributes) if same else None

    def _slope(self, element: Element, dtype: np.dtype) -> Element | None:
        """By how much an exponent grows with the symbol, if it is linear in it."""
        if not isinstance(element, Made):
            return None
        if element.op == "index":
            value = Term.of(element.attributes["value"])
            return _signed(value.coefficient(self.symbol), dtype) if value.linear_in(self.symbol) else None
        if element.op == "cast":  # of index values: what is read would have to be cast as well
            inner = self._slope(element.operands[0], dtype)
            return inner if inner is not None and all(isinstance(part, Made) for part in walk(inner)) else None
        if element.op in SHAPING:
            inner = self._slope(element.operands[0], dtype)
            return None if inner is None else self._shaped(element, inner)
        if element.op == "neg":
            inner = self._slope(element.operands[0], dtype)
            return None if inner is None else _negative(inner)
        if element.op not in ("add", "sub", "mul", "div"):
            return None
        varying = [self.symbol in symbols_of(operand) for operand in element.operands]
        inner = None if all(varying) else self._slope(element.operands[varying.index(True)], dtype)
        if inner is None or (element.op == "div" and varying[1]):
            return None
        if element.op in ("add", "sub"):
            return _negative(inner) if element.op == "sub" and varying[1] else inner
        return _combined(element.op, inner, element.operands[varying.index(False)])


def guarded(peak: Element, symbol: Symbol, finite: bool) -> Access | None:
    """What a maximum reads that changes with a symbol; `finite` asks for one that counts as a number where infinite."""
    shaped = plain(peak)
    if finite:
        if not isinstance(shaped, Made) or shaped.op != "select":
            return None
        asked, shaped = plain(shaped.operands[0]), plain(shaped.operands[1])
        if not isinstance(asked, Made) or asked.op != "isfinite" or plain(asked.operands[0]) != shaped:
            return None
    return shaped if isinstance(shaped, Access) and symbol in shaped.symbols else None


def plain(element: Element) -> Element:
    """An element without what only changes its shape."""
    while isinstance(element, Made) and element.op in SHAPING:
        element = element.operands[0]
    return element


def same(one: Element, other: Element) -> bool:
    """Whether two elements are the same, but for their shape."""
    one, other = plain(one), plain(other)
    if isinstance(one, Access) or isinstance(other, Access):
        return one == other
    alike = one.op == other.op and dict(one.attributes) == dict(other.attributes)
    return alike and len(one.operands) == len(other.operands) and all(map(same, one.operands, other.operands))


def _combined(op: str, left: Element, right: Element) -> Element:
    """A product or quotient; a sign is kept outside, so that it can be seen."""
    if isinstance(left, Made) and left.op == "neg":
        return _negative(_combined(op, left.operands[0], right))
    return right if op == "mul" and _is_one(left) else Made(op, (left, right))


def _negative(element: Element) -> Element:
    return element.operands[0] if isinstance(element, Made) and element.op == "neg" else Made("neg", (element,))


def _signed(value: int, dtype: np.dtype) -> Element:
    return number(value, dtype) if value >= 0 else Made("neg", (number(-value, dtype),))


def number(value: int, dtype: np.dtype) -> Made:
    """A constant."""
    return Made("constant", (), {"value": Array(np.array(value).astype(dtype))})


def _is_one(element: Element) -> bool:
    return (
        isinstance(element, Made) and element.op == "constant" and bool((element.attributes["value"].value == 1).all())
    )
