"""The oracle: the meaning of a program, computed in NumPy straight from its definitions.

The value of a node at a point is the operation of the one definition whose domain holds there, applied to the
values that its accesses read. Values are computed on demand and remembered. Demand is kept on an explicit stack,
so chains of any length work. This defines what is correct for every pass and backend; it is written to be
obviously right, not to be fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf
from typing import Any

import numpy as np

from polyrhythm.compiler.analysis.calls import Call, Ragged, by_name, check_found, prepare
from polyrhythm.compiler.analysis.naming import described, described_call
from polyrhythm.compiler.front_end import completed
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, HostFunction, Node, NodeDim, Range, longest
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.ops.record import concrete
from polyrhythm.compiler.ir.terms import Symbol, Term, dims_of
from polyrhythm.compiler.trace import trace
from polyrhythm.errors import CycleError, EffectError, HostError, InputShapeError, LengthError, RaggedShapeError
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.language.trees import flattened

Point = tuple[int, ...]
Place = tuple[str, Point]


class _Missing(Exception):
    """Values that must be computed first."""

    def __init__(self, places: list[Place]) -> None:
        self.places = places


def evaluate(
    outputs: Any,
    inputs: Mapping[str, Any] | None = None,
    bounds: Mapping[Any, int] | None = None,
    until: Mapping[Dim, Tensor] | None = None,
    seed: int = 0,
    effects: Sequence[Tensor] = (),
) -> Any:
    """The value of some outputs by definition: slow, simple, and what every compiled program must equal.

    `outputs` is a tensor, a tuple, list or dict of tensors, and the result has the same structure. Bounds that
    are not the length of an input are given as `bounds={T: 9}`.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> total = pr.recurrent((), (t,))
    >>> total[0] = x[0]
    >>> total[t + 1] = total + x[t + 1]
    >>> pr.evaluate({"last": total[T - 1]}, {"x": [1.0, 2.0, 3.0]})
    {'last': array(6., dtype=float32)}
    """
    tensors, rebuild = flattened(outputs)
    graph = completed(trace(tensors, effects, until))
    return rebuild(run(graph, inputs or {}, bounds, seed))


def run(
    graph: Graph, inputs: Mapping[str, Any], bounds: Mapping[Any, int] | None = None, seed: int = 0
) -> list[np.ndarray | Ragged]:
    """The outputs of a checked graph, each over its whole domain with the dims as leading axes."""
    running = _Run(graph, prepare(graph, by_name(graph.inputs, inputs), bounds), seed)
    running.check_lengths()
    results = [running.whole(graph[name]) for name in graph.outputs]
    running.perform_effects()
    return results


class _Run:
    def __init__(self, graph: Graph, call: Call, seed: int) -> None:
        self.graph, self.call, self.seed = graph, call, seed
        self.values: dict[Place, np.ndarray] = {}
        self.host_results: dict[tuple[int, Point], tuple[np.ndarray, ...]] = {}
        self.lengths: dict[tuple[Symbol, Point], int] = {}
        self.stops = graph.stops
        self.effects = _effect_orders(graph)

    def check_lengths(self) -> None:
        """The lengths that ragged inputs bring along are those of their dims."""
        limits = {bound: Term.of(longest(bound)) for bound in self.stops}
        for name, lengths in self.call.lengths.items():
            node = self.graph.inputs[name]
            ragged = [axis for axis, dim in enumerate(node.dims) if self.graph.lengths.keys() & dim.extent.symbols]
            axis = ragged[0] if len(ragged) == 1 else lengths.ndim
            extents = [*(dim.extent.substitute(limits) for dim in node.dims), *node.shape]
            others = [dim.symbol for place, dim in enumerate(node.dims) if place != axis]
            for row in np.ndindex(lengths.shape):
                steps = dict(zip(others, row, strict=False))
                length = self._settle(partial(extents[axis].evaluate, self.lookup(steps)))
                if lengths[row] != length:
                    raise InputShapeError(
                        f"the input {name!r} has {lengths[row]} steps, but {extents[axis]} is {length}",
                        fix="pass rows of the lengths that the dim has there",
                        point=steps,
                        also=(("declared at", node.at),) if node.at else (),
                    )

    def value(self, name: str, point: Point) -> np.ndarray:
        """The value at a point, computing whatever it needs first."""
        self._settle(lambda: self._known(name, point))
        return self.values[name, point]

    def _known(self, name: str, point: Point) -> np.ndarray:
        if (name, point) not in self.values:
            raise _Missing([(name, point)])
        return self.values[name, point]

    def _settle(self, attempt: Callable[[], Any]) -> Any:
        """Run an attempt again and again, each time computing what it found missing."""
        while True:
            try:
                return attempt()
            except _Missing as missing:
                places = missing.places
            self._compute(places)  # here, lest what a host function raises comes with our exception as its context

    def _compute(self, places: list[Place]) -> None:
        stack, waiting = list(places), set()
        while stack:
            place = stack[-1]
            if place in self.values:
                stack.pop()
                continue
            try:
                self.values[place] = self._at(*place)
                waiting.discard(place)
                stack.pop()
            except _Missing as missing:
                again = next((needed for needed in missing.places if needed in waiting or needed == place), None)
                if again is not None:
                    # Of what stands on the stack, those that wait lead from one to the next.
                    raise self._cycle([p for p in stack[stack.index(again) :] if p in waiting or p == place]) from None
                waiting.add(place)
                stack.extend(missing.places)

    def _cycle(self, cycle: list[Place]) -> CycleError | EffectError:
        calls = {node.name for order in self.effects.values() for node in order.calls.values()}
        effects = [place for place in cycle if place[0] in calls]
        nodes = [self.graph[name] for name, _ in effects or cycle]
        first, *others = (described_call(self.graph[name], point) for name, point in (*(effects or cycle), cycle[0]))
        lines = tuple(dict.fromkeys(("through", node.at) for node in nodes if node.at not in (None, nodes[0].at)))
        if effects:
            other = others[0] if len(effects) > 1 else "a later call"
            return EffectError(
                f"{first} waits for {other}, which comes after it in the order of the effect",
                fix="let a call depend only on calls that come before it: earlier steps, or earlier lines",
                at=nodes[0].at,
                also=lines,
            )
        return CycleError(
            f"{first} waits for {', which waits for '.join(others)}",
            fix="let every value depend on what can come before it",
            at=nodes[0].at,
            also=lines,
        )

    def _at(self, name: str, point: Point) -> np.ndarray:
        """The value of a node at a point from its definition, or _Missing."""
        node = self.graph[name]
        lookup = self.lookup(dict(zip(node.symbols, point, strict=True)))
        definition = next((d for d in node.definitions if d.domain.evaluate(lookup)), None)
        if definition is None:
            raise AssertionError(f"{name} at {point} is read but not demanded: the checks are wrong")
        if definition.op == "input":
            return self._input(definition.attributes["name"], node, point)
        operands = self._operands(definition, lookup)
        attributes = concrete(definition.attributes, lookup)
        if definition.op == "host":
            return self._host(name, point, operands, attributes)
        if definition.op == "random_bits":
            attributes.update(seed=self.seed, step=point)
        return np.asarray(TABLE[definition.op].numpy(*operands, **attributes))

    def _input(self, name: str, node: Node, point: Point) -> np.ndarray:
        array = self.call.inputs[name]
        for symbol, step, length in zip(node.symbols, point, array.shape, strict=False):
            if step >= length:  # only a length that is data can be longer than the array
                raise InputShapeError(
                    f"the input {name!r} has {length} steps along {symbol}, but step {step} is read",
                    fix="pass an array that reaches the longest of the lengths",
                    point=dict(zip(node.symbols, point, strict=True)),
                    also=(("declared at", node.at),) if node.at else (),
                )
        return np.asarray(array[point])

    def _operands(self, definition: Definition, lookup: Callable[[Symbol], int]) -> list[np.ndarray]:
        # What is not read, because a `choose` takes the other operand, is never looked at.
        read = [definition.read_where(n).evaluate(lookup) for n in range(len(definition.operands))]
        places = [
            self._places(a, lookup) if here else ([], []) for a, here in zip(definition.operands, read, strict=True)
        ]
        missing = [p for points, _ in places for p in points if p not in self.values]
        if missing:
            raise _Missing(missing)
        return [
            self._stacked(access, points, lengths, lookup) if here else np.empty(0)
            for access, (points, lengths), here in zip(definition.operands, places, read, strict=True)
        ]

    def _places(self, access: Access, lookup: Callable[[Symbol], int]) -> tuple[list[Place], list[int]]:
        """The points an access reads, in row-major order, and the lengths of its ranges."""
        choices: list[list[int]] = []
        lengths: list[int] = []
        for step in access.steps:
            if isinstance(step, Range):
                start, length = step.start.evaluate(lookup), step.length.evaluate(lookup)
                choices.append([start + k * step.step for k in range(length)])
                lengths.append(length)
            else:
                choices.append([step.evaluate(lookup)])
        return [(access.source, point) for point in product(*choices)], lengths

    def _stacked(
        self, access: Access, places: list[Place], lengths: list[int], lookup: Callable[[Symbol], int]
    ) -> np.ndarray:
        if not lengths:
            return self.values[places[0]]
        source = self.graph[access.source]
        if places:
            shape = self.values[places[0]].shape
        else:
            # Nothing is read, but the operand still has a shape; the dims that were ranges do not occur in it.
            steps = {s: st for s, st in source.steps(access).items() if not isinstance(st, Range)}
            shape = tuple(max(0, n.substitute(steps).evaluate(lookup)) for n in source.shape)
        stacked = np.empty((len(places), *shape), source.dtype)
        for row, place in enumerate(places):
            stacked[row] = self.values[place]
        return stacked.reshape(*lengths, *shape)

    def lookup(self, steps: Mapping[Symbol, int]) -> Callable[[Symbol], int]:
        """Values of symbols at a point: its steps, the call's bounds, and lengths that are data."""

        def value(symbol: Symbol) -> int:
            if symbol in steps:
                return steps[symbol]
            if symbol in self.graph.lengths or symbol in self.stops:
                return self._length(symbol, steps)
            return self.call.bounds[symbol]

        return value

    def _length(self, bound: Symbol, steps: Mapping[Symbol, int]) -> int:
        """The value of a ragged bound, or of one that ends early."""
        if bound in self.stops:
            return self._stop(bound, steps)
        access = self.graph.lengths[bound]
        (place,), _ = self._places(access, self.lookup(steps))
        length = int(self._known(*place))
        limit = bound.max.evaluate(self.lookup(steps)) if bound.max is not None else length
        if not bound.min <= length <= limit:
            source = self.graph[access.source]
            below = "zero" if length < 0 else f"its minimum {bound.min}"
            raise LengthError(
                f"the length {bound} is {length}, "
                + (f"below {below}" if length < bound.min else f"above its maximum {limit}"),
                fix="make every length at least 0, or the declared min, and at most the declared max",
                point={s: steps[s] for s in source.symbols if s in steps},
                also=(("given at", source.at),) if source.at else (),
            )
        return length

    def _stop(self, bound: Symbol, steps: Mapping[Symbol, int]) -> int:
        """One more than the first step at which the condition holds; over further dims, when all have ended."""
        dim = self.stops[bound]
        node = self.graph[self.graph.until[dim]]
        row = {s: steps[s] for s in bound.over if s in steps}
        given = tuple(row.get(s, -1) for s in bound.over)
        if (bound, given) not in self.lengths:
            limit = self.call.bounds[longest(bound)]
            ends = [self._end(dim, at, limit) for at in self._rows(node, dim, row)]
            length = max((limit if e is None else e + 1 for e in ends), default=min(1, limit))
            values = {s.name: value for s, value in self.call.bounds.items()}
            check_found(self.call.bounds, {**values, bound.name: length}, bound.name)
            self.lengths[bound, given] = length
        return self.lengths[bound, given]

    def _end(self, dim: Symbol, row: Mapping[Symbol, int], limit: int) -> int | None:
        """The first step before a limit at which the condition holds."""
        node = self.graph[self.graph.until[dim]]
        for step in range(limit):
            if bool(self._known(node.name, tuple(step if s is dim else row[s] for s in node.symbols))):
                return step
        return None

    def reaches(self, node: Node, steps: Mapping[Symbol, int]) -> bool:
        """Whether the dims of a node that end at a step of their own for each index have not ended before a point.

        Only the conditions of earlier steps are asked; later ones may wait for what happens at the point.
        """
        for dim in node.dims:
            for bound in dim.extent.symbols & self.stops.keys():
                beyond = dim.extent - Term.of(bound)
                if bound.over and beyond.is_constant:
                    if self._end(self.stops[bound], steps, steps[dim.symbol] - beyond.constant) is not None:
                        return False
                elif bound.over and steps[dim.symbol] >= dim.extent.evaluate(self.lookup(steps)):
                    return False
        return True

    def _rows(self, node: Node, dim: Symbol, row: Mapping[Symbol, int]) -> Iterator[Mapping[Symbol, int]]:
        """The indices of a stopping condition, apart from the dim it stops; some may be given."""
        missing = next((d for d in node.dims if d.symbol is not dim and d.symbol not in row), None)
        if missing is None:
            yield row
            return
        for step in range(missing.extent.evaluate(self.lookup(row))):
            yield from self._rows(node, dim, {**row, missing.symbol: step})

    def _host(self, name: str, point: Point, operands: list[np.ndarray], attributes: dict[str, Any]) -> np.ndarray:
        function: HostFunction = attributes["function"]
        if function.effect is not None:
            before = self.effects[function.effect].before(self, attributes["call"], point)
            if before is not None and before not in self.values:
                raise _Missing([before])
        key = (attributes["call"], point)
        if key not in self.host_results:
            returned = function.call(*operands)
            results = (returned,) if function.single else _several(function, returned, self.graph[name])
            lookup = self.lookup(dict(zip(self.graph[name].symbols, point, strict=True)))
            self.host_results[key] = _checked_results(function, results, lookup, self.graph[name])
        position: int = attributes["result"]
        return self.host_results[key][position]

    def perform_effects(self) -> None:
        """Call every host function with an effect at every point, also where nothing reads the result."""
        for order in self.effects.values():
            for place in order.places(self):
                self.value(*place)

    def points(self, node: Node) -> list[Point]:
        """The domain of a node in lexicographic order."""
        return self._settle(lambda: list(self._points(node, ())))  # type: ignore[no-any-return]

    def _points(self, node: Node, prefix: Point) -> Iterator[Point]:
        lookup = self.lookup(dict(zip(node.symbols, prefix, strict=False)))
        if len(prefix) == len(node.dims):
            # A length that ends early may depend on a later dim; only here is it exact.
            if node.rectangle.evaluate(lookup):
                yield prefix
            return
        for step in range(node.dims[len(prefix)].extent.evaluate(lookup)):
            yield from self._points(node, (*prefix, step))

    def whole(self, node: Node) -> np.ndarray | Ragged:
        """A node over its whole domain, dims leading."""
        points = self.points(node)
        values = [self.value(node.name, point) for point in points]
        varying = [n for n in node.shape if dims_of(n)]
        ragged = [d for d in node.dims if any(s in self.graph.lengths or s.over for s in d.extent.symbols)]
        shape = tuple(
            max((v.shape[axis] for v in values), default=0) if n in varying else self._integer(n)
            for axis, n in enumerate(node.shape)
        )
        extents = tuple(
            max((p[axis] + 1 for p in points), default=0) if d in ragged else self._integer(d.extent)
            for axis, d in enumerate(node.dims)
        )
        whole = np.zeros((*extents, *shape), node.dtype)
        for point, value in zip(points, values, strict=True):
            inside: Any = (*point, *map(slice, value.shape))
            whole[inside] = value
        if not ragged and not varying:
            return whole
        return Ragged(whole, self._lengths(node, ragged, points, values, extents))

    def _integer(self, term: Term) -> int:
        """The value of a length that is the same everywhere."""
        length: int = self._settle(lambda: term.evaluate(self.lookup({})))
        return max(0, length)

    def _lengths(
        self, node: Node, ragged: list[NodeDim], points: list[Point], values: list[np.ndarray], extents: Point
    ) -> np.ndarray:
        """How much of a ragged output counts: steps along its ragged dim, or the length of its varying axis."""
        axes = [axis for axis, n in enumerate(node.shape) if dims_of(n)]
        if len(ragged) + len(axes) > 1:
            raise RaggedShapeError(
                f"{described(node)} is ragged along more than one axis, so one array of lengths cannot describe it",
                fix="reduce or pad all but one of them inside the program",
                at=node.at,
            )
        if axes:
            lengths = np.zeros(extents, np.int64)
            for point, value in zip(points, values, strict=True):
                lengths[point] = value.shape[axes[0]]
            return lengths
        place = node.dims.index(ragged[0])
        lengths = np.zeros([n for axis, n in enumerate(extents) if axis != place], np.int64)
        for point in points:
            lengths[(*point[:place], *point[place + 1 :])] += 1
        return lengths


@dataclass
class _EffectOrder:
    """The total order of the calls that share an effect.

    Calls are ordered by the steps of their dims, then as written. A call that lacks a dim which others have comes
    before their loop over it if it was written before the first of them, and after it otherwise.
    """

    calls: dict[int, Node]

    def __post_init__(self) -> None:
        self.dims = tuple(dict.fromkeys(s for node in self.calls.values() for s in node.symbols))
        first = {s: next(c for c, node in self.calls.items() if s in node.symbols) for s in self.dims}
        self.edge = {(c, s): -inf if c < first[s] else inf for c in self.calls for s in self.dims}

    def key(self, call: int, point: Point) -> tuple[float, ...]:
        steps = dict(zip(self.calls[call].symbols, point, strict=True))
        return (*(steps.get(s, self.edge[call, s]) for s in self.dims), call)

    def places(self, run: _Run) -> list[Place]:
        """Every call of the effect, in order."""
        found = [(self.key(c, p), (node.name, p)) for c, node in self.calls.items() for p in run.points(node)]
        return [place for _, place in sorted(found)]

    def before(self, run: _Run, call: int, point: Point) -> Place | None:
        """The call just before another."""
        key = self.key(call, point)
        candidates = []
        for other, node in self.calls.items():
            steps = self._last(run, node, other, self.calls[call], key, {}, True)
            if steps is not None:
                candidates.append((other, tuple(steps[s] for s in node.symbols)))
        if not candidates:
            return None
        other, steps_before = max(candidates, key=lambda entry: self.key(*entry))
        return self.calls[other].name, steps_before

    def _last(
        self,
        run: _Run,
        node: Node,
        call: int,
        later: Node,
        key: tuple[float, ...],
        steps: dict[Symbol, int],
        tight: bool,
        level: int = 0,
    ) -> dict[Symbol, int] | None:
        """The last point of one call that comes before a key; `tight` while the steps so far equal the key's."""
        if level == len(self.dims):
            return steps if (not tight or call < key[-1]) and run.reaches(node, steps) else None
        symbol, limit = self.dims[level], key[level]
        if symbol not in node.symbols:
            edge = self.edge[call, symbol]
            if tight and edge > limit:
                return None
            return self._last(run, node, call, later, key, steps, tight and edge == limit, level + 1)
        extent = next(d.extent for d in node.dims if d.symbol is symbol)
        if tight and any(d.symbol is symbol and d.extent is extent for d in later.dims):
            last = int(limit)  # inside the same extent, which may not be known yet
        else:
            last = extent.evaluate(run.lookup(steps)) - 1
            last = int(min(last, max(limit, -1))) if tight else last
        for step in range(last, -1, -1):
            found = self._last(run, node, call, later, key, {**steps, symbol: step}, tight and step == limit, level + 1)
            if found is not None:
                return found
        return None


def _effect_orders(graph: Graph) -> dict[str, _EffectOrder]:
    calls: dict[str, dict[int, Node]] = {}
    for node in graph:
        for definition in node.definitions:
            if definition.effect is not None:
                effect = calls.setdefault(definition.attributes["function"].effect, {})
                effect.setdefault(definition.attributes["call"], node)
    return {effect: _EffectOrder(dict(sorted(nodes.items()))) for effect, nodes in calls.items()}


def _several(function: HostFunction, returned: Any, node: Node) -> tuple[Any, ...]:
    if isinstance(returned, (tuple, list)):
        return tuple(returned)
    raise HostError(
        f"the host function {function.name} returned {type(returned).__name__} instead of a tuple of arrays",
        fix=f"return a tuple of {len(function.results)} arrays, one per declared shape",
        at=node.at,
    )


def _checked_results(
    function: HostFunction, returned: tuple[Any, ...], lookup: Callable[[Symbol], int], node: Node
) -> tuple[np.ndarray, ...]:
    """What a host function returned, as arrays of the declared types."""
    if len(returned) != len(function.results):
        raise HostError(
            f"the host function {function.name} returned {len(returned)} values instead of {len(function.results)}",
            fix="return one array per declared shape",
            at=node.at,
        )
    arrays = []
    for value, declared in zip(returned, function.results, strict=True):
        array = np.asarray(value)
        shape = tuple(n.evaluate(lookup) for n in declared.shape)
        if array.shape != shape or not np.can_cast(array.dtype, declared.dtype, "same_kind"):
            raise HostError(
                f"the host function {function.name} returned {array.dtype}{list(array.shape)} "
                f"where {declared.dtype}{list(shape)} was declared",
                fix="return the declared shape and dtype, or declare what is returned",
                at=node.at,
            )
        arrays.append(array.astype(declared.dtype))
    return tuple(arrays)
