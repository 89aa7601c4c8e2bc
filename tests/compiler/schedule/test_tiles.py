"""Loops over tiles: what passes between independent steps is stored for a tile and a few before it, not for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.schedule import tiles
from polyrhythm.compiler.schedule.scheduler import Item, Loop
from tests.compiler.schedule import programs

t, T = pr.dim("t")
x = pr.input("x", (3,), (t,))
w = pr.input("w", (4, 3))
TILE = 4
TIGHT = "1GB"
"""Any budget: what is stored matters."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of a few steps."""
    monkeypatch.setattr(tiles, "STEPS", TILE)


def delayed(u: pr.Tensor, k: int) -> pr.Tensor:
    return pr.where(t >= k, u[t - k], 0.0) if k else u


def convolved(u: pr.Tensor, taps: int = 3) -> pr.Tensor:
    return pr.tanh(sum((w.axes[k] * delayed(u, k) for k in range(1, taps)), w.axes[0] * u))


def stack() -> Any:
    """Two causal convolutions."""
    return {"y": convolved(convolved(pr.sin(x)), 4)}


def trained() -> Any:
    """Their gradients: what follows reads what comes after."""
    loss = (convolved(convolved(pr.sin(x)), 4) ** 2)[0:T].sum((0, 1))
    return {"loss": loss, "gradients": pr.grad(loss, [w, x])}


def ahead() -> Any:
    """Reads of the steps to come."""
    u = pr.sin(x)
    return {"y": pr.where(t + 2 < T, u[t + 2], 0.5) * u + pr.where(t + 1 < T, pr.cos(u)[t + 1], u)}


def smoothed() -> Any:
    """A filter in front of a recurrence, and one behind it."""
    u = pr.tanh(x)
    h = pr.recurrent((3,), (t,))
    h[0] = u[0]
    h[t + 1] = 0.5 * h + u[t + 1] * u
    return {"y": pr.sin(h) * delayed(pr.sin(h), 2)}


def windowed() -> Any:
    """Means of the last three values of a computed signal."""
    return {"y": pr.window(pr.tanh(x), t, 3).mean(0)}


PROGRAMS = {p.__name__: p for p in (stack, trained, ahead, smoothed, windowed)}


def given(outputs: Any, steps: int) -> dict[str, Any]:
    """Inputs of a program for some steps."""
    rng = np.random.default_rng(steps)
    known = {"x": rng.normal(size=(steps, 3)).astype("float32"), "w": rng.normal(size=(4, 3)).astype("float32")}
    names = pr.compile(outputs, backend="numpy").compiled.graph.inputs
    return {name: known[name] for name in names}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.usefixtures("small")
def test_results_are_those_of_the_oracle(name: str) -> None:
    outputs = PROGRAMS[name]()
    program = pr.compile(outputs, memory_budget=TIGHT)
    for steps in (0, 1, 2, TILE - 1, TILE, TILE + 1, 2 * TILE, 3 * TILE + 1):
        inputs = given(outputs, steps)
        want, have = pr.evaluate(outputs, inputs), program(**inputs)
        for a, b in zip(_leaves(want), _leaves(have), strict=True):
            np.testing.assert_allclose(b, a, atol=1e-5, err_msg=f"{name} at T = {steps}")


def _leaves(results: Any) -> list[np.ndarray]:
    return [np.asarray(v) for r in results.values() for v in (r if isinstance(r, (list, tuple)) else [r])]


@pytest.mark.parametrize("name", ["stack", "windowed"])
def test_schedule(name: str, golden: Callable[[str, str], None]) -> None:
    golden(name, f"{pr.compile(PROGRAMS[name](), memory_budget=TIGHT).schedule}")


@pytest.mark.parametrize("name", ["stack", "ahead", "smoothed", "windowed"])
def test_memory_does_not_grow_with_the_steps(name: str) -> None:
    memory = pr.compile(PROGRAMS[name](), memory_budget=TIGHT).memory
    buffers = [memory.kept({"T": steps}) for steps in (1_000, 100_000)]
    assert buffers[0] == buffers[1]


@pytest.mark.parametrize("k", [1, 4, 300])
def test_a_filter_keeps_a_tile_and_its_taps_in_whole_tiles(k: int) -> None:
    with pr.settings(without=("windows",)):
        program = pr.compile(programs.taps(k), memory_budget=TIGHT)
    (place,) = (p for p in program.compiled.loops.places.values() if p.kind == "buffer")
    whole = -(-(k - 1 + tiles.STEPS) // tiles.STEPS) * tiles.STEPS if k > 1 else 1
    assert k == 1 or [str(n) for n in place.slots] == [str(whole)]


def test_what_is_stored_anyway_is_not_tiled() -> None:
    """Two vectorised loops are the fastest; what is read backwards is stored for all steps in any case."""
    u = pr.sin(x)
    schedule = pr.compile({"turned": u[T - 1 - t], "y": u * delayed(u, 2)}).compiled.schedule
    assert not _tiled(schedule)
    assert all(item.parallel for item in schedule if isinstance(item, Loop))


@pytest.mark.parametrize("name", ["stack", "trained", "ahead"])
def test_what_a_call_can_afford_is_distributed(name: str) -> None:
    """Without a budget, loops whose values take little beside the inputs are vectorised over all steps."""
    schedule = pr.compile(PROGRAMS[name]()).compiled.schedule
    assert not _tiled(schedule)
    assert all(item.parallel for item in schedule if isinstance(item, Loop))


def test_what_is_much_wider_than_the_inputs_is_tiled() -> None:
    wide = pr.tanh(pr.broadcast_to(x.unsqueeze(0), (4 * tiles.SHARE, 3)) * 2.0)
    (loop,) = _tiled(pr.compile({"y": (wide * delayed(wide, 2)).sum(0)}).compiled.schedule)
    assert loop.tile == tiles.STEPS


def _tiled(items: tuple[Item, ...]) -> list[Loop]:
    loops = [item for item in items if isinstance(item, Loop)]
    return [loop for loop in loops if loop.tile] + [inner for loop in loops for inner in _tiled(loop.body)]


def test_a_ring_of_a_few_slots_where_the_user_or_a_stream_wants_steps_one_by_one() -> None:
    outputs = stack()
    assert _tiled(pr.compile(outputs, memory_budget=TIGHT).compiled.schedule)
    with pr.settings(without=["tile"]):
        untiled = pr.compile(outputs)
    for program in (pr.compile(outputs, schedule={t: pr.loop()}), untiled):
        assert not _tiled(program.compiled.schedule)
        counts = [n.constant for p in program.compiled.loops.places.values() if p.kind == "buffer" for n in p.slots]
        assert max(counts) <= 4


def test_a_gradient_of_convolutions_is_one_loop_over_tiles() -> None:
    """What a layer's gradient needs of the layers behind it comes within a tile: nothing waits for all steps."""
    (loop,) = _tiled(pr.compile(trained(), memory_budget=TIGHT).compiled.schedule)
    assert all(isinstance(item, Loop) and item.parallel for item in loop.body)


@pytest.mark.usefixtures("small")
def test_members_of_a_tile_are_shifted_by_whole_tiles() -> None:
    """So that every loop over a tile begins where the tile does, and stores in one piece."""
    (loop,) = _tiled(pr.compile(ahead(), memory_budget=TIGHT).compiled.schedule)
    assert loop.tile == TILE
    inner = [item for item in loop.body if isinstance(item, Loop)]
    assert inner
    assert all(item.parallel for item in inner)


def test_a_step_modulo_something_is_no_ring() -> None:
    """Lanes that read an input over and over again share its first slots."""
    outputs = {"y": pr.where(t >= 1, x[t % 2] * 2.0, x[0])}
    for steps in (1, 2, 3, 7):
        inputs = given(outputs, steps)
        np.testing.assert_allclose(pr.compile(outputs)(**inputs)["y"], pr.evaluate(outputs, inputs)["y"], atol=1e-6)
