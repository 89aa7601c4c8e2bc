"""The pass: rows of different lengths, stored and computed at the longest, with what lies beyond never used.

A dim whose bound is data gets a plain bound, the longest row; its nodes have values beyond the end of a row that mean
nothing. Legal because every read was proved to stay inside the row before: a step beyond the end is read by steps
beyond the end only, or by a range whose operation gets the end by a mask (`operations.py`). A length that occurs in an
index, a condition or a value is read as data (`lengths.py`). Definitions that hold where a condition on lengths
does become one value each and a select between them; each value is computed on the projection of its condition, where
its reads are in range for some length, so they are for the longest. The result is an ordinary graph, and is
checked again like any other.

Runs after gradients, so that no gradient of a select is ever taken: it would turn an infinity beyond the end into NaN.
Costs: the steps beyond the ends are computed, unless rows of similar length can run together (`loops/rows.py`).

Outputs with rows of different lengths: zeros beyond the end, and an output of the lengths beside each.

A caller gets `Ragged(values, lengths)`, as from `pr.evaluate`. So does an output whose shape differs from step to step:
its values are padded to the largest shape, and their lengths follow from the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from polyrhythm.compiler.analysis.check import checked
from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction, lt, negation, within
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, NodeDim, Range, copy_of, operand_type
from polyrhythm.compiler.ir.intervals import interval
from polyrhythm.compiler.ir.reads import fresh_name
from polyrhythm.compiler.ir.sets import is_possible, points, proves, simplified, with_facts
from polyrhythm.compiler.ir.terms import ZERO, Symbol, Term, dims_of, maximum, ordered
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.ir.values import Growing, Space, Value
from polyrhythm.compiler.ragged import stopping
from polyrhythm.compiler.ragged.application import Application, positions
from polyrhythm.compiler.ragged.lengths import Lengths, Longest, OutputRows, Rows, masked
from polyrhythm.compiler.ragged.operations import rewritten
from polyrhythm.errors import CycleError, OutOfRangeError, ProgressError, RaggedShapeError, UnsupportedError


def rectangular(graph: Graph) -> tuple[Graph, Rows | None]:
    """The graph without lengths that are data, and what a caller must know of them; None where there are none."""
    per_row = [dim for dim in graph.until if dim.bound is not None and dim.bound.over]
    varying = any(set(node.symbols) & n.symbols for node in map(graph.__getitem__, graph.outputs) for n in node.shape)
    if not graph.lengths and not per_row and not varying:
        return graph, None
    pass_ = _Rectangle(graph, per_row)
    try:
        return checked(pass_.graph()), pass_.rows
    except (ProgressError, CycleError, OutOfRangeError) as error:
        raise UnsupportedError(
            "compiled programs compute rows of different lengths at the longest, and there the program has no order of "
            f"steps: {error.what if hasattr(error, 'what') else str(error).splitlines()[0]}",
            fix="run it with pr.evaluate",
            at=error.at,
        ) from error


class _Rectangle:
    """Builds the rectangular graph node by node."""

    rows: Rows

    def __init__(self, graph: Graph, per_row: Sequence[Symbol]) -> None:
        self.old = graph
        taken = {symbol.name for symbol in graph.symbols if symbol not in graph.lengths}
        longest: dict[Symbol, Symbol] = {}
        for bound in graph.lengths:
            limit = bound.max if bound.max is not None and not bound.max.symbols & graph.lengths.keys() else None
            name = fresh_name(bound.name, taken)
            longest[bound] = Symbol(name, "bound", max=limit, min=bound.min)
            taken.add(name)
        reads = dict(graph.lengths)
        self.early: dict[Symbol, bool] = {}
        for dim in per_row:
            assert dim.bound is not None
            longest[dim.bound] = stopping.limit_of(dim)
            reads[dim.bound] = Access("", ())
            self.early[dim] = stopping.separable(graph, dim)
            if not self.early[dim]:
                longest[longest[dim.bound]] = longest[dim.bound]
                reads[longest[dim.bound]] = Access("", ())
        self.lengths = Lengths(longest, reads)
        self.reads = reads
        self.growing = Growing({node.name: self._shell(node) for node in graph})
        self.alive: dict[Symbol, str] = {}
        self.zeroed: dict[tuple[str, Condition], str] = {}
        self.until = {dim: name for dim, name in graph.until.items() if dim not in self.early}
        for dim in per_row:
            self._stop(dim)

    def _shell(self, node: Node) -> Node:
        """A node at the longest rows, without its definitions."""
        dims = tuple(NodeDim(d.symbol, self.lengths.widest(d.extent)) for d in node.dims)
        kind = TensorType(tuple(self.lengths.widest(n) for n in node.shape), node.dtype)
        domain = self._projected(node, node.domain) if node.recurrent else TRUE
        return replace(node, dims=dims, type=kind, definitions=(), domain=domain)

    def _projected(self, node: Node, condition: Condition) -> Condition:
        """Where a condition holds for some lengths up to the longest."""
        if not self.lengths.vary(condition.symbols):
            return condition
        known = conjunction(node.rectangle, condition)
        varying = [s for s in known.symbols if s in self.reads]
        # The longest row bounds the others; a length that may be anything else is not looked at.
        longest = {s: self.lengths.longest[s] for s in varying}
        limits = conjunction(*(within(s, Term.of(most) + 1) for s, most in longest.items() if most is not s))
        known = with_facts(conjunction(known, limits))
        left = points(known, ordered(known.symbols)).without(varying)
        shell = conjunction(*(within(d.symbol, self.lengths.widest(d.extent)) for d in node.dims))
        return simplified(left.condition(), with_facts(shell))

    def _stop(self, dim: Symbol) -> None:
        """A dim that ends at a step of its own for each row: its lengths, and the condition for all."""
        assert dim.bound is not None
        old = self.old[self.old.until[dim]]
        done = self.growing.nodes[old.name]
        limit = self.lengths.longest[dim.bound]
        others = conjunction(*(within(d.symbol, d.extent) for d in old.dims if d.symbol is not dim))
        exists = partial(self._exists, others)
        alive = self.alive[dim] = stopping.lived(self.growing, done, dim, Term.of(limit))
        count = stopping.counted(self.growing, alive, dim)
        owners = tuple(Term.of(d.symbol) for d in self.growing.nodes[count].dims)
        self.reads[dim.bound] = Access(count, owners)
        if self.early[dim]:
            self.until[dim] = stopping.all_ended(self.growing, alive, done, dim, exists)
        else:
            self.reads[limit] = Access(stopping.longest_of(self.growing, count, Term.of(limit), exists), ())

    def _exists(self, others: Condition, space: Space) -> Value | None:
        return self.lengths.truth(space, others) if self.lengths.vary(others.symbols) else None

    def graph(self) -> Graph:
        """The whole graph, with the outputs that tell lengths added."""
        for node in self.old:
            self._define(node)
        outputs, self.rows = returned(self.old, self.growing, self.lengths, self.alive)
        nodes = dict(self.growing.nodes)
        graph = replace(
            self.old, nodes=nodes, outputs=outputs, lengths={}, until=self.until, requirements=(), checkpoints=()
        )
        return _with_dims(graph, self.lengths.longest)

    def _define(self, node: Node) -> None:
        shell = self.growing.nodes[node.name]
        pieces = [
            replace(piece, domain=self._of_own_rows(conjunction(node.points, piece.domain), piece.domain))
            for definition in node.definitions
            for piece in self._pieces(definition)
        ]
        if not any(self.lengths.vary(piece.domain.symbols) for piece in pieces):
            made = tuple(self._piece(node, shell, piece, piece.domain) for piece in pieces)
            self.growing.nodes[node.name] = replace(shell, definitions=made)
            return
        cases = []
        for piece in pieces:
            where = self._projected(node, piece.domain)
            if is_possible(conjunction(shell.points, where)):
                made_piece = self._piece(node, shell, piece, where)
                only = replace(made_piece, domain=TRUE)
                value = self.growing.put(f"{node.name}_case", shell.dims, shell.type, only, at=piece.at)
                cases.append((where, piece.domain, value.name))
        self.growing.nodes[node.name] = replace(shell, definitions=tuple(self._chosen(shell, cases)))

    def _of_own_rows(self, here: Condition, domain: Condition) -> Condition:
        """A condition without the length of the longest row, if rows walked earlier can tell as much without it."""
        unknown = [bound for bound in ordered(domain.symbols) if self.lengths.longest.get(bound) is bound]
        if not unknown:
            return domain
        known = with_facts(domain)
        own = points(known, ordered(known.symbols)).without(unknown).condition()
        return own if proves(conjunction(here, own), domain) else domain

    def _chosen(self, shell: Node, cases: Sequence[tuple[Condition, Condition, str]]) -> list[Definition]:
        """Definitions on the parts where the same values may be the right one: that of the condition that holds."""
        cells: list[tuple[Condition, list[tuple[Condition, str]]]] = [(TRUE, [])]
        for where, condition, value in cases:
            found = []
            for cell, holding in cells:
                inside, outside = conjunction(cell, where), conjunction(cell, negation(where))
                if is_possible(conjunction(shell.points, inside)):
                    found.append((inside, [*holding, (condition, value)]))
                if is_possible(conjunction(shell.points, outside)):
                    found.append((outside, holding))
            cells = found
        definitions = []
        for cell, holding in cells:
            if not holding:
                continue  # a plain node is needed nowhere there
            cell = simplified(cell, with_facts(shell.points))
            space = Space(self.growing, shell.dims, conjunction(shell.points, cell), shell.at, shell.name)
            *others, (_, last) = holding
            chosen = space.current(last)
            for condition, value in reversed(others):
                chosen = space.current(value).where(self.lengths.truth(space, condition), chosen)
            source = self.growing.nodes[chosen.access.source]
            definitions.append(copy_of(chosen.access, source, shell.shape, cell, shell.at))
        return definitions

    def _pieces(self, definition: Definition) -> list[Definition]:
        """A definition; one that chooses by a condition on lengths as the two that it chooses from."""
        if not definition.record.chooses or not self.lengths.vary(definition.attributes["condition"].symbols):
            return [definition]
        shape = {"shape": definition.attributes["shape"]}
        return [
            Definition(
                conjunction(definition.domain, definition.read_where(k)), "broadcast", (read,), shape, definition.at
            )
            for k, read in enumerate(definition.operands)
        ]

    def _piece(self, node: Node, shell: Node, definition: Definition, where: Condition) -> Definition:
        """What a definition computes at the longest rows, on some part of the node."""
        space = Space(self.growing, shell.dims, conjunction(shell.points, where), definition.at, node.name)
        if definition.op == "host":
            self._check_host(node, definition)
        types = tuple(operand_type(access, self.old[access.source]) for access in definition.operands)
        accesses = tuple(self._cut_short(definition, types, number) for number in range(len(types)))
        values = tuple(self._read(space, access) for access in accesses)
        # An axis that ends in zeros counts whole.
        ended = frozenset(
            (number, axis)
            for number, read in enumerate(definition.operands)
            for axis, run in enumerate(read.ranges)
            if accesses[number] is not read and self.lengths.vary(run.symbols)
        )
        made = rewritten(Application(self.lengths, space, node, definition, values, types, ended))
        return replace(made, domain=where)

    def _cut_short(self, definition: Definition, types: tuple[TensorType, ...], number: int) -> Access:
        """A read of rows that are summed: of zeros beyond their ends, which are put there step by step.

        A sum of products then stays one, which a contraction over all rows can be made of.
        """
        access = definition.operands[number]
        source = self.old[access.source]
        varying = [d for d, step in source.steps(access).items() if self.lengths.vary(step.symbols)]
        if len(varying) != 1 or source.is_input or source.recurrent or not dtypes.is_float(source.dtype):
            return access
        (dim,) = varying
        step = source.steps(access)[dim]
        still = all(s is Term.of(d) for d, s in source.steps(access).items() if d is not dim)
        if not isinstance(step, Range) or step.step != 1 or self.lengths.vary(step.start.symbols) or not still:
            return access
        if definition.record.external or definition.record.calls:
            return access
        signature = definition.record.signature(types, definition.attributes)
        label = signature.operands[number][0]
        role = signature.roles[label] if label is not None else None
        inside = set(source.symbols) - {dim}
        if role is None or role.monoid != "sum" or role.kind != "reduce":
            return access
        if not all(s.kind != "dim" or s in inside for s in step.symbols):
            return access
        end = lt(Term.of(dim), step.start + step.length)
        wide = Range(step.start, self.lengths.widest(step.length))
        steps = tuple(wide if s is dim else Term.of(s) for s in source.symbols)
        return Access(self._zeroed(source, dim, step.start, end), steps)

    def _zeroed(self, source: Node, dim: Symbol, start: Term, end: Condition) -> str:
        """A node that is zero beyond a step of each row."""
        if (source.name, end) not in self.zeroed:
            shell = self.growing.nodes[source.name]
            space = Space(self.growing, shell.dims, shell.points, source.at, source.name)
            only = self._seen_through(source, end)
            if only is not None and only.op in ("mul", "einsum") and any(dim in a.symbols for a in only.operands):
                made = self._product(source, only, space, dim, start, end)
            else:
                made = space.current(source.name).where(self.lengths.truth(space, end))
            self.zeroed[source.name, end] = made.access.source
        return self.zeroed[source.name, end]

    def _seen_through(self, node: Node, inside: Condition) -> Definition | None:
        """The definition of a plain node where a condition holds, or of what it copies, in terms of its own dims."""
        here = conjunction(node.points, inside)
        found = _only(node, here)
        while found is not None and found.op == "copy" and not found.operands[0].ranges:
            copied = self.old[found.operands[0].source]
            steps = {d: s for d, s in copied.steps(found.operands[0]).items() if isinstance(s, Term)}
            moved = [d for d, s in steps.items() if s is not Term.of(d)]
            if any(d in s.over for d in moved for s in conjunction(copied.points).symbols):
                return None
            renamed = replace(copied, definitions=tuple(d.substitute(steps) for d in copied.definitions))
            found = _only(renamed, here)
        return found

    def _product(self, source: Node, only: Definition, space: Space, dim: Symbol, start: Term, end: Condition) -> Value:
        """A product whose factors at each step are zero beyond the end, those of whole rows where a row has no step."""
        outer = tuple(d for d in space.dims if d.symbol is not dim)
        rows = Space(self.growing, outer, TRUE, space.at, space.prefix)
        some = end.substitute({dim: start})
        owners = {d for s in some.symbols for d in (s, *s.over)}
        values = []
        for access in only.operands:
            if dim in access.symbols:
                values.append(self._read(space, access).where(self.lengths.truth(space, end)))
            elif owners & access.symbols:
                row = self._read(rows, access).where(self.lengths.truth(rows, some))
                values.append(space.read(row.access))
            else:
                values.append(self._read(space, access))
        types = tuple(operand_type(access, self.old[access.source]) for access in only.operands)
        made = rewritten(Application(self.lengths, space, source, only, tuple(values), types))
        kind = self.growing.nodes[source.name].type
        return space.current(self.growing.put(f"{source.name}_ended", space.dims, kind, made, at=only.at).name)

    def _check_host(self, node: Node, definition: Definition) -> None:
        if definition.effect is not None and self.lengths.vary(node.rectangle.symbols):
            raise UnsupportedError(
                f"{described(node)} has an effect at the steps of rows of different lengths, which compiled programs "
                "compute beyond the end of the shorter rows too",
                fix="run it with pr.evaluate, or give the effect the dims of the rows alone",
                at=definition.at,
            )

    def _read(self, space: Space, access: Access) -> Value:
        """What an access reads, with the steps that depend on lengths picked out of all that there are."""
        source = self.growing.nodes[access.source]
        steps: list[Term | Range] = []
        picked: list[tuple[int, Term | Range]] = []
        axis = 0
        for dim, step in zip(source.dims, access.steps, strict=True):
            start = step.start if isinstance(step, Range) else step
            turned = isinstance(step, Range) and step.step < 0 and self.lengths.vary(step.length.symbols)
            if self.lengths.vary(start.symbols) or turned:
                picked.append((axis, step))
                steps.append(Range(ZERO, dim.extent))
            elif isinstance(step, Range):
                steps.append(Range(step.start, self.lengths.widest(step.length), step.step))
            else:
                steps.append(step)
            axis += isinstance(steps[-1], Range)
        value = space.read(Access(access.source, tuple(steps)))
        for axis, step in reversed(picked):
            if isinstance(step, Range):
                size = self.lengths.widest(step.length)
                value = value.apply("take", positions(self.lengths, space, step.start, size, step.step), axis=axis)
            else:
                value = value.apply("take", self.lengths.value(space, step), axis=axis)
        return value


def _only(node: Node, here: Condition) -> Definition | None:
    """The definition of a plain node that holds wherever a condition does."""
    known = with_facts(here)
    holding = (d for d in node.definitions if d.domain is TRUE or proves(known, d.domain))
    return None if node.recurrent else next(holding, None)


def _with_dims(graph: Graph, longest: Mapping[Symbol, Symbol]) -> Graph:
    """The graph with the dims of the longest rows in place of the ragged ones."""
    dims = {s: longest[s.bound] for node in graph for s in node.symbols if s.bound is not None and s.bound in longest}
    new = {s: s.with_(bound=bound) for s, bound in dims.items() if bound is not s.bound}
    if not new:
        return graph
    nodes = {node.name: node.over(new) for node in graph}
    declared = {old: new.get(symbol, symbol) for old, symbol in graph.declared.items()}
    until = {new.get(dim, dim): name for dim, name in graph.until.items()}
    return replace(graph, nodes=nodes, declared=declared, until=until)


__all__ = ["rectangular"]


def returned(
    graph: Graph, growing: Growing, lengths: Lengths, alive: Mapping[Symbol, str]
) -> tuple[tuple[str, ...], Rows]:
    """The outputs of the rectangular graph, and how the caller gets rows back."""
    outputs: list[str] = []
    extra: list[str] = []
    count = len(graph.outputs)
    ragged: dict[int, OutputRows] = {}
    for number, name in enumerate(graph.outputs):
        node = graph[name]
        found = _ragged_axis(node, lengths)
        if found is None:
            outputs.append(name)
            continue
        axis, cut = found
        values, sizes = _padded(node, growing, lengths, alive, axis, cut)
        outputs.append(values)
        ragged[number] = OutputRows(axis, count + len(extra), cut)
        extra.append(sizes)
    longest = []
    for bound, access in graph.lengths.items():
        source = graph[access.source]
        given = next((name for name, node in graph.inputs.items() if node.name == source.name), None)
        direct = access.steps == source.current
        told = None
        if given is None or not direct:
            told = count + len(extra)
            extra.append(_lengths_node(graph, growing, lengths, bound, access) if not direct else source.name)
        known = given if direct else None
        longest.append(Longest(bound, lengths.longest[bound], access, known, told, source.at))
    inputs = {n for n, node in graph.inputs.items() if lengths.vary(node.rectangle.symbols)}
    return (*outputs, *extra), Rows(count, tuple(longest), ragged, frozenset(inputs))


def _lengths_node(graph: Graph, growing: Growing, lengths: Lengths, bound: Symbol, access: Access) -> str:
    """A node of its own for lengths that are a view of another tensor."""
    node = next(node for node in graph if set(bound.over) <= set(node.symbols))
    dims = tuple(NodeDim(d.symbol, lengths.widest(d.extent)) for d in node.dims if d.symbol in bound.over)
    space = Space(growing, dims, growing.nodes[node.name].rectangle, graph[access.source].at, f"{bound.name}_lengths")
    return space.read(access).apply("copy").access.source


def _ragged_axis(node: Node, lengths: Lengths) -> tuple[int, bool] | None:
    """The axis of an output that differs from row to row, dims first; whether it is merely cut to a found length."""
    along = [axis for axis, d in enumerate(node.dims) if lengths.vary(d.extent.symbols)]
    along += [len(node.dims) + axis for axis, n in enumerate(node.shape) if dims_of(n) or lengths.vary(n.symbols)]
    if not along:
        return None
    if len(along) > 1:
        raise RaggedShapeError(
            f"{described(node)} is ragged along more than one axis, so one array of lengths cannot describe it",
            fix="reduce or pad all but one of them inside the program",
            at=node.at,
        )
    axis = along[0]
    term = node.dims[axis].extent if axis < len(node.dims) else node.shape[axis - len(node.dims)]
    return axis, not dims_of(term)


def _padded(
    node: Node, growing: Growing, lengths: Lengths, alive: Mapping[Symbol, str], axis: int, cut: bool
) -> tuple[str, str]:
    """An output with zeros beyond its rows, and its lengths."""
    shell = growing.nodes[node.name]
    space = Space(growing, shell.dims, shell.points, node.at, node.name)
    value = space.current(node.name)
    if axis < len(node.dims):
        along = node.dims[axis]
        others = tuple(d for d in shell.dims if d.symbol is not along.symbol)
        sizes = Space(growing, others, growing.nodes[node.name].rectangle, node.at, f"{node.name}_lengths")
        size = lengths.value(sizes, maximum(ZERO, along.extent)).settled().access.source
        inside = _inside(space, along, lengths, alive)
        return value.where(inside).access.source, size
    length = node.shape[axis - len(node.dims)]
    size = lengths.value(space, maximum(ZERO, length)).settled().access.source
    value = masked(lengths, value, axis - len(node.dims), length, 0)
    wide = value.shape[axis - len(node.dims)]
    ranges = {d.symbol: (ZERO, maximum(ZERO, d.extent - 1)) for d in shell.dims}
    most = interval(wide, ranges)[1]
    if most is not wide:
        value = value.lengthened(axis - len(node.dims), ZERO, most - wide, 0)
    return value.access.source, size


def _inside(space: Space, along: NodeDim, lengths: Lengths, alive: Mapping[Symbol, str]) -> Value:
    """Whether a step lies before the end of its row; of a dim that ends early, before it is known where."""
    dim = next((s for s in alive if s.bound is not None and along.extent is Term.of(s.bound)), None)
    if dim is not None:
        node = space.graph.nodes[alive[dim]]
        steps = tuple(Term.of(along.symbol) if s is dim else Term.of(s) for s in node.symbols)
        return space.read(Access(node.name, steps))
    return lengths.truth(space, within(along.symbol, along.extent))
