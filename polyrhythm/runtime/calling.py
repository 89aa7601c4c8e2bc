"""How a program is called: inputs are checked and converted, run on the backend, and the results converted back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from polyrhythm.compiler.analysis.calls import solve_bounds
from polyrhythm.compiler.backends.python.runs import START, Begin
from polyrhythm.compiler.ir.graph import Node
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.loops.feeding import Fed, Window
from polyrhythm.compiler.loops.ir import Place, output_shapes
from polyrhythm.compiler.loops.replacing import arranged, in_slots, together
from polyrhythm.compiler.loops.units import needed_marks
from polyrhythm.compiler.pipeline import Compiled
from polyrhythm.errors import MissingBoundError, UnknownDimError, UnsupportedError
from polyrhythm.extras import needs
from polyrhythm.language.index import Bound, Dim
from polyrhythm.runtime import nans, piecewise, processes
from polyrhythm.runtime.arrays import (
    Kind,
    blank,
    copied,
    given,
    is_traced,
    kind_of,
    library,
    like,
    numpy_dtype,
    stand_in,
)
from polyrhythm.runtime.checkpoints import Checkpoints, Saved, fingerprint, identity
from polyrhythm.runtime.feeding import Items, Prefetch, collected, is_iterator
from polyrhythm.runtime.memory import check_budget
from polyrhythm.runtime.progress_bar import Reporter
from polyrhythm.runtime.rows import prepared, rebuilt, step_rows, unpacked
from polyrhythm.runtime.streaming import Feeder, Readiness, Stream, steps

if TYPE_CHECKING:
    from polyrhythm.runtime.program import Program


MOST_SOLVED = 1000
"""For how many combinations of shapes the bounds are kept."""


SHORT = 0.02
"""A run on JAX that took fewer seconds is not watched the next time: waiting for it would cost more than it tells."""


class Caller:
    """Calls one program. Converted parameters are kept as long as they are the same arrays."""

    def __init__(
        self, program: Program, compiled: Compiled, backend: Any, windows: Mapping[str, Window] | None = None
    ) -> None:
        self.program, self.compiled, self.backend = program, compiled, backend
        self.windows = windows or {}  # of inputs that come piece by piece
        self.graph, self.loops = compiled.graph, compiled.loops
        self.library = program.options.backend
        self._params: dict[str, tuple[Any, Any]] = {}
        self._solved: dict[Any, dict[str, int]] = {}
        self._agreed = False
        self._short: set[tuple[int, ...]] = set()
        filed = any(place.spill is not None for place in self.loops.places.values())
        self.alone: Any = Lock() if filed else nullcontext()  # two runs would share the files

    def call(
        self,
        inputs: Mapping[str, Any],
        bounds: Mapping[Any, int] | None,
        seed: int,
        checkpoints: Checkpoints | None = None,
    ) -> Any:
        """The results of a whole run."""
        kind = kind_of([*inputs.values(), *([seed] if is_traced(seed) else [])])
        values = {**self.program.params, **inputs}
        if self.windows:
            return piecewise.call(self, kind, values, bounds, seed, checkpoints)
        for name, value in values.items():
            if is_iterator(value) and name in self.graph.inputs:
                values[name] = collected(name, value, self.graph.inputs[name], bounds)
        values, bounds = self._rows(values, bounds)
        self.program.stats.bounds = known = self._bounds(values, bounds)
        check_budget(self.loops, known, self.library == "jax")
        if is_traced(seed) or any(is_traced(value) for value in values.values()):
            if checkpoints is not None:
                raise UnsupportedError(
                    "a program that is part of a function that JAX traces cannot write checkpoints",
                    fix="call it outside of jit, grad and vmap",
                )
            results = self._inlined(values, known, seed)
        else:
            arrays = self.given(values)
            self.agree(arrays, known, seed)
            results = self._run(arrays, known, seed, checkpoints)
        return self.returned(kind, results, known)

    def _rows(
        self, values: Mapping[str, Any], bounds: Mapping[Any, int] | None
    ) -> tuple[dict[str, Any], Mapping[Any, int] | None]:
        """The inputs as arrays, cut to the longest rows, and the bounds with those."""
        rows = self.compiled.rows
        arrays = unpacked(self.graph, rows, values)
        if rows is None or not rows.longest:
            return arrays, bounds
        return prepared(self.graph, rows, arrays, bounds, self.program.lengths)

    def _bounds(self, values: Mapping[str, Any], bounds: Mapping[Any, int] | None) -> dict[str, int]:
        """The value of every bound; solved once for each combination of shapes."""
        key = _signature(values, bounds or {})
        if key is None or key not in self._solved:
            known = solve_bounds(self.graph, {n: stand_in(v) for n, v in values.items()}, bounds)
            named = {symbol.name: value for symbol, value in known.items()}
            if key is None:
                return named
            if len(self._solved) >= MOST_SOLVED:
                self._solved.clear()
            self._solved[key] = named
        return dict(self._solved[key])

    def known_bounds(self, inputs: Mapping[str, Any], bounds: Mapping[Any, int] | None) -> dict[str, int]:
        """The value of every bound of a call."""
        return self._bounds(*self._rows({**self.program.params, **inputs}, bounds))

    def given(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs as the backend wants them."""
        arrays = {}
        for name, value in values.items():
            dtype = self.graph.inputs[name].dtype
            if self.program.params.get(name) is not value or getattr(value, "flags", _WRITABLE).writeable:
                arrays[name] = given(self.library, value, dtype)
                continue
            if name not in self._params or self._params[name][0] is not value:
                placed = given(self.library, value, dtype)
                self._params[name] = value, self.backend.kept(name, placed) if self.library == "jax" else placed
            arrays[name] = self._params[name][1]
        return arrays

    def shows(self) -> bool:
        """Whether progress is shown: by one process, if it is wanted."""
        return self.program.options.set.progress and processes.is_first()

    def agree(self, arrays: Mapping[str, Any], bounds: Mapping[str, int], seed: int) -> None:
        """At the first call, see that all processes of a mesh do the same."""
        if self.program.options.mesh is not None and not self._agreed and processes.count() > 1:
            processes.check_agreement(self.fingerprint, bounds, seed, arrays)
        self._agreed = True

    def _run(
        self, arrays: dict[str, Any], bounds: dict[str, int], seed: int, checkpoints: Checkpoints | None
    ) -> list[Any]:
        if self.program.options.set.check_nan:
            nans.check_inputs(self.graph, arrays)
        if self.library != "jax":
            return self._run_stepwise(arrays, bounds, seed, checkpoints)
        _use_cache()

        def run() -> list[Any]:
            if checkpoints is not None:
                from polyrhythm.compiler.backends.jax.run.watch import watched

                with watched(lambda unit, following: None):
                    return self._run_stepwise(arrays, bounds, seed, checkpoints)
            return self._run_watched(arrays, bounds, seed)

        if self.program.options.set.check_nan:
            return nans.run_on_jax(self.compiled, run, arrays, bounds, seed)
        return run()

    def _run_watched(self, arrays: dict[str, Any], bounds: dict[str, int], seed: int) -> list[Any]:
        """A run on JAX that reports how far it is and can be interrupted, unless such a run is known to be short."""
        from polyrhythm.compiler.backends.jax.run.watch import watched

        if self.is_short(bounds):
            results: list[Any] = self.backend.run(arrays, bounds, seed)[0]
            return results
        reporter, started = Reporter(self.backend.program, bounds, self.shows()), perf_counter()
        try:
            with watched(reporter.at):
                results = self.backend.run(arrays, bounds, seed)[0]
        finally:
            reporter.close()
        if perf_counter() - started < SHORT and len(self._short) < MOST_SOLVED:
            self._short.add(tuple(bounds.values()))
        return results

    def is_short(self, bounds: Mapping[str, int]) -> bool:
        """Whether a run on JAX is known to take so little time that it is not watched."""
        return tuple(bounds.values()) in self._short

    def _run_stepwise(
        self, arrays: dict[str, Any], bounds: dict[str, int], seed: int, checkpoints: Checkpoints | None
    ) -> list[Any]:
        """A run that reports its positions, and is saved if asked for."""
        reporter = Reporter(self.loops, bounds, self.shows())
        if checkpoints is None:
            run, positions = self.backend.start(arrays, bounds, seed, self._checker(), alone=True)
            with self.backend.computing():
                reporter.following(positions)
        else:
            saved = self.saved(checkpoints, arrays, bounds, seed, reporter.at)
            try:
                run = saved.run(lambda begin, chunk_of: self.start(arrays, bounds, seed, chunk_of, begin))
            finally:
                reporter.close()
        return self.cut(run.outputs, {**bounds, **run.found})

    @cached_property
    def fingerprint(self) -> str:
        """What the program computes, its host functions as they were when this was first asked for."""
        return fingerprint(self.compiled)

    def saved(
        self,
        checkpoints: Checkpoints,
        arrays: Mapping[str, Any],
        bounds: Mapping[str, int],
        seed: int,
        observe: Callable[[int, int], None],
    ) -> Saved:
        """A run with checkpoints."""
        dim = self.declared(checkpoints.over)
        who = identity(self.fingerprint, self.library, dim, arrays, bounds, seed)
        return Saved(checkpoints, self.compiled, dim, bounds, who, arrays, observe)

    def cut(self, outputs: list[Any], bounds: Mapping[str, int]) -> list[Any]:
        """The outputs at the lengths that were found."""
        shapes = output_shapes(self.loops, bounds)
        if self.library == "jax":
            from polyrhythm.compiler.backends.jax.run.placing import cut

            return [cut(o, s) for o, s in zip(outputs, shapes, strict=True)]
        return [o[(*map(slice, s), ...)] for o, s in zip(outputs, shapes, strict=True)]

    def _inlined(self, values: dict[str, Any], bounds: dict[str, int], seed: int) -> list[Any]:
        """The program as part of a function that JAX is tracing."""
        if self.library != "jax":
            raise UnsupportedError(
                f"a program of the {self.library} backend cannot be part of a function that JAX traces",
                fix='compile it with backend="jax"',
            )
        from polyrhythm.compiler.backends.jax.run.inline import inline

        # Nothing is kept for later calls: what is placed while JAX traces belongs to that trace.
        arrays = {n: given(self.library, value, self.graph.inputs[n].dtype) for n, value in values.items()}
        return inline(self.backend, arrays, bounds, seed)

    def returned(self, kind: Kind, results: list[Any], known: Mapping[str, int]) -> Any:
        """The results as the caller's arrays; an output that is an input is copied."""
        inputs = set(self.loops.inputs.values())
        pairs = zip(self.loops.outputs, results, strict=True)
        found = [like(kind, copied(r) if n in inputs else r) for n, r in pairs]
        if self.compiled.rows is not None:
            found = rebuilt(self.compiled.rows, found, known)
        return self.program.wanted.rebuild(found)

    def first_steps(self, inputs: Mapping[str, Any], bounds: Mapping[Any, int] | None, dim: Symbol) -> int:
        """How many steps of the outputs along a dim are made at once."""
        values, bounds = self._rows({**self.program.params, **inputs}, bounds)
        known, _ = self.fed_bounds(values, {}, bounds)
        ready = Readiness(self.loops, self.graph, dim, known)
        parallel = (u for n, u in enumerate(ready.units) if u.loop is not None and u.loop.parallel and ready.touched(n))
        return max((len(unit.iterations(lambda symbol: known[symbol.name])) for unit in parallel), default=0)

    def stream(
        self,
        inputs: Mapping[str, Any],
        bounds: Mapping[Any, int] | None,
        seed: int,
        dim: Symbol,
        chunk: int,
        prefetch: int,
        at_once: bool,
        wanted: Kind | None,
    ) -> Stream:
        """A run that goes on whenever its next step along a dim is asked for; its first steps may be made `at_once`."""
        kind = wanted or kind_of(inputs.values())
        values = {**self.program.params, **inputs}
        dims = {name: node.dims for name, node in self.graph.inputs.items()}
        fed = {n: v for n, v in values.items() if is_iterator(v) and dims.get(n)}
        whole_values, bounds = self._rows({n: v for n, v in values.items() if n not in fed}, bounds)
        values = {**whole_values, **fed}
        known, shapes = self.fed_bounds(values, fed, bounds)
        windowed, items = piecewise.fed_by(self, values, shapes, prefetch)
        whole = {n: np.zeros(shapes[n], self.graph.inputs[n].dtype) for n in fed if n not in windowed}
        arrays = {**self.given({n: v for n, v in values.items() if n not in fed})}
        if self.program.options.set.check_nan:
            nans.check_inputs(self.graph, arrays)
        fresh = {name: given(self.library, array, array.dtype) for name, array in whole.items()}
        arrays |= self.backend.arrays(fresh) if self.library == "torch" else fresh
        held = piecewise.held(windowed, dict.fromkeys(windowed, chunk))
        check_budget(self.loops, {**known, **held}, self.library == "jax")
        self.agree(arrays, known, seed)
        ready = Readiness(self.loops, self.graph, dim, known)
        feeders: list[Feeder] = []

        def chunk_of(unit: int) -> int | None:
            read = (*(one.marks for one in feeders), *(one.window.highs for one in windowed.values()))
            touched = ready.touched(unit) or any(marks.inside[unit] for marks in read)
            loop = ready.units[unit].loop
            whole = loop is not None and (loop.unrolled or (loop.parallel and at_once))
            return chunk if touched and not whole else None

        run, positions = self.start(arrays, known, seed, chunk_of, fed=windowed)
        for name, array in whole.items():
            taken = Prefetch(fed[name], prefetch) if prefetch else iter(fed[name])
            items.append(Items(name, taken, len(array), array.shape[1:], array.dtype))
            marks = needed_marks(self.loops, self.loops.inputs[name])
            feeders.append(Feeder(items[-1], _writer(run, name, arrays[name], self.library), marks))
        reporter = Reporter(self.loops, known, self.shows())
        each = chunk_of if self.library == "jax" else lambda unit: 1
        numbers = steps(self._timed(positions), ready, feeders, items, lambda: run.found, each, reporter.at)

        def values_of() -> Iterator[Any]:
            found, shapes = None, []  # type: dict[str, int] | None, list[tuple[int, ...]]
            try:
                for step in numbers:
                    if run.found != found:
                        found = dict(run.found)
                        shapes = output_shapes(self.loops, {**known, **found})
                    yield self._step(kind, ready, run, shapes, step)
            finally:
                numbers.close()  # type: ignore[attr-defined]
                reporter.close()

        def finish() -> Any:
            return self.returned(kind, self.cut(run.outputs, {**known, **run.found}), known)

        return Stream(values_of(), finish, partial(self._replace, run), partial(self._stored, run))

    def _place(self, name: str, *kinds: str) -> Place:
        """The place of kinds in which a named tensor is stored."""
        places = [p for p in self.loops.places.values() if p.label == name and p.kind in kinds]
        if len(places) != 1:
            stored = sorted({p.label for p in self.loops.places.values() if p.label and p.kind in kinds})
            raise UnsupportedError(
                f"{len(places) or 'no'} tensors named {name!r} are stored",
                fix=f"give one its own name; stored are: {', '.join(stored) or 'none'}",
            )
        return places[0]

    def _stored(self, run: Any, name: str, index: Sequence[int]) -> np.ndarray:
        """A copy of what a run has stored of a tensor at some steps."""
        place = self._place(name, "buffer", "variable")
        slots = self.compiled.storage[place.name].slots
        at = tuple(int(str(own.index(Term.of(step)))) for own, step in zip(slots, index, strict=True) if own.is_axis)
        alone = self.library == "jax" and place.name in run.state
        whole = run.state[place.name] if alone else run.kept()[place.name]
        if self.library == "jax" and place.axes:  # as it lies in memory
            lengths = [whole.shape[place.axes.index(a)] if a in place.axes else 1 for a in range(len(place.whole))]
            order = [place.axes.index(axis) for axis in range(len(lengths)) if axis in place.axes]
            whole = whole.transpose(order).reshape(lengths)
        return np.array(whole[at])

    def _replace(self, run: Any, name: str, index: Sequence[Any], values: Any) -> None:
        """Write to what a run has stored of a tensor."""
        place = self._place(name, "buffer")
        storage = self.compiled.storage[place.name]
        rank = len(storage.slots) + len(place.type.shape)
        entries = [*index, *(slice(None),) * (rank - len(index))]
        where, own = in_slots(storage, *together(entries, np.asarray(values, place.type.dtype)))
        if self.library == "jax":
            run.replace(self.backend.program, place.name, where, own)
        else:
            slots = tuple(slice(None) if entry is None else entry for entry in where)
            run.kept()[place.name][slots] = given(self.library, arranged(where, own), place.type.dtype)

    def start(
        self,
        arrays: dict[str, Any],
        bounds: dict[str, int],
        seed: int,
        chunk_of: Callable[[int], int | None],
        begin: Begin = START,
        fed: Mapping[str, Fed] | None = None,
    ) -> tuple[Any, Iterator[tuple[int, int]]]:
        """A run that goes on whenever its next position is asked for."""
        started: tuple[Any, Iterator[tuple[int, int]]]
        if self.library != "jax":
            places = {name: given(self.library, a, a.dtype) for name, a in begin.places.items()}
            at = replace(begin, places=places)
            started = self.backend.start(arrays, bounds, seed, self._checker(), at)
            return started
        _use_cache()
        started = self.backend.stepper.start(arrays, bounds, seed, chunk_of, begin, fed)
        return started

    def _checker(self) -> nans.Checker | None:
        """What looks at every value, if asked for."""
        return nans.Checker(self.graph) if self.program.options.set.check_nan else None

    def _timed(self, positions: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """The positions; what the run spends between them is counted."""
        while True:
            started = perf_counter()
            try:
                position = next(positions)
            except StopIteration:
                return
            finally:
                phases = self.program.stats.phases
                phases["run"] = phases.get("run", 0.0) + perf_counter() - started
            yield position

    def _step(self, kind: Kind, ready: Readiness, run: Any, shapes: list[tuple[int, ...]], step: int) -> Any:
        """One step of the outputs, in their structure."""
        values: list[Any] = [None] * len(shapes)
        here = self.library == "jax" and kind == "numpy" and processes.count() == 1
        fetch = run.step_as_numpy if here else run.step
        for number, axis in ready.axes.items():
            if step < shapes[number][axis]:
                value = fetch(number, axis, step, shapes[number])
                if self.program.options.set.check_nan and self.library == "jax":
                    nans.check_step(self.graph[self.loops.outputs[number]], value, ready.dim, step)
                values[number] = like(kind, value if self.library == "jax" else copied(value))
        if self.compiled.rows is not None:
            values = step_rows(self.compiled.rows, values, ready.axes)
        return self.program.wanted.rebuild(values)

    def dim(self, over: Dim) -> Symbol:
        """The dim of the program that the user means; some output varies along it."""
        symbol = self.graph.declared.get(over.symbol) if isinstance(over, Dim) else None
        if symbol is None or not any(symbol in self.graph[name].symbols for name in self.graph.outputs):
            raise UnknownDimError(
                f"no output varies along {over}, so there are no steps to stream",
                fix="name a dim of an output: program.stream(over=t, ...)",
            )
        return symbol

    def declared(self, over: Dim) -> Symbol:
        """The dim of the program that the user means."""
        symbol = self.graph.declared.get(over.symbol)
        if symbol is None:
            raise UnknownDimError(f"the program has no dim {over}", fix="name a dim that its tensors have")
        return symbol

    def fed_bounds(
        self, values: Mapping[str, Any], fed: Mapping[str, Any], bounds: Mapping[Any, int] | None
    ) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
        """The bounds, without reading the iterators, and the shapes of the inputs that come from them."""
        rest = {n: v for n, v in values.items() if n not in fed}
        sized = {n: _sized(v, self.graph.inputs[n]) for n, v in fed.items()}
        rest |= {n: v for n, v in sized.items() if v is not None}
        inputs = {name: node.name for name, node in self.graph.inputs.items()}
        hidden = {inputs[n] for n in fed if n not in rest}
        graph = replace(self.graph, nodes={n: node for n, node in self.graph.nodes.items() if n not in hidden})
        solved = solve_bounds(graph, {n: stand_in(v) for n, v in rest.items()}, bounds)
        shapes = {}
        for name in fed:
            node = self.graph.inputs[name]
            lengths = [*(dim.extent for dim in node.dims), *node.shape]
            for symbol in (s for length in lengths for s in length.symbols if s not in solved):
                raise MissingBoundError(
                    f"the bound {symbol} is not the length of any input and was not given; "
                    f"the iterator for {name!r} does not tell its length",
                    fix=f"pass bounds={{{symbol}: ...}}",
                )
            shapes[name] = tuple(length.evaluate(solved.__getitem__) for length in lengths)
        return {symbol.name: value for symbol, value in solved.items()}, shapes


def _signature(values: Mapping[str, Any], bounds: Mapping[Any, int]) -> Any:
    """Everything that decides the bounds of a call; None where a value would have to be looked into."""
    parts: list[Any] = []
    for key, bound in bounds.items():
        if type(bound) is not int or not isinstance(key, (str, Bound)):
            return None
        parts.append((key if isinstance(key, str) else key.symbol, bound))
    for name, value in values.items():
        if library(value) is None:
            return None
        parts.append((name, tuple(value.shape), value.dtype))
    return tuple(parts)


def _sized(items: Any, node: Node) -> np.ndarray | None:
    """A stand-in for an iterable that knows its length."""
    lengths = [*(dim.extent for dim in node.dims[1:]), *node.shape]
    if not hasattr(items, "__len__") or not all(length.is_constant for length in lengths):
        return None
    return blank((len(items), *(length.constant for length in lengths)), node.dtype)


def _writer(run: Any, name: str, whole: Any, library: str) -> Callable[[int, np.ndarray], None]:
    """How items of an input reach the program."""
    if library == "jax":
        return lambda step, items: run.feed(name, step, items.astype(whole.dtype))

    def write(step: int, items: np.ndarray) -> None:
        whole[step : step + len(items)] = items if library == "numpy" else given(library, items, numpy_dtype(whole))

    return write


def _use_cache() -> None:
    from polyrhythm.compiler.backends.jax.run.executables import use_cache

    use_cache()


class _Writable:
    writeable = True


_WRITABLE = _Writable()


def as_torch(program: Program) -> Callable[..., Any]:
    """The program as an opaque torch function; asking for gradients through it is an error."""
    needs("torch", "torch", "as_torch")
    import torch

    class Opaque(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, structure: list[Any], names: tuple[str, ...], options: Any, *tensors: Any) -> Any:
            structure.append(program(**options, **dict(zip(names, tensors, strict=True))))
            return tuple(_tensors(structure[0]))

        @staticmethod
        def backward(context: Any, *gradients: Any) -> Any:
            raise UnsupportedError(
                "a compiled program has no gradients for torch yet",
                fix="detach its inputs, or run it under torch.no_grad()",
            )

    def call(*, bounds: Mapping[Any, int] | None = None, seed: int = 0, **inputs: Any) -> Any:
        structure: list[Any] = []
        run: Any = Opaque.apply
        results = iter(run(structure, tuple(inputs), {"bounds": bounds, "seed": seed}, *inputs.values()))
        return _replaced(structure[0], results)

    return call


def _tensors(results: Any) -> Iterator[Any]:
    if isinstance(results, (tuple, list)):
        for part in results:
            yield from _tensors(part)
    elif isinstance(results, dict):
        yield from _tensors(list(results.values()))
    else:
        yield like("torch", results)


def _replaced(results: Any, tensors: Iterator[Any]) -> Any:
    if isinstance(results, (tuple, list)):
        return type(results)(_replaced(part, tensors) for part in results)
    if isinstance(results, dict):
        return {key: _replaced(part, tensors) for key, part in results.items()}
    return next(tensors)
