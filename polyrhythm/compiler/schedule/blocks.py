"""Blocks: what the scheduler moves as one.

A block is a list of definitions with one iteration space, computed one after the other at each of its points. Few
blocks keep scheduling fast. A plain node joins the block of its readers when they are all in one block, share its
dims and domain, and read it at the current point; nothing can come between, so no order is lost. Values without
operands (constants, index values) are made anew in every block that reads them, and so are choices between two reads.
So is what is computed from those alone, element by element, if its size grows with the step: kept for all steps, a
bias for the distance of every earlier one would take as much room as there are pairs of steps. Views of stored values
(a reshape, a transpose, a cast to a wider type) are read through: the value is stored, its views are not.

Contractions that a recurrence reads but does not feed, or that read but do not feed it, stay out of its block
(`hoisting.py`), so that the scheduler can give them a loop of their own, in which all steps are one contraction.
So does what makes little of much, if its reader comes after a loop over all steps: what it reads need not be stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, Step, operand_type
from polyrhythm.compiler.ir.reads import Place, circles, places, reached, roots
from polyrhythm.compiler.ir.sets import points, simplified
from polyrhythm.compiler.ir.terms import ONE, Symbol, Term, ordered
from polyrhythm.compiler.schedule.hoisting import hoisted, narrowing


@dataclass(frozen=True)
class Statement:
    """A definition computed in a block. `steps` gives the point of its node in terms of the block's dims."""

    node: str
    number: int
    steps: tuple[Term, ...]


@dataclass(frozen=True)
class Block:
    """Statements computed together at every point of `domain`, in order.

    `node` is the tensor that the block is about, `piece_of` the same if the block is one definition of a recurrent
    tensor; `host` marks a call of a host function.
    `apart` are the dims along which the block should run before or after a recurrence, all steps at once; `early` those
    along which it should run with what it reads. A `wide` block makes values whose size no constant limits, such as a
    weight for each earlier step. `launches` counts the operations that XLA does not compute with their readers.
    """

    name: str
    dims: tuple[Symbol, ...]
    domain: Condition
    statements: tuple[Statement, ...]
    piece_of: str | None = None
    host: bool = False
    apart: frozenset[Symbol] = frozenset()
    node: str = ""
    wide: bool = False
    launches: int = 0
    early: frozenset[Symbol] = frozenset()

    @property
    def current(self) -> tuple[Term, ...]:
        return tuple(Term.of(symbol) for symbol in self.dims)

    @cached_property
    def by_value(self) -> dict[tuple[str, tuple[Step, ...]], Statement]:
        """The first statement that computes a node at some steps."""
        return {(statement.node, statement.steps): statement for statement in reversed(self.statements)}


@dataclass(frozen=True)
class Read:
    """A read of a stored value by a block: the access, and where it is read, in terms of the block's dims."""

    statement: Statement
    operand: int
    access: Access
    where: Condition = TRUE


def definition_of(graph: Graph, statement: Statement) -> Definition:
    """The definition a statement computes, rewritten in terms of the block's dims."""
    node = graph[statement.node]
    return node.definitions[statement.number].substitute(dict(zip(node.symbols, statement.steps, strict=True)))


def local_source(block: Block, access: Access) -> Statement | None:
    """The statement of the same block whose value an access reads, if it does so at that very point."""
    return block.by_value.get((access.source, access.steps))


def stored_reads(graph: Graph, block: Block) -> Iterator[Read]:
    """The reads of a block that are not served inside it."""
    for statement in block.statements:
        definition = definition_of(graph, statement)
        for position, access in enumerate(definition.operands):
            if local_source(block, access) is None:
                yield Read(statement, position, access, definition.read_where(position))


def make_blocks(graph: Graph, hoist: bool = True, fuse: bool = True, distribute: bool = False) -> dict[str, Block]:
    """The blocks of a graph, by name. Inputs are outside and have none. With `hoist` contractions stay apart.

    With `distribute` so do all operations that each step would start anew, so that the scheduler may give them a loop
    beside that of a recurrence (`groups.py`). Without `fuse` every operation is a block of its own.
    """
    domains = {node.name: _domains(node) for node in graph}
    remade = _remade(graph)
    apart = hoisted(graph) if hoist else {}
    circular = frozenset(name for part in circles(graph.reads) for name in part) if distribute else frozenset()
    early = narrowing(graph, apart)
    home = _homes(graph, domains, {**early, **apart}, fuse, circular)
    members: dict[tuple[str, int], list[Statement]] = {}
    for node in graph:  # the order of the graph is an order of evaluation within a block
        for number, definition in enumerate(node.definitions):
            if definition.op == "input" or node.name in remade or domains[node.name][number] is None:
                continue
            members.setdefault(home[node.name, number], []).append(Statement(node.name, number, node.current))
    blocks = {}
    for (name, number), statements in members.items():
        node = graph[name]
        label = name if len(node.definitions) == 1 else f"{name}.{number}"
        domain = domains[name][number]
        assert domain is not None
        host = node.definitions[number].op == "host"
        computed = _with_remade(graph, statements, remade)
        piece = name if node.recurrent else None
        own = apart.get(name, frozenset())
        launches = sum(not graph[s.node].definitions[s.number].record.fused for s in statements)
        more = _is_wide(node), launches, early.get(name, frozenset())
        blocks[label] = Block(label, node.symbols, domain, computed, piece, host, own, name, *more)
    return blocks


def _domains(node: Node) -> list[Condition | None]:
    """The iteration space of each definition; None where it is empty."""
    found: list[Condition | None] = []
    for definition in node.definitions:
        condition = conjunction(node.points, definition.domain)
        empty = points(condition, ordered(condition.symbols | set(node.symbols))).is_empty
        found.append(None if empty else conjunction(node.rectangle, simplified(condition, node.rectangle)))
    return found


def _remade(graph: Graph) -> set[str]:
    """The nodes that are made where they are read: cheap ones, read at single points only."""
    accesses = (access for node in graph for access in node.accesses)
    stored = {access.source for access in accesses if access.ranges} | roots(graph)
    records = {n.name: n.definitions[0].record for n in graph if len(n.definitions) == 1 and not n.recurrent}
    cheap = {name for name, record in records.items() if record.free or record.inlined} - stored
    # A choice between two reads is a read itself, unless it is read under a condition: its own is not known then.
    pieces = [(node, definition) for node in graph for definition in node.definitions]
    guarded = {access.source for _, d in pieces if d.record.chooses for access in d.operands}
    cheap |= {node.name for node, d in pieces if d.record.chooses} - guarded - stored
    of_nothing: set[str] = set()
    for node in graph:
        known = bool(node.sources) and all(source in cheap or source in of_nothing for source in node.sources)
        if known and node.name not in stored and _elementwise(graph, node):
            of_nothing.add(node.name)
    growing = [name for name in of_nothing if _grows_with_steps(graph[name])]
    cheap |= reached(lambda name: set(graph[name].sources) - cheap, growing)
    return cheap | (_views(graph, stored) - guarded - stored)


def _views(graph: Graph, stored: Collection[str]) -> set[str]:
    """The views that are made where they are read: they take no fewer bytes than what they are views of.

    A transpose or a cast takes time, so no reader may make it more often than once at each step.
    """
    found = {node.name for node in graph if _is_view(graph, node, stored)}
    for reader in graph:
        for access in reader.accesses:
            source = graph[access.source]
            costs = source.only is not None and source.only.op != "reshape"
            if costs and set(reader.symbols) != access.dims:
                found.discard(source.name)
    return found


def _is_view(graph: Graph, node: Node, stored: Collection[str]) -> bool:
    """Whether a node has the elements of one stored value, in another shape or a wider type."""
    definition = node.only
    if definition is None or definition.op not in ("reshape", "transpose", "cast"):
        return False
    (access,) = definition.operands
    source = graph[access.source]
    kept = source.only is None or source.external or bool(access.ranges) or source.name in stored
    return kept and bool(access.dims) and source.dtype.itemsize <= node.dtype.itemsize


def _elementwise(graph: Graph, node: Node) -> bool:
    """Whether a node is one operation on single elements."""
    definition = node.definitions[0]
    if not _alone(node) or definition.record.external or definition.op == "opaque":
        return False
    kinds = tuple(operand_type(access, graph[access.source]) for access in definition.operands)
    signature = definition.record.signature(kinds, definition.attributes)
    pairs = zip(kinds, signature.operands, strict=True)
    axes = (axis for kind, labels in pairs for axis in zip(kind.shape, labels, strict=True))
    whole = all(label is not None or length is ONE for length, label in axes)
    return whole and all(role.kind == "parallel" for role in signature.roles)


def _grows_with_steps(node: Node) -> bool:
    return any(symbol in length.symbols for length in node.shape for symbol in node.symbols)


def _homes(
    graph: Graph,
    domains: Mapping[str, list[Condition | None]],
    apart: Mapping[str, frozenset[Symbol]],
    fuse: bool,
    circular: frozenset[str],
) -> dict[tuple[str, int], tuple[str, int]]:
    """For each definition, the one that names its block. What is apart, or early, joins only what is so too.

    What has to be launched does not join the blocks of `circular` nodes, unless it is one.
    """
    readers = {n: [r for r in read if domains[r[0]][r[1]] is not None] for n, read in places(graph).items()}
    kept = roots(graph)
    calls = _first_results(graph, domains)
    home: dict[tuple[str, int], tuple[str, int]] = {}
    for node in reversed(list(graph)):
        for number in range(len(node.definitions)):
            home[node.name, number] = (node.name, number)
        if node.name in calls:
            home[node.name, 0] = (calls[node.name], 0)
            continue
        if not fuse or node.recurrent or len(node.definitions) != 1 or node.name in kept or _external(node):
            continue
        targets = set()
        after = _after_all_steps(graph, readers, node)
        beside = node.name not in circular and not node.definitions[0].record.fused
        for name, number, access in readers[node.name]:
            reader = graph[name]
            same = reader.symbols == node.symbols and access.steps == node.current and not _external(reader)
            same = same and domains[name][number] is domains[node.name][0]
            same = same and (node.name not in apart or apart.get(name) == apart[node.name]) and name not in after
            target = home.get((name, number)) if same else None
            targets.add(None if beside and target is not None and target[0] in circular else target)
        if len(targets) == 1 and None not in targets:
            home[node.name, 0] = targets.pop()  # type: ignore[assignment]
    return home


def _is_wide(node: Node) -> bool:
    return bool(node.symbols) and any(length.symbols for length in node.shape)


def _after_all_steps(graph: Graph, readers: Mapping[str, list[Place]], node: Node) -> set[str]:
    """For a node that makes little of wide values: those that wait for all steps of something made of these."""
    sources = {a.source for d in node.definitions for a in d.operands if not a.ranges and _is_wide(graph[a.source])}
    if _is_wide(node) or not sources:
        return set()

    def further(entry: tuple[str, bool]) -> list[tuple[str, bool]]:
        name, waited = entry
        reads = [(reader, access) for reader, _, access in readers[name] if reader != node.name]
        return [(reader, waited or access.steps != graph[name].current) for reader, access in reads]

    return {name for name, waited in reached(further, [(name, False) for name in sources]) if waited}


def _first_results(graph: Graph, domains: Mapping[str, list[Condition | None]]) -> dict[str, str]:
    """For each node that a host call or an opaque function with several results makes, the first made by that call."""
    first: dict[object, str] = {}
    found = {}
    for node in graph:
        for definition in node.definitions:
            if definition.op == "host":
                found[node.name] = first.setdefault(definition.attributes["call"], node.name)
            elif definition.op == "opaque" and _alone(node) and len(definition.attributes["function"].results) > 1:
                # Where results are wanted at different points, each is computed by itself.
                call = definition.attributes["function"], definition.operands, node.dims, domains[node.name][0]
                found[node.name] = first.setdefault(call, node.name)
    return found


def _alone(node: Node) -> bool:
    return not node.recurrent and len(node.definitions) == 1


def _external(node: Node) -> bool:
    return node.external


def _with_remade(graph: Graph, statements: list[Statement], remade: set[str]) -> tuple[Statement, ...]:
    """The statements with those they read and that cost nothing made just before their first use."""
    result: dict[Statement, None] = {}

    def add(statement: Statement) -> None:
        for access in definition_of(graph, statement).operands:
            if access.source in remade:
                add(Statement(access.source, 0, tuple(step for step in access.steps if isinstance(step, Term))))
        result[statement] = None

    for statement in statements:
        add(statement)
    return tuple(result)
