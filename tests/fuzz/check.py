"""Comparing evaluators of a program with the brute force.

An evaluator is a function `(outputs, inputs, bounds, until, seed) -> results` on tensors built through the public API:
the oracle, and each backend with every pass on. Compiling runs the independent checker of schedules and storage too.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.products import choose, skinny, tall
from polyrhythm.compiler.backends.jax.trace import lowering, rows
from polyrhythm.compiler.loops import growth
from polyrhythm.compiler.schedule import tiles
from polyrhythm.runtime import spilling
from tests.fuzz.brute_ops import Invalid
from tests.fuzz.program import Program
from tests.fuzz.programs import data
from tests.fuzz.script import build, stand_alone
from tests.fuzz.whole import Output, evaluate

TOLERANCE = 1e-5
"""How far a float may be off, in units of its error scale."""

Evaluator = Callable[..., Mapping[str, Any] | None]
"""None: the evaluator does not take this program."""


def drawn(strategy: SearchStrategy[Any], work: Callable[[Any], None], count: int, number: int, each: int = 10) -> None:
    """Do some work for so many examples of a strategy; few of one seed, for those resemble each other."""
    for place, first in enumerate(range(0, count, each)):
        run = settings(
            max_examples=min(each, count - first),
            deadline=None,
            derandomize=False,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )(given(strategy)(work))
        seed(number + place)(run)()


class Mismatch(AssertionError):
    """A program and what went wrong with it; `script` reproduces it."""

    def __init__(self, program: Program, what: str, script: str) -> None:
        super().__init__(f"{what}\n\n{script}")
        self.program, self.what, self.script = program, what, script


def oracle(outputs: Any, inputs: Mapping[str, Any], bounds: Any, until: Any, seed: int) -> Mapping[str, Any]:
    """The reference evaluator."""
    return pr.evaluate(outputs, inputs, bounds=bounds, until=until, seed=seed)


COUNTS: Counter[str] = Counter()
"""How many programs each backend ran and refused."""


class Compiled:
    """A backend as an evaluator, some passes left out; it takes one program in `share`, none if that is 0.

    Of every third program all that can lie in files or on the host does; in every fifth a small bound is fixed for
    good. Outputs that were compiled last are not compiled again: they are called again, with other bounds.
    """

    def __init__(self, backend: str, share: int, without: Sequence[str] = ()) -> None:
        self.backend, self.share, self.without = backend, share, without
        self.outputs: Any = None
        self.program: Any = None
        self.fixed: dict[Any, int] = {}

    def __call__(self, outputs: Any, inputs: Mapping[str, Any], bounds: Any, until: Any, seed: int) -> Any:
        if self.outputs is not outputs:
            self.outputs, self.program, self.fixed = outputs, None, {}
            self.program = self._made(outputs, bounds, until)
        elif any(bounds[bound] != size for bound, size in self.fixed.items()):
            return None
        elif self.program is not None:
            COUNTS[f"{self.backend} called again"] += 1
        if self.program is None:
            return None
        large = self.backend == "jax" and COUNTS["jax ran"] % 2 == 0
        with as_if_large() if large else nullcontext(), all_in_files():
            results = self.program(bounds=bounds, seed=seed, **inputs)
        COUNTS[f"{self.backend} files"] += len(self.program.spilled)
        return results

    def _made(self, outputs: Any, bounds: Any, until: Any) -> Any:
        backend = self.backend
        COUNTS[f"{backend} offered"] += 1
        if not self.share or COUNTS[f"{backend} offered"] % self.share:
            return None
        few = [] if until else [bound for bound, size in bounds.items() if 1 < size < 5]
        self.fixed = {few[-1]: bounds[few[-1]]} if few and COUNTS[f"{backend} ran"] % 5 == 4 else {}
        COUNTS[f"{backend} fixed"] += len(self.fixed)
        pinned = backend == "jax" and COUNTS["jax ran"] % 2
        spill = "pinned_host" if pinned else tempfile.gettempdir()
        limit = pr.Budget("1GB", spill) if COUNTS[f"{backend} ran"] % 3 == 2 else None
        try:
            many = patch.object(tiles, "STEPS", 2 + COUNTS[f"{backend} offered"] % 3)  # as if there were many steps
            grow = patch.multiple(growth, LEAST=2, worthwhile=lambda _: 1)  # as if a step read much
            with many, grow, pr.settings(without=self.without):
                program = pr.compile(outputs, self.fixed, until=until, backend=backend, memory_budget=limit)
        except pr.errors.UnsupportedError:
            COUNTS[f"{backend} refused"] += 1
            return None
        COUNTS[f"{backend} ran"] += 1
        return program


@contextmanager
def all_in_files() -> Iterator[None]:
    """Random programs are small: under a budget with a folder, all that can lie in files does."""
    every = lambda loops, bounds, compiles: spilling.candidates(loops, bounds)  # noqa: E731
    with patch.object(spilling, "LEAST", 1), patch.object(spilling, "chosen", every):
        yield


@contextmanager
def as_if_large() -> Iterator[None]:
    """Random programs are small: every other run on JAX skips all it can, and multiplies as if matrices were large."""
    with (
        patch.object(lowering, "is_worth_skipping", lambda *_: True),
        patch.object(skinny, "SMALL", 0),
        patch.object(skinny, "ONE_BY_ONE", (2, 16)),
        patch.object(tall, "is_worth", lambda *_: True),
        patch.object(choose, "LEAST", 0),
        patch.object(choose, "LEAST_BATCH", 0),
        patch.multiple(rows, LEAST=1, LEAST_SUMMED=1, POSITIONS=1, SEQUENTIAL_ROWS=1, SHARE=1e9),
    ):
        yield


EVALUATORS: tuple[Evaluator, ...] = (oracle, Compiled("numpy", 1), Compiled("torch", 4), Compiled("jax", 8))


def check(program: Program, evaluators: Sequence[Evaluator] = EVALUATORS, twice: bool = False) -> bool:
    """Every evaluator gives what the brute force gives, compiled ones at other bounds too if `twice`; raises Mismatch.

    False for a program that could not be shown to make progress. The proof looks for a ranking of a certain form, so it
    cannot find all; the tests hold the share of such programs down.
    """
    try:
        variables = build(program)
        inspect(variables)
        if _called(program, variables, evaluators) and twice:
            again = [evaluator for evaluator in evaluators if isinstance(evaluator, Compiled)]
            for other in elsewhere(program):
                _called(other, variables, again)
    except pr.errors.ProgressError:
        return False
    except Mismatch:
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise Mismatch(program, problem, script(program, data(program), {}, problem)) from error
    return True


def elsewhere(program: Program) -> list[Program]:
    """The program with other bounds, for a second call; none where sizes depend on each other."""
    if program.sizes or program.until or any(d.extent is not None for d in program.dims):
        return []
    random = Random(repr(program))
    sizes = (0, 1, 2, 3, 4, 5, 7, 8, 9) if len(program.dims) < 3 else (0, 1, 2, 3)
    return [replace(program, bounds=tuple((name, random.choice(sizes)) for name, _ in program.bounds))]


def _called(program: Program, variables: Mapping[str, Any], evaluators: Sequence[Evaluator]) -> bool:
    """Every evaluator gives at the bounds of a program what the brute force gives; False if it has to refuse."""
    inputs = data(program)
    bounds = {variables[name]: size for name, size in program.bounds}
    try:
        expected, calls = evaluate(program, inputs)
    except Invalid as invalid:
        if invalid.kind != "promise":
            raise
        _refused(program, variables, inputs, evaluators)
        return False
    log = variables.get("log", [])
    for evaluator in evaluators:
        try:
            results = evaluator(variables["outputs"], inputs, bounds, variables["until"] or None, 0)
        except pr.errors.ProgressError:
            raise
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
            raise Mismatch(program, failed, script(program, inputs, expected, failed)) from error
        if results is None:
            continue
        wrong = difference(results, expected)
        if not wrong and log != calls:
            wrong = f"calls with an effect:\n{log}\ninstead of\n{calls}"
        log.clear()
        if wrong:
            raise Mismatch(program, wrong, script(program, inputs, expected, wrong))
    return True


def _refused(
    program: Program, variables: Mapping[str, Any], inputs: Mapping[str, Any], evaluators: Sequence[Evaluator]
) -> None:
    """Every evaluator refuses a run that ends before a size which never exceeds its length."""
    bounds = {variables[name]: size for name, size in program.bounds}
    for evaluator in evaluators:
        try:
            results = evaluator(variables["outputs"], inputs, bounds, variables["until"], 0)
        except pr.errors.BoundsError:
            COUNTS["broken promises refused"] += 1
            continue
        if results is not None:
            what = "the run ends before a size that never exceeds its length, and is not refused"
            raise Mismatch(program, what, script(program, inputs, {}, what))


def inspect(variables: Mapping[str, Any]) -> None:
    """What must hold of the graph of any program: the grammar, and that it prints and parses back."""
    try:
        from polyrhythm.compiler.analysis.check import checked
        from polyrhythm.compiler.ir import text
        from polyrhythm.compiler.trace import trace
        from tests.compiler.ir import parse, verify
    except ImportError:
        return
    graph = checked(trace(list(variables["outputs"].values()), (), variables["until"] or None))
    verify.verify(graph)
    shown = text.show(graph)
    again = text.show(parse.parse(shown, text.functions(graph), graph.parameters))
    assert again == shown, f"the text form does not survive a round trip:\n{shown}"


def difference(results: Mapping[str, Any], expected: Mapping[str, Output]) -> str | None:
    """What is wrong with some results, or None."""
    for name, want in expected.items():
        have = np.asarray(getattr(results[name], "values", results[name]))
        problem = _array_difference(have, want)
        if problem:
            return f"output {name!r}: {problem}"
    return None


def _array_difference(have: np.ndarray, want: Output) -> str | None:
    if str(have.dtype) != want.dtype:
        return f"dtype {have.dtype} instead of {want.dtype}"
    if want.mask is None:
        return None if have.size == 0 else f"{have.size} elements instead of none"
    if have.shape != want.values.shape:
        return f"shape {have.shape} instead of {want.values.shape}"
    with np.errstate(invalid="ignore"):
        off = np.abs(have.astype(np.float64) - want.values)
        same = (have == want.values) | (np.isnan(have) & np.isnan(want.values))
        allowed = 0 if want.scale is None else TOLERANCE * want.scale
        wrong = want.mask & ~same & ~(off <= allowed)
    if not wrong.any():
        return None
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"at {list(place)}: {have[place]} instead of {want.values[place]}\n{have}\ninstead of\n{want.values}"


def script(program: Program, inputs: Mapping[str, Any], expected: Mapping[str, Output], problem: str) -> str:
    """The stand-alone script of a failure."""
    kept = {name: want for name, want in expected.items() if want.mask is not None}
    values = {name: want.values.astype(want.dtype if want.scale is None else np.float64) for name, want in kept.items()}
    scales = {name: TOLERANCE * want.scale for name, want in kept.items() if want.scale is not None}
    return stand_alone(program, inputs, values, scales, problem)
