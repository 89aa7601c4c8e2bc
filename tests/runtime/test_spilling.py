"""Under a budget with a folder, tensors that do not fit lie in files: the results are the same, and the rest fits."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import rl
from polyrhythm.compiler.backends.jax.run import small_loops
from polyrhythm.compiler.backends.jax.trace import pinned
from polyrhythm.compiler.legality import check_program
from polyrhythm.compiler.legality.failure import IllegalProgramError
from polyrhythm.compiler.loops.ir import For, LoopProgram
from polyrhythm.compiler.loops.spilling import SpillFile, spilled
from polyrhythm.errors import MemoryBudgetError
from polyrhythm.runtime import spilling
from tests.fuzz.check import all_in_files
from tests.programs import PROGRAMS as PROGRAMS_OF_THE_CORPUS

BACKENDS = ("numpy", "torch", "jax")
WIDTH = 500


def there_and_back() -> Any:
    """What a pass forwards leaves for one backwards."""
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,))
    y, z = pr.recurrent((WIDTH,), (t,), name="y"), pr.recurrent((WIDTH,), (t,))
    y[0] = x[0]
    y[t + 1] = pr.tanh(y + x[t + 1])
    z[T - 1] = y[T - 1]
    z[t - 1] = 0.5 * z + y[t - 1]
    return z[0]


def gradient() -> Any:
    """States that the gradient of a recurrence reads again."""
    t, T = pr.dim("t")
    x, w = pr.input("x", (WIDTH,), (t,)), pr.input("w", (WIDTH,))
    h = pr.recurrent((WIDTH,), (t,), name="h")
    h[0] = x[0]
    h[t + 1] = pr.tanh(h * w + x[t + 1])
    return pr.grad((h[T - 1] ** 2).sum(), w)


def iterations() -> Any:
    """A rollout in each iteration, stored over that of the one before, of which rows are taken at random."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,))
    s = pr.recurrent((2, WIDTH // 2), (i, (t, T + 1)), name="s")
    s[0, 0] = pr.ones((2, WIDTH // 2))
    s[i + 1, 0] = s[i, T]
    s[i, t + 1] = 0.9 * s + pr.reshape(x[t], (2, WIDTH // 2))
    flat = pr.reshape(s[i, 0:T], (2 * T, WIDTH // 2))
    rows = pr.take(flat, pr.constant(np.array([0, 5, 1, 200, -3], np.int32)), 0)
    return rows.sum(1), s[I - 1, T]


def reversed_ranges() -> Any:
    """Ranges and rings of what a pass forwards leaves."""
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,))
    y, z = pr.recurrent((WIDTH,), (t,), name="y"), pr.recurrent((WIDTH,), (t,))
    y[0] = x[0]
    y[t + 1] = pr.where(x[t + 1] > 0.0, y + x[t + 1], 0.5 * y)
    z[T - 1] = y[T - 1]
    z[t - 1] = 0.5 * z + y[pr.max(0, t - 3) : t].sum(0)
    return z[0]


PROGRAMS = {f.__name__: f for f in (there_and_back, gradient, iterations, reversed_ranges)}


def given(name: str) -> dict[str, Any]:
    random = np.random.default_rng(0)
    found: dict[str, Any] = {"x": random.normal(size=(60, WIDTH)).astype("float32") * 0.1}
    if name == "gradient":
        found["w"] = random.normal(size=WIDTH).astype("float32")
    if name == "iterations":
        found["bounds"] = {"I": 3}
    return found


LIMITS = {"there_and_back": "200KB", "gradient": "200KB", "iterations": "200KB", "reversed_ranges": "200KB"}
"""On JAX, where x takes 128 KB."""


def parts(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_without_files(name: str, backend: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(spilling, "MANY", 1000)  # nothing is computed again
    # A loop without files may be one kernel, one with files is not, and kernels round as they fuse.
    monkeypatch.setattr(small_loops, "_can_be_told", lambda: False)
    inputs = given(name)
    expected = pr.compile(PROGRAMS[name](), backend=backend)(**inputs)
    limit = pr.Budget(LIMITS[name] if backend == "jax" else "160KB", spill=str(tmp_path))
    program = pr.compile(PROGRAMS[name](), backend=backend, memory_budget=limit)
    for _ in range(2):
        found = program(**inputs)
        for one, other in zip(parts(found), parts(expected), strict=True):
            np.testing.assert_array_equal(one, other)
    assert program.spilled, "nothing was moved to a file"
    assert "lies in a file" in program.explain()
    assert not list(tmp_path.iterdir())  # the files have no names


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_without_pinned_memory(name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(spilling, "MANY", 1000)
    inputs = given(name)
    expected = pr.compile(PROGRAMS[name]())(**inputs)
    limit = pr.Budget(LIMITS[name], spill="pinned_host")
    program = pr.compile(PROGRAMS[name](), memory_budget=limit)
    for _ in range(2):
        for one, other in zip(parts(program(**inputs)), parts(expected), strict=True):
            np.testing.assert_array_equal(one, other)
    assert program.spilled, "nothing was moved to the host"
    assert "lies in pinned memory of the host" in program.explain()


@pytest.mark.slow
def test_every_program_with_all_it_can_in_pinned_memory() -> None:
    moved = 0
    for case in PROGRAMS_OF_THE_CORPUS:
        built, bounds = case.built, case.bounds[-1]
        if built.log is None:
            limit = pr.Budget("1GB", "pinned_host")
            program = pr.compile(built.outputs, until=built.until, memory_budget=limit)
            inputs = case.inputs(bounds)
            with all_in_files():
                found = program(**inputs, bounds=case.call_bounds(bounds))
            arrays = {key: v if isinstance(v, pr.Ragged) else np.asarray(v) for key, v in found.items()}
            case.check(arrays, inputs, bounds)
            moved += bool(program.spilled)
    assert moved >= 10, moved


@pytest.mark.parametrize("platform", ["cuda", "tpu", "rocm"])
def test_an_accelerator_moves_single_slots_to_the_host(platform: str, monkeypatch: Any) -> None:
    """As XLA's own offloading has it: updates and slices of an array that is never whole on the device."""
    monkeypatch.setattr(spilling, "MANY", 1000)
    bounds = {"T": 60}
    limit = pr.Budget("200KB", spill="pinned_host")
    text = pr.compile(there_and_back(), memory_budget=limit).lowered(bounds, platform).text
    moves = re.findall(r'@annotate_device_placement.*_xla_buffer_placement = "(\w+)".* -> tensor<(\w+)xf32>', text)
    assert {kind for kind, _ in moves} == {"pinned_host", "device"}
    assert {shape for _, shape in moves} == {f"1x{WIDTH}"}, moves
    whole = re.findall(rf"stablehlo\.(\w+) .*-> tensor<64x{WIDTH}xf32>", text)
    assert set(whole) <= {"broadcast_in_dim", "dynamic_update_slice"}, whole
    free = pr.compile(there_and_back()).lowered(bounds, platform).text
    assert "annotate_device_placement" not in free


def test_pinned_memory_where_there_is_none(monkeypatch: Any) -> None:
    for backend in ("numpy", "torch"):
        with pytest.raises(pr.errors.UnsupportedError, match="no pinned_host") as found:
            pr.compile(there_and_back(), backend=backend, memory_budget=pr.Budget("200KB", spill="pinned_host"))
        assert "fix: " in str(found.value)
    monkeypatch.setattr(pinned, "PINNED_HOST", "memory_of_the_moon")
    program = pr.compile(there_and_back(), memory_budget=pr.Budget("200KB", spill="pinned_host"))
    with pytest.raises(pr.errors.UnsupportedError, match="has no memory_of_the_moon"):
        program(**given("there_and_back"))


def test_what_moves_is_counted(tmp_path: Path) -> None:
    limit = pr.Budget("160KB", spill=str(tmp_path))
    program = pr.compile(there_and_back(), backend="numpy", memory_budget=limit)
    program(**given("there_and_back"))
    (moved,) = program.spilled.values()
    assert moved.stored == 60 * WIDTH * 4
    assert 59 * WIDTH * 4 <= moved.fetched <= 2 * 60 * WIDTH * 4
    assert moved.seconds > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_cannot_fit_is_refused_by_name(backend: str, tmp_path: Path) -> None:
    limit = pr.Budget("100KB", spill=str(tmp_path))  # the input alone takes 120 KB
    program = pr.compile(there_and_back(), backend=backend, memory_budget=limit)
    with pytest.raises(MemoryBudgetError, match="input x takes 120,000 of them"):
        program(**given("there_and_back"))


def test_what_fits_stays_in_memory(tmp_path: Path) -> None:
    limit = pr.Budget("10MB", spill=str(tmp_path))
    program = pr.compile(there_and_back(), backend="numpy", memory_budget=limit)
    program(**given("there_and_back"))
    assert not program.spilled


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_compute_values_again_where_they_do_not_fit(backend: str) -> None:
    t, T = pr.dim("t")
    x, w = pr.input("x", (), (t,)), pr.input("w", (50,))
    h = pr.recurrent((50,), ((t, T + 1),))
    h[0] = pr.ones((50,))
    h[t + 1] = pr.tanh(h * w + x)
    slope = pr.grad((h[T] ** 2).sum(), w)
    inputs: dict[str, Any] = {
        "x": np.sin(np.arange(400, dtype="float32")),
        "w": np.linspace(0.1, 1, 50, dtype="float32"),
    }
    free = pr.compile(slope, backend=backend)
    tight = pr.compile(slope, backend=backend, memory_budget="60KB")
    assert free.memory.peak({T: 400}) > 60 << 10
    np.testing.assert_allclose(tight(**inputs), free(**inputs), rtol=1e-5, atol=1e-6)
    assert "again" in tight.recomputed
    assert tight.recomputed in tight.explain()


def moved_back(loops: LoopProgram, place: str) -> LoopProgram:
    """The loop that fetches a place before the one that stores it."""
    loops_of = [item for item in loops.body if isinstance(item, For)]
    fetching = next(
        item
        for item in loops_of
        if any(l.place == place and l.spilled for s in item.sites for l in s.block.loads)
        and not any(st.place == place for s in item.sites for st in s.block.stores)
    )
    return replace(loops, body=(fetching, *(item for item in loops.body if item is not fetching)))


def test_fetches_before_their_stores_are_illegal(tmp_path: Path) -> None:
    compiled = pr.compile(there_and_back(), backend="numpy").compiled
    name = next(n for n, place in compiled.loops.places.items() if place.kind == "buffer")
    loops = spilled(compiled.loops, {name: SpillFile(str(tmp_path))}, False)
    check_program(compiled.graph, loops)
    with pytest.raises(IllegalProgramError):
        check_program(compiled.graph, moved_back(loops, name))


def test_ppo_within_a_budget(tmp_path: Path) -> None:
    lamps = rl.Arrays(rl.Synthetic((3, 32), length=7), 16)
    model = rl.ActorCritic(lamps.observations, lamps.actions, (4,), np.random.default_rng(0))
    training = rl.ppo(lamps, model, rl.PPOSettings(steps=48, epochs=2, minibatches=8))
    bounds = {training.iterations: 3}
    free = pr.compile(training.outputs, bounds=training.bounds)
    expected = free(bounds=bounds)
    limit = pr.Budget(free.memory.bytes(bounds) - 16 * 48 * 96 * 4 // 2, spill=str(tmp_path))
    tight = pr.compile(training.outputs, bounds=training.bounds, memory_budget=limit)
    found = tight(bounds=bounds)
    assert "lights" in tight.spilled
    for name in ("policy_loss", "value_loss", "return"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6)
    for name, weight in expected["weights"].items():
        np.testing.assert_allclose(found["weights"][name], weight, rtol=1e-3, atol=1e-5)
