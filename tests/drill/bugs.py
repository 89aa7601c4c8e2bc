"""Deliberate miscompilations: a change of one place in the source of one module, as a slip would make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Lane = Literal["passes", "numpy", "torch", "jax", "gradients", "slopes", "rows"]


@dataclass(frozen=True)
class Bug:
    """In `module` the text `old`, which occurs there once, becomes `new`.

    `lane` is where it can be seen: in the graph after the passes, which the oracle evaluates, on a backend, in
    gradients, whose graphs the passes change most, in the slopes of random programs by finite differences, or where
    rows have different lengths.
    """

    name: str
    module: str
    old: str
    new: str
    lane: Lane = "passes"


BUGS: tuple[Bug, ...] = (
    # Passes.
    Bug(
        "share: different reads are the same",
        "polyrhythm.compiler.passes.share",
        "same = moved.operands == wanted.operands and moved.attributes == wanted.attributes",
        "same = moved.attributes == wanted.attributes",
    ),
    Bug(
        "simplify: a product with zero is the factor",
        "polyrhythm.compiler.passes.rules",
        '*_either_side("multiply-zero", "mul", ZERO, ZERO, INT)',
        '*_either_side("multiply-zero", "mul", ZERO, A, INT)',
    ),
    Bug(
        "simplify: definitions that read different steps are merged",
        "polyrhythm.compiler.passes.simplify",
        "return a is b or proves(given, eq(a, b))",
        "return True",
    ),
    Bug(
        "simplify: casts that lose something are left out",
        "polyrhythm.compiler.passes.structure",
        "return _instead(definition, inner) if lossless(first, middle, node.dtype) else None",
        "return _instead(definition, inner)",
    ),
    Bug(
        "simplify: a mask is dropped the wrong way",
        "polyrhythm.compiler.passes.structure",
        "((condition, 1), (negation(condition), 2))",
        "((condition, 2), (negation(condition), 1))",
    ),
    Bug(
        "copies: a range read through a copy starts at the wrong step",
        "polyrhythm.compiler.passes.access",
        "start = step.substitute({**points, symbol: run.start})",
        "start = step.substitute(points).substitute({symbol: run.start + 1})",
    ),
    Bug(
        "narrow: what varies along a dim is computed once",
        "polyrhythm.compiler.passes.narrow",
        "used = set(definition.symbols).union(",
        "used = set(definition.domain.symbols).union(",
    ),
    Bug(
        "lift: a running reduction goes the wrong way",
        "polyrhythm.compiler.passes.lift",
        'run = {"monoid": found.step.monoid, "axis": 0, "reverse": found.reverse}',
        'run = {"monoid": found.step.monoid, "axis": 0, "reverse": not found.reverse}',
    ),
    Bug(
        "ranges: a running result begins with the identity of another monoid",
        "polyrhythm.compiler.passes.running",
        "dtypes.identity(monoid, dtype)",
        'dtypes.identity("sum" if monoid == "max" else monoid, dtype)',
    ),
    Bug(
        "ranges: the first element is combined twice",
        "polyrhythm.compiler.passes.running",
        "return {self.symbol: u if self.reverse or self.inclusive else u - 1}",
        "return {self.symbol: u if self.reverse else u - 1}",
    ),
    Bug(
        "ranges: a running result is read one step early",
        "polyrhythm.compiler.passes.running",
        "return found.end - 1 if inclusive else found.end",
        "return found.end - 1",
    ),
    Bug(
        "ranges: weights relative to a maximum are not adjusted",
        "polyrhythm.compiler.passes.weights",
        "return renamed(peak, {self.symbol: Term.of(self.symbol) + by})",
        "return peak",
    ),
    Bug(
        "ranges: older elements are not adjusted to the maximum of a later reader",
        "polyrhythm.compiler.passes.factors",
        "edges = Term.of(self.edge), Term.of(self.edge) + self.way",
        "edges = Term.of(self.edge), Term.of(self.edge)",
        "gradients",
    ),
    Bug(
        "ranges: what a reader divides its elements by is multiplied",
        "polyrhythm.compiler.passes.factors",
        'yield from self.factors(right, below != (element.op == "div"))',
        "yield from self.factors(right, below)",
    ),
    Bug(
        "ranges: sums about a centre do not move with it",
        "polyrhythm.compiler.passes.centred",
        'before = Made("sub", (renamed(centre, self.run.before), centre))',
        'before = Made("sub", (centre, centre))',
    ),
    Bug(
        "ranges: of equal elements the last is the greatest",
        "polyrhythm.compiler.passes.positions",
        'newer = add("and", add("ne", peak.here, older), add("eq", older, older))',
        'newer = add("eq", peak.definitions[0].operands[0], peak.here)',
    ),
    Bug(
        "windows: a run of powers of two is combined with itself",
        "polyrhythm.compiler.passes.windows",
        "moved = run.substitute({own: Term.of(own) + size * found.way})",
        "moved = run",
    ),
    Bug(
        "windows: an element before the first step counts",
        "polyrhythm.compiler.passes.windows",
        "inside = lt(Term(tap), found.length)",
        "inside = lt(Term(tap), found.length + 1)",
    ),
    Bug(
        "accumulate: the last step is not added",
        "polyrhythm.compiler.passes.accumulate",
        "end = simplified_term(steps.start + length, known)",
        "end = simplified_term(steps.start + length - 1, known)",
    ),
    Bug(
        "tables: a table is read one step early",
        "polyrhythm.compiler.passes.tables",
        "read = Access(name, (*(Term.of(dim.symbol) for dim in outer), steps.start))",
        "read = Access(name, (*(Term.of(dim.symbol) for dim in outer), steps.start + 1))",
        "gradients",
    ),
    Bug(
        "pairs: an element is recomputed at the step of its reader",
        "polyrhythm.compiler.passes.pairs",
        "element = elements.of(access, taken)",
        "element = elements.of(access, {axis: ZERO for axis in taken})",
        "gradients",
    ),
    Bug(
        "skew: diagonals that go up are counted from another one",
        "polyrhythm.compiler.passes.skew",
        "moved = row * self.slope + self.shift",
        "moved = row * self.slope",
    ),
    Bug(
        "skew: the cells of the last column are not defined",
        "polyrhythm.compiler.passes.skew",
        "ge(column, 0), lt(column, extents[how.gone])",
        "ge(column, 0), lt(column + 1, extents[how.gone])",
    ),
    Bug(
        "states: the state is read at the step of what it was given",
        "polyrhythm.compiler.passes.states",
        "tuple(back[symbol] for symbol in state.symbols)",
        "tuple(0 * back[symbol] + Term.of(own) for symbol, own in zip(state.symbols, value.symbols, strict=True))",
        lane="gradients",
    ),
    Bug(
        "carry: an iteration goes on from its own start",
        "polyrhythm.compiler.passes.carry",
        "at = (*(Term.of(symbol) for symbol in node.symbols[: found.outer]), *point)",
        "at = (*(Term.of(symbol) for symbol in node.symbols[: found.outer]), *(0 * step for step in point))",
    ),
    Bug(
        "dead: a definition that holds is dropped",
        "polyrhythm.compiler.passes.dead",
        "if not solutions(condition).is_empty:",
        "if not solutions(condition).is_empty and len(kept) < 1:",
    ),
    Bug(
        "predicate: the edge is read inside",
        "polyrhythm.compiler.passes.predicate",
        "condition = simplified(usual.domain, node.points)",
        "condition = simplified(edges[0].domain, node.points)",
        "jax",
    ),
    Bug(
        "align: an operand is read at the step where it was computed before",
        "polyrhythm.compiler.passes.align",
        "shifted = nodes.seen_through(access)",
        "shifted = source.only",
        "gradients",
    ),
    Bug(
        "tiles: a reader is a tile ahead of what it reads",
        "polyrhythm.compiler.schedule.shifts",
        "[(source, reader, gap // tile) for source, reader, gap in found[1]]",
        "[(source, reader, -(-gap // tile)) for source, reader, gap in found[1]]",
        "jax",
    ),
    Bug(
        "jax: lanes of a tile read one slot late",
        "polyrhythm.compiler.backends.jax.trace.lanes",
        "begin = offset - low * count",
        "begin = (offset - low * count) // 2 * 2",
        "jax",
    ),
    # Blocks, schedule, storage, loops: the checker of every compilation stands in the way.
    Bug(
        "blocks: index values are those of another step",
        "polyrhythm.compiler.ir.graph",
        "attributes = map_attributes(self.attributes, lambda term: term.substitute(mapping))",
        "attributes = dict(self.attributes)",
        "numpy",
    ),
    Bug(
        "dependences: the last step of a range is forgotten",
        "polyrhythm.compiler.ir.reads",
        "known += [ge(position.term, 0), lt(position.term, step.length)]",
        "known += [ge(position.term, 0), lt(position.term, step.length - 1)]",
        "numpy",
    ),
    Bug(
        "scheduler: readers run one iteration too early",
        "polyrhythm.compiler.schedule.shifts",
        "distances.append((d.source, d.reader, smallest - d.gap))",
        "distances.append((d.source, d.reader, smallest - d.gap + 1))",
        "numpy",
    ),
    Bug(
        "scheduler: blocks are aligned although reads disagree",
        "polyrhythm.compiler.schedule.shifts",
        "elif lag:",
        "elif lag > 1:",
        "numpy",
    ),
    Bug(
        "storage: a ring has one slot too few",
        "polyrhythm.compiler.schedule.storage",
        "count = Term(-(-(reach + 1) // tile) * tile)",
        "count = Term(-(-max(1, reach) // tile) * tile)",
        "numpy",
    ),
    Bug(
        "loops: a guard is left out",
        "polyrhythm.compiler.loops.build",
        "yield code if guard is TRUE else ir.If(guard, (code,))",
        "yield code",
        "numpy",
    ),
    Bug(
        "loops: the last iteration is left out",
        "polyrhythm.compiler.loops.build",
        "[(first, last + 1) for first, last in steps.intervals(counter)]",
        "[(first, last) for first, last in steps.intervals(counter)]",
        "numpy",
    ),
    # What the later passes write to the loops: the checker again.
    Bug(
        "layout: capacity of a window one too small",
        "polyrhythm.compiler.loops.layout",
        "return {term: value for term, value in found.items() if value is not None}",
        "return {term: value - 1 for term, value in found.items() if value is not None}",
        "jax",
    ),
    Bug(
        "layout: a ring is read in memory order though its order shows",
        "polyrhythm.compiler.loops.layout",
        "spoiled = _spoiled(block, tags)",
        "spoiled: set[Steps] = set()",
        "jax",
    ),
    Bug(
        "layout: no mask although more has been stored",
        "polyrhythm.compiler.loops.layout",
        "if not self.proves(earlier, within):",
        "if not self.proves(earlier, within) and False:",
        "jax",
    ),
    Bug(
        "hold: a register is read after its slot was overwritten",
        "polyrhythm.compiler.loops.hold",
        "if name == place and (index is None or not _differ(index, other)):",
        "if name == place and index is None:",
        "jax",
    ),
    Bug(
        "lanes: the mask of lanes that leave slots out",
        "polyrhythm.compiler.loops.lanes",
        "return loop.first + own.offset is ZERO and loop.end + own.offset is count",
        "return True",
        "jax",
    ),
    Bug(
        "growth: an iteration past the capacity",
        "polyrhythm.compiler.loops.growth",
        "return self.loop.end.substitute({self.bound: capacity}), *(capacity",
        "return self.loop.end.substitute({self.bound: capacity + 1}), *(capacity + 1",
        "jax",
    ),
    # Backends: nothing but their results can tell.
    Bug(
        "numpy: slices begin one element late",
        "polyrhythm.compiler.ir.ops.shapes",
        "index.append(slice(start, None if stop < 0 else stop, step) if length else slice(0, 0))",
        "index.append(slice(max(0, start - 1), None if stop < 0 else max(0, stop - (start > 0)), step)"
        " if length else slice(0, 0))",
    ),
    Bug(
        "torch: a reversed running reduction is not turned back",
        "polyrhythm.compiler.backends.torch.ops.axes",
        "result.flip(axis) if reverse else result, x.dtype",
        "result, x.dtype",
        "torch",
    ),
    Bug(
        "jax: a reduction is not masked",
        "polyrhythm.compiler.backends.jax.ops.reductions",
        'array = x.array if x.zeros and monoid == "sum" else masked(x, axes, start)',
        "array = x.array",
        "jax",
    ),
    Bug(
        "jax: lanes read their neighbour's row",
        "polyrhythm.compiler.backends.jax.trace.lanes",
        "rows = _along(array, cut.left, start, count)",
        "rows = _along(array, cut.left, start + 1, count)",
        "jax",
    ),
    Bug(
        "jax: lanes inside lanes see the rows of the outer ones",
        "polyrhythm.compiler.backends.jax.trace.views",
        'return f"{cut.place} at {cut.axis}: {cut.counter.term + cut.offset} ({cut.counter.serial}){ring}{fixed}"',
        'return f"{cut.place} at {cut.axis}: {cut.offset}{ring}{fixed}"',
        "jax",
    ),
    Bug(
        "jax: lanes see the first row of a table for every row",
        "polyrhythm.compiler.backends.jax.trace.lanes",
        "array = taken_at(array, lowering.scalar(term), axis)",
        "array = taken_at(array, 0, axis)",
        "jax",
    ),
    Bug(
        "jax: lanes store their row into the row before",
        "polyrhythm.compiler.backends.jax.trace.lanes",
        "fixed = {axis: jnp.int32(lowering.scalar(term)) for axis, term in cut.at}",
        "fixed = {axis: jnp.int32(lowering.scalar(term)) - 1 for axis, term in cut.at}",
        "jax",
    ),
    Bug(
        "jax: what another row has is taken for a lane's own",
        "polyrhythm.compiler.backends.jax.trace.views",
        "if written is not None and written.at == cut.at:",
        "if written is not None:",
        "jax",
    ),
    Bug(
        "jax: a length of the summed axis is taken for the other's",
        "polyrhythm.compiler.backends.jax.products.choose",
        "if axis == rest[0] and (axis in over_b) == along:",
        "if axis == rest[0]:",
        "jax",
    ),
    Bug(
        "jax: the kernel for few rows stops a step early",
        "polyrhythm.compiler.backends.jax.products.choose",
        "used = lengths * np.int32",
        "used = (lengths - 1) * np.int32",
        "jax",
    ),
    Bug(
        "identities: an integer maximum begins at zero",
        "polyrhythm.compiler.ir.dtypes",
        "return np.array(limits.max if largest else limits.min, dtype)",
        "return np.array(limits.max if largest else 0, dtype)",
    ),
    # Gradients: only differences can tell.
    Bug(
        "adjoint: equal arguments of a clamp both win",
        "polyrhythm.compiler.gradients.cases",
        "*(negation(better(other, term)) for other in found.arguments[number + 1 :]),",
        "",
        "slopes",
    ),
    Bug(
        "adjoint: the last step of each remainder is lost",
        "polyrhythm.compiler.gradients.cases",
        "conditions += [ge(remainder, 0), lt(remainder, divisor)]",
        "conditions += [ge(remainder, 0), lt(remainder, divisor - 1)]",
        "slopes",
    ),
    # Rows of different lengths.
    Bug(
        "ragged: a mask is one position too long",
        "polyrhythm.compiler.ragged.lengths",
        'return space.apply("iota", length=size).apply("lt", self.value(space, length))',
        'return space.apply("iota", length=size).apply("le", self.value(space, length))',
        "rows",
    ),
    Bug(
        "ragged: a sum is not masked",
        "polyrhythm.compiler.ragged.operations",
        'if role is not None and role.kind == "reduce":',
        'if role is not None and role.kind == "none":',
        "rows",
    ),
    Bug(
        "ragged: the position in a row is off by one",
        "polyrhythm.compiler.ragged.rewrite",
        'value = value.apply("take", self.lengths.value(space, step), axis=axis)',
        'value = value.apply("take", self.lengths.value(space, step + 1), axis=axis)',
        "rows",
    ),
    Bug(
        "ragged: the first of two cases is taken for all rows",
        "polyrhythm.compiler.ragged.rewrite",
        "chosen = space.current(value).where(self.lengths.truth(space, condition), chosen)",
        "chosen = space.current(value)",
        "rows",
    ),
    Bug(
        "until: a row lives on at the step it ends",
        "polyrhythm.compiler.ragged.stopping",
        'space.read(Access(done.name, before)).apply("not"))',
        "space.read(Access(done.name, before)))",
        "rows",
    ),
    # Files.
    Bug(
        "files: rows of two dims are the same",
        "polyrhythm.compiler.backends.jax.trace.spilled",
        "row = row[..., None] * count + at if at.ndim else row * count + at",
        "row = row[..., None] + at if at.ndim else row + at",
        "jax",
    ),
    Bug(
        "files: what a guard forbids is stored",
        "polyrhythm.compiler.backends.jax.trace.spilled",
        "row = jnp.where(mask, row, jnp.int32(-1))",
        "row = jnp.where(mask, row, row)",
        "jax",
    ),
    Bug(
        "files: a fetch does not wait for the store before it",
        "polyrhythm.compiler.backends.jax.trace.spilled",
        "(before.array, *_file(place, unit), jnp.int32(ahead), rows)",
        "(jnp.int32(0), *_file(place, unit), jnp.int32(ahead), rows)",
        "jax",
    ),
    # Reads beyond the ends, and values that iterations pass on.
    Bug(
        "margins: rows begin where the margin does",
        "polyrhythm.compiler.backends.jax.trace.lanes",
        "at = jax.lax.optimization_barrier(jnp.int32(before))",
        "at = jax.lax.optimization_barrier(jnp.int32(0))",
        "jax",
    ),
    Bug(
        "holds: terms with a constant are never zero",
        "polyrhythm.compiler.ir.terms",
        "return self.constant % divisor != 0 if divisor else self.constant != 0",
        "return self.constant != 0",
        "jax",
    ),
    Bug(
        "strides: steps that read a point are counted from another remainder",
        "polyrhythm.compiler.gradients.adjoint",
        "first = first if proves(known, ge(step, first)) else first % stride",
        "first = first if proves(known, ge(step, first)) else Term(0)",
        "slopes",
    ),
    Bug(
        "private: what another iteration of an outer loop reads is not carried",
        "polyrhythm.compiler.loops.private",
        "own = (name for name, own in reads.items() if all(_inside((*around, loop), d) for d in own))",
        "own = (name for name, own in reads.items() if any(_inside((*around, loop), d) for d in own))",
        "jax",
    ),
)
