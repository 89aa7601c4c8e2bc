"""The algebraic rules, as a table: what is written on the left equals what is written on the right.

Equal means the same bits (any NaN for any NaN), for every value of the kinds of dtype that a rule names: infinities,
NaN and the sign of zero included. So `x * 0 -> 0` is a rule of integers, and `x + 0.0 -> x` is none of floats, since it
would turn `-0.0 + 0.0`, which is `0.0`, into `-0.0`; adding `-0.0` is harmless. Each rule is checked over all
values of the small dtypes and over the special values of the large ones (`tests/compiler/passes/test_rules.py`).

A capital letter stands for any value; the same letter twice for the same read. `Number` stands for a constant of which
every element is that number, its sign of zero included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from polyrhythm.compiler.ir.dtypes import Kind

INT: tuple[Kind, ...] = ("int",)
FLOAT: tuple[Kind, ...] = ("float",)
BOOL: tuple[Kind, ...] = ("bool",)
NUMBER: tuple[Kind, ...] = ("int", "float")
BITS: tuple[Kind, ...] = ("bool", "int")
ANY: tuple[Kind, ...] = ("bool", "int", "float")


@dataclass(frozen=True)
class Letter:
    """Any value."""

    name: str


@dataclass(frozen=True)
class Number:
    """A constant, the same everywhere."""

    value: bool | int | float


@dataclass(frozen=True)
class Apply:
    """An operation without attributes on patterns."""

    op: str
    operands: tuple[Pattern, ...]


Pattern: TypeAlias = Letter | Number | Apply


@dataclass(frozen=True)
class Rule:
    """`left` may be replaced by `right`, for values of some kinds. Letters of the right occur on the left."""

    name: str
    left: Apply
    right: Pattern
    kinds: tuple[Kind, ...]


def op(name: str, *operands: Pattern) -> Apply:
    """An operation on patterns."""
    return Apply(name, operands)


A, B, C = Letter("A"), Letter("B"), Letter("C")
ZERO, ONE, MINUS = Number(0), Number(1), Number(-1)
NEGATIVE_ZERO = Number(-0.0)
TRUE, FALSE = Number(True), Number(False)


def _either_side(name: str, combine: str, value: Number, right: Pattern, kinds: tuple[Kind, ...]) -> list[Rule]:
    """A rule of an operation that commutes, with the constant on either side."""
    return [
        Rule(name, op(combine, A, value), right, kinds),
        Rule(f"{name}-left", op(combine, value, A), right, kinds),
    ]


RULES: tuple[Rule, ...] = (
    # Neutral and absorbing elements.
    *_either_side("add-zero", "add", ZERO, A, INT),
    *_either_side("add-negative-zero", "add", NEGATIVE_ZERO, A, FLOAT),
    *_either_side("multiply-one", "mul", ONE, A, NUMBER),
    *_either_side("multiply-zero", "mul", ZERO, ZERO, INT),
    *_either_side("multiply-minus-one", "mul", MINUS, op("neg", A), NUMBER),
    Rule("subtract-zero", op("sub", A, ZERO), A, NUMBER),
    Rule("subtract-from-zero", op("sub", ZERO, A), op("neg", A), INT),
    Rule("subtract-from-negative-zero", op("sub", NEGATIVE_ZERO, A), op("neg", A), FLOAT),
    Rule("subtract-itself", op("sub", A, A), ZERO, INT),
    Rule("divide-by-one", op("div", A, ONE), A, FLOAT),
    Rule("divide-by-minus-one", op("div", A, MINUS), op("neg", A), FLOAT),
    Rule("floor-divide-by-one", op("floordiv", A, ONE), A, INT),
    Rule("modulo-one", op("mod", A, ONE), ZERO, INT),
    Rule("power-of-one", op("pow", A, ONE), A, NUMBER),
    # Signs.
    Rule("negate-twice", op("neg", op("neg", A)), A, NUMBER),
    Rule("add-negated", op("add", A, op("neg", B)), op("sub", A, B), NUMBER),
    Rule("add-to-negated", op("add", op("neg", A), B), op("sub", B, A), NUMBER),
    Rule("subtract-negated", op("sub", A, op("neg", B)), op("add", A, B), NUMBER),
    Rule("negate-difference", op("neg", op("sub", A, B)), op("sub", B, A), INT),
    Rule("multiply-negated", op("mul", op("neg", A), op("neg", B)), op("mul", A, B), NUMBER),
    Rule("divide-negated", op("div", op("neg", A), op("neg", B)), op("div", A, B), FLOAT),
    Rule("absolute-of-negated", op("abs", op("neg", A)), op("abs", A), FLOAT),  # not of unsigned integers
    Rule("absolute-twice", op("abs", op("abs", A)), op("abs", A), NUMBER),
    Rule("sign-twice", op("sign", op("sign", A)), op("sign", A), NUMBER),
    Rule("cosine-of-negated", op("cos", op("neg", A)), op("cos", A), FLOAT),
    # Rounding twice.
    *(
        Rule(f"{outer}-of-{inner}", op(outer, op(inner, A)), op(inner, A), FLOAT)
        for outer in ("floor", "ceil", "round")
        for inner in ("floor", "ceil", "round")
    ),
    # The same value twice.
    Rule("maximum-of-itself", op("maximum", A, A), A, ANY),
    Rule("minimum-of-itself", op("minimum", A, A), A, ANY),
    Rule("maximum-absorbs", op("maximum", A, op("minimum", A, B)), A, INT),
    Rule("minimum-absorbs", op("minimum", A, op("maximum", A, B)), A, INT),
    Rule("and-itself", op("and", A, A), A, BITS),
    Rule("or-itself", op("or", A, A), A, BITS),
    Rule("exclusive-or-itself", op("xor", A, A), ZERO, INT),
    Rule("equal-to-itself", op("eq", A, A), TRUE, BITS),
    Rule("unequal-to-itself", op("ne", A, A), FALSE, BITS),
    Rule("less-than-itself", op("lt", A, A), FALSE, ANY),
    Rule("at-most-itself", op("le", A, A), TRUE, BITS),
    # Truth values and bits.
    *_either_side("and-true", "and", TRUE, A, BOOL),
    *_either_side("and-false", "and", FALSE, FALSE, BOOL),
    *_either_side("or-false", "or", FALSE, A, BOOL),
    *_either_side("or-true", "or", TRUE, TRUE, BOOL),
    *_either_side("exclusive-or-false", "xor", FALSE, A, BOOL),
    *_either_side("exclusive-or-true", "xor", TRUE, op("not", A), BOOL),
    *_either_side("and-zero", "and", ZERO, ZERO, INT),
    *_either_side("or-zero", "or", ZERO, A, INT),
    *_either_side("exclusive-or-zero", "xor", ZERO, A, INT),
    Rule("not-twice", op("not", op("not", A)), A, BITS),
    Rule("not-equal", op("not", op("eq", A, B)), op("ne", A, B), ANY),
    Rule("not-unequal", op("not", op("ne", A, B)), op("eq", A, B), ANY),
    Rule("not-less", op("not", op("lt", A, B)), op("le", B, A), BITS),
    Rule("not-at-most", op("not", op("le", A, B)), op("lt", B, A), BITS),
    # Choices.
    Rule("choose-true", op("select", TRUE, A, B), A, ANY),
    Rule("choose-false", op("select", FALSE, A, B), B, ANY),
    Rule("choose-between-equals", op("select", C, A, A), A, ANY),
    Rule("choose-negated", op("select", op("not", C), A, B), op("select", C, B, A), ANY),
    Rule("choose-again", op("select", C, op("select", C, A, B), B), op("select", C, A, B), ANY),
    # Gradients are worked out before any pass, so nothing has to be held back any more.
    Rule("detach", op("detach", A), A, ANY),
)
"""All rules; a name says what is replaced."""
