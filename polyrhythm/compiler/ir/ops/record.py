"""What the compiler knows of an operation: one record each.

A record has a type rule, a NumPy implementation and a *signature*: for each axis of each operand and of the result,
which axis label it carries, and for each label its role. From the roles follow vectorising (a parallel label can
be added or split), tiling (a reduce label is split and combined by its monoid), masking (with the monoid's
identity) and cost. The *derivative* says what the gradients of the operands are. Flags say what passes need to know:
whether a value may be shared, seen through, made where it is read, or comes from outside. Passes ask for these
properties; they compare a name only to recognise one operation that they rewrite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.ir.types import Array, TensorType
from polyrhythm.errors import PolyrhythmError

if TYPE_CHECKING:
    from polyrhythm.compiler.ir.values import Step, Value

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
class Claim:
    """What must hold wherever an operation is applied, and the error where it may not."""

    condition: Condition
    error: type[PolyrhythmError]
    what: str
    fix: str


Gradients = Sequence["Value | None"]
"""The gradient of each operand; None is zero."""

Vjp = Callable[["Step"], Gradients]
"""A derivative: from an application of an operation, with the gradient of its result, to those of its operands."""


def flat(step: Step) -> Gradients:
    """Constant between jumps: the gradient is zero."""
    return [None for _ in step.definition.operands]


def through(step: Step) -> Gradients:
    """The gradient of a result that is the operand itself."""
    return [step.g]


@dataclass(frozen=True)
class Op:
    """One primitive operation.

    `type_rule(operand_types, attributes, given)` returns the type of the result or raises a ShapeError or
    DTypeError; `given` is what is known of the symbols, for proving symbolic lengths equal.
    `numpy(*arrays, **attributes)` computes it; the attributes it gets have integers in place of terms.
    `signature(operand_types, attributes)` tells the role of every axis. `vjp(step)` is the derivative; without one a
    gradient through the operation is refused. `claims(operand_types, attributes)` are what has to be proved of it.

    *external*: not computed by an array library; its value comes from a caller, or from what the gradient passes put
    in its place. *transient*: gone once gradients are worked out. *sited*: not a function of its operands alone, or
    held apart on purpose, so that no two applications are the same and none is seen through. *free*: made of nothing
    wherever it is read, never stored. *inlined*: made of its operands wherever it is read at single steps, so that
    they are stored and the result is not. *repeats*: the operand itself, repeated where the result is larger. *view*:
    the same elements in the same memory. *heavy*: worth keeping rather than computing twice. *elementwise*: each
    element of the result follows from those at the same place. *identity*: each element is one of the operand, in
    another dtype at most. *calls*: it calls a function that the compiler knows nothing of but its types. *chooses*: it
    reads the first of two operands where its attribute `condition` holds, and the second elsewhere. *linear*: in each
    operand, so that of zeros it makes zeros.
    """

    name: str
    type_rule: Callable[[tuple[TensorType, ...], Attributes, Condition], TensorType]
    numpy: Callable[..., np.ndarray]
    signature: Callable[[tuple[TensorType, ...], Attributes], Signature]
    vjp: Vjp | None = None
    claims: Callable[[tuple[TensorType, ...], Attributes], Iterator[Claim]] | None = None
    external: bool = False
    transient: bool = False
    sited: bool = False
    free: bool = False
    inlined: bool = False
    repeats: bool = False
    view: bool = False
    heavy: bool = False
    elementwise: bool = False
    identity: bool = False
    calls: bool = False
    chooses: bool = False
    linear: bool = False

    @property
    def cheap(self) -> bool:
        """Whether nothing is gained by sharing or moving an application, or it may not be."""
        return self.sited or self.free or self.repeats

    @property
    def fused(self) -> bool:
        """Whether XLA computes an application together with what reads it."""
        return self.elementwise or self.repeats or self.free or self.name == "reshape"


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


def map_attributes(attributes: Attributes, change: Callable[[Any], Any]) -> dict[str, Any]:
    """Attributes with `change` applied to each term and condition inside them."""
    return {name: map_attribute(value, change) for name, value in attributes.items()}


def concrete(attributes: Attributes, lookup: Callable[[Symbol], int]) -> dict[str, Any]:
    """Attributes with every term replaced by its value and every literal by its array."""
    evaluated = map_attributes(attributes, lambda term: term.evaluate(lookup))
    return {k: v.value if isinstance(v, Array) else v for k, v in evaluated.items()}
