"""Random programs with one of their dims spread over all devices: what the oracle gives, or a named refusal.

`python -m tests.devices.random_cases FIRST LAST` checks programs of some numbers, on as many devices as
`XLA_FLAGS=--xla_force_host_platform_device_count=4` makes, and goes on after a failure.
"""

import random
import sys
import traceback
from collections import Counter
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings

import polyrhythm as pr
from polyrhythm.compiler.schedule.scheduler import ScheduleError
from tests.devices.spread_programs import Maker
from tests.fuzz import check
from tests.fuzz.mutate import rightly_refused
from tests.fuzz.program import Program
from tests.fuzz.programs import programs
from tests.fuzz.script import build
from tests.fuzz.subsets import sliding, twins

DEVICES = jax.device_count()
FUZZED, SPREAD, FEW = 60, 150, 4
"""How many programs of the fuzzer, of our own, and of those in the quick lane."""

SEED = 4100
REFUSALS = (pr.errors.DependentStepsError, pr.errors.ShardingError, pr.errors.UnsupportedError, ScheduleError)
"""Ways to say no; a dim that no tensor has is a `DeclarationError`."""


def spread(number: int) -> str:
    """One program of our own, on a line of devices or on a grid; how it ended."""
    grid = DEVICES > 2 and DEVICES % 2 == 0 and number % 2
    axes = ("data", "model") if grid else ("data",)
    mesh = jax.make_mesh((DEVICES // 2, 2) if grid else (DEVICES,), axes)
    outputs, inputs, bounds, shard = Maker(number).made(axes)
    expected = pr.evaluate(outputs, inputs, bounds=bounds, seed=number)
    try:
        program = pr.compile(outputs, mesh=mesh, shard=shard)
    except REFUSALS as refusal:
        return type(refusal).__name__
    found = program(**inputs, bounds=bounds, seed=number)
    for name, value in expected.items():
        have = np.asarray(found[name])
        assert have.shape == value.shape, (number, name)
        assert np.allclose(have, value, rtol=2e-4, atol=2e-4, equal_nan=True), (number, name, have, value)
    return "spread"


def case_a_few_spread_programs() -> dict[str, int]:
    return dict(Counter(map(spread, range(FEW))))


def case_spread_programs() -> dict[str, int]:
    counts = Counter(map(spread, range(SPREAD)))
    assert counts["spread"] >= 0.85 * SPREAD, counts
    return dict(counts)


def case_random_programs() -> dict[str, int]:
    """Programs of the fuzzer; enough of them can be spread for this to mean something."""
    mesh = jax.make_mesh((DEVICES,), ("data",))
    counts: Counter[str] = Counter()
    dims: list[pr.Dim] = []

    def evaluator(outputs: Any, inputs: Any, bounds: Any, until: Any, seed: int) -> Any:
        for dim in dims:
            try:
                program = pr.compile(outputs, until=until, mesh=mesh, shard={dim: "data"})
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
    # A failure prints its script; making it smaller would compile hundreds of programs.
    how = settings(
        max_examples=10, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    with patch.object(check, "build", built):
        for number in range(FUZZED // 10):
            seed(SEED + number)(how(given(programs(("int", "float")[number % 2]))(work)))()
    assert counts["spread"] >= FUZZED // 10, counts
    return dict(counts)


def main(first: int, last: int) -> None:
    """Programs of our own by number."""
    counts: Counter[str] = Counter()
    for number in range(first, last):
        try:
            counts[spread(number)] += 1
        except Exception:
            counts["failed"] += 1
            print(f"program {number}:\n{traceback.format_exc(limit=-1)}", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
