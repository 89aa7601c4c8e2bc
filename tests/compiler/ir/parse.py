"""Reading the text form of a graph back, by recursive descent. The format is in `text.py`.

`parse(show(graph)) == graph`, and hand-written text is read as well: index terms need not be in canonical form.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polyrhythm.compiler.ir import dtypes, text
from polyrhythm.compiler.ir.conditions import TRUE, Condition
from polyrhythm.compiler.ir.graph import (
    Access,
    Definition,
    Graph,
    HostFunction,
    Node,
    NodeDim,
    Range,
    Requirement,
    Step,
)
from polyrhythm.compiler.ir.ops.opaque import OpaqueFunction
from polyrhythm.compiler.ir.terms import Kind, Symbol, Term
from polyrhythm.compiler.ir.types import Array, TensorType
from tests.compiler.ir.parse_terms import ParseError, TermParser, parse_condition, parse_term

__all__ = ["ParseError", "parse", "parse_condition", "parse_term"]


def parse(
    source: str,
    functions: Mapping[str, text.Function] | None = None,
    parameters: Mapping[str, np.ndarray] | None = None,
) -> Graph:
    """The graph of a text.

    `functions` gives the host functions by the names in the text (`text.functions` lists those of a graph),
    `parameters` the stored values, which the text does not contain.

    >>> graph = parse('''
    ...     x: f32[3] = input(name="x")
    ...     output x
    ... ''')
    >>> graph.outputs, str(graph["x"].type)
    (('x',), 'float32[3]')
    """
    parser = _Parser(source, functions or {})
    return parser.graph(parameters or {})


class _Parser(TermParser):
    def __init__(self, source: str, functions: Mapping[str, text.Function]) -> None:
        super().__init__(source, {})
        self.functions = functions
        self.nodes: dict[str, Node] = {}
        self.lengths: dict[Symbol, Access] = {}
        self.until: dict[Symbol, str] = {}
        self.requirements: list[Requirement] = []
        self.outputs: list[str] = []
        self.effects: list[str] = []

    # Lines.

    def graph(self, parameters: Mapping[str, np.ndarray]) -> Graph:
        while self.token.kind != "end":
            self.line()
        return Graph(
            self.nodes,
            tuple(self.outputs),
            self.lengths,
            self.until,
            tuple(self.effects),
            parameters,
            tuple(self.requirements),
        )

    def line(self) -> None:
        rules: dict[str, Callable[[], None]] = {
            "bound": lambda: self.declaration("bound"),
            "size": lambda: self.declaration("size"),
            "dim": lambda: self.declaration("dim"),
            "length": self.length,
            "host": self.host,
            "opaque": self.opaque,
            "require": self.requirement,
            "until": self.stop,
            "effect": lambda: self.effects.append(self.name()),
            "output": lambda: self.outputs.append(self.name()),
        }
        if self.tokens[self.position + 1].text == ":":
            self.node()
            return
        at = self.next()
        if at.text not in rules:
            self.fail(f"a line begins with a name and a colon, or with one of {', '.join(rules)}, not with {at}", at)
        rules[at.text]()
        self.end_of_line()

    def declaration(self, kind: Kind) -> None:
        at, printed = self.token, self.name()
        if printed in self.symbols:
            self.fail(f"the symbol {printed} is declared twice", at)
        bound = self.symbol() if self.accept("<") else None
        least = self.integer() if self.accept("min") else 0
        limit = self.term() if self.accept("max") else None
        over = [self.symbol()] if self.accept("over") else []
        while over and self.accept(","):
            over.append(self.symbol())
        name = self.string() if self.accept("named") else printed
        serial = self.integer() if self.accept("serial") else 0
        self.symbols[printed] = Symbol(name, kind, bound, limit, tuple(over), serial, least)

    def length(self) -> None:
        bound = self.symbol()
        self.expect("=")
        self.lengths[bound] = self.access()

    def host(self) -> None:
        self.expect("@")
        at, function = self.token, self.function()
        self.expect(":")
        single = not self.accept("(")
        results = (self.type(),) if single else tuple(self.several(self.type, ")"))
        effect = self.string() if self.accept("effect") else None
        declared = HostFunction(function.name, function.call, results, effect, single)
        if declared != function:
            self.fail(f"the function given for {at} does not return what is declared here", at)

    def opaque(self) -> None:
        self.expect("@")
        at, function = self.token, self.function()
        self.expect(":")
        self.expect("(")
        operands = tuple(self.several(self.type, ")"))
        self.expect("to")
        self.expect("(")
        results = tuple(self.several(self.type, ")"))
        self.expect("by")
        kind = operands, results, self.string()
        if not isinstance(function, OpaqueFunction) or kind != (function.operands, function.results, function.library):
            self.fail(f"the function given for {at} is not what is declared here", at)

    def requirement(self) -> None:
        condition = self.condition()
        self.expect(":")
        self.requirements.append(Requirement(condition, self.string()))

    def stop(self) -> None:
        dim = self.symbol()
        self.expect(":")
        self.until[dim] = self.name()

    def node(self) -> None:
        at, name = self.token, self.name()
        if name in self.nodes:
            self.fail(f"the node {name} is defined twice", at)
        self.expect(":")
        kind = self.type()
        dims = [self.dim()] if self.accept("over") else []
        while dims and self.accept(","):
            dims.append(self.dim())
        where = self.condition() if self.accept("where") else TRUE
        recurrent = self.accept("recurrent")
        definitions = [self.operation(TRUE)] if self.accept("=") else []
        self.end_of_line()
        # A node may be called `when` too.
        while self.follows("when") and not self.follows("when", ":"):
            self.next()
            domain = self.condition()
            self.expect(":")
            definitions.append(self.operation(domain))
            self.end_of_line()
        self.nodes[name] = Node(name, tuple(dims), kind, tuple(definitions), recurrent, where)

    def dim(self) -> NodeDim:
        symbol = self.symbol()
        self.expect("<")
        return NodeDim(symbol, self.term())

    # Types, accesses and attributes.

    def type(self) -> TensorType:
        at, name = self.token, self.name()
        try:
            dtype = dtypes.parse(name)
        except ValueError:
            self.fail(f"{name} is not a dtype", at)
        shape = self.several(self.term, "]") if self.accept("[") else []
        return TensorType(tuple(shape), dtype)

    def access(self) -> Access:
        source = self.name()
        return Access(source, tuple(self.several(self.step, "]")) if self.accept("[") else ())

    def step(self) -> Step:
        start = self.term()
        if not self.accept("+:"):
            return start
        return Range(start, self.term(), self.integer() if self.accept("by") else 1)

    def operation(self, domain: Condition) -> Definition:
        op = self.name()
        self.expect("(")
        operands: list[Access] = []
        attributes: dict[str, Any] = {}

        def argument() -> None:
            at = self.token
            if self.tokens[self.position + 1].text != "=":
                operands.append(self.access())
                return
            key = self.name()
            self.expect("=")
            if key in attributes:
                self.fail(f"the attribute {key} is given twice", at)
            attributes[key] = self.attribute()

        self.several(argument, ")")
        return Definition(domain, op, tuple(operands), attributes)

    def attribute(self) -> Any:
        at = self.token
        if at.kind == "string":
            return self.string()
        if at.kind == "float" or (at.text == "-" and self.tokens[self.position + 1].kind == "float"):
            sign = -1.0 if self.accept("-") else 1.0
            return sign * float(self.next().text)
        if self.accept("("):
            return tuple(self.several(self.attribute, ")"))
        if self.accept("["):
            return tuple(self.several(self.term, "]"))
        if self.accept("{"):
            inside = self.index()
            self.expect("}")
            return inside
        if self.accept("@"):
            return self.function()
        if at.kind == "word":
            if at.text in ("True", "False", "None"):
                return {"True": True, "False": False, "None": None}[self.next().text]
            if self.follows("float", "(") or self.follows("dtype", "("):
                return self._named_value()
            if self._is_dtype(at.text) and self.tokens[self.position + 1].text in ("(", "["):
                return self.array()
            if self._is_dtype(at.text) and at.text not in self.symbols:
                return dtypes.parse(self.next().text)
        found = self.index()
        return found.constant if isinstance(found, Term) and found.is_constant else found

    def _is_dtype(self, name: str) -> bool:
        return any(name == dtypes.short(dtype) for dtype in dtypes.DTYPES)

    def _named_value(self) -> Any:
        which = self.next().text
        self.expect("(")
        found = float(self.string()) if which == "float" else self.type().dtype
        self.expect(")")
        return found

    def function(self) -> text.Function:
        at, name = self.token, self.name()
        if name not in self.functions:
            self.fail(f"the host function {name} is not among the functions given to parse", at)
        return self.functions[name]

    def array(self) -> Array:
        at, kind = self.token, self.type()
        shape, dtype = tuple(int(length) for length in kind.shape), kind.dtype
        self.expect("(")
        try:
            if self.token.kind == "string":
                flat = np.frombuffer(base64.b64decode(self.string(), validate=True), dtype)
                self.expect(")")
            elif self.accept("fill"):
                flat = np.broadcast_to(text.elements([self._number()], dtype), int(np.prod(shape)))
                self.expect(")")
            else:
                flat = text.elements(self.several(self._number, ")"), dtype)
            return Array(flat.reshape(shape))
        except ParseError:
            raise
        except (ValueError, KeyError, OverflowError, binascii.Error) as error:
            self.fail(f"these are not the elements of an array {kind}: {error}", at)

    def _number(self) -> str:
        return ("-" if self.accept("-") else "") + self.of_kind("a number", "int", "float", "word")
