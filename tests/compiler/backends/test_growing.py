"""Runs whose buffers grow: right at every length, few compilations, streams, early ends, host functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.run.stepping import Stepper
from polyrhythm.compiler.backends.python.runs import Begin

WIDTH = 8

t, T = pr.dim("t")
P = pr.size("P", max=T)

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 21)


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers of four steps are large enough to grow."""
    monkeypatch.setattr("polyrhythm.compiler.loops.growth.LEAST", 4)
    monkeypatch.setattr("polyrhythm.compiler.loops.growth.worthwhile", lambda machine: 1)


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """One entry for every program that XLA compiles."""
    found: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def attended(x: pr.Tensor, seen: pr.Tensor) -> pr.Tensor:
    return pr.einsum("s,sd->d", pr.einsum("sd,d->s", seen, x).softmax(-1), seen)


def attention() -> dict[str, pr.Tensor]:
    """A state that attends to all before it, inputs over the same steps, and something to do at the end."""
    x = pr.recurrent((WIDTH,), ((t, T + 1),))
    x[0] = pr.input("first", (WIDTH,))
    noise = pr.input("noise", (WIDTH,), (t,))
    x[t + 1] = pr.tanh(attended(x, x[0 : t + 1]) + noise)
    return {"last": x[T], "all": x, "mean": x[0 : T + 1].mean(0)}


def prompted() -> dict[str, pr.Tensor]:
    """The first P steps are given."""
    x = pr.recurrent((WIDTH,), (t,))
    x[t < P] = pr.input("given", (WIDTH,), (t,))
    x[t >= P] = pr.tanh(attended(pr.ones((WIDTH,)), x[0:t]) * 2.0)
    return {"all": x}


def tabled() -> tuple[dict[str, pr.Tensor], dict[Any, pr.Tensor]]:
    """A prefix that is given, a table over all steps made before the loop, and an early end: as in generating text.

    Every step reads the table from the beginning, so the steps that are given and the others cannot have one each.
    """
    prompt = pr.input("prompt", (), (t,), "int32")
    table = pr.tanh(pr.input("noise", (WIDTH,), (t,)) @ pr.input("mixing", (WIDTH, WIDTH)))
    token = pr.recurrent((), (t,), "int32")
    x = pr.take(pr.input("words", (7, WIDTH)), token, 0)
    scores = attended(x, x[0 : t + 1] * table[0 : t + 1]) @ pr.input("w", (WIDTH, 7))
    token[t < P] = prompt
    token[t >= P] = scores[t - 1].argmax().cast("int32")
    return {"token": token}, {t: (token == 0) & (pr.value(t) >= 2)}


def given(outputs: Any, steps: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(steps)
    return {
        "first": rng.normal(size=WIDTH).astype("float32"),
        "noise": rng.normal(size=(steps, WIDTH)).astype("float32"),
    }


def close(have: Any, want: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), have, want)


def test_every_length_is_right_and_compilations_are_shared(compilations: list[str]) -> None:
    outputs = attention()
    program = pr.compile(outputs)
    assert program.backend.growth is not None
    rng = np.random.default_rng(0)
    compilations.clear()
    for steps in rng.permutation(LENGTHS).tolist():
        inputs = given(outputs, steps)
        close(program(**dict[str, Any](inputs)), pr.evaluate(outputs, inputs))
    assert len(compilations) == len(program.stats.compilations) == 6  # 1, 2, 4, 8, 16, 32


def test_no_steps() -> None:
    outputs = attention()
    inputs = given(outputs, 0)
    close(pr.compile(outputs)(**dict[str, Any](inputs)), pr.evaluate(outputs, inputs))


@pytest.mark.parametrize(("steps", "prompt"), [(1, 1), (9, 1), (9, 3), (21, 6), (21, 21)])
def test_a_given_prefix(steps: int, prompt: int) -> None:
    outputs = prompted()
    program = pr.compile(outputs)
    assert program.backend.growth is not None
    inputs = {"given": np.random.default_rng(0).normal(size=(steps, WIDTH)).astype("float32")}
    close(
        program(bounds={P: prompt}, **dict[str, Any](inputs)),
        pr.evaluate(outputs, inputs, bounds={P: prompt}),
    )


@pytest.mark.parametrize("limit", [1.5, 8.5, *(pytest.param(limit, marks=pytest.mark.slow) for limit in (5.0, 100.0))])
def test_an_early_end_at_any_capacity(limit: float) -> None:
    x = pr.recurrent((WIDTH,), (t,))
    x[0] = pr.ones((WIDTH,))
    x[t + 1] = attended(x, x[0 : t + 1]) + 1.0
    outputs = {"all": x, "mean": x[0:T].mean(0)}
    until = {t: x.max() > limit}
    program = pr.compile(outputs, until=until)
    assert program.backend.growth is not None
    close(program(bounds={T: 21}), pr.evaluate(outputs, {}, bounds={T: 21}, until=until))
    steps = list(program.stream(over=t, bounds={T: 21}))
    assert all(step["all"].shape == (WIDTH,) for step in steps)
    close(steps[-1]["all"], pr.evaluate(outputs, {}, bounds={T: 21}, until=until)["all"][-1])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tables_and_prefixes_and_early_ends(seed: int) -> None:
    outputs, until = tabled()
    program = pr.compile(outputs, until=until)
    growth = program.backend.growth
    assert growth is not None
    assert growth.companions
    rng = np.random.default_rng(seed)
    for steps, prompt in ((21, 1), (13, 9), (5, 2)):
        tokens = rng.integers(1 if seed % 2 else 0, 7, steps).astype("int32")
        tokens[: prompt - 1] = np.maximum(tokens[: prompt - 1], 1)  # a text that ends within the prompt is refused
        words = rng.normal(size=(7, WIDTH)).astype("float32")
        inputs = {"prompt": tokens, "words": words, "w": rng.normal(size=(WIDTH, 7)).astype("float32")}
        inputs["noise"] = rng.normal(size=(steps, WIDTH)).astype("float32")
        inputs["mixing"] = rng.normal(size=(WIDTH, WIDTH)).astype("float32")
        want = pr.evaluate(outputs, inputs, bounds={P: prompt}, until=until)["token"]
        np.testing.assert_array_equal(program(bounds={P: prompt}, **dict[str, Any](inputs))["token"], want)
        stream = program.stream(over=t, bounds={P: prompt}, **dict[str, Any](inputs))
        assert [int(step["token"]) for step in stream] == want.tolist()


def test_host_functions_in_a_growing_loop() -> None:
    x = pr.recurrent((WIDTH,), ((t, T + 1),))
    x[0] = pr.ones((WIDTH,))
    doubled = pr.host(lambda a: a * np.float32(0.5), [attended(x, x[0 : t + 1])], (WIDTH,), "float32", (t,))
    x[t + 1] = doubled + 1.0
    outputs = {"last": x[T], "all": x}
    program = pr.compile(outputs)
    assert program.backend.growth is not None
    for steps in (3, 9, 21):
        close(program(bounds={T: steps}), pr.evaluate(outputs, {}, bounds={T: steps}))


@pytest.mark.parametrize("on_host", [False, True])
def test_a_growing_loop_that_may_not_run(on_host: bool) -> None:
    """It belongs to a row that there may not be; the one before must be left alone."""
    i, rows = pr.dim("i")
    y = pr.recurrent((), (i, t))
    before = y[1, 0:t].sum(0)
    calls = []

    def twice(a: np.ndarray) -> np.ndarray:
        calls.append(a)
        return a * np.float32(2)

    y[pr.otherwise] = y[i, pr.max(0, t - 1) : t].sum(0) - 1.0
    y[1, t] = (pr.host(twice, [before], (), "float32", (t,)) if on_host else before * 2) + 1.0
    with pr.settings(without=("ranges", "accumulate")):
        program = pr.compile(y)  # a running sum would read one step
    assert program.backend.growth is not None
    for count in (1, 2, 3):
        for steps in (3, 8, 21):
            expected = np.tile(-1.0 - np.arange(steps, dtype="float32"), (count, 1))
            expected[1:2] = 3.0 ** np.arange(steps)
            calls.clear()
            np.testing.assert_allclose(program(bounds={rows: count, T: steps}), expected)
            assert len(calls) == (steps if on_host and count > 1 else 0)


@pytest.mark.parametrize("chunk", [3, *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in (1, 50))])
def test_streams_grow_too(chunk: int) -> None:
    outputs = {"all": attention()["all"]}
    program = pr.compile(outputs)
    inputs = given(outputs, 21)
    want = pr.evaluate(outputs, inputs)["all"]
    stream = program.stream(over=t, chunk=chunk, **dict[str, Any](inputs))
    np.testing.assert_allclose([step["all"] for step in stream], want, atol=1e-5)
    np.testing.assert_allclose(stream.result["all"], want, atol=1e-5)
    fed = program.stream(over=t, chunk=chunk, first=inputs["first"], noise=iter(inputs["noise"]), bounds={T: 21})
    np.testing.assert_allclose([step["all"] for step in fed], want, atol=1e-5)


def test_buffers_are_small_while_little_is_in_use() -> None:
    """The arrays of a run double as it goes on."""
    outputs = {"all": attention()["all"]}
    program = pr.compile(outputs)
    run, positions = Stepper(program.backend).start(given(outputs, 21), {"T": 21}, 0, lambda unit: 1)
    sizes = [max(array.shape[0] for array in run.state.values() if array.ndim == 2) for _ in positions]
    assert sizes == sorted(sizes)
    assert set(sizes) == {5, 9, 17, 33}


def test_a_run_goes_on_from_what_another_kept() -> None:
    made = attention()
    outputs = {"all": made["all"], "last": made["last"]}
    program = pr.compile(outputs)
    inputs = given(outputs, 21)
    want = pr.evaluate(outputs, inputs)
    stepper = Stepper(program.backend)
    for stop in (2, 9, 15, 21):
        run, positions = stepper.start(inputs, {"T": 21}, 0, lambda unit: 1)
        unit, after = next((unit, after) for unit, after in positions if after == stop)
        kept = {name: np.array(array) for name, array in run.kept().items()}
        again, rest = stepper.start(inputs, {"T": 21}, 0, lambda unit: 5, Begin((unit, after), kept, {}))
        assert list(rest)
        for have, name in zip(again.outputs, outputs, strict=True):
            np.testing.assert_allclose(np.asarray(have)[: len(want[name])], want[name], atol=1e-5)


def test_as_part_of_a_traced_function() -> None:
    outputs = attention()
    program, inputs = pr.compile(outputs), given(outputs, 9)
    close(jax.jit(lambda **arrays: program(**arrays))(**inputs), pr.evaluate(outputs, inputs))
