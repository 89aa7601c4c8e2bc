"""Windows: a reduction over the last few steps becomes a combination of shifted values, all steps in parallel.

Two ways, both without a difference of sums, so that nothing cancels:
- *doubling*, where an element is the same for all readers: with `R1 = x`, `R2[u] = R1[u] + R1[u - 1]`,
  `R4[u] = R2[u] + R2[u - 2]` and so on, a window of w steps is one of them for each bit of w. T * log2(w) operations
  instead of T * w, and sums are rounded as in a tree. Elements beyond the first or last step are the identity.
- *taps*, where elements differ from reader to reader, as in a convolution or attention to a few steps: the sum is
  written out, one shifted element for each position, if these are at most `TAPS`.

Legal because the monoids are associative and commutative, and because an element is combined exactly where it was read:
for doubling a range must be w steps, or end where there are no more elements, which is proved. Edges have a condition,
which `predicate.py` makes a guarded read. Not next to recurrences, whose loops go step by step and read ranges of rings
as they are; nor where the backend does not compile loops, since one operation on a range is one launch there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction, ge, le, lt, negation
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, NodeDim
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.sets import least, proves, simplified, simplified_term, with_facts
from polyrhythm.compiler.ir.terms import ONE, ZERO, Symbol, Term, dims_of, ordered
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.passes.elements import Element, Elements, emitted, mapped, renamed, symbols_of, walk
from polyrhythm.compiler.passes.notes import Notes
from polyrhythm.compiler.passes.predicate import circles_of, near_recurrences
from polyrhythm.compiler.passes.rewriting import Nodes
from polyrhythm.compiler.passes.running import (
    COMBINE,
    PLACE,
    Steps,
    Summed,
    axes_of,
    defined_like,
    step_symbol,
    steps_of,
)

TAPS = 16
"""The most steps of a window that is written out where elements differ from reader to reader."""

FEWEST = 2
"""Windows of one step are no windows."""


@dataclass(frozen=True)
class Window:
    """A reduction over at most `most` steps. `edge` is its step at the end that moves, `way` where the others lie."""

    node: Node
    definition: Definition
    summed: Summed
    steps: Steps
    length: Term
    most: int
    edge: Term
    way: int
    gone: frozenset[Symbol]
    known: Condition


def windows(graph: Graph, notes: Notes) -> Graph:
    """The graph with reductions over windows as combinations of shifted values."""
    if not notes.compiled_loops:
        return graph
    nodes, near = Nodes(graph), near_recurrences(graph, circles_of(graph))
    for node in graph:
        for number, definition in enumerate(node.definitions if node.name not in near else ()):
            for summed in axes_of(definition):
                found = window(nodes, node, definition, summed)
                made = None if found is None else result(nodes, found)
                if made is not None and found is not None:
                    nodes.redefine(nodes[node.name], number, made[1])
                    what = f"a {summed.monoid} over up to {found.most} steps is {made[0]}"
                    notes.did(f"window-{summed.monoid}", definition.at or node.at, what)
                    break
            else:
                stacked = _stacked(nodes, node, definition)
                if stacked is not None:
                    nodes.redefine(nodes[node.name], number, stacked)
                    notes.did("window-stack", definition.at or node.at, "a sum of windows is one sum for each position")
    return nodes.done()


def window(nodes: Nodes, node: Node, definition: Definition, summed: Summed) -> Window | None:
    """A reduction along an axis of a limited number of steps, which move with a dim of the reader."""
    read = [(access, axis) for access, axis in zip(definition.operands, summed.axes, strict=True) if axis is not None]
    ranged = ((steps_of(nodes, access, axis), access, axis) for access, axis in read)
    steps, access, axis = next((found for found in ranged if found[0] is not None), (None, *read[0]))
    if steps is None or dims_of(steps.extent) or node.recurrent:
        return None
    known = with_facts(nodes.known(node, definition))
    length = _distance(nodes.type_of(access).shape[axis], known)
    negated = least(-length, known)
    if negated is None or -negated < FEWEST or any(s in nodes.graph.stops for s in (length + steps.extent).symbols):
        return None
    start, last = _distance(steps.start, known), _distance(steps.start + length - 1, known)
    own = frozenset(node.symbols)
    for edge, way in ((last, -1), (start, 1)):
        gone = dims_of(edge) & own
        if len(gone) == 1 and edge.linear_in(*gone) and edge.coefficient(*gone) == 1 and len(edge.symbols) == 1:
            return Window(node, definition, summed, steps, length, -negated, edge, way, gone, known)
    return None


def result(nodes: Nodes, found: Window) -> tuple[str, Definition] | None:
    """How the reduction is computed, and its definition after the values that it combines were added."""
    place = Term.of(PLACE)
    if dtypes.accumulator(found.node.dtype) != found.node.dtype:
        return None
    element = found.summed.element(Elements(nodes, found.gone), found.definition, place - found.steps.start)
    if element is None or symbols_of(element) & found.gone:
        pairs = Elements(nodes, pair=found.gone | {PLACE})
        element = found.summed.element(pairs, found.definition, place - found.steps.start)
        made = None if element is None or found.most > TAPS else _taps(nodes, found, element)
        return None if made is None else ("written out", made)
    made = _doubled(nodes, found, element)
    return None if made is None else ("a combination of sums over powers of two", made)


def _doubled(nodes: Nodes, found: Window, element: Element) -> Definition | None:
    """A window as a combination of runs of 1, 2, 4, ... elements."""
    node, at, place = found.node, found.definition.at, Term.of(PLACE)
    low, high = (
        (found.edge - (found.length - 1), found.edge) if found.way < 0 else (found.edge, found.edge + found.length - 1)
    )
    # The elements that some window has, one for each step.
    where = conjunction(found.known, ge(place, low), le(place, high))
    own = step_symbol(nodes, [part for part in walk(element) if isinstance(part, Access)], found.steps.symbol)
    outer = tuple(dim for dim in node.dims if dim.symbol in symbols_of(element))
    if any(dim.symbol is own for dim in outer):
        return None
    dims = (*outer, NodeDim(own, found.steps.extent))
    like = defined_like(node, dims, where, own)
    # A shorter window has to end where elements do.
    beyond = found.edge + found.length * found.way
    short = conjunction(found.known, lt(found.length, found.most))
    if not proves(conjunction(short, like.points.substitute({own: beyond})), lt(found.length, 0)):
        return None
    plain = Definition(TRUE, "broadcast", (), {}, at)
    first = emitted(nodes, like, plain, f"{node.name}_element", renamed(element, {PLACE: Term.of(own)}))
    zero = nodes.constant(f"{node.name}_identity", dtypes.identity(found.summed.monoid, node.dtype), at)
    kind = TensorType(node.shape, node.dtype)
    if node.shape != nodes.type_of(first).shape:
        return None
    # Runs of 1, 2, 4, ... elements; a window is one of them for each bit of its length, side by side.
    run, size, offset, total = first, 1, 0, None
    while size <= found.most:
        if found.most & size:
            piece = run.substitute({own: found.edge + offset * found.way})
            inside = like.points.substitute({own: found.edge + offset * found.way})
            read = _guarded(nodes, node, kind, found.known, piece, zero, inside, f"{node.name}_part")
            total = read if total is None else _combined(nodes, node, kind, found, total, read)
            offset += size
        if 2 * size <= found.most:
            moved = run.substitute({own: Term.of(own) + size * found.way})
            inside = like.points.substitute({own: Term.of(own) + size * found.way})
            stand = replace(like, name=node.name)
            further = _guarded(nodes, stand, kind, like.points, moved, zero, inside, f"{node.name}_shifted")
            run = nodes.add(f"{node.name}_run", stand, plain, COMBINE[found.summed.monoid], [run, further])
        size *= 2
    assert total is not None
    return Definition(found.definition.domain, "broadcast", (total,), {"shape": node.shape}, at)


def _taps(nodes: Nodes, found: Window, element: Element) -> Definition:
    """A window written out: one element for each position, the identity where there is none."""
    node, at = found.node, found.definition.at
    here = replace(node, domain=conjunction(node.domain, found.definition.domain))
    kind = TensorType(node.shape, node.dtype)
    zero = nodes.constant(f"{node.name}_identity", dtypes.identity(found.summed.monoid, node.dtype), at)
    total = None
    for tap in range(found.most):
        inside = lt(Term(tap), found.length)
        known = conjunction(found.known, inside)
        part = _settled(renamed(element, {PLACE: found.edge + tap * found.way}), known)
        read = _element(nodes, here, kind, found.known, part, zero, inside)
        total = read if total is None else _combined(nodes, here, kind, found, total, read)
    assert total is not None
    return Definition(found.definition.domain, "broadcast", (total,), {"shape": node.shape}, at)


def _stacked(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """A sum over steps of values that have the positions of a window along an axis: one sum for each position.

    So is the gradient of a filter. No step then reads a range.
    """
    if definition.op != "reduce" or definition.attributes["monoid"] != "sum":
        return None
    (access,) = definition.operands
    source, ranges = nodes[access.source], len(access.ranges)
    made = source.only
    if not ranges or made is None or made.record.sited or definition.attributes["axes"] != tuple(range(ranges)):
        return None
    for axis, length in enumerate(source.shape):
        if not length.is_constant or not FEWEST <= length.constant <= TAPS:
            continue
        inner, before, inside = source.here, Term(0), length
        if made.op == "pad":
            inner, before = made.operands[0], Term.of(made.attributes["before"][axis])
            inside = nodes.type_of(inner).shape[axis]
            others = [n for key in ("before", "after") for a, n in enumerate(made.attributes[key]) if a != axis]
            if any(Term.of(n) is not ZERO for n in others):
                continue
        steps = steps_of(nodes, inner, axis)
        if steps is None or not dims_of(steps.start) & frozenset(source.symbols):
            continue
        known = with_facts(source.points)
        kind = TensorType((*source.shape[:axis], *source.shape[axis + 1 :]), source.dtype)
        value = made.attributes["value"] if made.op == "pad" else 0
        other = nodes.constant(f"{source.name}_padding", np.array(value, source.dtype), made.at)
        parts = []
        for tap in range(length.constant):
            here = conjunction(ge(Term(tap), before), lt(Term(tap), before + inside))
            element = Elements(nodes).of(inner, {axis: Term(tap) - before})
            if element is None:
                return None
            element = _settled(element, conjunction(known, here))
            read = _element(nodes, source, kind, known, element, other, here)
            each = Access(read.source, access.steps if read.steps == source.current else ())
            if not each.steps:
                return None
            parts.append(_placed(nodes, node, definition, each, axis))
        return Definition(definition.domain, "concat", tuple(parts), {"axis": axis}, definition.at)
    return None


def _placed(nodes: Nodes, node: Node, definition: Definition, each: Access, axis: int) -> Access:
    """The sum over steps of what one position adds, with an axis of length one where the position is."""
    total = nodes.add(f"{node.name}_position", node, definition, "reduce", (each,), **definition.attributes)
    shape = (*node.shape[:axis], ONE, *node.shape[axis + 1 :])
    return nodes.add(f"{node.name}_position", node, definition, "reshape", (total,), shape=shape)


def _element(
    nodes: Nodes, node: Node, kind: TensorType, known: Condition, element: Element, zero: Access, inside: Condition
) -> Access:
    """An element at the reader's points: guarded reads where it is made of such, and another guard around."""
    if isinstance(element, Access):
        return _guarded(nodes, node, kind, known, element, zero, inside, f"{node.name}_tap")
    plain = Definition(TRUE, "broadcast", (), {}, node.at)
    if proves(known, inside):
        return emitted(nodes, node, plain, f"{node.name}_tap", element)
    if not all(isinstance(part, Access) or _is_total(part.op) for part in walk(element)):
        limited = replace(node, domain=conjunction(node.domain, inside))
        made = emitted(nodes, limited, plain, f"{node.name}_tap", element)
        return _guarded(nodes, node, kind, known, made, zero, inside, f"{node.name}_tap")

    def read(access: Access) -> Access:
        source = nodes[access.source]
        steps = {symbol: step for symbol, step in source.steps(access).items() if isinstance(step, Term)}
        if not access.ranges and proves(known, source.points.substitute(steps)):
            return access
        own = nodes.type_of(access)
        one = nodes.constant(f"{node.name}_one", np.ones((), own.dtype), node.at)  # of which most functions are finite
        return _guarded(nodes, node, own, known, access, one, inside, f"{node.name}_read")

    made = emitted(nodes, node, plain, f"{node.name}_tap", mapped(element, read))
    return _guarded(nodes, node, kind, known, made, zero, inside, f"{node.name}_tap")


def _distance(value: Term, known: Condition) -> Term:
    """A term as a number or a distance from a dim, where it can only be that; else without branches that never win."""
    if value.is_constant:
        return value
    for base in (Term(0), *map(Term.of, ordered(dims_of(value)))):
        lowest, highest = least(value - base, known), least(base - value, known)
        if lowest is not None and highest is not None and lowest == -highest:
            return base + lowest
    return simplified_term(value, known)


def _settled(element: Element, known: Condition) -> Element:
    """An element whose terms are numbers, or a distance from a dim, where they can only be that."""

    def term(value: Term) -> Term:
        return _distance(value, known) if isinstance(value, Term) else value

    def read(access: Access) -> Access:
        return Access(access.source, tuple(term(step) if isinstance(step, Term) else step for step in access.steps))

    return mapped(element, read, term)


def _guarded(
    nodes: Nodes,
    node: Node,
    kind: TensorType,
    known: Condition,
    read: Access,
    zero: Access,
    inside: Condition,
    hint: str,
) -> Access:
    """What is read where a condition holds, else a constant: a node of two definitions, or the read itself."""
    if proves(known, inside):
        return read
    inside = simplified(inside, node.points)
    yes = Definition(inside, "broadcast", (read,), {"shape": kind.shape}, node.at)
    no = Definition(negation(inside), "broadcast", (zero,), {"shape": kind.shape}, node.at)
    return nodes.put(hint, node.dims, kind, yes, no, domain=node.domain, at=node.at).here


def _combined(nodes: Nodes, node: Node, kind: TensorType, found: Window, total: Access, read: Access) -> Access:
    made = Definition(TRUE, COMBINE[found.summed.monoid], (total, read), {}, found.definition.at)
    domain = conjunction(found.node.domain, found.definition.domain)
    return nodes.put(f"{node.name}_sum", node.dims, kind, made, domain=domain, at=found.definition.at).here


def _is_total(op: str) -> bool:
    """Whether an operation may be computed of anything, where the result is not used."""
    own = TABLE[op]
    return own.elementwise or own.linear or own.view or own.free or op == "reduce"
