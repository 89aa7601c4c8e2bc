"""Which features of the language a program uses: read off the program itself, so that counts cannot lie."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.fuzz.dims import dims_of
from tests.fuzz.program import (
    Apply,
    Arith,
    Axes,
    Choose,
    Entry,
    Expr,
    Extremum,
    Host,
    Index,
    Int,
    Name,
    Program,
    Read,
    RecurrentDecl,
    Slice,
    Sym,
    Value,
    Window,
    symbols,
    walk,
)

REDUCTIONS = ("sum", "max", "min", "prod", "mean", "any", "all", "argmax", "argmin", "logsumexp")
MATRIX = ("@", "einsum")
AXIS = (
    "cumsum",
    "cumprod",
    "cummax",
    "sort",
    "softmax",
    "concat",
    "stack",
    "pad",
    "reshape",
    "transpose",
    "flip",
    "take",
    "one_hot",
    "spectrum",
    "put",
    "ridge",
)


def features(program: Program) -> set[str]:
    """The names of the features that occur."""
    found = {f"{len(program.dims)} dims"}
    found |= {f"bound {size}" for _, size in program.bounds}
    for expr in _expressions(program):
        for node in walk(expr):
            found |= _of_node(node, program)
    for recurrent in program.recurrents:
        found |= _of_recurrent(recurrent, program)
    if _mutual(program):
        found.add("mutual recursion")
    if any(d.extent is not None for d in program.dims):
        found.add("ragged extent")
    if sum(dim.extent is not None for dim in program.dims) > 1:
        found.add("two lengths")
    if any(dim.min for dim in program.dims):
        found.add("least length")
    if program.until:
        found.add("until")
        names = {node.name for _, done in program.until for node in walk(done) if isinstance(node, Name)}
        if any(r.name in names and r.dtype == "bool" for r in program.recurrents):
            found.add("until by a recurrence")
    if program.sizes:
        found.add("steps given")
    return found


def _expressions(program: Program) -> list[Expr]:
    pieces = [piece.value for r in program.recurrents for piece in r.pieces]
    return [
        *pieces,
        *(let.value for let in program.lets),
        *(e for _, e in program.outputs),
        *(e for _, e in program.until),
    ]


def _of_node(node: Any, program: Program) -> set[str]:
    match node:
        case Read(source, entries, names):
            dims = dims_of(source, program)
            found = {"read by name"} if names is not None else set()
            if isinstance(source, Read):
                found.add("chained views")
            elif not isinstance(source, Name):
                found.add("indexed expression")
            given = zip(dims if names is None else names, entries, strict=False)
            found |= {kind for dim, entry in given for kind in _of_entry(dim, entry)}
            if sum(isinstance(e, Slice) for e in entries) > 1:
                found.add("two slices")
            return found
        case Window():
            return {"window"}
        case Choose():
            return {"index condition"}
        case Value():
            return {"index as a value"}
        case Axes():
            return {"axes"}
        case Host(_, _, _, _, effect):
            return {"host function", "effect"} if effect else {"host function"}
        case Apply(op, args, _):
            found = {f"op {op}"}
            if op in (*REDUCTIONS, *MATRIX, *AXIS) and any(_has_slice(arg) for arg in args):
                found.add(f"dynamic {op}")
            return found
    return set()


def _has_slice(node: Expr) -> bool:
    """Whether a value still has an axis of steps: a slice not yet reduced."""
    match node:
        case Read(source, entries, _):
            return any(isinstance(e, Slice) for e in entries) or _has_slice(source)
        case Window():
            return True
        case Apply(op, args, _):
            return op not in REDUCTIONS and op not in MATRIX and any(map(_has_slice, args))
        case Axes(source, _):
            return _has_slice(source)
    return False


def _of_entry(dim: str, entry: Entry) -> set[str]:
    bound = Sym(dim.upper())
    if isinstance(entry, Slice):
        return _of_slice(dim, entry)
    if any(isinstance(n, Extremum) for n in walk(entry)):
        return {"clamped point"}
    if any(isinstance(n, Arith) and n.op in ("//", "%") for n in walk(entry)):
        return {"point // or %"}
    if any(isinstance(n, Arith) and n.op == "*" for n in walk(entry)):
        return {"strided point"}
    here = symbols(entry)
    if isinstance(entry, Int):
        return {"constant point"}
    if not here - {bound.name}:
        return {"point from the end"}
    if dim not in here:
        return {"point by another dim"}
    if bound.name in here:
        return {"mirrored point"}
    if len(here) > 1:
        return {"point of two dims"}
    return _offset(entry)


def _offset(entry: Index) -> set[str]:
    if isinstance(entry, Arith) and isinstance(entry.right, Int):
        return {"past point"} if entry.op == "-" else {"future point"}
    return set()


def _of_slice(dim: str, entry: Slice) -> set[str]:
    found = {"range"}
    if entry.step not in (1, -1):
        found.add("strided range")
    if entry.step < 0:
        found.add("negative step")
    moving = [e is not None and dim in symbols(e) for e in (entry.start, entry.stop)]
    clamped = any(isinstance(n, Extremum) for n in walk(entry))
    if entry.start is None and entry.stop is None:
        found.add("full range")
    elif moving == [False, True]:
        found.add("prefix range")
    elif moving == [True, False]:
        found.add("suffix range")
    elif moving == [True, True]:
        found.add("clamped window range" if clamped else "window range")
    elif isinstance(entry.start, Int) and isinstance(entry.stop, Int):
        found.add("constant range")
    return found


def _of_recurrent(recurrent: RecurrentDecl, program: Program) -> set[str]:
    found = {"extent T + 1"} if any(s.more for s in recurrent.spans) else set()
    for piece in recurrent.pieces:
        if piece.left is None:
            found.add("left otherwise")
        elif not isinstance(piece.left, tuple):
            found.add("left condition")
        else:
            for span, entry in zip(recurrent.spans, piece.left, strict=False):
                found |= _of_left(span.dim, entry)
            if sum(entry != Sym(s.dim) for s, entry in zip(recurrent.spans, piece.left, strict=False)) > 1:
                found.add("left of two dims")
    reads = [node for piece in recurrent.pieces for node in walk(piece.value) if isinstance(node, (Read, Name))]
    own = [n for n in reads if isinstance(n, Read) and n.source == Name(recurrent.name)]
    if own:
        found.add("recursion")
    for node in own:
        if node.names is None and len(node.entries) > 1 and sum(not isinstance(e, Sym) for e in node.entries) > 1:
            found.add("recursion along two dims")
        if any(isinstance(e, Slice) for e in node.entries):
            found.add("recursion over a range")
    return found


def _of_left(dim: str, entry: Index) -> set[str]:
    if isinstance(entry, Int):
        return {"left point"}
    if not symbols(entry) & {dim}:
        return {"left point from the end"}
    if dim.upper() in symbols(entry):
        return {"left mirrored"}
    if any(isinstance(n, Arith) and n.op == "*" for n in walk(entry)):
        return {"left strided"}
    return {"left shifted"} if entry != Sym(dim) else {"left whole"}


def _mutual(program: Program) -> bool:
    reads = {
        r.name: {n.name for p in r.pieces for n in walk(p.value) if isinstance(n, Name)} for r in program.recurrents
    }
    return any(a != b and b in reads[a] and a in reads[b] for a in reads for b in reads)


def table(counts: Counter[str], total: int) -> str:
    """The counts as text, in columns."""
    cells = [f"{name:<26}{count:>6}" for name, count in sorted(counts.items())]
    rows = (len(cells) + 2) // 3
    lines = ["   ".join(cells[row::rows]) for row in range(rows)]
    return "\n".join([f"features of {total} programs:", *lines])
