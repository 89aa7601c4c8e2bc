"""`python -m benchmarks.ablation [--quick] [NAME ...]`: every pass left out in turn; what that costs.

Programs: REINFORCE, PPO, causal and windowed decoding, training convolutions and an LSTM, gradients of attention and
alignments, experts, statistics of the past, reads at places that are data, a mean over a loop, segments, replay. Each
is compiled as it is, and once without each pass. Where leaving a pass out gives the same loops, nothing is measured.
The others must return the same results; then they take turns. Beside the time: the peak of the plan and what XLA plans,
XLA programs started by a call, loops and operations in the largest of them, and the seconds of our compiler and of XLA.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import polyrhythm as pr
from benchmarks import programs
from benchmarks.harness import OURS, Fact, Result, duration, race, report
from benchmarks.inside import Inside, inside
from benchmarks.natural import told
from benchmarks.natural_programs import rows
from benchmarks.training_models import Shape, new_lstm, train_lstm
from polyrhythm import rl
from polyrhythm.compiler.loops.growth import find_growth
from polyrhythm.compiler.loops.ir import For, walk
from polyrhythm.compiler.loops.show import show
from polyrhythm.compiler.passes import NAMES

HEADS, DEPTH, WINDOW = 4, 64, 128


@dataclass(frozen=True)
class Subject:
    """A program to compile in several ways, and what to call it with."""

    name: str
    outputs: Any
    given: Mapping[str, Any] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)
    fixed: Mapping[pr.Bound, int] = field(default_factory=dict)
    tolerance: float = 1e-3


def subjects(quick: bool) -> dict[str, Callable[[], Subject]]:
    """The programs by name, at full or small size."""
    steps = 256 if quick else 1024
    return {
        "reinforce": lambda: learning("reinforce", quick),
        "ppo": lambda: learning("ppo", quick),
        "causal": lambda: decoding(steps, None),
        "window": lambda: decoding(steps, WINDOW),
        "convolutions": lambda: natural("convolutions by shifts, gradient", quick),
        "windows": lambda: natural("convolutions by windows, gradient", quick),
        "attention": lambda: natural("causal attention, gradient", quick),
        "alignment": lambda: natural("soft-DTW, gradient", quick),
        "labels": lambda: natural("CTC, gradient", quick),
        "experts": lambda: natural("top-k routing, taken", quick),
        "past": lambda: natural("prefix statistics", quick, 1024),
        "places": lambda: natural("pointers into one's own past, gradient", quick, 256),
        "mean": lambda: natural("mean over a loop", quick),
        "segments": lambda: natural("LSTM by truncated segments, training", quick, 16),
        "replay": lambda: natural("DQN, uniform replay", quick, 512),
        "lstm": lambda: lstm(Shape(16, 2, 16) if quick else Shape(128, 16, 128)),
    }


def learning(algorithm: str, quick: bool) -> Subject:
    """Two iterations of learning to act in an environment that is part of the program."""
    environments, steps, hidden = (2, 8, (8,)) if quick else (16, 64, (32, 32))
    source = rl.Arrays(rl.Synthetic((8,), 100, 4), environments)
    model = rl.ActorCritic(source.observations, source.actions, hidden, np.random.default_rng(0))
    if algorithm == "ppo":
        training = rl.ppo(source, model, rl.PPOSettings(steps=steps, epochs=2, minibatches=2))
    else:
        training = rl.reinforce(source, model, rl.ReinforceSettings(steps=steps))
    name = f"{algorithm}, {environments} environments, {steps} steps, network {'x'.join(map(str, hidden))}"
    return Subject(name, training.outputs, {}, {str(training.iterations): 2}, training.bounds)


def decoding(steps: int, window: int | None) -> Subject:
    """Attention of each step to all steps before, or to the last few."""
    rng, width = np.random.default_rng(0), HEADS * DEPTH
    given = {name: jnp.asarray(rng.normal(size=(width, width)) / width**0.5, "float32") for name in ("wq", "wk", "wv")}
    given["first"] = jnp.asarray(rng.normal(size=width), "float32")
    name = f"{'causal' if window is None else f'window {window}'} decoding, T={steps}"
    return Subject(name, programs.decode(HEADS, DEPTH, window), given, {"T": steps})


def natural(name: str, quick: bool, most: int = 8192) -> Subject:
    """A program of `benchmarks.natural`, with at most so many steps: without a pass some take time in their square."""
    row = rows()[name]
    steps = min(64 if quick else most, row.steps)
    given = {key: jnp.asarray(array) for key, array in row.given(steps).items()}
    return Subject(f"{name}, T={steps}", row.outputs(), given, dict(row.bounds(steps)), tolerance=row.tolerance)


def lstm(shape: Shape) -> Subject:
    """Two iterations of Adam."""
    now, following = shape.letters("lstm", 2)
    training = train_lstm(new_lstm(shape), shape)
    name = f"LSTM training, T={shape.steps}, batch {shape.batch}, width {shape.width}"
    given = {"now": jnp.asarray(now), "following": jnp.asarray(following)}
    return Subject(name, training.outputs, given, {"I": 2, "T": shape.steps}, tolerance=1e-2)


@dataclass(frozen=True)
class Variant:
    """A program without one pass, or with all."""

    program: pr.Program
    call: Callable[[], Any]
    plan: int
    inside: Inside

    @property
    def compile_seconds(self) -> tuple[float, float]:
        """Of our compiler, and of XLA."""
        xla = sum(compilation.seconds for compilation in self.program.stats.compilations)
        return sum(self.program.compiled.seconds.values()), xla


def compiled(subject: Subject, without: tuple[str, ...]) -> pr.Program:
    """The program without some passes."""
    with pr.settings(without=without):
        return pr.compile(subject.outputs, bounds=subject.fixed)


def variant(subject: Subject, program: pr.Program) -> Variant:
    """A program that has run, and its figures."""
    given = {
        bound: n for bound, n in subject.bounds.items() if bound in {s.name for s in program.compiled.loops.bounds}
    }
    missing = {b: n for b, n in given.items() if b not in lengths(program)}

    def call() -> Any:
        return program(bounds=missing, **subject.given)

    call()
    bounds = {**told(program, subject.given), **given}
    return Variant(program, call, program.memory.peak(bounds), inside(program, call))


def lengths(program: pr.Program) -> set[str]:
    """The bounds that are lengths of inputs."""
    inputs = program.compiled.graph.inputs.values()
    return {s.name for node in inputs for d in node.dims for s in d.extent.symbols}


def signature(program: pr.Program) -> Any:
    """What tells whether leaving out a pass made a difference."""
    loops = program.compiled.loops
    growth = find_growth(loops)
    parallel = [i.counter.name for i in walk(loops.body) if isinstance(i, For) and i.parallel and i.known is None]
    chunks = [loops.chunks.get(dim) for dim in parallel]
    return show(loops), chunks, growth.least if growth is not None else None


def ablated(subject: Subject, rounds: int) -> tuple[Result, dict[str, Variant], list[str]]:
    """Time a program with all passes and without each that matters; those that do not are named."""
    whole = compiled(subject, ())
    ways, same = {OURS: variant(subject, whole)}, []
    for name in NAMES:
        program = compiled(subject, (name,))
        if signature(program) == signature(whole):
            same.append(name)
        else:
            ways[name] = variant(subject, program)
    calls = {name: way.call for name, way in ways.items()}
    return race(subject.name, calls, rounds=rounds, tolerance=subject.tolerance), ways, same


def facts(name: str, ways: Mapping[str, Variant]) -> list[Result | Fact]:
    """The figures of every variant, for the file."""
    found: list[Result | Fact] = []
    for without, way in ways.items():
        label = f"{name}: {'all passes' if without == OURS else f'without {without}'}"
        ours, xla = way.compile_seconds
        found += [
            Fact(f"{label}: planned peak", way.plan, "bytes"),
            Fact(f"{label}: XLA's peak", way.inside.bytes, "bytes"),
            Fact(f"{label}: launches", way.inside.launches, "XLA programs a call"),
            Fact(f"{label}: loops", way.inside.loops, "while in the largest"),
            Fact(f"{label}: operations", way.inside.operations, "in the largest"),
            Fact(f"{label}: our compiler", ours, "s"),
            Fact(f"{label}: XLA", xla, "s"),
        ]
    return found


def table(result: Result, ways: Mapping[str, Variant], same: list[str]) -> Table:
    """One line for each variant; ratios are over the program with all passes."""
    found = Table(title=f"{result.name}; load {result.load:.1f}; no difference without {', '.join(same) or 'any'}")
    for heading in (
        "without",
        "time",
        "ratio",
        "processor",
        "plan",
        "XLA",
        "launches",
        "loops",
        "ops",
        "ours",
        "XLA s",
    ):
        found.add_column(heading, justify="left" if heading == "without" else "right")
    for name, way in ways.items():
        ratio, processor = (1 / r.get(name, 1.0) for r in (result.ratios, result.processor_ratios))
        ours, xla = way.compile_seconds
        seen = way.inside
        found.add_row(
            "nothing" if name == OURS else name,
            duration(result.seconds[name]),
            f"{ratio:.2f}",
            f"{processor:.2f}",
            f"{way.plan / 1e6:.2f} MB",
            f"{seen.bytes / 1e6:.2f} MB",
            str(seen.launches),
            str(seen.loops),
            str(seen.operations),
            f"{ours:.2f}",
            f"{xla:.2f}",
        )
    return found


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description="every pass left out in turn")
    parser.add_argument(
        "names", nargs="*", help="reinforce, ppo, causal, window, convolutions, lstm; all of them if left out"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds, to see that it runs")
    arguments = parser.parse_args()
    os.environ["POLYRHYTHM_CACHE"] = ""  # what an earlier run has compiled would hide the time of compiling
    known = subjects(arguments.quick)
    results: list[Result | Fact] = []
    tables = []
    for name in arguments.names or known:
        result, ways, same = ablated(known[name](), 3 if arguments.quick else 9)
        results += [result, *facts(result.name, ways)]
        tables.append(table(result, ways, same))
        Console(width=150).print(tables[-1])
    report("ablation", results)
    for one in tables:
        Console(width=150).print(one)


if __name__ == "__main__":
    main()
