"""Random programs with one of their dims spread over all devices: what the brute force gives, or a named refusal."""

import random
from collections import Counter
from typing import Any
from unittest.mock import patch

import jax

import polyrhythm as pr
from polyrhythm.compiler.schedule.scheduler import ScheduleError
from tests.fuzz import check
from tests.fuzz.mutate import rightly_refused
from tests.fuzz.program import Program
from tests.fuzz.programs import programs
from tests.fuzz.script import build
from tests.fuzz.subsets import sliding, twins

PROGRAMS, SEED = 150, 4100
REFUSALS = (pr.errors.DependentStepsError, pr.errors.ShardingError, pr.errors.UnsupportedError, ScheduleError)
"""Ways to say no; a dim that no tensor has is a `DeclarationError`."""


def case_random_programs() -> dict[str, int]:
    """Enough of them can be spread for this to mean something."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    counts: Counter[str] = Counter()
    dims: list[pr.Dim] = []

    def evaluator(outputs: Any, inputs: Any, bounds: Any, until: Any, seed: int) -> Any:
        for dim in dims:
            try:
                program = pr.compile(outputs, until=until, progress=False, mesh=mesh, shard={dim: "data"})
            except (*REFUSALS, pr.errors.DeclarationError) as refusal:
                counts[type(refusal).__name__] += 1
                continue
            counts["spread"] += 1
            return program(bounds=bounds, seed=seed, **inputs)
        return None

    def built(program: Program) -> dict[str, Any]:
        variables = build(program)
        dims[:] = [variables[dim.name] for dim in program.dims if dim.name in variables]
        random.shuffle(dims)
        return variables

    def work(program: Program) -> None:
        program = sliding(twins(program)) if random.random() < 0.5 else program
        try:
            check.check(program, (evaluator,))
        except check.Mismatch as error:
            if not rightly_refused(program, error):
                raise

    random.seed(SEED)
    with patch.object(check, "build", built):
        for number, lane in enumerate(("int", "float")):
            check.drawn(programs(lane), work, PROGRAMS // 2, SEED + 1000 * number)
    assert counts["spread"] >= PROGRAMS // 10, counts
    return dict(counts)
