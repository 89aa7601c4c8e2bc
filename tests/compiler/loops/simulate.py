"""Loops executed by brute force at concrete bounds, on expressions instead of numbers.

A value is an expression: an operation, its attributes, and the values it was applied to; equal expressions are one
number. So a program is right at some bounds exactly if every output holds, at every point, the expression that the
graph defines there, if effects happen in the order of the language, and if no slot outside of a place is touched.
Where a stopping condition decides a length, it is true from a chosen step on. What is said of the layout must be true
of every read when it is done: a wrong limit, way of reading or claim of zeros is wrong even where no value shows it.
What is held is the value that the same loop has stored last under the same terms. What lanes have not at a slot of
their own is lost after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import inf
from random import Random
from typing import Any

from polyrhythm.compiler.ir.graph import Graph, Node, Range
from polyrhythm.compiler.ir.ops.record import map_attribute
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.legality import IllegalProgramError, check_program
from polyrhythm.compiler.loops.ir import Block, Compute, For, If, Item, Load, LoopProgram, Steps
from polyrhythm.compiler.loops.show import show

Bounds = Mapping[Symbol, int]
Point = tuple[int, ...]


class Expressions:
    """Every expression that was ever made, and its number."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def __call__(self, *parts: Any) -> int:
        return self.numbers.setdefault(parts, len(self.numbers))


def attributes_at(attributes: Mapping[str, Any], lookup: Any) -> tuple[Any, ...]:
    """Attributes as one value that can be compared, with integers in place of terms."""
    kept = {k: v for k, v in attributes.items() if k not in ("shapes", "call", "result", "function")}
    return tuple((k, map_attribute(v, lambda term: term.evaluate(lookup))) for k, v in sorted(kept.items()))


class Meaning:
    """What the graph defines at some bounds, as expressions."""

    def __init__(self, graph: Graph, bounds: Bounds, expressions: Expressions) -> None:
        self.graph, self.bounds, self.expressions = graph, bounds, expressions
        self.known: dict[tuple[str, Point], int] = {}

    def value(self, name: str, point: Point) -> int:
        key = (name, point)
        if key not in self.known:
            self.known[key] = self._value(self.graph[name], point)
        return self.known[key]

    def _value(self, node: Node, point: Point) -> int:
        lookup = {**self.bounds, **dict(zip(node.symbols, point, strict=True))}.__getitem__
        for definition in node.definitions:
            if not definition.domain.evaluate(lookup):
                continue
            if definition.op == "input":
                return self.expressions("input", definition.attributes["name"], point)
            operands = []
            for access in definition.operands:
                choices = [
                    [step.at(Term(k)).evaluate(lookup) for k in range(step.length.evaluate(lookup))]
                    if isinstance(step, Range)
                    else [step.evaluate(lookup)]
                    for step in access.steps
                ]
                shape = tuple(len(c) for c, s in zip(choices, access.steps, strict=True) if isinstance(s, Range))
                operands.append((shape, tuple(self.value(access.source, p) for p in product(*choices))))
            return expression(self.expressions, definition.op, definition.attributes, operands, lookup, point)
        raise AssertionError(f"{node.name}{point} has no definition")

    def points(self, node: Node) -> Iterator[Point]:
        """The rectangle of a node."""
        extents = [dim.extent.evaluate(self.bounds.__getitem__) for dim in node.dims]
        return product(*(range(extent) for extent in extents))

    def outputs(self) -> list[dict[Point, int]]:
        nodes = [self.graph[name] for name in self.graph.outputs]
        return [{point: self.value(node.name, point) for point in self.points(node)} for node in nodes]

    def effects(self) -> dict[str, list[Any]]:
        """Every call with an effect, in order: its operation and its operands."""
        calls: dict[str, dict[int, Node]] = {}
        for node in self.graph:
            for definition in node.definitions:
                if definition.op == "host" and definition.attributes["function"].effect is not None:
                    effect = calls.setdefault(definition.attributes["function"].effect, {})
                    effect.setdefault(definition.attributes["call"], node)
        return {effect: self._ordered(dict(sorted(nodes.items()))) for effect, nodes in calls.items()}

    def _ordered(self, nodes: dict[int, Node]) -> list[Any]:
        dims = list(dict.fromkeys(symbol for node in nodes.values() for symbol in node.symbols))
        first = {s: next(call for call, node in nodes.items() if s in node.symbols) for s in dims}
        entries = []
        for call, node in nodes.items():
            for point in self.points(node):
                steps = dict(zip(node.symbols, point, strict=True))
                key = [steps.get(s, -inf if call < first[s] else inf) for s in dims]
                entries.append((key, call, self._operands(node, point)))
        return [(call, operands) for _, call, operands in sorted(entries)]

    def _operands(self, node: Node, point: Point) -> Any:
        number = self.value(node.name, point)
        parts = next(parts for parts, found in self.expressions.numbers.items() if found == number)
        return parts[3]


def expression(
    expressions: Expressions, op: str, attributes: Mapping[str, Any], operands: Any, lookup: Any, point: Point
) -> int:
    """The number of an operation applied to values."""
    key: Any = attributes_at(attributes, lookup)
    if op == "host":
        key = (id(attributes["function"].call), attributes["result"])
    if op == "random_bits":
        key = (key, point)
    if op == "choose":  # what is not chosen may be anything: its point need not exist
        chosen = operands[0 if attributes["condition"].evaluate(lookup) else 1]
        key, operands = tuple(n.evaluate(lookup) for n in attributes["shape"]), (chosen,)
    return expressions("op", op, key, tuple(operands))


class WrongError(Exception):
    """The program touches something that does not exist."""


class Lane(dict[Point, int]):
    """The slots of a place as one iteration of a parallel loop sees them; `own` are those it has written."""

    def __init__(self, slots: Mapping[Point, int]) -> None:
        super().__init__(slots)
        self.own: dict[Point, int] = {}

    def __setitem__(self, slot: Point, value: int) -> None:
        super().__setitem__(slot, value)
        self.own[slot] = value

    def update(self, slots: Mapping[Point, int]) -> None:  # type: ignore[override]
        for slot, value in slots.items():
            self[slot] = value


class Machine:
    """Runs a program at concrete bounds."""

    def __init__(self, program: LoopProgram, bounds: Bounds, expressions: Expressions, true: frozenset[int]) -> None:
        self.program, self.expressions, self.true = program, expressions, true
        self.values: dict[Symbol, int] = {symbol: bounds[symbol] for symbol in program.bounds}
        self.slots = {name: self._shape(place.slots) for name, place in program.places.items()}
        self.places: dict[str, dict[Point, int]] = {name: {} for name in program.places}
        self.zero = expressions("zero")
        self.log: dict[str, list[Any]] = {}
        self.steps = 0
        self.held: dict[tuple[str, Any], int] = {}  # what the innermost loop has stored last, by the terms of the index

    def run(self) -> None:
        self.items(self.program.body)

    def _shape(self, lengths: tuple[Term, ...]) -> Point:
        return tuple(self.term(n) for n in lengths)

    def lookup(self, symbol: Symbol) -> int:
        if symbol not in self.values:
            raise WrongError(f"{symbol} has no value")
        return self.values[symbol]

    def term(self, term: Term) -> int:
        return term.evaluate(self.lookup)

    def items(self, items: tuple[Item, ...]) -> None:
        for item in items:
            if isinstance(item, Block):
                self.block(item)
            elif isinstance(item, If):
                if item.condition.evaluate(self.lookup):
                    self.items(item.body)
            else:
                self.loop(item)

    def loop(self, loop: For) -> None:
        outer, outside = self.values.get(loop.counter), self.places
        before = {name: dict(slots) for name, slots in self.places.items()} if loop.parallel else {}
        made: dict[str, dict[Point, int]] = {name: {} for name in before}
        held, passed = self.held, None
        owned = {own.place: own for own in loop.lanes.written} if loop.lanes is not None else {}
        for name, own in owned.items():
            span = self.term(loop.first + own.offset), self.term(loop.end + own.offset)
            if own.fills and span[0] < span[1] and span != (0, self.slots[name][own.axis]):
                raise WrongError(f"the lanes of {loop.counter} do not fill {name}")
        for count in range(self.term(loop.first), self.term(loop.end)):
            self.values[loop.counter] = count
            if passed is None:  # the first iteration finds what is in the places
                index = {r: tuple(self.term(term) for term in r.before) for r in loop.registers}
                passed = {r: self.places[r.place].get(index[r], self.zero) for r in loop.registers}
            self.held = {(r.place, r.before): value for r, value in passed.items()}
            if loop.parallel:  # each iteration sees what was there before the loop, and what it makes itself
                self.places = {name: Lane(slots) for name, slots in before.items()}
            self.items(loop.body)
            passed = {r: self.held.get((r.place, r.now), self.zero) for r in loop.registers}
            for name in made:
                stored = self.places[name].own  # type: ignore[attr-defined]
                if loop.lanes is not None and name in owned:
                    at = count + self.term(owned[name].offset)
                    if any(slot[owned[name].axis] != at for slot in stored):
                        raise WrongError(f"{name} is stored to at a slot of another lane")
                elif loop.lanes is not None and stored:
                    stored = {slot: self.expressions("lost") for slot in stored}  # each lane has a copy of its own
                made[name].update(stored)
            if loop.stop is not None:
                _, (done,) = self.load(loop.stop.done)
                if done in self.true:
                    self.values[loop.stop.bound] = self.term(loop.stop.length)
                    break
        self.held = held
        if loop.parallel:
            self.places = outside
            for name, slots in made.items():
                self.places[name].update(slots)
        self.values.pop(loop.counter, None)
        if outer is not None:
            self.values[loop.counter] = outer

    def block(self, block: Block) -> None:
        local: dict[str, int] = {}
        called: dict[int, Any] = {}
        self.steps += 1
        for compute in block.body:
            for length in (n for kind in (compute.type, *(load.type for load in compute.loads)) for n in kind.shape):
                if self.term(length) > self.program.limits.get(length, inf):
                    raise WrongError(f"{length} exceeds its limit")
            local[compute.result] = self.compute(compute, local, called)
        for store in block.stores:
            slot = tuple(self.term(term) for term in store.index)
            self.inside(store.place, slot)
            if self.program.places[store.place].kind == "input" or store.value not in local:
                raise WrongError(f"a store of {store.value} into {store.place}")
            self.places[store.place][slot] = local[store.value]
            self.held[store.place, store.index] = local[store.value]

    def compute(self, compute: Compute, local: Mapping[str, int], called: dict[int, Any]) -> int:
        operands: list[tuple[Point, tuple[int, ...]]] = []
        unread = None
        if compute.op == "choose":  # the point of what is not chosen need not exist
            unread = 1 if compute.attributes["condition"].evaluate(self.lookup) else 0
        for number, operand in enumerate(compute.operands):
            if isinstance(operand, Load):
                operands.append(((), (self.zero,)) if number == unread else self.load(operand))
            elif operand.name not in local:
                raise WrongError(f"{operand.name} is not computed yet")
            else:
                operands.append(((), (local[operand.name],)))
        if compute.op == "host":
            call, function = compute.attributes["call"], compute.attributes["function"]
            if call not in called:
                called[call] = operands
                if function.effect is not None:
                    self.log.setdefault(function.effect, []).append((call, tuple(operands)))
            operands = called[call]
        point = tuple(self.term(term) for term in compute.step)
        return expression(self.expressions, compute.op, compute.attributes, operands, self.lookup, point)

    def look(self, load: Load) -> None:
        """See that what is said of a read is so."""
        ends: list[float] = []
        for entry, count in zip(load.index, self.slots[load.place], strict=True):
            if isinstance(entry, Term):
                ends.append(self.term(entry) + 1)
                continue
            start, length = self.term(entry.start), self.term(entry.length)
            limit = self.program.limits.get(entry.length, length)
            ring = entry.ring is not None and (length == count or (start == 0 and length <= count))
            slice_ = entry.ring is None and entry.step == 1 and start >= 0 and start + limit <= max(limit, count)
            rows = entry.ring is None and 0 <= start < entry.step
            if entry.via is not None and not {"ring": ring, "slice": slice_, "rows": rows}[entry.via]:
                raise WrongError(f"{load} cannot be read as {entry.via}")
            ends.append(length if entry.ring else start + (length - 1) * entry.step + 1)
        for slot in self.places[load.place] if load.zeros else ():
            picked = [n for n, entry in enumerate(load.index) if isinstance(entry, Term)]
            same = all(slot[n] + 1 == ends[n] for n in picked)
            if same and any(s >= end for s, end in zip(slot, ends, strict=True)):
                raise WrongError(f"{load} leaves out {slot}")

    def load(self, load: Load) -> tuple[Point, tuple[int, ...]]:
        self.look(load)
        choices: list[list[int]] = []
        shape: list[int] = []
        for entry in load.index:
            if isinstance(entry, Steps):
                start, length = self.term(entry.start), max(0, self.term(entry.length))
                picked = [start + k * entry.step for k in range(length)]
                choices.append([p % entry.ring for p in picked] if entry.ring else picked)
                shape.append(length)
            else:
                choices.append([self.term(entry)])
        found = []
        if load.held:
            if (load.place, load.index) not in self.held:
                raise WrongError(f"{load} has not been stored")
            return (), (self.held[load.place, load.index],)
        for slot in product(*choices):
            self.inside(load.place, slot)
            if self.program.places[load.place].kind == "input":
                name = next(n for n, place in self.program.inputs.items() if place == load.place)
                found.append(self.expressions("input", name, slot))
            else:
                found.append(self.places[load.place].get(slot, self.zero))
        return tuple(shape), tuple(found)

    def inside(self, place: str, slot: Point) -> None:
        sizes = self.slots[place]
        if len(slot) != len(sizes) or not all(0 <= s < n for s, n in zip(slot, sizes, strict=True)):
            raise WrongError(f"{place}{slot} does not exist")


def stops(graph: Graph, bounds: Bounds) -> list[tuple[int | None, bool]]:
    """The step at which a stopping condition becomes true, and whether it stays true."""
    if not graph.until:
        return [(None, False)]
    ((dim, _),) = graph.until.items()
    assert dim.bound is not None
    steps = range(bounds[dim.bound])
    return [(None, False), *((step, stays) for step in steps for stays in (False, True))]


def wrong_at(graph: Graph, program: LoopProgram, bounds: Bounds, stop: tuple[int | None, bool]) -> str | None:
    """What is wrong with a program at some bounds, or None."""
    expressions = Expressions()
    true: frozenset[int] = frozenset()
    final = dict(bounds)
    if stop[0] is not None:
        ((dim, name),) = graph.until.items()
        assert dim.bound is not None
        meaning = Meaning(graph, bounds, expressions)
        length = bounds[dim.bound]
        chosen = range(stop[0], length) if stop[1] else (stop[0],)
        true = frozenset(meaning.value(name, (step,)) for step in chosen)
        final[dim.bound] = next(step + 1 for step in range(length) if meaning.value(name, (step,)) in true)
    machine = Machine(program, bounds, expressions, true)
    try:
        machine.run()
    except (WrongError, ZeroDivisionError) as error:
        return str(error)
    for symbol in program.bounds:
        if machine.values[symbol] != final[symbol]:
            return f"{symbol} is {machine.values[symbol]} instead of {final[symbol]}"
    meaning = Meaning(graph, final, expressions)
    for place, expected in zip(program.outputs, meaning.outputs(), strict=True):
        if program.places[place].kind == "input":
            continue
        for point, value in expected.items():
            if machine.places[place].get(point) != value:
                return f"{place}{point} is wrong"
    for effect, calls in meaning.effects().items():
        if machine.log.get(effect, []) != calls:
            return f"effect {effect} is out of order"
    return None


def all_bounds(graph: Graph, most: int) -> list[dict[Symbol, int]]:
    """Bounds from 0 to `most` that the program accepts, those in the middle first."""
    symbols = sorted((s for s in graph.symbols if s.kind != "dim"), key=lambda s: s.name)
    values = sorted(range(most + 1), key=lambda n: abs(n - 3))
    found = []
    for choice in product(values, repeat=len(symbols)):
        bounds = dict(zip(symbols, choice, strict=True))
        lookup = bounds.__getitem__
        small = all(s.max is None or bounds[s] <= s.max.evaluate(lookup) for s in symbols)
        if small and all(requirement.condition.evaluate(lookup) for requirement in graph.requirements):
            found.append(bounds)
    return found


def wrong(graph: Graph, program: LoopProgram, most: int = 6) -> str | None:
    """The first thing wrong with a program at small bounds, or None where all is right."""
    for bounds in all_bounds(graph, most):
        for stop in stops(graph, bounds):
            fault = wrong_at(graph, program, bounds, stop)
            if fault:
                return f"{fault} at {bounds}" + (f", stopping at {stop[0]}" if stop[0] is not None else "")
    return None


Mutant = Callable[[LoopProgram, Random], LoopProgram | None]
"""A random change of a program; None where there is nothing to change."""


def refused_if_wrong(
    graph: Graph, program: LoopProgram, ways: Sequence[Mutant], name: str, count: int = 8, most: int = 4
) -> None:
    """Of some random changes of a program, the checker refuses those that are wrong at small bounds."""
    random = Random(name)
    for _ in range(count):
        mutant = random.choice(ways)(program, random)
        if mutant is None or mutant == program:
            continue
        try:
            check_program(graph, mutant)
        except IllegalProgramError:
            continue
        assert wrong(graph, mutant, most) is None, show(mutant)
