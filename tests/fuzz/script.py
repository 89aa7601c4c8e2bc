"""Programs as Python text: what a user would have written. Running the text is how a program is built.

One text serves both purposes, so what a failure prints is exactly what was run.
"""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from itertools import count
from typing import Any

import numpy as np

from tests.fuzz.hosts import SOURCE as HOST_SOURCE
from tests.fuzz.program import (
    Apply,
    Arith,
    Array,
    Axes,
    Choose,
    Compare,
    DimDecl,
    Expr,
    Extremum,
    Host,
    Int,
    Literal,
    Logic,
    Name,
    Not,
    Piece,
    Program,
    Read,
    Slice,
    Span,
    Sym,
    Value,
    Window,
    walk,
)

INFIX = {"+", "-", "*", "/", "//", "%", "&", "|", "^", "<", "<=", ">", ">=", "==", "!=", "@"}
PREFIX = {"neg": "-", "invert": "~"}
METHODS = {
    "sum",
    "prod",
    "max",
    "min",
    "mean",
    "any",
    "all",
    "argmax",
    "argmin",
    "cumsum",
    "cumprod",
    "cummax",
    "flip",
    "sort",
    "argsort",
    "reshape",
    "transpose",
    "cast",
    "var",
}
LISTS = {"concat", "stack"}
COMPOSED = {
    "spectrum": "pr.abs(pr.fft.fft({x}, 0))",
    "put": "({x}).at[pr.constant({options[1]})].{options[0]}({options[2]})",
    "ridge": "(lambda x: pr.linalg.solve(x.mT @ x + pr.eye(x.shape[1]), pr.ones((x.shape[1],))))({x})",
}
"""Several functions under one name."""

_numbers = count()


def index(node: Any) -> str:
    """The text of an index expression, a condition or a slice."""
    match node:
        case Int(value):
            return str(value) if value >= 0 else f"({value})"
        case Sym(name):
            return name
        case Arith(op, left, right) | Compare(op, left, right) | Logic(op, left, right):
            return f"({index(left)} {op} {index(right)})"
        case Extremum(which, left, right):
            return f"pr.{which}({index(left)}, {index(right)})"
        case Not(inner):
            return f"~{index(inner)}"
        case Slice(start, stop, step):
            ends = f"{'' if start is None else index(start)}:{'' if stop is None else index(stop)}"
            return ends if step == 1 else f"{ends}:{step}"
    raise TypeError(node)


def bare(node: Any) -> str:
    """As `index`, without parentheses around the whole."""
    text = index(node)
    if isinstance(node, (Arith, Compare, Logic)) or (isinstance(node, Int) and node.value < 0):
        return text[1:-1]
    return text


def expression(node: Expr) -> str:
    """The text of an expression."""
    match node:
        case Name(name):
            return name
        case Literal(value):
            return repr(value) if not isinstance(value, (int, float)) or value >= 0 else f"({value!r})"
        case Array(values, dtype):
            return f"pr.constant({_listed(values)}, {dtype!r})"
        case Value(inner):
            return f"pr.value({bare(inner)})"
        case Read(source, entries, None):
            return f"{expression(source)}[{', '.join(map(bare, entries))}]"
        case Read(source, entries, names) if names is not None:
            parts = (f"{n}: {_named(e)}" for n, e in zip(names, entries, strict=True))
            return f"{expression(source)}[{{{', '.join(parts)}}}]"
        case Window(source, dim, width):
            return f"pr.window({expression(source)}, {dim}, {width})"
        case Choose(condition, first, second, _):
            return f"pr.where({bare(condition)}, {expression(first)}, {expression(second)})"
        case Axes(source, key):
            return f"{expression(source)}.axes[{', '.join(map(_axis, key))}]"
        case Host(function, args, shape, dtype, effect):
            also = f", effect={effect!r}" if effect else ""
            lengths = "".join(f"{bare(length)}, " for length in shape)
            return f"pr.host({function}, [{', '.join(map(expression, args))}], ({lengths}), {dtype!r}{also})"
        case Apply(op, args, options):
            return _applied(op, [expression(arg) for arg in args], [_option(o) for o in options])
    raise TypeError(node)


def _applied(op: str, args: list[str], options: list[str]) -> str:
    if op in INFIX:
        return f"({args[0]} {op} {args[1]})"
    if op in PREFIX:
        return f"({PREFIX[op]}{args[0]})"
    if op in METHODS:
        receiver = f"({args[0]})" if args[0].startswith("-") else args[0]
        return f"{receiver}.{op}({', '.join(options)})"
    if op in COMPOSED:
        return COMPOSED[op].format(x=args[0], options=[option.strip("'") for option in options])
    if op in LISTS:
        return f"pr.{op}([{', '.join(args)}], {', '.join(options)})"
    if op == "einsum":
        return f"pr.einsum({', '.join([*options, *args])})"
    return f"pr.{op}({', '.join([*args, *options])})"


def _listed(values: Any) -> str:
    return f"[{', '.join(map(_listed, values))}]" if isinstance(values, tuple) else repr(values)


def _option(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_option, value))}{',' if len(value) == 1 else ''})"
    return repr(value) if isinstance(value, (int, float, str, bool)) or value is None else bare(value)


def _named(entry: Any) -> str:
    if not isinstance(entry, Slice):
        return bare(entry)
    parts = ["None" if e is None else bare(e) for e in (entry.start, entry.stop)]
    return f"slice({', '.join([*parts, *([str(entry.step)] if entry.step != 1 else [])])})"


def _axis(entry: Any) -> str:
    if isinstance(entry, tuple):
        start, stop, step = ("" if e is None else str(e) for e in entry)
        return f"{start}:{stop}" + (f":{step}" if step else "")
    return str(entry)


def _spans(spans: tuple[Span, ...]) -> str:
    parts = [s.dim if not s.more else f"({s.dim}, {bare(s.extent)})" for s in spans]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _dim(decl: DimDecl) -> str:
    also = "" if decl.extent is None else f", extent={expression(decl.extent)}"
    also += "" if decl.max is None else f", max={decl.max}"
    also += f", min={decl.min}" if decl.min else ""
    return f'{decl.name}, {decl.bound} = pr.dim("{decl.name}"{also})'


def _left(piece: Piece) -> str:
    if piece.left is None:
        return "pr.otherwise"
    if isinstance(piece.left, tuple):
        return ", ".join(map(bare, piece.left))
    return bare(piece.left)


def definition(program: Program) -> str:
    """The lines that build a program; `outputs` and `until` are dicts, `results` the list host functions write to."""
    lines = ["import polyrhythm as pr", ""]
    if any(isinstance(node, Host) for node in walk(program)):
        lines += [HOST_SOURCE, ""]
    ragged = [d for d in program.dims if d.extent is not None]
    lines += [_dim(d) for d in program.dims if d.extent is None]
    lines += [f'{name} = pr.size("{name}", max={most})' for name, most in program.sizes]
    late = {d.name for d in ragged}
    inputs = [f"{d.name} = pr.input({d.name!r}, {d.shape}, {_spans(d.spans)}, {d.dtype!r})" for d in program.inputs]
    needs_ragged = [any(s.dim in late for s in d.spans) for d in program.inputs]
    lines += [text for text, wait in zip(inputs, needs_ragged, strict=True) if not wait]
    lines += [_dim(d) for d in ragged]
    lines += [text for text, wait in zip(inputs, needs_ragged, strict=True) if wait]
    for r in program.recurrents:
        lines.append(f"{r.name} = pr.recurrent({r.shape}, {_spans(r.spans)}, {r.dtype!r})")
    lines += [f"{let.name} = {expression(let.value)}" for let in program.lets]
    for r in program.recurrents:
        lines += [f"{r.name}[{_left(piece)}] = {expression(piece.value)}" for piece in r.pieces]
    lines.append("outputs = {")
    lines += [f"    {name!r}: {expression(value)}," for name, value in program.outputs]
    lines.append("}")
    lines.append(f"until = {{{', '.join(f'{d}: {expression(e)}' for d, e in program.until)}}}")
    return "\n".join(lines) + "\n"


def build(program: Program) -> dict[str, Any]:
    """Run the text of a program; its variables. Error messages can show its lines."""
    text = definition(program)
    file = f"<fuzz {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    variables: dict[str, Any] = {}
    try:
        exec(compile(text, file, "exec"), variables)
    finally:
        for old in [name for name in linecache.cache if name.startswith("<fuzz ") and name != file][:-20]:
            del linecache.cache[old]
    return variables


def stand_alone(
    program: Program,
    inputs: Mapping[str, Any],
    expected: Mapping[str, np.ndarray],
    tolerance: Mapping[str, np.ndarray],
    problem: str,
) -> str:
    """A script that needs nothing but polyrhythm, evaluates the program and compares it with the expected values."""
    bounds = ", ".join(f"{name}: {value}" for name, value in program.bounds)
    lines = [f"# {line}" for line in problem.splitlines()[:12]]
    lines += ["import numpy as np", definition(program)]
    lines += ["inputs = {"]
    lines += [f"    {name!r}: {_array_text(value)}," for name, value in inputs.items()]
    lines += ["}", f"results = pr.evaluate(outputs, inputs, bounds={{{bounds}}}, until=until or None)", "expected = {"]
    lines += [f"    {name!r}: {_array_text(value)}," for name, value in expected.items()]
    lines += ["}", "tolerance = {"]
    lines += [f"    {name!r}: {_array_text(value)}," for name, value in tolerance.items()]
    lines += [
        "}",
        "for name, value in expected.items():",
        "    result = getattr(results[name], 'values', results[name])",
        "    assert result.shape == value.shape, (name, result.shape, value.shape)",
        "    off = np.abs(result.astype('float64') - value) - tolerance.get(name, 0)",
        "    assert not (off > 0).any() and (np.isnan(result) == np.isnan(value)).all(), (name, result, value)",
        'print("equal")',
    ]
    return "\n".join(lines) + "\n"


def _array_text(value: np.ndarray) -> str:
    array = np.asarray(value)
    body = repr(array.tolist()).replace("nan", "np.nan").replace("inf", "np.inf")
    shape = "" if array.size else f".reshape({array.shape})"
    return f"np.array({body}, {str(array.dtype)!r}){shape}"
