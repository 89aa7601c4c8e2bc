"""`memory_budget` is held or refused, with the tensor that stops it, whichever way a program is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch

import polyrhythm as pr
from polyrhythm.errors import MemoryBudgetError

STEPS = 1000

t, T = pr.dim("t")


def smoothed() -> pr.Tensor:
    """Steps that follow each other, all of which are outputs: 4 bytes each, beside as many of the input."""
    x = pr.input("x", (), (t,))
    y = pr.recurrent((), (t,))
    y[0] = x[0]
    y[t + 1] = pr.tanh(y) + x[t + 1]
    return y


def running_sum() -> pr.Tensor:
    """A recurrence that a call computes as one operation, and a stream step by step."""
    x = pr.input("x", (), (t,))
    y = pr.recurrent((), (t,))
    y[0] = x[0]
    y[t + 1] = y + x[t + 1]
    return y


def _streamed(program: pr.Program, x: np.ndarray) -> Any:
    return [np.asarray(step) for step in program.stream(over=t, x=x)]


PATHS: dict[str, Callable[[pr.Program, np.ndarray], Any]] = {
    "call": lambda program, x: program(x=x),
    "bounds": lambda program, x: program(x=iter(x)),
    "stream": _streamed,
    "fed stream": lambda program, x: list(program.stream(over=t, bounds={T: len(x)}, x=iter(x))),
    "checkpoint": lambda program, x: program(x=x, checkpoint=pr.Checkpoints("unused", over=t, every=STEPS)),
    "jit": lambda program, x: jax.jit(lambda x: program(x=x))(x),
    "as_torch": lambda program, x: program.as_torch()(x=torch.from_numpy(x)),
    "probe": lambda program, x: program.probe(program.wanted.outputs[0], at={t: 1}, x=x),
}

BOTH = [(path, backend) for path in PATHS for backend in ("jax", "numpy") if path != "jit" or backend == "jax"]


@pytest.mark.parametrize(("path", "backend"), BOTH)
@pytest.mark.parametrize("made", [smoothed, running_sum])
def test_a_budget_is_refused(
    made: Callable[[], pr.Tensor], path: str, backend: str, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    program = pr.compile(made(), backend=backend, memory_budget=100)
    with pytest.raises(MemoryBudgetError, match="the budget") as raised:
        PATHS[path](program, np.ones(STEPS, "float32"))
    assert "test_budget.py" in str(raised.value)  # the line of the tensor that stops it


@pytest.mark.parametrize(("path", "backend"), BOTH)
def test_a_budget_that_suffices_changes_nothing(path: str, backend: str, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.linspace(0, 1, 50, dtype="float32")
    program = pr.compile(smoothed(), backend=backend, memory_budget="10MB")
    PATHS[path](program, x)


def test_a_stream_of_a_lifted_program_keeps_budget_machine_and_choices() -> None:
    program = pr.compile(running_sum(), memory_budget="1MB")
    assert any(note.by == "lift" for note in program.compiled.notes)
    streamed = program._variant(program._caller.dim(t)).compiled.loops
    assert streamed.budget == program.compiled.loops.budget == 1 << 20
    assert streamed.machine == program.compiled.loops.machine


def kernel_sums() -> pr.Tensor:
    """Each step compares itself with all before it: 134 MB for 2,000 steps at once, beside 128 kB of places."""
    x = pr.input("x", (8,), (t,))
    return pr.exp(x[0 : t + 1] - x).sum(0)


WHOLE: dict[str, Callable[[pr.Program, np.ndarray], Any]] = {
    "call": lambda program, x: program(x=x),
    "jit": lambda program, x: jax.jit(lambda x: program(x=x))(x),
    "as_torch": lambda program, x: program.as_torch()(x=torch.from_numpy(x)),
    "probe": lambda program, x: program.probe(program.wanted.outputs[0], x=x),
}


@pytest.mark.parametrize("path", WHOLE)
def test_what_is_computed_counts_in_a_budget(path: str) -> None:
    program = pr.compile(kernel_sums(), schedule={t: pr.vector()}, memory_budget="10MB")
    with pytest.raises(MemoryBudgetError, match="the budget is 10,485,760") as raised:
        WHOLE[path](program, np.ones((2000, 8), "float32"))
    assert "return pr.exp(x[0 : t + 1] - x).sum(0)" in str(raised.value)
    assert not program.backend.executor.programs  # nothing that could have run was kept


def test_what_is_computed_between_host_calls_counts_in_a_budget() -> None:
    x = pr.input("x", (2000,), (t,))
    spread = pr.sort(x.axes[:, None] - x.axes[None, :], 0).axes[0]
    seen = pr.host(lambda found: found, [spread], shape=(2000,))
    program = pr.compile(seen.sum(0), memory_budget="1MB")
    assert program.memory.peak({T: 3}) > 16e6
    with pytest.raises(MemoryBudgetError, match="the budget is 1,048,576; what argsort makes"):
        program(x=np.ones((3, 2000), "float32"))
    assert pr.compile(seen.sum(0), memory_budget="40MB")(x=np.ones((3, 2000), "float32")).shape == (3,)


@pytest.mark.parametrize("width", [3, 2000])
def test_the_plan_of_a_program_with_host_functions_covers_its_regions(width: int) -> None:
    x = pr.input("x", (width,), (t,))
    y = pr.recurrent((width,), (t,))
    y[0] = x[0]
    y[t + 1] = pr.host(lambda found: found, [pr.tanh(y) + x[t + 1]], shape=(width,))
    program = pr.compile(y)
    plan = program.memory.peak({T: 64})
    regions = len(program.stats.compilations)
    program(x=np.ones((64, width), "float32"))
    assert len(program.stats.compilations) == regions > 0
    largest = max(compilation.allocated for compilation in program.stats.compilations)
    assert largest <= plan <= 1.1 * largest + 1e6


def test_a_plan_without_a_bound_says_which() -> None:
    for backend in ("jax", "numpy"):
        with pytest.raises(pr.errors.MissingBoundError, match="depends on T"):
            pr.compile(smoothed(), backend=backend).memory.peak({})


@pytest.mark.parametrize("path", WHOLE)
def test_a_budget_is_held_by_fewer_steps_at_once(path: str) -> None:
    program = pr.compile(kernel_sums(), memory_budget="10MB")
    x = np.random.default_rng(0).normal(size=(2000, 8)).astype("float32")
    found = np.asarray(WHOLE[path](program, x))
    expected = np.stack([np.exp(x[: n + 1] - x[n]).sum(0) for n in range(len(x))])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    assert all(compilation.allocated <= 10 << 20 for compilation in program.stats.compilations)


def test_what_numpy_computes_counts_in_a_budget() -> None:
    w = pr.input("w", (1000,))
    spread = pr.exp(w.axes[:, None] * w.axes[None, :]).sum(0)
    with pytest.raises(MemoryBudgetError, match="bytes are needed"):
        pr.compile(spread, backend="numpy", memory_budget="1MB")(w=np.ones(1000, "float32"))
