"""Every example runs, is short, and is shown on the site with its picture."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import FOLDER, PICTURES, ROOT, names, run

SLOWER = {"ppo_transformer"}
"""Those that take long on NumPy."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOWER else n for n in names()])
def test_an_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(name), "it compiles no program"


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_an_example_runs_as_a_user_runs_it(name: str, tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, str(FOLDER / f"{name}.py")], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout


def test_there_are_many_and_each_is_short_and_shown() -> None:
    shown = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert len(names()) >= 15
    for name in names():
        text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(text)), name
        assert 30 <= len(text.splitlines()) <= 120, name
        assert f'--8<-- "examples/{name}.py"' in shown, f"docs/examples.md does not show {name}"
        assert f"pictures/examples/{name}.svg" in shown, name
        assert (PICTURES / f"{name}.svg").exists(), f"python -m tests.examples {name}"
