"""Mutants of a module: comparisons, arithmetic, constants, conditions and results, each changed at one place.

What only people see is left alone: messages of errors, docstrings, annotations, `__str__` and the like.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}

ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}

SHOWN = ("__str__", "__repr__", "__rich__")
"""Functions that make text for people."""


@dataclass(frozen=True)
class Mutant:
    """One change: of the node with this number, in the order in which the module is walked."""

    module: str
    line: int
    column: int
    kind: str
    before: str
    after: str
    number: int

    @property
    def name(self) -> str:
        """Where it is and what it does, on one line."""
        return f"{self.module}:{self.line}:{self.column} {self.kind}: {self.before} -> {self.after}"


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Every mutant of a module."""
    found = []
    for number, node in enumerate(_nodes(ast.parse(source))):
        changed = mutated(node)
        if changed is not None:
            kind, after = changed
            found.append(Mutant(module, node.lineno, node.col_offset, kind, _short(node), _short(after), number))
    return found


def applied(mutant: Mutant, source: str) -> ast.Module:
    """The module with the change in it; every line keeps its number."""
    tree = ast.parse(source)
    for number, node in enumerate(_nodes(tree)):
        if number == mutant.number:
            changed = mutated(node)
            assert changed is not None
            after = ast.copy_location(changed[1], node)
            node.__class__ = after.__class__
            node.__dict__.clear()
            node.__dict__.update(after.__dict__)
            return ast.fix_missing_locations(tree)
    raise LookupError(f"{mutant.name} is not in the source")


def modules(root: Path, folders: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The modules below some folders of the package, by name, with their sources."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield name, path.read_text(encoding="utf-8")


def mutated(node: ast.AST) -> tuple[str, ast.stmt | ast.expr] | None:
    """What kind of mutant a node has, and the changed node."""
    match node:
        case ast.Compare(ops=[op, *_]):
            new = copy.deepcopy(node)
            new.ops[0] = COMPARISONS[type(op)]()
            return "comparison", new
        case ast.BinOp(op=op) if type(op) in ARITHMETIC and not _is_text(node):
            new_op = copy.deepcopy(node)
            new_op.op = ARITHMETIC[type(op)]()
            return "arithmetic", new_op
        case ast.Constant(value=bool(value)):
            return "constant", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            return "constant", ast.Constant(value + 1)
        case ast.BoolOp(op=op):
            swapped = copy.deepcopy(node)
            swapped.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            return "boolean", swapped
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return "boolean", copy.deepcopy(operand)
        case ast.IfExp(test=test):
            other = copy.deepcopy(node)
            other.test = ast.UnaryOp(ast.Not(), copy.deepcopy(test))
            return "boolean", other
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            return "result", ast.Return(ast.Constant(None))
    return None


def _nodes(tree: ast.Module) -> Iterator[ast.expr | ast.stmt]:
    """The nodes that may be changed, in a fixed order."""
    for child in ast.iter_child_nodes(tree):
        yield from _inside(child)


def _inside(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in SHOWN:
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":  # of zip: the lengths are equal
        return
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    if isinstance(node, (ast.expr, ast.stmt)):
        yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _inside(child)


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides
    )


def _short(node: ast.expr | ast.stmt) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else f"{text[:87]}..."
