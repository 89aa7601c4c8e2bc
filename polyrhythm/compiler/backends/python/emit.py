"""Loop IR to Python source: what the NumPy and torch backends share.

The source is one generator function: bounds are integers, places are arrays or plain variables, loops are Python
loops, and each computation is a call of the operation's implementation. It can be read, printed, and stepped through.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from polyrhythm.compiler.analysis.calls import check_found
from polyrhythm.compiler.ir.ops import record
from polyrhythm.compiler.ir.ops.record import attribute_terms
from polyrhythm.compiler.ir.terms import Symbol, Term, ordered
from polyrhythm.compiler.ir.types import Array, TensorType
from polyrhythm.compiler.loops.ir import (
    Block,
    Compute,
    If,
    Item,
    Load,
    Local,
    LoopProgram,
    Place,
    Steps,
    Store,
    output_shapes,
)
from polyrhythm.compiler.loops.python import condition_source, term_source

Position = tuple[int, int]
"""A unit of the program and its next iteration."""

Check = Callable[[Compute, Any, tuple[Any, ...], tuple[int, ...]], None]


@dataclass(frozen=True)
class Begin:
    """Where a run goes on that was stopped: the position, the places that matter there, and the bounds found."""

    position: Position
    places: Mapping[str, Any]
    found: Mapping[str, int]


START = Begin((-1, 0), {}, {})
"""The beginning of a program."""


@dataclass
class Run:
    """One run of a program while it goes on: its outputs as far as they are computed, and the bounds found."""

    program: LoopProgram
    bounds: dict[str, int]
    """All that are known; those that the program finds change when it does."""
    check: Check | None = None
    begin: Begin = START
    outputs: list[Any] = field(default_factory=list)
    kept: Callable[[], dict[str, Any]] = dict
    """What every place holds now; None where nothing was stored yet."""

    @property
    def found(self) -> dict[str, int]:
        """The bounds that the program finds itself, as far as it has."""
        return {s.name: self.bounds[s.name] for s in self.program.found}

    def ended(self, bound: str, length: int) -> int:
        """A loop has ended early and so found a length."""
        self.bounds[bound] = length
        check_found(self.program.bounds, self.bounds, bound)
        return length

    def step(self, number: int, axis: int, step: int, shape: tuple[int, ...]) -> Any:
        """One step of an output, at the lengths that its other axes have; a view."""
        index: list[Any] = [slice(n) for n in shape]
        index[axis] = step
        return self.outputs[number][(*index, ...)]


WORDS = (
    *keyword.kwlist,
    *("inputs", "bounds", "seed", "runtime", "run", "new", "load", "own", "call", "steps"),
    *("begun", "begin_unit", "begin_at", "first", "range", "min", "max", "bool", "compiled"),
)
"""Identifiers that generated code reserves."""


@dataclass
class Source:
    """The text of a generated module and the objects it refers to by name."""

    program: LoopProgram
    checked: bool = False
    apart: bool = False
    units: int = 0
    functions: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    names: dict[object, str] = field(default_factory=lambda: {("word", word): word for word in WORDS})

    def name(self, thing: object, text: str) -> str:
        """A Python identifier for a symbol, a place or a value."""
        if thing not in self.names:
            wish = re.sub(r"\W", "_", text)
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


def generate(
    program: LoopProgram, implementations: Mapping[str, Any], checked: bool = False, apart: bool = False
) -> Source:
    """The source of `steps(inputs, bounds, seed, runtime, run)`, a generator that runs the program.

    It yields positions (a unit, the next iteration; see `loops/units.py`): before each unit and after each of its
    iterations. `run` is a `Run` and gets the outputs and the bounds found; it may begin at any position. `runtime` has
    the few functions that differ between array libraries: `new`, `load`, `store`, `own`, `call`. With `checked` every
    value is handed to `run.check` as soon as it is computed. With `apart` each block is a function of its own,
    decorated by `compiled`, which the caller of `loaded` supplies.
    """
    source = Source(program, checked, apart)
    write = source.lines.append
    write("def steps(inputs, bounds, seed, runtime, run):")
    write("    new, load, own, call = runtime.new, runtime.load, runtime.own, runtime.call")
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
        source.lines += _item(source, item, "    ", implementations, outermost=True)
    write(f"    yield {source.units}, 0")
    return source


def loaded(source: Source, name: str, **given: Any) -> Callable[..., Iterator[Position]]:
    """The function that the source defines; `given` are objects that it may refer to."""
    space: dict[str, Any] = {**source.constants, **given}
    exec(compile(source.text, name, "exec"), space)
    steps: Callable[..., Iterator[Position]] = space["steps"]
    return steps


def cut(program: LoopProgram, run: Run, bounds: Mapping[str, int]) -> list[Any]:
    """The outputs of a finished run, at the lengths it found."""
    shapes = output_shapes(program, {**bounds, **run.found})
    return [o[(*map(slice, shape), ...)] for o, shape in zip(run.outputs, shapes, strict=True)]


def _new(source: Source, place: Place) -> str:
    if place.kind == "variable":
        return "None"
    sizes = "".join(f"{source.term(n)}, " for n in place.whole)
    if place.spill is not None:
        return f"runtime.filed({source.constant(place.spill, place.name)}, ({sizes}), {str(place.type.dtype)!r})"
    return f"new(({sizes}), {str(place.type.dtype)!r})"


def _item(
    source: Source, item: Item, indent: str, implementations: Mapping[str, Any], outermost: bool = False
) -> Iterator[str]:
    unit = source.units
    if isinstance(item, If):
        yield f"{indent}if {condition_source(item.condition, source.symbol)}:"
        for inner in item.body:
            yield from _item(source, inner, indent + "    ", implementations, outermost)
        return
    source.units += outermost
    if outermost:
        yield f"{indent}if begin_unit <= {unit}:"
        indent += "    "
    if isinstance(item, Block):
        if outermost:
            yield f"{indent}yield {unit}, 0"
        yield from _block(source, item, indent, implementations)
        return
    counter, first, end = source.symbol(item.counter), source.term(item.first), source.term(item.end)
    if outermost:
        yield f"{indent}first = begin_at if begin_unit == {unit} else {first}"
        yield f"{indent}yield {unit}, first"
        first = "first"
    yield f"{indent}for {counter} in range({first}, {end}):"
    for inner in item.body:
        yield from _item(source, inner, indent + "    ", implementations)
    if item.stop is not None:
        bound = source.symbol(item.stop.bound)
        yield f"{indent}    if bool({_operand(source, item.stop.done)}):"
        yield f"{indent}        {bound} = run.ended({item.stop.bound.name!r}, {source.term(item.stop.length)})"
        yield f"{indent}        break"
    if outermost:
        yield f"{indent}    yield {unit}, {counter} + 1"


def _block(source: Source, block: Block, indent: str, implementations: Mapping[str, Any]) -> Iterator[str]:
    yield f"{indent}# {block.name}"
    if source.apart and not any(record(compute.op).calls for compute in block.body):
        yield from _apart(source, block, indent, implementations)
        return
    called: dict[object, str] = {}
    dead = _dead(block)
    for number, compute in enumerate(block.body):
        operands = _read(source, compute)
        result = source.value(compute.result)
        if compute.op == "host":
            call = compute.attributes["call"]
            if call not in called:
                called[call] = f"results_{call}"
                yield f"{indent}{called[call]} = {_host(source, compute, operands)}"
            yield f"{indent}{result} = {called[call]}[{compute.attributes['result']}]"
            yield from _check(source, compute, [], indent)
            yield from _forget((source.value(name) for name in dead[number]), indent)
            continue
        if compute.op == "opaque":
            # One call for all results that are computed here.
            key = compute.attributes["function"], tuple(operands)
            if key not in called:
                called[key] = f"returned_{len(called)}"
                function = source.constant(key[0].call, f"opaque_{compute.result}")
                yield f"{indent}{called[key]} = {function}({', '.join(operands)})"
            yield f"{indent}{result} = {called[key]}[{compute.attributes['result']}]"
            yield from _check(source, compute, operands, indent)
            yield from _forget((source.value(name) for name in dead[number]), indent)
            continue
        yield f"{indent}{result} = {_computed(source, compute, operands, implementations)}"
        yield from _check(source, compute, operands, indent)
        yield from _forget((source.value(name) for name in dead[number]), indent)
    for store in block.stores:
        yield indent + _store(source, store)
    stored = dict.fromkeys(source.value(store.value) for store in block.stores)
    yield from _forget((*stored, *called.values()), indent)


def _apart(source: Source, block: Block, indent: str, implementations: Mapping[str, Any]) -> Iterator[str]:
    """A block as a call of a function of what it loads and the symbols it mentions; random bits are drawn outside."""
    given: dict[str, str] = {}  # what is handed over, and the parameter that it becomes
    body = []
    for compute in block.body:
        result = source.value(compute.result)
        if compute.op == "random_bits":
            given[_computed(source, compute, [], implementations)] = result
            continue
        operands = []
        for operand, text in zip(compute.operands, _read(source, compute), strict=True):
            operands.append(text if isinstance(operand, Local) else given.setdefault(text, f"given_{len(given)}"))
        for term in (term for value in compute.attributes.values() for term in attribute_terms(value)):
            given.update({source.symbol(symbol): source.symbol(symbol) for symbol in ordered(term.symbols)})
        body.append(f"    {result} = {_computed(source, compute, operands, implementations)}")
    stored = ", ".join(dict.fromkeys(source.value(store.value) for store in block.stores))
    name = f"block_{len(source.functions)}"
    lines = ["@compiled", f"def {name}({', '.join(given.values())}):", *body, f"    return {stored},"]
    source.functions.append("\n".join(lines))
    yield f"{indent}{stored}, = {name}({', '.join(given)})"
    for store in block.stores:
        yield indent + _store(source, store)


def _read(source: Source, compute: Compute) -> list[str]:
    """The operands of an operation; of a choice only the one that is taken, since the other may not be there."""
    operands = [_operand(source, operand) for operand in compute.operands]
    if compute.op == "choose":
        holds = _attribute(source, "condition", compute.attributes["condition"])
        return [f"({operands[0]} if {holds} else None)", f"(None if {holds} else {operands[1]})"]
    return operands


def _computed(source: Source, compute: Compute, operands: Sequence[str], implementations: Mapping[str, Any]) -> str:
    """An operation applied to its operands."""
    attributes = [f"{key}={_attribute(source, key, value)}" for key, value in compute.attributes.items()]
    if compute.op == "random_bits":
        attributes += ["seed=seed", f"step={_tuple(source, compute.step)}"]
    function = f"_{compute.op}_"
    source.constants[function] = implementations[compute.op]
    return f"{function}({', '.join([*operands, *attributes])})"


def _dead(block: Block) -> list[list[str]]:
    """For each computation, the values of the block that nobody needs after it."""
    last = {compute.result: number for number, compute in enumerate(block.body)}
    for number, compute in enumerate(block.body):
        last.update({operand.name: number for operand in compute.operands if isinstance(operand, Local)})
    kept = {store.value for store in block.stores}
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


def _host(source: Source, compute: Compute, operands: list[str]) -> str:
    """One call of a host function; its declared shapes are those of its results, at this point."""
    function = source.constant(compute.attributes["function"], f"host_{compute.result}")
    shapes = ", ".join(_tuple(source, shape) for shape in compute.attributes["shapes"])
    return f"call({function}, [{', '.join(operands)}], [{shapes}])"


def _tuple(source: Source, terms: Iterable[Term]) -> str:
    return f"({''.join(f'{source.term(term)}, ' for term in terms)})"


def _store(source: Source, store: Store) -> str:
    place = source.program.places[store.place]
    value = source.value(store.value)
    if place.kind == "variable":
        return f"{source.place(store.place)} = own({value})"
    if any(n.symbols for n in place.type.shape):
        return f"runtime.store({source.place(store.place)}, {_tuple(source, store.index)}, {value})"
    index = ", ".join(source.term(term) for term in store.index)
    return f"{source.place(store.place)}[{index or '...'}] = {value}"


def _operand(source: Source, operand: Load | Local) -> str:
    if isinstance(operand, Local):
        return source.value(operand.name)
    place = source.program.places[operand.place]
    name = source.place(operand.place)
    trimmed = _trimmed(source, place, operand)
    if not operand.index and not trimmed:
        return name
    if all(isinstance(entry, Term) for entry in operand.index) and not trimmed:
        index = ", ".join(source.term(entry) for entry in operand.index if isinstance(entry, Term))
        return f"{name}[{index}]"
    if len(operand.index) == 1 and isinstance(operand.index[0], Steps) and not trimmed:
        entry = operand.index[0]
        if entry.ring is None and entry.step == 1 and entry.start.is_constant:
            start, stop = source.term(entry.start), source.term(entry.start + entry.length)
            return f"{name}[{start}:{stop}]"
    entries = "".join(f"{_entry(source, entry)}, " for entry in operand.index)
    return f"load({name}, ({entries}), ({trimmed}))"


def _entry(source: Source, entry: Term | Steps) -> str:
    if isinstance(entry, Term):
        return source.term(entry)
    return f"({source.term(entry.start)}, {source.term(entry.length)}, {entry.step}, {entry.ring})"


def empty_read(shape: Sequence[int], entries: Sequence[Any], trimmed: Sequence[int]) -> list[int] | None:
    """The shape of a read of which a range is empty; None otherwise. Its points may then lie anywhere."""
    lengths = [max(0, entry[1]) for entry in entries if isinstance(entry, tuple)]
    if all(lengths):
        return None
    return [*lengths, *(trimmed or shape[len(entries) :])]


def _trimmed(source: Source, place: Place, load: Load) -> str:
    """The actual lengths of the value's axes, where they may be less than what the place has room for."""
    own: TensorType = place.type
    shape = load.type.shape[len(load.type.shape) - own.rank :] if own.rank else ()
    if all(a is b for a, b in zip(shape, own.shape, strict=True)) or place.kind == "variable":
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
