"""The bugs of the drill still fit the source, and are bugs: the change is one, and two of them are found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.drill.__main__ import KEPT, PAGE, written
from tests.drill.bugs import BUGS, Bug
from tests.drill.inject import changed


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_fits_the_source(bug: Bug) -> None:
    found = find_spec(bug.module)
    assert found is not None
    assert found.origin is not None
    source = Path(found.origin).read_text(encoding="utf-8")
    wrong = changed(bug, source)
    assert wrong != source
    compile(wrong, found.origin, "exec")


def test_each_has_a_name() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 22


def test_the_table_is_that_of_what_was_found() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page, json.loads(KEPT.read_text(encoding="utf-8")))


@pytest.mark.slow
def test_nothing_is_kept_for_other_processes(tmp_path: Path) -> None:
    environment = {**os.environ, "POLYRHYTHM_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "tests.drill.one", "33", "60"]
    subprocess.run(command, env=environment, capture_output=True, check=False)
    assert not (tmp_path / "compiled").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 12])
def test_is_found(number: int) -> None:
    command = [sys.executable, "-m", "tests.drill.one", str(number), "300"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
