"""One training step of an LSTM and of a transformer against hand-written JAX and torch: time, memory, compile time.

Every way starts from the same weights and must return the same losses and weights. The time is that of two iterations
of Adam. Peak memory of ours and of hand-written JAX is what XLA plans (arguments, results and temporary values); that
of torch is by how much the process grows, as the system counts it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax.numpy as jnp

import polyrhythm as pr
from benchmarks import training_by_hand as by_hand
from benchmarks.harness import Fact, Result, race
from benchmarks.training_models import Shape, Training, new_lstm, new_transformer, train_lstm, train_transformer

ITERATIONS = 2
PATIENCE = 240
"""Seconds that torch.compile gets."""

HAND = "hand-written JAX"
EAGER = "torch eager"


@dataclass(frozen=True)
class Kind:
    """A model: how to make it, the program that trains it, and the loss by hand. `kept` and `again` say how to
    keep everything, and how to compute values again."""

    name: str
    shape: Shape
    new: Callable[[Shape], Any]
    train: Callable[[Any, Shape, Any], Training]
    loss: Callable[[Shape, Any], by_hand.Loss]
    kept: Any
    again: Any


def lstm_kind(shape: Shape) -> Kind:
    """States of sixteen steps are computed at a time when they are computed again."""
    return Kind("lstm", shape, new_lstm, train_lstm, lambda s, segment: by_hand.lstm_loss(segment), None, 16)


def transformer_kind(shape: Shape) -> Kind:
    """What is inside a block may be computed again."""
    return Kind(
        "transformer",
        shape,
        new_transformer,
        train_transformer,
        lambda s, again: by_hand.transformer_loss(s.heads, again),
        False,
        True,
    )


def run(quick: bool) -> list[Result | Fact]:
    """Both models; `quick` only shows that it runs."""
    small = Shape(16, 2, 16, layers=1, heads=2)
    kinds = [
        lstm_kind(small if quick else Shape(256, 32, 256)),
        transformer_kind(small if quick else Shape(256, 8, 256, layers=4, heads=4)),
    ]
    results: list[Result | Fact] = []
    for kind in kinds:
        results += step(kind, 3 if quick else 7)
        results += memory(kind)
        results += compiled_by_torch(kind, 60 if quick else PATIENCE)
    longest = 128 if quick else 4096
    for kind in (lstm_kind(Shape(64, 4, 32)), transformer_kind(Shape(64, 1, 32, layers=1, heads=1))):
        results += compile_times(kind, longest)
    return results


def arrays(kind: Kind, iterations: int) -> dict[str, Any]:
    """The letters that a kind is trained on."""
    now, following = kind.shape.letters(kind.name, iterations)
    return {"now": jnp.asarray(now), "following": jnp.asarray(following)}


def titled(kind: Kind) -> str:
    """The name of a kind with its sizes."""
    shape = kind.shape
    layers = f"{shape.layers} layers, " if kind.name == "transformer" else ""
    return f"{kind.name}, {layers}width {shape.width}, T={shape.steps}, batch {shape.batch}"


def step(kind: Kind, rounds: int) -> Iterator[Result | Fact]:
    """Two iterations, each way."""
    from benchmarks import training_torch

    model = kind.new(kind.shape)
    given, plain = arrays(kind, ITERATIONS), kind.shape.letters(kind.name, ITERATIONS)
    weights = {name: jnp.asarray(value) for name, value in model.weights().items()}
    program = pr.compile(kind.train(model, kind.shape, kind.kept).outputs)
    hand = by_hand.trained(kind.loss(kind.shape, kind.kept))
    eager = training_torch.trained(kind.name, kind.shape, model.weights())
    ways = {
        "ours": lambda: program(**given),
        HAND: lambda: hand(weights, **given),
        EAGER: lambda: eager(*plain),
    }
    result = race(f"{titled(kind)}, {ITERATIONS} steps", ways, {HAND: 1.15}, rounds, tolerance=1e-2)
    yield result
    for way, seconds in result.seconds.items():
        yield Fact(f"{titled(kind)}: {way}", seconds / ITERATIONS * 1e3, "ms a step")
    yield Fact(f"{titled(kind)}: our compiler", sum(program.compiled.seconds.values()), "s")
    yield Fact(f"{titled(kind)}: XLA", program.stats.compilations[0].seconds, "s")


def memory(kind: Kind) -> Iterator[Result | Fact]:
    """Peak memory with everything kept, and with values computed again."""
    model, given = kind.new(kind.shape), arrays(kind, 1)
    weights = {name: jnp.asarray(value) for name, value in model.weights().items()}
    for what, how in (("everything kept", kind.kept), ("computed again", kind.again)):
        program = pr.compile(kind.train(model, kind.shape, how).outputs)
        program(**given)
        (ours,) = program.backend.executor.programs.values()
        hand = by_hand.trained(kind.loss(kind.shape, how)).lower(weights, **given).compile()  # type: ignore[attr-defined]
        for way, compiled in (("ours", ours), (HAND, hand)):
            yield Fact(f"{titled(kind)}: peak memory, {way}, {what}", _planned(compiled) / 1e6, "MB")
    found = in_torch(kind, "eager", PATIENCE)
    if found is not None:
        yield Fact(f"{titled(kind)}: peak memory, {EAGER}, growth of the process", found["peak"] / 1e6, "MB")


def _planned(compiled: Any) -> int:
    plan = compiled.memory_analysis()
    total: int = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    return total - plan.alias_size_in_bytes


def compiled_by_torch(kind: Kind, patience: int) -> Iterator[Result | Fact]:
    """A step of torch.compile, in a process of its own."""
    found = in_torch(kind, "compiled", patience)
    name = f"{titled(kind)}: torch.compile"
    if found is None:
        yield Fact(name, float("nan"), "ms a step", note=f"did not finish in {patience} s")
        return
    note = f"{found['processor'] * 1e3:.3g} ms of processor time, {found['first']:.3g} s to compile"
    yield Fact(name, found["seconds"] * 1e3, "ms a step", note=note)


def in_torch(kind: Kind, way: str, patience: int) -> dict[str, float] | None:
    """What a process with torch reports; None if it fails or takes too long."""
    command = [sys.executable, "-m", "benchmarks.training_torch", kind.name, json.dumps(asdict(kind.shape)), way]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compile_times(kind: Kind, longest: int) -> Iterator[Result | Fact]:
    """Seconds to compile for T known to the compiler, from short to long; against the shortest."""
    base: dict[str, float] = {}
    steps = 64
    while steps <= longest:
        now = replace(kind, shape=replace(kind.shape, steps=steps))
        training = kind.train(kind.new(now.shape), now.shape, kind.kept)
        program = pr.compile(training.outputs, bounds={training.steps: steps})
        program(**arrays(now, 1))
        seconds = {"our compiler": sum(program.compiled.seconds.values())}
        seconds["XLA"] = program.stats.compilations[0].seconds
        for phase, value in seconds.items():
            base.setdefault(phase, value)
            note = f"{value:.3g} s"
            yield Fact(f"{kind.name}: {phase}, T={steps} over T=64", value / base[phase], "times", 1.5, note)
        steps *= 4
