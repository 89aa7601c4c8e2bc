"""The dtype of an expression, read off the program; "int" and "float" are those of Python scalars."""

from __future__ import annotations

from typing import Any

from tests.fuzz.brute_ops import Val, exact, promote, real
from tests.fuzz.program import (
    Apply,
    Array,
    Axes,
    Choose,
    Compare,
    Expr,
    Host,
    Let,
    Literal,
    Logic,
    Name,
    Not,
    Program,
    Read,
    Value,
    Window,
)


def dtype_of(node: Expr, program: Program) -> str:
    """The dtype of an expression without evaluating it."""
    match node:
        case Name(name):
            declared = program.declared(name)
            return dtype_of(declared.value, program) if isinstance(declared, Let) else declared.dtype
        case Literal():
            return literal(node.value).dtype
        case Array(_, dtype) | Host(_, _, _, dtype, _):
            return dtype
        case Value(inner):
            return "bool" if isinstance(inner, (Compare, Logic, Not)) else "int32"
        case Read(source, _, _) | Window(source, _, _) | Axes(source, _):
            return dtype_of(source, program)
        case Choose(_, first, second, _):
            return promote(dtype_of(first, program), dtype_of(second, program))
        case Apply(op, args, options):
            return _result_dtype(op, [dtype_of(a, program) for a in args], options)
    raise TypeError(node)


def literal(value: bool | int | float) -> Val:
    if isinstance(value, bool):
        return exact(value, "bool")
    return exact(value, "int") if isinstance(value, int) else real(value, 0.0, "float")


def _result_dtype(op: str, args: list[str], options: tuple[Any, ...]) -> str:
    if op in ("<", "<=", ">", ">=", "==", "!=", "any", "all"):
        return "bool"
    if op in ("argmax", "argmin"):
        return "int32"
    if op == "cast":
        return str(options[0])
    if op == "one_hot":
        return str(options[1])
    if op in ("atan", "softsign", "elu", "mish", "log_sigmoid", "lgamma", "spectrum", "ridge"):
        return "float32"
    if op in ("tanh", "sin", "cos", "exp", "sigmoid", "softmax", "logsumexp", "mean", "/"):
        return "float32"
    if op in ("sum", "prod") and args[0] == "bool":
        return "int32"
    if op in ("where",):
        return promote(*args[1:])
    return args[0] if op == "take" else promote(*args)
