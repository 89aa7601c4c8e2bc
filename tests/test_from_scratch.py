"""The compiler of `docs/from_scratch.py`: results by plain loops, storage, errors with their points."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

PAGE = Path(__file__).parent.parent / "docs" / "from_scratch.py"


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("from_scratch", PAGE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["from_scratch"] = module
    spec.loader.exec_module(module)
    return module


scratch = _loaded()
t, T, steps = scratch.symbol("t"), scratch.symbol("T"), scratch.Dim("t", "T")
x = scratch.Tensor("x", (steps,), is_input=True)
data = np.random.default_rng(0).normal(size=20)


def tensor(name: str, *dims: Any) -> Any:
    return scratch.Tensor(name, dims or (steps,))


def averages() -> tuple[Any, list[float]]:
    y = tensor("y")
    y[0] = x[0]
    y[t + 1] = 0.9 * y[t] + 0.1 * x[t + 1]
    want = [data[0]]
    for step in range(1, 20):
        want.append(0.9 * want[-1] + 0.1 * data[step])
    return y, want


def test_a_recurrence_runs_forward() -> None:
    y, want = averages()
    np.testing.assert_allclose(scratch.compiled(y)(x=data, T=20)["y"], want)


def test_what_is_read_a_step_later_needs_two_slots() -> None:
    y, want = averages()
    double = tensor("double")
    double[t] = 2 * y[t]
    program = scratch.compiled(double)
    assert program.kept == {"double": None, "y": 2}
    np.testing.assert_allclose(program(x=data, T=20)["double"], 2 * np.array(want))


def test_a_recurrence_over_the_future_runs_backward() -> None:
    g = tensor("g")
    g[T - 1] = x[T - 1]
    g[t - 1] = x[t - 1] + 0.5 * g[t]
    want = [data[-1]]
    for step in range(18, -1, -1):
        want.insert(0, data[step] + 0.5 * want[0])
    np.testing.assert_allclose(scratch.compiled(g)(x=data, T=20)["g"], want)


def test_a_window_of_derived_values_keeps_the_window() -> None:
    k, s = tensor("k"), tensor("s")
    k[t] = x[t] * x[t]
    for start in range(3):
        s[start] = k[0 : start + 1].sum()
    s[t + 3] = k[t : t + 4].sum()
    program = scratch.compiled(s)
    assert program.kept["k"] == 4
    want = [np.sum(data[max(0, i - 3) : i + 1] ** 2) for i in range(20)]
    np.testing.assert_allclose(program(x=data, T=20)["s"], want)


def test_a_program_over_two_dims() -> None:
    i, rows = scratch.symbol("i"), scratch.Dim("i", "I")
    paths = tensor("paths", rows, steps)
    paths[0, t] = 1.0
    paths[i + 1, 0] = 1.0
    paths[i + 1, t + 1] = paths[i, t + 1] + paths[i + 1, t]
    assert scratch.compiled(paths)(I=5, T=5)["paths"][4, 4] == 70


def test_independent_steps_are_marked() -> None:
    y = tensor("y")
    y[t] = x[t] * x[t]
    assert "# parallel" in scratch.compiled(y).source
    assert "# parallel" not in scratch.compiled(averages()[0]).source


@pytest.mark.parametrize(
    ("meaning", "message"),
    [
        (lambda w: w[t - 1] + x[t], r"w.0 reads w where it has no value: {'T': 1, 't': 0, 't_': -1}"),
        (lambda w: x[t + 1], r"w.0 reads x where it has no value: {'T': 1, 't': 0, 't_': 1}"),
        (lambda w: w[t] + x[t], "w.0 needs itself at the same step"),
    ],
)
def test_mistakes_are_points(meaning: Callable[[Any], Any], message: str) -> None:
    w = tensor("w")
    w[t] = meaning(w)
    with pytest.raises(scratch.ProgramError, match=message):
        scratch.compiled(w)


def test_two_definitions_of_a_step_are_refused() -> None:
    w = tensor("w")
    w[0] = 1.0
    w[t] = x[t]
    with pytest.raises(scratch.ProgramError, match=r"w is defined twice at {'T': 1, 't': 0}"):
        scratch.compiled(w)


def test_the_page_is_short_and_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(PAGE.read_text().splitlines()) <= 500
    scratch.main()
    assert "average = np.zeros((2,))" in capsys.readouterr().out
