"""The command `polyrhythm train`: its log, and runs that go on exactly where they were stopped."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import pytest
from typer.testing import CliRunner

import polyrhythm as pr
from polyrhythm import rl
from polyrhythm.cli import app
from polyrhythm.nn.files import load
from polyrhythm.rl.curves import band
from polyrhythm.rl.evaluation import Evaluator
from polyrhythm.rl.logs import Row, TensorBoard
from polyrhythm.rl.presets import source
from polyrhythm.rl.seeds import train_seeds
from polyrhythm.rl.train import ALGORITHMS, model_for, parted, train


class Stopped(Exception):
    """As if the process had been killed."""


@pytest.mark.parametrize(
    ("algorithm", "compiled", "backend", "kind"),
    [
        ("reinforce", False, "numpy", "json"),
        pytest.param("ppo", False, "jax", "csv", marks=pytest.mark.slow),
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
        (["ppo", "--env", "cartpole", "--compiled"], "use 'CartPole-v1'"),
        (["ppo", "--env", "nowhere:Nothing-v0"], "no environment 'nowhere:Nothing-v0'"),
        (["ppo", "--compiled", "--num-envs", "3", "--num-steps", "5"], "5 steps of 3 environments"),
        (["ppo", "--compiled", "--log", "nowhere/run.csv"], "no folder 'nowhere'"),
        (["ppo", "--compiled", "--log", "run.txt"], "CSV or JSON"),
        (["ppo", "--compiled", "--learning-rate", "-1"], "learning_rate is -1.0"),
        (["ppo", "--compiled", "--gamma", "1.5"], "gamma is 1.5"),
        (["ppo", "--compiled", "--epochs", "two"], "epochs is 'two'"),
        (["ppo", "--compiled", "--clip-rnage", "0.1"], "no setting '--clip-rnage'"),
        (["ppo", "--compiled", "--clip-rnage", "0.1"], "did you mean --clip-range?"),
        (["ppo", "--compiled", "--gamma"], "--gamma has no value"),
        (["dqn", "--compiled", "--env", "Pendulum-v1"], "one choice of several"),
        (["sac", "--compiled", "--memory", "lstm"], "does not know memory"),
        (["a2c", "--compiled", "--memory", "lstm"], "train it by rl.ppo"),
        (["ppo", "--env", "Catch"], "add --compiled"),
        (["ppo", "--num-seeds", "2"], "compiled environments"),
        (["ppo", "--gamma", "0.9,0.99"], "compiled environments"),
        (["ppo", "--compiled", "--gamma", "0.9,2"], "gamma is 2.0"),
        (["ppo", "--compiled", "--epochs", "1,2"], "epochs has several values, 1,2, but decides what is compiled"),
        (["ppo", "--compiled", "--num-seeds", "2", "--evaluate-every", "5"], "which has no --evaluate-every"),
        (["ppo", "--config", "nowhere.toml"], "nowhere.toml cannot be read"),
        (["ppo", "--compiled", "--hidden", "64,x"], "'64,x' is not a list of sizes"),
        (["dqn", "--compiled", "--v-max", "1"], "the model of dqn does not know v_max"),
        (["ppo", "--compiled", "--shared", "perhaps"], "shared is 'perhaps', not true or false"),
        (["ppo", "--compiled", "--iterations", "2", "--total-steps", "99"], "say the same"),
        (["ppo", "--compiled", "--num-steps", "8", "--steps", "16"], "say the same"),
        (["ppo", "--compiled", "--gamma", "0.9,0.90"], "gamma has a value twice"),
        (["c51", "--compiled", "--v-min", "5", "--v-max", "5"], "from a least to a greatest, not (5.0, 5.0)"),
        (["ppo", "--compiled", "--output", "README.md"], "README.md: File exists"),
    ],
)
def test_what_does_not_exist_is_named(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["train", *arguments])
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("Ant-v5", "mujoco", "mujoco"), ("ALE/Pong-v5", "ale_py", "atari"), ("LunarLander-v3", "Box2D", "box2d")],
)
def test_what_is_not_installed_is_named(monkeypatch: Any, name: str, package: str, extra: str) -> None:
    for loaded in [n for n in sys.modules if n.split(".")[0] == package or n.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    result = CliRunner().invoke(app, ["train", "ppo", "--env", name])
    assert result.exit_code == 1
    assert f"pip install 'polyrhythm[{extra}]'" in result.stderr


def shown(*arguments: str) -> dict[str, Any]:
    """All options and settings that a command would train with."""
    return tomllib.loads(run("train", *arguments, "--print-config"))


def test_settings_come_from_presets_then_a_file_then_the_command_line(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('env = "Pendulum-v1"\ncompiled = true\nseed = 7\nhidden = [8, 8]\nshared = true\ngamma = 0.8\n')
    found = shown("ppo", "--config", str(config), "--learning-rate", "2e-3")
    assert {"seed": 7, "hidden": "8,8", "shared": True, "gamma": 0.8, "learning_rate": 0.002}.items() <= found.items()
    assert found["epochs"] == 10  # of the preset
    assert found["iterations"] == 400_000 // (8 * 128)
    assert shown("ppo", "--config", str(config), "--seed", "3")["seed"] == 3
    assert shown("ppo", "--config", str(config), "--total-steps", "2048")["iterations"] == 2
    again = tmp_path / "again.toml"
    again.write_text(run("train", "ppo", "--config", str(config), "--print-config"))
    assert shown("ppo", "--config", str(again)) == shown("ppo", "--config", str(config))
    assert shown("c51", "--compiled", "--v-min", "-500", "--atoms", "21")["v_min"] == -500.0
    config.write_text("hidden = 8\niterations = 3\nsteps = 16\n")
    assert shown("ppo", "--config", str(config))["hidden"] == "8"
    longer = shown("ppo", "--config", str(config), "--total-steps", "2048", "--num-steps", "32")
    assert (longer["iterations"], longer["steps"]) == (8, 32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = -1", "seed is -1"),
        ("seed = 1.5", "seed is 1.5, not an integer"),
        ("gamma = true", "gamma is True, not a number"),
        ("env = 3", "env is 3, not a text"),
        ('algorithm = "dqn"', "is not of ppo"),
        ("iterations = 3\ntotal_steps = 100", "say the same"),
    ],
)
def test_files_that_make_no_sense_are_refused(tmp_path: Path, text: str, message: str) -> None:
    config = tmp_path / "mine.toml"
    config.write_text(text)
    result = CliRunner().invoke(app, ["train", "ppo", "--compiled", "--config", str(config)])
    assert (result.exit_code, message in result.stderr) == (1, True), result.stderr


def test_logs_that_are_none_are_not_drawn(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    for text, name, message in (
        ("iteration,return\n1,x\n", "a.svg", "is not a log of figures"),
        ("iteration,loss\n1,2\n", "a.svg", "has no figure 'return'"),
        ("iteration,return\n1,2\n", "a.xyz", "is not a picture by its name"),
    ):
        log.write_text(text)
        result = CliRunner().invoke(app, ["plot", str(log), "--output", str(tmp_path / name)])
        assert (result.exit_code, message in result.stderr) == (1, True), result.stderr


def test_every_algorithm_has_its_settings_on_the_command_line() -> None:
    for name, algorithm in ALGORITHMS.items():
        env = "Pendulum-v1" if name in ("sac", "td3", "ddpg") else "CartPole-v1"
        found = shown(name, "--compiled", "--env", env)
        for field in [*fields(algorithm.settings), *fields(algorithm.options)]:
            default = found.get(field.name, field.default)
            if default is not None and not isinstance(default, str):
                option = "--" + field.name.strip("_").replace("_", "-")
                assert shown(name, "--compiled", "--env", env, option, str(default)) == found, option


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
    run("train", "reinforce", *options, "--output", str(folder), "--log", str(tmp_path / "own.csv"))
    assert (tmp_path / "own.csv").read_bytes() == (folder / "log.csv").read_bytes()
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
    result = CliRunner().invoke(app, ["train", "reinforce", *options, "--gamma", "0.8", "--output", str(folder)])
    assert "gamma is 0.9 there and 0.8 here" in result.stderr
    assert tomllib.loads((folder / "run.toml").read_text()) == facts
    film = tmp_path / "film.gif"
    said = run("play", str(folder), "--video", str(film))
    with PIL.Image.open(film) as images:
        assert 1 < images.n_frames <= float(said.split()[1])  # type: ignore[attr-defined]
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path)])
    assert "no trained run" in result.stderr
    kept = (folder / "run.toml").read_text()
    for text, said in (
        ("garbage", "cannot be read"),
        ('algorithm = "ppo"\n', "does not say the env of its run"),
        (kept.replace("compiled = true", "compiled = 2"), "compiled is 2, not true or false"),
    ):
        (folder / "run.toml").write_text(text)
        result = CliRunner().invoke(app, ["evaluate", str(folder)])
        assert (result.exit_code, said in result.stderr) == (1, True), result.stderr


def test_several_seeds_are_what_each_gives_alone(tmp_path: Path) -> None:
    carts = source("CartPole-v1", 2, compiled=True)
    rates = np.array([0.01, 0.01, 3.0], np.float32)
    rate = pr.input("rate", ())
    both = train_seeds("reinforce", carts, 6, [3, 4, 4], (4,), inputs={"rate": rates}, steps=16, learning_rate=rate)
    for k, seed in ((0, 3), (2, 4)):
        alone = train("reinforce", carts, 6, hidden=(4,), seed=seed, steps=16, learning_rate=float(rates[k]))
        np.testing.assert_allclose(both["return"][k], alone["return"], rtol=1e-4)
    assert (both["return"][1] != both["return"][2]).any()


def test_several_values_of_a_setting_are_what_each_gives_alone(tmp_path: Path) -> None:
    """From the command line: with each of the same seeds, and a log of its own."""
    config, size = (
        tmp_path / "mine.toml",
        ["--num-envs", "2", "--num-steps", "16", "--iterations", "6", "--hidden", "4"],
    )
    shared = ["train", "reinforce", "--compiled", *size, "--seed", "3"]
    options = ["--num-seeds", "2", "--learning-rate", "0.01,3.0", "--gamma", "0.5,0.9"]
    config.write_text(run(*shared, *options, "--print-config"))
    assert tomllib.loads(config.read_text())["learning_rate"] == [0.01, 3.0]
    run("train", "reinforce", "--config", str(config), "--num-seeds", "2", "--log", str(tmp_path / "log.csv"))
    assert len(list(tmp_path.glob("log*.csv"))) == 4
    run(*shared, "--learning-rate", "3.0", "--gamma", "0.5", "--seed", "4", "--log", str(tmp_path / "alone.csv"))
    alone = list(csv.DictReader((tmp_path / "alone.csv").read_text().splitlines()))
    both = list(csv.DictReader((tmp_path / "log-learning_rate=3,gamma=0.5.csv").read_text().splitlines()))
    assert [row["seed"] for row in both] == ["0"] * 6 + ["1"] * 6
    found, wanted = ([float(row["return"] or 0) for row in rows] for rows in (both[6:], alone))
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


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


def test_a_finished_run_is_extended(tmp_path: Path) -> None:
    """Three iterations and then five are five; what the folder says of the run stays if another one is refused."""
    options = ["--num-envs", "2", "--num-steps", "8", "--hidden", "", "--backend", "numpy", "--seed", "2"]
    for folder, counts in (("whole", [5]), ("parts", [3, 5])):
        for count in counts:
            run("train", "reinforce", *options, "--iterations", str(count), "--output", str(tmp_path / folder))
    for name in ("log.csv", "run.toml", "weights.safetensors"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert "all 5 iterations are there" in run(
        "train", "reinforce", *options, "--iterations", "5", "--output", str(tmp_path / "parts")
    )
    said = (tmp_path / "parts" / "run.toml").read_text()
    other = ["--gamma", "0.5", "--iterations", "6", "--output", str(tmp_path / "parts")]
    result = CliRunner().invoke(app, ["train", "reinforce", *options, *other])
    assert "CheckpointMismatchError" in result.stderr
    assert (tmp_path / "parts" / "run.toml").read_text() == said


@pytest.mark.slow
def test_control_c_saves_and_ends_within_a_second(tmp_path: Path) -> None:
    """A real process and a real signal; the run goes on to what it would have been."""
    arguments = ["train", "ppo", "--num-envs", "2", "--num-steps", "16", "--iterations", "60", "--hidden", "8"]
    arguments += ["--backend", "numpy", "--every", "1000", "--output"]
    command = [sys.executable, "-m", "polyrhythm.cli", *arguments]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True, timeout=300)
    process = subprocess.Popen([*command, str(tmp_path / "parts")], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    began = time.perf_counter()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.perf_counter() - began < 1.0
    assert not (tmp_path / "parts" / "weights.safetensors").exists()
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path / "parts")])
    assert "train it to its end by the same command" in result.stderr
    subprocess.run([*command, str(tmp_path / "parts")], check=True, capture_output=True, timeout=300)
    for name in ("log.csv", "weights.safetensors"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.parametrize("reward", [False, True])
def test_agents_are_evaluated_with_the_statistics_they_learnt_with(tmp_path: Path, reward: bool) -> None:
    """While training, and from the file of the best; returns are the environment's, whatever was learnt from."""
    places = rl.Pendulum(limit=10)
    options: dict[str, Any] = {"hidden": (4,), "steps": 16, "learning_rate": 0.05, "backend": "numpy"}
    options |= {"evaluate_every": 1, "best": str(tmp_path / "best.safetensors")}
    normalised = rl.Normalized(rl.Arrays(places, 2), reward=reward)
    tests = rl.Normalized(rl.Arrays(places, 3), reward=reward)
    rows: list[Row] = []
    result = train("reinforce", normalised, 4, evaluation=tests, show=rows.append, **options)
    scores = [row["evaluation"] or 0.0 for row in rows]
    model = model_for("reinforce", tests, (4,))
    evaluator = Evaluator(tests, model, backend="numpy")
    last = {name: np.asarray(a) for name, a in result["statistics"].items()}
    assert evaluator(result["weights"], last).mean() == pytest.approx(scores[-1], rel=1e-5)
    assert evaluator(*parted(load(tmp_path / "best.safetensors"))).mean() == pytest.approx(max(scores), rel=1e-5)

    def by_hand(seen: pr.Tensor) -> pr.Tensor:
        scaled = (seen - last["observation_mean"]) / np.sqrt(last["observation_variance"] + 1e-8)
        weights = {name: pr.constant(np.asarray(w)) for name, w in result["weights"].items()}
        return model.using(weights).act(pr.clip(scaled, -10.0, 10.0))

    i, I = pr.dim("i")
    t, T = pr.dim("t")
    steps = rl.Arrays(places, 3).run(i, t, by_hand)
    found = pr.compile(steps.reward[{t: slice(0, T)}], backend="numpy")(bounds={I: 1, T: 10}, seed=evaluator.seed)
    np.testing.assert_allclose(evaluator(result["weights"], last), found[0].sum(0), rtol=1e-4)
    with pytest.raises(pr.errors.DeclarationError, match="without 'observation_mean'"):
        evaluator(result["weights"])
    with pytest.raises(pr.errors.DeclarationError, match="without 'policy"):
        evaluator({}, last)


def test_a_resumed_run_is_one_curve_in_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def learn(stop: int | None) -> None:
        def show(row: Row) -> None:
            if row["iteration"] == stop:
                raise Stopped

        options: dict[str, Any] = {"hidden": (), "steps": 8, "every": 2, "backend": "numpy", "show": show}
        sinks = [TensorBoard(str(tmp_path / "board"), 16)]
        train("reinforce", source("CartPole-v1", 2, True), 5, checkpoint=str(tmp_path / "run"), sinks=sinks, **options)

    with pytest.raises(Stopped):
        learn(3)
    time.sleep(1.1)  # the name of a file of events has the second it was begun
    learn(None)
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert [event.step for event in events.Scalars("episodes")] == [16, 32, 48, 64, 80]


def test_figures_go_to_weights_and_biases(monkeypatch: Any) -> None:
    noted: list[Any] = []
    run = SimpleNamespace(log=lambda row, step: noted.append((step, row)), finish=lambda: noted.append("finished"))

    def init(project: str, config: Any) -> Any:
        noted.append((project, config))
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    arguments = ["train", "reinforce", "--compiled", "--num-envs", "2", "--num-steps", "8", "--iterations", "2"]
    result = CliRunner().invoke(app, [*arguments, "--hidden", "", "--backend", "numpy", "--wandb", "mine"])
    assert result.exit_code == 0, result.output
    (project, config), *rows, end = noted
    assert (project, config["gamma"], end) == ("mine", 0.99, "finished")
    assert [step for step, _ in rows] == [16, 32]
    assert "episodes" in rows[0][1]


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
