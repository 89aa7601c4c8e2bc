"""Inputs larger than memory: a run holds a window of their steps, and computes what it computes of whole arrays."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.runtime import feeding, piecewise

Made = tuple[dict[str, pr.Tensor], pr.Dim, pr.Bound]
STEPS = 23


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a window had room for five steps of the inputs here."""
    monkeypatch.setattr(feeding, "WINDOW", 5 * 6 * 4 * 4)
    monkeypatch.setattr(piecewise, "WINDOW", 5 * 6 * 4 * 4)


def training() -> Made:
    """A step of gradient descent on each batch."""
    i, I = pr.dim("i")
    x = pr.input("x", (6, 4), (i,))
    w = pr.recurrent((4,), (i,))
    loss = ((x @ w - 1.0) ** 2).mean()
    w[0] = pr.zeros((4,))
    w[i + 1] = w - 0.1 * pr.grad(loss, w)
    return {"loss": loss, "last": w[I - 1]}, i, I


def before() -> Made:
    i, _ = pr.dim("i")
    x = pr.input("x", (6, 4), (i,))
    y = pr.recurrent((6, 4), (i,))
    y[0] = x[0]
    y[i + 1] = 0.5 * y + pr.where(i >= 2, x[i - 2], 1.0) * x[i + 1]
    return {"y": y.sum()}, i, _


def ahead() -> Made:
    """Each step reads a few that follow."""
    i, I = pr.dim("i", min=3)
    x = pr.input("x", (6, 4), (i,))
    y = pr.recurrent((6, 4), ((i, I - 2),))
    y[0] = x[0]
    y[i + 1] = pr.tanh(y) + x[i : i + 3].sum(0)
    return {"last": y[I - 3]}, i, I


def twice() -> Made:
    """The same steps are read by two loops, the second backwards."""
    i, I = pr.dim("i")
    x = pr.input("x", (6, 4), (i,))
    y, z = pr.recurrent((6, 4), (i,)), pr.recurrent((6, 4), (i,))
    y[0] = x[0]
    y[i + 1] = 0.5 * y + x[i + 1]
    z[I - 1] = y[I - 1] * x[I - 1]
    z[pr.otherwise] = 0.5 * z[i + 1] + x
    return {"z": z[0]}, i, I


def so_far() -> Made:
    """All steps so far are read: there is nothing to drop."""
    i, I = pr.dim("i")
    x = pr.input("x", (6, 4), (i,))
    y = pr.recurrent((6, 4), (i,))
    y[0] = x[0]
    y[i + 1] = pr.tanh(y) + pr.softmax(x[0 : i + 1], 0).max(0)
    return {"y": y[I - 1]}, i, I


def in_parallel() -> Made:
    i, _ = pr.dim("i")
    x = pr.input("x", (6, 4), (i,))
    return {"y": (x * x).sum() + pr.value(i)}, i, _


MADE: dict[str, Callable[[], Made]] = {
    made.__name__: made for made in (training, before, ahead, twice, so_far, in_parallel)
}
HELD = {"training", "before", "ahead", "twice", "in_parallel"}


def _data() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(STEPS, 6, 4)).astype("float32")


def _file(folder: Path, data: np.ndarray) -> np.memmap:
    written = np.memmap(folder / "x", data.dtype, "w+", shape=data.shape)
    written[:] = data
    written.flush()
    return np.memmap(folder / "x", data.dtype, "r", shape=data.shape)


def _same(found: Any, expected: Any) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("name", MADE)
def test_items_and_files_give_what_arrays_give(name: str, tmp_path: Path) -> None:
    outputs, i, bound = MADE[name]()
    data = _data()
    expected = pr.evaluate(outputs, {"x": data})
    program = pr.compile(outputs)
    _same(program(x=iter(data), bounds={bound: STEPS}), expected)
    largest = [size for key, size in _held(program)]
    assert bool(largest) == (name in HELD)
    assert all(size <= 8 for size in largest), "a window has more steps than there is room for"
    _same(program(x=_file(tmp_path, data)), expected)
    if name in ("training", "before", "in_parallel"):
        steps = list(program.stream(over=i, x=iter(data), bounds={bound: STEPS}))
        first = next(iter(expected))
        np.testing.assert_allclose([step[first] for step in steps], expected[first], rtol=2e-5, atol=2e-5)


def _held(program: pr.Program) -> Iterator[tuple[str, int]]:
    """The capacities of the windows that were compiled for."""
    for caller in program._windowed.values():
        for key in caller.backend.executor.programs:
            sizes = dict(zip(caller.backend.sizing, key[3:], strict=False))
            yield from ((s.name, n) for s, n in sizes.items() if s.name == "x held")


def test_an_item_is_taken_just_before_it_is_read() -> None:
    outputs, i, bound = training()
    taken = []

    def items() -> Iterator[np.ndarray]:
        for number, item in enumerate(_data()):
            taken.append(number)
            yield item

    seen = []
    for _ in pr.compile(outputs).stream(over=i, x=items(), bounds={bound: STEPS}):
        seen.append(len(taken))
    assert seen[:3] == [1, 2, 3]
    assert seen[-1] == STEPS


def test_too_few_items_and_other_shapes() -> None:
    outputs, _, bound = training()
    program = pr.compile(outputs)
    with pytest.raises(pr.errors.InputShapeError, match="ended after 9 items"):
        program(x=iter(_data()[:9]), bounds={bound: STEPS})
    with pytest.raises(pr.errors.InputShapeError, match="has shape"):
        program(x=iter(_data()[:, :3]), bounds={bound: STEPS})


def test_without_a_bound_the_items_are_counted() -> None:
    outputs, _, _ = training()
    data = _data()
    program = pr.compile(outputs)
    _same(program(x=iter(data)), pr.evaluate(outputs, {"x": data}))
    assert not program._windowed


def test_no_items() -> None:
    """The lengths of an empty input come from the bounds."""
    (i, I), (b, B) = pr.dim("i"), pr.dim("b")
    program = pr.compile(pr.input("x", (2,), (i, b)) * 2)
    assert program(x=iter(()), bounds={I: 0, B: 3}).shape == (0, 3, 2)


def test_a_file_and_checkpoints(tmp_path: Path) -> None:
    outputs, i, _ = training()
    data = _data()
    given, expected = _file(tmp_path, data), pr.evaluate(outputs, {"x": data})
    checkpoints = pr.Checkpoints(tmp_path / "checkpoints", over=i, every=4, keep=100)
    _same(pr.compile(outputs)(x=given, checkpoint=checkpoints), expected)
    for number in checkpoints.iterations[2:]:
        (tmp_path / "checkpoints" / f"iteration-{number:09}.safetensors").unlink()
    _same(pr.compile(outputs)(x=given, checkpoint=checkpoints), expected)


def test_a_budget_holds_for_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole array is refused, the same from a file is not."""
    i, I = pr.dim("i")
    x = pr.input("x", (256, 256), (i,))
    w = pr.recurrent((256,), (i,))
    w[0] = pr.zeros((256,))
    w[i + 1] = 0.9 * w + pr.tanh(x @ w).mean(0)
    program = pr.compile(w[I - 1], memory_budget="4MB")
    data = np.random.default_rng(0).normal(size=(64, 256, 256)).astype("float32")
    with pytest.raises(pr.errors.MemoryBudgetError):
        program(x=data)
    np.testing.assert_allclose(program(x=_file(tmp_path, data)), pr.compile(w[I - 1])(x=data), rtol=1e-5)


LARGE = """
import sys, threading, time
import numpy as np, polyrhythm as pr

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) // 1024

i, I = pr.dim("i")
x = pr.input("x", (128, 1024), (i,))
w = pr.recurrent((1024,), (i,))
loss = ((x @ w - 1.0) ** 2).mean()
w[0] = pr.zeros((1024,))
w[i + 1] = w - 0.001 * pr.grad(loss, w)
program = pr.compile({"loss": loss, "last": w[I - 1]})

def items(count):
    for number in range(count):
        yield np.full((128, 1024), 1e-3 * (number % 7), "float32")

def given(count):
    return items(count) if sys.argv[1] == "items" else np.memmap(sys.argv[2], np.float32, "r", shape=(count, 128, 1024))

program(x=given(64), bounds={I: 64})  # compiles
most, before, going = [0], anonymous(), [True]

def watch():
    while going[0]:
        most[0] = max(most[0], anonymous())
        time.sleep(0.005)

thread = threading.Thread(target=watch)
thread.start()
program(x=given(1024), bounds={I: 1024})
going[0] = False
thread.join()
print(most[0] - before)
"""


@pytest.mark.parametrize("kind", ["items", "file"])
def test_what_is_resident_does_not_grow_with_the_data(kind: str, tmp_path: Path) -> None:
    """512 MB of data; windows of 16 MB, of which XLA and the host may have one each, and a last one."""
    path = tmp_path / "data"
    with path.open("wb") as file:
        file.truncate(1024 * 128 * 1024 * 4)  # zeros that take no room on the disk
    command = [sys.executable, "-c", LARGE, kind, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) < 160, f"{done.stdout} MB"
