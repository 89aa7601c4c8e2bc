"""Runs that go further than they were to: the bits of a run that was to go so far from the start, or a refusal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import optim
from polyrhythm.runtime.errors import CheckpointMismatchError
from tests.runtime.stopping import digest

BACKENDS = ["numpy", "torch", "jax"]
i, I = pr.dim("i")
t, T = pr.dim("t")
x, y = pr.input("x", (3,), (i,)), pr.input("y", (), (i,))
X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")


def fitted(
    rate: Callable[[], Any], weigh: Callable[[pr.Tensor], pr.Tensor] = lambda loss: loss
) -> dict[str, pr.Tensor]:
    """A linear model trained with Adam on noisy data."""
    weights = optim.over(i, {"w": pr.parameter("w", (3,), init=np.zeros(3))})
    noise = pr.normal((3,), dims=(i,), name="noise")
    loss = weigh(((weights["w"] * (x + 0.1 * noise)).sum() - y) ** 2)
    optim.adam(i, weights, pr.grad(loss, weights), rate())
    return {"losses": loss[0:I], "last": weights["w"][I], "all": weights["w"], "least": loss[0:I].min(0)}


def data(size: int) -> dict[str, Any]:
    return {"x": X[:size], "y": X[:size].sum(1)}


def through(folder: Path, every: int = 4, **options: Any) -> pr.Checkpoints:
    return pr.Checkpoints(folder, over=i, every=every, **options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("before", [3, 18, 20])
def test_a_run_that_has_ended_goes_further(backend: str, before: int, tmp_path: Path) -> None:
    program = pr.compile(fitted(lambda: 0.05), backend=backend)
    checkpoints = through(tmp_path / "one", 2)
    program(**data(before), seed=3, checkpoint=checkpoints)
    found = program(**data(31), seed=3, checkpoint=checkpoints)
    whole = program(**data(31), seed=3, checkpoint=through(tmp_path / "other", 2))
    assert digest(found) == digest(whole)
    further = program(**data(40), seed=3, checkpoint=checkpoints)
    assert digest(further) == digest(program(**data(40), seed=3, checkpoint=through(tmp_path / "third", 5)))


def test_nothing_is_done_twice_but_what_follows_the_last_checkpoint(tmp_path: Path) -> None:
    calls: list[float] = []

    def halve(value: np.ndarray) -> np.ndarray:
        calls.append(float(value))
        return value / 2

    w = pr.recurrent((), ((i, I + 1),))
    w[0] = 1.0
    w[i + 1] = pr.host(halve, [w], (), "float32")
    program = pr.compile(w[I], backend="numpy")
    assert program(bounds={I: 10}, checkpoint=through(tmp_path)) == 2.0**-10
    assert program(bounds={I: 15}, checkpoint=through(tmp_path)) == 2.0**-15
    assert len(calls) == 10 + (15 - 8)
    assert program(bounds={I: 15}, checkpoint=through(tmp_path)) == 2.0**-15
    assert len(calls) == 17


class Counter:
    """A host function with an effect, and its state."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, value: np.ndarray) -> np.ndarray:
        self.count += 1
        return value + np.float32(self.count)

    def save(self) -> Mapping[str, Any]:
        return {"count": np.array(self.count)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.count = int(state["count"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_effects_go_on_from_their_state(backend: str, tmp_path: Path) -> None:
    counter = Counter()
    w = pr.recurrent((), ((i, I + 1),))
    w[0] = 0.0
    w[i + 1] = pr.host(counter.add, [w], (), "float32", effect="count")
    program = pr.compile(w[I], backend=backend)
    assert program(bounds={I: 6}, checkpoint=through(tmp_path, outside=counter)) == 21
    assert program(bounds={I: 10}, checkpoint=through(tmp_path, outside=counter)) == 55
    seen = counter.count
    counter.count = 0
    assert program(bounds={I: 10}, checkpoint=through(tmp_path / "whole", outside=counter)) == 55
    assert seen == counter.count


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_that_may_end_early_goes_further(backend: str, tmp_path: Path) -> None:
    w = pr.recurrent((), ((i, I + 1),))
    w[0] = 1.0
    w[i + 1] = w * 0.5
    program = pr.compile({"w": w, "last": w[I]}, until={i: w < 1e-3}, backend=backend)
    program(bounds={I: 6}, checkpoint=through(tmp_path, 2))
    for limit in (8, 20):
        found = program(bounds={I: limit}, checkpoint=through(tmp_path, 2))
        want = pr.evaluate({"w": w, "last": w[I]}, {}, {I: limit}, {i: w < 1e-3})
        np.testing.assert_array_equal(found["w"], want["w"])


def scheduled(kind: str) -> dict[str, pr.Tensor]:
    far = pr.value(I).cast("float32")
    if kind == "rate":
        return fitted(lambda: 0.05 * (1.0 - pr.value(i).cast("float32") / far))
    if kind == "loss":
        return fitted(lambda: 0.05, lambda loss: loss / far)
    if kind == "guard":
        return fitted(lambda: pr.where(i < I // 2, 0.05, 0.01))
    w = pr.recurrent((3,), ((i, I + 1),))
    w[0] = x[0:I].mean(0)  # over all the data
    w[i + 1] = 0.9 * w + 0.0 * y
    return {"w": w[I]}


@pytest.mark.parametrize("kind", ["rate", "loss", "guard", "start"])
def test_what_depends_on_the_number_of_iterations_is_named(kind: str, tmp_path: Path) -> None:
    program = pr.compile(scheduled(kind), backend="numpy")
    program(**data(18), checkpoint=through(tmp_path))
    with pytest.raises(CheckpointMismatchError, match=r"cannot go on to 31: up to there .* depends on I") as caught:
        program(**data(31), checkpoint=through(tmp_path))
    assert caught.value.at is not None
    assert Path(caught.value.at.file).name in ("test_extending.py", "adam.py", "updates.py")
    np.testing.assert_array_equal(through(tmp_path).iterations, [16, 18])  # nothing was changed


def test_other_data_or_fewer_iterations_are_another_run(tmp_path: Path) -> None:
    program = pr.compile(fitted(lambda: 0.05), backend="numpy")
    program(**data(18), checkpoint=through(tmp_path))
    other = data(31)
    other["x"] = other["x"].copy()
    other["x"][3, 0] += 1
    with pytest.raises(CheckpointMismatchError, match="input 'x' has other values"):
        program(**other, checkpoint=through(tmp_path))
    with pytest.raises(CheckpointMismatchError, match="I is 18 there and 17 here"):
        program(**data(17), checkpoint=through(tmp_path))
    with pytest.raises(CheckpointMismatchError, match="seed"):
        program(**data(31), seed=1, checkpoint=through(tmp_path))


def test_results_alone_cannot_go_on(tmp_path: Path) -> None:
    program = pr.compile(fitted(lambda: 0.05), backend="numpy")
    program(**data(18), checkpoint=through(tmp_path, keep=1))
    with pytest.raises(CheckpointMismatchError, match="has ended, and holds its results alone"):
        program(**data(31), checkpoint=through(tmp_path, keep=1))
