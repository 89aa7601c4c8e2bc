"""The page of benchmarks says what the kept results say."""

from __future__ import annotations

import json

from benchmarks.tables import FIGURES, PAGE, README, RESULTS, names, page, readme


def test_the_page_is_made_from_the_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it with `python -m benchmarks.tables`"


def test_the_figures_of_the_readme_are_those_of_the_results() -> None:
    assert README.read_text(encoding="utf-8") == readme(), "write it with `python -m benchmarks.tables`"
    assert len(FIGURES) >= 6
    assert "slower |" in readme(), "a table without a loss is not believed"


def test_every_result_is_shown_and_says_where_it_is_from() -> None:
    assert {path.stem for path in RESULTS.glob("*.json")} == set(names())
    for path in RESULTS.glob("*.json"):
        kept = json.loads(path.read_text(encoding="utf-8"))
        assert all(kept[fact] for fact in ("command", "machine", "when", "results")), path.name
        assert path.stat().st_size < 50_000
