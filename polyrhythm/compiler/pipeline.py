"""The compiler from end to end: outputs to graph, schedule, storage, Loop IR; each phase timed."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from polyrhythm.compiler.backends.kept import recalled
from polyrhythm.compiler.front_end import completed, recomputed
from polyrhythm.compiler.ir.graph import Graph
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.legality import check_growth, check_holds, check_program, check_rows, check_splits
from polyrhythm.compiler.loops.build import build
from polyrhythm.compiler.loops.cost import Machine
from polyrhythm.compiler.loops.growth import with_growth
from polyrhythm.compiler.loops.guards import joined
from polyrhythm.compiler.loops.hold import with_holds
from polyrhythm.compiler.loops.ir import For, LoopProgram, blocks_of, walk
from polyrhythm.compiler.loops.lanes import with_lanes, without_lanes
from polyrhythm.compiler.loops.layout import laid_out
from polyrhythm.compiler.loops.private import with_private
from polyrhythm.compiler.loops.rows import with_rows
from polyrhythm.compiler.loops.stride_split import with_splits
from polyrhythm.compiler.loops.unroll import expanded, marked
from polyrhythm.compiler.passes import BEFORE_GRADIENTS, NAMES, Note, optimised
from polyrhythm.compiler.passes.notes import Notes
from polyrhythm.compiler.ragged import Rows, rectangular
from polyrhythm.compiler.schedule.blocks import Block, make_blocks
from polyrhythm.compiler.schedule.dependences import Dependence, find_dependences
from polyrhythm.compiler.schedule.fusion_notes import distribution_notes
from polyrhythm.compiler.schedule.hoisting import notes_of
from polyrhythm.compiler.schedule.schedule_refusal import contradiction, refusal
from polyrhythm.compiler.schedule.scheduler import Item, ScheduleError, schedule
from polyrhythm.compiler.schedule.storage import Storage, plan_storage
from polyrhythm.compiler.schedule.tiles import Tiling, tiling
from polyrhythm.compiler.trace import trace
from polyrhythm.errors import DeclarationError, UnsupportedError
from polyrhythm.language.budget import Budget
from polyrhythm.language.chunks import Chunk
from polyrhythm.language.index import Bound, Dim
from polyrhythm.language.tensor import Tensor

NO_GROWTH_CALL = 1e6
"""Seconds that a call costs where growing buffers are left out: more than growing ever saves."""


@dataclass
class Compiled:
    """Everything the compiler made of a program, and the seconds each phase took."""

    graph: Graph
    blocks: dict[str, Block]
    dependences: list[Dependence]
    schedule: tuple[Item, ...]
    storage: dict[str, Storage]
    loops: LoopProgram
    seconds: dict[str, float] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    unlifted: Callable[[], Compiled] | None = None  # the same program without what takes all steps of a dim at once
    without: tuple[str, ...] = ()
    compiled_loops: bool = True
    rows: Rows | None = None  # the lengths that are data

    @property
    def executable(self) -> LoopProgram:
        """The loops as a backend that compiles them takes them: those marked for it are unrolled."""
        if any(isinstance(item, For) and item.unrolled for item in walk(self.loops.body)):
            return recalled("unrolled loops", self.loops, partial(_unrolled, self.loops))
        check_growth(self.loops)
        return self.loops


def _unrolled(loops: LoopProgram) -> LoopProgram:
    """A program with its marked loops written out, checked."""
    loops = with_growth(with_holds(with_splits(with_lanes(joined(expanded(loops))))))
    check_holds(loops)
    check_splits(loops)
    check_growth(loops)
    return loops


@dataclass(frozen=True)
class _How:
    """How a graph becomes loops: without which passes, for which backends, and what is chosen of the order."""

    without: tuple[str, ...]
    compiled_loops: bool
    at_once: frozenset[Symbol] = frozenset()
    tiles: Tiling | None = None
    ragged: bool = False
    first: Symbol | None = None  # the dim that is outermost where there is a choice
    steps: frozenset[str] = frozenset()  # the tensors that come before what only later steps need


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector while compiling: nearly nothing dies, and every collection scans it all."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def compile_tensors(
    outputs: Sequence[Tensor],
    effects: Sequence[Tensor] = (),
    until: Mapping[Dim, Tensor] | None = None,
    bounds: Mapping[Bound, int] | None = None,
    without: Collection[str] = (),
    compiled_loops: bool = True,
    chunks: Mapping[Dim, Chunk] | None = None,
    names: Sequence[str | None] = (),
    tight: bool = False,
    segments: Mapping[str, int] | None = None,
) -> Compiled:
    """Trace, check and lower some outputs; `bounds` given here are fixed for good, passes in `without` left out.

    `compiled_loops` tells the passes that the backend compiles loops. `chunks` is what the user chose to vectorise,
    `names` are the names of the outputs. `tight` says that there is a memory budget.
    Gradients compute recurrent tensors over the dims named in `segments` again, in segments of so many steps.
    """
    seconds: dict[str, float] = {}
    with _timed(seconds, "trace"):
        traced = trace(outputs, effects, until, {b.symbol: Term(n) for b, n in (bounds or {}).items()}, names)
        traced = recomputed(traced, segments or {})
    without = tuple(without)
    make = partial(_compiled, traced, chunks or {}, seconds, without, compiled_loops, tight)
    if chunks:  # these are the user's own symbols
        made = make()
    else:
        given = _without_caller(traced), without, compiled_loops, tight
        made = recalled("program", given, make, _kept)
    if made.rows is None:
        made = replace(made, graph=replace(made.graph, parameters=traced.parameters, declared=traced.declared))
    lifted = any(note.by == "lift" and not note.refused for note in made.notes)
    options = (*without, "lift"), compiled_loops, None, names, tight, segments
    unlifted = partial(compile_tensors, outputs, effects, until, bounds, *options)
    return replace(made, seconds=seconds, unlifted=unlifted if lifted else None)


def _without_caller(graph: Graph) -> Graph:
    """A graph without the stored values of parameters and the symbols that the user holds, which do not decide it."""
    return replace(graph, parameters={}, declared={})


def _kept(compiled: Compiled) -> Compiled | None:
    """What of a program is kept for later processes; None where the symbols of the user decide it."""
    return replace(compiled, graph=_without_caller(compiled.graph), seconds={}) if compiled.rows is None else None


def _compiled(
    traced: Graph,
    chunks: Mapping[Dim, Chunk],
    seconds: dict[str, float],
    without: tuple[str, ...],
    compiled_loops: bool,
    tight: bool,
) -> Compiled:
    """What becomes of a traced program."""
    wished = frozenset(dim for dim, chunk in _declared(traced, chunks).items() if chunk.steps != 1)
    first = Notes(compiled_loops=compiled_loops, at_once=wished)

    def prepared(graph: Graph) -> Graph:
        for name, change in BEFORE_GRADIENTS:
            first.by = name
            graph = graph if name in without else change(graph, first)
        return graph

    with _timed(seconds, "check"):
        graph = completed(traced, prepared)
        graph, rows = rectangular(graph)
    chosen = _declared(graph, chunks)
    at_once = frozenset(dim for dim, chunk in chosen.items() if chunk.steps != 1)
    one_by_one = frozenset(dim for dim, chunk in chosen.items() if chunk.steps == 1)
    with _timed(seconds, "passes"):
        ends = frozenset(one.longest for one in (rows.longest if rows is not None else ()) if one.given is not None)
        graph, notes = optimised(graph, without, None, compiled_loops, at_once, tight, ends)
        notes = (*first, *notes)
    with _timed(seconds, "blocks"):
        distribute = compiled_loops and "distribute" not in without
        blocks = make_blocks(graph, "hoist" not in without, "fuse" not in without, distribute)
        notes += notes_of(graph, {name: block.apart for name, block in blocks.items() if block.apart})
    with _timed(seconds, "dependences"):
        dependences = find_dependences(graph, blocks)
    tiled = compiled_loops and not {"tile", "vector"} & set(without)
    tiles = tiling(graph, blocks, one_by_one, tight, distribute) if tiled else None
    try:
        how = _How(without, compiled_loops, at_once, tiles, rows is not None)
        ordered = _ordered(graph, blocks, dependences, seconds, how)
    except ScheduleError:
        if set(NAMES) <= set(without):
            raise
        # The reads as they were checked have an order, by the very rankings that the check has found.
        return _compiled(traced, chunks, seconds, NAMES, compiled_loops, tight)
    notes += distribution_notes(graph, blocks, ordered.schedule, tiles)
    for dim in at_once:
        refused = refusal(graph, blocks, dependences, ordered.schedule, dim, chosen[dim])
        if refused is not None:
            raise refused
        _check_lanes(ordered.loops, dim, chosen[dim])
    loops = replace(ordered.loops, chunks={dim.name: chunk for dim, chunk in chosen.items()})
    if rows is not None and (tiled or not compiled_loops):
        with _timed(seconds, "rows"):
            loops = with_rows(loops, graph, rows.longest)
            check_rows(graph, loops)
            loops = loops if compiled_loops else without_lanes(loops)
    return replace(ordered, loops=loops, notes=notes, without=without, rows=rows)


def _check_lanes(loops: LoopProgram, dim: Symbol, chosen: Chunk) -> None:
    """Refuse what was wished for where the iterations of a loop cannot run together."""
    for loop in walk(loops.body):
        if isinstance(loop, For) and loop.refused and loop.counter.name == dim.name:
            raise UnsupportedError(
                f"{chosen.wish(dim)} cannot be: {loop.refused}",
                fix=chosen.otherwise(dim),
                at=next((compute.at for block in blocks_of(loop.body) for compute in block.body if compute.at), None),
            )


def streamed(compiled: Compiled, dim: Symbol, fed: bool = False) -> Compiled:
    """The same program with a dim outermost where there is a choice, so that its steps come out one by one.

    If inputs are `fed` item by item, a step comes before items are taken that only later ones need.
    """
    given, start = compiled.loops, compiled.unlifted() if compiled.unlifted is not None else compiled
    spread = frozenset(s for s in start.graph.symbols if s.name in given.chunks and given.chunks[s.name].over)
    steps = frozenset(start.graph.outputs if fed else ())
    how = _How(start.without, start.compiled_loops, spread, first=dim, steps=steps)
    variant = _ordered(start.graph, start.blocks, start.dependences, {}, how)
    if variant.schedule == compiled.schedule and start is compiled:
        return compiled
    loops = replace(
        variant.loops,
        budget=given.budget,
        chunks=given.chunks,
        machine=given.machine,
        sharding=given.sharding,
        precision=given.precision,
    )
    return replace(variant, loops=with_growth(loops) if start.compiled_loops else loops, rows=start.rows)


def limited(compiled: Compiled, budget: Budget | None, machine: Machine) -> Compiled:
    """The same program with a limit to its memory and the machine's rates."""
    chosen = dict(compiled.loops.chunks)
    if "vector" in compiled.without:
        one_by_one = {item.counter.name: Chunk(1) for item in walk(compiled.loops.body) if isinstance(item, For)}
        chosen = {**one_by_one, **chosen}
    if "grow" in compiled.without:
        machine = replace(machine, call=NO_GROWTH_CALL)
    limit = None if budget is None else budget.bytes
    loops = replace(compiled.loops, budget=limit, chunks=chosen, machine=machine)
    return replace(compiled, loops=with_growth(loops) if compiled.compiled_loops else loops)


def _declared(graph: Graph, chunks: Mapping[Dim, Chunk]) -> dict[Symbol, Chunk]:
    """What the user chose, by the symbols of the graph."""
    chosen: dict[Symbol, Chunk] = {}
    for dim, chunk in chunks.items():
        symbol = graph.declared.get(dim.symbol) if isinstance(dim, Dim) else None
        if symbol is None or not isinstance(chunk, Chunk):
            wish = chunk.wish(dim) if isinstance(chunk, Chunk) else f"schedule={{{dim}: {chunk!r}}}"
            example = 'shard={t: "data"}' if wish.startswith("shard") else "schedule={t: pr.chunk(256)}"
            raise DeclarationError(
                f"{wish} does not say how a dim of the program runs",
                fix=f"name dims of the program, as in {example}",
            )
        chosen[symbol] = chunk
    return chosen


def _ordered(
    graph: Graph,
    blocks: dict[str, Block],
    dependences: list[Dependence],
    seconds: dict[str, float],
    how: _How,
) -> Compiled:
    with _timed(seconds, "schedule"):
        try:
            items = schedule(blocks, dependences, how.first, how.at_once, how.tiles, how.steps)
        except ScheduleError as error:
            raise contradiction(graph, blocks, dependences) or error from None
    with _timed(seconds, "storage"):
        storage = plan_storage(graph, blocks, items)
    with _timed(seconds, "loops"):
        built = build(graph, blocks, items, storage, how.compiled_loops and not {"mask", "vector"} & set(how.without))
        loops = joined(with_private(built if "unroll" in how.without else marked(built), items, dependences))
    with _timed(seconds, "layout"):
        if how.compiled_loops:
            loops = with_holds(with_splits(with_lanes(laid_out(loops))))
        elif how.ragged:
            loops = with_lanes(loops)
    with _timed(seconds, "legality"):
        check_program(graph, loops)
    return Compiled(graph, blocks, dependences, items, storage, loops, seconds, compiled_loops=how.compiled_loops)


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[phase] = time.perf_counter() - started
