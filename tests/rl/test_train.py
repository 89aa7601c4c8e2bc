"""The command `polyrhythm train`: its log, and runs that go on exactly where they were stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from polyrhythm.cli import app
from polyrhythm.rl.train import source, train


class Stopped(Exception):
    """As if the process had been killed."""


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_stopped_run_goes_on_exactly(tmp_path: Path, compiled: bool) -> None:
    def run(name: str, iterations: int = 5, stop: int | None = None, checkpoint: bool = True) -> dict[str, Any]:
        def show(row: dict[str, float]) -> None:
            if row["iteration"] == stop:
                raise Stopped

        return train(
            "reinforce",
            source("CartPole-v1", 2, compiled, seed=3),
            iterations,
            hidden=(),
            seed=3,
            log=str(tmp_path / f"{name}.json"),
            checkpoint=str(tmp_path / name) if checkpoint else None,
            every=2,
            backend="numpy",
            show=show,
            steps=15,
            n=1,
        )

    whole = run("whole", checkpoint=False)
    with pytest.raises(Stopped):
        run("parts", stop=3)
    result = run("parts")
    for name, weight in whole["weights"].items():
        assert np.array_equal(result["weights"][name], weight), name
    assert np.array_equal(result["return"], whole["return"])
    assert (tmp_path / "parts.json").read_text() == (tmp_path / "whole.json").read_text()
    rows = [json.loads(line) for line in (tmp_path / "whole.json").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == list(range(5))
    assert [row["return"] for row in rows] == whole["return"].tolist()
    assert whole["episodes"].sum() > 2


def test_command(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    arguments = ["--compiled", "--envs", "2", "--steps", "4", "--iterations", "2", "--hidden", "", "--backend", "numpy"]
    result = CliRunner().invoke(app, ["train", "a2c", *arguments, "--log", str(log)])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("steps/s") == 2
    assert log.read_text().splitlines()[0].startswith("iteration,return,episodes")
    assert len(log.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dqn"], "no algorithm 'dqn'"),
        (["ppo", "--env", "Nothing-v0"], "no environment 'Nothing-v0'"),
        (["ppo", "--env", "Acrobot-v1", "--compiled"], "no array environment"),
    ],
)
def test_what_does_not_exist_is_named(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["train", *arguments])
    assert result.exit_code == 1
    assert message in result.stderr
