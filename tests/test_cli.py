"""The command line, run as a user would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from polyrhythm import llm
from polyrhythm.cli import app


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(llm.write_random(tmp_path_factory.mktemp("model"), num_hidden_layers=1))


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["generate", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_generate_prints_text_or_json(folder: str) -> None:
    found = json.loads(
        run(folder, "--prompt", "ab", "--prompt", "hello", "-n", "6", "--window", "4", "--plan", "--json")
    )
    model = llm.load(folder, attention=llm.window(4))
    expected = model.generate(["ab", "hello"], 6)
    assert [one["tokens"] for one in found["results"]] == [one.tokens.tolist() for one in expected]
    assert [one["finish_reason"] for one in found["results"]] == [one.finish_reason for one in expected]
    assert [one["prompt_tokens"] for one in found["results"]] == [2, 5]
    assert [one["completion_tokens"] for one in found["results"]] == [len(one.tokens) for one in expected]
    assert found["tokens_per_second"] > 0
    assert "for t in" in found["schedule"]
    assert "token" in found["memory"]


def test_a_stream_ends_as_the_whole_text(folder: str) -> None:
    text = run(folder, "--prompt", "ab", "-n", "6", "--backend", "numpy")
    assert text.startswith("ab")
    assert run(folder, "--prompt", "ab", "-n", "6", "--backend", "numpy", "--stream") == text


def test_a_prompt_from_standard_input(folder: str) -> None:
    options = ["generate", folder, "-n", "6", "--backend", "numpy"]
    piped = CliRunner().invoke(app, options, input="ab\n")
    assert piped.exit_code == 0, piped.output
    assert piped.stdout == run(folder, "--prompt", "ab", "-n", "6", "--backend", "numpy")
    empty = CliRunner().invoke(app, options, input="")
    assert empty.exit_code == 2
    assert "standard input is empty" in empty.stderr
    for command in (options, ["chat", folder, "--backend", "numpy"]):
        damaged = CliRunner().invoke(app, command, input=b"\xff\xfe\n")
        assert damaged.exit_code in (1, 2), damaged.output
        assert not isinstance(damaged.exception, UnicodeError)
    assert "standard input is no text" in CliRunner().invoke(app, options, input=b"\xff\n").stderr
    assert CliRunner().invoke(app, ["serve", folder, "--port", "99999"]).exit_code == 2


def test_a_chat_in_turns(tmp_path: Path) -> None:
    folder = llm.write_random(tmp_path, num_hidden_layers=1)
    template = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    options = ["chat", str(folder), "-n", "4", "--backend", "numpy", "--system", "x"]
    found = json.loads(CliRunner().invoke(app, [*options, "-m", "a", "-m", "b", "--json"]).stdout)
    model = llm.load(folder, backend="numpy")
    first = model.generate("s:x;u:a;", 4)
    second = model.generate(f"s:x;u:a;a:{first.text};u:b;", 4)
    assert [message["content"] for message in found["messages"]] == ["x", "a", first.text, "b", second.text]
    assert found["turns"][0]["completion_tokens"] == len(first.tokens)
    assert found["turns"][0]["finish_reason"] == first.finish_reason
    assert found["turns"][1]["prompt_tokens"] == second.prompt_tokens
    piped = CliRunner().invoke(app, options, input="a\n\nb\n")
    assert piped.stdout == f"{first.text}\n{second.text}\n"


def test_bench_of_a_model(folder: str) -> None:
    options = ["--prompt-tokens", "5", "-n", "4", "--batch-size", "2", "--repeat", "1", "--backend", "numpy"]
    found = json.loads(CliRunner().invoke(app, ["bench", folder, *options, "--json"]).stdout)
    assert found["decode_tokens_per_second"] > 0
    assert found["peak_rss_mb"] > found["weights_mb"] > 0
    assert "decode tokens per second  " in CliRunner().invoke(app, ["bench", folder, *options]).stdout


def test_info_of_a_model(folder: str) -> None:
    found = json.loads(CliRunner().invoke(app, ["info", folder, "--json"]).stdout)
    weights = load_file(f"{folder}/model.safetensors")
    assert found["parameters"] == sum(weight.size for weight in weights.values())
    assert (found["family"], found["layers"], found["tokenizer"], found["chat_template"]) == ("llama", 1, True, False)
    assert "parameters  " in CliRunner().invoke(app, ["info", folder]).stdout


def test_a_plan_is_shown_of_what_writes_nothing(folder: str) -> None:
    result = CliRunner().invoke(app, ["generate", folder, "-p", "ab", "-n", "0", "--backend", "numpy", "--plan"])
    assert result.exit_code == 0, result.output
    assert result.stdout == "ab\n"
    assert "schedule" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--stream", "--json"], "--stream"), (["--window", "0"], "--window"), (["--window", "-4"], "--window")],
)
def test_options_that_make_no_sense_are_refused(folder: str, options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["generate", folder, "-p", "ab", *options])
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_number_of_tokens_below_none(folder: str) -> None:
    result = CliRunner().invoke(app, ["generate", folder, "-p", "ab", "-n", "-1"])
    assert result.exit_code == 1
    assert result.stderr.startswith("PromptError: -1 new tokens")


def test_an_error_is_one_message_and_a_fix(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["generate", str(tmp_path / "nowhere"), "--prompt", "a"])
    assert result.exit_code == 1
    assert result.stderr.startswith("ModelMissingError: there is no folder")
    assert "fix: " in result.stderr


def test_calibrate_says_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRHYTHM_CACHE", str(tmp_path))
    monkeypatch.setattr("polyrhythm.compiler.backends.jax.run.calibration.SIZES", (1 << 12, 1 << 14))
    result = CliRunner().invoke(app, ["calibrate"])
    assert result.exit_code == 0, result.output
    assert "GB/s up to" in result.stdout
    assert list(tmp_path.glob("machine-*.json"))
