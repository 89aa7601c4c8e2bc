"""Which contractions leave the loop of a recurrence: those it reads but does not feed.

In `h[t + 1] = tanh(x @ W + h @ U)` the product with `x` needs no step of `h`. In one block with the rest it is a small
product at every step; in a block of its own, scheduled before the recurrence, all steps are one large product.
That takes room for its result at every step. So it is done only where it pays: for products of a few rows with a large
matrix, which are limited by reading the matrix (`FEW_ROWS`, `MUCH_WORK`: measured, see `docs/decisions.md`), and only
where all they are made of along the dim is there as a whole anyway: inputs, outputs, and what is read in ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from polyrhythm.ir.graph import Access, Graph, Node, Range, operand_type
from polyrhythm.ir.ops.contraction import parse_spec
from polyrhythm.ir.terms import Symbol, Term
from polyrhythm.lang.progress import components
from polyrhythm.passes.notes import Note, bytes_of

LEAVES = frozenset({"input", "constant", "index", "iota"})

FEW_ROWS = 3
"""The most rows a step may have; with more a product of one step is as fast as its share of the large one."""

MUCH_WORK = 4096
"""The fewest multiplications at a step that are worth the room."""


def hoisted(graph: Graph) -> dict[str, frozenset[Symbol]]:
    """The nodes that stay out of the loops of recurrences, and the dims of those loops."""
    found: dict[str, set[Symbol]] = {}
    for symbol in dict.fromkeys(s for node in graph if node.recurrent for s in node.symbols):
        for name in _hoisted_along(graph, symbol):
            found.setdefault(name, set()).add(symbol)
    return {name: frozenset(dims) for name, dims in found.items()}


def notes_of(graph: Graph, hoisted: Mapping[str, frozenset[Symbol]]) -> tuple[Note, ...]:
    """What was done to which line, for `program.explain()`: the room it takes counts against it."""
    notes = []
    for name, dims in hoisted.items():
        node = graph[name]
        along = ", ".join(sorted(map(str, dims)))
        what = f"the contraction runs before the recurrence, all {along} at once"
        notes.append(Note("hoist", "contraction", node.at, what, 0, -bytes_of(node)))
    return tuple(notes)


def _hoisted_along(graph: Graph, symbol: Symbol) -> Iterator[str]:
    """The nodes that contain a contraction and are outside the circles of a dim, and that a circle reads."""
    reads = {node.name: [a.source for a in _reads(node) if not _carried(graph, a, symbol)] for node in graph}
    number = {name: n for n, part in enumerate(components(reads)) for name in part}
    size = {name: len(part) for part in components(reads) for name in part}
    circling = {name for name in reads if size[name] > 1 or name in reads[name]}
    if not circling:
        return
    whole = _whole(graph, symbol)
    heavy: set[str] = set()
    for node in graph:
        if symbol not in node.symbols or node.name in circling or node.recurrent or not _plain(node):
            continue
        sources = [graph[access.source] for access in _reads(node)]
        along = [source for source in sources if symbol in source.symbols]
        ready = all(s.name in whole or s.name in heavy or _made_of_nothing(s) for s in along)
        if ready and along and (_pays(graph, node, symbol) or any(source.name in heavy for source in along)):
            heavy.add(node.name)
    read_by_circle = {source for name in circling for source in reads[name] if number[source] != number[name]}
    # Only what leads to a circle: others are in loops without recurrences already.
    wanted = [name for name in heavy if name in read_by_circle]
    seen: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name not in seen:
            seen.add(name)
            yield name
            wanted.extend(source for source in reads[name] if source in heavy)


def _pays(graph: Graph, node: Node, symbol: Symbol) -> bool:
    """Whether a node is the product of a few rows at each step with a large matrix that does not vary."""
    definition = node.definitions[0]
    if definition.op != "einsum" or len(definition.operands) != 2:
        return False
    words, output = parse_spec(definition.attributes["spec"])
    sizes: dict[str, Term] = {}
    for word, access in zip(words, definition.operands, strict=True):
        sizes.update(zip(word, operand_type(access, graph[access.source]).shape, strict=True))
    if not all(length.is_constant for length in sizes.values()):
        return False
    varying = [symbol in graph[access.source].symbols and symbol in access.symbols for access in definition.operands]
    if varying.count(True) != 1:
        return False
    moving, fixed = words[varying.index(True)], words[varying.index(False)]
    rows = prod(sizes[letter].constant for letter in set(output) & set(moving))
    return rows <= FEW_ROWS and prod(sizes[letter].constant for letter in set(moving + fixed)) >= MUCH_WORK


def _reads(node: Node) -> Iterator[Access]:
    return (access for definition in node.definitions for access in definition.operands)


def _carried(graph: Graph, access: Access, symbol: Symbol) -> bool:
    """Whether a read is of another step of some other dim, by a constant distance: an outer loop carries it."""
    for other, step in graph[access.source].steps(access).items():
        if other is symbol or isinstance(step, Range):
            continue
        distance = step - Term.of(other)
        if distance.is_constant and distance.constant:
            return True
    return False


def _whole(graph: Graph, symbol: Symbol) -> set[str]:
    """The nodes of which every step along a dim is kept anyway."""
    found = set(graph.outputs) | {node.name for node in graph if any(d.op == "input" for d in node.definitions)}
    for node in graph:
        for access in _reads(node):
            step = graph[access.source].steps(access).get(symbol)
            if isinstance(step, Range) and not step.length.is_constant:
                found.add(access.source)
    return found


def _plain(node: Node) -> bool:
    return len(node.definitions) == 1 and node.definitions[0].op not in ("host", "random_bits", "input")


def _made_of_nothing(node: Node) -> bool:
    return all(definition.op in LEAVES for definition in node.definitions)
