"""Skew: a recurrence that goes along two dims is one over their antidiagonals, all of whose cells run at once.

In an alignment, `c[i, j]` reads `c[i - 1, j]`, `c[i, j - 1]` and `c[i - 1, j - 1]`: whichever dim is the outer loop,
the steps of the inner one come one after the other. Along `d = i + j` every read goes back, so that a loop over d is
the only one whose iterations wait for each other, and the cells of a diagonal are independent: I + J steps, vectorised,
instead of I * J. Here the dim j of all nodes of the recurrence becomes d, a skewing (Wolfe, 1986; Lamport's hyperplane
method, 1974), and the rest of the compiler sees a recurrence over one dim. Backends that interpret loops go cell by
cell in any case.

Legal because `(i, j)` and `(d = j + a * i, i)` name the same points: definitions, domains and reads are written in the
new steps, and nothing else changes. Whether it is of use is asked of the rankings: the loops that go step by step must
be fewer than before (`analysis/ranks.py`). Readers that want several rows at once, and outputs, read a copy by rows.

It takes the storage of a parallelogram, (I + J) x I instead of I x J, where all cells are stored. Elementwise
operations whose results only the recurrence reads go along with it, and are not stored at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from polyrhythm.compiler.analysis.ranks import FEW_STEPS, most_steps
from polyrhythm.compiler.analysis.well_founded import recurrence
from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import TRUE, conjunction, eq, ge, lt
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, NodeDim, Range, Step
from polyrhythm.compiler.ir.reads import places, roots
from polyrhythm.compiler.ir.sets import with_facts
from polyrhythm.compiler.ir.terms import ZERO, Symbol, Term, dims_of, maximum
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.passes.notes import Notes
from polyrhythm.compiler.passes.predicate import circles_of
from polyrhythm.compiler.passes.rewriting import Nodes

SLOPES = (1, -1, 2, -2)
"""How many steps of one dim a step of the other may be worth."""

FEW = 16
"""The most definitions of a recurrence of single integers that XLA runs cell by cell faster than by diagonals: 3 ns a
cell in one small loop, against 6 us for a diagonal (edit distance, 1000 x 1000: 3.5 and 11.3 ms)."""


def skew(graph: Graph, notes: Notes) -> Graph:
    """The graph with recurrences over two dims as recurrences over their antidiagonals, where those run at once."""
    for circle in circles_of(graph) if notes.compiled_loops else ():
        if _is_counting(graph, circle):
            continue
        whole = _widened(graph, circle)
        found = None if whole is None else _skewing(whole, circle, notes)
        if whole is not None and found is not None:
            at = next((graph[name].at for name in sorted(circle) if graph[name].recurrent), None)
            what = f"goes along {found.wave}, all {found.kept} of a diagonal at once"
            notes.did("wavefront", at, what)
            graph = _skewed(whole, circle | _feeding(whole, circle, found), found)
    return graph


def _is_counting(graph: Graph, circle: frozenset[str]) -> bool:
    """Whether a cell is a few operations with single integers."""
    nodes = [graph[name] for name in circle]
    single = all(not node.shape and node.dtype.kind in "biu" for node in nodes)
    return single and sum(len(node.definitions) for node in nodes) <= FEW


def _widened(graph: Graph, circle: frozenset[str]) -> Graph | None:
    """The graph with the borders of a recurrence, which lack a dim, at their one step of it; None where they have none.

    In `c[i + 1, 0] = c[i, 0] + x` the sum is over i alone. Over both dims it has values at column 0.
    """
    most = _largest(graph[name] for name in circle)
    dims = {symbol: NodeDim(symbol, extent) for symbol, extent in most.items() if extent is not None}
    if len(dims) < len(most):
        return None
    added: dict[str, dict[Symbol, Term]] = {}
    for name in circle:
        lacking = dims.keys() - set(graph[name].symbols)
        for symbol in sorted(lacking, key=str):
            steps = {
                step
                for access in graph[name].accesses
                if access.source in circle
                for own, step in graph[access.source].steps(access).items()
                if own is symbol
            }
            place = steps.pop() if len(steps) == 1 else None
            if not isinstance(place, Term) or dims_of(place) or name in roots(graph):
                return None
            added.setdefault(name, {})[symbol] = place
    if not added:
        return graph

    def there(access: Access) -> Access:
        """A read of what has got further dims, at their one step."""
        return Access(access.source, (*access.steps, *added.get(access.source, {}).values()))

    nodes = {}
    for node in graph:
        more = added.get(node.name, {})
        domain = conjunction(node.domain, *(eq(Term.of(symbol), place) for symbol, place in more.items()))
        wide = (*node.dims, *(dims[symbol] for symbol in more))
        nodes[node.name] = replace(node.reading(there), dims=wide, domain=domain)
    return replace(graph, nodes=nodes)


@dataclass(frozen=True)
class Skewing:
    """The dim `gone` as `diagonal = gone + slope * kept + shift`."""

    kept: Symbol
    gone: Symbol
    slope: int
    diagonal: Symbol
    shift: Term
    extent: Term

    @property
    def wave(self) -> Term:
        """The number of the diagonal of a point."""
        return Term.of(self.gone) + Term.of(self.kept) * self.slope + self.shift

    @property
    def there(self) -> dict[Symbol, Term]:
        """The dim that is gone, in terms of the diagonal."""
        return {self.gone: Term.of(self.diagonal) - Term.of(self.kept) * self.slope - self.shift}

    def read(self, dims: tuple[Symbol, ...], steps: tuple[Step, ...]) -> tuple[Step, ...] | None:
        """The steps of a read of a skewed node; None where it takes several rows at once."""
        by_dim = dict(zip(dims, steps, strict=True))
        row, column = by_dim[self.kept], by_dim[self.gone]
        if isinstance(row, Range):
            return None
        moved = row * self.slope + self.shift
        along = Range(column.start + moved, column.length, column.step) if isinstance(column, Range) else column + moved
        by_dim[self.diagonal] = along
        return tuple(by_dim[symbol] for symbol in self.dims(dims))

    def dims(self, dims: tuple[Symbol, ...]) -> tuple[Symbol, ...]:
        """The dims of a skewed node: the diagonal comes before what stays of the two."""
        pair = iter((self.diagonal, self.kept))
        return tuple(next(pair) if symbol in (self.kept, self.gone) else symbol for symbol in dims)


def _skewing(graph: Graph, circle: frozenset[str], notes: Notes) -> Skewing | None:
    """How a recurrence is skewed so that fewer loops go step by step; None if it is not."""
    nodes = [graph[name] for name in sorted(circle)]
    pairs = list(_pairs(graph, nodes, notes))
    if not pairs:
        return None
    whole = recurrence(graph, circle)
    fewest = min(whole.depths().values(), default=0)
    if fewest < 2:
        return None
    for kept, gone in pairs:
        for slope in SLOPES:
            wave = Term.of(gone) + Term.of(kept) * slope
            ways = (whole.depth_by(gone, dict.fromkeys(whole.members, by)) for by in (wave, -wave))
            # How many loops go step by step, one inside the other, if the outermost goes along the wave.
            if min((depth for depth in ways if depth is not None), default=None) == fewest - 1:
                return _sized(nodes, kept, gone, slope)
    return None


def _pairs(graph: Graph, nodes: list[Node], notes: Notes) -> Iterator[tuple[Symbol, Symbol]]:
    """Two dims that all nodes of a recurrence have, with many steps each, and nothing that fixes their order."""
    for node in nodes:
        if node.external or any(d.record.sited for d in node.definitions):
            return
    common = [s for s in nodes[0].symbols if all(s in node.symbols for node in nodes)]
    fixed = {*graph.until, *notes.at_once}
    extents = [(dim.symbol, dim.extent) for node in nodes for dim in node.dims]
    fixed |= {symbol for symbol, extent in extents if any(s.kind == "dim" or s.over for s in extent.symbols)}
    long = []
    for symbol in common:
        where = nodes[0].rectangle
        steps = most_steps(with_facts(where), symbol)
        if symbol not in fixed and (steps is None or steps > FEW_STEPS):
            long.append(symbol)
    for kept in long:
        for gone in long:
            if kept is not gone:
                yield kept, gone


def _feeding(graph: Graph, circle: frozenset[str], how: Skewing) -> set[str]:
    """What only the recurrence reads, cell by cell, and is made by elementwise operations: it need not be stored."""
    readers = {name: [(reader, access) for reader, _, access in read] for name, read in places(graph).items()}
    kept, found = roots(graph), set()
    for node in reversed(list(graph)):
        plain = node.only is not None and (node.only.record.elementwise or node.only.record.repeats)
        if not plain or node.name in kept or not {how.kept, how.gone} <= set(node.symbols):
            continue
        own = [name in circle or name in found for name, _ in readers[node.name]]
        if own and all(own) and all(access.steps == node.current for _, access in readers[node.name]):
            found.add(node.name)
    return found - circle


def _sized(nodes: list[Node], kept: Symbol, gone: Symbol, slope: int) -> Skewing | None:
    """A skewing whose diagonals are counted from 0."""
    most = _largest(nodes)
    rows, columns = most[kept], most[gone]
    if rows is None or columns is None:
        return None
    last = (rows - 1) * abs(slope)
    shift = last if slope < 0 else ZERO
    diagonal = Symbol(f"{kept.name}_{gone.name}", "dim", serial=serials.DIAGONAL)
    return Skewing(kept, gone, slope, diagonal, shift, maximum(ZERO, columns + last))


def _largest(nodes: Iterable[Node]) -> dict[Symbol, Term | None]:
    """The largest extent of each dim that some nodes have; None where that is not known."""
    most: dict[Symbol, Term | None] = {}
    for node in nodes:
        for dim in node.dims:
            before = most.setdefault(dim.symbol, dim.extent)
            apart = None if before is None else dim.extent - before
            if apart is None or not apart.is_constant:
                most[dim.symbol] = None
            elif apart.constant > 0:
                most[dim.symbol] = dim.extent
    return most


def _skewed(graph: Graph, circle: frozenset[str], how: Skewing) -> Graph:
    nodes = Nodes(graph)
    outside = roots(graph) & circle
    names = {name: nodes.fresh(f"{name}_skewed") if name in outside else name for name in circle}
    rows: dict[str, str] = {name: name for name in outside}

    def read(access: Access) -> Access:
        """A read, of what is skewed if it can be."""
        if access.source not in circle:
            return access
        source = graph[access.source]
        steps = how.read(source.symbols, access.steps)
        if steps is not None:
            return Access(names[access.source], steps)
        rows.setdefault(access.source, nodes.fresh(f"{access.source}_rows"))
        return Access(rows[access.source], access.steps)

    for node in graph:
        if node.name not in circle:
            nodes.nodes[node.name] = node.reading(read)
            continue
        definitions = tuple(definition.substitute(how.there).reading(read) for definition in node.definitions)
        extents = {dim.symbol: dim.extent for dim in node.dims} | {how.diagonal: how.extent}
        dims = tuple(NodeDim(symbol, extents[symbol]) for symbol in how.dims(node.symbols))
        column = how.there[how.gone]
        domain = conjunction(node.domain.substitute(how.there), ge(column, 0), lt(column, extents[how.gone]))
        kind = TensorType(tuple(n.substitute(how.there) for n in node.shape), node.dtype)
        made = replace(node, name=names[node.name], dims=dims, type=kind, definitions=definitions, domain=domain)
        nodes.nodes[made.name] = made
    for name, copy in rows.items():
        node = graph[name]
        steps = how.read(node.symbols, node.current)
        assert steps is not None
        same = Definition(TRUE, "copy", (Access(names[name], steps),), {}, node.at)
        nodes.nodes[copy] = replace(node, name=copy, definitions=(same,), recurrent=False)
    return nodes.done()
