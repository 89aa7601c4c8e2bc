"""Runs that are stopped and go on give the bits of runs that were never stopped."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import polyrhythm as pr
from polyrhythm import errors
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.loops.units import units
from polyrhythm.runtime import snapshots
from polyrhythm.runtime.checkpoint_liveness import crossing, follows
from polyrhythm.runtime.checkpoints import fingerprint
from polyrhythm.runtime.errors import CheckpointDamagedError, CheckpointInUseError, CheckpointMismatchError
from polyrhythm.runtime.snapshots import Snapshot
from tests.programs import PROGRAMS
from tests.programs.case import Case
from tests.runtime.stopping import EVERY, ITERATIONS, digest, inputs, through_time, training

ROOT = Path(__file__).resolve().parent.parent.parent
BACKENDS = ["numpy", "torch", "jax"]
OUTPUTS, i, I = training()


class Stopped(Exception):
    """Raised instead of going on after a checkpoint."""


def every_snapshot(program: pr.Program, folder: Path, over: pr.Dim, every: int, **call: Any) -> tuple[Any, list[Path]]:
    """The results of a run, and a folder for each of its checkpoints with that one in it."""
    checkpoints = pr.Checkpoints(folder / "all", over=over, every=every, keep=1000)
    results = program(checkpoint=checkpoints, **call)
    places = []
    for number, path in snapshots.found(checkpoints.folder).items():
        place = folder / str(number)
        place.mkdir()
        os.link(path, place / path.name)
        places.append(place)
    return results, places


@pytest.fixture(scope="module")
def programs() -> dict[str, pr.Program]:
    return {backend: pr.compile(OUTPUTS, backend=backend) for backend in BACKENDS}


@pytest.mark.parametrize("backend", BACKENDS)
def test_from_every_checkpoint_the_results_are_the_same_bits(
    programs: dict[str, pr.Program], backend: str, tmp_path: Path
) -> None:
    program = programs[backend]
    whole, places = every_snapshot(program, tmp_path, i, EVERY, seed=7, **inputs())
    assert [int(place.name) for place in places] == [*range(EVERY, ITERATIONS, EVERY), ITERATIONS]
    for place in places:
        again = program(checkpoint=pr.Checkpoints(place, over=i, every=5), seed=7, **inputs())
        assert digest(again) == digest(whole), place.name
    expected = pr.evaluate(OUTPUTS, inputs(), seed=7)
    np.testing.assert_allclose(whole["losses"], expected["losses"], rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(whole["w"], expected["w"], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_results_of_a_function_that_are_read_together_are_kept(backend: str, tmp_path: Path) -> None:
    """One step reads them at the same earlier step, which is one dependence."""
    first, second = pr.host(
        lambda n: (np.float32(2 * n + 1), np.float32(3 * n)), [pr.value(i)], shape=[(), ()], dtype=["float32"] * 2
    )
    late = pr.recurrent((), (i,))
    late[i < 2] = 0.0
    late[i >= 2] = (first[i - 2 : i] + 10 * second[i - 2 : i]).min(0)
    total = pr.recurrent((), ((i, I + 1),))
    total[0], total[i + 1] = 0.0, 0.5 * total + late
    program = pr.compile(total[I], backend=backend)
    whole, places = every_snapshot(program, tmp_path, i, 1, bounds={I: 6})
    assert whole == pr.evaluate(total[I], bounds={I: 6})
    for place in places:
        assert program(checkpoint=pr.Checkpoints(place, over=i, every=5), bounds={I: 6}) == whole, place.name


def test_only_what_crosses_the_cut_is_kept() -> None:
    compiled = pr.compile(through_time(), backend="numpy").compiled
    loops = [unit for unit in units(compiled.loops.body) if unit.loop is not None and not unit.loop.parallel]
    kept = crossing(compiled, loops[-1])
    assert {"h", "x"} & kept == set()
    sizes = {name: [str(n) for n in compiled.loops.places[name].whole] for name in kept}
    # The weights and the two moments of Adam, the losses so far, and constants.
    assert sorted(size for size in sizes.values() if size) == [["3", "3"]] * 3 + [["I"]]


def test_the_last_ones_are_kept(programs: dict[str, pr.Program], tmp_path: Path) -> None:
    checkpoints = pr.Checkpoints(tmp_path / "new" / "folder", over=i, every=EVERY, keep=3)
    programs["numpy"](checkpoint=checkpoints, **inputs())
    assert checkpoints.iterations == [18, 21, 23]
    assert sorted(path.name for path in checkpoints.folder.iterdir())[0] == ".lock"
    assert len(list(checkpoints.folder.iterdir())) == 4


def test_a_run_that_has_ended_does_not_run_again(tmp_path: Path) -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), ((t, T + 1),))
    calls: list[int] = []

    def halve(value: np.ndarray) -> np.ndarray:
        calls.append(1)
        return value / 2

    y[0] = 1.0
    y[t + 1] = pr.host(halve, [y], (), "float32")
    program = pr.compile(y[T], backend="numpy")
    checkpoints = pr.Checkpoints(tmp_path, over=t, every=4)
    assert program(bounds={T: 10}, checkpoint=checkpoints) == program(bounds={T: 10}, checkpoint=checkpoints)
    assert len(calls) == 10


# Stopped by killing the process.


def child(folder: Path, backend: str, moment: str = "never") -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "tests.runtime.stopping", str(folder), backend, moment]
    environment = {**os.environ, "POLYRHYTHM_CACHE": "", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(arguments, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> str | None:
    """The digest that a child printed; None if it was killed."""
    out, _ = process.communicate(timeout=600)
    if process.returncode == -signal.SIGKILL:
        return None
    assert process.returncode == 0
    return out.split()[-1]


def killed_at(folder: Path, backend: str, moments: list[str], programs: Mapping[str, pr.Program]) -> None:
    """Kill one process after the other; the next one goes on from the last checkpoint, and the last one ends."""
    expected = digest(
        programs[backend](seed=7, checkpoint=pr.Checkpoints(folder / "whole", over=i, every=EVERY), **inputs())
    )
    checkpoints = pr.Checkpoints(folder / "killed", over=i, every=EVERY)
    reached = 0
    for moment in moments:
        assert finished(child(checkpoints.folder, backend, moment)) is None, moment
        what, number = moment.split(":")
        after = max(checkpoints.iterations, default=0)
        # Of the checkpoints it was to write, at most the one it died in is missing; old ones are removed after that.
        written = int(number) - 1 if what != "removing" else 1
        assert after >= reached + written * EVERY, moment
        reached = after
    assert finished(child(checkpoints.folder, backend)) == expected
    assert not list(checkpoints.folder.glob("*.partial")) + list(checkpoints.folder.glob(".*.partial"))


def test_killed_while_writing(programs: dict[str, pr.Program], tmp_path: Path) -> None:
    killed_at(tmp_path, "jax", ["writing:3"], programs)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_killed_at_every_part_of_writing(programs: dict[str, pr.Program], backend: str, tmp_path: Path) -> None:
    moments = ["writing:1", "renaming:1", "writing:2", "renaming:2", "removing:1", "removing:2"]
    killed_at(tmp_path, backend, moments, programs)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_killed_at_random_moments(programs: dict[str, pr.Program], backend: str, tmp_path: Path) -> None:
    expected = digest(
        programs[backend](seed=7, checkpoint=pr.Checkpoints(tmp_path / "whole", over=i, every=EVERY), **inputs())
    )
    folder, chance, result = tmp_path / "killed", random.Random(0), None
    for _ in range(30):
        process = child(folder, backend)
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        time.sleep(chance.uniform(0, 0.5))
        process.kill()
        result = finished(process)
        if result is not None:
            break
    assert (result or finished(child(folder, backend))) == expected


# Refused before anything runs.


@pytest.fixture
def saved(programs: dict[str, pr.Program], tmp_path: Path) -> Iterator[pr.Checkpoints]:
    checkpoints = pr.Checkpoints(tmp_path, over=i, every=EVERY)
    programs["numpy"](checkpoint=checkpoints, seed=7, **inputs())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    yield checkpoints
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before, "nothing is lost or changed"


def test_other_runs_are_refused(programs: dict[str, pr.Program], saved: pr.Checkpoints) -> None:
    other = {"x": inputs()["x"] + 1}
    shorter = {"x": inputs()["x"][:-1]}
    with pytest.raises(CheckpointMismatchError, match="the input 'x' has other values"):
        programs["numpy"](checkpoint=saved, seed=7, **other)
    with pytest.raises(CheckpointMismatchError, match="the input 'w' has other values"):
        programs["numpy"](checkpoint=saved, seed=7, w=np.zeros((3, 3)), **inputs())
    with pytest.raises(CheckpointMismatchError, match="seed is 7 there and 8 here"):
        programs["numpy"](checkpoint=saved, seed=8, **inputs())
    with pytest.raises(CheckpointMismatchError, match="I is 23 there and 22 here"):
        programs["numpy"](checkpoint=saved, seed=7, **shorter)
    with pytest.raises(CheckpointMismatchError, match="backend is numpy there and torch here"):
        programs["torch"](checkpoint=saved, seed=7, **inputs())
    scaled = pr.compile({**OUTPUTS, "w": OUTPUTS["w"] * 2}, backend="numpy")
    with pytest.raises(CheckpointMismatchError, match="its program has the fingerprint"):
        scaled(checkpoint=saved, seed=7, **inputs())


def test_the_fingerprint_does_not_depend_on_the_process() -> None:
    code = (
        "import polyrhythm as pr\nfrom tests.runtime.stopping import training\n"
        "from polyrhythm.runtime.checkpoints import fingerprint\n"
        "print(fingerprint(pr.compile(training()[0], backend='numpy').compiled))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "123", "PYTHONPATH": str(ROOT)}
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    assert out.stdout.decode().strip() == fingerprint(pr.compile(OUTPUTS, backend="numpy").compiled)


@pytest.mark.parametrize("damage", ["cut", "empty", "changed", "header", "unsigned", "folder"])
def test_damaged_files_are_refused(programs: dict[str, pr.Program], damage: str, tmp_path: Path) -> None:
    checkpoints = pr.Checkpoints(tmp_path, over=i, every=EVERY)
    programs["numpy"](checkpoint=checkpoints, seed=7, **inputs())
    path = tmp_path / "iteration-000000023.safetensors"
    content = path.read_bytes()
    if damage == "unsigned":
        save_file({"w": np.zeros(2)}, path, metadata={"seed": "7"})
    elif damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        flipped = bytearray(content)
        flipped[20 if damage == "header" else -1] ^= 1
        path.write_bytes({"cut": content[:-10], "empty": b""}.get(damage, bytes(flipped)))
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(CheckpointDamagedError, match="go on from iteration 21"):
        programs["numpy"](checkpoint=checkpoints, seed=7, **inputs())
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("place", range(8))
def test_no_changed_byte_goes_unnoticed(place: int, tmp_path: Path) -> None:
    arrays = {"a": np.arange(6, dtype="float32").reshape(2, 3), "b": np.asarray(True)}
    path = snapshots.write(tmp_path, 1, Snapshot(arrays, {"seed": "0", "position": "3"}))
    content = path.read_bytes()
    for at in range(place, len(content), 8):
        flipped = bytearray(content)
        flipped[at] ^= 1 << (at % 8)
        path.write_bytes(flipped)
        try:
            again = snapshots.read(path)
        except CheckpointDamagedError:
            continue
        assert again.facts == {"seed": "0", "position": "3"}, at
        assert all(np.array_equal(again.arrays[name], array) for name, array in arrays.items()), at


def test_two_runs_do_not_share_a_folder(programs: dict[str, pr.Program], tmp_path: Path) -> None:
    checkpoints = pr.Checkpoints(tmp_path, over=i)
    with checkpoints.held(), pytest.raises(CheckpointInUseError):
        programs["numpy"](checkpoint=checkpoints, **inputs())


def test_arguments_are_checked(programs: dict[str, pr.Program], tmp_path: Path) -> None:
    with pytest.raises(errors.DeclarationError, match="every must be a positive integer"):
        pr.Checkpoints(tmp_path, over=i, every=0)
    with pytest.raises(errors.DeclarationError, match="keep must be a positive integer"):
        pr.Checkpoints(tmp_path, over=i, keep=True)
    with pytest.raises(errors.DeclarationError, match="along a dim"):
        pr.Checkpoints(tmp_path, over=I)  # type: ignore[arg-type]
    t, _ = pr.dim("t")
    with pytest.raises(errors.UnknownDimError, match="has no dim"):
        programs["numpy"](checkpoint=pr.Checkpoints(tmp_path, over=t), **inputs())
    x = pr.input("x", (), (t,))
    with pytest.raises(errors.UnsupportedError, match="nowhere to stop"):
        pr.compile(x * 2, backend="numpy")(x=[1.0], checkpoint=pr.Checkpoints(tmp_path, over=t))


# Effects, stopping conditions, other kinds of values.


class Counter:
    """A host function that keeps something."""

    def __init__(self) -> None:
        self.total = 0.0
        self.seen: list[float] = []

    def add(self, value: np.ndarray) -> np.float32:
        self.total += float(value)
        self.seen.append(float(value))
        if len(self.seen) == 7:
            raise Stopped
        return np.float32(self.total)

    def save(self) -> dict[str, Any]:
        return {"total": self.total, "seen": np.array(self.seen)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.total, self.seen = float(state["total"]), [*state["seen"].tolist(), 0.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_host_functions_keep_is_saved_with_the_run(backend: str, tmp_path: Path) -> None:
    t, T = pr.dim("t")
    counter = Counter()
    y = pr.recurrent((), ((t, T + 1),))
    y[0] = 1.0
    y[t + 1] = pr.host(counter.add, [y], (), "float32", effect="counter")
    program = pr.compile(y, backend=backend)
    with pytest.raises(errors.UnsupportedError, match="has an effect"):
        program(bounds={T: 9}, checkpoint=pr.Checkpoints(tmp_path, over=t, every=2))
    checkpoints = pr.Checkpoints(tmp_path, over=t, every=2, outside=counter)
    with pytest.raises(Stopped):
        program(bounds={T: 9}, checkpoint=checkpoints)
    assert checkpoints.iterations[-1] == 6
    result = program(bounds={T: 9}, checkpoint=checkpoints)
    np.testing.assert_array_equal(result, [1.0, *2.0 ** np.arange(9)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_that_ends_early(backend: str, tmp_path: Path) -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((2,), (t,), "float64")
    y[0] = 1.0
    y[t + 1] = 1.5 * y
    after = y[0:T].sum(0)
    program = pr.compile({"y": y, "after": after, "n": pr.value(T)}, until={t: y.sum() > 30.0}, backend=backend)
    whole, places = every_snapshot(program, tmp_path, t, 2, bounds={T: 50})
    assert whole["y"].shape == (8, 2)
    np.testing.assert_allclose(whole["after"], [sum(1.5**k for k in range(8))] * 2)
    for place in places:
        again = program(checkpoint=pr.Checkpoints(place, over=t, every=3), bounds={T: 50})
        assert digest(again) == digest(whole)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_small_floats_come_back_as_they_were(backend: str, tmp_path: Path) -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((3,), ((t, T + 1),), "bfloat16")
    y[0] = pr.constant(np.array([1.0, 2.0, 3.0]), "bfloat16")
    y[t + 1] = y * 1.1
    program = pr.compile({"y": y[T]}, backend=backend)
    whole, places = every_snapshot(program, tmp_path, t, 2, bounds={T: 5})
    for place in places:
        assert digest(program(checkpoint=pr.Checkpoints(place, over=t), bounds={T: 5})) == digest(whole)


def test_not_inside_a_traced_function(programs: dict[str, pr.Program], tmp_path: Path) -> None:
    import jax

    checkpoints = pr.Checkpoints(tmp_path, over=i)
    with pytest.raises(errors.UnsupportedError, match="cannot write checkpoints"):
        jax.jit(lambda x: programs["jax"](x=x, checkpoint=checkpoints))(inputs()["x"])


# Every program of the tests, along every dim that an outermost loop follows.


LOGGING = ("reinforce", "reinforce_greedy")
"""Their host functions have effects, so that a run cannot be repeated from a step."""


@pytest.mark.slow
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in PROGRAMS if case.name not in LOGGING])
def test_every_program_from_every_step(case: Case, tmp_path: Path) -> None:
    built = case.built
    assert built.log is None
    program = pr.compile(built.outputs, until=built.until, effects=built.effects, backend="numpy")
    bounds = max(case.bounds, key=lambda values: sum(values.values()))
    call = {"bounds": case.call_bounds(bounds), **case.inputs(bounds)}
    for given, symbol in program.compiled.graph.declared.items():
        if not follows(program.compiled.schedule, symbol):
            continue
        over = dim_of(given)
        whole, places = every_snapshot(program, tmp_path / given.name, over, 1, **call)
        case.check(whole, case.inputs(bounds), bounds)
        for place in places:
            again = program(checkpoint=pr.Checkpoints(place, over=over), **call)
            assert digest(again) == digest(whole), (given.name, place.name)


def dim_of(symbol: Symbol) -> pr.Dim:
    """The dim that a symbol stands for."""
    return pr.Dim(Term.of(symbol))
