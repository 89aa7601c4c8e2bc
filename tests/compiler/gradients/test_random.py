"""Random programs: the slope of a loss along a random direction, by gradients and by differences, in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings

import polyrhythm as pr
from tests.fuzz.program import Program
from tests.fuzz.programs import data, programs
from tests.fuzz.script import build

STEP = 1e-6
EXAMPLES = 25


def wide(node: Any) -> Any:
    """A program in float64 instead of float32."""
    if isinstance(node, tuple):
        return tuple(map(wide, node))
    if is_dataclass(node) and not isinstance(node, type):
        return replace(node, **{field.name: wide(getattr(node, field.name)) for field in fields(node)})
    return "float64" if isinstance(node, str) and node == "float32" else node


def losses(outputs: Mapping[str, pr.Tensor]) -> list[pr.Tensor]:
    """A number per step for each float output."""
    floats = [output for output in outputs.values() if str(output.dtype) == "float64"]
    return [(output * output + output).sum() for output in floats]


def inputs(program: Program) -> dict[str, np.ndarray]:
    return {
        name: value.astype("float64") if value.dtype == "float32" else value for name, value in data(program).items()
    }


def slopes(program: Program) -> Iterator[tuple[float, float]]:
    """The slope of each loss by gradient and by differences, but for those that are zero or have a kink close by."""
    variables = build(program)
    given = inputs(program)
    names = [name for name, value in given.items() if value.dtype == "float64" and value.size]
    bounds = {variables[name]: size for name, size in program.bounds}
    random = np.random.default_rng(0)
    direction = {name: random.normal(size=given[name].shape) for name in names}
    everything = [variables[d.name] for d in program.inputs]
    wanted = losses(variables["outputs"])

    def values(by: float) -> np.ndarray:
        moved = {**given, **{name: given[name] + by * direction[name] for name in names}}
        return np.array([np.sum(value) for value in pr.evaluate((wanted, everything), moved, bounds)[0]])

    before, here, after = values(-STEP), values(0.0), values(STEP)
    for loss, low, middle, high in zip(wanted, before, here, after, strict=True):
        slope = (high - low) / (2 * STEP)
        scale = max(1.0, abs(slope))
        smooth = abs(high - 2 * middle + low) / STEP < 1e-3 * scale and abs(middle) < 1e4 * scale
        if slope and np.isfinite(slope) and smooth:
            found = pr.evaluate((pr.grad(loss, [variables[name] for name in names]), everything), given, bounds)[0]
            by_gradient = sum(float((g * direction[name]).sum()) for g, name in zip(found, names, strict=True))
            yield by_gradient / scale, slope / scale


def differentiable(program: Program) -> bool:
    return any(value.dtype == "float64" and value.size for value in inputs(program).values())


def check_slopes(program: Program) -> int:
    """Compare the slopes of a program; how many there were, none where it cannot be shown to progress."""
    program = wide(program)
    if not differentiable(program):
        return 0
    try:
        found = list(slopes(program))
    except pr.errors.ProgressError:
        return 0
    for by_gradient, by_differences in found:
        assert abs(by_gradient - by_differences) < 1e-4, f"slope {by_gradient} by gradient, {by_differences}"
    return len(found)


def test_random_programs() -> None:
    compared = unproven = 0

    @seed(2)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs("float").map(wide).filter(differentiable))
    def examples(program: Program) -> None:
        nonlocal compared, unproven
        try:
            for by_gradient, by_differences in slopes(program):
                compared += 1
                assert abs(by_gradient - by_differences) < 1e-4
        except pr.errors.ProgressError:
            unproven += 1

    examples()
    assert compared >= EXAMPLES // 2
    assert unproven == 0
