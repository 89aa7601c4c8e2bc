"""Parallel loops in chunks: the same values whatever runs at once, within a budget of memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.trace import lanes
from polyrhythm.compiler.backends.jax.trace.lowering import Lowering
from polyrhythm.compiler.backends.jax.trace.work import work_of
from polyrhythm.compiler.loops.cost import Lanes
from polyrhythm.compiler.loops.ir import For, walk
from polyrhythm.errors import DeclarationError, MemoryBudgetError
from polyrhythm.language.chunks import Chunk

WIDTH = 4


def attention() -> tuple[Any, pr.Tensor]:
    t, _ = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,))
    k, v = pr.tanh(x), pr.exp(x)
    return t, pr.softmax(k[0 : t + 1] @ x, 0) @ v[0 : t + 1] + x


def lanes_of(program: pr.Program, monkeypatch: pytest.MonkeyPatch, **inputs: Any) -> tuple[Any, set[int]]:
    """What a program returns, and how many lanes ran at once."""
    seen: set[int] = set()
    original = lanes._run_chunk

    def noted(lowering: Any, loop: Any, lanes: Any, state: Any, span: tuple[Any, int], *rest: Any) -> None:
        seen.add(span[1])
        original(lowering, loop, lanes, state, span, *rest)

    monkeypatch.setattr(lanes, "_run_chunk", noted)
    return np.asarray(program(**inputs)), seen


@pytest.mark.parametrize(("chosen", "expected"), [("loop", set()), ("vector", {16}), ("chunk", {4})])
def test_whatever_runs_at_once_the_values_are_the_same(
    chosen: str, expected: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    t, y = attention()
    chunk = {"loop": pr.loop(), "vector": pr.vector(), "chunk": pr.chunk(4)}[chosen]
    program = pr.compile(y, schedule={t: chunk})
    for steps in (13, 16):
        arrays = {"x": np.random.default_rng(steps).normal(size=(steps, WIDTH)).astype("float32")}
        found, seen = lanes_of(program, monkeypatch, **arrays)
        np.testing.assert_allclose(found, pr.evaluate(y, arrays), rtol=1e-4, atol=1e-5)
        assert seen <= expected


def test_the_work_of_a_step_by_hand() -> None:
    """Two products, of which one takes what was made before; elementwise operations are free, the matrix is shared."""
    t, _ = pr.dim("t")
    x, w = pr.input("x", (WIDTH,), (t,)), pr.input("w", (WIDTH, WIDTH))
    program = pr.compile(pr.tanh(x @ w) @ w + x).compiled.loops
    (loop,) = (item for item in walk(program.body) if isinstance(item, For))
    (bound,) = program.bounds
    work = work_of(Lowering(program, {bound: 16}, {}, None), loop)
    assert work == Lanes(16, operations=2, own=4 * 3 * WIDTH, shared=4 * WIDTH * WIDTH)


def windowed(width: int, window: int) -> pr.Tensor:
    """Attention over a window: what a step reads begins at a place of its own."""
    t, _ = pr.dim("t")
    x = pr.input("x", (width,), (t,))
    seen = slice(pr.max(0, t - window + 1), t + 1)
    return pr.softmax(x[seen] @ x, 0) @ x[seen]


def test_what_steps_gather_is_their_own_work() -> None:
    program = pr.compile(windowed(WIDTH, 8)).compiled.loops
    (loop,) = (item for item in walk(program.body) if isinstance(item, For))
    lowering = Lowering(program, {program.bounds[0]: 16}, {}, None)
    lowering.note_range(loop)
    # Both products read a window of 8 steps; scores are 8 numbers, in four operations that are not elementwise.
    assert work_of(lowering, loop).own >= 4 * (2 * 8 * WIDTH)
    assert work_of(lowering, loop).shared == 0


@pytest.mark.parametrize("small", [False, True])
def test_windows_are_gathered_for_as_many_steps_as_there_is_room_for(
    small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All steps at once, they would take as many copies of each step as a window is long."""
    steps, width, window = 512, 64, 32
    y = windowed(width, window)
    if small:
        monkeypatch.setattr(lanes, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(lanes, "chunk_for", lambda machine, lanes, most: None if most >= lanes.count else most)
    arrays = {"x": np.random.default_rng(0).normal(size=(steps, width)).astype("float32") / 8}
    program = pr.compile(y)
    found, seen = lanes_of(program, monkeypatch, **arrays)
    np.testing.assert_allclose(found, pr.evaluate(y, arrays), rtol=1e-4, atol=1e-5)
    assert seen == {(1 << 20) // (4 * 4 * width * window) if small else steps}
    (compiled,) = program.backend.executor.programs.values()
    assert (compiled.memory_analysis().temp_size_in_bytes < 1 << 20) == small


def test_values_of_neighbours_are_made_before_where_steps_are_to_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network and a stencil over it would share a loop that keeps two steps; the wish parts them."""
    t, T = pr.dim("t")
    x, w = pr.input("x", (WIDTH,), (t,)), pr.input("w", (WIDTH, WIDTH))
    y = pr.tanh(x @ w)
    z = pr.where((t > 0) & (t < T - 1), y[t - 1] * y[t + 1], y)
    arrays = {"x": np.random.default_rng(0).normal(size=(16, WIDTH)), "w": np.eye(WIDTH) * 2}
    arrays = {name: array.astype("float32") for name, array in arrays.items()}
    found, seen = lanes_of(pr.compile(z, schedule={t: pr.vector()}), monkeypatch, **arrays)
    np.testing.assert_allclose(found, pr.evaluate(z, arrays), rtol=1e-5)
    assert 16 in seen


def test_another_dim_carries_what_is_to_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Along a diagonal either dim can be the one that goes step by step."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    x = pr.input("x", (), (i, t))
    y = pr.recurrent((), (i, t))
    y[(i == 0) | (t == 0)] = x
    y[(i > 0) & (t > 0)] = pr.tanh(y[i - 1, t - 1]) + x
    arrays = {"x": np.random.default_rng(0).normal(size=(5, 9)).astype("float32")}
    for dim, count in ((t, 8), (i, 4)):
        program = pr.compile(y, {I: 5, T: 9}, schedule={dim: pr.vector()})
        found, seen = lanes_of(program, monkeypatch, **arrays)
        np.testing.assert_allclose(found, pr.evaluate(y, arrays), rtol=1e-5)
        assert max(seen) >= count


def test_fewer_steps_run_at_once_where_a_budget_demands_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _, y = attention()
    arrays = {"x": np.random.default_rng(0).normal(size=(256, WIDTH)).astype("float32")}
    kept = pr.compile(y).memory.bytes({"T": 256})
    found, seen = lanes_of(pr.compile(y, memory_budget=kept + 64 * 256 * 4), monkeypatch, **arrays)
    np.testing.assert_allclose(found, pr.evaluate(y, arrays), rtol=1e-4, atol=1e-5)
    # The scores of all steps are 256 x 256; four such values for 16 steps are what is left.
    assert min(seen) == 16


def test_a_tensor_that_does_not_fit_is_named() -> None:
    _, y = attention()
    arrays = {"x": np.ones((256, WIDTH), "float32")}
    with pytest.raises(MemoryBudgetError, match=r"budget is 1,024; .* takes 4,096"):
        pr.compile(y, memory_budget="1KB")(**dict[str, Any](arrays))
    kept = pr.compile(y).memory.bytes({"T": 256})
    with pytest.raises(MemoryBudgetError, match="a value of 1,024 bytes"):
        pr.compile(y, memory_budget=kept + 100)(**dict[str, Any](arrays))


@pytest.mark.parametrize("budget", ["many", "12 parsecs"])
def test_a_budget_that_is_no_number_of_bytes(budget: str) -> None:
    with pytest.raises(DeclarationError, match="no number of bytes"):
        pr.compile(attention()[1], memory_budget=budget)


def test_a_choice_for_what_is_no_dim_of_the_program() -> None:
    other, _ = pr.dim("other")
    with pytest.raises(DeclarationError, match="does not say how a dim"):
        pr.compile(attention()[1], schedule={other: pr.loop()})
    with pytest.raises(DeclarationError, match="a chunk of 0 steps"):
        pr.chunk(0)


PREFIXES = {
    "sum": lambda x, t, T: x[0 : t + 1].sum(0),
    "mean": lambda x, t, T: x[0 : t + 1].mean(0),
    "max of what follows": lambda x, t, T: x[t:T].max(0),
    "product of sums": lambda x, t, T: x[0 : t + 1].sum(0) * x[t:T].sum(0),
    "einsum of one": lambda x, t, T: pr.einsum("sd->d", x[0 : t + 1]),
    "einsum of two": lambda x, t, T: pr.einsum("sd,sd->d", x[0 : t + 1], x[0 : t + 1]),
    "scaled": lambda x, t, T: (x[0 : t + 1] * x).sum(0),
}


@pytest.mark.parametrize("name", PREFIXES)
def test_what_each_step_masks_counts(name: str) -> None:
    """Each of 20,000 steps masks an input of 20,000 to a length of its own: all together would take 34 GB."""
    t, T = pr.dim("t")
    program = pr.compile(PREFIXES[name](pr.input("x", (8,), (t,)), t, T))
    program(x=np.ones((20_000, 8), "float32"))
    (compilation,) = program.stats.compilations
    assert compilation.allocated <= program.memory.peak({T: 20_000}) < 64e6


def test_a_prefix_in_chunks_has_the_values_of_numpy() -> None:
    t, T = pr.dim("t")
    x = np.random.default_rng(0).normal(size=(700, 8)).astype("float32")
    y = PREFIXES["product of sums"](pr.input("x", (8,), (t,)), t, T)
    found = np.asarray(pr.compile(y, schedule={t: pr.chunk(16)})(x=x))
    before, after = np.cumsum(x, 0), np.cumsum(x[::-1], 0)[::-1]
    np.testing.assert_allclose(found, before * after, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("choice", [pr.vector(), pr.chunk(16)], ids=str)
@pytest.mark.parametrize("name", PREFIXES)
def test_steps_that_are_written_apart_can_run_at_once(name: str, choice: Chunk) -> None:
    """No pass makes steps depend on each other that the user wants to run together."""
    t, T = pr.dim("t")
    x = np.random.default_rng(0).normal(size=(40, 8)).astype("float32")
    y = PREFIXES[name](pr.input("x", (8,), (t,)), t, T)
    after = [x[n:] for n in range(40)]
    before = [x[: n + 1] for n in range(40)]
    expected = {
        "sum": [part.sum(0) for part in before],
        "mean": [part.mean(0) for part in before],
        "max of what follows": [part.max(0) for part in after],
        "product of sums": [b.sum(0) * a.sum(0) for b, a in zip(before, after, strict=True)],
        "einsum of one": [part.sum(0) for part in before],
        "einsum of two": [(part * part).sum(0) for part in before],
        "scaled": [part.sum(0) * part[-1] for part in before],
    }[name]
    found = np.asarray(pr.compile(y, schedule={t: choice})(x=x))
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-4, atol=1e-4)


def test_what_lanes_contract_without_a_mask_is_not_their_own() -> None:
    """Attention reads keys and values where they lie: its width follows from the scores alone."""
    _, y = attention()
    program = pr.compile(y).compiled.loops
    *_, loop = (item for item in walk(program.body) if isinstance(item, For))
    lowering = Lowering(program, {program.bounds[0]: 16}, {}, None)
    lowering.note_range(loop)
    shared = work_of(lowering, loop).shared
    assert shared >= 4 * (2 * 16 * WIDTH)  # keys and values
