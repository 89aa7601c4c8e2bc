"""Counts of several sessions of the fuzzer add up to one table."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz import log


def test_rounds_of_two_sessions_add_up(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "log.jsonl"
    first: log.Counts = {"session": {"programs": 10, "minutes": 30.0}, "features": {"range": 4}, "compiled": {}}
    then: log.Counts = {
        "session": {"programs": 25, "minutes": 60.0},
        "features": {"range": 4, "window": 7},
        "compiled": {"jax ran": 2},
        "verdicts": {"refused": 5},
    }
    log.append(path, 1, "abc", first, {}, None)
    log.append(path, 2, "def", {"session": {"programs": 100, "minutes": 60.0}, "features": {"range": 1}}, {}, "a bug")
    log.append(path, 1, "abc", then, first, None)
    shown = log.summary(log.read(path))
    assert "125 programs in 2.0 hours, 2 seeds, commits abc, def; 1 failures\nseed 2, def: a bug\n" in shown
    assert "features of 120 programs" in shown
    assert [shown.count(f"{name:<26}{count:>6}") for name, count in (("range", 5), ("window", 7))] == [1, 1]
    assert "compiled: jax ran 2" in shown
