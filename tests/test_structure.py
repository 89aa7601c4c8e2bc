"""The limits that keep the package readable: size of files, import cycles, number of options."""

from __future__ import annotations

import inspect
import re

import polyrhythm as pr
from tests.structure import ROOT, core_lines, counts, cycles, modules

MOST_LINES = 600
MOST_CORE_LINES = 32_500
"""Of the compiler core, by `make count`. It grows by what features need: raise it on purpose, lower it when you can."""

MOST_STREAM_LINES = 7_500
"""Of `polyrhythm.stream`, Python alone."""

MOST_OPTIONS = 10


def test_no_file_is_too_long() -> None:
    long = {name: lines for name, path in modules().items() if (lines := path.read_text().count("\n")) > MOST_LINES}
    assert not long


def test_the_core_stays_small() -> None:
    assert core_lines() <= MOST_CORE_LINES, "look for what the change makes useless, then raise the limit on purpose"


def test_streams_stay_small() -> None:
    assert counts()["stream"][0] <= MOST_STREAM_LINES


def test_no_import_cycle_even_inside_functions() -> None:
    assert list(cycles()) == []


def test_files_that_texts_name_exist() -> None:
    places = ("polyrhythm", "tests", "benchmarks", "examples", "docs")
    files = {str(path.relative_to(ROOT)) for place in places for path in (ROOT / place).rglob("*.py")}
    files.add("run.py")  # it is written into what is exported
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *modules().values()]
    named = {(text.name, name) for text in texts for name in re.findall(r"`([\w/]+\.py)`", text.read_text())}
    assert not [(text, name) for text, name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)]


def test_few_options_of_compile() -> None:
    names = [name for name in inspect.signature(pr.compile).parameters if name != "outputs"]
    assert len(names) <= MOST_OPTIONS, names
