"""From the dependence graph to streams: the compiler that turns an ordinary program into a stream program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyrhythm.language.trees import flattened
from polyrhythm.stream.directives import Directive, ParallelizeDirective
from polyrhythm.stream.errors import DataMismatch, StreamError
from polyrhythm.stream.graph import Node, Program, Stream
from polyrhythm.stream.hardware import Hardware
from polyrhythm.stream.lowering.core import Lowering
from polyrhythm.stream.lowering.onehot import gathers_for_one_hots
from polyrhythm.stream.lowering.problem import Problem, prepared
from polyrhythm.stream.lowering.refusals import check_schedule, refusal, streams_of, without_effect
from polyrhythm.stream.lowering.stores import Stored, stored
from polyrhythm.stream.simulate import Run, simulate
from polyrhythm.stream.types import F32, DataType


@dataclass(frozen=True)
class Lowered:
    """A program as streams: `program` can be measured, linted and simulated; calling it gives the outputs.

    `missing` names the inputs that were given no values.
    """

    program: Program
    stored: tuple[Stored, ...]
    rebuild: Any
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self.program)

    def outputs(self, run: Run) -> Any:
        """The outputs that a functional run left in off-chip memory, in the structure they were asked for."""
        if self.missing:
            raise DataMismatch(
                f"the program was lowered without values for {', '.join(self.missing)}, so it has no outputs",
                fix="pass them as inputs={...} to lower, or ask for times alone: simulate(..., functional=False)",
            )
        return self.rebuild([output.array(run.arrays) for output in self.stored])

    def __call__(self, hardware: Hardware | None = None) -> Any:
        """Simulate with real values and return the outputs."""
        return self.outputs(simulate(self.program, hardware))


def lower(
    outputs: Any,
    schedule: Sequence[Directive] = (),
    inputs: Mapping[str, Any] | None = None,
    bounds: Mapping[Any, int] | None = None,
    storage: DataType = F32,
) -> Lowered:
    """Lower the program that computes some outputs to streams.

    `inputs` gives whole numbers (routing, lengths) always, and other inputs where the program is to be run with
    values; `bounds` gives bounds that no given input tells. `storage` is the type of float inputs in off-chip memory.

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
    problem = gathers_for_one_hots(prepared(tensors, schedule, inputs or {}, bounds or {}, storage))
    try:
        program, results = lowered_streams(problem)
    except StreamError as error:
        raise refusal(error, schedule, lambda part: lowered_streams(problem.scheduled(part))) from error
    return Lowered(program, results, rebuild, tuple(name for name, array in problem.arrays.items() if array is None))


def lowered_streams(problem: Problem) -> tuple[Program, tuple[Stored, ...]]:
    """The streams of a program, and where its outputs are."""
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
        if lowering.dealing.effective:
            lowering.used |= {key for key in problem.directives if key[0] is ParallelizeDirective}
    for key, directive in problem.directives.items():
        if key not in lowering.used:
            raise without_effect(directive)
    return Program(*ends), tuple(results)
