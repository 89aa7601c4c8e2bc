"""Compiled programs: `pr.compile` and what it returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from polyrhythm.compiler.analysis.calls import by_name
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.loops.cost import Machine
from polyrhythm.compiler.loops.pseudo_code import pseudo_code
from polyrhythm.compiler.loops.sharding import aligned
from polyrhythm.compiler.loops.spilling import Traffic
from polyrhythm.compiler.pipeline import Compiled, compile_tensors, gc_paused, limited, streamed
from polyrhythm.compiler.ragged import Longest
from polyrhythm.errors import DeclarationError, PolyrhythmError, UnsupportedError
from polyrhythm.extras import needs
from polyrhythm.language.budget import Budget
from polyrhythm.language.chunks import Chunk
from polyrhythm.language.index import Bound, Dim, extent_of
from polyrhythm.language.tensor import Tensor
from polyrhythm.language.trees import flattened, names_of
from polyrhythm.runtime import calling, exporting, piecewise, probing, spilling
from polyrhythm.runtime.arrays import Kind
from polyrhythm.runtime.checkpoint_liveness import follows, hands_out, runs_ahead
from polyrhythm.runtime.checkpoints import Checkpoints
from polyrhythm.runtime.explain import explain
from polyrhythm.runtime.feeding import is_iterator
from polyrhythm.runtime.lowered import Lowered, lowered
from polyrhythm.runtime.memory import Memory
from polyrhythm.runtime.processes import is_first
from polyrhythm.runtime.progress_bar import compiling
from polyrhythm.runtime.settings import Settings, current
from polyrhythm.runtime.sharding import check_device, check_mesh, check_precision, mesh_of, sharding_of, spread_dims
from polyrhythm.runtime.stats import Compilation, Stats
from polyrhythm.runtime.streaming import Stream

if TYPE_CHECKING:
    from polyrhythm.runtime.picture import Picture
    from polyrhythm.runtime.profiling import Profile
    from polyrhythm.runtime.repeated import Repeated

BACKENDS = ("jax", "numpy", "torch")

MANY_STEPS = 16
"""Leading steps: a stream batches them if a call would batch at least this many."""

RESERVED = ("bounds", "seed", "checkpoint", "over", "chunk", "prefetch", "library", "at", "trace")
"""Arguments of calls, streams and probes, which no input may be named like."""


@dataclass(frozen=True)
class Options:
    """What a user may choose besides the program itself."""

    backend: str = "jax"
    set: Settings = field(default_factory=Settings)
    torch_compile: str | None = None
    memory_budget: Budget | None = None
    schedule: Mapping[Dim, Chunk] = field(default_factory=dict)
    measured: bool = False  # how many steps run at once
    mesh: Any = None
    shard: Mapping[Any, Any] = field(default_factory=dict)
    precision: str = "float32"
    device: Any = None  # of torch; one of JAX is a mesh


def compile(
    outputs: Any,
    bounds: Mapping[Bound, int] | None = None,
    until: Mapping[Dim, Tensor] | None = None,
    effects: Sequence[Tensor] = (),
    backend: str = "jax",
    memory_budget: Budget | int | str | None = None,
    schedule: Mapping[Dim, Chunk] | Literal["measure"] | None = None,
    mesh: Any = None,
    shard: Mapping[Any, Any] | None = None,
    device: Any = None,
    precision: str = "float32",
) -> Program:
    """Compile some outputs into a program.

    `outputs` is a tensor, or a tuple, list or dict of them. `bounds` fixes bounds for good, which lets the compiler
    specialise; others may differ at every call. `until` ends a dim early. `effects` keeps host functions that are
    wanted only for what they do. `backend` is "jax", "numpy" or "torch"; "torch:inductor" runs
    the blocks of a program on torch through `torch.compile` with that compiler of torch's; the first run then takes
    long. `memory_budget`, as "512MB", is what a run may take: fewer steps run at once, gradients compute values again,
    or the tensor that needs too much is named; with `pr.Budget("4GB", spill="folder")` tensors that do not fit lie in
    files. `schedule` says how many steps of a dim run at once, `pr.loop()`, `pr.vector()` or `pr.chunk(256)`, and is
    refused where they depend on each other; otherwise the compiler chooses by a cost model. With `schedule="measure"`
    it measures instead, at the first call with bounds of a size, which then takes longer; what it finds is kept for
    later processes. `mesh`, a mesh of JAX,
    runs the program on several devices, and `shard` says what is spread over its axes: dims with independent steps, as
    `{b: "data"}`, and axes of inputs by name, as `{"w": (None, "model")}`. `device` is where it runs instead of the
    first: one of `jax.devices()`, or on torch a device of torch's, as "cuda". `precision` is that of products of
    float32 on accelerators: "float32", "tensorfloat32", "bfloat16" or "default", which is JAX's. What is checked and
    shown while it runs is set by `pr.settings`.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> total = pr.recurrent((), (t,))
    >>> total[0] = x[0]
    >>> total[t + 1] = total + x[t + 1]
    >>> program = pr.compile({"last": total[T - 1]}, backend="numpy")
    >>> program(x=[1.0, 2.0, 3.0])
    {'last': array(6., dtype=float32)}
    """
    tensors, rebuild = flattened(outputs)
    for bound in bounds or {}:
        if not isinstance(bound, Bound):
            raise DeclarationError(
                f"{bound!r} is not a bound", fix="fix bounds by what pr.dim gave: t, T = pr.dim('t'), and bounds={T: 8}"
            )
    measured = isinstance(schedule, str)
    if measured and schedule != "measure":
        raise DeclarationError(f"there is no schedule {schedule!r}", fix='write schedule="measure", or name dims')
    chunks = {} if isinstance(schedule, str) else dict(schedule or {})
    backend, _, compiler = backend.partition(":")
    check_mesh(mesh, shard or {}, backend)
    check_precision(precision)
    spilling.check_spill(Budget.of(memory_budget), backend)
    check_device(device, mesh, backend)
    mesh = mesh if device is None or backend != "jax" else mesh_of(device)
    if mesh is not None:
        chunks |= spread_dims(mesh, shard or {}, chunks)
    options = Options(
        backend,
        current(),
        compiler or None,
        Budget.of(memory_budget),
        chunks,
        measured,
        mesh,
        dict(shard or {}),
        precision,
        device if backend == "torch" else None,
    )
    names = tuple(names_of(outputs))
    wanted = Wanted(tuple(tensors), rebuild, dict(bounds or {}), dict(until or {}), tuple(effects), names)
    return Program(wanted, options)


@dataclass(frozen=True)
class Wanted:
    """What the user asked to compile."""

    outputs: tuple[Tensor, ...]
    rebuild: Callable[[list[Any]], Any]
    bounds: Mapping[Bound, int]
    until: Mapping[Dim, Tensor]
    effects: tuple[Tensor, ...]
    names: tuple[str | None, ...] = ()


class Program:
    """A compiled program: call it with its inputs by name.

    `params` are the stored values of its parameters. A call may give others, and never changes them; to change one
    for good assign to it: `program.params["w"] = array`.
    """

    def __init__(self, wanted: Wanted, options: Options) -> None:
        self.process: int | None = None  # in which it ran first
        if options.backend not in BACKENDS:
            raise UnsupportedError(f"there is no backend {options.backend!r}", fix=f"use one of {', '.join(BACKENDS)}")
        if options.torch_compile is not None and (options.backend != "torch" or options.set.check_nan):
            raise UnsupportedError(
                f"blocks are compiled by {options.torch_compile!r} on the torch backend only, without check_nan",
                fix=f'use backend="{options.backend}"',
            )
        if options.measured and options.backend != "jax":
            raise UnsupportedError(
                f"there is nothing to measure on {options.backend}, which runs one step after the other",
                fix='use backend="jax", or leave out schedule="measure"',
            )
        for dim, chunk in options.schedule.items() if options.backend != "jax" else ():
            if chunk != Chunk(1):
                raise UnsupportedError(
                    f"schedule={{{dim}: {chunk}}} cannot be on {options.backend}, which runs one step after the other",
                    fix=f'use backend="jax", or leave {dim} out of schedule=',
                )
        self.wanted, self.options = wanted, options
        compiled_loops = options.backend == "jax"
        if compiled_loops:
            from polyrhythm.compiler.backends.jax.products import build

            build.ahead("skinny.c", "rows.c", "watch.c")
        with gc_paused():
            self.compiled = compile_tensors(
                wanted.outputs,
                wanted.effects,
                wanted.until,
                wanted.bounds,
                options.set.without,
                compiled_loops,
                options.schedule,
                wanted.names,
                options.memory_budget is not None,
            )
        if options.mesh is not None:
            sharding = sharding_of(options.mesh, options.shard, self.compiled.graph)
            loops = replace(self.compiled.loops, sharding=sharding)
            loops = replace(loops, sharding=replace(sharding, aligned=aligned(loops)))
            self.compiled = replace(self.compiled, loops=loops)
        if options.set.check_nan and self.compiled.rows is not None:
            raise UnsupportedError(
                "check_nan cannot tell what a row makes of finite values from what is computed beyond its end",
                fix="compile it without check_nan, or run it with pr.evaluate",
            )
        if options.precision != "float32":
            loops = replace(self.compiled.loops, precision=options.precision)
            self.compiled = replace(self.compiled, loops=loops)
        self.compiled = limited(self.compiled, options.memory_budget, machine_of(options))
        _check_names(self.compiled)
        self.stats = Stats(dict(self.compiled.seconds))
        with self.stats.timed("code"):
            self.backend = self._made(self.compiled)
        self.params: dict[str, Any] = {n: _frozen(v) for n, v in self.compiled.graph.parameters.items()}
        self._caller = calling.Caller(self, self.compiled, self.backend)
        self._repeated = _repeated(self._caller) if options.backend == "jax" else None
        self._streamers: dict[tuple[Symbol, bool], calling.Caller] = {}
        self._recomputing: dict[tuple[str, int], calling.Caller | None] = {}
        self.recomputed = ""
        """What the last call that did not fit computed again, in words."""
        self._spilling: dict[tuple[calling.Caller, tuple[str, ...]], calling.Caller] = {}
        self.spilled: Mapping[str, Traffic] = {}
        """The places that lay in files in the last call, with the bytes that went there and back."""
        self._windowed: dict[tuple[calling.Caller, frozenset[str]], calling.Caller] = {}
        self._probes: dict[int, tuple[Tensor, Program]] = {}
        self.profiled: Profile | None = None
        self._lengths: dict[Symbol, Program] = {}

    def __reduce__(self) -> str:
        raise UnsupportedError(
            "a program cannot be pickled: it holds what the compiler and XLA made for this process",
            fix="compile it in the other process, or program.save(folder) here and pr.load(folder) there",
        )

    def _check_process(self) -> None:
        """Refuse to run in a forked process what has run in its parent: without the threads of XLA it would hang."""
        if self.options.backend == "jax" and self.process not in (None, os.getpid()):
            raise UnsupportedError(
                "the program has run in the process that this one was forked from, and JAX does not survive a fork",
                fix='start processes by multiprocessing.get_context("spawn"), or use backend="numpy" in forked ones',
            )
        self.process = os.getpid()

    def __call__(
        self,
        *,
        bounds: Mapping[Any, int] | None = None,
        seed: int = 0,
        checkpoint: Checkpoints | None = None,
        **inputs: Any,
    ) -> Any:
        """Run the program. Arrays come back as what came in: NumPy, JAX or torch.

        Bounds that are not the length of an input are given, as in `bounds={T: 9}`; they may differ at every call.
        An input may be an iterator over its first dim, which is then read to its end. Inside a function that JAX
        traces, the program becomes part of that function. With `checkpoint=pr.Checkpoints(...)` the run is saved as it
        goes, and the same call goes on from where it was stopped.
        """
        again = self._repeated
        key = None if again is None or checkpoint is not None else again.signature(inputs, bounds, seed)
        if again is not None and key in again.calls and (results := again.run(key, inputs, seed)) is not None:
            return results
        self.stats.calls += 1
        self._check_process()
        inputs = dict(by_name(self._caller.graph.inputs, inputs))
        caller = self._caller
        if checkpoint is not None:
            caller = self._outermost(self._caller.declared(checkpoint.over))
        caller = self._piecewise(caller, piecewise.names_of(caller, inputs, bounds, items=checkpoint is None))
        budget = self.options.memory_budget
        with self.stats.timed("run"):
            if budget is not None and checkpoint is None and spilling.can_use_files(caller, inputs, seed):
                caller = spilling.recomputing(caller, inputs, bounds)
                if budget.spill and spilling.can_use_files(caller, inputs, seed):
                    return spilling.call(caller, inputs, bounds, seed)
            results = caller.call(inputs, bounds, seed, checkpoint)
        if again is not None and key is not None and caller is self._caller:
            again.keep(key, inputs)
        return results

    def stream(
        self,
        *,
        over: Dim,
        chunk: int = 1,
        prefetch: int = 0,
        library: Kind | None = None,
        bounds: Mapping[Any, int] | None = None,
        seed: int = 0,
        **inputs: Any,
    ) -> Stream:
        """Run the program step by step; see `Stream` for what comes out.

        An input may be an iterator over its first dim. An item is taken just before the step that reads it, so it
        may depend on the steps handed out so far; with `prefetch` that many items are taken ahead by a thread. On JAX
        `chunk` iterations are one call of XLA. Where all inputs are given and a call makes many first steps at once,
        as in reading a prompt, a stream does too. Steps are arrays of the library that the inputs come from, or of
        `library`; as NumPy arrays they are fetched several at a time.
        """
        if library not in (None, *get_args(Kind)):
            raise UnsupportedError(
                f"library={library!r} is none that steps could be arrays of",
                fix=f"choose one of {', '.join(get_args(Kind))}, or leave it out",
            )
        self.stats.calls += 1
        self._check_process()
        inputs = dict(by_name(self._caller.graph.inputs, inputs))
        dim = self._caller.dim(over)
        fed = any(is_iterator(value) for value in inputs.values())
        hands = not fed and hands_out(self.compiled, dim)
        at_once = hands and self._caller.first_steps(inputs, bounds, dim) >= MANY_STEPS
        caller = self._caller if at_once else self._variant(dim, fed)
        caller = self._piecewise(caller, piecewise.names_of(caller, inputs, bounds, items=True))
        return caller.stream(inputs, bounds, seed, dim, chunk, prefetch, at_once, library)

    def _piecewise(self, caller: calling.Caller, names: frozenset[str]) -> calling.Caller:
        """Calls of the same program that hold a window of some inputs."""
        if not names:
            return caller
        key = caller, names
        if key not in self._windowed:
            compiled, found = piecewise.with_windows(caller.compiled, names)
            self._windowed[key] = calling.Caller(self, compiled, self._made(compiled), found)
        return self._windowed[key]

    def recomputing(self, dim: str, every: int) -> calling.Caller | None:
        """Calls of the same program in which gradients compute what varies along a dim again; None if it cannot be."""
        key, options, wanted = (dim, every), self.options, self.wanted
        if key not in self._recomputing:
            asked = wanted.outputs, wanted.effects, wanted.until, wanted.bounds, options.set.without
            more = options.backend == "jax", options.schedule, wanted.names, True, {dim: every}
            self._recomputing[key] = None
            if options.mesh is None and options.precision == "float32" and not wanted.until:
                with suppress(PolyrhythmError), gc_paused():
                    compiled = limited(compile_tensors(*asked, *more), options.memory_budget, machine_of(options))
                    self._recomputing[key] = calling.Caller(self, compiled, self._made(compiled))
        return self._recomputing[key]

    def spilling(self, caller: calling.Caller, names: tuple[str, ...]) -> calling.Caller:
        """Calls of the same program with some places in files."""
        budget = self.options.memory_budget
        if not names or budget is None or budget.spill is None:
            return caller
        if (caller, names) not in self._spilling:
            compiled = spilling.with_files(caller, names, budget.spill)
            self._spilling[caller, names] = calling.Caller(self, compiled, self._made(compiled))
        return self._spilling[caller, names]

    def _outermost(self, dim: Symbol) -> calling.Caller:
        """Calls of the program with outermost loops that follow a dim step by step."""
        plain = follows(self.compiled.schedule, dim)
        caller = self._caller if plain and not runs_ahead(self.compiled.schedule, dim) else self._variant(dim)
        caller = caller if follows(caller.compiled.schedule, dim) or not plain else self._caller
        if not follows(caller.compiled.schedule, dim):
            raise UnsupportedError(
                f"no outermost loop of the program goes over {dim} step by step, so there is nowhere to stop",
                fix="take checkpoints along the dim of a recurrence that the whole run follows, as that of training",
            )
        return caller

    def _variant(self, dim: Symbol, fed: bool = False) -> calling.Caller:
        """Calls of the program with a dim outermost where there is a choice, and perhaps with inputs item by item."""
        if (dim, fed) not in self._streamers:
            with self.stats.timed("streams"):
                variant = streamed(self.compiled, dim, fed)
                backend = self.backend
                if variant is not self.compiled:
                    backend = self._made(variant)
                self._streamers[dim, fed] = calling.Caller(self, variant, backend)
        return self._streamers[dim, fed]

    def _made(self, compiled: Compiled) -> Any:
        """The backend of a program, which announces long compilations."""
        backend = make_backend(compiled, self.options, self.stats.compilations)
        if self.options.backend == "jax":
            names = [str(name) for name in self.wanted.names if name]
            backend.executor.compile = compiling(
                ", ".join(names[:3]) or "a program", self.options.set.progress and is_first()
            )
        return backend

    def probe(
        self,
        tensor: Tensor,
        /,
        *,
        at: Mapping[Dim, int] | None = None,
        bounds: Mapping[Any, int] | None = None,
        seed: int = 0,
        **inputs: Any,
    ) -> Any:
        """The value of any tensor of the program, at some steps or over its whole domain.

        A variant of the program with that tensor as its output is compiled, and kept for the next time.

        >>> import polyrhythm as pr
        >>> t, T = pr.dim("t")
        >>> x = pr.input("x", (), (t,))
        >>> doubled = x * 2
        >>> program = pr.compile(doubled[0:T].sum(0), backend="numpy")
        >>> program.probe(doubled, at={t: 1}, x=[1.0, 2.0, 3.0])
        array(4., dtype=float32)
        """
        return probing.probe(self, self._probed, tensor, at or {}, inputs, bounds, seed)

    def lengths(self, bound: Longest, inputs: Mapping[str, Any]) -> np.ndarray:
        """The lengths of a ragged dim that the program computes, by a program of their own, compiled once."""
        (declared,) = (old for old, new in self.compiled.graph.declared.items() if new is bound.bound)
        if declared not in self._lengths:
            wanted = replace(self.wanted, outputs=(extent_of[declared],), rebuild=lambda r: r[0], effects=(), names=())
            self._lengths[declared] = Program(replace(wanted, until={}), replace(self.options, schedule={}))
        program = self._lengths[declared]
        given = {n: v for n, v in inputs.items() if n in program.compiled.graph.inputs}
        return np.asarray(program(**given))

    def _probed(self, tensor: Tensor) -> Program:
        """The program with a tensor as its result, compiled once."""
        if id(tensor) not in self._probes:
            # The outputs are compiled too: random sites without a name are numbered in the order of the walk.
            outputs = (*self.wanted.outputs, tensor)
            wanted = replace(self.wanted, outputs=outputs, rebuild=lambda results: results[-1])
            self._probes[id(tensor)] = tensor, Program(wanted, self.options)
        return self._probes[id(tensor)][1]

    @property
    def schedule(self) -> str:
        """The loops of the program as pseudo-code."""
        return pseudo_code(self.compiled.loops)

    @property
    def memory(self) -> Memory:
        """What the program keeps, where, and why; ask it for bytes at given bounds."""
        if self.options.backend != "jax":
            return Memory(self.compiled.loops)
        return Memory(self.compiled.loops, self.backend.planned)

    @property
    def graph(self) -> Picture:
        """The dependence graph as a picture: `.dot`, `.svg`, `.save(path)`; a notebook shows it."""
        from polyrhythm.runtime.picture import picture

        return picture(self.compiled.graph)

    def _repr_html_(self) -> str:
        from polyrhythm.runtime.picture import program_html

        return program_html(self)

    def explain(self, level: int = 1) -> str:
        """What the compiler made of the program, and why, as text: the most important of it, at level 2 all."""
        budget = self.options.memory_budget
        folder = budget.spill if budget is not None and budget.spill is not None else ""
        files = [self.recomputed] * bool(self.recomputed)
        files += spilling.lines(self.compiled.loops, self.spilled, folder)
        if self.options.backend != "jax":
            return explain(self.compiled, False, level=level, files=files)
        tuned = self.backend.explained() if self.options.measured else []
        kernels, devices = self.backend.kernels(), self.backend.devices()
        return explain(self.compiled, True, kernels, tuned, level, devices, files)

    def profile(
        self, *, bounds: Mapping[Any, int] | None = None, seed: int = 0, trace: str | Path | None = None, **inputs: Any
    ) -> Profile:
        """Run the program and say where its time goes, by block and loop, and how its memory grows.

        Print it for a table; `results` are those of the run. With `trace="run.json"` what was seen is written for
        Perfetto. `report` shows the last profile.
        """
        from polyrhythm.runtime import profiling

        given = {"bounds": bounds, "seed": seed, **inputs}
        self.profiled = profiling.profile(self, given)
        if trace is not None:
            self.profiled.save(trace)
        return self.profiled

    def report(self, path: str | Path) -> Path:
        """Write one HTML page that shows everything that was decided about the program, and needs no network.

        It has the source lines, the dependence graph, the loops, what every pass changed, the storage plan over the
        schedule for bounds chosen by sliders, and compile times; after `profile` also the time of each block and loop.

        >>> import polyrhythm as pr, tempfile, pathlib
        >>> t, T = pr.dim("t")
        >>> program = pr.compile(pr.input("x", (), (t,)) * 2, backend="numpy")
        >>> page = program.report(pathlib.Path(tempfile.mkdtemp()) / "report.html")
        >>> "<!doctype html>" in page.read_text()
        True
        """
        from polyrhythm.runtime.report import gather, write

        return write(gather(self), path)

    def save(self, path: str | Path, bounds: Mapping[Any, int | Sequence[int]] | None = None) -> None:
        """Write the program to a folder with everything compiled, for `pr.load` on this machine.

        `bounds` has the largest value of every bound that sizes arrays, or several values: a call uses the smallest
        that hold it. The folder also has the program itself, for machines on which the compiled one is of no use.
        """
        exporting.write(self, path, bounds or {}, None)

    def export(
        self,
        path: str | Path,
        bounds: Mapping[Any, int | Sequence[int]] | None = None,
        platforms: Sequence[str] = ("cpu",),
    ) -> None:
        """Write the program to a folder that runs with JAX and NumPy alone, on any of some platforms.

        `bounds` is as in `save`. `platforms` are of "cpu", "cuda", "rocm" and "tpu". In the folder `run.py` runs it:
        `from run import load; load(folder)(x=..., bounds={"T": 9})`.
        """
        exporting.write(self, path, bounds or {}, tuple(platforms))

    def lowered(self, bounds: Mapping[Any, int] | None = None, platform: str | None = None) -> Lowered:
        """The program at the capacities of some bounds as XLA gets it: StableHLO, costs, memory, collectives.

        With `platform`, as "cuda" or "tpu", it is lowered for that one, which need not be here.

        >>> import polyrhythm as pr
        >>> t, T = pr.dim("t")
        >>> x = pr.input("x", (), (t,))
        >>> lowered = pr.compile(x[0:T].sum(0)).lowered({T: 100})
        >>> "stablehlo.reduce" in lowered.text, lowered.memory.arguments
        (True, 516)
        """
        return lowered(self, {str(key): value for key, value in (bounds or {}).items()}, platform)

    def as_torch(self) -> Callable[..., Any]:
        """The program as a torch function: tensors by name in, tensors out, no gradients through it."""
        return calling.as_torch(self)


def _check_names(compiled: Compiled) -> None:
    for name, node in compiled.graph.inputs.items():
        if name in RESERVED:
            raise DeclarationError(
                f"an input cannot be named {name!r}, which is an argument of the call itself",
                fix="give the input another name",
                at=node.at,
            )


def _repeated(caller: calling.Caller) -> Repeated | None:
    """The calls that need not be made in full. JAX is imported only when it is wanted."""
    from polyrhythm.runtime.repeated import Repeated

    return Repeated.of(caller)


def _frozen(value: np.ndarray) -> np.ndarray:
    """A copy that nobody can change by accident."""
    copy = np.array(value)
    copy.setflags(write=False)
    return copy


def make_backend(compiled: Compiled, options: Options, compilations: list[Compilation]) -> Any:
    """The backend that was asked for. Array libraries are imported only when they are wanted."""
    if options.backend == "numpy":
        from polyrhythm.compiler.backends.python.numpy import NumpyBackend

        return NumpyBackend(compiled.loops, options.set.check_nan)
    if options.backend == "torch":
        needs("torch", "torch", 'backend="torch"')
        from polyrhythm.compiler.backends.torch.backend import TorchBackend

        return TorchBackend(compiled.loops, options.set.check_nan, options.torch_compile, options.device)
    if options.measured:
        from polyrhythm.compiler.backends.jax.run.tuning import TunedBackend

        return TunedBackend(compiled.executable, compilations)  # type: ignore[arg-type]
    from polyrhythm.compiler.backends.jax.backend import JaxBackend

    return JaxBackend(compiled.executable, compilations, compiled.loops)  # type: ignore[arg-type]


def machine_of(options: Options) -> Machine:
    """The rates that choices follow from: those of this machine where they have been measured."""
    if options.backend != "jax":
        return Machine()
    from polyrhythm.compiler.backends.jax.run.calibration import known

    return known()


__all__ = ["BACKENDS", "Options", "Program", "compile"]
