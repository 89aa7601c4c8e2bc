"""Choosing by measurement: the results of the oracle whatever is chosen, told by `explain`, kept for later runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.run import calibration, tuning
from polyrhythm.compiler.backends.jax.run.tuning import TunedBackend
from polyrhythm.compiler.loops.cost import Machine
from polyrhythm.errors import DeclarationError, UnsupportedError

WIDTH = 4


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of its own for what is kept, and a machine that is calibrated at once."""
    monkeypatch.setenv("POLYRHYTHM_CACHE", str(tmp_path))
    monkeypatch.setattr(tuning, "calibrate", lambda: Machine(calibrated=True))
    monkeypatch.setattr(tuning, "HOPELESS", 1e9)
    return tmp_path


def attention() -> tuple[pr.Tensor, dict[str, Any]]:
    t, _ = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,))
    k, v = pr.tanh(x), pr.exp(x)
    y = pr.softmax(k[0 : t + 1] @ x, 0) @ v[0 : t + 1] + x
    return y, {"x": np.random.default_rng(0).normal(size=(40, WIDTH)).astype("float32")}


def fastest(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a candidate win, whatever the clock says; all of them run."""
    raced = TunedBackend._raced

    def decided(self: TunedBackend, ways: Any, *rest: Any) -> dict[str, float]:
        return {name: 1.0 if name == what else 2.0 for name in raced(self, ways, *rest)}

    monkeypatch.setattr(TunedBackend, "_raced", decided)


@pytest.mark.parametrize("winner", ["t: pr.chunk(16)", pytest.param("the model's choice", marks=pytest.mark.slow)])
def test_whatever_wins_the_results_are_those_of_the_oracle(
    winner: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fastest(winner, monkeypatch)
    y, inputs = attention()
    program = pr.compile(y, schedule="measure")
    assert "measured at the first call" in program.explain()
    for _ in range(2):
        np.testing.assert_allclose(program(**inputs), pr.evaluate(y, inputs), rtol=1e-4, atol=1e-5)
    (choice,) = program.backend.choices.values()
    assert set(choice.seconds) == {"the model's choice", "t: pr.loop()", "t: pr.chunk(16)"}
    chosen = {} if winner.startswith("the") else dict([winner.split(": ")])
    assert {dim: str(chunk) for dim, chunk in choice.chunks.items()} == chosen
    assert f"at T <= 64: {winner if chosen else 'what the cost model chose'}; measured: " in program.explain()


def test_a_choice_is_found_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fastest("t: pr.loop()", monkeypatch)
    y, inputs = attention()
    first = pr.compile(y, schedule="measure")
    first(**inputs)
    again = pr.compile(y, schedule="measure")
    np.testing.assert_allclose(again(**inputs), pr.evaluate(y, inputs), rtol=1e-4, atol=1e-5)
    assert len(again.stats.compilations) == 1 < len(first.stats.compilations)
    assert "t: pr.loop(); measured by an earlier run: " in again.explain()
    assert all(c.reason.startswith("tuning: ") for c in first.stats.compilations[:2])
    (path,) = (folder / "tuned").iterdir()
    path.write_text("{")  # a damaged file is as good as none
    damaged = pr.compile(y, schedule="measure")
    damaged(**inputs)
    assert len(damaged.stats.compilations) > 1


def test_a_dim_without_choice_is_not_measured(folder: Path) -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    total = pr.recurrent((), (t,))
    total[0] = x[0]
    total[t + 1] = total * x[t + 1]
    program = pr.compile(total, schedule="measure")
    program(x=np.ones(40, "float32"))
    assert "nothing to choose" in program.explain()


def test_what_cannot_be_tuned(folder: Path) -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    with pytest.raises(UnsupportedError, match="nothing to measure on numpy"):
        pr.compile(x * 2, backend="numpy", schedule="measure")
    with pytest.raises(DeclarationError, match="no schedule 'fast'"):
        pr.compile(x * 2, schedule="fast")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="host functions cannot be measured"):
        pr.compile(pr.host(np.sin, [x], ()), schedule="measure")


def test_calibrating_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRHYTHM_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "SIZES", (1 << 12, 1 << 14))
    assert calibration.known() == Machine()
    found = calibration.calibrate()
    assert calibration.known() == found
    assert found.calibrated
    assert min(found.call, found.launch, found.near, found.far, found.cache) > 0
    (path,) = tmp_path.glob("machine-*.json")
    kept = json.loads(path.read_text())
    for junk in ({"unknown": 1}, {"near": 0}, {"far": None}, {"cache": "a"}, {"call": "1"}, {"launch": -1.0}):
        path.write_text(json.dumps({**kept, **junk}))
        assert calibration.known() == Machine()


def test_each_kind_of_device_has_rates_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRHYTHM_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "SIZES", (1 << 12, 1 << 14))
    calibration.calibrate()
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind="NVIDIA A100-SXM4")])
    assert calibration.known() == Machine()
    faster = Machine(near=1e12, far=5e11, calibrated=True)
    (tmp_path / "machine-nvidia_a100_sxm4.json").write_text(json.dumps(asdict(faster)))
    assert calibration.known() == faster
