"""What the compiler has made of a program, found by a second process if the program is the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HEAD = """
import json, sys
import numpy as np
import polyrhythm as pr
from polyrhythm.compiler.backends import kept

kept.LEAST = 0.0
t, T = pr.dim("t")
l, L = pr.dim("l", max=3)
"""
TAIL = """
stats = program.stats
given = np.random.default_rng(0).normal(size=(20, 128)).astype("float32")
found = np.asarray(program(x=given))
np.testing.assert_allclose(found, pr.evaluate(y, {"x": given}, bounds=fixed), atol=1e-4)
print(json.dumps(["schedule" in stats.seconds, found.tolist(), program.explain(2)]))
"""
LAYERS = """
x = pr.input("x", (128,), (t,))
start = np.random.default_rng(FACTOR).normal(size=(3, 128, 128)).astype("float32") / 12
w = pr.parameter("w", (128, 128), start, dims=((l, 3),))
h = pr.recurrent((128,), ((l, L + 1), t))
h[0] = x
before = pr.recurrent((128,), (l, t))
before[t < 1] = 0.0
before[t >= 1] = h[l + 1, t - 1]
h[l + 1] = pr.tanh(h @ w + before)
y = h[L]
fixed = {L: 3}
program = pr.compile(y, bounds=fixed)
"""
CONSTANT = """
x = pr.input("x", (128,), (t,))
y = pr.recurrent((128,), (t,))
y[0] = x[0]
y[t + 1] = y * FACTOR + x[t + 1]
fixed = {}
program = pr.compile(y)
"""
FUNCTION = """
def back(g, y, z):
    return g * FACTOR

x = pr.input("x", (128,), (t,))
y = pr.grad(pr.sum(pr.custom_vjp(pr.tanh, back)(x)[0:T]), x)
fixed = {}
program = pr.compile(y)
"""


def run(cache: Path | str, body: str, factor: float = 2, before: str = "") -> tuple[bool, Any, str]:
    """Whether the compiler was at work, the results, and what the program says of itself."""
    script = cache / "script.py" if isinstance(cache, Path) else Path("script.py")
    text = before + HEAD + body.replace("FACTOR", str(factor)) + TAIL
    environment = {**os.environ, "POLYRHYTHM_CACHE": str(cache)}
    if isinstance(cache, Path):
        script.write_text(text)
        command = [sys.executable, str(script)]
    else:
        command = [sys.executable, "-c", text]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    ordered, found, explained = json.loads(made.stdout)
    return ordered, found, explained


def untimed(explained: str) -> list[str]:
    return [line for line in explained.splitlines() if " ms" not in line]


@pytest.mark.parametrize("body", [LAYERS, CONSTANT])
def test_a_second_process_orders_nothing(tmp_path: Path, body: str) -> None:
    ordered, expected, explained = run(tmp_path, body)
    assert ordered
    again, found, same = run(tmp_path, body)
    assert not again
    assert found == expected
    assert untimed(same) == untimed(explained)
    assert run("", body)[0]


def test_a_program_that_has_moved_is_the_same_and_has_the_lines_of_today(tmp_path: Path) -> None:
    _, expected, explained = run(tmp_path, CONSTANT)
    ordered, found, moved = run(tmp_path, CONSTANT, before="# a line\n" * 7)
    assert not ordered
    assert found == expected
    line = next(n for n, text in enumerate((tmp_path / "script.py").read_text().splitlines(), 1) if "y[t + 1]" in text)
    assert f"script.py:{line}" in moved
    assert f"script.py:{line - 7}" in explained


def test_other_values_of_constants_are_another_program_those_of_parameters_are_not(tmp_path: Path) -> None:
    run(tmp_path, CONSTANT)
    assert run(tmp_path, CONSTANT, factor=3)[0]
    _, first, _ = run(tmp_path, LAYERS)
    ordered, second, _ = run(tmp_path, LAYERS, factor=3)
    assert not ordered
    assert first != second, "the values are those of the second program"


def test_what_holds_a_function_is_compiled_anew(tmp_path: Path) -> None:
    """Its name would be the same after a change."""
    for factor in (2, 3):
        _, found, _ = run(tmp_path, FUNCTION, factor=factor)
        assert found[0][0] == factor


def test_files_that_are_damaged_or_that_others_may_have_written_are_not_opened(tmp_path: Path) -> None:
    _, expected, _ = run(tmp_path, LAYERS)
    files = [path for path in (tmp_path / "compiled").iterdir() if not path.suffix]
    assert len(files) == 2  # the program, and its loops written out
    for path in files:
        path.chmod(0o666)
    assert run(tmp_path, LAYERS)[0]
    mark = tmp_path / "mark"
    for path in files:
        path.chmod(0o600)
        path.write_bytes(f"cbuiltins\nopen\n(V{mark}\nVw\ntR.".encode())  # a pickle that writes a file
    ordered, found, _ = run(tmp_path, LAYERS)
    assert ordered
    assert found == expected
    assert not mark.exists()
    assert not run(tmp_path, LAYERS)[0]
