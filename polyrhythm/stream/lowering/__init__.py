"""From the dependence graph to streams: the compiler that turns an ordinary program into a stream program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyrhythm.language.trees import flattened
from polyrhythm.stream.directives import Directive, ParallelizeDirective, parallelize
from polyrhythm.stream.errors import DataMismatch, StreamError
from polyrhythm.stream.graph import Node, Program, Stream
from polyrhythm.stream.hardware import Hardware
from polyrhythm.stream.lowering.core import Lowering
from polyrhythm.stream.lowering.gathers import gathers_for_one_hots
from polyrhythm.stream.lowering.lengths import ragged_entry
from polyrhythm.stream.lowering.loads import Stored, stored
from polyrhythm.stream.lowering.problem import Problem, prepared
from polyrhythm.stream.lowering.refusals import check_schedule, refusal, streams_of, without_effect
from polyrhythm.stream.simulate import Run, simulate
from polyrhythm.stream.types import F32, DataType


@dataclass(frozen=True)
class Lowered:
    """A program as streams: `program` can be measured, linted and simulated; calling it gives the outputs.

    `missing` names the inputs that were given no values, `fixed` those that the streams were made for.
    """

    program: Program
    stored: tuple[Stored, ...]
    rebuild: Any
    missing: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.program)

    def outputs(self, run: Run) -> Any:
        """The outputs that a functional run left in off-chip memory, in the structure they were asked for."""
        missing = [name for name in self.missing if name not in run.given]
        if missing:
            raise DataMismatch(
                f"the program was lowered without values for {', '.join(missing)}, so it has no outputs",
                fix="pass them as inputs={...} to lower or to the call, or ask for times alone: functional=False",
            )
        return self.rebuild([output.array(run.arrays) for output in self.stored])

    def run(
        self, hardware: Hardware | None = None, inputs: Mapping[str, Any] | None = None, *, functional: bool = True
    ) -> Run:
        """Simulate, with other values for inputs: routing that was left out when the program was lowered, for example.

        >>> import polyrhythm as pr
        >>> t, T = pr.dim("t")
        >>> doubled = lower(2 * pr.input("x", (), (t,)), bounds={T: 3})
        >>> doubled.outputs(doubled.run(inputs={"x": [1.0, 2.0, 3.0]})).tolist()
        [2.0, 4.0, 6.0]
        """
        arrays = {name: np.asarray(value) for name, value in (inputs or {}).items()}
        for name, array in arrays.items():
            what = f"has shape {self.sizes[name]} for" if name in self.sizes else "has no input"
            if name in self.fixed or self.sizes.get(name) != array.shape:
                raise DataMismatch(
                    f"the program {'was lowered for' if name in self.fixed else what} {name}, "
                    f"and other values of shape {array.shape} are given to a run",
                    fix="leave whole numbers out when lowering, and give bounds; then each run may have its own",
                )
        return simulate(self.program, hardware, functional=functional, arrays=arrays)

    def __call__(self, hardware: Hardware | None = None, inputs: Mapping[str, Any] | None = None) -> Any:
        """Simulate with real values and return the outputs."""
        return self.outputs(self.run(hardware, inputs))


def lower(
    outputs: Any,
    schedule: Sequence[Directive] = (),
    inputs: Mapping[str, Any] | None = None,
    bounds: Mapping[Any, int] | None = None,
    storage: DataType = F32,
) -> Lowered:
    """Lower the program that computes some outputs to streams.

    `inputs` may be left out, and given to a run. Whole numbers (routing, lengths) that are given here are built into
    the streams; others are read while it runs. `bounds` gives bounds that no given input tells. `storage` is
    the type of float inputs in off-chip memory.

    >>> import numpy as np, polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (2,), (t,))
    >>> total = pr.recurrent((2,), (t,))
    >>> total[0] = x[0]
    >>> total[t + 1] = total + x[t + 1]
    >>> lower(total, inputs={"x": np.ones((3, 2), "float32")})().tolist()
    [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    """
    tensors, rebuild = flattened(outputs)
    schedule = check_schedule(schedule)

    def scheduled(directives: Sequence[Directive]) -> Problem:
        return gathers_for_one_hots(prepared(tensors, directives, inputs or {}, bounds or {}, storage))

    problem = scheduled(schedule)
    try:
        program, results = lowered_streams(problem)
    except StreamError as error:
        raise refusal(error, schedule, lambda part: lowered_streams(scheduled(part))) from error
    graph, known = problem.graph, problem.arrays
    sizes = {name: problem.lengths(node) for name, node in graph.inputs.items()}
    fixed = tuple(name for name, node in graph.inputs.items() if problem.is_metadata(node.name))
    return Lowered(program, results, rebuild, tuple(n for n, array in known.items() if array is None), fixed, sizes)


def lowered_streams(problem: Problem) -> tuple[Program, tuple[Stored, ...]]:
    """The streams of a program, and where its outputs are.

    Lengths that are data are walked by a region. Without `parallelize` that is a single one, where the rest allows it.
    """
    entry = None if any(key[0] is ParallelizeDirective for key in problem.directives) else ragged_entry(problem)
    if entry is not None:
        with suppress(StreamError):
            return _streams(problem.dealing(entry, parallelize(str(entry), 1, "coarse")))
    return _streams(problem)


def _streams(problem: Problem) -> tuple[Program, tuple[Stored, ...]]:
    lowering = Lowering(problem)
    lowering.run()
    ends: list[Node | Stream] = []
    results = []
    for number, name in enumerate(problem.graph.outputs):
        with streams_of(problem.graph[name]):
            result, end = stored(lowering, name, number)
        results.append(result)
        ends.extend(end)
    if lowering.dealing is not None:
        lowering.dealing.finish()
        if lowering.dealing.result is not None or lowering.dealing.updates:
            lowering.used |= {key for key in problem.directives if key[0] is ParallelizeDirective}
    for key, directive in problem.directives.items():
        if key not in lowering.used:
            raise without_effect(directive)
    return Program(*ends), tuple(results)
