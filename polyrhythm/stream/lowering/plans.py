"""One definition with its operands read: what the rules for operations work on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from polyrhythm.compiler.ir.graph import Definition, Node
from polyrhythm.compiler.ir.ops.record import Signature
from polyrhythm.stream.graph import Stream
from polyrhythm.stream.lowering.problem import Problem, signature_of
from polyrhythm.stream.lowering.values import Load, Operand

if TYPE_CHECKING:
    from polyrhythm.stream.lowering.dealt import Dealing
    from polyrhythm.stream.lowering.routed import Routing

    Space: TypeAlias = Routing | Dealing


@dataclass(frozen=True)
class Plan:
    """One definition with its operands read: and where it works."""

    problem: Problem
    node: Node
    definition: Definition
    operands: tuple[Operand, ...]
    memo: dict[Any, Stream]
    space: Space | None = None
    online: int | None = None

    @property
    def at(self) -> Any:
        return self.definition.at or self.node.at

    @property
    def signature(self) -> Signature:
        return signature_of(self.problem.graph, self.definition)


def name_of(plan: Plan) -> str:
    """A node is called like its operation, and the tensor that it reads from memory."""
    tensors = [operand.tensor.name for operand in plan.operands if isinstance(operand, Load)]
    return " ".join([plan.definition.op, *tensors])
