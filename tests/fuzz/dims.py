"""Which dims an expression has, in order, and their extents: the language's rules, read off the program as data."""

from __future__ import annotations

from typing import Any

from tests.fuzz.program import (
    Apply,
    Array,
    Axes,
    Choose,
    Expr,
    Host,
    Index,
    Let,
    Literal,
    Name,
    Program,
    Read,
    Slice,
    Sym,
    Value,
    Window,
    symbols,
)

Extents = dict[str, list[Index]]
"""For each dim, in order, what limits its number of steps: the least of them counts."""


def dims_of(node: Expr, program: Program) -> list[str]:
    """The dims of an expression, in order of first appearance."""
    return list(extents_of(node, program))


def extents_of(node: Expr, program: Program) -> Extents:
    """The dims of an expression with the extents its operands have."""
    match node:
        case Name(name):
            declared = program.declared(name)
            if isinstance(declared, Let):
                return extents_of(declared.value, program)
            return _merged([{s.dim: [s.extent]} for s in declared.spans], program)
        case Literal() | Array():
            return {}
        case Value(inner):
            return _natural(inner, program)
        case Window(source, dim, _):
            return _read(extents_of(source, program), (Slice(Sym(dim), Sym(dim)),), (dim,), program)
        case Axes(source, _):
            return extents_of(source, program)
        case Read(source, entries, names):
            return _read(extents_of(source, program), entries, names, program)
        case Choose(condition, first, second, _):
            branches = _merged([extents_of(first, program), extents_of(second, program)], program)
            asked = _natural(condition, program)
            return _merged([{d: branches.get(d, asked[d]) for d in asked}, branches], program)
        case Apply(_, args, options):
            inside = [
                _natural(o, program) for o in _flat(options) if not isinstance(o, (int, float, str, bool, type(None)))
            ]
            return _merged([extents_of(a, program) for a in args] + inside, program)
        case Host(_, args, _, _, _):
            return _merged([extents_of(a, program) for a in args], program)
    raise TypeError(node)


def _read(source: Extents, entries: tuple[Any, ...], names: tuple[str, ...] | None, program: Program) -> Extents:
    given = dict(zip(source if names is None else names, entries, strict=False))
    groups: list[Extents] = []
    for dim, extents in source.items():
        entry = given.get(dim, Sym(dim))
        if entry == Sym(dim):
            groups.append({dim: extents})
            continue
        groups.append(_natural(entry, program))
    return _merged(groups, program)


def _natural(node: Any, program: Program) -> Extents:
    """The dims an index mentions, each with its own bound, in the order of their names."""
    names = {d.name for d in program.dims}
    return _merged([{d: [Sym(d.upper())]} for d in sorted(symbols(node) & names)], program)


def _merged(groups: list[Extents], program: Program) -> Extents:
    """The union, in order of first appearance; the dims a ragged length depends on come before it."""
    merged: Extents = {}
    for group in groups:
        for dim, extents in group.items():
            owner = program.dim(dim).extent
            for needed in dims_of(owner, program) if owner is not None else []:
                merged.setdefault(needed, [Sym(needed.upper())])
            known = merged.setdefault(dim, [])
            known += [e for e in extents if e not in known]
    return merged


def _flat(options: tuple[Any, ...]) -> list[Any]:
    return [o for option in options for o in (_flat(option) if isinstance(option, tuple) else [option])]
