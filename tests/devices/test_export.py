"""Exported and saved programs: bitwise equal in a fresh interpreter that never sees this package."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import rl

ALONE = """
import json, sys
sys.modules |= dict.fromkeys(("polyrhythm", "flatbuffers", "safetensors"))  # any import of these fails
import jax, numpy as np
sys.path.insert(0, sys.argv[1])
from run import load

for folder in sys.argv[2:]:
    program = load(folder)
    with np.load(folder + "/calls.npz") as stored:
        for number, (bounds, seed) in enumerate(json.load(open(folder + "/calls.json"))):
            start, end = f"{number}.in.", f"{number}.out."
            inputs = {n[len(start):]: stored[n] for n in stored.files if n.startswith(start)}
            expected = [stored[n] for n in sorted(n for n in stored.files if n.startswith(end))]
            found = jax.tree.leaves(program(bounds=bounds, seed=seed, **inputs))
            assert len(found) == len(expected)
            for a, b in zip(found, expected):
                assert a.shape == b.shape and a.tobytes() == b.tobytes(), (folder, number, np.abs(a - b).max())
    print(folder, program.started_from)
"""

Call = tuple[dict[str, int], int, dict[str, Any]]
Made = tuple[pr.Program, dict[Any, Any], list[Call]]


def decoder() -> Made:
    t, T = pr.dim("t")
    start = pr.input("start", (8,))
    w_k = pr.parameter("w_k", (8, 8), init=np.eye(8) + 0.1)
    w_v = pr.parameter("w_v", (8, 8), init=np.eye(8) - 0.1)
    h = pr.recurrent((8,), (t,))
    weights = pr.softmax((h @ w_k)[0 : t + 1] @ h)
    h[0] = start
    h[t + 1] = pr.tanh(weights @ (h @ w_v)[0 : t + 1])
    program = pr.compile({"last": h[T - 1], "all": h})
    x = np.linspace(-1, 1, 8, dtype="float32")
    return program, {T: [64, 128]}, [({"T": steps}, 0, {"start": x}) for steps in (50, 64, 100)]


def agent() -> Made:
    carts = rl.Arrays(rl.CartPole(), 4)
    model = rl.ActorCritic(carts.observations, carts.actions, (8,), np.random.default_rng(0))
    training = rl.ppo(carts, model, rl.PPOSettings(steps=8, epochs=2, minibatches=2))
    program = pr.compile(training.outputs, bounds=training.bounds)
    iterations = str(training.iterations)
    return program, {training.iterations: 4}, [({iterations: 3}, 0, {}), ({iterations: 4}, 7, {})]


def layers() -> Made:
    """Layers that are unrolled, a bound that is found, a size, and outputs in a structure."""
    t, T = pr.dim("t")
    l, L = pr.dim("l", max=3)
    w = pr.parameter("w", (4, 4), init=lambda shape: np.full(shape, 0.2), dims=((l, 3),))
    x = pr.input("x", (4,), (t,))
    h = pr.recurrent((4,), ((l, L + 1), t))
    h[0] = x
    h[l + 1] = pr.tanh(h @ w)
    total = h[L].sum()
    program = pr.compile((total, [h[L]]), bounds={L: 3}, until={t: total > 1.5})
    rows = np.linspace(-1, 1, 40, dtype="float32").reshape(10, 4)
    return program, {T: 16}, [({}, 0, {"x": rows}), ({}, 0, {"x": rows[:1]})]


def halves() -> Made:
    b, B = pr.dim("b")
    w = pr.parameter("w", (3,), init=np.ones(3), dtype="bfloat16")
    x = pr.input("x", (3,), (b,))
    program = pr.compile((x * w.cast("float32"))[0:B].sum(0))
    return program, {B: 8}, [({}, 0, {"x": np.ones((rows, 3), "float32")}) for rows in (1, 5, 8)]


MADE: dict[str, Callable[[], Made]] = {"decoder": decoder, "agent": agent, "layers": layers, "halves": halves}


def _written(made: Made, folder: Path, saved: bool) -> None:
    program, bounds, calls = made
    if saved:
        program.save(folder, bounds=bounds)
    else:
        program.export(folder, bounds=bounds)
    stored: dict[str, Any] = {}
    for number, (sizes, seed, inputs) in enumerate(calls):
        expected = jax.tree.leaves(program(bounds=sizes, seed=seed, **inputs))
        stored |= {f"{number}.in.{name}": value for name, value in inputs.items()}
        stored |= {f"{number}.out.{place:03}": np.asarray(value) for place, value in enumerate(expected)}
    np.savez(folder / "calls.npz", **stored)
    (folder / "calls.json").write_text(json.dumps([[sizes, seed] for sizes, seed, _ in calls]))


@pytest.mark.parametrize("names", [("decoder", "layers", "halves"), pytest.param(("agent",), marks=pytest.mark.slow)])
def test_a_fresh_interpreter_without_the_package(names: tuple[str, ...], tmp_path: Path) -> None:
    """Programs once exported and once saved, all in one process."""
    folders = []
    for name in names:
        made = MADE[name]()
        for saved in (False, True):
            folder = tmp_path / f"{name}{'_saved' if saved else ''}"
            _written(made, folder, saved)
            folders.append(str(folder))
    (tmp_path / "alone.py").write_text(ALONE)
    command = [sys.executable, str(tmp_path / "alone.py"), folders[0], *folders]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    for line in done.stdout.splitlines():
        folder_name, started_from = line.split()
        assert started_from == ("executable" if folder_name.endswith("_saved") else "module"), line


def test_a_saved_program_is_neither_traced_nor_compiled(tmp_path: Path) -> None:
    program, bounds, calls = decoder()
    program.save(tmp_path, bounds=bounds)
    saved = pr.load(tmp_path)
    sizes, seed, inputs = calls[0]
    counted: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, duration_secs, **_: counted.append(event))
    try:
        found = saved(bounds=sizes, seed=seed, **inputs)
    finally:
        jax.monitoring.clear_event_listeners()
    assert not [event for event in counted if "compile" in event or "trace" in event], counted
    assert np.array_equal(found["last"], program(bounds=sizes, **inputs)["last"])


def test_bad_calls_of_an_exported_program(tmp_path: Path) -> None:
    program, bounds, _ = decoder()
    program.export(tmp_path, bounds=bounds)
    saved, start = pr.load(tmp_path), np.zeros(8, "float32")
    with pytest.raises(ValueError, match="beyond the exported capacities"):
        saved(start=start, bounds={"T": 129})
    with pytest.raises(ValueError, match="is missing"):
        saved(bounds={"T": 9})
    with pytest.raises(ValueError, match="no input 'y'"):
        saved(start=start, y=1, bounds={"T": 9})
    with pytest.raises(ValueError, match="give bounds="):
        saved(start=start)
    with pytest.raises(ValueError, match="too small"):
        saved(start=start, bounds={"T": 0})
    with pytest.raises(ValueError, match="shape"):
        saved(start=start[:3], bounds={"T": 9})


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    with pytest.raises(pr.errors.MissingBoundError):
        pr.compile(x * 2).export(tmp_path)
    with pytest.raises(pr.errors.UnsupportedError):
        pr.compile(x * 2, backend="numpy").save(tmp_path, bounds={T: 8})
    with pytest.raises(pr.errors.UnsupportedError):
        pr.compile(x * 2).export(tmp_path, bounds={T: 8}, platforms=["abacus"])


def test_a_saved_program_with_our_kernel(tmp_path: Path) -> None:
    """Products of few rows with a large matrix: found again here, left to XLA where the package is not."""
    t, T = pr.dim("t")
    w = pr.parameter("w", (256, 256), init=np.eye(256) * 0.5)
    h = pr.recurrent((256,), (t,))
    h[0] = pr.input("start", (256,))
    h[t + 1] = pr.tanh(h @ w.transpose())
    program = pr.compile(h[T - 1])
    program.save(tmp_path)
    start = np.linspace(-1, 1, 256, dtype="float32")
    saved = pr.load(tmp_path)
    assert np.array_equal(saved(start=start, bounds={"T": 5}), program(start=start, bounds={T: 5}))
    assert saved.started_from == "executable"
