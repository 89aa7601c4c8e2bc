"""Where time goes: the blocks and loops of a run, its memory, a trace for Perfetto."""

from __future__ import annotations

import json
import statistics
import time
from contextlib import nullcontext
from pathlib import Path

import jax
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.run import watch


def program(backend: str, progress: bool = True) -> tuple[pr.Program, pr.Bound]:
    t, T = pr.dim("t")
    w = pr.input("w", (96, 96))
    h = pr.recurrent((8, 96), (t,))
    h[0] = 1.0
    busy = h @ w
    for _ in range(6):
        busy = pr.tanh(busy @ w)
    h[t + 1] = busy
    small = pr.recurrent((), (t,))
    small[0] = 0.0
    small[t + 1] = small + 1
    with pr.settings(progress=progress):
        return pr.compile({"h": h[T - 1], "small": small[T - 1]}, backend=backend), T


@pytest.mark.parametrize("backend", ["numpy", pytest.param("torch", marks=pytest.mark.slow), "jax"])
def test_the_time_is_where_the_work_is(backend: str, tmp_path: Path) -> None:
    made, T = program(backend)
    w = np.eye(96, dtype="float32")
    expected = made(w=w, bounds={T: 300})
    profile = made.profile(w=w, bounds={T: 300}, trace=tmp_path / "trace.json")
    assert np.allclose(profile.results["h"], expected["h"])
    assert float(profile.results["small"]) == 299
    busiest = max((name for name in profile.blocks if name != "(other)"), key=profile.blocks.__getitem__)
    assert "busy" in busiest
    loop = max(profile.loops.values())
    assert 0 < loop <= 1.01 * profile.seconds
    assert busiest in str(profile)
    assert "<pre>" in profile._repr_html_()
    trace = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert any(event["name"] == busiest and event["ph"] == "X" for event in trace)
    assert any(event["ph"] == "C" and event["args"]["bytes"] > 1e6 for event in trace)
    assert made.profiled is profile


def test_a_program_with_host_functions_runs_once() -> None:
    calls = []
    t, T = pr.dim("t")

    def noted(value: np.ndarray) -> np.ndarray:
        calls.append(float(value))
        return value

    seen = pr.host(noted, [pr.value(t).cast("float32")])
    made = pr.compile(seen[0:T].sum(0), backend="numpy")
    assert float(made.profile(bounds={T: 4}).results) == 6
    assert sorted(calls) == [0, 1, 2, 3]


def test_xla_operations_carry_the_names_of_the_user() -> None:
    made, T = program("jax")
    made(w=np.eye(96, dtype="float32"), bounds={T: 3})
    (compiled,) = made.backend.executor.programs.values()
    assert "/for t/" in compiled.as_text()
    assert "/busy" in compiled.as_text()


def test_the_profiler_of_jax_shows_the_names_of_the_user(tmp_path: Path) -> None:
    made, T = program("jax")
    w = np.eye(96, dtype="float32")
    made(w=w, bounds={T: 3})
    with jax.profiler.trace(str(tmp_path)):
        jax.block_until_ready(made(w=w, bounds={T: 3}))
    (trace,) = tmp_path.rglob("*.xplane.pb")
    assert b"for t/" in trace.read_bytes()
    assert b"/busy" in trace.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_profiling_slows_a_run_by_less_than_a_third(backend: str) -> None:
    made, T = program(backend)
    w, count = np.eye(96, dtype="float32"), 3000 if backend == "numpy" else 20000
    made(w=w, bounds={T: count})
    off, on = [], []
    for _ in range(5):
        started = time.perf_counter()
        made(w=w, bounds={T: count})
        off.append(time.perf_counter() - started)
        on.append(made.profile(w=w, bounds={T: count}).seconds)
    assert statistics.median(on) < 1.3 * statistics.median(off)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [40, 20_000])
def test_what_is_not_profiled_costs_no_more(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of scopes, watched loops and the bar, which a program has for profiles and progress, cost under 5 %."""
    made: dict[bool, tuple[pr.Program, pr.Bound]] = {True: program("jax")}
    w = np.eye(96, dtype="float32")
    made[True][0](w=w, bounds={made[True][1]: steps})
    with monkeypatch.context() as bare:
        bare.setattr(jax, "named_scope", lambda name: nullcontext())
        bare.setattr(watch, "available", lambda: False)
        made[False] = program("jax")
        made[False][0](w=w, bounds={made[False][1]: steps})
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(100 if steps < 100 else 12):
        for whole, (one, T) in made.items():
            started = time.process_time()
            jax.block_until_ready(one(w=w, bounds={T: steps}))
            times[whole].append(time.process_time() - started)
    print({whole: min(found) for whole, found in times.items()})
    assert min(times[True]) < 1.05 * min(times[False]) + 2e-5
