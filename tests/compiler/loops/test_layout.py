"""What the layout pass writes to the loops, and that the checker refuses it where it is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.legality import IllegalProgramError, check_program
from polyrhythm.compiler.loops.ir import Block, Compute, Load, LoopProgram, Place, Steps, blocks_of, mapped
from polyrhythm.compiler.pipeline import Compiled, compile_tensors
from tests.compiler.legality import mutants
from tests.compiler.loops.cases import BUILDERS, made
from tests.compiler.loops.simulate import refused_if_wrong

t, T = pr.dim("t")


def ema() -> dict[str, pr.Tensor]:
    x = pr.input("x", (3,), (t,))
    y = pr.recurrent((3,), (t,))
    y[0] = x[0]
    y[t + 1] = 0.9 * y + 0.1 * x[t + 1]
    return {"last": y[T - 1], "mean": y[0:T].mean(0)}


def decode(past: slice, heads: int = 4) -> dict[str, pr.Tensor]:
    x = pr.recurrent((8,), ((t, T + 1),))
    k = (x @ pr.input("w", (8, 8))).reshape(heads, 8 // heads)
    weights = pr.einsum("hd,shd->hs", k, k[past]).softmax(-1)
    x[0] = pr.input("first", (8,))
    x[t + 1] = pr.tanh(pr.einsum("hs,shd->hd", weights, k[past]).reshape(8) + x)
    return {"x": x[T]}


def loads(program: LoopProgram) -> Iterator[tuple[Compute, Load]]:
    for block in blocks_of(program.body):
        for compute in block.body:
            yield from ((compute, load) for load in compute.loads)


def ranges(compiled: Compiled, op: str = "einsum") -> list[str]:
    """The ranges that operations of one kind read."""
    found = (load for compute, load in loads(compiled.loops) if compute.op == op)
    return [str(load) for load in found if any(isinstance(entry, Steps) for entry in load.index)]


def keys(compiled: Compiled) -> Place:
    """The buffer that products read ranges of."""
    return compiled.loops.places[ranges(compiled)[0].split("[")[0]]


def compiled(outputs: dict[str, pr.Tensor], *without: str) -> Compiled:
    return compile_tensors(list(outputs.values()), without=without)


def test_the_mean_of_an_average_needs_no_mask() -> None:
    """That nothing is stored beyond `y[0:T]` follows from the requirement `T >= 1`."""
    (read,) = ranges(compiled(ema(), "accumulate"), "reduce")
    assert read == "y[0 +: T else 0]"


def test_all_steps_are_read_where_they_lie() -> None:
    found = compiled(decode(slice(0, t + 1)))
    assert ranges(found) == [f"{keys(found).name}[0 +: t + 1 else 0]"] * 2
    assert keys(found).axes == (1, 0, 2), "the heads are the batch of both products"


def test_a_window_is_a_ring_in_any_order() -> None:
    found = compiled(decode(slice(pr.max(0, t - 3), t + 1)))
    assert {read.split("[")[1] for read in ranges(found)} == {
        "(max(0, t - 3) +: t - max(0, t - 3) + 1) % 4 as ring else 0]"
    }
    assert list(found.loops.limits.values()) == [4]


def test_every_other_step_is_a_column() -> None:
    found = compiled(decode(slice(t % 2, t + 1, 2)))
    assert all(" by 2 as rows else 0]" in read for read in ranges(found))


def test_an_order_that_shows() -> None:
    """Where the steps of a window have a use for their order they are gathered."""
    x = pr.recurrent((4,), (t,))
    x[0] = 1.0
    near = x[pr.max(0, t - 3) : t + 1]
    x[t + 1] = pr.cumprod(near, 0).sum(0) + near.sum(0)
    (read,) = (load for compute, load in loads(compiled({"x": x[T - 1]}).loops) if compute.op == "cumulative")
    assert "as ring" not in str(read)


def changed(program: LoopProgram, change: Callable[[Load], Load]) -> LoopProgram:
    """The program with other loads."""

    def block(item: object) -> object:
        if not isinstance(item, Block):
            return item
        body = (
            replace(c, operands=tuple(change(o) if isinstance(o, Load) else o for o in c.operands)) for c in item.body
        )
        return replace(item, body=tuple(body))

    return replace(program, body=mapped(program.body, block))  # type: ignore[arg-type]


def refused(compiled: Compiled, program: LoopProgram, what: str) -> None:
    with pytest.raises(IllegalProgramError, match=what) as found:
        check_program(compiled.graph, program)
    assert found.value.rule == "layout"


def test_wrong_capacity() -> None:
    """A window whose limit is one too small would be cut."""
    found = compiled(decode(slice(pr.max(0, t - 3), t + 1)))
    refused(found, replace(found.loops, limits={term: n - 1 for term, n in found.loops.limits.items()}), "its limit")


def test_wrong_ring_order() -> None:
    """A ring is read in memory order though the oldest step is wanted first."""
    x = pr.recurrent((4,), (t,))
    x[0] = 1.0
    near = pr.exp(x)[pr.max(0, t - 3) : t + 1]
    x[t + 1] = x + pr.cumprod(near, 0).sum(0) + near.sum(0)
    found = compiled({"x": x[T - 1]})

    def unordered(load: Load) -> Load:
        entries = (replace(e, via="ring") if isinstance(e, Steps) else e for e in load.index)
        return replace(load, index=tuple(entries))

    refused(found, changed(found.loops, unordered), "order of a ring")


def test_wrong_zeros() -> None:
    """The steps after `t` are there already: without a mask they would count."""
    x = pr.input("x", (3,), (t,))
    y = pr.recurrent((3,), (t,))
    y[0] = x[0]
    y[t + 1] = y + x[t + 1]
    found = compiled({"y": (2 * y)[0 : t + 1].sum(0), "last": (2 * y)[T - 1]})
    refused(found, changed(found.loops, lambda load: replace(load, zeros=True)), "stored before|cannot know")


def test_wrong_axes() -> None:
    found = compiled(decode(slice(0, t + 1)))
    place = keys(found)
    for axes in ((1, 0), (1, 0, 0), (1, 1, 2)):
        places = {**found.loops.places, place.name: replace(place, axes=axes)}
        refused(found, replace(found.loops, places=places), "is kept with axes")


LAYOUTS = (mutants.change_limit, mutants.change_via, mutants.claim_zeros)
WITH_RANGES = ("windowed_attention", "n_step_returns", "td_lambda_returns", "filter", "generation", "counting")


@pytest.mark.parametrize("name", [n if n in WITH_RANGES else pytest.param(n, marks=pytest.mark.slow) for n in BUILDERS])
def test_what_is_wrong_at_small_bounds_is_refused(name: str) -> None:
    refused_if_wrong(*made(name), LAYOUTS, name, count=6)


def test_a_mean_without_a_mask_is_right() -> None:
    for steps in (1, 2, 7, 8, 9):
        x = np.random.default_rng(steps).normal(size=(steps, 3)).astype("float32")
        have, want = pr.compile(ema())(x=x), pr.evaluate(ema(), {"x": x})
        np.testing.assert_allclose(have["mean"], want["mean"], rtol=1e-5)
        np.testing.assert_allclose(have["last"], want["last"], rtol=1e-5)
