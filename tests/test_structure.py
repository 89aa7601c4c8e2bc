"""The limits that keep the package readable: size of files, import cycles, number of options."""

from __future__ import annotations

import inspect

import polyrhythm as pr
from tests.structure import core_lines, counts, cycles, modules

MOST_LINES = 600
MOST_CORE_LINES = 31_347
"""Of the compiler core, by `make count`. It grows by what features need: raise it on purpose, lower it when you can."""

MOST_STREAM_LINES = 7_500
"""Of `polyrhythm.stream`, Python alone."""

MOST_OPTIONS = 14


def test_no_file_is_too_long() -> None:
    long = {name: lines for name, path in modules().items() if (lines := path.read_text().count("\n")) > MOST_LINES}
    assert not long


def test_the_core_stays_small() -> None:
    assert core_lines() <= MOST_CORE_LINES, "look for what the change makes useless, then raise the limit on purpose"


def test_streams_stay_small() -> None:
    assert counts()["stream"][0] <= MOST_STREAM_LINES


def test_no_import_cycle_even_inside_functions() -> None:
    assert list(cycles()) == []


def test_few_options_of_compile() -> None:
    names = [name for name in inspect.signature(pr.compile).parameters if name != "outputs"]
    assert len(names) <= MOST_OPTIONS, names
