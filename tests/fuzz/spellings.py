"""The same program in other words: what is accepted and what comes out must not depend on how it was written.

Operands change places, comparisons are turned, a choice is made by the opposite condition, steps are named.
"""

from __future__ import annotations

from typing import Any

from tests.fuzz.check import EVALUATORS, Mismatch, check
from tests.fuzz.dims import dims_of
from tests.fuzz.program import Apply, Choose, Compare, Expr, Logic, Not, Program, Read, rewrite
from tests.fuzz.script import definition

TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}
COMMUTATIVE = ("+", "*", "maximum", "minimum", "&", "|", "^", "==", "!=")


def respelled(program: Program) -> Program:
    """The program in other words."""

    def agree(one: Expr, other: Expr) -> bool:
        """Whether the dims of operands stay in their order when they change places."""
        a, b = dims_of(one, program), dims_of(other, program)
        return [d for d in a if d in b] == [d for d in b if d in a] and (set(a) <= set(b) or set(b) <= set(a))

    def other(node: Any) -> Any:
        match node:
            case Compare(op, left, right):
                return Compare(TURNED[op], right, left)
            case Logic(op, left, right):
                return Logic(op, right, left)
            case Choose(condition, first, second, shape):
                return Choose(Not(condition), second, first, shape)
            case Apply(op, (left, right), options) if op in COMMUTATIVE and agree(left, right):
                return Apply(op, (right, left), options)
            case Apply("einsum", (left, right), (spec, *rest)) if agree(left, right):
                words, output = spec.split("->")
                one, two = words.split(",")
                return Apply("einsum", (right, left), (f"{two},{one}->{output}", *rest))
            case Read(source, entries, None):
                return Read(source, entries, tuple(dims_of(source, program)[: len(entries)]))
        return node

    return rewrite(program, other)


def check_spellings(program: Program) -> None:
    """Both spellings are accepted or neither, and give what the brute force gives; raises Mismatch."""
    changed = respelled(program)
    shown = check(program, EVALUATORS[:1])
    if check(changed) != shown:
        what = "one of two spellings is shown to make progress, the other is not"
        raise Mismatch(program, what, f"# {what}\n{definition(program)}\n# and\n{definition(changed)}")
