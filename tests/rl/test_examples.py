"""The examples run, for a few iterations; what they learn is in the slow lane."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_dqn_runs() -> None:
    assert np.isfinite(example("dqn").main(20, backend="numpy"))


def test_ppo_with_memories_runs() -> None:
    assert np.isfinite(example("ppo_transformer").main("gru", 10, envs=4, backend="numpy"))


@pytest.mark.slow
def test_dqn_learns() -> None:
    assert example("dqn").main(3_000) > 150


@pytest.mark.slow
def test_only_memories_solve_recall() -> None:
    assert example("ppo_transformer").main("transformer", 120) > 0.9
    assert example("ppo_transformer").main(None, 120) < -0.3
