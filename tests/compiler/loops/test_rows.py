"""Rows of different lengths run in chunks of similar length, and what counts is as with all of them at the longest."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import optim
from polyrhythm.compiler.backends.jax.trace import rows as tiles
from polyrhythm.compiler.legality import IllegalProgramError, check_rows
from polyrhythm.compiler.loops.ir import Block, For, Load, LoopProgram, Rows, blocks_of, walk
from polyrhythm.compiler.pipeline import compile_tensors
from polyrhythm.compiler.ragged.independence import Independence

WIDTH = 3
LENGTHS = ([9, 1, 4, 2, 9, 3, 5, 1], [9] * 8, [0, 12, 0, 1, 0, 0, 2, 0], [1], [12, 2, 7, 1, 3])
"""Rows of all and of few lengths, one row, fewer rows than there is room for; of two capacities, to compile twice."""


@pytest.fixture(autouse=True)
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Chunks of two rows and of any length; what ran in chunks."""
    found: list[str] = []

    def noting(name: str) -> None:
        plain: Callable[..., Any] = getattr(tiles, name)

        def noted(*arguments: Any) -> Any:
            found.append(name)
            return plain(*arguments)

        monkeypatch.setattr(tiles, name, noted)

    for name, value in {"LEAST": 1, "LEAST_SUMMED": 1, "POSITIONS": 1, "SEQUENTIAL_ROWS": 2, "SHARE": 1e9}.items():
        monkeypatch.setattr(tiles, name, value)
    noting("_run_some")
    noting("_shortened")
    return found


class Batch:
    """The dims and inputs of a batch of rows."""

    def __init__(self, least: int = 0) -> None:
        self.b, self.B = pr.dim("b")
        self.lengths = pr.input("lengths", (), (self.b,), "int32")
        self.s, self.S = pr.dim("s", extent=self.lengths, min=least)
        self.x = pr.input("x", (WIDTH,), (self.b, self.s))
        self.w = pr.input("w", (WIDTH, WIDTH))


def rnn(of: Batch) -> pr.Tensor:
    h = pr.recurrent((WIDTH,), (of.b, of.s))
    h[of.b, 0] = pr.tanh(of.x[of.b, 0])
    h[of.b, of.s + 1] = pr.tanh(h @ of.w + of.x[of.b, of.s + 1])
    return h


def backwards(of: Batch) -> pr.Tensor:
    h = pr.recurrent((WIDTH,), (of.b, of.s))
    h[of.b, of.S - 1] = pr.tanh(of.x[of.b, of.S - 1])
    h[of.b, of.s - 1] = pr.tanh(h @ of.w - of.x[of.b, of.s - 1])
    return h


def two_layers(of: Batch) -> pr.Tensor:
    below, h = rnn(of), pr.recurrent((WIDTH,), (of.b, of.s))
    h[of.b, 0] = below[of.b, 0]
    h[of.b, of.s + 1] = pr.tanh(h @ of.w + below[of.b, of.s + 1])
    return h


def both_ways(of: Batch) -> pr.Tensor:
    return rnn(of) * backwards(of)


def mlp(of: Batch) -> pr.Tensor:
    return pr.tanh(pr.tanh(of.x @ of.w) @ of.w)


def attention(of: Batch) -> pr.Tensor:
    keys = of.x[of.b, 0 : of.S]
    return pr.softmax(keys @ (of.x @ of.w), 0) @ keys


def causal(of: Batch) -> pr.Tensor:
    keys = of.x[of.b, 0 : of.s + 1]
    return pr.softmax(keys @ (of.x @ of.w), 0) @ keys


def running(of: Batch) -> pr.Tensor:
    return pr.exp(-(of.x[of.b, 0 : of.s + 1].sum(0) ** 2)) @ of.w


def scaled(of: Batch) -> pr.Tensor:
    """Sums over steps that are in the loop of a recurrence, of which no matrix is a factor."""
    return pr.exp(-(of.x[of.b, 0 : of.s + 1].sum(0) ** 2)) * of.w.axes[0]


def normalised(of: Batch) -> pr.Tensor:
    rows = of.x[of.b, 0 : of.S]
    return (of.x - rows.mean(0)) / (1.0 + rows.max(0)) @ of.w


def from_the_end(of: Batch) -> pr.Tensor:
    return of.x[of.b, of.S - 1 - of.s] @ of.w + rnn(of)


def of_other_rows(of: Batch) -> pr.Tensor:
    sums = (of.x @ of.w)[of.b, 0 : of.S].sum(0)
    return of.x + sums[of.B - 1 - of.b][of.b] * sums[0 : of.B].sum(0)


def ordered(of: Batch) -> pr.Tensor:
    return pr.sort((of.x @ of.w)[of.b, 0 : of.S], 0).sum(0) * of.x


SHORTENED = [rnn, backwards, two_layers, both_ways, mlp, attention, causal, running, scaled, normalised, of_other_rows]


def data(lengths: list[int], width: int = WIDTH) -> dict[str, Any]:
    """Rows with NaN beyond their ends."""
    random = np.random.default_rng(len(lengths))
    x = np.full((len(lengths), max(lengths), width), np.nan, "float32")
    for row, n in zip(x, lengths, strict=True):
        row[:n] = random.normal(size=(n, width))
    w = (random.normal(size=(width, width)) / 2).astype("float32")
    return {"lengths": np.array(lengths, "int32"), "x": x, "w": w}


def outputs(kind: Callable[[Batch], pr.Tensor]) -> dict[str, pr.Tensor]:
    """What a model makes of a batch, a value of each row, a loss and its gradient."""
    of = Batch(least=1 if kind in (backwards, both_ways, from_the_end, normalised) else 0)
    made = kind(of)
    row = made[of.b, 0 : of.S].sum(0)
    loss = (row * row)[of.b].sum(0)[0 : of.B].sum(0)
    return {"made": made, "row": row, "loss": loss, "slope": pr.grad(loss, of.w)}


def agree(have: Any, want: Any) -> None:
    for name, value in want.items():
        if isinstance(value, pr.Ragged):
            np.testing.assert_array_equal(np.asarray(have[name].lengths), np.asarray(value.lengths))
            value, have = value.values, {**have, name: have[name].values}
        np.testing.assert_allclose(np.asarray(have[name]), np.asarray(value), 2e-4, 2e-5, err_msg=name)


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow) if k in (two_layers, both_ways) else k for k in SHORTENED]
)
def test_values_and_gradients_are_those_of_the_oracle(kind: Callable[[Batch], pr.Tensor], ran: list[str]) -> None:
    program = pr.compile(outputs(kind))
    for lengths in LENGTHS:
        if kind in (backwards, both_ways, normalised) and min(lengths) == 0:
            continue
        given = data(lengths)
        agree(program(**given), pr.evaluate(outputs(kind), given))
    assert {"_run_some", "_shortened"} <= {*ran}
    assert "rows of similar length together" in str(program.schedule)


@pytest.mark.parametrize("kind", [from_the_end, ordered])
def test_what_is_not_proved_runs_at_the_longest_row(kind: Callable[[Batch], pr.Tensor]) -> None:
    program = pr.compile(outputs(kind))
    for lengths in ([9, 1, 4, 2], [3, 3]):
        agree(program(**data(lengths)), pr.evaluate(outputs(kind), data(lengths)))


def training() -> tuple[dict[str, pr.Tensor], pr.Bound]:
    of = Batch(least=1)
    i, I = pr.dim("i")
    params = optim.over(i, {"on": np.eye(WIDTH, dtype="float32") / 2})
    h = pr.recurrent((WIDTH,), (i, of.b, of.s))
    h[i, of.b, 0] = pr.tanh(of.x[of.b, 0] @ of.w)
    h[i, of.b, of.s + 1] = pr.tanh(h @ params["on"] + of.x[of.b, of.s + 1])
    last = h[i, of.b, of.S - 1].sum(0)
    loss = (last * last)[{of.b: slice(0, of.B)}].mean(0)
    optim.sgd(i, params, pr.grad(loss, params), rate=0.1)
    return {"loss": loss[{i: slice(0, I)}], "weights": params["on"][I]}, I


def test_inside_of_a_training_loop(ran: list[str]) -> None:
    made, I = training()
    program = pr.compile(made)
    for lengths in ([9, 1, 4, 2, 9, 3, 5, 1], [2, 8, 1, 1]):
        want, bound = training()
        agree(program(**data(lengths), bounds={I: 4}), pr.evaluate(want, data(lengths), {bound: 4}))
    assert ran


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("kind", [*SHORTENED, from_the_end, ordered])
def test_rows_run_one_by_one_in_python(kind: Callable[[Batch], pr.Tensor], backend: str) -> None:
    program = pr.compile(outputs(kind), backend=backend)
    for lengths in ([9, 1, 4, 2, 9], [0, 12, 0, 1], [1], [5, 5]):
        if min(lengths) > 0 or kind not in (backwards, both_ways, normalised, from_the_end):
            agree(program(**data(lengths)), pr.evaluate(outputs(kind), data(lengths)))
    if kind in SHORTENED:
        assert "each row with its own S" in str(program.schedule)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_training_row_by_row_in_python(backend: str) -> None:
    made, I = training()
    program = pr.compile(made, backend=backend)
    for lengths in ([9, 1, 4, 2], [2, 8, 1, 1]):
        want, bound = training()
        agree(program(**data(lengths), bounds={I: 3}), pr.evaluate(want, data(lengths), {bound: 3}))


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("kind", [rnn, mlp, attention, causal])
def test_work_follows_the_sum_of_lengths_in_python(kind: Callable[[Batch], pr.Tensor], backend: str) -> None:
    """How many lines of the emitted code run, sums over rows included."""
    program = pr.compile(outputs(kind), backend=backend)
    alike, apart = (lines_run(program, data(n)) for n in ([48] * 8, [48, 12, 3, 1, 1, 12, 9, 10]))
    assert apart < 0.45 * alike


def lines_run(program: pr.Program, given: dict[str, Any]) -> int:
    """How many lines of generated code a call runs."""
    count = 0

    def line(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def entered(frame: Any, event: str, _: Any) -> Any:
        return line if frame.f_code.co_filename.startswith("<polyrhythm") else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        program(**given)
    finally:
        sys.settrace(before)
    return count


def annotated(made: list[pr.Tensor]) -> tuple[Any, LoopProgram]:
    """A compiled program whose loops over rows are marked, whether that is legal or not."""
    compiled = compile_tensors(made)
    bound = next(b for b in compiled.loops.bounds if b.name.startswith("S"))

    def marked(item: Any) -> Any:
        if isinstance(item, For) and item.lanes is not None:
            load = Load("lengths", (item.counter.term,), compiled.loops.places["lengths"].type)
            return replace(item, rows=Rows(bound, item.counter, load))
        return item

    return compiled.graph, replace(compiled.loops, body=tuple(map(marked, compiled.loops.body)))


def test_the_checker_refuses_rows_whose_ends_matter() -> None:
    b, _ = pr.dim("b")
    s, S = pr.dim("s")
    lengths, x = pr.input("lengths", (), (b,), "int32"), pr.input("x", (), (b, s))
    unmasked = pr.exp(x)[b, 0:S].sum(0) * lengths.cast("float32")
    masked = pr.where(pr.value(s) < lengths, pr.exp(x), 0.0)
    wrong = pr.where(pr.value(s) < lengths, pr.exp(x), 1.0)
    late = pr.where(pr.value(s) < lengths + 1, pr.exp(x), 0.0)
    check_rows(*annotated([masked[b, 0:S].sum(0)]))
    check_rows(*annotated([masked]))
    bad = [
        unmasked,
        wrong[b, 0:S].sum(0),
        late[b, 0:S].sum(0),
        wrong,
        x + lengths.cast("float32"),
        masked + pr.value(S),
    ]
    for number, output in enumerate(bad):
        graph, loops = annotated([output])
        with pytest.raises(IllegalProgramError, match="rows of b"):
            check_rows(graph, loops)
            pytest.fail(f"number {number} was accepted")


def test_a_proof_needs_no_step_of_a_row_to_be_the_last_of_all() -> None:
    compiled = compile_tensors(list(outputs(backwards).values()))
    assert compiled.rows is not None
    bound = compiled.rows.longest[0].longest
    assert Independence(compiled.graph, bound, "lengths").holds()


def test_a_proof_about_second_derivatives_follows_each_value_once() -> None:
    """Gradients of gradients of a recurrence reach the same values on paths whose number doubles with each step."""
    of, w = Batch(least=1), pr.input("v", (WIDTH,))
    h = pr.recurrent((), (of.b, of.s))
    h[of.b, 0] = pr.tanh(of.x[of.b, 0] @ w)
    h[of.b, of.s + 1] = pr.tanh(h * w.axes[0] + of.x[of.b, of.s + 1] @ w)
    slope = pr.grad((h**2)[of.b, 0 : of.S].mean(0)[0 : of.B].sum(0), w)
    compiled = compile_tensors([slope, *pr.grad((slope**2).sum(), [w, of.x])], compiled_loops=False)
    assert compiled.rows is not None
    proof = Independence(compiled.graph, compiled.rows.longest[0].longest, "lengths")
    proof.holds()
    assert len(proof.known) < 40 * len(list(compiled.graph))


def test_sums_over_rows_are_marked() -> None:
    compiled = compile_tensors(list(outputs(rnn).values()))
    marked = [c for block in blocks_of(compiled.loops.body) for c in block.body if c.rows is not None]
    assert [c.op for c in marked] == ["einsum"]
    assert any(isinstance(item, For) and item.rows is not None for item in walk(compiled.loops.body))
    (one,) = marked
    assert one.rows is not None
    wrong = replace(one.rows, label="z")

    def mislabelled(item: Any) -> Any:
        if not isinstance(item, Block):
            return item
        return replace(item, body=tuple(replace(c, rows=wrong) if c is one else c for c in item.body))

    body = tuple(map(mislabelled, compiled.loops.body))
    with pytest.raises(IllegalProgramError, match="row by row"):
        check_rows(compiled.graph, replace(compiled.loops, body=body))
