"""What the compiler knows of an operation: one record each, and nothing else knows an operation by name.

A record has a type rule, a NumPy implementation and a *signature*: for each axis of each operand and of the result,
which axis label it carries, and for each label its role. From the roles follow vectorising (a parallel label can
be added or split), tiling (a reduce label is split and combined by its monoid), masking (with the monoid's
identity) and cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.ir.types import Array, TensorType

Attribute = int | float | str | bool | None | Term | Condition | np.dtype | Array | tuple["Attribute", ...]
Attributes = Mapping[str, Any]


@dataclass(frozen=True)
class Role:
    """What an operation does along an axis label.

    *parallel*: each position is computed alone. *reduce*: positions are combined by a monoid, in any grouping.
    *scan*: position k depends on the positions up to k. *opaque*: anything else.
    """

    kind: Literal["parallel", "reduce", "scan", "opaque"]
    monoid: str | None = None


PARALLEL, OPAQUE = Role("parallel"), Role("opaque")

Labels = tuple[int | None, ...]
"""The label of each axis; None marks an axis of length one that is broadcast."""


@dataclass(frozen=True)
class Signature:
    """Axis labels of the operands and the result, and the role of each label (labels index `roles`)."""

    operands: tuple[Labels, ...]
    result: Labels
    roles: tuple[Role, ...]


@dataclass(frozen=True)
class Op:
    """One primitive operation.

    `type_rule(operand_types, attributes, given)` returns the type of the result or raises a ShapeError or
    DTypeError; `given` is what is known of the symbols, for proving symbolic lengths equal.
    `numpy(*arrays, **attributes)` computes it; the attributes it gets have integers in place of terms.
    `signature(operand_types, attributes)` tells the role of every axis.
    """

    name: str
    type_rule: Callable[[tuple[TensorType, ...], Attributes, Condition], TensorType]
    numpy: Callable[..., np.ndarray]
    signature: Callable[[tuple[TensorType, ...], Attributes], Signature]


def attribute_terms(value: Any) -> list[Term | Condition]:
    """Every term and condition inside an attribute."""
    if isinstance(value, (Term, Condition)):
        return [value]
    if isinstance(value, tuple):
        return [term for part in value for term in attribute_terms(part)]
    return []


def map_attribute(value: Any, change: Callable[[Any], Any]) -> Any:
    """An attribute with `change` applied to each term and condition inside it."""
    if isinstance(value, (Term, Condition)):
        return change(value)
    if isinstance(value, tuple):
        return tuple(map_attribute(part, change) for part in value)
    return value


def concrete(attributes: Attributes, lookup: Callable[[Symbol], int]) -> dict[str, Any]:
    """Attributes with every term replaced by its value and every literal by its array."""
    evaluated = {k: map_attribute(v, lambda term: term.evaluate(lookup)) for k, v in attributes.items()}
    return {k: v.value if isinstance(v, Array) else v for k, v in evaluated.items()}
