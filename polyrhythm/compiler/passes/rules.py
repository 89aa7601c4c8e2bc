"""The algebraic rules, as a table: what is written on the left equals what is written on the right.

Equal means the same bits (any NaN for any NaN), for every value of the kinds of dtype that a rule names: infinities,
NaN and the sign of zero included. So `x * 0 -> 0` is a rule of integers, and `x + 0.0 -> x` is none of floats, since it
would turn `-0.0 + 0.0`, which is `0.0`, into `-0.0`; adding `-0.0` is harmless. Each rule is checked over all
values of the small dtypes and over the special values of the large ones (`tests/compiler/passes/test_rules.py`).

A capital letter stands for any value; the same letter twice for the same read. `Number` stands for a constant of which
every element is that number, its sign of zero included.
"""

from __future__ import annotations

import math
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
LEAST, _NONE = Number(-math.inf), op("eq", A, ZERO)
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
    # Signs.
    Rule("negate-twice", op("neg", op("neg", A)), A, NUMBER),
    Rule("add-negated", op("add", A, op("neg", B)), op("sub", A, B), NUMBER),
    Rule("add-to-negated", op("add", op("neg", A), B), op("sub", B, A), NUMBER),
    Rule("subtract-negated", op("sub", A, op("neg", B)), op("add", A, B), NUMBER),
    # Truth values and bits.
    *_either_side("and-true", "and", TRUE, A, BOOL),
    *_either_side("or-false", "or", FALSE, A, BOOL),
    Rule("not-twice", op("not", op("not", A)), A, BITS),
    Rule("not-equal", op("not", op("eq", A, B)), op("ne", A, B), ANY),
    Rule("not-less", op("not", op("lt", A, B)), op("le", B, A), BITS),
    # Choices.
    Rule("choose-true", op("select", TRUE, A, B), A, ANY),
    Rule("choose-false", op("select", FALSE, A, B), B, ANY),
    Rule("choose-negated", op("select", op("not", C), A, B), op("select", C, B, A), ANY),
    # `logsumexp` keeps the logarithm of nothing from its gradient. With fewer operations XLA computes it in one loop.
    Rule("log-of-nothing", op("select", _NONE, LEAST, op("log", op("select", _NONE, ONE, A))), op("log", A), FLOAT),
    # Gradients are worked out before any pass, so nothing has to be held back any more.
    Rule("detach", op("detach", A), A, ANY),
)
"""All rules; a name says what is replaced."""
