"""The bugs of the drill still fit the source, and are bugs: the change is one, and two of them are found."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

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


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 12])
def test_is_found(number: int) -> None:
    command = [sys.executable, "-m", "tests.drill.one", str(number), "300"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
