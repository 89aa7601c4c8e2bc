"""Runs on JAX that report how far they are from inside of XLA, and that an interrupt ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.run import watch
from polyrhythm.runtime import progress_bar

LENGTH = 1 << 30  # some hours


@pytest.fixture(autouse=True)
def _compiler() -> None:
    if not watch.available():
        pytest.skip("without a C compiler loops are not watched")


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """What a shell starts in the background ignores interrupts, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def interrupted(after: float) -> Iterator[list[float]]:
    """Interrupt the main thread after some seconds; the seconds from then to the end of the block are noted."""
    sent: list[float] = []

    def interrupt() -> None:
        sent.append(time.monotonic())
        signal.raise_signal(signal.SIGINT)

    timer = threading.Timer(after, interrupt)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield sent
    finally:
        timer.cancel()
    sent.append(time.monotonic())


def recurrence(until: bool = False) -> tuple[pr.Program, pr.Bound]:
    t, T = pr.dim("t")
    w = pr.input("w", (16, 16))
    h = pr.recurrent((16,), (t,))
    h[0] = 1.0
    h[t + 1] = pr.tanh(h @ w)
    stop = {t: h.sum() > 1e9} if until else None
    return pr.compile({"h": h[T - 1]}, until=stop), T


@pytest.mark.parametrize("until", [False, True])
def test_an_interrupt_ends_one_long_call(until: bool) -> None:
    program, T = recurrence(until)
    w = np.eye(16, dtype="float32")
    expected = program(w=w, bounds={T: 50})["h"]
    with interrupted(0.4) as times:
        program(w=w, bounds={T: LENGTH})
    assert times[1] - times[0] < 1.0
    assert np.array_equal(program(w=w, bounds={T: 50})["h"], expected)


def test_an_interrupt_ends_a_loop_inside_of_a_few_iterations() -> None:
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    h = pr.recurrent((16,), (i, t))
    h[i, 0] = 1.0
    h[i, t + 1] = pr.tanh(h) * 0.5
    total = pr.recurrent((), (i,))
    total[0] = 0.0
    total[i + 1] = total + h[i, T - 1].sum()
    program = pr.compile(total[I - 1])
    program(bounds={I: 3, T: 8})
    with interrupted(0.4) as times:
        program(bounds={I: 3, T: LENGTH})
    assert times[1] - times[0] < 1.0


@pytest.mark.slow
def test_an_interrupt_is_heard_inside_of_one_operation() -> None:
    """Which is in no pieces: the call returns, the operation goes on, and others run beside it."""

    def busy(count: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, count, lambda _, x: jax.numpy.sin(x) + 1, jax.numpy.float32(1))

    program = pr.compile(pr.jax_function(busy, [pr.input("count", (), (), "int32")]))
    expected = program(count=np.int32(10))
    started = time.monotonic()
    program(count=np.int32(1_000_000))
    each = (time.monotonic() - started) / 1_000_000
    with interrupted(0.4) as times:
        program(count=np.int32(min(2**30, int(6 / each))))  # six seconds
    assert times[1] - times[0] < 1.0
    assert program(count=np.int32(10)) == expected
    for thread in threading.enumerate():  # the operation holds its slot
        if thread.name == "polyrhythm-run":
            thread.join()


def test_a_run_reports_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress_bar, "DELAY", 0.1)
    monkeypatch.setattr(progress_bar, "INTERVAL", 0.1)
    monkeypatch.setattr(watch, "LOOK", 0.02)
    program, T = recurrence()
    w = np.eye(16, dtype="float32")
    with interrupted(1.5):
        program(w=w, bounds={T: LENGTH})
    lines = [line for line in capsys.readouterr().err.split("\n") if "iterations" in line]
    done = [int(line.split()[1]) for line in lines]
    assert len(done) >= 3
    assert done == sorted(done)
    assert done[0] < done[-1]
    assert f"of {LENGTH + 1} iterations" in lines[0]  # the output is one more
    assert "s left" in lines[0]


def test_pieces_change_nothing() -> None:
    program, T = recurrence()
    w = np.random.default_rng(0).normal(size=(16, 16)).astype("float32") / 4
    for length in (1, 2, 3, 9, 10, 11, 500):
        assert np.allclose(program(w=w, bounds={T: length})["h"], _naive(w, length), atol=1e-5)


def _naive(w: np.ndarray, length: int) -> np.ndarray:
    h = np.ones(16, np.float32)
    for _ in range(length - 1):
        h = np.tanh(h @ w)
    return h


def test_runs_of_several_threads_have_slots_of_their_own() -> None:
    program, T = recurrence()
    w = np.eye(16, dtype="float32")
    expected = program(w=w, bounds={T: 20_000})["h"]
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(program(w=w, bounds={T: 20_000})["h"])) for _ in range(4)]
    for thread in threads:
        thread.start()
    with interrupted(0.2):
        program(w=w, bounds={T: LENGTH})
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(np.array_equal(one, expected) for one in found)


def test_a_run_that_is_left_behind_keeps_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PATIENCE", 0.0)
    going_on = threading.Event()
    free = len(watch._free)
    with interrupted(0.2), watch.watched(lambda unit, following: None):
        watch.current().call(lambda: going_on.wait(20))
    assert len(watch._free) == free - 1  # the run has not ended, and may still write there
    going_on.set()
    until = time.monotonic() + 10
    while len(watch._free) < free and time.monotonic() < until:
        time.sleep(0.01)
    assert len(watch._free) == free


def test_checkpoints_are_whole_after_an_interrupt(tmp_path: Path) -> None:
    i, I = pr.dim("i")
    x = pr.recurrent((64, 64), (i,))
    x[0] = 1.0
    x[i + 1] = pr.tanh(x @ x) * 0.5
    program = pr.compile(x[I - 1])
    saved = pr.Checkpoints(tmp_path, over=i, every=2000)
    count = 300_000
    with interrupted(2.5) as times:
        program(bounds={I: count}, checkpoint=saved)
    assert times[1] - times[0] < 1.0
    begun = sorted(tmp_path.glob("*.safetensors"))
    assert begun, "no checkpoint was written before the interrupt"
    assert not list(tmp_path.glob("*.tmp"))


def test_long_compilations_are_announced(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Slow:
        def compile(self) -> str:
            time.sleep(0.3)
            return "made"

    monkeypatch.setattr(progress_bar, "ANNOUNCED", 0.1)
    assert progress_bar.compiling("decode")(Slow(), {"T": 1024}) == "made"
    assert capsys.readouterr().err == "polyrhythm: compiling decode, capacity T up to 1,024 ...\n"
    assert progress_bar.compiling("decode", wanted=False)(Slow(), {}) == "made"
    assert capsys.readouterr().err == ""
    with interrupted(0.1) as times:
        progress_bar.compiling("decode", wanted=False)(type("S", (), {"compile": lambda self: time.sleep(3)})(), {})
    assert times[1] - times[0] < 1.0


def test_an_error_of_the_compiler_is_raised() -> None:
    class Wrong:
        def compile(self) -> str:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        progress_bar.compiling("x")(Wrong(), {})


LONG = f"""
import polyrhythm as pr
t, T = pr.dim("t")
h = pr.recurrent((64,), (t,))
h[0] = 1.0
h[t + 1] = pr.sin(h)
program = pr.compile(h[T - 1])
before = program(bounds={{T: 10}}).tolist()
print("begun", flush=True)
try:
    program(bounds={{T: {LENGTH}}})
except KeyboardInterrupt:
    print("interrupted", flush=True)
    assert program(bounds={{T: 10}}).tolist() == before
    raise
"""
FOUR = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param({}, id="watched"),
        pytest.param(FOUR, id="four devices", marks=pytest.mark.slow),
        pytest.param({"CC": "no-such-compiler", "POLYRHYTHM_CACHE": ""}, id="no C compiler", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_process_ends(machine: dict[str, str], tmp_path: Path) -> None:
    """The call within a second, with a program that can be used again; then the interpreter, without the run."""
    (tmp_path / "long.py").write_text(LONG, encoding="utf-8")
    command, pipe = [sys.executable, str(tmp_path / "long.py")], subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **machine})
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(0.5)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert time.monotonic() - sent < 1.0
    _, said = process.communicate(timeout=10)
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode == -signal.SIGINT


def test_what_is_not_watched_has_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter waits for a run with a slot, and one that is not in pieces would never hear of an interrupt."""
    monkeypatch.setattr(watch, "available", lambda: False)
    with watch.watched(lambda unit, following: None):
        assert watch.current().number == 0


@pytest.mark.slow
def test_watching_costs_less_than_a_hundredth(monkeypatch: pytest.MonkeyPatch) -> None:
    programs: dict[bool, tuple[pr.Program, pr.Bound]] = {}
    for watched in (False, True):
        monkeypatch.setattr(watch, "available", lambda on=watched: on)
        programs[watched] = recurrence()
        programs[watched][0](w=np.eye(16, dtype="float32"), bounds={programs[watched][1]: 200_000})
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(15):
        for watched, (program, T) in programs.items():
            started = time.process_time()
            jax.block_until_ready(program(w=np.eye(16, dtype="float32"), bounds={T: 200_000}))
            times[watched].append(time.process_time() - started)
    assert min(times[True]) < 1.01 * min(times[False]) + 1e-3
