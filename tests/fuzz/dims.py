"""Which dims an expression has, in order, and their extents: the language's rules, read off the program as data."""

from __future__ import annotations

from itertools import pairwise
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
    """The dims of an expression, in order."""
    return list(extents_of(node, program))


def extents_of(node: Expr, program: Program) -> Extents:
    """The dims of an expression with the extents its operands have."""
    match node:
        case Name(name):
            declared = program.declared(name)
            if isinstance(declared, Let):
                return extents_of(declared.value, program)
            return _merged([{s.dim: [s.extent]} for s in declared.spans], program, [s.dim for s in declared.spans])
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
            asked = [{d: e} for d, e in _natural(condition, program).items() if d not in branches]
            return _merged([branches, *asked], program)
        case Apply(_, args, options):
            plain = (int, float, str, bool, type(None))
            natural = [_natural(o, program) for o in _flat(options) if not isinstance(o, plain)]
            inside = [{dim: extents} for group in natural for dim, extents in group.items()]
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
    return _merged(groups, program, list(dict.fromkeys(dim for group in groups for dim in group)))


def _natural(node: Any, program: Program) -> Extents:
    """The dims an index mentions, each with its own bound, in the order of their names."""
    names = {d.name for d in program.dims}
    return _merged([{d: [Sym(d.upper())]} for d in sorted(symbols(node) & names)], program)


def _merged(groups: list[Extents], program: Program, order: list[str] | None = None) -> Extents:
    """The union, in the order that the groups have (or in one given for all), else in that of declaration.

    The dims a ragged length depends on come before it.
    """
    merged: Extents = {}
    pairs: set[tuple[str, str]] = set()
    for chain in [list(group) for group in groups] if order is None else [order]:
        pairs |= set(pairwise(chain))
    for group in groups:
        for dim, extents in group.items():
            owner = program.dim(dim).extent
            for needed in dims_of(owner, program) if owner is not None else []:
                merged.setdefault(needed, [Sym(needed.upper())])
                pairs.add((needed, dim))
            known = merged.setdefault(dim, [])
            known += [e for e in extents if e not in known]
    declared = [d.name for d in program.dims if d.name in merged]
    found: list[str] = []
    for _ in declared:
        left = [d for d in declared if d not in found]
        free = [d for d in left if not any((other, d) in pairs for other in left if other != d)]
        if not free:
            return {d: merged[d] for d in declared}
        found.append(free[0])
    return {d: merged[d] for d in found}


def _flat(options: tuple[Any, ...]) -> list[Any]:
    return [o for option in options for o in (_flat(option) if isinstance(option, tuple) else [option])]
