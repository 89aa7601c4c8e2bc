"""What the compiler has made of a program, found by a second process if the program is the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.children import output_of

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
    if isinstance(cache, Path):
        script.write_text(text)
    name = str(script) if isinstance(cache, Path) else "<string>"
    printed = output_of(text, environment={"POLYRHYTHM_CACHE": str(cache)}, name=name)
    ordered, found, explained = json.loads(printed)
    return ordered, found, explained


def untimed(explained: str) -> list[str]:
    return [line for line in explained.splitlines() if " ms" not in line]


Filled = tuple[Path, bool, Any, str]


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """The cache of a process that found nothing there, and what `run` says of it."""
    folder = tmp_path_factory.mktemp("cache")
    return folder, *run(folder, LAYERS)


@pytest.fixture(scope="module")
def constant(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    folder = tmp_path_factory.mktemp("cache")
    return folder, *run(folder, CONSTANT)


@pytest.mark.parametrize("body", ["layers", "constant"])
def test_a_second_process_orders_nothing(body: str, request: pytest.FixtureRequest) -> None:
    folder, ordered, expected, explained = request.getfixturevalue(body)
    assert ordered
    again, found, same = run(folder, {"layers": LAYERS, "constant": CONSTANT}[body])
    assert not again
    assert found == expected
    assert untimed(same) == untimed(explained)


def test_without_a_cache_nothing_is_found() -> None:
    assert run("", CONSTANT)[0]


def test_a_program_that_has_moved_is_the_same_and_has_the_lines_of_today(constant: Filled) -> None:
    folder, _, expected, explained = constant
    ordered, found, moved = run(folder, CONSTANT, before="# a line\n" * 7)
    assert not ordered
    assert found == expected
    line = next(n for n, text in enumerate((folder / "script.py").read_text().splitlines(), 1) if "y[t + 1]" in text)
    assert f"script.py:{line}" in moved
    assert f"script.py:{line - 7}" in explained


def test_other_values_of_constants_are_another_program_those_of_parameters_are_not(
    constant: Filled, layers: Filled
) -> None:
    assert run(constant[0], CONSTANT, factor=3)[0]
    folder, _, first, _ = layers
    ordered, second, _ = run(folder, LAYERS, factor=3)
    assert not ordered
    assert first != second, "the values are those of the second program"


def test_what_holds_a_function_is_compiled_anew(tmp_path: Path) -> None:
    """Its name would be the same after a change."""
    for factor in (2, 3):
        _, found, _ = run(tmp_path, FUNCTION, factor=factor)
        assert found[0][0] == factor


def test_files_that_are_damaged_or_that_others_may_have_written_are_not_opened(layers: Filled, tmp_path: Path) -> None:
    folder, _, expected, _ = layers
    cache = shutil.copytree(folder, tmp_path / "cache")
    files = [path for path in (cache / "compiled").iterdir() if not path.suffix]
    assert len(files) == 2  # the program, and its loops written out
    for path in files:
        path.chmod(0o666)
    assert run(cache, LAYERS)[0]
    mark = tmp_path / "mark"
    for path in files:
        path.chmod(0o600)
        path.write_bytes(f"cbuiltins\nopen\n(V{mark}\nVw\ntR.".encode())  # a pickle that writes a file
    ordered, found, _ = run(cache, LAYERS)
    assert ordered
    assert found == expected
    assert not mark.exists()
    assert not run(cache, LAYERS)[0]
