"""From the tensors a user holds to the dependence graph: walk back from the outputs.

Tensors become nodes in the order in which the walk completes them. Views disappear into accesses. Symbols that
share a name are told apart by numbers. Random sites without a name are numbered in the order of the walk, host
calls in the order of their construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import isqrt
from typing import Any

import numpy as np

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir import sets
from polyrhythm.compiler.ir.conditions import TRUE, Condition, negation
from polyrhythm.compiler.ir.graph import Access, Checkpoint, Definition, Graph, Node, NodeDim, Range, Step
from polyrhythm.compiler.ir.ops import record
from polyrhythm.compiler.ir.ops.record import attribute_terms, map_attributes
from polyrhythm.compiler.ir.reads import after_successors, fresh_name, reached
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.ir.type_faults import Subject, type_faults
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.errors import BoundsError, DuplicateNameError, RaggedShapeError, RecomputeError, UntilError
from polyrhythm.language.checkpoint import Mark
from polyrhythm.language.custom import Ruled
from polyrhythm.language.gradient import Gradient
from polyrhythm.language.index import Dim, extent_of
from polyrhythm.language.recurrent import Recurrent
from polyrhythm.language.tensor import Choice, Computed, Tensor, View, apart, apply, counted, natural
from polyrhythm.source import Source

Piece = tuple[Condition, str, tuple[Tensor, ...], Mapping[str, Any], Source]


def trace(
    outputs: Sequence[Tensor],
    effects: Sequence[Tensor] = (),
    until: Mapping[Dim, Tensor] | None = None,
    fixed: Mapping[Symbol, Term] | None = None,
    names: Sequence[str | None] = (),
) -> Graph:
    """The graph that computes some tensors, with some bounds fixed for good; `names` are those of the outputs."""
    stops = {d.symbol: _condition(d.symbol, done) for d, done in map(_stop, (until or {}).items())}
    roots = [_plain(tensor, name) for tensor, name in zip_longest((*outputs, *effects), names)]
    for dim in stops:
        if dim.bound in (fixed or {}):
            raise BoundsError(
                f"{dim.bound} cannot be fixed when compiling, since until ends {dim} as the program runs",
                fix=f"give the most steps at the call, bounds={{{dim.bound}: ...}}",
            )
    walk = _Walk(per_index=_per_index(stops))
    walk.visit([*roots, *stops.values()])
    graph = walk.graph(roots[: len(outputs)], roots[len(outputs) :], stops, fixed or {})
    if walk.per_index:
        _check_shapes(graph)
    return graph


def _stop(entry: tuple[Dim, Tensor]) -> tuple[Dim, Tensor]:
    dim, done = entry
    if not isinstance(dim, Dim) or not isinstance(done, Tensor):
        raise UntilError(
            f"until={{{dim!r}: ...}} does not give a tensor for a dim",
            fix="name a dim and a boolean tensor that varies along it, as in until={t: token == end}",
        )
    if dim.symbol.bound is not None and dim.symbol.bound.min > 1:
        raise UntilError(
            f"{dim} is declared with at least {dim.symbol.bound.min} steps, which a stopping condition cannot promise",
            fix=f"declare it without min=, or with min=1: pr.dim({dim.symbol.name!r}, min=1)",
            also=(("computed at", done.line),),
        )
    if dim.symbol not in done.symbols or done.type.shape or done.dtype != np.dtype(bool):
        over = f"over {', '.join(map(str, done.dims))}" if done.dims else "without dims"
        raise UntilError(
            f"until={{{dim}: ...}} needs a boolean scalar for each step of {dim}, not {done.type} {over}",
            fix="compare a scalar that varies along the dim, as in until={t: token == end}",
            also=(("computed at", done.line),),
        )
    return entry


def _per_index(stops: Mapping[Symbol, Tensor]) -> dict[Symbol, tuple[Symbol, ...]]:
    """The bounds that differ along further dims of their stopping condition, and these dims."""
    owners = {s.bound: tuple(d for d in done.symbols if d is not s) for s, done in stops.items() if s.bound}
    for dim, done in stops.items():
        assert dim.bound is not None
        if dim.bound in extent_of:
            raise UntilError(
                f"{dim} is ragged, so it cannot end early too",
                fix="let the lengths decide, or the condition: make the dim without extent=",
                also=(("computed at", done.line),),
            )
        if dim in reached(lambda s: (*s.bound.over, *owners.get(s.bound, ())) if s.bound else (), owners[dim.bound]):
            raise UntilError(
                f"the length of {dim} differs along {', '.join(map(str, owners[dim.bound]))}, whose length depends "
                f"on {dim} in turn",
                fix="stop one of them by a condition that does not vary along the other",
                also=(("computed at", done.line),),
            )
    return {bound: dims for bound, dims in owners.items() if dims}


def _check_shapes(graph: Graph) -> None:
    """Lengths that differ from index to index fit together: when the tensors were made, they were one."""
    for name, what in type_faults(Subject(graph)):
        node = graph[name]
        ends = ", ".join(
            f"{d} at a step of its own for each {', '.join(map(str, d.bound.over))}" for d in graph.until if d.bound
        )
        raise RaggedShapeError(
            f"until ends {ends}, so the shapes of {described(node)} do not fit: {what.splitlines()[0]}",
            fix="combine lengths of the same row only: give each operand the dims of the stopping condition, or reduce "
            "it first",
            at=node.at,
        )


def _plain(tensor: Tensor, name: str | None) -> Tensor:
    """A tensor of its own for what is used over its whole domain, whatever else the expression is used for."""
    if isinstance(tensor, Recurrent) or (isinstance(tensor, Computed) and tensor.op == "input"):
        return tensor
    return _copied(tensor, name)


def _condition(dim: Symbol, done: Tensor) -> Tensor:
    """A stopping condition at the steps that its dim has, however many more the values have that it looks at."""
    plain = _copied(done)
    assert isinstance(plain, Computed)
    spans = tuple(natural(dim) if span.symbol is dim else span for span in plain.spans)
    cut = Computed(plain.op, plain.operands, plain.attributes, spans, plain.type, plain.weak)
    cut.line, cut.name = plain.line, plain.name
    return cut


def _copied(tensor: Tensor, name: str | None = None) -> Tensor:
    """A tensor with one definition, whatever the tensor is: a stopping condition is looked at in one place."""
    plain = apply("copy", tensor)
    plain.line, plain.name = tensor.line, name or tensor.name
    return plain


@dataclass
class _Walk:
    """Finds every tensor behind the outputs, then names and converts them."""

    order: list[Tensor] = field(default_factory=list)
    names: dict[Tensor, str] = field(default_factory=dict)
    renamed: dict[Symbol, Symbol] = field(default_factory=dict)
    lengths: dict[Symbol, Tensor] = field(default_factory=dict)
    sites: dict[Tensor, str] = field(default_factory=dict)
    per_index: Mapping[Symbol, tuple[Symbol, ...]] = field(default_factory=dict)
    rows: dict[Symbol, Symbol] = field(default_factory=dict)
    taken_apart: dict[View, Tensor] = field(default_factory=dict)
    in_rows: dict[tuple[Tensor, tuple[Symbol, ...]], Tensor] = field(default_factory=dict)

    def visit(self, roots: Iterable[Tensor]) -> None:
        """Depth first with a stack of our own: programs may be deeper than Python's recursion limit."""

        def children(tensor: Tensor) -> list[Tensor]:
            self._note_symbols(tensor)
            return self._children(tensor)

        self.order += after_successors(children, roots)

    def _children(self, tensor: Tensor) -> list[Tensor]:
        read = [t for _, _, operands, _, _ in self._pieces(tensor) for t in operands]
        read += [self.lengths[s] for s in self._symbols(tensor) if s in self.lengths]
        read += [tensor.loss, *tensor.leaves] if isinstance(tensor, Gradient) else []
        read += [t for t in tensor.backward if t is not None] + [tensor.cotangent] if isinstance(tensor, Ruled) else []
        return [t.source if isinstance(t, View) else t for t in read]

    def _symbols(self, tensor: Tensor) -> set[Symbol]:
        """Every symbol a tensor's own definition mentions."""
        found: set[Symbol] = set()
        for span in tensor.spans:
            found |= {span.symbol} | span.extent.symbols
        for length in tensor.type.shape:
            found |= length.symbols
        for condition, _, operands, attributes, _ in self._pieces(tensor):
            found |= condition.symbols
            for operand in operands:
                for step in operand.steps if isinstance(operand, View) else ():
                    found |= step.symbols
            for value in attributes.values():
                found = found.union(*(term.symbols for term in attribute_terms(value)))
        return found

    def _note_symbols(self, tensor: Tensor) -> None:
        for symbol in sorted(self._symbols(tensor), key=lambda s: s.serial):
            self._rename(symbol)

    def _rename(self, symbol: Symbol) -> Symbol:
        if symbol not in self.renamed:
            if symbol in extent_of:
                self.lengths[symbol] = extent_of[symbol]
            bound = self._rename_bound(symbol.bound) if symbol.bound else None
            over = tuple(self._rename(s) for s in symbol.over)
            limit = symbol.max
            if limit is not None:
                limit = limit.substitute({s: Term.of(self._rename(s)) for s in limit.symbols})
            name = fresh_name(symbol.name, {s.name for s in self.renamed.values()})
            self.renamed[symbol] = Symbol(name, symbol.kind, bound, limit, over, min=symbol.min)
        return self.renamed[symbol]

    def _rename_bound(self, bound: Symbol) -> Symbol:
        """The bound of a dim; if it differs from index to index, one of its own with the longest as its maximum."""
        longest = self._rename(bound)
        if bound not in self.per_index:
            return longest
        if bound not in self.rows:
            over = tuple(self._rename(s) for s in self.per_index[bound])
            wish = "_".join([longest.name, *(s.name for s in over)])
            name = fresh_name(wish, {s.name for s in (*self.renamed.values(), *self.rows.values())})
            self.rows[bound] = Symbol(name, "bound", max=Term.of(longest), over=over, min=longest.min)
        return self.rows[bound]

    def _pieces(self, tensor: Tensor) -> list[Piece]:
        pieces = _pieces(tensor)
        if not self.per_index:
            return pieces
        return [
            (c, op, tuple(self._resolved(self._row_of(o, tensor.symbols)) for o in operands), a, at)
            for c, op, operands, a, at in pieces
        ]

    def _row_of(self, operand: Tensor, reader: Iterable[Symbol]) -> Tensor:
        """An operand as a reader with some dims means it: a value of indices alone has the lengths of the row."""
        known = set(reader)
        owners = {s: None for dims in self.per_index.values() if known.issuperset(dims) for s in dims}
        missing = tuple(s for s in owners if s not in operand.symbols)
        return self._row(operand, missing) if missing and _is_of_indices(operand) else operand

    def _row(self, tensor: Tensor, owners: tuple[Symbol, ...]) -> Tensor:
        """The same value of indices, for each row."""
        if (tensor, owners) not in self.in_rows:
            spans = (*tensor.spans, *map(natural, owners))
            if isinstance(tensor, View) and set(owners) & set(tensor.source.symbols):
                return tensor  # a row of its own choice
            if isinstance(tensor, View):
                row: Tensor = View(self._row(tensor.source, owners), (*tensor.steps, *map(Term.of, owners)))
            elif isinstance(tensor, Choice):
                first, second = (self._row(part, owners) for part in (tensor.first, tensor.second))
                row = Choice(tensor.condition, first, second, spans, tensor.type)
            else:
                assert isinstance(tensor, Computed)
                operands = tuple(self._row(operand, owners) for operand in tensor.operands)
                row = Computed(tensor.op, operands, tensor.attributes, spans, tensor.type, tensor.weak)
            row.line = tensor.line
            self.in_rows[tensor, owners] = row
        return self.in_rows[tensor, owners]

    def _resolved(self, operand: Tensor) -> Tensor:
        """An operand; a view of a view is taken apart where its bounds would otherwise become those of another row."""
        if not isinstance(operand, View) or not self._mixes_rows(operand):
            return operand
        if operand not in self.taken_apart:
            self.taken_apart[operand] = apart(operand)
        return self.taken_apart[operand]

    def _mixes_rows(self, view: View) -> bool:
        inner = view.indexed
        if inner is None:
            return False
        for bound in {s for step in inner.steps for s in step.symbols if s in self.per_index}:
            owners = self.per_index[bound]
            if set(owners) <= set(inner.symbols):
                if any(view.entries[owner] is not Term.of(owner) for owner in owners):
                    return True
            elif set(owners) <= set(view.symbols):
                return True
        return self._mixes_rows(inner)

    def _mapping(self, mapping: Mapping[Symbol, Term], symbols: Iterable[Symbol]) -> Mapping[Symbol, Term]:
        """What symbols become in a tensor with some dims: those with the dims of a length have one of their own."""
        known = set(symbols)
        own = {
            b: Term.of(self.rows[b]) for b, dims in self.per_index.items() if b in self.rows and known.issuperset(dims)
        }
        return {**mapping, **own} if own else mapping

    def graph(
        self,
        outputs: list[Tensor],
        effects: list[Tensor],
        until: Mapping[Symbol, Tensor],
        fixed: Mapping[Symbol, Term],
    ) -> Graph:
        mapping = {old: Term.of(new) for old, new in self.renamed.items()} | dict(fixed)
        self._name([*outputs, *effects])
        made = {t.attributes["call"] for t in self.order if isinstance(t, Computed) and t.op == "host"}
        calls = {call: rank for rank, call in enumerate(sorted(made))}
        nodes = {self.names[t]: self._node(t, mapping, calls) for t in self.order}
        return Graph(
            nodes,
            tuple(self.names[t] for t in outputs),
            {self.renamed[s]: self._access(t, mapping, TRUE) for s, t in self.lengths.items()},
            {self.renamed[s]: self.names[t] for s, t in until.items()},
            tuple(self.names[t] for t in effects),
            {t.attributes["name"]: t.stored for t in self.order if isinstance(t, Computed) and t.stored is not None},
            declared=self.renamed,
            checkpoints=tuple(self._checkpoint(t, t.checkpoint, fixed) for t in self.order if t.checkpoint is not None),
        )

    def _checkpoint(self, tensor: Tensor, mark: Mark, fixed: Mapping[Symbol, Term]) -> Checkpoint:
        if mark.over is None:
            return Checkpoint(self.names[tensor])
        whole = mark.every is not None and not mark.every.is_constant
        every = None if whole else _steps(mark, fixed, tensor.line)
        return Checkpoint(self.names[tensor], self.renamed[mark.over], every)

    def _name(self, roots: list[Tensor]) -> None:
        """Inputs keep their names; others are called like the user's variable, or else by operation.

        Where two share a name, the one that comes first here has it: inputs, recurrent tensors, outputs, and the rest.
        """
        taken: dict[str, Tensor] = {}
        sites: dict[str, Tensor] = {}
        computed = [t for t in self.order if isinstance(t, Computed)]
        for external in computed:
            if external.op == "input":
                self.names[external] = external.attributes["name"]
                _claim(taken, self.names[external], external, "inputs")
        recurrent = [t for t in self.order if isinstance(t, Recurrent)]
        wishes = [(t, t.name or _verb(t, "")) for t in recurrent] + [(t, t.name or "output") for t in roots]
        wishes += [(p.value, p.value.name or _verb(p.value, t.name)) for t in recurrent for p in t.assigned]
        wishes += [(t, t.name or _verb(t, t.line.variable)) for t in self.order]
        reached = set(map(id, self.order))
        for tensor, wish in wishes:
            if tensor not in self.names and id(tensor) in reached:
                self.names[tensor] = fresh_name(wish, taken)
                taken[self.names[tensor]] = tensor
        for number, drawn in enumerate(t for t in computed if t.op == "random_bits"):
            named = drawn.attributes["site"]
            self.sites[drawn] = f"#{number}" if named is None else named
            _claim(sites, self.sites[drawn], drawn, "random sites")

    def _node(self, tensor: Tensor, mapping: Mapping[Symbol, Term], calls: Mapping[int, int]) -> Node:
        everywhere, mapping = mapping, self._mapping(mapping, tensor.symbols)
        dims = tuple(NodeDim(self.renamed[s.symbol], s.extent.substitute(mapping)) for s in tensor.spans)
        definitions = []
        for condition, op, operands, attributes, at in self._pieces(tensor):
            given = counted(tensor.spans)
            reads = tuple(self._access(operand, everywhere, given) for operand in operands)
            values = map_attributes(attributes, lambda term: term.substitute(mapping))
            if op == "random_bits":
                values["site"] = self.sites[tensor]
            if op == "grad":
                leaves = tuple(self.names[leaf] for leaf in values["leaves"])
                values = {"loss": self.names[values["loss"]], "wrt": self.names[values["wrt"]], "leaves": leaves}
            if op == "ruled":
                backward = (None if made is None else self.names[made] for made in values["backward"])
                values = {"cotangent": self.names[values["cotangent"]], "backward": tuple(backward)}
            if op == "host":
                function = values["function"]
                results = (TensorType(tuple(n.substitute(mapping) for n in r.shape), r.dtype) for r in function.results)
                values |= {"call": calls[values["call"]], "function": replace(function, results=tuple(results))}
            definitions.append(Definition(condition.substitute(mapping), op, reads, values, at))
        kind = TensorType(tuple(n.substitute(mapping) for n in tensor.type.shape), tensor.dtype)
        recurrent = isinstance(tensor, Recurrent)
        return Node(self.names[tensor], dims, kind, tuple(definitions), recurrent, at=tensor.line, label=tensor.name)

    def _access(self, tensor: Tensor, mapping: Mapping[Symbol, Term], given: Condition) -> Access:
        here = tuple(map(Term.of, tensor.symbols))
        source, steps = (tensor.source, tensor.steps) if isinstance(tensor, View) else (tensor, here)
        if self.per_index:
            # What the reader's bounds say does not hold for those of a view without the same dims.
            given, mapping = counted(tensor.spans), self._mapping(mapping, tensor.symbols)
        return Access(self.names[source], tuple(_simplified(step, given).substitute(mapping) for step in steps))


def _is_of_indices(tensor: Tensor) -> bool:
    """Whether a value follows from indices and constants alone."""
    if isinstance(tensor, View):
        return tensor.order is None and _is_of_indices(tensor.source)
    if isinstance(tensor, Choice):
        return _is_of_indices(tensor.first) and _is_of_indices(tensor.second)
    if not isinstance(tensor, Computed) or record(tensor.op).sited or record(tensor.op).calls:
        return False
    return all(map(_is_of_indices, tensor.operands))


def _steps(mark: Mark, fixed: Mapping[Symbol, Term], at: Source) -> int:
    """How many steps a segment of a checkpoint has: as given, or about the square root of the most there are."""
    if mark.every is not None:
        return int(mark.every)
    assert mark.over is not None
    assert mark.over.bound is not None
    bound = mark.over.bound
    most = fixed.get(bound, bound.max)
    if most is None or not most.is_constant:
        raise RecomputeError(
            f"segments of {mark.over} should have about the square root of {bound} steps, but {bound} has no maximum",
            fix=f"say how many, every=32, or declare a maximum, pr.dim({mark.over.name!r}, max=4096), "
            f"or fix it, pr.compile(..., bounds={{{bound}: 4096}})",
            at=at,
        )
    return max(1, isqrt(most.constant))


def _simplified(step: Step, given: Condition) -> Step:
    if isinstance(step, Term):
        return step
    return Range(step.start, sets.simplified_term(step.length, given), step.step)


def _pieces(tensor: Tensor) -> list[Piece]:
    """The definitions of a tensor: condition, operation, operands, attributes, line."""
    if isinstance(tensor, Recurrent):
        return [_copy(condition, value, at) for condition, value, at in tensor.pieces]
    if isinstance(tensor, Choice):
        fails = negation(tensor.condition)
        return [_copy(tensor.condition, tensor.first, tensor.line), _copy(fails, tensor.second, tensor.line)]
    if isinstance(tensor, Gradient):
        attributes = {"loss": tensor.loss, "wrt": tensor.wrt, "leaves": tensor.leaves}
        return [(TRUE, "grad", (), attributes, tensor.line)]
    if isinstance(tensor, Ruled):
        attributes = {"cotangent": tensor.cotangent, "backward": tensor.backward}
        return [(TRUE, "ruled", (tensor.result, *tensor.operands), attributes, tensor.line)]
    assert isinstance(tensor, Computed)
    return [(TRUE, tensor.op, tensor.operands, tensor.attributes, tensor.line)]


def _copy(condition: Condition, value: Tensor, at: Source) -> Piece:
    return condition, "copy", (value,), {}, at


_KINDS: dict[type[Tensor], str] = {Choice: "choice", Gradient: "grad", Ruled: "ruled"}


def _verb(tensor: Tensor, variable: str | None) -> str:
    """What a tensor without a name is called: its operation, and the variable it contributes to."""
    op = tensor.op if isinstance(tensor, Computed) else _KINDS.get(type(tensor), "recurrent")
    return f"{variable}_{op}" if variable else op


def _claim(taken: dict[str, Tensor], name: str, tensor: Tensor, what: str) -> None:
    if name in taken:
        raise DuplicateNameError(
            f"two {what} are called {name!r}",
            fix="give each its own name, or use one tensor in both places",
            at=tensor.line,
            also=(("the other is at", taken[name].line),),
        )
    taken[name] = tensor
