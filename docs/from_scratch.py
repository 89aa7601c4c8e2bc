"""Polyrhythm from scratch: the idea of the compiler in one file that you can read in an evening.

The real compiler has gradients, tensors of any shape, conditions, three backends and a checker that trusts nobody.
This file has none of that, and every step that matters:

    terms      affine expressions of steps and bounds, such as `t + 1`
    language   `y[t] = 0.9 * y[t - 1] + 0.1 * x[t]`: definitions with domains, reads of points and of ranges
    sets       questions about all steps at once, for every T, answered by isl
    check      every value has one definition, every read is in range; else a counterexample
    schedule   loops found from the dependences: a rank for every statement, so that nothing is read before it is made
    storage    a ring of slots where later steps overwrite what nobody reads any more
    emit       Python loops over NumPy

Run it with `python docs/from_scratch.py`; `tests/test_from_scratch.py` has more programs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import islpy as isl
import numpy as np

# --- Terms: c + a*t + b*T. Steps (t) and bounds (T) are symbols; all that a program does with indices is affine.


@dataclass(frozen=True)
class Term:
    """An affine expression.

    >>> t, T = symbol("t"), symbol("T")
    >>> str(T - t * 2 - 1)
    'T - 2*t - 1'
    """

    parts: tuple[tuple[str, int], ...] = ()
    constant: int = 0

    def __add__(self, other: Term | int) -> Term:
        other = term(other)
        total = dict(self.parts)
        for name, factor in other.parts:
            total[name] = total.get(name, 0) + factor
        return Term(tuple(sorted((n, f) for n, f in total.items() if f)), self.constant + other.constant)

    def __mul__(self, factor: int) -> Term:
        return Term(tuple((n, f * factor) for n, f in self.parts if factor), self.constant * factor)

    def __sub__(self, other: Term | int) -> Term:
        return self + term(other) * -1

    __radd__, __rmul__ = __add__, __mul__

    def at(self, steps: dict[str, Term]) -> Term:
        """The same term with other terms for some symbols."""
        return sum((steps.get(n, symbol(n)) * f for n, f in self.parts), Term((), self.constant))

    def __str__(self) -> str:
        shown = "".join(f" {'-' if f < 0 else '+'} {'' if abs(f) == 1 else f'{abs(f)}*'}{n}" for n, f in self.parts) + (
            f" {'-' if self.constant < 0 else '+'} {abs(self.constant)}" if self.constant or not self.parts else ""
        )
        return shown[3:] if shown.startswith(" + ") else "-" + shown[3:]


def term(value: Term | int) -> Term:
    """A term, also of an integer."""
    return value if isinstance(value, Term) else Term((), value)


def symbol(name: str) -> Term:
    """A step or a bound."""
    return Term(((name, 1),))


# --- Language: a tensor is a family of values, one per step of its dims. Equations define it; the right-hand side is a
# tree of reads, constants and operations. Nothing says in which order the steps run.


@dataclass(frozen=True)
class Dim:  # a step that runs from 0 to its bound, `t` and `T`
    name: str
    bound: str


@dataclass(frozen=True)
class Range:
    """The steps from `first` up to, not including, `end`."""

    first: Term
    end: Term

    def at(self, steps: dict[str, Term]) -> Range:
        """The same range with other terms for some symbols."""
        return Range(self.first.at(steps), self.end.at(steps))


class Value:
    """The right-hand side of an equation."""

    def __add__(self, other: object) -> Value:
        return Operation("np.add", (self, value(other)))

    def __mul__(self, other: object) -> Value:
        return Operation("np.multiply", (self, value(other)))

    __radd__, __rmul__ = __add__, __mul__

    def sum(self) -> Value:
        """Over the steps of a range."""
        return Operation("np.sum", (self,))


@dataclass(frozen=True)
class Constant(Value):  # a number
    number: float


@dataclass(frozen=True)
class Operation(Value):  # a NumPy function of other values
    function: str
    operands: tuple[Value, ...]


@dataclass(frozen=True)
class Read(Value):  # a tensor at a step of each of its dims, or at a range of them
    source: Tensor
    index: tuple[Term | Range, ...]


def value(thing: object) -> Value:
    """A value, also of a number."""
    return thing if isinstance(thing, Value) else Constant(float(thing))  # type: ignore[arg-type]


@dataclass(eq=False)
class Tensor:
    """An input, or a tensor that equations define."""

    name: str
    dims: tuple[Dim, ...]
    is_input: bool = False
    definitions: list[Statement] = field(default_factory=list)

    def _index(self, index: object) -> tuple[Term | Range, ...]:
        items = index if isinstance(index, tuple) else (index,)
        return tuple(Range(term(i.start), term(i.stop)) if isinstance(i, slice) else term(i) for i in items)

    def __getitem__(self, index: object) -> Read:
        return Read(self, self._index(index))

    def __setitem__(self, index: object, meaning: object) -> None:
        """Define the tensor where the index reaches, inside its dims.

        `y[t + 1] = ...` is turned into a definition at a plain step: with `t - 1` for `t` on the right, from 1 on.
        """
        domain, moved = [], {}
        for dim, at in zip(self.dims, self._index(index), strict=True):
            assert isinstance(at, Term)
            if dict(at.parts) == {dim.name: 1}:
                moved[dim.name] = symbol(dim.name) - at.constant
                domain.append(Range(term(max(0, at.constant)), symbol(dim.bound) + min(0, at.constant)))
            else:  # a fixed step, y[0]
                domain.append(Range(at, at + 1))
        name = f"{self.name}.{len(self.definitions)}"
        self.definitions.append(Statement(name, self, tuple(domain), shifted(value(meaning), moved)))


def shifted(tree: Value, moved: dict[str, Term]) -> Value:
    """The same value of other steps."""
    if isinstance(tree, Operation):
        return replace(tree, operands=tuple(shifted(o, moved) for o in tree.operands))
    if isinstance(tree, Read):
        return replace(tree, index=tuple(i.at(moved) for i in tree.index))
    return tree


@dataclass(frozen=True, eq=False)
class Statement:
    """One equation: `tensor[dims] = meaning` for all steps of a domain. Steps outside 0 .. bound do not exist."""

    name: str
    tensor: Tensor
    domain: tuple[Range, ...]
    meaning: Value

    @property
    def reads(self) -> list[Read]:
        """Every read on the right-hand side."""
        found: list[Read] = []
        todo = [self.meaning]
        while todo:
            match todo.pop():
                case Read() as read:
                    found.append(read)
                case Operation(operands=operands):
                    todo += operands
        return found


# --- Sets: isl answers questions about all steps and all bounds at once. We write them as text, one column per symbol.


def points(columns: list[str], *constraints: str) -> isl.Set:
    """The integer points that satisfy constraints.

    >>> points(["t", "T"], "0 <= t < T", "T <= 3", "t >= 3").is_empty()
    True
    """
    return isl.Set(f"{{ [{', '.join(columns)}] : {' and '.join(constraints) or 'true'} }}")


def example(inside: isl.Set, columns: list[str]) -> dict[str, int]:
    """The first point of a set: a counterexample for a message."""
    point = inside.lexmin().sample_point()
    return {c: point.get_coordinate_val(isl.dim_type.set, i).to_python() for i, c in enumerate(columns)}


def most(inside: isl.Set, columns: list[str], what: Term) -> int | None:
    """The largest value of a term over a set; None without limit, 0 of an empty set."""
    largest = inside.max_val(isl.Aff(f"{{ [{', '.join(columns)}] -> [({what})] }}"))
    return None if largest.is_infty() else largest.to_python() if largest.is_int() else 0


def within(domain: tuple[Range, ...], dims: tuple[Dim, ...], columns: list[str]) -> list[str]:
    """That columns lie in a domain, and in the dims."""
    found = []
    for dim, part, column in zip(dims, domain, columns, strict=True):
        found += dict.fromkeys((f"{part.first} <= {column} < {part.end}", f"0 <= {column} < {dim.bound}"))
    return found


@dataclass(frozen=True)
class Dependence:
    """`reader` at steps i needs `source` at steps i': all such pairs, as a set of columns (bounds, i, i')."""

    reader: Statement
    source: Statement
    pairs: isl.Set
    columns: list[str]


def there(dim: Dim) -> str:
    """The column of the source's step."""
    return f"{dim.name}_"


def reached(read: Read) -> list[str]:
    """That the columns of the source are what a read reaches."""
    pairs = zip(map(there, read.source.dims), read.index, strict=True)
    return [f"{at.first} <= {to} < {at.end}" if isinstance(at, Range) else f"{to} = {at}" for to, at in pairs]


# --- Check: definitions do not overlap, and every read finds a definition. A failure is a point, and so is its message.


class ProgramError(Exception):
    """A program without a meaning."""


def check(statements: list[Statement]) -> list[Dependence]:
    """The dependences of a program, or an error with a counterexample."""
    found = []
    for tensor in {s.tensor for s in statements}:
        for one, other in itertools.combinations(tensor.definitions, 2):
            steps = [d.name for d in tensor.dims]
            columns = sorted({d.bound for d in tensor.dims}) + steps
            both = points(columns, *(c for s in (one, other) for c in within(s.domain, tensor.dims, steps)))
            if not both.is_empty():
                raise ProgramError(f"{tensor.name} is defined twice at {example(both, columns)}")
    for reader in statements:
        for read in reader.reads:
            source, dims = read.source, reader.tensor.dims
            own, theirs = [d.name for d in dims], [there(d) for d in source.dims]
            columns = sorted({d.bound for d in (*dims, *source.dims)}) + own + theirs
            wanted = missing = points(columns, *within(reader.domain, dims, own), *reached(read))
            if source.is_input:
                missing = wanted.subtract(points(columns, *(f"0 <= {there(d)} < {d.bound}" for d in source.dims)))
            for definition in source.definitions:
                defined = points(columns, *within(definition.domain, source.dims, theirs))
                missing = missing.subtract(defined)
                if not (pairs := wanted.intersect(defined)).is_empty():
                    found.append(Dependence(reader, definition, pairs, columns))
            if not missing.is_empty():
                raise ProgramError(
                    f"{reader.name} reads {source.name} where it has no value: {example(missing, columns)}"
                )
    return found


# --- Schedule: Allen and Kennedy's nest of loops, with shifts. A group of statements shares a loop if a direction of a
# dim and a shift per statement make every source run no later than its reader. What such a loop carries is settled;
# what is left orders the statements of its body. A group without a loop falls into its connected components.


@dataclass
class Loop:
    """`for c in ...`: statement s runs at step (c - shift) * direction of the dim."""

    dim: Dim
    direction: int
    shifts: dict[Statement, int]
    parallel: bool
    body: list[Item] = field(default_factory=list)

    def time(self, statement: Statement, step: str) -> Term:
        """When a statement runs, by its own step."""
        return symbol(step) * self.direction + self.shifts[statement]


Item = Loop | Statement


def schedule(statements: list[Statement], dependences: list[Dependence], used: tuple[Dim, ...]) -> list[Item]:
    """Loops and statements in an order that respects the dependences; `used` are the dims of the loops around."""
    left = [d for d in statements[0].tensor.dims if d not in used]
    if len(statements) == 1 and not left:
        if dependences:
            raise ProgramError(f"{statements[0].name} needs itself at the same step")
        return list(statements)
    common = [d for d in left if all(d in s.tensor.dims for s in statements)]
    for dim, direction in itertools.product(common, (1, -1)):
        loop = fitting(statements, dependences, dim, direction)
        if loop is not None:
            inside = [replace(d, pairs=p) for d in dependences if not (p := waiting(loop, d, "=")).is_empty()]
            loop.body = components(statements, inside, (*used, dim))
            return [loop]
    if len(statements) > 1 and len(groups(statements, dependences)) > 1:
        return components(statements, dependences, used)
    raise ProgramError(f"no order of steps computes {', '.join(s.name for s in statements)}: they wait for each other")


def components(statements: list[Statement], dependences: list[Dependence], used: tuple[Dim, ...]) -> list[Item]:
    """The strongly connected parts of a group, each scheduled by itself, sources first."""
    found: list[Item] = []
    for group in groups(statements, dependences):
        found += schedule(group, [d for d in dependences if d.reader in group and d.source in group], used)
    return found


def fitting(statements: list[Statement], dependences: list[Dependence], dim: Dim, direction: int) -> Loop | None:
    """A loop over a dim for all statements: shifts by longest paths over the dependences, if there are any."""
    shifts = dict.fromkeys(statements, 0)
    waits = []
    for d in dependences:
        behind = most(d.pairs, d.columns, (symbol(there(dim)) - symbol(dim.name)) * direction)
        if behind is None:
            return None  # a source as far behind as T is long: the loop would have to end before it begins
        waits.append((d.reader, d.source, behind))
    for _ in range(len(statements) + 1):
        late = [(r, shifts[s] + wait) for r, s, wait in waits if shifts[r] < shifts[s] + wait]
        if not late:
            loop = Loop(dim, direction, shifts, parallel=False)
            loop.parallel = all(waiting(loop, d, ">").is_empty() for d in dependences)
            return loop
        for reader, needed in late:
            shifts[reader] = max(shifts[reader], needed)
    return None  # the waits go round in a circle


def waiting(loop: Loop, d: Dependence, how: str) -> isl.Set:
    """The pairs whose reader runs in a later iteration (">"), or in the same one ("=")."""
    apart = loop.time(d.reader, loop.dim.name) - loop.time(d.source, there(loop.dim))
    return d.pairs.intersect(points(d.columns, f"{apart} {how} 0"))


def groups(statements: list[Statement], dependences: list[Dependence]) -> list[list[Statement]]:
    """The strongly connected components, sources before readers."""
    behind = {s: {s} for s in statements}  # everything that a statement waits for
    for _ in statements:
        for d in dependences:
            behind[d.reader] |= behind[d.source]
    found: list[list[Statement]] = []
    for s in sorted(statements, key=lambda s: len(behind[s])):
        same = next((g for g in found if s in behind[g[0]] and g[0] in behind[s]), None)
        if same is None:
            found.append([s])
        else:
            same.append(s)
    return found


# --- Storage: the value of step t lies in slot t % m. m is the farthest that a write runs ahead of a read of an older
# step, plus one: successive modulo, after Lefebvre and Feautrier, for one dim.


def slots(tensor: Tensor, loops: list[Item], dependences: list[Dependence]) -> int | None:
    """The modulus of a tensor's outermost loop; None where all steps are kept."""
    reads = [d for d in dependences if d.source.tensor is tensor]
    for loop in loops:
        if not isinstance(loop, Loop) or not set(tensor.definitions) <= set(loop.shifts):
            continue
        if loop.dim != tensor.dims[0] or not all(d.reader in loop.shifts for d in reads):
            return None
        ahead = 0
        for d, writer in itertools.product(reads, tensor.definitions):
            columns = [*d.columns, "next"]  # another step of the tensor that is written before this read is done
            early = f"{loop.time(writer, 'next')} <= {loop.time(d.reader, loop.dim.name)}"
            written = points(columns, early, *within(writer.domain[:1], tensor.dims[:1], ["next"]))
            conflict = written.intersect(d.pairs.add_dims(isl.dim_type.set, 1))
            gap = most(conflict, columns, (symbol("next") - symbol(there(loop.dim))) * loop.direction)
            if gap is None:
                return None
            ahead = max(ahead, gap)
        return ahead + 1
    return None


# --- Emit: loops become `for`, statements become assignments into buffers. A statement whose domain is smaller than the
# loop gets a guard; the real compiler cuts the loop instead, runs parallel loops as one array operation, and proves
# the result once more from the text that it emits.


@dataclass
class Program:
    """A compiled program: call it with arrays, print its `source`."""

    source: str
    kept: dict[str, int | None]

    def __call__(self, **given: object) -> dict[str, np.ndarray]:
        names: dict[str, object] = {"np": np, **given}
        exec(self.source, names)
        return names["outputs"]  # type: ignore[return-value]


def compiled(*outputs: Tensor) -> Program:
    """Check, schedule, plan and emit everything that some outputs need."""
    tensors, todo = [], list(outputs)
    while todo:
        tensor = todo.pop()
        if not tensor.is_input and tensor not in tensors:
            tensors.append(tensor)
            todo += [read.source for s in tensor.definitions for read in s.reads]
    statements = [s for tensor in reversed(tensors) for s in tensor.definitions]
    dependences = check(statements)
    loops = schedule(statements, dependences, ())
    kept = {t.name: None if t in outputs else slots(t, loops, dependences) for t in tensors}
    lines = []
    for tensor in tensors:
        shape = [d.bound for d in tensor.dims]
        shape[0] = str(kept[tensor.name] or shape[0])
        lines.append(f"{tensor.name} = np.zeros(({', '.join(shape)},))")
    for item in loops:
        lines += emitted(item, kept, {}, "")
    lines.append(f"outputs = dict({', '.join(f'{o.name}={o.name}' for o in outputs)})")
    return Program("\n".join(lines) + "\n", kept)


def emitted(item: Item, kept: dict[str, int | None], around: dict[str, Loop], indent: str) -> list[str]:
    """The lines of a loop or a statement; `around` are the loops by the names of their counters."""
    if isinstance(item, Statement):
        names = [d.name for d in item.tensor.dims]
        steps = [f"{loop.dim.name} = {(symbol(c) - loop.shifts[item]) * loop.direction}" for c, loop in around.items()]
        guard = f"if {' and '.join(within(item.domain, item.tensor.dims, names))}:"
        left = f"{item.tensor.name}[{slot(item.tensor, tuple(map(symbol, names)), kept)}]"
        return [indent + line for line in (*steps, guard, f"    {left} = {spelled(item.meaning, kept)}")]
    counter, bound, shifts = f"c{len(around)}", item.dim.bound, item.shifts.values()
    low, end = (f"{min(shifts)}", f"{bound} + {max(shifts)}")
    if item.direction < 0:
        low, end = f"1 - {bound} + {min(shifts)}", f"{max(shifts) + 1}"
    lines = [f"{indent}for {counter} in range({low}, {end}):{'  # parallel' if item.parallel else ''}"]
    for inner in item.body:
        lines += emitted(inner, kept, {**around, counter: item}, indent + "    ")
    return lines


def slot(tensor: Tensor, index: tuple[Term | Range, ...], kept: dict[str, int | None]) -> str:
    """Where steps of a tensor lie: in a ring along the first dim, or each in a slot of its own."""
    found = [f"np.arange({i.first}, {i.end})" if isinstance(i, Range) else f"{i}" for i in index]
    modulus = kept.get(tensor.name)
    if modulus is not None:
        found[0] = f"({found[0]}) % {modulus}"
    return ", ".join(found)


def spelled(tree: Value, kept: dict[str, int | None]) -> str:
    """A value as Python text."""
    if isinstance(tree, Constant):
        return repr(tree.number)
    if isinstance(tree, Read):
        return f"{tree.source.name}[{slot(tree.source, tree.index, kept)}]"
    assert isinstance(tree, Operation)
    return f"{tree.function}({', '.join(spelled(o, kept) for o in tree.operands)})"


def main() -> None:
    """A moving average and its double: only the double is asked for, so two slots of the average are enough."""
    t, steps = symbol("t"), Dim("t", "T")
    x, average, double = Tensor("x", (steps,), is_input=True), Tensor("average", (steps,)), Tensor("double", (steps,))
    average[0] = x[0]
    average[t + 1] = 0.9 * average[t] + 0.1 * x[t + 1]
    double[t] = 2 * average[t]
    program = compiled(double)
    print(program.source)
    print(program(x=np.arange(6.0), T=6))


if __name__ == "__main__":
    main()
