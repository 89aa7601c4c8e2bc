"""Reductions over ranges that grow, shrink or slide, and their gradients, take work in proportion to the steps.

What is counted are the elements that the operations of the final loops read and make, at T, 2 T and 4 T.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.loops.ir import Block, If, Item, Load, LoopProgram
from polyrhythm.compiler.pipeline import compile_tensors

t, T = pr.dim("t")
x, v = pr.input("x", (), (t,)), pr.input("v", (3,), (t,))
WINDOW = 20

RANGES: dict[str, Callable[[pr.Tensor], pr.Tensor]] = {
    "grows": lambda a: a[0 : t + 1],
    "shrinks": lambda a: a[t:T],
    "slides": lambda a: pr.window(a, t, WINDOW),
    "slides ahead": lambda a: a[t : pr.min(T, t + WINDOW)],
}
Reduction = Callable[[Callable[[pr.Tensor], pr.Tensor]], pr.Tensor]
SMOOTH: dict[str, Reduction] = {
    "sum": lambda near: near(x).sum(0),
    "mean": lambda near: near(v).mean(0),
    "max": lambda near: near(x).max(0),
    "logsumexp": lambda near: pr.logsumexp(near(x), 0),
    "softmax-weighted": lambda near: pr.softmax(near(x), 0) @ near(v),
    "softmax-weighted by sums": lambda near: (pr.softmax(near(x), 0) * near(x)).sum(0),
    "products of pairs": lambda near: (near(v) @ v * near(x)).sum(0),
}
EXACT: dict[str, Reduction] = {
    "product": lambda near: near(x).prod(0),
    "argmax": lambda near: near(x).argmax(0),
    "argmin": lambda near: near(x).argmin(0),
    "any": lambda near: (near(x) > 0.5).any(0),
    "all": lambda near: (near(x) > 0.5).all(0),
}


def elements(shape: Sequence[Term], values: Mapping[Symbol, int]) -> int:
    return prod(max(0, length.evaluate(values.__getitem__)) for length in shape)


def work(items: Sequence[Item], values: dict[Symbol, int]) -> int:
    """The elements that some items read and make."""
    total = 0
    for item in items:
        if isinstance(item, Block):
            for compute in item.body:
                reads = (operand.type.shape for operand in compute.operands if isinstance(operand, Load))
                total += sum(elements(shape, values) for shape in (compute.type.shape, *reads))
        elif isinstance(item, If):
            total += work(item.body, values) if item.condition.evaluate(values.__getitem__) else 0
        else:
            ends = (term.evaluate(values.__getitem__) for term in (item.first, item.end))
            total += sum(work(item.body, {**values, item.counter: step}) for step in range(*ends))
    return total


def grown(program: LoopProgram) -> list[int]:
    return [work(program.body, dict.fromkeys(program.bounds, steps)) for steps in (128, 256, 512)]


@pytest.mark.parametrize("way", RANGES)
@pytest.mark.parametrize("name", [*SMOOTH, *EXACT])
def test_reductions_are_linear(name: str, way: str) -> None:
    made = (SMOOTH | EXACT)[name](RANGES[way])
    one, two, four = grown(compile_tensors([made]).loops)
    assert two <= 2.2 * one, (one, two, four)
    assert four <= 2.2 * two, (one, two, four)


@pytest.mark.parametrize("way", RANGES)
@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_are_linear(name: str, way: str) -> None:
    loss = pr.square(SMOOTH[name](RANGES[way]))[0:T].sum()
    one, two, four = grown(compile_tensors(pr.grad(loss, [x, v])).loops)
    assert two <= 2.2 * one, (one, two, four)
    assert four <= 2.2 * two, (one, two, four)


def test_the_count_sees_work_in_the_square() -> None:
    one, two, four = grown(compile_tensors([x[0 : t + 1].sum(0)], without=["ranges"]).loops)
    assert two > 3 * one
    assert four > 3 * two


@pytest.mark.parametrize("way", ["slides", "slides ahead"])
def test_windows_are_those_of_numpy(way: str) -> None:
    outputs = {name: made(RANGES[way]) for name, made in (SMOOTH | EXACT).items()}
    program = pr.compile(outputs)
    random = np.random.default_rng(1)
    for steps in (1, WINDOW - 1, WINDOW, 2 * WINDOW + 5):
        given: dict[str, Any] = {
            "x": random.uniform(0.9, 1.1, size=steps).astype("float32"),
            "v": random.normal(size=(steps, 3)).astype("float32"),
        }
        want, found = pr.evaluate(outputs, given), program(**given)
        for name in outputs:
            np.testing.assert_allclose(found[name], want[name], rtol=1e-4, atol=1e-5, err_msg=f"{name} at {steps}")
