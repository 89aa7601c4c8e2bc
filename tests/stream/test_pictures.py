"""The pictures of the documentation are those that the code draws today."""

from __future__ import annotations

from pathlib import Path

from benchmarks.streams.pictures import pictures

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"


def test_pictures_are_up_to_date() -> None:
    for name, text in pictures().items():
        assert (FOLDER / name).read_text() == text + "\n", f"run: python -m benchmarks.streams.pictures {FOLDER}"
