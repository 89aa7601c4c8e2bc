"""The text form of a graph. It is meant to be read, and `tests/compiler/ir/parse.py` reads it back to an equal graph.

First come the symbols, then one paragraph per node, then what the program is for:

    bound T
    dim t < T

    x: f32[3] over t < T = input(name="x")

    y: f32[3] over t < T recurrent
      when t == 0: broadcast(x[0], shape=[3])
      when t >= 1: broadcast(add_2[t - 1], shape=[3])

    output y

A node has its type, its dims with their extents, the part of these `where` it has values, and its definitions.
`start +: length by step` is a range of steps. Attributes are written so that their type shows: `[3, T]` is a tuple of
index terms, `(0, 1)` any other tuple, `{3}` a constant index term where `3` is a plain integer, `f32[2](0.5, 1.0)` a
literal array, `f32` a dtype, `@log` a host function. Large arrays are written in base64. Names that are no
identifiers stand in backquotes, and of symbols with the same name all but one get another one here.

Two things cannot be written: host functions, which go by name, and the stored values of parameters, which are no
part of a graph's identity. `parse` takes both as arguments.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import TRUE, Condition
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, HostFunction, Node, NodeDim, Range, Step
from polyrhythm.compiler.ir.ops.opaque import OpaqueFunction
from polyrhythm.compiler.ir.terms import Symbol, Term, ordered
from polyrhythm.compiler.ir.types import Array, TensorType

LARGEST_LIST = 32
"""Arrays with more elements than this are written in base64."""

Function = HostFunction | OpaqueFunction

_BARE_NAME = re.compile(r"[^\W\d]\w*(\.\w+)*")


def show(graph: Graph) -> str:
    """The text of a graph.

    >>> from polyrhythm.compiler.ir.graph import Definition
    >>> given, made = Definition(TRUE, "input", (), {"name": "x"}), Definition(TRUE, "exp", (Access("x", ()),), {})
    >>> x = Node("x", (), TensorType((Term(3),), dtypes.FLOAT32), (given,))
    >>> y = Node("y", (), x.type, (made,))
    >>> print(show(Graph({"x": x, "y": y}, ("y",))), end="")
    x: f32[3] = input(name="x")
    <BLANKLINE>
    y: f32[3] = exp(x)
    <BLANKLINE>
    output y
    """
    return _Printer(graph).text()


def functions(graph: Graph) -> dict[str, Function]:
    """The host functions and opaque functions of a graph under the names they are printed by, as `parse` wants them.

    >>> functions(Graph({}, ()))
    {}
    """
    found: dict[str, Function] = {}
    for node in graph:
        for definition in node.definitions:
            for value in definition.attributes.values():
                if isinstance(value, Function) and not any(_same_function(value, f) for f in found.values()):
                    found[_unused(value.name, found)] = value
    return found


def array_text(array: Array) -> str:
    """A literal array, exactly.

    >>> array_text(Array(np.float32([0.1, 2]))), array_text(Array(np.zeros((5, 5), np.int8)))
    ('f32[2](0.1, 2.0)', 'i8[5, 5](fill 0)')
    """
    value = array.value
    lengths = f"[{', '.join(map(str, value.shape))}]" if value.shape else ""
    return f"{dtypes.short(value.dtype)}{lengths}({_written_elements(value)})"


def quoted_name(name: str) -> str:
    """A name of a node or a host function as it stands in the text.

    >>> print(quoted_name("layers.0.weight"), quoted_name("<lambda>"))
    layers.0.weight `<lambda>`
    """
    if _BARE_NAME.fullmatch(name):
        return name
    return "`" + json.dumps(name, ensure_ascii=False)[1:-1].replace("`", "\\u0060") + "`"


def _same_function(a: Function, b: Function) -> bool:
    return a == b and a.call is b.call


def _unused(wish: str, taken: Iterable[str]) -> str:
    known, name, number = set(taken), wish, 2
    while name in known:
        name, number = f"{wish}_{number}", number + 1
    return name


def elements(numbers: Iterable[str], dtype: np.dtype) -> np.ndarray:
    """The array of some elements written out.

    >>> elements(["-inf", "0.5"], dtypes.FLOAT32), elements(["True"], dtypes.BOOL)
    (array([-inf,  0.5], dtype=float32), array([ True]))
    """
    if dtypes.kind(dtype) == "bool":
        return np.array([{"True": True, "False": False}[number] for number in numbers], dtype)
    read = float if dtypes.is_float(dtype) else int
    return np.array([read(number) for number in numbers], dtype)


def _written_elements(value: np.ndarray) -> str:
    flat = value.reshape(-1)
    uniform = flat.size > 4 and flat.tobytes() == flat[:1].tobytes() * flat.size
    if (uniform or flat.size <= LARGEST_LIST) and dtypes.kind(value.dtype) != "complex":
        written = flat[:1] if uniform else flat
        numbers = [str(number) for number in written]
        # Texts are not always exact: a NaN may carry bits of its own.
        if elements(numbers, value.dtype).tobytes() == written.tobytes():
            return ("fill " if uniform else "") + ", ".join(numbers)
    return f'"{base64.b64encode(value.tobytes()).decode()}"'


class _Printer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.functions = functions(graph)
        self.symbols = list(_declared(graph))
        self.names: dict[Symbol, str] = {}
        for symbol in self.symbols:
            self.names[symbol] = _unused(symbol.name, self.names.values())
        # Terms print their symbols by name; where names clash they are printed with other symbols in their place.
        self.aliases = {s: Term.of(Symbol(n, s.kind)) for s, n in self.names.items() if n != s.name}

    def text(self) -> str:
        head = [self._symbol(symbol) for symbol in self.symbols]
        head += [self._length(bound, access) for bound, access in self.graph.lengths.items()]
        head += [self._function(name, function) for name, function in self.functions.items()]
        foot = [f"require {self._index(r.condition)}: {json.dumps(r.why)}" for r in self.graph.requirements]
        foot += [f"until {self._index(Term.of(s))}: {quoted_name(name)}" for s, name in self.graph.until.items()]
        foot += [f"effect {quoted_name(name)}" for name in self.graph.effects]
        foot += [f"output {quoted_name(name)}" for name in self.graph.outputs]
        paragraphs = ["\n".join(head), *(self._node(node) for node in self.graph), "\n".join(foot)]
        return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"

    def _index(self, value: Term | Condition) -> str:
        return str(value.substitute(self.aliases) if self.aliases else value)

    def _symbol(self, symbol: Symbol) -> str:
        line = f"{symbol.kind} {self._index(Term.of(symbol))}"
        if symbol.bound is not None:
            line += f" < {self._index(Term.of(symbol.bound))}"
        if symbol.min:
            line += f" min {symbol.min}"
        if symbol.max is not None:
            line += f" max {self._index(symbol.max)}"
        if symbol.over:
            line += f" over {', '.join(self._index(Term.of(s)) for s in symbol.over)}"
        if symbol in self.aliases:
            line += f" named {json.dumps(symbol.name)}"
        return line + (f" serial {symbol.serial}" if symbol.serial else "")

    def _length(self, bound: Symbol, access: Access) -> str:
        return f"length {self._index(Term.of(bound))} = {self._access(access)}"

    def _function(self, name: str, function: Function) -> str:
        results = ", ".join(map(self._type, function.results))
        if isinstance(function, OpaqueFunction):
            operands = ", ".join(map(self._type, function.operands))
            return f"opaque @{quoted_name(name)}: ({operands}) to ({results}) by {json.dumps(function.library)}"
        effect = "" if function.effect is None else f" effect {json.dumps(function.effect)}"
        return f"host @{quoted_name(name)}: {results if function.single else f'({results})'}{effect}"

    def _node(self, node: Node) -> str:
        over = f" over {', '.join(map(self._dim, node.dims))}" if node.dims else ""
        where = "" if node.domain is TRUE else f" where {self._index(node.domain)}"
        head = f"{quoted_name(node.name)}: {self._type(node.type)}{over}{where}{' recurrent' if node.recurrent else ''}"
        if len(node.definitions) == 1 and node.definitions[0].domain is TRUE:
            return f"{head} = {self._operation(node.definitions[0])}"
        pieces = (f"  when {self._index(d.domain)}: {self._operation(d)}" for d in node.definitions)
        return "\n".join([head, *pieces])

    def _dim(self, dim: NodeDim) -> str:
        return f"{self._index(Term.of(dim.symbol))} < {self._index(dim.extent)}"

    def _type(self, kind: TensorType) -> str:
        lengths = f"[{', '.join(map(self._index, kind.shape))}]" if kind.shape else ""
        return dtypes.short(kind.dtype) + lengths

    def _operation(self, definition: Definition) -> str:
        operands = [self._access(access) for access in definition.operands]
        attributes = [f"{key}={self._attribute(value)}" for key, value in definition.attributes.items()]
        return f"{definition.op}({', '.join([*operands, *attributes])})"

    def _access(self, access: Access) -> str:
        steps = f"[{', '.join(map(self._step, access.steps))}]" if access.steps else ""
        return quoted_name(access.source) + steps

    def _step(self, step: Step) -> str:
        if isinstance(step, Term):
            return self._index(step)
        by = f" by {step.step}" if step.step != 1 else ""
        assert isinstance(step, Range)
        return f"{self._index(step.start)} +: {self._index(step.length)}{by}"

    def _attribute(self, value: Any) -> str:
        if value is None or isinstance(value, (bool, int)):
            return str(value)
        if isinstance(value, float):
            return repr(value) if isfinite(value) else f'float("{value}")'
        if isinstance(value, str):
            return json.dumps(value, ensure_ascii=False)
        if isinstance(value, (Term, Condition)):
            text = self._index(value)
            plain = not text.startswith("(") and not (isinstance(value, Term) and value.is_constant)
            return text if plain else f"{{{text}}}"
        if isinstance(value, np.dtype):
            short = dtypes.short(value)
            return f"dtype({short})" if short in self.names.values() else short
        if isinstance(value, Array):
            return array_text(value)
        if isinstance(value, Function):
            return f"@{quoted_name(next(n for n, f in self.functions.items() if _same_function(f, value)))}"
        if isinstance(value, tuple):
            if value and all(isinstance(part, Term) for part in value):
                return f"[{', '.join(map(self._index, value))}]"
            return f"({', '.join(map(self._attribute, value))}{',' if len(value) == 1 else ''})"
        raise TypeError(f"{value!r} is not an attribute that can be written")


def _declared(graph: Graph) -> Iterator[Symbol]:
    """Every symbol of a graph, each after those it is declared with."""
    stated = [*(r.condition for r in graph.requirements), *(node.domain for node in graph)]
    named = [*graph.lengths, *graph.until, *(s for condition in stated for s in condition.symbols)]
    results = (f.results for f in functions(graph).values())
    named += [s for kinds in results for kind in kinds for n in kind.shape for s in n.symbols]
    seen: set[Symbol] = set()

    def visit(symbol: Symbol) -> Iterator[Symbol]:
        if symbol not in seen:
            seen.add(symbol)
            before = [*symbol.over, *([symbol.bound] if symbol.bound else [])]
            before += ordered(symbol.max.symbols) if symbol.max is not None else ()
            for other in before:
                yield from visit(other)
            yield symbol

    for symbol in ordered({*graph.symbols, *named}):
        yield from visit(symbol)
