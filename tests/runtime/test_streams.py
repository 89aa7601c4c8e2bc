"""Streams hand out what whole runs return, step by step, no later than needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.run.stepping import Stepper
from polyrhythm.errors import InputShapeError, MissingBoundError, UnknownDimError, UnsupportedError
from polyrhythm.runtime.feeding import Prefetch
from polyrhythm.runtime.program import MANY_STEPS, Program
from tests.programs import PROGRAMS
from tests.programs.case import Case

CASES = list(PROGRAMS)
BACKENDS = ["numpy", "torch", pytest.param("jax")]

t, T = pr.dim("t")
x = pr.input("x", (), (t,))


def running_sum() -> pr.Tensor:
    y = pr.recurrent((), (t,))
    y[0] = x[0]
    y[t + 1] = y + x[t + 1]
    return y


def assembled(program: Program, dim: pr.Dim, inputs: dict[str, Any], **rest: Any) -> tuple[dict[str, Any], Any]:
    """The steps of a stream put together, and its result."""
    stream = program.stream(over=dim, **rest, **inputs)
    steps: dict[str, list[Any]] = {}
    for step in stream:
        for key, value in step.items():
            if value is not None:
                steps.setdefault(key, []).append(value)
    return steps, stream.result


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_streams_equal_whole_runs(case: Case) -> None:
    check_stream(case, "numpy")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_streams_of_other_backends(case: Case, backend: str) -> None:
    check_stream(case, backend)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_streams_that_are_fed_item_by_item(case: Case) -> None:
    check_stream(case, "numpy", fed=True)


def check_stream(case: Case, backend: str, fed: bool = False) -> None:
    built = case.built
    dims = dict.fromkeys(dim for output in built.outputs.values() for dim in output.dims)
    program = pr.compile(built.outputs, until=built.until, effects=built.effects, backend=backend)
    for bounds in (case.bounds[0], *case.bounds[-2:]) if backend != "jax" else case.bounds[-2:]:
        inputs = case.inputs(bounds)
        for dim in dims:
            if built.log is not None:
                built.log.clear()
            given = inputs
            if fed:
                nodes = program.compiled.graph.inputs
                symbol = program._caller.dim(dim)
                along = [
                    n for n, x in inputs.items() if isinstance(x, np.ndarray) and nodes[n].symbols[:1] == (symbol,)
                ]
                given = {name: iter(array) if name in along else array for name, array in inputs.items()}
            steps, result = assembled(program, dim, given, bounds=bounds if fed else case.call_bounds(bounds))
            case.check(result, inputs, bounds)
            for key, output in built.outputs.items():
                axis = output.symbols.index(dim.symbol) if dim.symbol in output.symbols else None
                whole = result[key]
                if axis is None:
                    continue
                rows = steps.get(key, [])
                if isinstance(whole, pr.Ragged) and whole.lengths.size and len({np.shape(row) for row in rows}) > 1:
                    # Along the rows each has its own length.
                    assert [len(row) for row in rows] == whole.lengths.tolist()
                    rows = [np.concatenate([row, np.zeros_like(whole.values[0, len(row) :])]) for row in rows]
                whole = whole.values if isinstance(whole, pr.Ragged) else whole
                if whole.shape[axis]:
                    joined = np.stack(rows, axis=axis)
                    np.testing.assert_array_equal(joined, whole, f"{case.name} {key} along {dim}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_comes_before_later_inputs_are_taken(backend: str) -> None:
    taken: list[float] = []

    def items() -> Iterator[Any]:
        for number in range(6):
            taken.append(float(number))
            yield np.float32(number)

    program = pr.compile({"y": running_sum()}, backend=backend)
    stream = program.stream(over=t, bounds={T: 6}, x=items())
    assert taken == []
    for number, step in enumerate(stream):
        assert float(step["y"]) == sum(range(number + 1))
        assert len(taken) == number + 1
    np.testing.assert_array_equal(stream.result["y"], np.cumsum(np.arange(6.0)))


def read_out(h: pr.Tensor) -> pr.Tensor:
    return pr.exp(h) * 3.0


def with_an_older_item(h: pr.Tensor) -> pr.Tensor:
    return h + x[pr.max(0, t - 4)]


def by_the_step(h: pr.Tensor) -> pr.Tensor:
    return pr.where(t % 2 == 0, h * 2.0, h)


def of_all_so_far(h: pr.Tensor) -> pr.Tensor:
    return h[0 : t + 1].sum(0) + pr.window(h, t, 3).max(0)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("made", [read_out, with_an_older_item, by_the_step, of_all_so_far])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_made_of_a_state_comes_before_the_item_of_the_next(backend: str, made: Any, strided: bool) -> None:
    """The state of the next step is computed after what this step hands out, for it takes an item more."""
    taken = 0

    def items() -> Iterator[Any]:
        nonlocal taken
        for number in range(7):
            taken += 1
            yield np.float32(number)

    h = pr.recurrent((), (t,))
    h[0] = pr.tanh(x[0])
    h[t + 1] = pr.tanh(0.5 * h + (pr.where((t + 1) % 3 == 0, x[t + 1], 0.0) if strided else x[t + 1]))
    out = made(h)
    wanted = pr.evaluate(out, {"x": np.arange(7, dtype="float32")})
    for number, step in enumerate(pr.compile({"y": out}, backend=backend).stream(over=t, bounds={T: 7}, x=items())):
        np.testing.assert_allclose(step["y"], wanted[number], rtol=1e-5)
        assert taken <= number + 1


def test_an_input_may_depend_on_earlier_steps() -> None:
    said: list[float] = [1.0]
    program = pr.compile({"y": running_sum()}, backend="numpy")
    stream = program.stream(over=t, bounds={T: 4}, x=(np.float32(said[-1]) for _ in range(4)))
    for step in stream:
        said.append(float(step["y"]))
    assert said == [1.0, 1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ends", [False, True])
def test_loops_for_other_bounds_delay_nothing(ends: bool, backend: str) -> None:
    """The loops are there twice, for few steps and for more; those that do not run have nothing to come."""
    P = pr.size("P", min=1, max=T)
    factor = pr.input("factor", (), (t,))
    y, state, total = (pr.recurrent((), (t,)) for _ in range(3))
    y[t < P] = x
    y[t >= P] = y[t - 1] * factor + state[t - 1] + total[t - 1]
    state[t < 2] = 0.5
    state[t >= 2] = state[t - 2] + y
    total[t < P] = 0.0
    total[t >= P] = total[t - 1] + state[t - 1]
    until = {t: y > 12.0} if ends else None
    program = pr.compile({"y": y, "total": total}, until=until, backend=backend)
    assert "if P >= 2" in str(program.schedule)
    taken = 0

    def items() -> Iterator[Any]:
        nonlocal taken
        for number in range(8):
            taken += 1
            yield np.float32(number % 3)

    given = np.arange(8, dtype="float32")
    factors = np.arange(8, dtype="float32") % 3
    wanted = pr.evaluate({"y": y, "total": total}, {"x": given, "factor": factors}, bounds={P: 3, T: 8}, until=until)
    assert len(wanted["y"]) == (6 if ends else 8)
    number = -1
    for number, step in enumerate(program.stream(over=t, bounds={P: 3, T: 8}, x=given, factor=items())):
        assert taken <= number + 1
        assert float(step["y"]) == wanted["y"][number]
        assert float(step["total"]) == wanted["total"][number]
    assert number + 1 == len(wanted["y"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_future_delays_a_step_as_much_as_it_must(backend: str) -> None:
    taken = 0

    def items() -> Iterator[Any]:
        nonlocal taken
        for number in range(8):
            taken += 1
            yield np.float32(number)

    ahead = x + pr.where(t + 2 < T, x[pr.min(t + 2, T - 1)], 0.0)
    stream = pr.compile({"y": ahead}, backend=backend).stream(over=t, bounds={T: 8}, x=items())
    for number, step in enumerate(stream):
        assert float(step["y"]) == number + (number + 2 if number + 2 < 8 else 0)
        assert taken <= number + 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stream_stops_where_the_program_does(backend: str) -> None:
    y = running_sum()
    outputs = {"y": y, "last": y[T - 1]}
    program = pr.compile(outputs, until={t: y > 4}, backend=backend)
    steps, result = assembled(program, t, {"x": np.ones(20, np.float32)})
    assert [float(v) for v in steps["y"]] == [1, 2, 3, 4, 5]
    assert float(result["last"]) == 5
    taken = iter(np.ones(20, np.float32))
    steps, _ = assembled(program, t, {"x": taken}, bounds={T: 20})
    assert len(steps["y"]) == 5
    assert len(list(taken)) >= 14, "the iteration that stops has already read one step ahead"


def test_chunks_on_jax() -> None:
    program = pr.compile({"y": running_sum()}, backend="jax")
    for chunk in (1, 3, 100):
        steps, result = assembled(program, t, {"x": np.ones(10, np.float32)}, chunk=chunk)
        np.testing.assert_array_equal(np.stack(steps["y"]), np.arange(1.0, 11.0))
        np.testing.assert_array_equal(result["y"], np.arange(1.0, 11.0))
    assert len(program.stats.compilations) <= 3, "chunks of any size share what is compiled"


def test_the_value_of_the_generator_is_the_result() -> None:
    y = running_sum()
    stream = pr.compile((y, y[T - 1]), backend="numpy").stream(over=t, x=[1.0, 2.0])
    first, nothing = next(stream)
    assert (float(first), nothing) == (1.0, None)
    next(stream)
    with pytest.raises(StopIteration) as ended:
        next(stream)
    assert float(ended.value.value[1]) == 3.0
    assert float(stream.result[1]) == 3.0


def test_a_table_with_one_more_point_has_one_more_step() -> None:
    v = pr.recurrent((), ((t, T + 1),))
    v[0] = 0.0
    v[t + 1] = v + x
    steps, _ = assembled(pr.compile({"v": v, "x": x * 1}, backend="numpy"), t, {"x": [1.0, 2.0]})
    assert [float(value) for value in steps["v"]] == [0, 1, 3]
    assert len(steps["x"]) == 2


def test_no_steps() -> None:
    assert list(pr.compile(x * 2, backend="numpy").stream(over=t, x=np.zeros(0, np.float32))) == []


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_a_step_is_computed_once_its_item_is_there(backend: str) -> None:
    given: list[float] = []

    def items() -> Iterator[np.float32]:
        for number in (1.0, 2.0, 3.0):
            given.append(number)
            yield np.float32(number)

    found = [float(y) for y in pr.compile(x * 2, backend=backend).stream(over=t, bounds={T: 3}, x=items())]
    assert found == [2.0, 4.0, 6.0]
    assert given == [1.0, 2.0, 3.0]


def test_the_iterator_ends_early() -> None:
    stream = pr.compile(x * 2, backend="numpy").stream(over=t, bounds={T: 3}, x=iter([np.float32(1)]))
    assert float(next(stream)) == 2.0
    with pytest.raises(InputShapeError, match="ended after 1 items"):
        list(stream)


def test_an_item_of_another_shape() -> None:
    with pytest.raises(InputShapeError, match="item 0"):
        next(pr.compile(x * 2, backend="numpy").stream(over=t, bounds={T: 3}, x=iter([np.zeros(2)])))


def test_an_iterator_does_not_tell_its_length() -> None:
    with pytest.raises(MissingBoundError, match="the bound T"):
        pr.compile(x * 2, backend="numpy").stream(over=t, x=iter([np.float32(1)]))


def test_a_dim_that_no_output_has() -> None:
    program = pr.compile(x[0:T].sum(0), backend="numpy")
    with pytest.raises(UnknownDimError, match="no output varies"):
        program.stream(over=t, x=[1.0])


def test_what_an_iterator_raises_surfaces_and_the_program_can_be_used_again() -> None:
    def items() -> Iterator[Any]:
        yield np.float32(1)
        raise ZeroDivisionError("from the iterator")

    program = pr.compile(x * 2, backend="numpy")
    for prefetch in (0, 2):
        with pytest.raises(ZeroDivisionError, match="from the iterator"):
            list(program.stream(over=t, bounds={T: 3}, prefetch=prefetch, x=items()))
    with pytest.raises(ZeroDivisionError, match="from the iterator"):
        program(x=items())
    assert program(x=iter([np.float32(1), np.float32(2)])).tolist() == [2.0, 4.0]


def test_prefetch_takes_a_bounded_number_of_items_and_shuts_down() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    with Prefetch(items(), 3) as ahead:
        assert [next(ahead) for _ in range(4)] == [1, 2, 3, 4]
        thread = ahead._thread
    assert not thread.is_alive()
    assert taken <= 4 + 3 + 2


def test_closing_a_stream_ends_its_prefetching() -> None:
    program = pr.compile(x * 2, backend="numpy")
    with program.stream(over=t, bounds={T: 100}, prefetch=2, x=(np.float32(n) for n in range(100))) as stream:
        assert float(next(stream)) == 0.0
    assert list(stream) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_of_a_batch_come_one_by_one_although_the_batch_is_the_first_dim(backend: str) -> None:
    b, _ = pr.dim("b")
    u = pr.input("u", (), (b, t))
    h = pr.recurrent((), (b, t))
    h[b, 0] = u[b, 0]
    h[b, t + 1] = 0.5 * h + u[b, t + 1]
    program = pr.compile({"h": h}, backend=backend)
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    steps, _ = assembled(program, t, {"u": values})
    np.testing.assert_array_equal(np.stack(steps["h"], axis=1), program(u=values)["h"])
    seen: list[int] = []

    def look(value: np.ndarray, step: np.ndarray) -> np.ndarray:
        seen.append(int(step))
        return value

    watched = pr.host(look, [h, pr.value(t)])
    for number, _ in enumerate(pr.compile({"h": watched}, backend=backend).stream(over=t, u=values)):
        assert max(seen) == number


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_what_comes_before_all_steps_is_done_once(backend: str) -> None:
    calls: list[float] = []

    def start() -> np.float32:
        calls.append(1.0)
        return np.float32(len(calls))

    y = pr.recurrent((), ((t, T + 1),))
    y[0] = pr.host(start, [], (), effect="count")
    y[t + 1] = y + x
    program = pr.compile({"y": y}, backend=backend)
    steps, _ = assembled(program, t, {"x": np.ones(3, "float32")})
    assert np.array(steps["y"]).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert calls == [1.0]


def prompted() -> tuple[pr.Dim, Any, pr.Tensor]:
    """Tokens of which the first P are given; each other one follows from all before it."""
    t, T = pr.dim("t")
    P = pr.size("P", max=T)
    token = pr.recurrent((), (t,), "int32")
    x = pr.take(pr.input("words", (5, 4)), token, 0)
    seen = pr.einsum("sd,d->s", x[0 : t + 1], x).softmax(-1) @ x[0 : t + 1]
    token[t < P] = pr.input("prompt", (), (t,), "int32")
    token[t >= P] = (seen @ pr.input("w", (4, 5)))[t - 1].argmax().cast("int32")
    return t, P, token


def test_what_is_given_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream reads a prompt as a call does, in a number of calls of XLA that does not grow with it."""
    t, P, token = prompted()
    random = np.random.default_rng(0)
    steps, most = 40, 30
    given: Any = {
        "words": random.normal(size=(5, 4)).astype("float32"),
        "w": random.normal(size=(4, 5)).astype("float32"),
        "prompt": random.integers(0, 5, steps).astype("int32"),
    }
    program = pr.compile(token)
    calls: list[range] = []
    advance = Stepper._advance

    def counted(*given: Any) -> bool:
        calls.append(given[3])
        return advance(*given)

    monkeypatch.setattr(Stepper, "_advance", counted)
    count = {}
    for length in (most, MANY_STEPS, 1):
        assert not program._streamers  # no other order of the steps was needed
        expected = pr.evaluate(token, given, bounds={P: length})
        calls.clear()
        assert [int(step) for step in program.stream(over=t, bounds={P: length}, **given)] == expected.tolist()
        count[length] = len(calls)
    assert count[most] <= steps - most + 8 < count[1]
    assert program._streamers  # a short prompt is read step by step
    fed = dict(given, prompt=iter(given["prompt"]))
    stream = program.stream(over=t, bounds={P: most, "T": steps}, **fed)
    assert [int(step) for step in stream] == pr.evaluate(token, given, bounds={P: most}).tolist()


def test_what_a_call_does_after_all_steps_comes_step_by_step() -> None:
    """A call multiplies all steps of y at once, after the last of them; a stream must not wait for that."""
    v = pr.input("v", (8,), (t,))
    y = pr.recurrent((8,), (t,))
    y[0] = v[0]
    y[t + 1] = pr.tanh(y) + v[t + 1]
    program = pr.compile({"y": y, "z": pr.tanh(y @ pr.input("w", (8, 8)))})
    random = np.random.default_rng(0)
    given: Any = {"v": random.normal(size=(6, 8)).astype("float32"), "w": random.normal(size=(8, 8)).astype("float32")}
    expected = program(**given)
    for number, step in enumerate(program.stream(over=t, **given)):
        for name, value in step.items():
            np.testing.assert_allclose(value, expected[name][number], rtol=1e-5)
    assert program._streamers


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 300])
@pytest.mark.parametrize("over", ["s", "t"])
def test_steps_as_numpy_arrays_are_those_of_the_result(chunk: int, over: str) -> None:
    """Two outputs with the dim at different places, one of rows too large to be fetched many at a time."""
    t, s = pr.dim("t")[0], pr.dim("s")[0]
    dim, other = (t, s) if over == "t" else (s, t)
    x = pr.input("x", (3,), (t, s))
    y = pr.recurrent((3,), (t, s))
    y[{dim: 0}] = x[{dim: 0}]
    y[{dim: dim + 1}] = 0.5 * y + x[{dim: dim + 1}]
    wide = pr.broadcast_to(y[{other: 0}].sum(0), (3000,)) + pr.value(dim)
    scalar, none = y[{other: 1}].sum(0), pr.broadcast_to(y[{other: 0}].sum(0), (0,))
    given = np.random.default_rng(chunk).normal(size=(130, 3, 3) if over == "t" else (3, 130, 3)).astype("float32")
    program = pr.compile({"y": y, "wide": wide, "scalar": scalar, "none": none})
    stream = program.stream(over=dim, chunk=chunk, library="numpy", x=jnp.asarray(given))
    steps = list(stream)
    assert all(type(value) is np.ndarray for step in steps for value in step.values())
    whole = program(x=given)
    axis = 0 if over == "t" else 1
    np.testing.assert_array_equal(np.stack([step["y"] for step in steps], axis), stream.result["y"])
    for name in ("wide", "scalar", "none"):
        np.testing.assert_array_equal(np.stack([step[name] for step in steps]), stream.result[name])
    for name, value in whole.items():
        np.testing.assert_allclose(stream.result[name], value, rtol=1e-5, atol=1e-5)


def test_steps_that_were_handed_out_do_not_change() -> None:
    """What was fetched belongs to the array it was fetched from, which later steps replace."""
    program = pr.compile(running_sum())
    stream = program.stream(over=t, chunk=5, library="numpy", x=np.ones(40, "float32"))
    kept = [next(stream) for _ in range(7)]
    rest = list(stream)
    assert [float(step) for step in kept + rest] == list(range(1, 41))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("library", "kind"), [("numpy", np.ndarray), ("jax", jax.Array), ("torch", torch.Tensor)])
def test_the_library_of_the_steps(backend: str, library: Any, kind: type) -> None:
    stream = pr.compile(running_sum(), backend=backend).stream(over=t, library=library, x=[1.0, 2.0, 3.0])
    steps = list(stream)
    assert all(isinstance(step, kind) for step in (*steps, stream.result))
    assert [float(step) for step in steps] == [1.0, 3.0, 6.0]


def test_an_unknown_library_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="library='cupy'"):
        pr.compile(running_sum(), backend="numpy").stream(over=t, library="cupy", x=[1.0])  # type: ignore[arg-type]
