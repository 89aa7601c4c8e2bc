"""What is lowered: the checked graph, the value of every bound, the inputs, and the directives by dim.

Streams run in one order, so every dim has one place among the others: the dims of an input keep their order, because
that is how it lies in memory, and what is dealt out to regions comes first. Inputs of whole numbers are *metadata*:
routing decisions and lengths, which steer the streams. Inputs may be left out: whole numbers are then read while the
program runs, so that it is lowered once for all of them, and other values may be given to a run, or only timed.

Metadata at all of its points at once: whole arrays where the operations allow it, else point by point.

Components of the graph: in what order nodes are lowered, and whether those that depend on each other can run.

Every node is produced in the order of the dims of the streams. Nodes that depend on each other can run if each finds
what it needs already produced; that is tried out, point by point, before anything is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from polyrhythm.compiler.analysis.calls import solve_bounds
from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.front_end import completed
from polyrhythm.compiler.ir import reads
from polyrhythm.compiler.ir.conditions import TRUE
from polyrhythm.compiler.ir.graph import Definition, Graph, Node, Range, Step, operand_type
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.ops.record import Signature, concrete
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.passes import optimised
from polyrhythm.compiler.trace import trace
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.stream.directives import Directive, ParallelizeDirective, TileDirective, TimeMultiplexDirective
from polyrhythm.stream.errors import AccessNotStreamable, DirectiveMismatch, OperationNotStreamable
from polyrhythm.stream.lowering.tiles import BROADCASTING
from polyrhythm.stream.lowering.values import Block, prefixes, rectangle
from polyrhythm.stream.types import F32, DataType

Point = tuple[int, ...]
DirectiveKey = tuple[type, Symbol, frozenset[str]]
NODES: frozenset[str] = frozenset()
"""The scope of a directive that is for all nodes."""

NO_CHUNKS: Mapping[Symbol, int] = MappingProxyType({})

LOOPS = ("ranges", "accumulate", "carry", "separate", "split", "predicate")
"""Passes that prepare loops; streams have none."""

Kind = TypeVar("Kind", TileDirective, TimeMultiplexDirective, ParallelizeDirective)


@dataclass(frozen=True)
class Problem:
    """A program with everything that is fixed before it is lowered."""

    graph: Graph
    bounds: Mapping[Symbol, int]
    arrays: Mapping[str, np.ndarray | None]
    directives: Mapping[DirectiveKey, Directive]
    order: tuple[Symbol, ...]
    storage: DataType
    named: Mapping[int, str]

    def scheduled(self, schedule: Sequence[Directive]) -> Problem:
        """The same program under another schedule."""
        directives = _directives(self.graph, schedule, self.named)
        return replace(self, directives=directives, order=_order(self.graph, directives))

    def dealing(self, entry: Symbol, directive: ParallelizeDirective) -> Problem:
        """The same program and schedule with a dim dealt out in addition."""
        directives = {**self.directives, (ParallelizeDirective, entry, NODES): directive}
        return replace(self, directives=directives, order=_order(self.graph, directives))

    def scoped(self, node: Node, symbol: Symbol) -> TileDirective | None:
        """The tile of a dim that is for the operation of a node alone."""
        for key, directive in self.directives.items():
            if key[0] is TileDirective and key[1] is symbol and key[2] and node.name in key[2]:
                return directive  # type: ignore[return-value]
        return None

    def directive(self, kind: type[Kind], symbol: Symbol) -> Kind | None:
        """The directive of one kind for a dim."""
        return self.directives.get((kind, symbol, NODES))  # type: ignore[return-value]

    def lookup(self, steps: Mapping[Symbol, int]) -> Callable[[Symbol], int]:
        """The value of each symbol at a point."""
        return lambda symbol: steps[symbol] if symbol in steps else self.bounds[symbol]

    def number(self, term: Term) -> int:
        """The value of a term that mentions no dim."""
        return max(0, term.evaluate(self.bounds.__getitem__))

    def extent(self, node: Node, symbol: Symbol) -> int:
        """How many steps a node has along a dim."""
        return self.number(next(dim.extent for dim in node.dims if dim.symbol is symbol))

    def lengths(self, node: Node) -> tuple[int, ...]:
        """How long a node is along its dims and the axes of its value."""
        return tuple(map(self.number, (*(dim.extent for dim in node.dims), *node.shape)))

    def chunk(self, node: Node, symbol: Symbol) -> int | None:
        """How many steps of a dim the schedule puts into a tile of a node; None where it says nothing."""
        tiled = self.scoped(node, symbol) or self.directive(TileDirective, symbol)
        if tiled is None:
            return None
        steps = self.extent(node, symbol)
        chunk = steps if tiled.size is None else tiled.size
        if steps % chunk:
            divisors = ", ".join(str(n) for n in range(1, steps + 1) if steps % n == 0)
            raise DirectiveMismatch(
                f"{tiled}: the {steps} steps of {described(node)} along {symbol} are no whole tiles",
                fix=f"choose a tile that divides the dim: {divisors}",
                at=node.at,
            )
        return chunk

    def ordered(self, symbols: Iterable[Symbol]) -> tuple[Symbol, ...]:
        """Some dims in the order of the streams."""
        known = set(symbols)
        return tuple(symbol for symbol in self.order if symbol in known)

    def grid(self, node: Node, chunks: Mapping[Symbol, int]) -> dict[Symbol, int]:
        """The dims of a node that streams walk and how many positions each has, in tiles where it has such."""
        sizes = {symbol: self.extent(node, symbol) // chunks.get(symbol, 1) for symbol in self.ordered(node.symbols)}
        return {symbol: size for symbol, size in sizes.items() if size > 1 or symbol not in chunks}

    def levels(
        self, node: Node, definition: Definition | None = None, chunks: Mapping[Symbol, int] = NO_CHUNKS
    ) -> tuple[tuple[Point, ...], ...] | None:
        """The prefixes of the points of a node, dim by dim, or None where they fill the rectangle.

        `chunks` gives the steps of tiled dims that lie in a tile; points are then those of `grid`.
        """
        conditions = [node.domain] if definition is None else [node.domain, definition.domain]
        conditions = [condition for condition in conditions if condition is not TRUE]
        if not conditions:
            return None
        dims, sizes = zip(*grid.items(), strict=True) if (grid := self.grid(node, chunks)) else ((), ())
        varying = [condition for condition in conditions if condition.symbols & set(node.symbols)]
        split = {symbol for condition in varying for symbol in condition.symbols if symbol in chunks}
        if split:
            raise AccessNotStreamable(
                f"{described(node)} is computed in another way at some steps of the tiled dim {min(split, key=str)}",
                fix="leave the tile directive for the dim out",
                at=node.at,
            )
        if all(condition.evaluate(self.bounds.__getitem__) for condition in conditions if condition not in varying):
            if not varying:
                return None
            everywhere = [*np.ndindex(*sizes)]
        else:
            everywhere = []
        points = [
            point
            for point in everywhere
            if all(c.evaluate(self.lookup(dict(zip(dims, point, strict=True)))) for c in varying)
        ]
        if len(points) == prod(sizes):
            return None
        return prefixes(points, len(dims))

    def is_metadata(self, name: str) -> bool:
        """Whether a node is made of whole-number inputs, indices and constants alone."""
        return name in self._metadata

    @cached_property
    def _metadata(self) -> set[str]:
        """Nodes without cycles or ranges, whose inputs are given."""
        found: set[str] = set()
        for component in components(self.graph):
            node = self.graph[component[0]]
            simple = len(component) == 1 and node.dtype.kind in "ib" and not any(a.ranges for a in node.accesses)
            given = [self.arrays[d.attributes["name"]] is not None for d in node.definitions if d.op == "input"]
            if simple and all(given) and all(s in found or self.constant(s) is not None for s in node.sources):
                found.add(node.name)
        return found

    def constant(self, name: str) -> np.ndarray | None:
        """The value of a node that is a literal."""
        literal = only(self.graph, name, "constant")
        return None if literal is None else literal.attributes["value"].value

    def metadata(self, name: str, steps: Mapping[Symbol, int]) -> np.ndarray:
        """The value of a metadata node (or a literal) at a point."""
        node = self.graph[name]
        lookup = self.lookup(steps)
        definition = next(d for d in node.definitions if d.domain.evaluate(lookup))
        if definition.op == "input":
            array = self.arrays[definition.attributes["name"]]
            assert array is not None
            return np.asarray(array[tuple(steps[symbol] for symbol in node.symbols)])
        operands = []
        for access in definition.operands:
            steps_read = self.graph[access.source].steps(access).items()
            at = {s: step.evaluate(lookup) for s, step in steps_read if isinstance(step, Term)}
            operands.append(self.metadata(access.source, at))
        return np.asarray(TABLE[definition.op].numpy(*operands, **concrete(definition.attributes, lookup)))


def is_whole(step: Term | Range, extent: Term) -> bool:
    """Whether a step entry reads all steps of a dim, in order."""
    return isinstance(step, Range) and step.step == 1 and step.start is Term(0) and step.length is extent


def reads_here(graph: Graph, definition: Definition) -> bool:
    """Whether a definition reads all its operands at the current step."""
    return all(access == graph[access.source].here for access in definition.operands)


def only(graph: Graph, name: str, *ops: str) -> Definition | None:
    """The definition of a node that is one operation of some kinds."""
    definitions = graph[name].definitions
    return definitions[0] if len(definitions) == 1 and definitions[0].op in ops else None


def signature_of(graph: Graph, definition: Definition) -> Signature:
    """The roles of the axes of an operation."""
    types = tuple(operand_type(access, graph[access.source]) for access in definition.operands)
    return TABLE[definition.op].signature(types, definition.attributes)


def steps_at(step: Step, lookup: Callable[[Symbol], int]) -> list[int]:
    """The steps that an entry of an access reads at a point."""
    if isinstance(step, Term):
        return [step.evaluate(lookup)]
    start = step.start.evaluate(lookup)
    return [start + k * step.step for k in range(step.length.evaluate(lookup))]


def prepared(
    outputs: Sequence[Tensor],
    schedule: Sequence[Directive],
    inputs: Mapping[str, Any],
    bounds: Mapping[Any, int],
    storage: DataType = F32,
    later: Sequence[Directive] = (),
) -> Problem:
    """Check a program, find its bounds, and look up the dims of its directives; `later` may be scheduled afterwards."""
    meant = {id(tensor): tensor for directive in (*schedule, *later) for tensor in directive.on.tensors}
    traced = trace(outputs, [*meant.values()])
    graph = completed(traced)
    if any(definition.op == "grad" for node in traced for definition in node.definitions):
        # What gradients are made of is simplified as for any backend, but for what only loops can do.
        graph, _ = optimised(graph, LOOPS)
    graph, named = _without_copies(graph, list(meant))
    _refuse(graph)
    arrays = _arrays(graph, inputs, bounds)
    given = {name: array for name, (array, _) in arrays.items()}
    known = solve_bounds(graph, given, bounds)
    for node in graph:
        for dim in node.dims:
            if known and dim.extent.evaluate(known.__getitem__) < 1:
                raise OperationNotStreamable(
                    f"{described(node)} has no steps along {dim.symbol}",
                    fix="lower the program for bounds of at least one",
                    at=node.at,
                )
    directives = _directives(graph, schedule, named)
    kept = {name: array if real else None for name, (array, real) in arrays.items()}
    return Problem(graph, known, kept, directives, _order(graph, directives), storage, named)


def _without_copies(graph: Graph, meant: Sequence[int]) -> tuple[Graph, dict[int, str]]:
    """The node of each tensor that a directive is for; tracing made a copy of each, which is dropped again."""
    copies = {n for n in graph.effects if not graph[n].recurrent and graph[n].definitions[0].op == "copy"}
    sources = [graph[n].definitions[0].operands[0].source if n in copies else n for n in graph.effects]
    nodes = {name: node for name, node in graph.nodes.items() if name not in copies}
    return replace(graph, nodes=nodes, effects=()), dict(zip(meant, sources, strict=True))


def _refuse(graph: Graph) -> None:
    """Refuse what no stream can express: calls of Python, random numbers, lengths that are data."""
    if graph.until or graph.lengths:
        (symbol, *_) = [*graph.until, *graph.lengths]
        raise OperationNotStreamable(
            f"the length of {symbol} is decided while the program runs",
            fix="give the dim a bound, and mask what lies beyond a length with pr.where(pr.value(t) < length, x, 0)",
            at=graph[graph.outputs[0]].at,
        )
    for node in graph:
        for definition in node.definitions:
            if definition.op != "input" and (definition.op not in TABLE or definition.op == "random_bits"):
                raise OperationNotStreamable(
                    f"{described(node)} is computed by {definition.op}, which no stream operator can do",
                    fix="compute it outside and pass it as an input",
                    at=definition.at or node.at,
                )


def _arrays(graph: Graph, inputs: Mapping[str, Any], bounds: Mapping[Any, int]) -> dict[str, tuple[np.ndarray, bool]]:
    """The array of every input, and whether it was given; one that was not has the right shape and takes no memory."""
    known = {str(key): int(value) for key, value in bounds.items()}
    terms = {name: (*(dim.extent for dim in node.dims), *node.shape) for name, node in graph.inputs.items()}
    given = {
        name: value for name, value in {**graph.parameters, **inputs}.items() if name in terms and value is not None
    }
    for name, value in given.items():
        for length, term in zip(np.shape(value), terms[name], strict=False):
            if any(term is symbol.term for symbol in term.symbols):
                known.setdefault(str(term), length)
    found: dict[str, tuple[np.ndarray, bool]] = {}
    for name, node in graph.inputs.items():
        if name in given:
            array = np.asarray(given[name])
            same_kind = array.dtype.kind == node.dtype.kind
            found[name] = (array.astype(node.dtype, copy=False) if same_kind else given[name], True)
        elif all(str(symbol) in known for term in terms[name] for symbol in term.symbols):
            shape = tuple(term.evaluate(lambda symbol: known[str(symbol)]) for term in terms[name])
            found[name] = (np.broadcast_to(np.zeros((), node.dtype), shape), False)
        # else solve_bounds says what is missing
    unknown = {name: (np.asarray(value), True) for name, value in inputs.items() if name not in graph.inputs}
    return found | unknown


def _directives(graph: Graph, schedule: Sequence[Directive], named: Mapping[int, str]) -> dict[DirectiveKey, Directive]:
    dims, used = {dim.symbol for node in graph for dim in node.dims}, reads.cone(graph, *graph.outputs)
    found: dict[DirectiveKey, Directive] = {}
    for directive in schedule:
        wanted = directive.dim
        if isinstance(wanted, Dim):
            symbols = [graph.declared[wanted.symbol]] if wanted.symbol in graph.declared else []
        else:
            symbols = [symbol for symbol in dims if symbol.name == wanted]
        if len(symbols) != 1:
            raise DirectiveMismatch(
                f"{directive}: the program has {'no' if not symbols else 'more than one'} dim {wanted}",
                fix=f"name one of its dims: {', '.join(sorted(str(symbol) for symbol in dims)) or 'it has none'}",
            )
        meant = {named[id(tensor)] for tensor in directive.on.tensors}
        if not meant <= used:
            raise DirectiveMismatch(
                f"{directive}: it is for a tensor that no output depends on", fix="name tensors of the program"
            )
        scope = _between(graph, meant)
        for kind, symbol, other in found:
            if kind is type(directive) and symbol is symbols[0] and (scope & other or (not scope and not other)):
                raise DirectiveMismatch(
                    f"{directive}: the dim {wanted} has such a directive already", fix="give one of each kind for a dim"
                )
        found[type(directive), symbols[0], scope] = directive
    return found


def _between(graph: Graph, ends: set[str]) -> frozenset[str]:
    """Some nodes, and those on a path from one of them to another; inputs are read by whoever wants them."""
    above, below = reads.cone(graph, *ends), reads.reached(reads.readers(graph.nodes).__getitem__, ends)
    return frozenset((above & below) - {node.name for node in graph.inputs.values()})


def _order(graph: Graph, directives: Mapping[DirectiveKey, Directive]) -> tuple[Symbol, ...]:
    """One order for all dims: dealt ones first, then as inputs, recurrent tensors and other values list them."""
    sequences = [tuple(dict.fromkeys(symbol for kind, symbol, _ in directives if kind is ParallelizeDirective))]
    named = [*(n for n in graph if n.is_input), *(n for n in graph if n.recurrent)]
    sequences += [node.symbols for node in (*named, *graph)]
    before: dict[Symbol, set[Symbol]] = {}
    for sequence in sequences:
        for place, symbol in enumerate(sequence):
            known = before.setdefault(symbol, set())
            for earlier in sequence[:place]:
                if not reads.reaches(before, earlier, symbol):
                    known.add(earlier)
    order: list[Symbol] = []
    waiting = list(before)
    while waiting:
        following = next(symbol for symbol in waiting if before[symbol] <= set(order))
        order.append(following)
        waiting.remove(following)
    return tuple(order)


def metadata_grid(problem: Problem, node: Node, dims: tuple[Symbol, ...]) -> np.ndarray:
    """A metadata node at all steps of some dims, length one along those that it lacks; then the axes of its value."""
    sizes = [problem.extent(node, symbol) if symbol in node.symbols else 1 for symbol in dims]
    lengths = [problem.number(length) for length in node.shape]
    definition = node.definitions[0]
    if len(node.definitions) == 1 and definition.op == "input":
        array = problem.arrays[definition.attributes["name"]]
        assert array is not None
        order = [node.symbols.index(symbol) for symbol in dims if symbol in node.symbols]
        return array.transpose([*order, *range(len(order), array.ndim)]).reshape((*sizes, *lengths))
    if len(node.definitions) == 1 and definition.op == "index":
        counted = next((s for s in dims if definition.attributes["value"] is Term.of(s)), None)
        if counted is not None:
            return np.arange(sizes[dims.index(counted)], dtype=node.dtype).reshape(
                [size if symbol is counted else 1 for symbol, size in zip(dims, sizes, strict=True)]
            )
    is_elementwise = definition is node.only and definition.op in BROADCASTING and not lengths
    if is_elementwise and reads_here(problem.graph, definition):
        parts = []
        for access in definition.operands:
            literal = problem.constant(access.source)
            parts.append(literal if literal is not None else metadata_grid(problem, problem.graph[access.source], dims))
        return np.asarray(TABLE[definition.op].numpy(*parts, **definition.attributes))
    values = [
        problem.metadata(node.name, {s: at for s, at in zip(dims, point, strict=True) if s in node.symbols})
        for point in np.ndindex(*sizes)
    ]
    return np.array(values).reshape((*sizes, *lengths))


def metadata_tiles(
    problem: Problem, node: Node, steps: Mapping[Symbol, int], chunks: Mapping[Symbol, int]
) -> tuple[np.ndarray, Block]:
    """The tiles of a metadata node over `steps` of some dims, with the chunks of some inside; and their block."""
    lengths = [problem.number(length) for length in node.shape]
    boxed = {symbol: chunks[symbol] for symbol in steps if symbol in chunks}
    block = Block((*boxed, *range(len(lengths))), (*boxed.values(), *lengths))
    counts = [n // boxed.get(symbol, 1) for symbol, n in steps.items()]
    split = [n for symbol, count in zip(steps, counts, strict=True) for n in (count, boxed.get(symbol, 1))]
    whole = np.broadcast_to(metadata_grid(problem, node, tuple(steps)), [*steps.values(), *lengths])
    order = [*range(0, len(split), 2), *range(1, len(split), 2), *range(len(split), len(split) + len(lengths))]
    return whole.reshape((*split, *lengths)).transpose(order).reshape(*counts, *block.fixed_sides), block


def components(graph: Graph) -> list[list[str]]:
    """Strongly connected components of the reads, what is read first."""
    return [component[::-1] for component in reads.components(graph.reads)]


def inner_order(nodes: list[Node]) -> list[Node]:
    """The nodes of a cycle that are no recurrent tensors, what they read first."""
    inner = {node.name: node for node in nodes if not node.recurrent}
    order = reads.components({name: [s for s in node.sources if s in inner] for name, node in inner.items()})
    return [inner[name] for component in order for name in component]


def check_order(problem: Problem, nodes: list[Node]) -> None:
    """Whether nodes that depend on each other can all be produced in the order of the streams."""
    names = {node.name for node in nodes}
    points = {}
    for node in nodes:
        levels = problem.levels(node)
        sizes = [problem.extent(node, symbol) for symbol in problem.ordered(node.symbols)]
        points[node.name] = (levels if levels is not None else rectangle(sizes))[-1] if node.dims else ((),)
    done = dict.fromkeys(names, 0)
    made: set[tuple[str, Point]] = set()
    progress = True
    while progress:
        progress = False
        for node in nodes:
            while done[node.name] < len(points[node.name]):
                point = points[node.name][done[node.name]]
                if not all(place in made for place in _reads_at(problem, node, point, names)):
                    break
                made.add((node.name, point))
                done[node.name] += 1
                progress = True
    stuck = next((node for node in nodes if done[node.name] < len(points[node.name])), None)
    if stuck is not None:
        point = points[stuck.name][done[stuck.name]]
        missing = next(p for p in _reads_at(problem, stuck, point, names) if p not in made)
        raise AccessNotStreamable(
            f"{described(stuck)} needs a value of {described(problem.graph[missing[0]])} that is later in the stream",
            fix="streams run forward: write the recurrence from its first step to its last",
            at=stuck.at,
            point=dict(zip(problem.ordered(stuck.symbols), point, strict=True)),
        )


def _reads_at(problem: Problem, node: Node, point: Point, names: set[str]) -> list[tuple[str, Point]]:
    """The points of some nodes that a node reads at a point."""
    lookup = problem.lookup(dict(zip(problem.ordered(node.symbols), point, strict=True)))
    definition = next(d for d in node.definitions if d.domain.evaluate(lookup))
    found: list[tuple[str, Point]] = []
    for access in definition.operands:
        if access.source not in names:
            continue
        steps = problem.graph[access.source].steps(access)
        choices = [steps_at(steps[symbol], lookup) for symbol in problem.ordered(steps)]
        found.extend((access.source, point) for point in product(*choices))
    return found
