"""From a schedule and a storage plan to the Loop IR.

Loops of the schedule are cut into pieces whose members are all active (`segments.py`); blocks become code over
places, in terms of the loop counters. A value that no other block needs is not stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction, eq, ge, lt, negation, parts_of
from polyrhythm.compiler.ir.graph import Access, Graph, Range, operand_type
from polyrhythm.compiler.ir.intervals import interval
from polyrhythm.compiler.ir.ops.record import map_attributes
from polyrhythm.compiler.ir.sets import Points, facts, points, proves, simplified, simplified_term
from polyrhythm.compiler.ir.terms import ZERO, Symbol, Term, maximum, minimum, ordered
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.loops import ir
from polyrhythm.compiler.loops.segments import (
    Ranges,
    Segment,
    Span,
    apart,
    clean_cut,
    cut,
    hull,
    large_bounds,
    nominal_value,
)
from polyrhythm.compiler.schedule.blocks import Block, Statement, definition_of, local_source
from polyrhythm.compiler.schedule.scheduler import Item, Loop, Member
from polyrhythm.compiler.schedule.storage import Storage

EDGE = 8
"""The most steps at which the members of a vectorised loop may differ from the rest without a loop of their own."""


def build(
    graph: Graph,
    blocks: Mapping[str, Block],
    items: Sequence[Item],
    storage: Mapping[str, Storage],
    masked: bool = False,
) -> ir.LoopProgram:
    """The Loop IR of a scheduled program; `masked` says that vectorised loops have masks for a few steps at an edge."""
    builder = _Builder(graph, blocks, storage, masked)
    required = (requirement.condition for requirement in graph.requirements)
    whole = conjunction(facts(frozenset(s for s in graph.symbols if s.kind != "dim")), *required)
    body = builder.items(items, {name: {} for name in blocks}, whole, large_bounds(builder.declared))
    return ir.LoopProgram(
        builder.places(),
        {name: node.name for name, node in graph.inputs.items()},
        graph.outputs,
        body,
        ordered(s for s in graph.mentioned if s.kind != "dim"),
        tuple(d.bound for d in graph.until if d.bound is not None),
        graph.requirements,
    )


Joined = dict[str, dict[Symbol, Member]]
"""For each block, how it takes part in the loops around it, by counter."""


class _Builder:
    def __init__(self, graph: Graph, blocks: Mapping[str, Block], storage: Mapping[str, Storage], masked: bool) -> None:
        self.graph, self.blocks, self.storage, self.masked = graph, blocks, storage, masked
        self.bounds = ordered(s for s in graph.symbols if s.kind != "dim")
        since = {symbol: declared.serial for declared, symbol in graph.declared.items()}
        self.declared = sorted(self.bounds, key=lambda bound: since.get(bound, 0))

    def places(self) -> dict[str, ir.Place]:
        """Every place that the program uses."""
        places = {}
        for node in self.graph:
            if node.is_input:
                slots = tuple(dim.extent for dim in node.dims)
                dims = tuple(dim.symbol.name for dim in node.dims)
                places[node.name] = ir.Place(
                    node.name, "input", slots, node.type, at=node.at, dims=dims, label=node.label
                )
            elif node.name in self.storage:
                kept = self.storage[node.name]
                output = node.name in (*self.graph.outputs, *self.graph.effects)
                kind: Any = "output" if output else "variable" if kept.is_variable else "buffer"
                ranges = {d.symbol: (ZERO, d.extent - 1) for d in node.dims}
                shape = tuple(maximum(ZERO, interval(n, ranges)[1]) if n.symbols else n for n in node.shape)
                places[node.name] = ir.Place(
                    node.name,
                    kind,
                    tuple(slot.count for slot in kept.indexed),
                    TensorType(shape, node.dtype),
                    tuple(map(str, kept.slots)),
                    kept.why,
                    node.at,
                    dims=tuple(slot.symbol.name if slot.whole else "" for slot in kept.indexed),
                    label=node.label,
                )
        return places

    def items(
        self, items: Sequence[Item], joined: Joined, given: Condition, nominal: Mapping[Symbol, int]
    ) -> tuple[ir.Item, ...]:
        """Code for some items; only blocks in `joined` are active here."""
        built: list[ir.Item] = []
        for item in items:
            if isinstance(item, Loop):
                built.extend(self._loop(item, joined, given, nominal))
            elif item in joined:
                built.extend(self._block(self.blocks[item], joined[item], given))
        return tuple(built)

    def _loop(self, loop: Loop, joined: Joined, given: Condition, nominal: Mapping[Symbol, int]) -> Iterator[ir.Item]:
        # Over which iterations each member is active.
        inside = {n: {**joined[n], loop.counter: m} for n, m in loop.members.items() if n in joined}
        ranges = self._ranges(loop, inside, given, nominal)
        if not ranges:
            return

        # Cut the loop where members begin and end; try another order of the bounds, then bounds that are not small.
        usual = None
        if not loop.tile and clean_cut(loop.counter, ranges, given, nominal) is None:
            other = {**nominal, **large_bounds(self.declared[::-1])}
            if clean_cut(loop.counter, self._ranges(loop, inside, given, other), given, other) is not None:
                yield from self._pieces(loop, inside, self._ranges(loop, inside, given, other), given, other)
                return
            usual = self._usual(loop, inside, given, nominal)
        if usual is None:
            yield from self._pieces(loop, inside, ranges, given, nominal)
            return

        # Two versions of the loop: for the usual bounds, cut cleanly, and for small ones, with guards.
        cases = [usual, negation(usual)]
        if self._stopper(loop, inside) is not None:
            # A length that is found is no larger than what it was: what was too small for the usual case stays so.
            cases.reverse()
        for case in cases:
            known = conjunction(given, case)
            ranges = self._ranges(loop, inside, known, nominal)
            body = tuple(self._pieces(loop, inside, ranges, known, nominal))
            if body:
                yield ir.If(case, body)

    def _pieces(
        self, loop: Loop, inside: Joined, ranges: Ranges, given: Condition, nominal: Mapping[Symbol, int]
    ) -> Iterator[ir.Item]:
        if not ranges:
            return
        weights = {name: len(self.blocks[name].statements) for name in ranges}
        stops = self._stopper(loop, inside) is not None
        if stops:
            weights = {}  # all pieces but the last may end early: they are not alike
        if loop.tile:  # the loops inside a tile have no iterations where there is nothing to do
            segments = [Segment(*hull([span for spans in ranges.values() for span in spans], given), tuple(ranges))]
        else:
            segments = cut(loop.counter, ranges, given, nominal, weights)
            if loop.parallel and not stops and self._is_edged(segments):
                segments = [Segment(*hull([span for spans in ranges.values() for span in spans], given), tuple(ranges))]
        if len(segments) == 1 and not stops:
            spans = (span for found in ranges.values() for span in found)
            active = {name: inside[name] for name in ranges}
            first, end = self._tight((segments[0].first, segments[0].end), spans, loop.counter, active, given)
            segments = [replace(segments[0], first=first, end=end)]
        for segment in segments:
            yield from self._segment(loop, segment, inside, given, nominal)

    def _is_edged(self, segments: Sequence[Segment]) -> bool:
        """Whether a vectorised loop is one but for a few steps at its edges, at which cheap members begin or end.

        A loop for those steps would be a second copy of the body.
        """
        if not self.masked or len(segments) < 2:
            return False
        long = [s for s in segments if not (s.end - s.first).is_constant or (s.end - s.first).constant > EDGE]
        if len(long) != 1:
            return False
        edges = {name for s in segments if s is not long[0] for name in s.active} - set(long[0].active)
        return not any(self.blocks[name].launches for name in edges)

    def _ranges(self, loop: Loop, inside: Joined, given: Condition, nominal: Mapping[Symbol, int]) -> Ranges:
        """The ranges of the counter over which each member is active."""
        spans = {name: self._spans(self.blocks[name], members, loop.counter, given) for name, members in inside.items()}
        spans = {name: found for name, found in spans.items() if found}
        stopper = self._stopper(loop, inside)
        if stopper not in spans:
            ranges = {name: apart(found, given, nominal) for name, found in spans.items()}
            for name, found in ranges.items():
                if len(found) == 1:
                    own = {name: inside[name]}
                    ranges[name] = [self._tight(found[0], spans[name], loop.counter, own, given)]
            return ranges
        # Members that run ahead of the stopping condition go on until it holds: nobody reads what they add.
        whole = {name: hull(found, given) for name, found in spans.items()}
        last = whole[stopper][1]
        return {name: [(first, maximum(end, last))] for name, (first, end) in whole.items()}

    def _tight(self, whole: Span, spans: Iterable[Span], counter: Symbol, inside: Joined, given: Condition) -> Span:
        """The span of some members as short as it is known to be.

        An end of one of their spans that holds for all of them, wherever they are active, is an end of the whole.
        """
        spans = tuple(spans)
        if len(spans) == 1:
            return whole
        active = [self._active(self.blocks[name], members, given) for name, members in inside.items()]
        here = Term.of(counter)

        def holds(claim: Condition) -> bool:
            return all(steps <= points(claim, steps.columns) for steps in active)

        firsts = [first for first in dict.fromkeys(first for first, _ in spans) if holds(ge(here, first))]
        ends = [end for end in dict.fromkeys(end for _, end in spans) if holds(lt(here, end))]
        first = simplified_term(maximum(*firsts), given) if firsts else whole[0]
        return first, simplified_term(minimum(*ends), given) if ends else whole[1]

    def _usual(self, loop: Loop, inside: Joined, given: Condition, nominal: Mapping[Symbol, int]) -> Condition | None:
        """Bounds large enough for the loop to be cut cleanly; smaller ones get a loop of their own."""
        ranges = self._ranges(loop, inside, given, nominal)
        ends = [end for spans in ranges.values() for span in spans for end in span]
        bounds = ordered(s for end in ends for s in end.symbols if s.kind != "dim" and not s.over)
        for least in range(1, 5):
            usual = conjunction(*(ge(Term.of(bound), least) for bound in bounds))
            known = conjunction(given, usual)
            ranges = self._ranges(loop, inside, known, nominal)
            if usual is not TRUE and ranges and clean_cut(loop.counter, ranges, known, nominal) is not None:
                return usual
        return None

    def _segment(
        self, loop: Loop, segment: Segment, inside: Joined, given: Condition, nominal: Mapping[Symbol, int]
    ) -> Iterator[ir.Item]:
        counter, end = loop.counter, segment.end
        known = conjunction(given, segment.holds(counter))
        middle = (nominal_value(segment.first, nominal) + nominal_value(segment.end, nominal)) // 2
        nominal = {**nominal, counter: middle}
        members = {name: inside[name] for name in segment.active}
        stopper = self._stopper(loop, members)
        stop = self._stop(loop, stopper) if stopper is not None else None
        during = known
        if stop is not None:
            # An earlier piece may have found the length: then this one has no iterations left.
            last = _last(stop, counter)
            end, during = minimum(end, last), conjunction(known, lt(Term.of(counter), last))
        body = self.items(loop.body, members, during, nominal)
        if body:
            yield _guards_outside(
                ir.For(counter, segment.first, end, body, stop, loop.parallel and stop is None), during
            )
        if stop is not None:
            members.pop(stopper)  # type: ignore[arg-type]
            yield from self._left(loop, segment, members, conjunction(known, ge(Term.of(counter), last)), last, nominal)

    def _left(
        self,
        loop: Loop,
        segment: Segment,
        members: Joined,
        given: Condition,
        first: Term,
        nominal: Mapping[Symbol, int],
    ) -> Iterator[ir.Item]:
        """What members that lag behind a stopping condition have left to do of a piece when it has ended."""
        if not points(given, ordered(given.symbols)).is_empty:
            body = self.items(loop.body, members, given, nominal)
            if body:
                yield ir.For(loop.counter, maximum(segment.first, first), segment.end, body, None, loop.parallel)

    def _stopper(self, loop: Loop, members: Joined) -> str | None:
        """The member of a loop whose value ends it."""
        for dim, node in self.graph.until.items():
            for name in members:
                if loop.members[name].dim is dim and any(s.node == node for s in self.blocks[name].statements):
                    return name
        return None

    def _stop(self, loop: Loop, name: str) -> ir.Stop:
        member = loop.members[name]
        assert member.dim is not None
        assert member.dim.bound is not None
        assert member.rate == 1, "a stopping condition goes forwards"
        step = Term.of(loop.counter) - member.offset
        node = self.graph[self.graph.until[member.dim]]
        kept = self.storage[node.name]
        index = tuple(slot.index(step) for slot in kept.indexed)
        return ir.Stop(ir.Load(node.name, index, node.type), member.dim.bound, step + 1)

    def _spans(self, block: Block, members: Mapping[Symbol, Member], counter: Symbol, given: Condition) -> list[Span]:
        """Ranges of counter values that hold all those at which a block is active; none if it never is."""
        steps = self._active(block, members, given)
        return [] if steps.is_empty else [(first, last + 1) for first, last in steps.intervals(counter)]

    def _active(self, block: Block, members: Mapping[Symbol, Member], given: Condition) -> Points:
        """The values of the counters at which a block is active."""
        times = [eq(Term.of(c), member.time) for c, member in members.items()]
        columns = (*self.bounds, *members, *block.dims)
        return points(conjunction(block.domain, *times, given), columns).without(block.dims)

    def _block(self, block: Block, members: Mapping[Symbol, Member], given: Condition) -> Iterator[ir.Item]:
        """The code of a block in terms of the counters, guarded where the loops around it do more than it needs."""
        steps: dict[Symbol, Term] = {}
        whole: list[Condition] = []
        for counter, member in members.items():
            since = Term.of(counter) - member.offset
            if member.dim is None:
                whole.append(eq(since, 0))
                continue
            forwards = since if member.rate > 0 else -since
            steps[member.dim] = forwards // abs(member.rate)
            whole.append(eq(forwards % abs(member.rate), 0))
        domain = conjunction(block.domain, *whole).substitute(steps)
        guard = simplified(domain, given)
        columns = ordered(guard.symbols | given.symbols)
        if points(conjunction(guard, given), columns).is_empty:
            return
        code = self._code(block, steps, conjunction(given, guard))
        yield code if guard is TRUE else ir.If(guard, (code,))

    def _code(self, block: Block, steps: Mapping[Symbol, Term], given: Condition) -> ir.Block:
        names: dict[Statement, str] = {}
        own = {statement.node for statement in block.statements}
        body: list[ir.Compute] = []
        stores: list[ir.Store] = []
        for statement in block.statements:
            node = self.graph[statement.node]
            definition = definition_of(self.graph, statement)
            point = tuple(term.substitute(steps) for term in statement.steps)
            names[statement] = name = _local(node.name, statement.steps == block.current, own, names.values())
            operands = tuple(self._operand(block, access, names, steps, given) for access in definition.operands)
            attributes = map_attributes(definition.attributes, lambda term: _settle(term.substitute(steps), given))
            if definition.op == "host":
                results = definition.attributes["function"].results
                attributes["shapes"] = tuple(tuple(n.substitute(steps) for n in r.shape) for r in results)
            at_point = dict(zip(node.symbols, point, strict=True))
            shape = tuple(_settle(n.substitute(at_point), given) for n in node.shape)
            kind = TensorType(shape, node.dtype)
            body.append(ir.Compute(name, definition.op, operands, attributes, kind, point, definition.at, node.name))
            kept = self.storage.get(node.name)
            if kept is not None and statement.steps == node.current:
                index = tuple(_settle(slot.index(at_point[slot.symbol]), given) for slot in kept.indexed)
                stores.append(ir.Store(node.name, index, name))
        return ir.Block(block.name, tuple(body), tuple(stores))

    def _operand(
        self,
        block: Block,
        access: Access,
        names: Mapping[Statement, str],
        steps: Mapping[Symbol, Term],
        given: Condition,
    ) -> ir.Operand:
        local = local_source(block, access)
        if local is not None:
            return ir.Local(names[local])
        source = self.graph[access.source]
        here = access.substitute(steps)
        kind = operand_type(here, source)
        kind = TensorType(tuple(_settle(n, given) for n in kind.shape), kind.dtype)
        if access.source not in self.storage:  # an input: all of it is there
            index = tuple(_whole(step, given) for step in here.steps)
            return ir.Load(access.source, index, kind)
        entries: list[Term | ir.Steps] = []
        for slot, step in zip(self.storage[access.source].slots, here.steps, strict=True):
            if isinstance(step, Range):
                ring = None if slot.whole else slot.count.constant
                start = step.start if slot.whole else step.start - slot.first
                entries.append(ir.Steps(start, _settle(step.length, given), step.step, ring))
            elif slot.is_axis:
                entries.append(_settle(slot.index(step), given))
        return ir.Load(access.source, tuple(entries), kind)


def _local(node: str, current: bool, own: Collection[str], taken: Collection[str]) -> str:
    """What a value is called in a block: like its node if it is of the current point, otherwise like none of them."""
    name, number = node, len(taken)
    while not current and (name in own or name in taken):
        name, number = f"{node}_{number}", number + 1
    return name


def _guards_outside(loop: ir.For, given: Condition) -> ir.Item:
    """The loop, inside the guards that all of its body implies and that are the same in every iteration."""
    guards = [item.condition if isinstance(item, ir.If) else TRUE for item in loop.body]
    if loop.stop is not None or TRUE in guards:
        return loop
    changed = {loop.counter, *(i.stop.bound for i in ir.walk((loop,)) if isinstance(i, ir.For) and i.stop is not None)}
    parts = dict.fromkeys(part for guard in guards for part in parts_of(guard) if not part.symbols & changed)
    shared = [
        part
        for part in parts
        if all(part in parts_of(guard) or proves(conjunction(given, guard), part) for guard in guards)
    ]
    if not shared:
        return loop
    common = conjunction(*shared)
    known = conjunction(given, common)
    body: list[ir.Item] = []
    for item in loop.body:
        assert isinstance(item, ir.If)
        left = [part for part in parts_of(item.condition) if part not in shared]
        rest = simplified(conjunction(*left), known)
        body.extend(item.body if rest is TRUE else [ir.If(rest, item.body)])
    return ir.If(common, (replace(loop, body=tuple(body)),))


def _last(stop: ir.Stop, counter: Symbol) -> Term:
    """The iteration after the one that looks at the last step: `length` is the counter and a shift."""
    return Term.of(stop.bound) - (stop.length - Term.of(counter)) + 1


def _whole(step: Term | Range, given: Condition) -> Term | ir.Steps:
    if isinstance(step, Range):
        return ir.Steps(step.start, _settle(step.length, given), step.step)
    return simplified_term(step, given)


def _settle(value: Any, given: Condition) -> Any:
    """A term simplified by what is known; conditions stay as they are."""
    return simplified_term(value, given) if isinstance(value, Term) else value
