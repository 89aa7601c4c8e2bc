"""Which variable receives the value of the expression that a frame is evaluating.

Python records for every instruction the piece of source that it was compiled from (PEP 657). The statement around
that piece says where the value goes: to a variable, as in `keys = f(x)`; to one of several, as in
`keys, values = f(x), g(x)`; or to the caller, as in `return f(x)`, and then the caller's frame is asked.

A file is parsed once, and an instruction is looked up once. Without source text nothing has a variable.
"""

from __future__ import annotations

import ast
import dis
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType


@dataclass(frozen=True)
class Target:
    """Where the value of an expression goes.

    `name` is the variable of the statement around it, `parts` the variables if the statement unpacks it, and `whole`
    says that the expression is all that they receive rather than an operand of it. A `returned` value goes to the
    caller too, as that `part` of a tuple if it is not None.
    """

    name: str | None = None
    parts: tuple[str | None, ...] = ()
    whole: bool = True
    returned: bool = False
    part: int | None = None


_CACHE = dis.opmap["CACHE"]
"""Space that instructions have behind them; while a call is going on, the current instruction is there."""

_Position = tuple[int | None, ...]
_found: dict[tuple[int, int], tuple[CodeType, Target | None]] = {}


def receiver(frame: FrameType | None, is_internal: Callable[[FrameType], bool]) -> Target | None:
    """The variable that receives what a frame is evaluating; None if there is none.

    A value is followed through the functions that return it, until one of them is internal.

    >>> import sys
    >>> def position():
    ...     return receiver(sys._getframe(1), lambda frame: False)
    >>> here, there = position(), position()
    >>> here.name, there.name
    ('here', 'there')
    """
    if frame is None or is_internal(frame):
        return None
    target = _target(frame.f_code, frame.f_lasti)
    if target is None or not target.returned:
        return target
    outer = receiver(frame.f_back, is_internal)
    if outer is not None:
        name = outer.name if target.part is None else dict(enumerate(outer.parts)).get(target.part)
        parts = outer.parts if target.part is None else ()
        if outer.whole and (name or parts):
            return Target(name, parts, target.whole)
        if target.name is None and target.part is None and outer.name:
            return Target(outer.name, (), False)
    return replace(target, returned=False) if target.name else None


def _target(code: CodeType, instruction: int) -> Target | None:
    key = id(code), instruction
    if key not in _found:
        position = next(islice(code.co_positions(), instruction // 2, None), (None,))
        targets = _targets("".join(linecache.getlines(code.co_filename)))
        opcodes = code.co_code[instruction::-2]
        call = dis.opname[next(op for op in opcodes if op != _CACHE)].startswith("CALL")
        # The code is kept, so that no other takes its id.
        _found[key] = code, targets.get(_key(position, call))
    return _found[key][1]


def _key(position: _Position, call: bool) -> _Position:
    """A call is known by its end alone: its start may be that of the method's name."""
    return (position[1], position[3]) if call and len(position) == 4 else position


@lru_cache(maxsize=256)
def _targets(text: str) -> dict[_Position, Target]:
    """Where the value of each expression in a file goes."""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    targets: dict[_Position, Target] = {}
    _collect(module, targets)
    return targets


def _collect(scope: ast.AST, targets: dict[_Position, Target]) -> None:
    """The expressions of a scope, and those of the functions in it."""
    statements = list(_statements(scope))
    returns = (statement.value for statement in statements if isinstance(statement, ast.Return))
    returned = dict(pair for value in returns for pair in _returned(value))
    last: dict[str, ast.stmt] = {}
    for statement in statements:
        for name in _assigned(statement):
            last[name] = statement
    for statement in statements:
        gone = {name: returned[name] for name in _assigned(statement) if last[name] is statement and name in returned}
        for expression, target in _flows(statement):
            if target.name in gone:
                target = replace(target, returned=True, part=gone[target.name])
            _record(expression, target, targets)
    for inner in _functions(scope):
        _collect(inner, targets)


def _statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a scope in order, without those of functions in it; class bodies count as the scope's."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.expr)):
            yield from _statements(child)


def _functions(scope: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield child
        else:
            yield from _functions(child)


def _returned(value: ast.expr | None) -> Iterator[tuple[str, int | None]]:
    """The variables that a statement returns, and which part of the result each is."""
    if isinstance(value, ast.Name):
        yield value.id, None
    if isinstance(value, ast.Tuple):
        yield from ((part.id, place) for place, part in enumerate(value.elts) if isinstance(part, ast.Name))


def _assigned(statement: ast.stmt) -> list[str]:
    """The variables that a statement assigns to; a step of one is not the variable."""
    return [target.name for _, target in _flows(statement) if target.name is not None and target.whole]


def _flows(statement: ast.stmt) -> Iterator[tuple[ast.expr, Target]]:
    """The expressions of a statement whose value goes somewhere."""
    if isinstance(statement, ast.Return) and statement.value is not None:
        for part, value in _parts(statement.value):
            yield value, Target(returned=True, part=part)
    elif isinstance(statement, ast.Assign):
        yield from _assignment(statement.targets[0], statement.value)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        yield from _assignment(statement.target, statement.value)
    elif isinstance(statement, ast.AugAssign):
        changed = ast.BinOp(statement.target, statement.op, statement.value)
        yield ast.copy_location(changed, statement), _destination(statement.target)


def _parts(value: ast.expr) -> Iterator[tuple[int | None, ast.expr]]:
    if isinstance(value, ast.Tuple):
        yield from enumerate(value.elts)
    else:
        yield None, value


def _assignment(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, Target]]:
    if not isinstance(target, (ast.Tuple, ast.List)):
        yield value, _destination(target)
    elif isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
        for one, part in zip(target.elts, value.elts, strict=True):
            yield from _assignment(one, part)
    elif not any(isinstance(part, ast.Starred) for part in target.elts):
        yield value, Target(parts=tuple(_destination(part).name for part in target.elts))


def _destination(target: ast.expr) -> Target:
    """A variable or an attribute. What is assigned to a step, `y[t + 1] = ...`, only contributes to the variable."""
    if isinstance(target, ast.Name):
        return Target(target.id)
    if isinstance(target, ast.Attribute):
        return Target(target.attr)
    if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
        return Target(target.value.id, whole=False)
    return Target()


def _record(expression: ast.expr, target: Target, targets: dict[_Position, Target]) -> None:
    """An expression and its operands. The body of a lambda goes to its caller, the value of a key in a dict to that."""
    if isinstance(expression, ast.Lambda):
        _record(expression.body, Target(returned=True), targets)
        return
    if isinstance(expression, ast.IfExp) and target.whole:
        _record(expression.body, target, targets)
        _record(expression.orelse, target, targets)
        return
    if isinstance(expression, ast.Dict):
        for key, value in zip(expression.keys, expression.values, strict=True):
            named = key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None
            _record(value, Target(named) if named else replace(target, whole=False, parts=()), targets)
        return
    position = (expression.lineno, expression.end_lineno, expression.col_offset, expression.end_col_offset)
    targets[_key(position, isinstance(expression, ast.Call))] = target
    inside = replace(target, whole=False, parts=())
    for child in ast.iter_child_nodes(expression):
        if isinstance(child, ast.NamedExpr) and isinstance(child.target, ast.Name):
            _record(child.value, Target(child.target.id), targets)
        elif isinstance(child, ast.expr):
            _record(child, inside, targets)
        elif isinstance(child, (ast.keyword, ast.comprehension)):
            for part in ast.iter_child_nodes(child):
                if isinstance(part, ast.expr):
                    _record(part, inside, targets)
