"""Calls like one before skip what a call decides; what they return is what a call in full returns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime import calling
from polyrhythm.runtime.repeated import Repeated


@pytest.fixture(autouse=True)
def all_calls_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else the machine does."""
    monkeypatch.setattr(calling, "SHORT", 60.0)


def sums() -> tuple[pr.Program, pr.Tensor]:
    t, T = pr.dim("t")
    x = pr.input("x", (2,), (t,))
    s = pr.recurrent((2,), (t,))
    s[0] = x[0]
    s[t + 1] = s + x[t + 1]
    return pr.compile({"sums": s, "all": x[0:T].sum(0)}), s


def kept(program: pr.Program) -> Repeated:
    assert program._repeated is not None
    return program._repeated


def counted(program: pr.Program, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with every call that is made in full."""
    made: list[int] = []
    whole = type(program._caller).call

    def call(*arguments: object) -> object:
        made.append(1)
        return whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(type(program._caller), "call", call)
    return made


@pytest.mark.parametrize("steps", [1, 3, 4, 5, 8])
@pytest.mark.parametrize("library", [np, jnp])
def test_results_are_those_of_a_call_in_full(steps: int, library: object, monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = sums()
    made = counted(program, monkeypatch)
    for seed in range(4):
        x = np.random.default_rng(seed).normal(size=(steps, 2)).astype("float32")
        found = program(x=library.asarray(x))  # type: ignore[attr-defined]
        np.testing.assert_allclose(found["sums"], np.cumsum(x, 0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["all"], x.sum(0), rtol=1e-5, atol=1e-6)
        assert isinstance(found["sums"], np.ndarray if library is np else jax.Array)
    assert program.stats.calls == 4
    assert len(made) < 4
    assert program.stats.bounds == {"T": steps}


def test_other_shapes_are_other_calls() -> None:
    program, _ = sums()
    for steps in (4, 4, 4, 6, 6, 6, 4, 7):
        x = np.ones((steps, 2), "float32")
        assert np.array_equal(program(x=x)["all"], [steps, steps])


def test_wrong_arrays_are_refused_afterwards() -> None:
    program, _ = sums()
    for _ in range(3):
        program(x=np.ones((4, 2), "float32"))
    with pytest.raises(PolyrhythmError):
        program(x=np.ones((4, 3), "float32"))
    with pytest.raises(PolyrhythmError):
        program(x=np.ones((4, 2), "float32"), y=np.ones(3, "float32"))
    assert np.array_equal(program(x=np.ones((4, 2), "float64"))["all"], [4, 4])
    assert np.array_equal(program(x=[[1.0, 2.0]])["all"], [1, 2])


def test_seeds_and_parameters_are_those_of_the_call() -> None:
    t, T = pr.dim("t")
    w = pr.parameter("w", (3,), init=[0.0, 1.0, 2.0])
    y = pr.uniform((3,), dims=(t,)) + w
    program = pr.compile(y[0:T].sum(0))
    first = [np.asarray(program(bounds={T: 5}, seed=seed)) for seed in (1, 2)]
    for _ in range(3):
        again = [np.asarray(program(bounds={T: 5}, seed=seed)) for seed in (1, 2)]
        assert np.array_equal(first, again)
    assert not np.array_equal(first[0], first[1])
    assert kept(program).calls
    program.params["w"] = program.params["w"] + 1
    for _ in range(3):
        np.testing.assert_allclose(program(bounds={T: 5}, seed=1), first[0] + 5, rtol=1e-5)


def test_inside_of_a_traced_function() -> None:
    program, _ = sums()
    x = jnp.ones((4, 2))
    for _ in range(3):
        program(x=x)
    assert np.array_equal(jax.jit(lambda x: program(x=x)["all"])(x), [4, 4])


def test_lengths_found_while_running() -> None:
    t, T = pr.dim("t")
    start = pr.input("start", ())
    h = pr.recurrent((), (t,))
    h[0] = start
    h[t + 1] = h * 2
    program = pr.compile({"h": h, "steps": pr.value(T)}, until={t: h > 10})
    for first in (1.0, 1.0, 1.0, 20.0, 3.0, 1.0):
        expected = [first]
        while expected[-1] <= 10:
            expected.append(2 * expected[-1])
        found = program(start=np.float32(first) + np.zeros((), "float32"), bounds={T: 16})
        assert np.array_equal(found["h"], expected)
        assert found["steps"] == len(expected)


def test_changed_inputs_change_results() -> None:
    program, _ = sums()
    x = np.ones((4, 2), "float32")
    for n in range(5):
        x[:] = n
        assert np.array_equal(program(x=x)["all"], [4 * n, 4 * n])


@pytest.mark.parametrize("options", [{"check_nan": True}, {"memory_budget": 10_000}, {"schedule": "measure"}])
def test_calls_that_need_more_are_made_in_full(options: dict[str, object]) -> None:
    options = dict(options)
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    with pr.settings(check_nan=bool(options.pop("check_nan", False))):
        program = pr.compile(x[0:T].sum(0), **options)  # type: ignore[arg-type]
    assert program._repeated is None
    for _ in range(3):
        assert program(x=np.ones(4, "float32")) == 4
