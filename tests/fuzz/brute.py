"""The brute force: what a program means, written a second time straight from the language's rules.

It shares no code with polyrhythm. The value of an expression at a point is computed by recursion over the program as
data; recurrent tensors are tabulated by trying every step of every piece. Where the program means nothing (a gap, an
overlap, a read out of range, a cycle) it raises `Invalid`. Only for small bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from tests.fuzz import hosts
from tests.fuzz.brute_ops import Invalid, Val, apply, cast, exact, moved, promote, real, strong
from tests.fuzz.dims import dims_of, extents_of
from tests.fuzz.kinds import dtype_of, literal
from tests.fuzz.program import (
    Apply,
    Arith,
    Array,
    Axes,
    Choose,
    Compare,
    Condition,
    Expr,
    Extremum,
    Host,
    Index,
    InputDecl,
    Int,
    Let,
    Literal,
    Logic,
    Name,
    Not,
    Piece,
    Program,
    Read,
    RecurrentDecl,
    Slice,
    Span,
    Sym,
    Value,
    Window,
    walk,
)

Env = dict[str, int]
Point = tuple[int, ...]


class Brute:
    """One evaluation of a program at some bounds."""

    looks_at_values = True

    def __init__(self, program: Program, inputs: Mapping[str, np.ndarray], bounds: Mapping[str, int]) -> None:
        self.program, self.inputs, self.bounds = program, inputs, dict(bounds)
        self.memo: dict[tuple[str, Point], Val] = {}
        self.active: set[tuple[str, Point]] = set()
        self.tables: dict[str, dict[Point, tuple[Piece, Env]]] = {}
        self.calls: list[tuple[Point, int, str, Any]] = []
        self.stops = dict(program.until)
        self.stopping: set[str] = set()
        self.lengths: dict[tuple[str, Point], int] = {}
        self.known_dims: dict[int, list[str]] = {}

    def dims(self, node: Expr) -> list[str]:
        """The dims of an expression of the program, remembered."""
        if id(node) not in self.known_dims:
            self.known_dims[id(node)] = dims_of(node, self.program)
        return self.known_dims[id(node)]

    # ---- indices

    def symbol(self, name: str, env: Env) -> int:
        if name in env:
            return env[name]
        dim = next((d for d in self.program.dims if d.bound == name), None)
        if dim is not None and dim.extent is not None:
            return int(self.at(dim.extent, env).v)
        if dim is not None and dim.name in self.stops and dim.name not in self.stopping:
            return self.stopped(dim.name, env)
        return self.bounds[name]

    def stopped(self, dim: str, env: Env) -> int:
        """One more than the first step at which the condition holds."""
        others = [d for d in self.dims(self.stops[dim]) if d != dim]
        key = (dim, tuple(env[d] for d in others))
        if key not in self.lengths:
            limit = self.bounds[dim.upper()]
            self.stopping.add(dim)
            given = {d: env[d] for d in others}
            stops = (t for t in range(limit) if bool(self.at(self.stops[dim], {**given, dim: t}).v))
            self.lengths[key] = next(stops, limit - 1) + 1
            self.stopping.discard(dim)
            # What was computed with the full length may differ from what has the true one only in its tables.
            self.tables.clear()
            if any(most == dim.upper() and self.bounds[size] > self.lengths[key] for size, most in self.program.sizes):
                raise Invalid("promise", dim)
        return self.lengths[key]

    def index(self, node: Index, env: Env) -> int:
        match node:
            case Int(value):
                return value
            case Sym(name):
                return self.symbol(name, env)
            case Arith(op, left, right):
                a, b = self.index(left, env), self.index(right, env)
                if op == "+":
                    return a + b
                if op == "-":
                    return a - b
                if op == "*":
                    return a * b
                return a // b if op == "//" else a % b
            case Extremum(which, left, right):
                return (min if which == "min" else max)(self.index(left, env), self.index(right, env))
        raise TypeError(node)

    def holds(self, node: Condition, env: Env) -> bool:
        match node:
            case Compare(op, left, right):
                a, b = self.index(left, env), self.index(right, env)
                return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "==": a == b, "!=": a != b}[op]
            case Logic("&", left, right):
                return self.holds(left, env) and self.holds(right, env)
            case Logic(_, left, right):
                return self.holds(left, env) or self.holds(right, env)
            case Not(inner):
                return not self.holds(inner, env)
        raise TypeError(node)

    # ---- expressions

    def at(self, node: Expr, env: Env) -> Val:
        """The value of an expression where the steps are as in `env`."""
        match node:
            case Name(name):
                return self.named(name, env)
            case Literal(value):
                return literal(value)
            case Array(values, dtype):
                return real(values, 0.0) if dtype == "float32" else exact(values, dtype)
            case Value(inner):
                if isinstance(inner, (Compare, Logic, Not)):
                    return exact(self.holds(inner, env), "bool")
                return exact(self.index(inner, env), "int32")
            case Read(source, entries, names):
                return self.read(source, entries, names, env)
            case Window(source, dim, width):
                steps = Slice(
                    Extremum("max", Int(0), Arith("-", Sym(dim), Int(width - 1))), Arith("+", Sym(dim), Int(1))
                )
                return self.read(source, (steps,), (dim,), env)
            case Choose():
                return self.chosen(node, env)
            case Axes(source, key):
                where = tuple(slice(*k) if isinstance(k, tuple) else Ellipsis if k == "..." else k for k in key)
                return moved(self.at(source, env), lambda a: np.asarray(a[where]))
            case Host():
                return self.host(node, env)
            case Apply(op, args, options):
                values = tuple(self.at(arg, env) for arg in args)
                return apply(op, values, tuple(self.option(o, env) for o in options))
        raise TypeError(node)

    def option(self, value: Any, env: Env) -> Any:
        if isinstance(value, tuple):
            return tuple(self.option(v, env) for v in value)
        return self.index(value, env) if isinstance(value, (Int, Sym, Arith, Extremum)) else value

    def chosen(self, node: Choose, env: Env) -> Val:
        """The branch that the condition chooses; the other is not looked at, but both decide the dtype."""
        value = self.at(node.first if self.holds(node.condition, env) else node.second, env)
        dtype = promote(*(dtype_of(e, self.program) for e in (node.first, node.second)))
        value = cast(value, dtype)
        shape = node.shape
        return value if shape is None else moved(value, lambda a: np.broadcast_to(a, shape))

    def read(self, source: Expr, entries: tuple[Any, ...], names: tuple[str, ...] | None, env: Env) -> Val:
        """Slices prepend axes, in the order of the source's dims."""
        dims = self.dims(source)
        given = dict(zip(dims if names is None else names, entries, strict=False))
        steps: list[list[int]] = []
        sliced: list[int] = []
        plain = not isinstance(source, Name) or isinstance(self.program.declared(source.name), Let)
        for place, dim in enumerate(dims):
            entry = given.get(dim, Sym(dim))
            if isinstance(entry, Slice):
                sliced.append(place)
                steps.append(self.steps(entry, source, dim, env))
            else:
                steps.append([self.index(entry, env)])
            if plain and steps[-1] and entry != Sym(dim) and self.looks_at_values:
                extent = self.extent(source, dim, {**env, **{d: s[0] for d, s in zip(dims, steps, strict=False) if s}})
                if min(steps[-1]) < 0 or max(steps[-1]) >= extent:
                    # Expressions are defined where they are demanded; whether beyond their dims is not for us to say.
                    raise Invalid("unclear", dim)
        points = [dict(zip(dims, choice, strict=True)) for choice in product(*steps)]
        values = [self.at(source, {**env, **point}) for point in points]
        if not sliced:
            return values[0]
        lengths = [len(steps[place]) for place in sliced]
        dtype = dtype_of(source, self.program)
        shape = values[0].v.shape if values else self.static_shape(source, env)
        stacked = [np.stack([x.v for x in values]) if values else np.zeros((0, *shape))]
        stacked.append(np.stack([x.scale for x in values]) if values else np.zeros((0, *shape)))
        v, e = (a.reshape(*lengths, *shape) for a in stacked)
        return strong(Val(v, dtype, e)) if dtype in ("float", "float32") else exact(v, dtype)

    def steps(self, entry: Slice, source: Expr, dim: str, env: Env) -> list[int]:
        if entry.start is None or entry.stop is None:
            extent = self.extent(source, dim, env)
        if entry.step > 0:
            start = 0 if entry.start is None else self.index(entry.start, env)
            stop = extent if entry.stop is None else self.index(entry.stop, env)
        else:
            start = extent - 1 if entry.start is None else self.index(entry.start, env)
            stop = -1 if entry.stop is None else self.index(entry.stop, env)
        return list(range(start, stop, entry.step))

    def extent(self, node: Expr, dim: str, env: Env) -> int:
        return min(self.index(e, env) for e in extents_of(node, self.program)[dim])

    def static_shape(self, node: Expr, env: Env) -> tuple[int, ...]:
        """The shape of a value that cannot be looked at because there is no step; only of what the generator slices."""
        if isinstance(node, Name):
            declared = self.program.declared(node.name)
            return self.static_shape(declared.value, env) if isinstance(declared, Let) else declared.shape
        zero = Shapes(self)
        return zero.at(node, env).v.shape

    def named(self, name: str, env: Env) -> Val:
        declared = self.program.declared(name)
        if isinstance(declared, Let):
            point = tuple(env[d] for d in self.dims(declared.value))
            return self.remembered(name, point, lambda: self.at(declared.value, env))
        point = tuple(env[s.dim] for s in declared.spans)
        for step, span in zip(point, declared.spans, strict=True):
            if not 0 <= step < self.index(span.extent, env):
                raise Invalid("range", name, point)
        if isinstance(declared, InputDecl):
            value = self.inputs[name][point]
            return real(value, 0.0) if declared.dtype == "float32" else exact(value, declared.dtype)
        piece, steps = self.table(declared)[point]
        return self.remembered(name, point, lambda: self.defined(declared, piece, steps))

    def defined(self, declared: RecurrentDecl, piece: Piece, steps: Env) -> Val:
        value = self.at(piece.value, steps)
        value = cast(value, declared.dtype)
        return moved(value, lambda a: np.broadcast_to(a, declared.shape).copy())

    def remembered(self, name: str, point: Point, compute: Any) -> Val:
        key = (name, point)
        if key not in self.memo:
            if key in self.active:
                raise Invalid("cycle", name, point)
            self.active.add(key)
            try:
                self.memo[key] = compute()
            finally:
                self.active.discard(key)
        return self.memo[key]

    # ---- recurrent tensors

    def table(self, declared: RecurrentDecl) -> dict[Point, tuple[Piece, Env]]:
        """Which piece defines each point, and at which steps, by trying every step of every piece."""
        if declared.name not in self.tables:
            found: dict[Point, list[tuple[Piece, Env]]] = {p: [] for p in self.points(declared.spans)}
            names = [s.dim for s in declared.spans]
            for piece in declared.pieces:
                if isinstance(piece.left, tuple):
                    for env in self.every_step(piece.left, names):
                        left = [self.index(e, env) for e in piece.left]
                        point = tuple(left + [env[d] for d in names[len(left) :]])
                        if point in found:
                            found[point].append((piece, env))
                elif piece.left is not None:
                    for point in found:
                        env = dict(zip(names, point, strict=True))
                        if self.holds(piece.left, env):
                            found[point].append((piece, env))
            rest = next((piece for piece in declared.pieces if piece.left is None), None)
            for point, pieces in found.items():
                if rest is not None and not pieces:
                    pieces.append((rest, dict(zip(names, point, strict=True))))
                if len(pieces) != 1:
                    raise Invalid("overlap" if pieces else "gap", declared.name, point)
            self.tables[declared.name] = {point: pieces[0] for point, pieces in found.items()}
        return self.tables[declared.name]

    def every_step(self, left: tuple[Index, ...], names: list[str]) -> Iterator[Env]:
        """All steps of the dims a left side mentions, trailing dims included."""
        mentioned = {n.name for e in left for n in walk(e) if isinstance(n, Sym)} | set(names[len(left) :])
        dims = tuple(Span(d.name) for d in self.program.dims if d.name in mentioned)
        for point in self.points(dims):
            yield {s.dim: step for s, step in zip(dims, point, strict=True)}

    def points(self, spans: tuple[Span, ...]) -> list[Point]:
        """The steps of some dims in lexicographic order; a ragged length may depend on earlier dims."""
        found: list[Point] = [()]
        for span in spans:
            names = [s.dim for s in spans]
            found = [
                (*p, step) for p in found for step in range(self.index(span.extent, dict(zip(names, p, strict=False))))
            ]
        return found

    # ---- host functions

    def host(self, node: Host, env: Env) -> Val:
        args = [strong(self.at(arg, env)).v for arg in node.args]
        if node.effect is not None:
            point = tuple(env[d] for d in self.dims(node))
            written = next(i for i, let in enumerate(self.program.lets) if let.value is node)
            self.calls.append((point, written, node.function, args[0].tolist()))
        value = hosts.call(node.function, *args)
        return real(value, np.abs(value) * 4) if node.dtype == "float32" else exact(value, node.dtype)

    def log(self) -> list[tuple[str, Any]]:
        """The calls that have an effect, in the order they must be made: by step, then as written."""
        return [(function, value) for _, _, function, value in sorted(self.calls, key=lambda call: call[:2])]

    # ---- the whole program

    def reachable(self) -> list[RecurrentDecl]:
        """The recurrent tensors behind the outputs: their pieces are checked on their whole domain."""
        seen: set[str] = set()
        waiting: list[Any] = [e for _, e in (*self.program.outputs, *self.program.until)]
        waiting += [d.extent for d in self.program.dims if d.extent is not None]
        while waiting:
            for node in walk(waiting.pop()):
                if isinstance(node, Name) and node.name not in seen:
                    seen.add(node.name)
                    waiting.append(self.program.declared(node.name))
        return [r for r in self.program.recurrents if r.name in seen]

    def check(self) -> None:
        """Compute every point of every recurrent tensor behind the outputs."""
        for declared in self.reachable():
            names = [s.dim for s in declared.spans]
            for point in self.table(declared):
                self.named(declared.name, dict(zip(names, point, strict=True)))


class Shapes(Brute):
    """Evaluates with zeros for every tensor, to find the shape of what is read nowhere."""

    looks_at_values = False

    def __init__(self, real: Brute) -> None:
        super().__init__(real.program, real.inputs, real.bounds)

    def named(self, name: str, env: Env) -> Val:
        declared = self.program.declared(name)
        if isinstance(declared, Let):
            return self.at(declared.value, env)
        zeros = np.zeros(declared.shape)
        return real(zeros, 0.0) if declared.dtype == "float32" else exact(zeros, declared.dtype)

    def symbol(self, name: str, env: Env) -> int:
        return env.get(name, self.bounds.get(name, 0))

    def steps(self, entry: Slice, source: Expr, dim: str, env: Env) -> list[int]:
        return [0]
