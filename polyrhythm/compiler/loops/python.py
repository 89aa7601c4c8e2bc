"""Python source of index terms and conditions, for backends that generate Python."""

from __future__ import annotations

from collections.abc import Callable

from polyrhythm.compiler.ir.conditions import Compare, Condition, Junction
from polyrhythm.compiler.ir.terms import Atom, FloorDiv, Symbol, Term

Naming = Callable[[Symbol], str]


def term_source(term: Term, name: Naming) -> str:
    """A Python expression for a term.

    >>> t = Symbol("t", "dim")
    >>> term_source((Term.of(t) * 2 + 1) // 3, lambda symbol: "c0")
    '(2*c0 + 1)//3'
    """
    parts = []
    for monomial, coefficient in term.monomials:
        factors = [_atom_source(atom, name) for atom in monomial]
        if coefficient != 1:
            factors = [f"({factor})" if "//" in factor else factor for factor in factors]
        text = "*".join(factors) if coefficient == 1 else f"{coefficient}*{'*'.join(factors)}"
        parts.append(text)
    if term.constant or not parts:
        parts.append(str(term.constant))
    return " + ".join(parts).replace("+ -", "- ")


def condition_source(condition: Condition, name: Naming) -> str:
    """A Python expression for a condition."""
    if isinstance(condition, Compare):
        return f"{term_source(condition.term, name)} {condition.relation} 0"
    assert isinstance(condition, Junction)
    if not condition.parts:
        return "True" if condition.word == "and" else "False"
    return f" {condition.word} ".join(f"({condition_source(part, name)})" for part in condition.parts)


def _atom_source(atom: Atom, name: Naming) -> str:
    if isinstance(atom, Symbol):
        return name(atom)
    if isinstance(atom, FloorDiv):
        return f"({term_source(atom.dividend, name)})//{atom.divisor}"
    return f"{atom.which}({', '.join(term_source(argument, name) for argument in atom.arguments)})"
