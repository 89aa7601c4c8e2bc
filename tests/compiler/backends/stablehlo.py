"""The StableHLO of a corpus of programs, before XLA optimises it: what a change of the compiler must leave as it is.

`python -m tests.compiler.backends.stablehlo FOLDER [NAME ...]` writes one file per program: every text that a call,
the segments of a growing run, a stream and a trace inside of `jax.jit` hand to XLA. Two trees whose folders are equal
(`diff -r`) are equally fast. Nothing is compiled or run: what XLA would return is zeros.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

import polyrhythm as pr
from polyrhythm import rl
from tests import memory_programs
from tests.compiler.backends import decoders, test_copies
from tests.programs import PROGRAMS
from tests.programs.case import Case

_LOCATION = re.compile(r" loc\(.*\)$|^#loc.*$", re.MULTILINE)


class _Zeros:
    """A compiled program that allocates nothing and returns zeros."""

    def __init__(self, shapes: Any) -> None:
        self.shapes = shapes

    def __call__(self, *given: Any) -> Any:
        return jax.tree.map(lambda s: jax.numpy.zeros(s.shape, s.dtype), self.shapes)

    def memory_analysis(self) -> Any:
        return SimpleNamespace(
            argument_size_in_bytes=0, output_size_in_bytes=0, alias_size_in_bytes=0, temp_size_in_bytes=0
        )


@contextmanager
def recorded() -> Iterator[list[str]]:
    """The texts that are given to XLA meanwhile; programs return zeros."""
    texts: list[str] = []
    real = jax.stages.Lowered.compile

    def compile(self: Any, *arguments: Any, **options: Any) -> Any:
        texts.append(_LOCATION.sub("", self.as_text()))
        return _Zeros(self.out_info)

    jax.stages.Lowered.compile = compile  # type: ignore[method-assign]
    try:
        yield texts
    finally:
        jax.stages.Lowered.compile = real  # type: ignore[method-assign]


@dataclass(frozen=True)
class Entry:
    """A program, how to call it, and the dim that a stream of it goes over."""

    outputs: Any
    inputs: dict[str, Any]
    bounds: dict[Any, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    over: pr.Dim | None = None


def texts(entry: Entry) -> list[str]:
    """All that XLA is given for a program: by a call, by a stream, and inside of a function that JAX traces."""
    program = pr.compile(entry.outputs, **entry.options)
    with recorded() as found:
        program(bounds=entry.bounds, **entry.inputs)
        if entry.over is not None:
            for _ in zip(
                program.stream(over=entry.over, chunk=3, bounds=entry.bounds, **entry.inputs), range(4), strict=False
            ):
                pass
        if entry.inputs and not program.backend.wide and not program.backend.host and not program.compiled.loops.found:
            arrays = {name: jax.numpy.asarray(value) for name, value in entry.inputs.items()}
            lowered = jax.jit(lambda given: program(bounds=entry.bounds, **given)).lower(arrays)
            found.append(_LOCATION.sub("", lowered.as_text()))
    return found


def _written(case: Case) -> Entry:
    bounds = max(case.bounds, key=lambda some: sum(some.values()))
    built, inputs = case.build(), case.inputs(bounds)
    options = {"until": built.until, "effects": built.effects}
    dims = [dim for output in built.outputs.values() for dim in output.dims]
    over = dims[0] if dims and len(set(dims)) == 1 else None
    return Entry(built.outputs, inputs, case.call_bounds(bounds), options, over)


def _sized(name: str) -> Entry:
    made = memory_programs.PROGRAMS[name]()
    return Entry(made.outputs, made.inputs, made.bounds)


def _pattern(name: str) -> Entry:
    build, arguments, _ = test_copies.PATTERNS[name]
    given = arguments()
    return Entry(build(), given, given.pop("bounds", {}))


def _decoder(layers: int, batch: int, attend: decoders.Attend, steps: int, depth: int = 16) -> Entry:
    sizes = decoders.Sizes(batch, 2, layers, depth=depth)
    token = decoders.decoder(sizes, attend)
    return Entry(token, decoders.inputs(sizes), {decoders.T: steps}, {"bounds": {decoders.L: layers}}, decoders.t)


def _ppo() -> Entry:
    lamps = rl.Arrays(rl.Synthetic((2,), length=3), 2)
    model = rl.ActorCritic(lamps.observations, lamps.actions, (3,), np.random.default_rng(0))
    settings = rl.PPOSettings(steps=4, epochs=2, minibatches=2)
    training = rl.ppo(lamps, model, settings)
    return Entry(training.outputs, {}, {training.iterations: 5}, {"bounds": training.bounds})


def _prefill() -> Entry:
    t, _ = pr.dim("t")
    q, k, v = (pr.input(name, (4, 16), (t,)) for name in "qkv")
    weights = pr.einsum("hd,shd->hs", q, k[0 : t + 1]).softmax(-1)
    array = np.ones((100, 4, 16), "float32")
    return Entry(pr.einsum("hs,shd->hd", weights, v[0 : t + 1]), {"q": array, "k": array, "v": array}, over=t)


def _suffixes() -> Entry:
    t, T = pr.dim("t")
    x = pr.input("x", (8,), (t,))
    return Entry({"sum": x[0 : t + 1].sum(0), "rest": pr.exp(x)[t:T].max(0)}, {"x": np.ones((100, 8), "float32")})


def _readme() -> Entry:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    y = pr.recurrent((3,), (t,))
    y[0] = x[0]
    y[t + 1] = 0.9 * y + 0.1 * x[t + 1]
    return Entry({"last": y[T - 1], "mean": y[0:T].mean(0)}, {"x": np.ones((100, 3), "float32")})


CORPUS: dict[str, Callable[[], Entry]] = {
    **{f"written {case.name}": partial(_written, case) for case in PROGRAMS},
    **{f"sized {name}": partial(_sized, name) for name in memory_programs.PROGRAMS},
    **{f"pattern {name}": partial(_pattern, name) for name in test_copies.PATTERNS},
    "decoder causal": partial(_decoder, 4, 1, decoders.CAUSAL, 100),
    "decoder growing": partial(_decoder, 4, 4, decoders.CAUSAL, 1500, 64),
    "decoder window": partial(_decoder, 4, 2, decoders.windowed(8), 100),
    "decoder stride": partial(_decoder, 3, 2, decoders.over(slice(decoders.t % 2, decoders.t + 1, 2)), 100),
    "decoder of 12 layers": partial(_decoder, 12, 1, decoders.CAUSAL, 100),
    "ppo": _ppo,
    "prefill": _prefill,
    "suffixes": _suffixes,
    "readme": _readme,
}


def main(folder: str, *names: str) -> None:
    """Write the texts of some programs, or of all."""
    for name in names or CORPUS:
        path = Path(folder) / f"{name.replace(' ', '_')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(texts(CORPUS[name]())), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
