"""The loops of a program as pseudo-code, for `program.schedule`: one line for each block of operations.

A line is what the block stores, written as an expression over what it loads, and the bytes that it stores at one point.
What has no name of the user's and is stored for the next block alone stands inside of that one's line. Copies and
broadcasts are not shown. Of an expression that is too long the line tells how many operations it has and what they
read. A loop of one iteration is shown as that iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction
from polyrhythm.compiler.ir.ops import record
from polyrhythm.compiler.ir.terms import ZERO, Symbol, Term, product
from polyrhythm.compiler.ir.types import Array
from polyrhythm.compiler.loops.ir import Block, Compute, For, If, Item, Load, Local, LoopProgram, Operand, Steps, walk

WIDTH = 100
"""The longest expression that is written out, in characters."""

FEW_LINES = 4
"""So many blocks in a row are always shown one by one, lines."""

INFIX = {
    **{"or": ("|", 1), "xor": ("^", 2), "and": ("&", 3)},
    **{"eq": ("==", 4), "ne": ("!=", 4), "lt": ("<", 4), "le": ("<=", 4)},
    **{"add": ("+", 5), "sub": ("-", 5), "mul": ("*", 6), "div": ("/", 6), "floordiv": ("//", 6), "mod": ("%", 6)},
    **{"pow": ("**", 8)},
}
"""The operators of Python, with how tightly they bind."""

PREFIX = {"neg": "-", "not": "~"}

ATOM = 10
"""How tightly a name or a call binds."""

Text = tuple[str, int]
Values = Mapping[Symbol, Term]


@dataclass(frozen=True)
class Line:
    """What one block does, and the part of a library or the user's line that it comes from."""

    text: str
    at: str
    operations: int = 0
    bytes: Term = ZERO
    names: tuple[str, ...] = ()


def pseudo_code(program: LoopProgram, short: bool = False) -> str:
    """The loops of a program, a line for each block; a `short` one has a line for each part of a library instead."""
    return "\n".join(_Printer(program, _forwarded(program.body), short).items(program.body, {}, "")) + "\n"


def block_lines(program: LoopProgram, block: Block, values: Values) -> list[str]:
    """What one block stores, a line for each thing, where counters of loops around it have known values."""
    written = _Expressions(block, values, {})
    printer = _Printer(program, frozenset(), False)
    return [line.text for line in printer._block(block, written, values, len(block.body))]


def _forwarded(items: Sequence[Item]) -> frozenset[str]:
    """The places that every block storing to them stores for the very next block alone, which reads them once."""
    loads, stores, passed = Counter[str](), Counter[str](), Counter[str]()
    for body in (tuple(items), *(item.body for item in walk(tuple(items)) if not isinstance(item, Block))):
        for item, following in zip(body, (*body[1:], None), strict=True):
            if isinstance(item, Block):
                loads.update(load.place for load in item.loads)
                stores.update(store.place for store in item.stores)
                alone = len(item.stores) == 1 and not item.host and isinstance(following, Block)
                read = [load.place for load in following.loads] if isinstance(following, Block) else []
                passed.update(store.place for store in item.stores if alone and read.count(store.place) == 1)
            elif isinstance(item, For) and item.stop is not None:
                loads[item.stop.done.place] += 1
    return frozenset(place for place, count in passed.items() if count == loads[place] == stores[place])


@dataclass(frozen=True)
class _Printer:
    program: LoopProgram
    forwarded: frozenset[str]
    short: bool

    def items(self, items: Sequence[Item], values: Values, indent: str) -> Iterator[str]:
        """The lines of some items: those of the blocks between two loops together, then the loop."""
        for flat, run in groupby(items, partial(_is_flat, values=values)):
            if flat:
                yield from (indent + line for line in self._run(list(run), values))
                continue
            for item in run:
                if isinstance(item, If):
                    yield f"{indent}if {item.condition.substitute(values)}:"
                    yield from self.items(item.body, values, indent + "    ")
                elif isinstance(item, For):
                    yield from self._loop(item, values, indent)

    def _run(self, items: Sequence[Item], values: Values) -> Iterator[str]:
        """Blocks without a loop among them; guards that follow each other with one condition are one."""
        lines = list(self._lines(items, values))
        if self.short and len(lines) > FEW_LINES:
            yield from map(_summed, _grouped([line for _, line in lines]))
            return
        before: Condition = TRUE
        for condition, line in lines:
            if condition is not before and condition is not TRUE:
                yield f"if {condition}:"
            before = condition
            yield line.text if condition is TRUE else f"    {line.text}"

    def _lines(
        self, items: Sequence[Item], values: Values, condition: Condition = TRUE
    ) -> Iterator[tuple[Condition, Line]]:
        """The lines of blocks with what they are guarded by."""
        given: dict[str, Text] = {}
        waiting = 0
        for item in items:
            if isinstance(item, If):
                guard = conjunction(condition, item.condition.substitute(values))
                yield from self._lines(item.body, values, guard)
            elif isinstance(item, For):
                yield from self._lines(item.body, {**values, item.counter: item.first.substitute(values)}, condition)
            else:
                written, given = _Expressions(item, values, given), {}
                count = waiting + sum(not record(compute.op).identity for compute in item.body)
                waiting = 0
                if item.stores and self._passes_on(item) and written.known[item.stores[0].value] is not None:
                    given, waiting = {item.stores[0].place: written.of(item.stores[0].value)}, count
                else:
                    yield from ((condition, line) for line in self._block(item, written, values, count))

    def _loop(self, item: For, values: Values, indent: str) -> Iterator[str]:
        first, last = item.first.substitute(values), (item.end - 1).substitute(values)
        if first == last and item.stop is None:
            yield from self.items(item.body, {**values, item.counter: first}, indent)
            return
        stop = ""
        if item.stop is not None:
            stop = f" until {_load(item.stop.done, values)}, then {item.stop.bound} = {item.stop.length}"
        unrolled = ", unrolled" if item.unrolled else ""
        word = "for all" if item.parallel else "for"
        slots = ", ".join(f"{r.place}{_index(r.before, values)}" for r in item.registers)
        held = f"  # holds {slots} from step to step" if slots else ""
        held = f"  # one by one: {item.refused}" if item.refused else held
        if item.rows is not None:
            who = "rows of similar length together, each chunk" if item.lanes else "each row"
            held = f"  # {who} with its own {item.rows.bound}"
        yield f"{indent}{word} {item.counter} in {first} .. {last}{unrolled}{stop}:{held}"
        yield from self.items(item.body, values, indent + "    ")

    def _passes_on(self, block: Block) -> bool:
        """Whether what a block stores stands in the line of the next; not if the user gave it a name."""
        place = self.program.places[block.stores[0].place]
        return place.name in self.forwarded and place.kind == "variable" and not place.label

    def _block(self, block: Block, written: _Expressions, values: Values, count: int) -> Iterator[Line]:
        """A line for each thing that a block stores; none for what stays where it is."""
        source = next((compute.at for compute in reversed(block.body) if compute.at is not None), None)
        at = "" if source is None else source.library or str(source)
        for number, store in enumerate(block.stores):
            place = self.program.places[store.place]
            left, right = f"{place.name}{_index(store.index, values)}", written.of(store.value)[0]
            size = product(list(place.type.shape)) * place.type.dtype.itemsize
            if left != right:
                text = f"{left} = {right}  # {size} bytes"
                yield Line(text, at, 0 if number else count, size, (place.label or "",))
        if not block.stores and block.body:
            yield Line(written.of(block.body[-1].result)[0], at, count)


def _is_flat(item: Item, values: Values) -> bool:
    """Whether an item is shown without a loop."""
    if isinstance(item, For):
        first, last = item.first.substitute(values), (item.end - 1).substitute(values)
        if first != last or item.stop is not None:
            return False
        values = {**values, item.counter: first}
    return isinstance(item, Block) or all(_is_flat(inner, values) for inner in item.body)


def _grouped(lines: Sequence[Line]) -> list[list[Line]]:
    """Lines by where they come from."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(line.at, []).append(line)
    return list(groups.values())


def _summed(lines: Sequence[Line]) -> str:
    """Lines of one part of a library as one; what has a name is named."""
    if len(lines) == 1:
        return lines[0].text
    names = list(dict.fromkeys(name for line in lines for name in line.names if name))
    shown = ", ".join(names)
    if len(shown) > WIDTH // 2:
        shown = shown[: shown.rfind(", ", 0, WIDTH // 2)] + ", ..."
    size = sum((line.bytes for line in lines), ZERO)
    count = sum(line.operations for line in lines)
    made = f" for {shown}" if names else ""
    return f"{lines[0].at or 'other'}: {count} operations{made}  # {size} bytes"


class _Expressions:
    """What a block computes, as expressions over what it loads; `given` are places whose value is written in full."""

    def __init__(self, block: Block, values: Values, given: Mapping[str, Text]) -> None:
        self.values, self.given = values, given
        self.computes = {compute.result: compute for compute in block.body}
        self.known: dict[str, Text | None] = {}  # None for what is too long
        for compute in block.body:
            made = self._compute(compute)
            self.known[compute.result] = made if made is not None and len(made[0]) <= WIDTH else None

    def of(self, name: str) -> Text:
        """The expression of a value; a summary if it is too long."""
        return self.known[name] or (self._summary(name), ATOM)

    def _summary(self, name: str) -> str:
        """The outermost operation of an expression that is too long, how many there are, and what they read."""
        seen, waiting, reads = set(), [name], dict[str, None]()
        while waiting:
            compute = self.computes[waiting.pop()]
            if compute.result in seen:
                continue
            seen.add(compute.result)
            for operand in compute.operands:
                if isinstance(operand, Local):
                    waiting.append(operand.name)
                else:
                    reads[_load(operand, self.values)] = None
        compute = self.computes[name]
        while record(compute.op).identity and isinstance(compute.operands[0], Local):
            compute = self.computes[compute.operands[0].name]
        shown = list(reads)[:4] + (["..."] if len(reads) > 4 else [])
        count = sum(not record(self.computes[one].op).identity for one in seen)
        return f"{_operation(compute)}(...) of {', '.join(shown)} by {count} operations"

    def _operand(self, operand: Operand) -> Text | None:
        if isinstance(operand, Local):
            return self.known[operand.name]
        if operand.place in self.given:
            return self.given[operand.place]
        return _load(operand, self.values), ATOM

    def _compute(self, compute: Compute) -> Text | None:
        shown = [self._operand(operand) for operand in compute.operands]
        operands = [text for text in shown if text is not None]
        if len(operands) < len(shown):
            return None
        if compute.op in INFIX:
            word, level = INFIX[compute.op]
            (left, first), (right, second) = operands
            left = f"({left})" if first < level else left
            needed = level if compute.op in ("add", "mul", "and", "or") else level + 1
            return f"{left} {word} " + (f"({right})" if second < needed else right), level
        if compute.op in PREFIX:
            text, level = operands[0]
            return PREFIX[compute.op] + (f"({text})" if level < 7 else text), 7
        if record(compute.op).identity and operands:
            return operands[0]
        if compute.op in ("constant", "index"):
            return _constant(compute.attributes["value"], self.values), ATOM
        arguments = [text for text, _ in operands]
        axes = compute.attributes.get("axes", ()) if compute.op == "reduce" else ()
        arguments += [f"axis={axes[0] if len(axes) == 1 else axes}"] if axes else []
        return f"{_operation(compute)}({', '.join(arguments)})", ATOM


def _operation(compute: Compute) -> str:
    """An operation as a user calls it."""
    if record(compute.op).calls:
        return str(compute.attributes["function"].name)
    if compute.op == "reduce":
        return str(compute.attributes["monoid"])
    return {"select": "where", "argreduce": f"arg{compute.attributes.get('which', '')}"}.get(compute.op, compute.op)


def _constant(value: object, values: Values) -> str:
    if isinstance(value, Array):
        return f"constant{list(value.value.shape)}" if value.value.ndim else str(value.value)
    shown = str(value.substitute(values)) if isinstance(value, Term) else str(value)
    return f"({shown})" if " " in shown else shown


def _load(load: Load, values: Values) -> str:
    return f"{load.place}{_index(load.index, values)}"


def _index(entries: Sequence[Term | Steps], values: Values) -> str:
    return f"[{', '.join(_entry(entry, values) for entry in entries)}]" if entries else ""


def _entry(entry: Term | Steps, values: Values) -> str:
    if isinstance(entry, Term):
        return str(entry.substitute(values))
    start, length = entry.start.substitute(values), entry.length.substitute(values)
    shown = f"{start}:{start + length * entry.step}" + (f":{entry.step}" if entry.step != 1 else "")
    return f"({shown}) % {entry.ring}" if entry.ring else shown
