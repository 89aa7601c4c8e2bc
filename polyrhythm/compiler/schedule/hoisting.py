"""What leaves the loop of a recurrence: contractions that it reads but does not feed, or that read but do not feed it.

In `h[t + 1] = tanh(x @ W + h @ U)` the product with `x` needs no step of `h`, and nothing in the recurrence needs a
loss of `h`. In one loop with the rest they are small products at every step; in a loop of their own, before or after,
all steps are one large product. Such work stands *apart*: it gets blocks of its own, and the scheduler leaves them out
of the recurrence's loop.

That may take room, so it is done only where all that the work reads along the dim is there as a whole anyway: inputs,
outputs, what is read in ranges, and what passes between recurrences that go through the steps in opposite directions,
as from a network to its gradient or from a rollout to its advantages. What it makes for the recurrence has to be kept
for all steps. So it must also pay, by the figures below, which were measured (`docs/decisions.md`), and must not take
more room than what is kept in any case.

A loop that ends early does not know its steps before, so nothing leaves it.

Work between recurrences of opposite directions that could be done in the loop of either *narrows* if what it makes is
smaller than what it reads, and would have to be stored for it: the value of an image that a rollout has led to, for
its advantages. Such work stays with what it reads, so that its result is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from polyrhythm.compiler.analysis.directions import Along
from polyrhythm.compiler.analysis.ranks import FEW_STEPS
from polyrhythm.compiler.ir.conditions import conjunction
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, Range, operand_type
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.reads import reached
from polyrhythm.compiler.ir.sets import facts, least
from polyrhythm.compiler.ir.terms import Symbol, Term, product
from polyrhythm.compiler.passes.notes import Note, bytes_of

MIN_FLOPS_PER_STORED = 200
"""Multiplications per stored element from which on a lone contraction is hoisted (docs/decisions.md: hoisting)."""

MAX_STEP_ELEMENTS = 8192
"""Elements that a value may have at a step: with more, those of all steps do not stay in a cache."""

FEW_ELEMENTS, FEWER = 32, 8
"""A value of more elements than so few is made smaller early, too, if what is made of it has this many times fewer."""

WEIGHTS_PER_ELEMENT = 8
"""A wider value is still hoisted if the weights have this many times its elements: not re-reading them pays for it."""

MANY_WEIGHTS_PER_ELEMENT = 64
"""If the weights have this many times its elements, the hoisted value may take four times the storage."""


MEMORY_BOUND_ELEMENTS = 1 << 16
"""Elements of weights from which on they are memory-bound: the threshold for multiplications is waived."""


def hoisted(graph: Graph) -> dict[str, frozenset[Symbol]]:
    """The nodes that stay out of the loops of recurrences, and the dims of those loops."""
    return _by_name(graph, lambda along: () if along.symbol in graph.until else along.hoisted())


def narrowing(graph: Graph, apart: Collection[str]) -> dict[str, frozenset[Symbol]]:
    """The nodes that are made in the loop of what they read, none of it `apart`, and the dims of those loops."""
    return _by_name(graph, lambda along: along.narrowing(apart))


def _by_name(graph: Graph, chosen: Callable[[_Along], Iterable[str]]) -> dict[str, frozenset[Symbol]]:
    found: dict[str, set[Symbol]] = {}
    for symbol in dict.fromkeys(s for node in graph if node.recurrent for s in node.symbols):
        for name in chosen(_Along(graph, symbol)):
            found.setdefault(name, set()).add(symbol)
    return {name: frozenset(dims) for name, dims in found.items()}


def notes_of(graph: Graph, hoisted: Mapping[str, frozenset[Symbol]]) -> tuple[Note, ...]:
    """What was done to which line, for `program.explain()`: the room it takes counts against it."""
    notes = []
    for name, dims in hoisted.items():
        node = graph[name]
        along = ", ".join(sorted(map(str, dims)))
        what = f"the contraction stays out of the recurrence, all {along} at once"
        notes.append(Note("hoist", "contraction", node.at, what, 0, -bytes_of(node)))
    return tuple(notes)


@dataclass(frozen=True)
class _Along(Along):
    """A graph as seen along one dim, and what may leave its recurrences."""

    @cached_property
    def whole(self) -> set[str]:
        """The nodes of which every step along the dim is kept anyway."""
        graph, found = self.graph, set(self.graph.outputs)
        for node in graph:
            if node.is_input:
                found.add(node.name)
            for definition in node.definitions:
                found |= {a.source for a in definition.operands if self._reads_much(node, definition, a)}
        for name, accesses in self.reads.items():
            found |= {a.source for a in accesses if self.turns(a.source) & self.behind[name]}
        return found

    def _reads_much(self, node: Node, definition: Definition, access: Access) -> bool:
        """Whether a read takes a range of steps without a limit, or at least half of them."""
        source = self.graph[access.source]
        step = source.steps(access).get(self.symbol)
        if not isinstance(step, Range):
            return False
        where = conjunction(node.points, definition.domain)
        where = conjunction(where, facts(where.symbols | step.symbols))
        shortest = least(-step.length, where)
        if shortest is None:
            return True
        extent = next(dim.extent for dim in source.dims if dim.symbol is self.symbol)
        return -shortest > FEW_STEPS and extent.is_constant and -2 * shortest >= extent.constant

    @cached_property
    def ready(self) -> list[str]:
        """The nodes outside of recurrences that can be made for all steps from what is kept anyway, in order."""
        found: dict[str, None] = {}
        for name in (name for part in self.parts for name in part):
            node = self.graph[name]
            if self.symbol not in node.symbols or name in self.circles or not _plain(node):
                continue
            sources = (self.graph[a.source] for a in node.accesses)
            along = (s.name for s in sources if self.symbol in s.symbols and not _made_of_nothing(s))
            if all(source in found or self._is_there(source, name) for source in along):
                found[name] = None
        return list(found)

    def _is_there(self, source: str, reader: str) -> bool:
        """Whether every step of what a node reads is kept, or has to be as recurrences on both sides are opposite."""
        return source in self.whole or (bool(self.ahead[reader]) and self.turns(source) == self.ahead[reader])

    def hoisted(self) -> Iterator[str]:
        """The nodes that stand apart."""
        if not self.circles:
            return
        ready = set(self.ready) - set(self.narrowing(()))
        seen: set[str] = set()
        for name in reversed(self.ready):
            if name not in ready or not (self.behind[name] or self.ahead[name]):
                continue  # it narrows, or is in a loop without recurrences already
            leaving = name in seen
            if not leaving and self._is_exit(name, ready):
                leaving = self._pays(name, ready)
            if leaving:
                yield name
                seen.add(name)
                seen |= {a.source for a in self.reads[name] if a.source in ready and a.source not in self.whole}

    def _is_exit(self, name: str, ready: set[str]) -> bool:
        """Whether what a node makes is read by a recurrence or on the way to one, or it comes after all of them."""
        if not self.ahead[name]:
            return True
        return any(r not in ready and (r in self.circles or self.ahead[r]) for r in self.readers[name])

    def _sources(self, name: str) -> list[str]:
        """What a node reads along the dim."""
        return [access.source for access in self.reads[name]]

    def _pays(self, name: str, ready: set[str]) -> bool:
        """Whether a node is worth being made for all steps at once, with all that has to be made for it."""
        nodes = [self.graph[n] for n in reached(lambda n: ready.intersection(self._sources(n)), [name])]
        products = [p for p in (_product(self.graph, node, self.symbol) for node in nodes) if p is not None]
        widest, kept = _most(n.shape for n in nodes), _most([self.graph[name].shape])
        if not products or widest is None or kept is None:
            return False
        matrices = sum(p.matrix for p in products)
        if widest > max(MAX_STEP_ELEMENTS, matrices // WEIGHTS_PER_ELEMENT):
            return False
        if not self.ahead[name]:
            return True
        few = kept * MANY_WEIGHTS_PER_ELEMENT <= matrices
        if (
            len(products) == 1
            and products[0].work < MIN_FLOPS_PER_STORED * kept
            and not (few and matrices >= MEMORY_BOUND_ELEMENTS)
        ):
            return False
        return kept <= self._room(self.graph[name]) * (4 if few else 1)

    def narrowing(self, apart: Collection[str]) -> Iterator[str]:
        """The nodes that are made before the steps turn round, since what they make is less than what they read."""
        if len(set(self.circles.values())) < 2:
            return
        late: set[str] = set()  # what waits for all steps
        fed: set[str] = set()  # what is made of large values that nothing else stores for all steps
        able: set[str] = set()
        for name in (name for part in self.parts for name in part):
            sources = {a.source for a in self.reads[name] if self.symbol in a.symbols}
            if name in apart or sources & late:
                late.add(name)
            elif self._is_between(name):
                able.add(name)
                if sources & fed or any(self._is_large(source) for source in sources - able):
                    fed.add(name)
        for name in fed:
            if all(reader in fed for reader in self.readers[name]):
                continue
            cone = reached(lambda n: fed.intersection(self._sources(n)), [name])
            crossing = {s for n in cone for s in self._sources(n) if s not in able and self._is_large(s)}
            read, made = _most(self.graph[c].shape for c in crossing), _most([self.graph[name].shape])
            if read is not None and made is not None and (2 if read > MAX_STEP_ELEMENTS else FEWER) * made <= read:
                yield from cone

    def _is_large(self, name: str) -> bool:
        """Whether the steps of a value take room, and nothing has to store them all in any case."""
        size = _most([self.graph[name].shape])
        along = self.symbol in self.graph[name].symbols and name not in self.whole
        return along and size is not None and size > FEW_ELEMENTS

    def _is_between(self, name: str) -> bool:
        """Whether a node may be made in the loop of what it reads as well as in one that goes the other way."""
        node, behind, ahead = self.graph[name], self.behind[name], self.ahead[name]
        if self.symbol not in node.symbols or name in self.circles or not _plain(node) or 0 in behind | ahead:
            return False
        here = Term.of(self.symbol)
        near = all(self.graph[a.source].steps(a).get(self.symbol, here) is here for a in self.reads[name])
        return near and len(behind) == 1 and any(-way in ahead for way in behind)

    def _room(self, node: Node) -> int:
        """How many numbers of the same dims are kept at every step in any case."""
        alike = (self.graph[name] for name in self.whole if set(self.graph[name].symbols) == set(node.symbols))
        return sum(_most([other.shape]) or 0 for other in alike)


@dataclass(frozen=True)
class _Product:
    """A contraction with matrices that do not vary along a dim: multiplications at a step, and their numbers."""

    work: int
    matrix: int


def _product(graph: Graph, node: Node, symbol: Symbol) -> _Product | None:
    """The product that a node is, if it is one of which one operand varies along a dim."""
    definition = node.definitions[0]
    if definition.op != "einsum":
        return None
    words, _ = parse_spec(definition.attributes["spec"])
    sizes: dict[str, Term] = {}
    matrix, varying = 0, 0
    for word, access in zip(words, definition.operands, strict=True):
        shape = operand_type(access, graph[access.source]).shape
        sizes.update(zip(word, shape, strict=True))
        if symbol in graph[access.source].symbols and symbol in access.symbols:
            varying += 1
        else:
            matrix += _most([shape]) or 0
    work = _most([tuple(sizes.values())])
    return _Product(work, matrix) if work is not None and varying == 1 and matrix else None


def _most(shapes: Iterable[Sequence[Term]]) -> int | None:
    """The most numbers that one of some values has; None where that is not known."""
    sizes = [product(shape) for shape in shapes]
    return max((size.constant for size in sizes), default=0) if all(size.is_constant for size in sizes) else None


def _plain(node: Node) -> bool:
    """Whether a node is one expression that may be computed at any time."""
    return node.only is not None and (not node.only.record.sited or node.only.op == "keep")


def _made_of_nothing(node: Node) -> bool:
    return node.is_input or all(definition.record.free for definition in node.definitions)
