"""The derivative of every operation, joined from the tables of the families."""

from __future__ import annotations

from polyrhythm.compiler.gradients.custom_vjp import ruled
from polyrhythm.compiler.gradients.rules import ELEMENTWISE, Results, Rule, Step
from polyrhythm.compiler.gradients.rules_opaque import OPAQUE
from polyrhythm.compiler.gradients.rules_structure import STRUCTURE
from polyrhythm.compiler.gradients.rules_windows import WINDOWS
from polyrhythm.errors import GradientError

RULES: dict[str, Rule] = {**ELEMENTWISE, **STRUCTURE, **WINDOWS, **OPAQUE}
"""The rule of every operation of the table that has one."""


def contributions(step: Step) -> Results:
    """The gradient of each operand of a definition, or None."""
    definition = step.definition
    rule = ruled if definition.op == "ruled" else RULES.get(definition.op)
    if rule is None:
        raise GradientError(
            f"the gradient of {definition.op} is not known: it leads through something that is not differentiable",
            fix="keep it out of the loss with pr.detach, or write it with operations that have derivatives",
            at=definition.at,
        )
    return rule(step)
