"""What sessions of the fuzzer have seen, added up: every strategy of a round appends a line of JSON with what is new.

Lines of several sessions, also of some that run at the same time or were killed, add up to one table.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.fuzz.features import table

Counts = Mapping[str, Mapping[str, float]]
"""By kind (features, compiled, rules, verdicts, and the session itself) how often each name occurred."""


def commit() -> str:
    """The commit of this checkout, with a plus where files have changed since."""
    described = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(described, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def append(path: Path, seed: int, of: str, counts: Counts, before: Counts, found: str | None) -> None:
    """One line with what a round of a session added to its counts, and with the first line of what it found."""
    new = {
        kind: {name: count - before.get(kind, {}).get(name, 0) for name, count in each.items()}
        for kind, each in counts.items()
    }
    new = {kind: {name: count for name, count in each.items() if count} for kind, each in new.items()}
    line = {"seed": seed, "commit": of, **({"found": found} if found else {}), **new}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def summary(lines: Iterable[Mapping[str, Any]]) -> str:
    """The counts of some lines together, as text."""
    lines = list(lines)
    total: dict[str, Counter[str]] = {
        kind: Counter() for kind in ("session", "features", "compiled", "rules", "verdicts")
    }
    for line in lines:
        for kind, counts in total.items():
            counts.update(line.get(kind, {}))
    session, verdicts = total["session"], total["verdicts"]
    seeds, commits = ({line[name] for line in lines} for name in ("seed", "commit"))
    failures = [f"seed {line['seed']}, {line['commit']}: {line['found']}" for line in lines if "found" in line]
    return "\n".join(
        [
            f"{session['programs']} programs in {session['minutes'] / 60:.1f} hours, "
            f"{len(seeds)} seeds, commits {', '.join(sorted(commits))}; {len(failures)} failures",
            *failures,
            table(total["features"], int(session["programs"] - verdicts.total())),
            "compiled: " + ", ".join(f"{name} {count}" for name, count in sorted(total["compiled"].items())),
            "rules of passes: " + ", ".join(f"{name} {count}" for name, count in total["rules"].most_common()),
            "programs made wrong on purpose: " + ", ".join(f"{k} {v}" for k, v in verdicts.most_common()),
        ]
    )
