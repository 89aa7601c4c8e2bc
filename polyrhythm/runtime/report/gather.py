"""What a report shows, as plain data that JSON can hold.

Everything that comes from a line of the user's, or from a part of a library, has the *keys* of those in `at`: `0:12`
is line 12 of the first file, `p3` the fourth part. Sizes are terms over the bounds, as nested lists that the page
evaluates for the bounds that its sliders show. The lifetime of a place is the span of blocks from the first that
touches it to the last, widened to every loop that carries it. The cost is one walk over the graph and the loops.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from polyrhythm.compiler.analysis.naming import brackets, described
from polyrhythm.compiler.ir.conditions import TRUE
from polyrhythm.compiler.ir.graph import Definition, Node
from polyrhythm.compiler.ir.terms import Extremum, FloorDiv, Symbol, Term, product
from polyrhythm.compiler.loops.ir import Block, For, If, Item, LoopProgram, Place
from polyrhythm.compiler.loops.liveness import live_before, written
from polyrhythm.compiler.loops.pseudo_code import block_lines
from polyrhythm.compiler.passes import NAMES, Note
from polyrhythm.runtime.explain import notes_of
from polyrhythm.source import Source

if TYPE_CHECKING:
    from polyrhythm.runtime.program import Program

MOST_LINES = 4000
"""A file with more lines than this is shown around the lines that matter."""

AROUND = 20
"""So many lines around each of those."""

Json = Any
Values = Mapping[Symbol, Term]


def gather(program: Program, title: str = "") -> dict[str, Json]:
    """Everything that the page about a program shows."""
    compiled, lines = program.compiled, Lines()
    tree = Tree(compiled.loops, lines)
    data = {
        "title": title or _title(program),
        "backend": program.options.backend,
        "nodes": [_node(node, lines) for node in compiled.graph],
        "outputs": list(compiled.graph.outputs),
        "schedule": tree.items(compiled.loops.body),
        "blocks": tree.count,
        "places": [tree.place(place) for place in compiled.loops.places.values()],
        "bounds": _bounds(compiled.loops, program.stats.bounds),
        "passes": list(NAMES),
        "notes": [_note(note, lines) for note in notes_of(compiled, program.options.backend == "jax")],
        "seconds": {phase: round(seconds, 6) for phase, seconds in program.stats.seconds.items()},
        "compilations": [
            {"capacities": c.capacities, "why": c.reason, "seconds": c.seconds, "bytes": c.allocated}
            for c in program.stats.compilations
        ],
        "collectives": program.backend.devices() if program.options.mesh is not None else [],
        "profile": None if program.profiled is None else program.profiled.as_data(),
    }
    return {**data, "files": lines.files(), "parts": lines.parts, "groups": lines.groups}


def _title(program: Program) -> str:
    """The first of the names of the outputs."""
    names = [str(name) for name in program.wanted.names if name]
    return ", ".join([*names[:3], *(["..."] if len(names) > 3 else [])]) or "program"


class Lines:
    """The files and parts of libraries that something comes from, with the keys of lines in them."""

    def __init__(self) -> None:
        self._files: dict[str, set[int]] = {}
        self.parts: list[str] = []
        self.groups: list[str] = []
        self._functions: dict[str, list[tuple[int, int, str]]] = {}

    def keys(self, *sources: Source | None) -> list[str]:
        """The keys of some places in the code, each once."""
        found: dict[str, None] = {}
        for source in sources:
            if source is None:
                continue
            self._files.setdefault(source.file, set()).add(source.line)
            found[f"{list(self._files).index(source.file)}:{source.line}"] = None
            if source.library:
                if source.library not in self.parts:
                    self.parts.append(source.library)
                found[f"p{self.parts.index(source.library)}"] = None
        return list(found)

    def group(self, source: Source | None) -> int:
        """The part of a library, or the user's function, that something belongs to."""
        name = "other" if source is None else source.library or self._function(source)
        if name not in self.groups:
            self.groups.append(name)
        return self.groups.index(name)

    def _function(self, source: Source) -> str:
        """The innermost function or class around a line."""
        if source.file not in self._functions:
            self._functions[source.file] = list(_functions("".join(linecache.getlines(source.file))))
        around = [(a, name) for a, b, name in self._functions[source.file] if a <= source.line <= b]
        return f"{Path(source.file).name}{': ' + max(around)[1] if around else ''}"

    def files(self) -> list[Json]:
        """The text of the files: whole, or around the lines that matter."""
        found = []
        for file, wanted in self._files.items():
            text = [line.rstrip("\n") for line in linecache.getlines(file)]
            near = {n for line in wanted for n in range(line - AROUND, line + AROUND + 1)}
            shown = near if len(text) > MOST_LINES or not text else set(range(1, len(text) + 1))
            lines = [[n, text[n - 1]] for n in sorted(shown) if 1 <= n <= len(text)]
            found.append({"name": Path(file).name, "lines": lines or [[n, ""] for n in sorted(wanted)]})
        return found


def _functions(text: str) -> Iterator[tuple[int, int, str]]:
    """The first and last line of every function and class, with its name."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.end_lineno or node.lineno, node.name


def term(value: Term) -> Json:
    """A term as the page evaluates it: a constant, then a list of factors for each product.

    >>> term(Term.of(Symbol("T", "bound")) * 4 + 1)
    [1, [4, 'T']]
    """
    return [value.constant, *([factor, *map(_atom, monomial)] for monomial, factor in value.monomials)]


def _atom(atom: Symbol | FloorDiv | Extremum) -> Json:
    if isinstance(atom, Symbol):
        return atom.name
    if isinstance(atom, FloorDiv):
        return {"floor": term(atom.dividend), "by": atom.divisor}
    return {atom.which: [term(argument) for argument in atom.arguments]}


def _node(node: Node, lines: Lines) -> Json:
    at = lines.keys(node.at, *(definition.at for definition in node.definitions))
    first = node.at or next((definition.at for definition in node.definitions if definition.at), None)
    return {
        "name": node.name,
        "label": node.label or "",
        "what": described(node),
        "type": str(node.type) + (f" over {', '.join(map(str, node.dims))}" if node.dims else ""),
        "definitions": [_definition(definition) for definition in node.definitions],
        "reads": sorted(set(node.sources)),
        "kind": "input" if node.is_input else "recurrent" if node.recurrent else "",
        "group": lines.group(first),
        "at": at,
    }


def _definition(definition: Definition) -> str:
    where = "" if definition.domain is TRUE else f"where {definition.domain}: "
    reads = [f"{access.source}{brackets(access)}" for access in definition.operands]
    return f"{where}{definition.op}({', '.join(reads)})"


def _note(note: Note, lines: Lines) -> Json:
    return {
        "by": note.by,
        "rule": note.rule,
        "what": note.what,
        "operations": note.operations,
        "launches": note.launches,
        "bytes": term(note.bytes),
        "refused": note.refused,
        "at": lines.keys(note.at),
    }


def _bounds(loops: LoopProgram, last: Mapping[str, int]) -> list[Json]:
    """The bounds that a slider chooses: as in the last run, else a few hundred steps; those found in a run as well."""
    found = []
    for symbol in dict.fromkeys((*loops.bounds, *loops.found)):
        most = symbol.max.constant if symbol.max is not None and symbol.max.is_constant else None
        value = last.get(symbol.name, most or 256)
        found.append({"name": symbol.name, "value": value, "most": most or max(4096, 16 * value)})
    return found


class Tree:
    """The loops as nested items with numbered blocks, and the lifetimes of places over those numbers."""

    def __init__(self, program: LoopProgram, lines: Lines) -> None:
        self.program, self.lines = program, lines
        self.count = 0
        self._spans: list[tuple[int, int, set[str]]] = []  # of each loop: its blocks, and what it carries
        self._touched: dict[str, list[int]] = {}
        self._readers: dict[str, dict[str, None]] = {}

    def items(self, items: Sequence[Item], values: Values = MappingProxyType({})) -> list[Json]:
        """Some items in order; a loop of one iteration is shown as that iteration."""
        found: list[Json] = []
        for item in items:
            if isinstance(item, Block):
                found.append(self._block(item, values))
                continue
            if isinstance(item, For) and item.stop is None:
                first = item.first.substitute(values)
                if first == (item.end - 1).substitute(values):
                    found += self.items(item.body, {**values, item.counter: first})
                    continue
            found.append(self._around(item, values))
        return found

    def _around(self, item: For | If, values: Values) -> Json:
        first = self.count
        body = self.items(item.body, values)
        at = list(dict.fromkeys(key for inner in body for key in inner["at"]))
        if isinstance(item, If):
            text = f"if {item.condition.substitute(values)}"
            return {"kind": "if", "text": text, "body": body, "at": at, "note": ""}
        carries = live_before(item.body, set(), self.program) & written(item.body)
        self._spans.append((first, self.count - 1, carries))
        how = "for all" if item.parallel else "for"
        notes = ["unrolled"] if item.unrolled else []
        notes += [f"one by one: {item.refused}"] if item.refused else []
        notes += [f"until {item.stop.done.place}"] if item.stop is not None else []
        notes += [f"vectorised over {item.counter}"] if item.lanes is not None else []
        text = f"{how} {item.counter} in {item.first.substitute(values)} .. {(item.end - 1).substitute(values)}"
        return {"kind": "for", "text": text, "note": "; ".join(notes), "body": body, "at": at, "first": first}

    def _block(self, block: Block, values: Values) -> Json:
        number = self.count
        self.count += 1
        for load in block.loads:
            self._touched.setdefault(load.place, []).append(number)
            self._readers.setdefault(load.place, {})[block.name] = None
        for store in block.stores:
            self._touched.setdefault(store.place, []).append(number)
        stored = (self.program.places[store.place].at for store in block.stores)
        return {
            "kind": "block",
            "name": block.name,
            "number": number,
            "lines": block_lines(self.program, block, values),
            "operations": len(block.body),
            "nodes": sorted({compute.node for compute in block.body if compute.node}),
            "reads": sorted({load.place for load in block.loads}),
            "writes": sorted({store.place for store in block.stores}),
            "at": self.lines.keys(*(compute.at for compute in block.body), *stored),
        }

    def place(self, place: Place) -> Json:
        """A place with its lifetime; to be asked when all items are known."""
        first, last = self._lifetime(place)
        return {
            "name": place.name,
            "kind": place.kind,
            "type": f"{place.type.dtype}[{', '.join(map(str, place.whole))}]",
            "bytes": term(product(list(place.whole)) * place.type.dtype.itemsize),
            "slots": "; ".join(place.folded),
            "why": place.why,
            "readers": list(self._readers.get(place.name, {}))[:8],
            "first": first,
            "last": last,
            "at": self.lines.keys(place.at),
        }

    def _lifetime(self, place: Place) -> tuple[int, int]:
        touched = self._touched.get(place.name, [])
        first, last = min(touched, default=0), max(touched, default=0)
        if place.kind == "input":
            first = 0
        if place.kind == "output" or place.name in self.program.outputs:
            last = max(0, self.count - 1)
        for begin, end, carries in self._spans:
            inside = [number for number in touched if begin <= number <= end]
            if inside and (place.name in carries or first < begin or last > end):
                first, last = min(first, begin), max(last, end)
        return first, last
