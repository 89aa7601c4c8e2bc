"""What a program tells about itself: stats, memory, schedule, probes, bad values, progress_bar."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import nn, rl
from polyrhythm.errors import BoundsError, NotFiniteError, UnknownDimError
from polyrhythm.runtime import progress_bar

BACKENDS = ["numpy", "torch", "jax"]

t, T = pr.dim("t")
x = pr.input("x", (), (t,))


def running_sum() -> pr.Tensor:
    y = pr.recurrent((), (t,))
    y[0] = x[0]
    y[t + 1] = y + x[t + 1]
    return y


def test_stats_count_calls_and_compilations() -> None:
    program = pr.compile(running_sum(), backend="jax")
    for length in (3, 4, 9):
        program(x=np.ones(length, np.float32))
    stats = program.stats
    assert stats.calls == 3
    assert [c.capacities for c in stats.compilations] == [{"T": 4}, {"T": 16}]
    assert stats.compilations[0].reason == "first call"
    assert "16" in stats.compilations[1].reason
    assert {"trace", "check", "schedule", "storage", "loops", "backend compile", "run"} <= stats.seconds.keys()
    assert all(seconds >= 0 for seconds in stats.seconds.values())
    assert "T <= 16" in str(stats)


def test_memory_counts_places_and_temporaries() -> None:
    big = pr.input("big", (100,), (t,))
    program = pr.compile((pr.exp(big) * 2 + 1).sum(0), backend="numpy")
    memory = program.memory
    assert memory.bytes({T: 10}) == 4 * (100 * 10 + 10)
    # Two values of 100 floats live at once for each of ten steps, which run together: an operand and its result.
    assert memory.temporary({T: 10}) == pytest.approx(8000, abs=16)
    assert memory.peak({T: 10}) == memory.bytes({T: 10}) + memory.temporary({T: 10})
    table = memory.table({T: 10})
    assert "peak" in table
    assert "big" in table
    assert "4,000" in table


def test_memory_of_a_filter_is_its_taps() -> None:
    w = 4
    s = pr.recurrent((), (t,))
    s[t < w] = x
    s[t >= w] = 0.5 * s[t - 1] + 0.1 * s[t - w] + x
    memory = pr.compile(s[T - 1], backend="numpy").memory
    assert memory.kept({T: 10}) == memory.kept({T: 10_000})


def test_explain_names_outputs_loops_and_storage() -> None:
    y = running_sum()
    text = pr.compile({"y": y, "mean": y[0:T].mean(0)}, backend="numpy").explain()
    for part in ("outputs:", "order:", "loops:", "storage:", "compiled in:", "for "):
        assert part in text


def test_probe_any_tensor_at_any_step() -> None:
    y = running_sum()
    scaled = y * 10
    for backend in BACKENDS:
        program = pr.compile(scaled[T - 1], backend=backend)
        assert float(program.probe(y, at={t: 1}, x=np.array([1, 2, 3], np.float32))) == 3.0
        assert float(program.probe(scaled, at={t: 2}, x=np.array([1, 2, 3], np.float32))) == 60.0
        np.testing.assert_array_equal(program.probe(y, x=np.array([1, 2], np.float32)), [1, 3])
    with pytest.raises(BoundsError, match="no step"):
        program.probe(y, at={t: 3}, x=np.ones(3, np.float32))
    other, _ = pr.dim("other")
    with pytest.raises(UnknownDimError):
        program.probe(y, at={other: 3}, x=np.ones(3, np.float32))


def test_probes_draw_the_same_random_numbers() -> None:
    noise = pr.uniform((), dims=(t,))
    walk = pr.recurrent((), (t,))
    walk[0] = noise[0]
    walk[t + 1] = walk + noise[t + 1]
    program = pr.compile(walk, backend="numpy")
    seen = program.probe(noise, bounds={T: 5}, seed=3)
    np.testing.assert_allclose(np.cumsum(seen), program(bounds={T: 5}, seed=3), rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_bad_value_is_named(backend: str) -> None:
    y = pr.recurrent((), (t,))
    y[0] = 1.0
    y[t + 1] = y / x[t + 1]
    with pr.settings(check_nan=True):
        program = pr.compile(y, backend=backend)
    good = np.array([1, 2, 4], np.float32)
    np.testing.assert_array_equal(program(x=good), [1, 0.5, 0.125])
    with pytest.raises(NotFiniteError, match="div makes an infinity") as raised:
        program(x=np.array([1, 2, 0, 1], np.float32))
    assert "y[t + 1] = y / x[t + 1]" in str(raised.value)
    assert raised.value.point is not None
    assert raised.value.point["t"] in (1, 2)
    np.testing.assert_array_equal(program(x=good), [1, 0.5, 0.125])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bad_input_is_named_as_such(backend: str) -> None:
    with pr.settings(check_nan=True):
        program = pr.compile(x * 2, backend=backend)
    with pytest.raises(NotFiniteError, match="the input 'x' has a NaN") as raised:
        program(x=np.array([1, np.nan], np.float32))
    assert raised.value.point == {"t": 1}


@pytest.mark.parametrize("backend", BACKENDS)
def test_infinities_that_were_written_are_allowed(backend: str) -> None:
    masked = pr.where(x > 0, x, -np.inf)
    with pr.settings(check_nan=True):
        program = pr.compile({"masked": masked, "top": masked[0:T].max(0)}, backend=backend)
    out = program(x=np.array([-1, 2], np.float32))
    np.testing.assert_array_equal(out["masked"], [-np.inf, 2])


def test_streams_check_too() -> None:
    for backend in BACKENDS:
        with pr.settings(check_nan=True):
            program = pr.compile(pr.log(x), backend=backend)
        stream = program.stream(over=t, x=np.array([1, 0], np.float32))
        assert float(next(stream)) == 0.0
        with pytest.raises(NotFiniteError):
            next(stream)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_progress_of_long_runs(
    backend: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_bar, "DELAY", 0.0)
    monkeypatch.setattr(progress_bar, "INTERVAL", 0.0)
    values = np.ones(20, np.float32)
    pr.compile(running_sum(), backend=backend)(x=values)
    lines = capsys.readouterr().err.strip().split("\n")
    assert lines[0].startswith("polyrhythm: 0 of ")
    total = int(lines[-1].split()[3])
    assert int(lines[-1].split()[1]) == total >= 20
    with pr.settings(progress=False):
        pr.compile(running_sum(), backend=backend)(x=values)
    assert capsys.readouterr().err == ""


def test_short_runs_show_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    pr.compile(running_sum(), backend="numpy")(x=np.ones(20, np.float32))
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress_bar, "DELAY", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    pr.compile(running_sum(), backend="numpy")(x=np.ones(20, np.float32))
    assert "polyrhythm:" not in capsys.readouterr().err


def test_a_call_that_cannot_report_shows_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_bar, "DELAY", 0.0)
    loops = pr.compile(running_sum(), backend="numpy").compiled.loops
    progress_bar.Reporter(loops, {"T": 5}).at(-1, 0)
    assert "polyrhythm: running for" in capsys.readouterr().err
    progress_bar.Reporter(loops, {"T": 5}, wanted=False).at(-1, 0)
    assert capsys.readouterr().err == ""


SCRIPT = """
import jax, numpy as np, polyrhythm as pr
from polyrhythm.compiler.backends.jax.run import executables
executables.LEAST = 0  # however fast the machine compiles
hits = []
jax.monitoring.register_event_listener(lambda event, **rest: hits.append(event))
t, T = pr.dim("t")
x = pr.input("x", (64,), (t,))
w = pr.input("w", (64, 64))
y = pr.recurrent((64,), (t,))
y[0] = x[0]
y[t + 1] = pr.tanh(y @ w) + pr.softmax(x[t + 1] @ w)
program = pr.compile({"y": y, "m": y[0:T].mean(0)}, backend="jax")
program(x=np.ones((5, 64), "float32"), w=np.ones((64, 64), "float32"))
kept = [c for c in program.stats.compilations if c.reason.endswith("as an earlier process compiled it")]
print(sum(h.endswith("cache_hits") for h in hits) + len(kept), "trace" in program.stats.seconds)
"""


def run_script(cache: str) -> list[str]:
    environment = {**os.environ, "POLYRHYTHM_CACHE": cache, "JAX_PLATFORMS": "cpu"}
    for name in ("JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS"):  # simple code is compiled too fast to be kept
        environment.pop(name, None)
    found = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    return found.stdout.split()


def test_compiled_programs_survive_the_process(tmp_path: Path) -> None:
    assert run_script(str(tmp_path)) == ["0", "True"]
    assert list(tmp_path.iterdir())
    hits, _ = run_script(str(tmp_path))
    assert int(hits) >= 1


@pytest.mark.slow
def test_no_cache_where_none_is_wanted() -> None:
    assert run_script("") == ["0", "True"]
    assert run_script("") == ["0", "True"]


def test_bytes_that_a_pass_saves_are_told_as_saved() -> None:
    """Fusing the last operations of this program saves 28 bytes: a number of bytes without bounds."""
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    y = pr.recurrent((3,), (t,))
    y[0] = x[0]
    y[t + 1] = 0.9 * y + 0.1 * x[t + 1]
    with pr.settings(without=["accumulate"]):
        told = pr.compile({"last": y[T - 1], "mean": y[0:T].mean(0)}).explain()
    assert "keeps -" not in told
    assert "saves 3 launches a point, 28 bytes" in told


def test_the_schedule_reads_like_the_source() -> None:
    """The mean is added up in the loop, so one step of y is stored."""
    y = pr.recurrent((), (t,))
    y[0] = x[0]
    y[t + 1] = 0.9 * y + 0.1 * x[t + 1]
    program = pr.compile({"last": y[T - 1], "mean": y[0:T].mean(0)})
    lines = [line.partition("  #")[0] for line in program.schedule.splitlines()]
    assert lines == [
        "mean_reduce_running = 0.0",
        "y = x[0]",
        "mean_reduce_running = mean_reduce_running + y",
        "for t in 0 .. T - 2:",
        "    y = 0.9 * y + 0.1 * x[t + 1]",
        "    mean_reduce_running = mean_reduce_running + y",
        "last = y",
        "mean = mean_reduce_running / T",
    ]


def test_schedule_and_memory_speak_in_the_names_of_the_user() -> None:
    h = pr.input("h", (8,), (t,))
    W_k, W_v = pr.parameter("W_k", (8, 4)), pr.parameter("W_v", (8, 2))
    keys, values = h @ W_k, h @ W_v
    scores = pr.softmax(pr.einsum("sd,d->s", keys[0 : t + 1], keys))
    mixed = pr.einsum("s,sd->d", scores, values[0 : t + 1])
    program = pr.compile({"mixed": mixed[T - 1], "all": mixed})
    assert "keys[t] = einsum(h[t], W_k)  # 16 bytes" in program.schedule
    assert "values[t] = einsum(h[t], W_v)  # 8 bytes" in program.schedule
    places = [line.split()[1] for line in str(program.memory).splitlines()]
    assert places[:3] == ["h", "keys", "values"]  # 32, 16 and 8 bytes a step: the largest first
    sizes = [line.split(", ")[-1].split()[0] for line in str(program.memory).splitlines() if " keys " in line]
    assert "16*T bytes" in str(program.memory), sizes
    assert "_2 " not in program.schedule.replace("mixed_2", "")


def test_places_that_stay_as_they_are_are_not_shown() -> None:
    a = pr.input("a")
    b = pr.input("b")
    hidden = a * b - (a - b)
    assert pr.compile(hidden, backend="numpy").schedule == "hidden = a * b - (a - b)  # 4 bytes\n"


def test_explain_of_a_large_program_fits_on_two_screens() -> None:
    carts = rl.Arrays(rl.CartPole(), 8)
    model = rl.ActorCritic(carts.observations, carts.actions, (64, 64), np.random.default_rng(0))
    training = rl.ppo(carts, model)
    program = pr.compile(training.outputs, bounds=training.bounds)
    short, whole = program.explain(), program.explain(level=2)
    assert short.count("\n") < 100
    assert short.count("training = ") == 0  # the user's line says nothing here: parts of libraries do
    assert "rl/ppo.py: loss: " in short
    assert "policy.layers.0.weight_u" in short
    assert "explain(level=2)" in short
    assert "explain(level=2)" not in whole
    assert all(place.name in whole for place in program.compiled.loops.places.values())


def test_errors_name_the_part_of_a_library() -> None:
    layer = nn.Linear(4, 4)
    with pytest.raises(pr.errors.PolyrhythmError) as raised:
        layer(pr.input("three", (3,)))
    assert 'layer(pr.input("three", (3,)))' in str(raised.value)
    assert "in nn/layers.py: Linear" in str(raised.value)
