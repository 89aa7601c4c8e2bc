"""Loop IR to Python source: what the NumPy and torch backends share.

The source is one generator function: bounds are integers, places are arrays or plain variables, loops are Python
loops, and each computation is a call of the operation's implementation. It can be read, printed, and stepped through.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from polyrhythm.compiler.backends.python.batched import Batch, Together, batched, elements
from polyrhythm.compiler.backends.python.direct import INFIX, Spelled, Words, is_fresh, spelled, written
from polyrhythm.compiler.ir.ops import record
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.ops.record import attribute_terms
from polyrhythm.compiler.ir.terms import Symbol, Term, fresh, ordered
from polyrhythm.compiler.ir.types import Array, TensorType
from polyrhythm.compiler.loops.ir import (
    Block,
    Compute,
    For,
    If,
    Item,
    Load,
    Local,
    LoopProgram,
    Place,
    RowSum,
    Steps,
    Store,
)
from polyrhythm.compiler.loops.python import condition_source, term_source
from polyrhythm.compiler.ragged.independence import MARGIN

Position = tuple[int, int]
"""A unit of the program and its next iteration."""

WORDS = (
    *keyword.kwlist,
    *("inputs", "bounds", "seed", "runtime", "run", "new", "load", "own", "call", "draws", "steps", "added", "_n"),
    "int",
    *("begun", "begin_unit", "begin_at", "first", "range", "min", "max", "bool", "compiled"),
    *("most", "np", "torch", "softmax", "contracted"),
)
"""Identifiers that generated code reserves."""


@dataclass
class Source:
    """The text of a generated module and the objects it refers to by name."""

    program: LoopProgram
    implementations: Mapping[str, Any]
    checked: bool = False
    apart: bool = False
    words: Words | None = None
    units: int = 0
    short: frozenset[Symbol] = frozenset()  # bounds that are less here than where places were made
    together: set[Term] = field(default_factory=set)
    """How many iterations run together, by loop; at least one."""
    rooms: dict[str, Place] = field(default_factory=dict)
    """Places that iterations have to themselves, with room for those that run together."""
    functions: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    names: dict[object, str] = field(default_factory=lambda: {("word", word): word for word in WORDS})

    def name(self, thing: object, text: str) -> str:
        """A Python identifier for a symbol, a place or a value."""
        if thing not in self.names:
            wish = re.sub(r"^(?=\d)|\W", "_", text)
            taken = set(self.names.values())
            number = 2
            unique = wish
            while unique in taken:
                unique, number = f"{wish}_{number}", number + 1
            self.names[thing] = unique
        return self.names[thing]

    def symbol(self, symbol: Symbol) -> str:
        return self.name(symbol, symbol.name)

    def term(self, term: Term) -> str:
        return term_source(term, self.symbol)

    def at(self, name: str) -> Place:
        """A place of the program, or one of those that iterations have to themselves."""
        if name in self.program.places:
            return self.program.places[name]
        return self.rooms.get(name) or Place(name, "variable", (), TensorType((), np.dtype("float32")))

    def place(self, name: str) -> str:
        return self.name(("place", name), f"{name}_kept")

    def value(self, name: str) -> str:
        return self.name(("value", name), name)

    def constant(self, value: Any, text: str) -> str:
        name = f"_{re.sub(r'[^0-9a-zA-Z]', '_', text)}_{len(self.constants)}"
        self.constants[name] = value
        return name

    @property
    def text(self) -> str:
        return "\n".join([*self.functions, *self.lines]) + "\n"

    def loaded(self, name: str, **given: Any) -> Callable[..., Iterator[Position]]:
        """The function that the source defines; `given` are objects that it may refer to."""
        space: dict[str, Any] = {**self.constants, "added": added, **given}
        exec(compile(self.text, name, "exec"), space)
        steps: Callable[..., Iterator[Position]] = space["steps"]
        return steps


def generate(
    program: LoopProgram,
    implementations: Mapping[str, Any],
    checked: bool = False,
    apart: bool = False,
    words: Words | None = None,
) -> Source:
    """The source of `steps(inputs, bounds, seed, runtime, run)`, a generator that runs the program.

    It yields positions (a unit, the next iteration; see `loops/units.py`): before each unit and after each of its
    iterations. `run` is a `Run` and gets the outputs and the bounds found; it may begin at any position. `runtime` has
    the few functions that differ between array libraries: `new`, `load`, `store`, `own`, `call`. With `checked` every
    value is handed to `run.check` as soon as it is computed. With `apart` each block is a function of its own,
    decorated by `compiled`, which the caller of `loaded` gives. Operations are written in the `words` of a library
    where it has them.
    """
    source = Source(program, implementations, checked, apart, words)
    source.constants.update(words.given if words else {})
    write = source.lines.append
    write("def steps(inputs, bounds, seed, runtime, run):")
    write("    new, load, own, call, draws = runtime.new, runtime.load, runtime.own, runtime.call, runtime.draws()")
    write("    begun, (begin_unit, begin_at) = run.begin.places, run.begin.position")
    for symbol in program.bounds:
        write(f"    {source.symbol(symbol)} = bounds[{symbol.name!r}]")
    for given, name in program.inputs.items():
        write(f"    {source.place(name)} = inputs[{given!r}]")
    for place in program.places.values():
        if place.kind != "input":
            made = f"begun[{place.name!r}] if {place.name!r} in begun else {_new(source, place)}"
            write(f"    {source.place(place.name)} = {made}")
    kept = (f"{n!r}: {source.place(n)}" for n, place in program.places.items() if place.kind != "input")
    write(f"    run.kept = lambda: {{{', '.join(kept)}}}")
    write(f"    run.outputs = [{', '.join(source.place(name) for name in program.outputs)}]")
    for item in program.body:
        source.lines += _item(source, item, "    ", outermost=True)
    write(f"    yield {source.units}, 0")
    return source


def _new(source: Source, place: Place) -> str:
    if place.kind == "variable":
        return "None"
    sizes = "".join(f"{source.term(n)}, " for n in place.whole)
    if place.spill is not None:
        return f"runtime.filed({source.constant(place.spill, place.name)}, ({sizes}), {str(place.type.dtype)!r})"
    return f"new(({sizes}), {str(place.type.dtype)!r})"


def _item(source: Source, item: Item, indent: str, outermost: bool = False) -> Iterator[str]:
    unit = source.units
    if isinstance(item, If):
        yield f"{indent}if {condition_source(item.condition, source.symbol)}:"
        for inner in item.body:
            yield from _item(source, inner, indent + "    ", outermost)
        return
    source.units += outermost
    if outermost:
        yield f"{indent}if begin_unit <= {unit}:"
        indent += "    "
    if isinstance(item, Block):
        if outermost:
            yield f"{indent}yield {unit}, 0"
        yield from _block(source, item, indent)
        return
    counter, first, end = source.symbol(item.counter), source.term(item.first), source.term(item.end)
    if outermost:
        yield f"{indent}first = begin_at if begin_unit == {unit} else {first}"
        yield f"{indent}yield {unit}, first"
        first = "first"
    batch = batched(source.program, item) if source.words is not None and not source.checked else None
    if batch is not None:
        after = f"yield {unit}, {counter} + {source.symbol(batch.lane.count)}" if outermost else None
        yield from _many(source, batch, first, indent, after)
        return
    if item.rows is not None:
        yield f"{indent}{_longest(source, item.rows.bound)} = {source.symbol(item.rows.bound)}"
    yield f"{indent}for {counter} in range({first}, {end}):"
    yield from _iteration(source, item, indent + "    ")
    if item.stop is not None:
        bound = source.symbol(item.stop.bound)
        yield f"{indent}    if bool({_operand(source, item.stop.done)}):"
        yield f"{indent}        {bound} = run.ended({item.stop.bound.name!r}, {source.term(item.stop.length)})"
        yield f"{indent}        break"
    if outermost:
        yield f"{indent}    yield {unit}, {counter} + 1"
    if item.rows is not None:
        yield f"{indent}{source.symbol(item.rows.bound)} = {_longest(source, item.rows.bound)}"


def _iteration(source: Source, loop: For, indent: str) -> Iterator[str]:
    """What a loop does at one step; of a row, with the bound of the longest at what this one needs."""
    outside = source.short
    if loop.rows is not None:
        bound, length = loop.rows.bound, _operand(source, loop.rows.lengths)
        yield f"{indent}{source.symbol(bound)} = min({_longest(source, bound)}, int({length}) + {MARGIN})"
        source.short |= {bound}
    for inner in loop.body:
        yield from _item(source, inner, indent)
    source.short = outside


def _longest(source: Source, bound: Symbol) -> str:
    return source.name(("longest", bound), f"longest_{bound.name}")


def _many(source: Source, batch: Batch, first: str, indent: str, after: str | None = None) -> Iterator[str]:
    """As many iterations of a loop at once as are good for the cache; after them comes a statement.

    Who asks for one position after the other may give the inputs of a step only then.
    """
    lane, end = batch.lane, source.term(batch.lane.end)
    counter, count, most = (source.symbol(symbol) for symbol in (lane.counter, lane.count, lane.most))
    sizes = ", ".join(["1", "1", *(source.term(size) for size in batch.sizes)])
    alone = " if run.alone else 1" if after else ""
    if batch.rows:
        yield f"{indent}{most} = max(1, {end} - {first})"
        yield f"{indent}if {end} <= {first}:"
        yield f"{indent}    {count} = 0"
        for name, kind in batch.rows:
            yield f"{indent}    {source.place(name)} = new({_tuple(source, kind.shape)}, {str(kind.dtype)!r})"
    else:
        yield f"{indent}{most} = max(1, {elements(source.program)} // max({sizes})){alone}"
    if batch.rooms and not batch.rows:
        yield f"{indent}{most} = max(1, min({most}, {end} - {first}))"
    for room in batch.rooms:
        source.rooms[room.name] = room
        yield f"{indent}{source.place(room.name)} = {_new(source, room)}"
    source.together.add(lane.count.term)
    yield f"{indent}for {counter} in range({first}, {end}, {most}):"
    yield f"{indent}    {count} = min({most}, {end} - {counter})"
    yield from _inside(source, batch.body, indent + "    ")
    for name, _ in batch.variables:
        yield f"{indent}    {source.place(name)} = None"
    if after:
        yield f"{indent}    {after}"
    for room in batch.rooms:
        yield f"{indent}{source.place(room.name)} = None"


def _inside(source: Source, items: Sequence[Item | Batch], indent: str) -> Iterator[str]:
    """What a loop does whose iterations run together."""
    for item in items:
        if isinstance(item, Batch):
            yield from _many(source, item, source.term(item.lane.first), indent)
        elif isinstance(item, Block):
            yield from _block(source, item, indent)
        elif isinstance(item, If):
            yield f"{indent}if {condition_source(item.condition, source.symbol)}:"
            yield from _inside(source, item.body, indent + "    ")
        else:
            counter = source.symbol(item.counter)
            yield f"{indent}for {counter} in range({source.term(item.first)}, {source.term(item.end)}):"
            yield from _inside(source, item.body, indent + "    ")


def _block(source: Source, block: Block, indent: str) -> Iterator[str]:
    yield f"{indent}# {block.name}"
    if source.apart and not any(record(compute.op).calls or compute.rows for compute in block.body):
        yield from _apart(source, block, indent)
        return
    called: dict[object, str] = {}
    words = source.words
    plan = Spelled() if words is None or source.checked else spelled(words, block)
    made = {compute.result: compute for compute in block.body}
    dead = _dead(block, plan)
    again = block.again if isinstance(block, Together) else {}
    for number, compute in enumerate(block.body):
        if compute.result in plan.numbers or compute.result in plan.gone:
            continue
        result, text, operands = source.value(compute.result), None, list[str]()
        if compute.result in plan.whole:
            template, parts = plan.whole[compute.result]
            text = template.format(*(_operand(source, part) for part in parts))
        else:
            for operand, read in zip(compute.operands, _read(source, compute), strict=True):
                operands.append(plan.numbers.get(operand.name, read) if isinstance(operand, Local) else read)
        if compute.op in ("host", "opaque"):
            # One call for all results that are computed here.
            key = compute.attributes.get("call", (compute.attributes.get("function"), *operands))
            if key not in called:
                called[key] = f"returned_{len(called)}"
                yield f"{indent}{called[key]} = {_called(source, compute, operands)}"
            text = f"{called[key]}[{compute.attributes['result']}]"
        elif words is not None and compute.op == "iota" and compute.attributes["length"].is_constant:
            text = source.constant(np.arange(compute.attributes["length"].constant, dtype=np.int32), result)
        elif words is not None and text is None:
            types = [o.type if isinstance(o, Load) else made[o.name].type for o in compute.operands]
            text = written(words, compute, types, operands, source.term)
            if text is not None and compute.result in plan.reused:
                kept = plan.reused[compute.result]
                yield f"{indent}{operands[kept]} {INFIX[compute.op]}= {operands[1 - kept]}"
                text = operands[kept]
        yield f"{indent}{result} = {text or _computed(source, compute, operands)}"
        if compute.result in again:
            yield f"{indent}if runtime.has_nan({result}):"
            for other in again[compute.result]:
                texts = _read(source, other)
                yield f"{indent}    {source.value(other.result)} = {_computed(source, other, texts)}"
            between = (source.value(other.result) for other in again[compute.result][:-1])
            yield from _forget(between, indent + "    ")
        yield from _check(source, compute, [] if compute.op == "host" else operands, indent)
        yield from _forget((source.value(name) for name in dead[number]), indent)
    for store in block.stores:
        fresh = words is not None and is_fresh(source.at, made[store.value], made)
        yield indent + _store(source, block, store, fresh)
    stored = dict.fromkeys(source.value(store.value) for store in block.stores)
    yield from _forget((*stored, *called.values()), indent)


def _apart(source: Source, block: Block, indent: str) -> Iterator[str]:
    """A block as a call of a function of what it loads and the symbols it mentions; random bits are drawn outside."""
    given: dict[str, str] = {}  # what is handed over, and the parameter that it becomes
    body = []
    for compute in block.body:
        result = source.value(compute.result)
        if compute.op == "random_bits":
            given[_computed(source, compute, [])] = result
            continue
        operands = []
        for operand, text in zip(compute.operands, _read(source, compute), strict=True):
            operands.append(text if isinstance(operand, Local) else given.setdefault(text, f"given_{len(given)}"))
        for term in (term for value in compute.attributes.values() for term in attribute_terms(value)):
            given.update({source.symbol(symbol): source.symbol(symbol) for symbol in ordered(term.symbols)})
        body.append(f"    {result} = {_computed(source, compute, operands)}")
    stored = ", ".join(dict.fromkeys(source.value(store.value) for store in block.stores))
    name = f"block_{len(source.functions)}"
    lines = ["@compiled", f"def {name}({', '.join(given.values())}):", *body, f"    return {stored},"]
    source.functions.append("\n".join(lines))
    yield f"{indent}{stored}, = {name}({', '.join(given)})"
    for store in block.stores:
        yield indent + _store(source, block, store)


def _read(source: Source, compute: Compute) -> list[str]:
    """The operands of an operation; of a choice only the one that is taken, since the other may not be there."""
    operands = [_operand(source, operand) for operand in compute.operands]
    if compute.op == "choose":
        holds = _attribute(source, "condition", compute.attributes["condition"])
        return [f"({operands[0]} if {holds} else None)", f"(None if {holds} else {operands[1]})"]
    return operands


def _computed(source: Source, compute: Compute, operands: Sequence[str]) -> str:
    """An operation applied to its operands."""
    if compute.rows is not None:
        return _row_sum(source, compute, compute.rows)
    if compute.op == "random_bits" and source.words is not None and compute.step:
        site = repr(compute.attributes["site"])
        return f"draws({_tuple(source, compute.attributes['shape'])}, {site}, seed, {_tuple(source, compute.step)})"
    attributes = [f"{key}={_attribute(source, key, value)}" for key, value in compute.attributes.items()]
    if compute.op == "random_bits":
        attributes += ["seed=seed", f"step={_tuple(source, compute.step)}"]
    function = f"_{compute.op}_"
    source.constants[function] = source.implementations[compute.op]
    return f"{function}({', '.join([*operands, *attributes])})"


def _row_sum(source: Source, compute: Compute, rows: RowSum) -> str:
    """A contraction over rows and their steps, added up row by row, each as long as it needs to be."""
    row, bound = fresh("row"), source.symbol(rows.bound)
    words, output = parse_spec(compute.attributes["spec"])
    outside, source.short = source.short, source.short | {rows.bound}
    operands = []
    for word, load in zip(words, compute.loads, strict=True):
        at = word.index(rows.label)
        ranges = [number for number, entry in enumerate(load.index) if isinstance(entry, Steps)]
        index = tuple(Term.of(row) if k == ranges[at] else entry for k, entry in enumerate(load.index))
        shape = tuple(n for k, n in enumerate(load.type.shape) if k != at)
        operands.append(_operand(source, replace(load, index=index, type=replace(load.type, shape=shape))))
    source.short = outside
    spec = ",".join(word.replace(rows.label, "") for word in words) + "->" + output
    source.constants["_einsum_"] = source.implementations["einsum"]
    one = f"lambda {source.symbol(row)}, {bound}: _einsum_({', '.join(operands)}, spec={spec!r})"
    needed = f"[min({bound}, int(_n) + {MARGIN}) for _n in {_operand(source, rows.lengths)}]"
    total = f"new({_tuple(source, compute.type.shape)}, {str(compute.type.dtype)!r})"
    return f"added({total}, {one}, {needed})"


def added(total: Any, one: Callable[[int, int], Any], lengths: Iterable[int]) -> Any:
    """What each row adds, by its number and length."""
    for row, length in enumerate(lengths):
        total = total + one(row, length)
    return total


def _dead(block: Block, plan: Spelled) -> list[list[str]]:
    """For each computation, the values of the block that nobody needs after it."""
    unnamed = plan.gone | plan.numbers.keys()
    last: dict[str, int] = {}
    again = block.again if isinstance(block, Together) else {}
    for number, compute in enumerate(block.body):
        if compute.result not in unnamed:
            operands = plan.whole[compute.result][1] if compute.result in plan.whole else compute.operands
            names = [compute.result, *(operand.name for operand in operands if isinstance(operand, Local))]
            names += [name for other in again.get(compute.result, ()) for name in other.locals if name in block.types]
            last.update(dict.fromkeys(names, number))
    kept = {store.value for store in block.stores} | unnamed
    dead: list[list[str]] = [[] for _ in block.body]
    for name, number in last.items():
        if name not in kept:
            dead[number].append(name)
    return dead


def _forget(names: Iterable[str], indent: str) -> Iterator[str]:
    """Let go of values, so that their memory is free for the next ones."""
    gone = ", ".join(names)
    if gone:
        yield f"{indent}del {gone}"


def _check(source: Source, compute: Compute, operands: list[str], indent: str) -> Iterator[str]:
    """Hand a float to the check, with what it was computed from."""
    if source.checked and compute.type.dtype.kind in "fcV" and compute.op != "constant":
        what = source.constant(compute, compute.result)
        result, given = source.value(compute.result), "".join(f"{operand}, " for operand in operands)
        yield f"{indent}run.check({what}, {result}, ({given}), {_tuple(source, compute.step)})"


def _called(source: Source, compute: Compute, operands: list[str]) -> str:
    """One call of a function that is not ours; the declared shapes of a host function are those at this point."""
    function, given = compute.attributes["function"], ", ".join(operands)
    if compute.op == "opaque":
        return f"{source.constant(function.call, f'opaque_{compute.result}')}({given})"
    shapes = ", ".join(_tuple(source, shape) for shape in compute.attributes["shapes"])
    return f"call({source.constant(function, f'host_{compute.result}')}, [{given}], [{shapes}])"


def _tuple(source: Source, terms: Iterable[Term]) -> str:
    return f"({''.join(f'{source.term(term)}, ' for term in terms)})"


def _moves(block: Block, store: Store) -> bool:
    """Whether several slots of a place get what may be a view of others."""
    several = any(isinstance(entry, Steps) for entry in store.index)
    return several and any(load.place == store.place for load in block.loads)


def _fills(block: Block, store: Store, place: Place) -> bool:
    """Whether what is stored has the shape of the place, which is that of the longest step where bounds are fixed."""
    shape = next((compute.type.shape for compute in block.body if compute.result == store.value), place.type.shape)
    single = all(isinstance(entry, Term) for entry in store.index) and len(store.index) == len(place.slots)
    return not single or shape == place.type.shape


def _store(source: Source, block: Block, store: Store, fresh: bool = False) -> str:
    place = source.at(store.place)
    value = source.value(store.value)
    moves = _moves(block, store)
    if place.kind == "variable":
        return f"{source.place(store.place)} = {value if fresh else f'own({value})'}"
    varies = any(n.symbols for n in place.type.shape) or not _fills(block, store, place)
    if varies and len(store.index) == len(place.slots):
        entries = "".join(f"{_slot(source, entry)}, " for entry in store.index)
        return f"runtime.store({source.place(store.place)}, ({entries}), {value})"
    index = ", ".join(_slot(source, entry) for entry in store.index)
    return f"{source.place(store.place)}[{index or '...'}] = {f'own({value})' if moves and not fresh else value}"


def _slot(source: Source, entry: Term | Steps) -> str:
    """A slot in an index, or those of iterations that run together."""
    if isinstance(entry, Term):
        return source.term(entry)
    return f"{source.term(entry.start)}:{source.term(entry.start + entry.length)}"


def _operand(source: Source, operand: Load | Local) -> str:
    if isinstance(operand, Local):
        return source.value(operand.name)
    place = source.at(operand.place)
    name = source.place(operand.place)
    trimmed = _trimmed(source, place, operand)
    if not operand.index and not trimmed:
        return name
    ranges = [entry for entry in operand.index if not isinstance(entry, Term)]
    # Where a range has no steps, a point beside it need not be there either.
    sure = len(operand.index) == 1 or all(entry.length in source.together for entry in ranges)
    if sure and all(_is_slice(source, entry) for entry in ranges) and not trimmed:
        return f"{name}[{', '.join(_slot(source, entry) for entry in operand.index)}]"
    entries = "".join(f"{_entry(source, entry)}, " for entry in operand.index)
    return f"load({name}, ({entries}), ({trimmed}))"


def _is_slice(source: Source, entry: Steps) -> bool:
    """Whether some slots are a slice: in order, and from no step before the first, as empty ranges may be."""
    plain = entry.ring is None and entry.step == 1
    return plain and (entry.start.is_constant or entry.length in source.together)


def _entry(source: Source, entry: Term | Steps) -> str:
    if isinstance(entry, Term):
        return source.term(entry)
    return f"({source.term(entry.start)}, {source.term(entry.length)}, {entry.step}, {entry.ring})"


def _trimmed(source: Source, place: Place, load: Load) -> str:
    """The actual lengths of the value's axes, where they may be less than what the place has room for."""
    own: TensorType = place.type
    shape = load.type.shape[len(load.type.shape) - own.rank :] if own.rank else ()
    exact = place.kind == "variable" or all(a is b for a, b in zip(shape, own.shape, strict=True))
    if exact and all(n.symbols.isdisjoint(source.short) for n in shape):
        return ""
    return "".join(f"{source.term(n)}, " for n in shape)


def _attribute(source: Source, key: str, value: Any) -> str:
    if isinstance(value, Array):
        return source.constant(value.value, key)
    if isinstance(value, (Term,)):
        return source.term(value)
    terms = attribute_terms(value)
    if isinstance(value, tuple):
        return "(" + "".join(f"{_attribute(source, key, part)}, " for part in value) + ")"
    if terms:  # a condition
        return condition_source(value, source.symbol)
    if isinstance(value, (int, float, str, bool, type(None))) and repr(value) not in ("nan", "inf", "-inf"):
        return repr(value)
    return source.constant(value, key)
