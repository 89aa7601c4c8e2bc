"""The command `polyrhythm train`: its log, and runs that go on exactly where they were stopped."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from polyrhythm.cli import app
from polyrhythm.rl.train import Row, source, train


class Stopped(Exception):
    """As if the process had been killed."""


@pytest.mark.parametrize(
    ("algorithm", "compiled", "backend", "kind"),
    [
        ("reinforce", False, "numpy", "json"),
        ("ppo", False, "jax", "csv"),
        pytest.param("reinforce", True, "numpy", "csv", marks=pytest.mark.slow),
        pytest.param("ppo", True, "jax", "json", marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_goes_on_exactly(tmp_path: Path, algorithm: str, compiled: bool, backend: str, kind: str) -> None:
    def run(name: str, iterations: int = 5, stop: int | None = None) -> dict[str, Any]:
        def show(row: Row) -> None:
            if row["iteration"] == stop:
                raise Stopped

        return train(
            algorithm,
            source("CartPole-v1", 2, compiled, seed=3),
            iterations,
            hidden=(),
            seed=3,
            log=str(tmp_path / f"{name}.{kind}"),
            checkpoint=str(tmp_path / name),
            every=2,
            backend=backend,
            show=show,
            steps=16,
            **({"n": 1} if algorithm == "reinforce" else {}),
        )

    whole = run("whole")
    with pytest.raises(Stopped):
        run("parts", stop=3)
    result = run("parts")
    for name, weight in whole["weights"].items():
        assert np.array_equal(result["weights"][name], weight), name
    assert np.array_equal(result["return"], whole["return"])
    text = (tmp_path / f"whole.{kind}").read_text()
    assert (tmp_path / f"parts.{kind}").read_text() == text
    lines = text.splitlines()
    rows: list[Any] = list(map(json.loads, lines)) if kind == "json" else list(csv.DictReader(lines))
    assert [int(row["iteration"]) for row in rows] == list(range(5))
    assert [float(row["return"] or 0) for row in rows] == whole["return"].tolist()
    assert [bool(row["return"]) for row in rows] == (whole["episodes"] > 0).tolist()
    assert whole["episodes"].sum() > 2


@pytest.mark.parametrize("length", [["--iterations", "2"], ["--total-steps", "16"]])
def test_command(tmp_path: Path, length: list[str]) -> None:
    log = tmp_path / "log.csv"
    sizes = ["--num-envs", "2", "--num-steps", "4", *length, "--hidden", ""]
    arguments = ["--compiled", *sizes, "--learning-rate", "0.01", "--backend", "numpy"]
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
        (["ppo", "--env", "nowhere:Nothing-v0"], "no environment 'nowhere:Nothing-v0'"),
        (["ppo", "--compiled", "--num-envs", "3", "--num-steps", "5"], "5 steps of 3 environments"),
        (["ppo", "--compiled", "--log", "nowhere/run.csv"], "no folder 'nowhere'"),
    ],
)
def test_what_does_not_exist_is_named(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["train", *arguments])
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize("argument", ["--num-envs", "--num-steps", "--iterations", "--every", "--seed"])
def test_numbers_that_are_too_small_are_refused(argument: str) -> None:
    result = CliRunner().invoke(app, ["train", "ppo", argument, "-1"])
    assert result.exit_code == 2
    assert argument in result.stderr


def test_sizes_that_are_none_are_refused() -> None:
    result = CliRunner().invoke(app, ["train", "ppo", "--hidden", "64,x"])
    assert result.exit_code == 2
    assert "--hidden" in result.stderr
