"""The command `polyrhythm train`: its log, and runs that go on exactly where they were stopped."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from typer.testing import CliRunner

import polyrhythm as pr
from polyrhythm.cli import app
from polyrhythm.rl.curves import band
from polyrhythm.rl.logs import Row
from polyrhythm.rl.presets import source
from polyrhythm.rl.seeds import train_seeds
from polyrhythm.rl.train import train


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
            **dict[str, Any]({"n": 1} if algorithm == "reinforce" else {}),
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
    assert result.stdout.count("compiled in") == 1
    assert result.stdout.count("steps/s") == 1
    assert log.read_text().splitlines()[0].startswith("iteration,return,episodes")
    assert len(log.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dreamer"], "no algorithm 'dreamer'"),
        (["ppo", "--env", "Nothing-v0"], "no environment 'Nothing-v0'"),
        (["ppo", "--env", "LunarLander-v3", "--compiled"], "no array environment"),
        (["ppo", "--env", "nowhere:Nothing-v0"], "no environment 'nowhere:Nothing-v0'"),
        (["ppo", "--compiled", "--num-envs", "3", "--num-steps", "5"], "5 steps of 3 environments"),
        (["ppo", "--compiled", "--log", "nowhere/run.csv"], "no folder 'nowhere'"),
        (["ppo", "--compiled", "--log", "run.txt"], "CSV or JSON"),
        (["ppo", "--compiled", "--learning-rate", "-1"], "learning_rate is -1.0"),
        (["ppo", "--compiled", "--gamma", "1.5"], "gamma is 1.5"),
        (["ppo", "--compiled", "--epochs", "two"], "epochs is 'two'"),
        (["ppo", "--compiled", "--clip-rnage", "0.1"], "no setting '--clip-rnage'"),
        (["ppo", "--compiled", "--gamma"], "--gamma has no value"),
        (["dqn", "--compiled", "--env", "Pendulum-v1"], "one choice of several"),
        (["sac", "--compiled", "--memory", "lstm"], "does not know memory"),
        (["ppo", "--env", "Catch"], "add --compiled"),
        (["ppo", "--num-seeds", "2"], "compiled environments"),
        (["ppo", "--config", "nowhere.toml"], "nowhere.toml cannot be read"),
        (["ppo", "--compiled", "--hidden", "64,x"], "'64,x' is not a list of sizes"),
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


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_run_is_a_folder(tmp_path: Path) -> None:
    """Settings from a file and from the command line; figures for TensorBoard; evaluation, and the best weights."""
    config, folder, board = tmp_path / "mine.toml", tmp_path / "run", tmp_path / "board"
    config.write_text('env = "CartPole-v1"\ncompiled = true\nhidden = "4"\nnum-envs = 2\ngamma = 0.9\nsteps = 32\n')
    options = ["--config", str(config), "--iterations", "4", "--learning-rate", "0.02", "--backend", "numpy"]
    options += ["--evaluate-every", "2", "--evaluate-episodes", "3", "--tensorboard", str(board)]
    run("train", "reinforce", *options, "--output", str(folder))
    facts = tomllib.loads((folder / "run.toml").read_text())
    assert facts["gamma"] == 0.9
    assert facts["learning_rate"] == 0.02
    rows = list(csv.DictReader((folder / "log.csv").read_text().splitlines()))
    assert [bool(row["evaluation"]) for row in rows] == [False, True, False, True]
    scores = [float(row["evaluation"]) for row in rows if row["evaluation"]]
    for flags, wanted in (([], scores[-1]), (["--best"], max(scores))):
        said = run("evaluate", str(folder), "--episodes", "3", "--backend", "numpy", *flags)
        assert float(said.split()[1]) == pytest.approx(wanted, abs=0.01)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    events = EventAccumulator(str(board))
    events.Reload()
    returns = [(int(row["iteration"]), float(row["return"])) for row in rows if row["return"]]
    found = [(event.step // 64 - 1, event.value) for event in events.Scalars("return")]
    assert [step for step, _ in found] == [step for step, _ in returns]
    np.testing.assert_allclose([value for _, value in found], [value for _, value in returns], rtol=1e-6)
    run("plot", f"a={folder}", f"a={folder}/log.csv", "--output", str(tmp_path / "curves.svg"))
    assert "<svg" in (tmp_path / "curves.svg").read_text()
    film = tmp_path / "film.gif"
    said = run("play", str(folder), "--video", str(film))
    with PIL.Image.open(film) as images:
        assert 1 < images.n_frames <= float(said.split()[1])  # type: ignore[attr-defined]
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path)])
    assert "no trained run" in result.stderr


def test_several_seeds_are_what_each_gives_alone(tmp_path: Path) -> None:
    carts = source("CartPole-v1", 2, compiled=True)
    rates = np.array([0.01, 0.01, 3.0], np.float32)
    rate = pr.input("rate", ())
    both = train_seeds("reinforce", carts, 6, [3, 4, 4], (4,), inputs={"rate": rates}, steps=16, learning_rate=rate)
    for k, seed in ((0, 3), (2, 4)):
        alone = train("reinforce", carts, 6, hidden=(4,), seed=seed, steps=16, learning_rate=float(rates[k]))
        np.testing.assert_allclose(both["return"][k], alone["return"], rtol=1e-4)
    assert (both["return"][1] != both["return"][2]).any()


def test_an_interrupted_run_is_saved_and_goes_on(tmp_path: Path) -> None:
    """As Ctrl-C does: between two checkpoints the run saves itself where it is."""
    asked: list[Row] = []

    def learn(folder: str, stop: Any = None) -> dict[str, Any]:
        carts = source("CartPole-v1", 2, compiled=False, seed=1)
        log = str(tmp_path / f"{folder}.csv")
        options: dict[str, Any] = {"backend": "numpy", "hidden": (), "steps": 8, "every": 100, "log": log, "stop": stop}
        return train("reinforce", carts, 9, checkpoint=str(tmp_path / folder), show=asked.append, **options)

    whole = learn("whole")
    asked.clear()
    with pytest.raises(KeyboardInterrupt):
        learn("parts", stop=lambda: len(asked) >= 4)
    assert 4 <= len(asked) < 9
    done = len(asked)
    found = learn("parts")
    assert len(asked) == 9  # none of them twice
    assert done < 9
    assert np.array_equal(found["return"], whole["return"])
    assert (tmp_path / "parts.csv").read_text() == (tmp_path / "whole.csv").read_text()


def test_bands_of_curves() -> None:
    from scipy import stats

    runs = np.random.default_rng(0).normal(size=(5, 7))
    mean, half = band(runs)
    low, high = stats.t.interval(0.95, 4, runs.mean(0), stats.sem(runs, 0))
    np.testing.assert_allclose(mean - half, low, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(mean + half, high, rtol=2e-3, atol=2e-3)


def test_seeds_alone_can_be_traced() -> None:
    """`jax.vmap` over nothing but the seed gives what each seed gives."""
    import jax

    t, T = pr.dim("t")
    program = pr.compile(pr.uniform((2,), dims=(t,), name="x"))
    found = jax.vmap(lambda seed: program(bounds={T: 3}, seed=seed))(np.array([0, 5, 2**31 - 1]))
    for k, seed in enumerate([0, 5, 2**31 - 1]):
        np.testing.assert_array_equal(found[k], program(bounds={T: 3}, seed=seed))
