"""What an installation offers before anything else is imported: libraries by name, a version, a doctor."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import polyrhythm as pr
from polyrhythm import cli, doctor
from tests.children import forked, output_of

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("library", ["llm", "nn", "optim", "rl", "stream"])
def test_libraries_are_imported_when_they_are_named(library: str) -> None:
    code = f"import sys, polyrhythm as pr; m = 'polyrhythm.{library}'; assert m not in sys.modules; "
    code += f"assert pr.{library} is sys.modules[m]; assert {library!r} in dir(pr)"
    output_of(code)


def test_importing_imports_the_language_alone() -> None:
    code = "import sys, polyrhythm; print(*sys.modules)"
    found = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert not {"jax", "torch", "gymnasium", "typer", "rich", "safetensors"} & set(found)
    own = {name.split(".")[1] for name in found if name.startswith("polyrhythm.")}
    assert own <= {"compiler", "errors", "extras", "language", "source", "variables"}
    assert {name.split(".")[2] for name in found if name.startswith("polyrhythm.compiler.")} == {"ir"}


def test_importing_is_quick(tmp_path: Path) -> None:
    """From byte code, as an installation has it: a variable of the environment may forbid to write it."""
    code = "from time import process_time as now; a = now(); import numpy; b = now(); import polyrhythm; "
    code += "print(now() - a, b - a)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    made = [subprocess.check_output([sys.executable, "-c", code], env=environment).split() for _ in range(5)]
    ours, numpy = (min(map(float, times)) for times in zip(*made, strict=True))
    assert ours < max(0.3, 2.5 * numpy)  # where NumPy alone takes 0.12 s, the machine is slow or busy


def test_names_imported_later_are_those_of_their_modules() -> None:
    code = "import polyrhythm as pr; before = set(vars(pr)); from polyrhythm import *; "
    code += "assert sorted(pr._LATER) == sorted(set(pr.__all__) - before); "
    code += "assert compile is pr.compile is sys.modules['polyrhythm.runtime.program'].compile"
    subprocess.run([sys.executable, "-c", f"import sys; {code}"], check=True)


HIDDEN = """
import sys, importlib.abc
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
import numpy as np, polyrhythm as pr
"""


@pytest.mark.parametrize(
    ("package", "extra", "code"),
    [
        ("torch", "torch", "pr.compile(pr.input('x') + 1, backend='torch')"),
        ("torch", "torch", "pr.torch_function(lambda x: x, [pr.input('x', (2,))])"),
        ("torch", "torch", "pr.compile(pr.input('x') + 1, backend='numpy').as_torch()"),
        ("tokenizers", "llm", "import tempfile; pr.llm.write_random(tempfile.mkdtemp())"),
        ("jinja2", "llm", "from polyrhythm.llm import ChatTemplate; ChatTemplate('hi').render([])"),
        ("optax", "optax", "pr.optim.optax(None, {}, {}, None)"),
        ("gymnasium", "rl", "from polyrhythm.rl import presets; presets.source('CartPole-v1', 1, False, 0)"),
        ("gymnasium", "rl", "pr.rl.threaded([])"),
        ("starlette", "serve", "from polyrhythm.llm.serving import application"),
    ],
)
def test_a_missing_extra_is_named_with_the_line_to_type(package: str, extra: str, code: str) -> None:
    ran = forked(HIDDEN + code, package)
    assert ran.returncode == 1
    assert f"pip install 'polyrhythm[{extra}]'" in ran.stderr, ran.stderr


def test_the_shell_can_complete() -> None:
    shown = CliRunner().invoke(cli.app, ["--help"])
    assert "--install-completion" in shown.output


def test_exit_codes() -> None:
    assert CliRunner().invoke(cli.app, ["no-such-command"]).exit_code == 2
    assert CliRunner().invoke(cli.app, ["generate", "no-such-folder", "-p", "hi"]).exit_code == 1


def test_every_command_has_a_row_on_its_page() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    names = {command.name or command.callback.__name__ for command in cli.app.registered_commands if command.callback}
    assert {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")} == names


def test_commands_on_pages_have_the_options_that_they_are_shown_with() -> None:
    commands: Any = typer.main.get_command(cli.app)
    shown = 0
    for page in (DOCS.parent / "README.md", *DOCS.rglob("*.md")):
        page_text = page.read_text(encoding="utf-8")
        lines = re.findall(r"^ *(?:echo .*\| )?polyrhythm ([a-z].*)$", page_text, re.MULTILINE)
        for line in [*lines, *re.findall(r"`polyrhythm ([a-z][^`\n]*)`", page_text)]:
            name, *words = shlex.split(line.split(" #")[0].split(" > ")[0])
            parameters = commands.commands[name].params
            known = {"--help", *(option for one in parameters for option in (*one.opts, *one.secondary_opts))}
            options = [word for word in words if word.startswith("--")]
            if name == "train" and not known.issuperset(options):  # those of the algorithm
                asked = CliRunner().invoke(cli.app, ["train", *words, "--print-config"])
                assert asked.exit_code == 0, asked.output
            else:
                assert known.issuperset(options), f"{page.name}: {line}"
            shown += 1
    assert shown > 30


def test_a_script_that_fails_is_told_in_few_lines(tmp_path: Path) -> None:
    wrong = 't, T = pr.dim("t")\nx = pr.input("x", (), (t,))\npr.compile(x[t - 1], backend="numpy")\n'
    command = ["report", "script.py"]
    for text, code, told in (
        (f"import polyrhythm as pr\n{wrong}", 1, "OutOfRangeError: x[t - 1] may lie outside x"),
        ("import sys\nsys.exit(3)\n", 3, ""),
        ("1 / 0\n", 1, "ZeroDivisionError"),
        ("raise KeyboardInterrupt\n", 130, ""),
        ("print(1)\n", 1, "compiles no program"),
    ):
        (tmp_path / "script.py").write_text(text, encoding="utf-8")
        ran = forked(f"import os; os.chdir({str(tmp_path)!r}); from polyrhythm.cli import main; main()", *command)
        assert (ran.returncode, told in ran.stderr) == (code, True), ran.stderr
        assert ("Traceback" in ran.stderr) == (told == "ZeroDivisionError")


def test_what_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'polyrhythm' has no attribute 'nothing'"):
        _ = pr.nothing


def test_the_version() -> None:
    shown = CliRunner().invoke(cli.app, ["--version"])
    assert shown.exit_code == 0
    assert shown.output.strip() == f"polyrhythm {pr.__version__}" == f"polyrhythm {version('polyrhythm')}"


def test_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor, "_seconds", lambda size: 1.0 + size / (1 << 18))
    shown = CliRunner().invoke(cli.app, ["doctor"])
    assert shown.exit_code == 0, shown.output
    for line in (
        "python",
        "jaxlib",
        "pip install 'polyrhythm[rl]'",
        "C kernel",
        "bandwidth",
        "4 programs give on XLA what they define",
        "are updated in place",
    ):
        assert line in shown.output


def test_the_doctor_finds_copies_and_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_seconds", lambda size: float(size))
    assert "FAIL  in place    XLA copies buffers in loops (256 times as long)" in str(doctor._canary())
    assert (
        str(doctor._installed("no-such-package")) == "FAIL  no-such-package not installed: pip install no-such-package"
    )
    monkeypatch.setattr(doctor, "findings", lambda: iter([doctor.Finding("a", "b", good=False)]))
    assert CliRunner().invoke(cli.app, ["doctor"]).exit_code == 1
