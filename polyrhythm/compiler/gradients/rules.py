"""The derivative of every operation: from the gradient of its result to those of its operands.

A rule gets a `Step`: the gradient `g` of the result, the result `y`, the operands `x`, and the attributes; and returns
one value, or None for zero, per operand. Rules are a table, one line each where one line says it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from polyrhythm.compiler.gradients.rematerialise import Again
from polyrhythm.compiler.gradients.values import Space, Value
from polyrhythm.compiler.ir.graph import Access, Definition, Node
from polyrhythm.compiler.ir.terms import Term


@dataclass(frozen=True)
class Step:
    """One application of an operation, as its rule sees it."""

    space: Space
    node: Node
    definition: Definition
    gradient: str
    wanted: Sequence[bool]
    again: Again

    @cached_property
    def g(self) -> Value:
        """The gradient of the result."""
        return self.space.current(self.gradient)

    @cached_property
    def y(self) -> Value:
        """The result."""
        return self._read(Access(self.node.name, tuple(Term.of(symbol) for symbol in self.node.symbols)))

    @cached_property
    def x(self) -> list[Value]:
        """The operands."""
        return [self._read(access) for access in self.definition.operands]

    def _read(self, access: Access) -> Value:
        return self.space.read(self.again.read(self.node, access))

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.definition.attributes

    def __getitem__(self, key: str) -> Any:
        return self.definition.attributes[key]


Results = Sequence[Value | None]
Rule = Callable[[Step], Results]


def _unary(derivative: Callable[[Step], Value]) -> Rule:
    return lambda s: [derivative(s)]


def _flat(s: Step) -> Results:
    """Constant between jumps: the gradient is zero."""
    return [None for _ in s.x]


def _binary(left: Callable[[Step], Value], right: Callable[[Step], Value]) -> Rule:
    """Two operands that broadcast against each other."""

    def rule(s: Step) -> Results:
        return [
            made(s).summed_to(operand.shape) if wanted else None
            for made, operand, wanted in zip((left, right), s.x, s.wanted, strict=True)
        ]

    return rule


def _pow_exponent(s: Step) -> Value:
    base = s.x[0]
    positive = base.space.apply("lt", base.zeros(), base)
    safe = base.where(positive, 1)
    return (s.g * s.y * safe.apply("log")).where(positive)


def _winner(s: Step, own: int) -> Value:
    """The greater (or lesser) operand takes the gradient; equal ones share it."""
    mine, other = s.x[own], s.x[1 - own]
    wins = other.apply("lt", mine) if s.definition.op == "maximum" else mine.apply("lt", other)
    ties = mine.apply("eq", other)
    return s.g.where(wins) + (s.g * 0.5).where(ties)


def _select(s: Step) -> Results:
    condition, first, second = s.x
    return [
        None,
        s.g.where(condition).summed_to(first.shape) if s.wanted[1] else None,
        s.g.zeros().where(condition, s.g).summed_to(second.shape) if s.wanted[2] else None,
    ]


def _cast(s: Step) -> Results:
    return [s.g.cast(s.x[0].dtype)]


ELEMENTWISE: dict[str, Rule] = {
    "neg": _unary(lambda s: -s.g),
    "exp": _unary(lambda s: s.g * s.y),
    "log": _unary(lambda s: s.g / s.x[0]),
    "log1p": _unary(lambda s: s.g / (s.x[0] + 1)),
    "expm1": _unary(lambda s: s.g * (s.y + 1)),
    "tanh": _unary(lambda s: s.g * (1 - s.y * s.y)),
    "sqrt": _unary(lambda s: s.g * 0.5 / s.y),
    "sin": _unary(lambda s: s.g * s.x[0].apply("cos")),
    "cos": _unary(lambda s: -(s.g * s.x[0].apply("sin"))),
    "abs": _unary(lambda s: s.g * s.x[0].apply("sign")),
    "erf": _unary(lambda s: s.g * (-(s.x[0] * s.x[0])).apply("exp") * (2 / math.sqrt(math.pi))),
    "sign": _flat,
    "floor": _flat,
    "ceil": _flat,
    "round": _flat,
    "isfinite": _flat,
    "cast": _cast,
    "add": _binary(lambda s: s.g, lambda s: s.g),
    "sub": _binary(lambda s: s.g, lambda s: -s.g),
    "mul": _binary(lambda s: s.g * s.x[1], lambda s: s.g * s.x[0]),
    "div": _binary(lambda s: s.g / s.x[1], lambda s: -(s.g * s.y / s.x[1])),
    "floordiv": _flat,
    "mod": _binary(lambda s: s.g, lambda s: -(s.g * s.x[0].apply("floordiv", s.x[1]))),
    "pow": _binary(lambda s: s.g * s.x[1] * s.x[0].apply("pow", s.x[1] - 1), _pow_exponent),
    "maximum": _binary(lambda s: _winner(s, 0), lambda s: _winner(s, 1)),
    "minimum": _binary(lambda s: _winner(s, 0), lambda s: _winner(s, 1)),
    "eq": _flat,
    "ne": _flat,
    "lt": _flat,
    "le": _flat,
    "select": _select,
    "detach": _flat,
    "keep": _unary(lambda s: s.g),
}
