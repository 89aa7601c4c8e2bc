"""`python -m tests.drill [--seconds 600]`: the fuzzer against each bug in turn, and a table of what it found.

The last line is a control without any bug, in which nothing may be found. The exit code is 1 if a bug was not found
within the time, which is for each, or if the control found one. What was found is kept in `found.json`, and from it the
table in `docs/testing.md` is written.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.drill.bugs import BUGS
from tests.drill.one import CONTROL

KEPT = Path(__file__).with_name("found.json")
PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
BEGIN, END = "<!-- drill -->\n", "<!-- end of drill -->"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.drill")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--only", type=int, nargs="*", default=range(len(BUGS)), help="numbers of bugs, from 0")
    parser.add_argument("--control", type=float, default=300, help="seconds of the run without a bug")
    arguments = parser.parse_args()
    print(f"{'bug':62} {'seconds':>7} {'programs':>8}  found by")
    found = [_shown(BUGS[number].name, str(number), arguments.seconds) for number in arguments.only]
    wrong = _shown("none: the control", CONTROL, arguments.control) if arguments.control else False
    print(f"{sum(found)} of {len(found)} found; " + ("THE CONTROL FAILED" if wrong else "nothing found without a bug"))
    return int(wrong or not all(found))


def _shown(name: str, which: str, limit: float) -> bool:
    """One line of the table; whether something was found."""
    command = [sys.executable, "-m", "tests.drill.one", which, str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = done.stdout.strip().splitlines()[-1:] or [f"-\t-\tfailed: {done.stderr.strip()[-200:]}"]
    seconds, tried, how = last[0].split("\t", 2)
    print(f"{name:62} {seconds:>7} {tried:>8}  {how}", flush=True)
    if done.returncode == 0 and which != CONTROL:
        kept = {**json.loads(KEPT.read_text()), name: {"seconds": int(seconds), "programs": int(tried), "by": by(how)}}
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), kept), encoding="utf-8")
    return done.returncode == 0


def by(how: str) -> str:
    """What found a bug, by the first line of its error.

    >>> by("GrammarError: a read"), by("IllegalProgramError: the loops"), by("output 'y': at [0]: 1 instead of 2")
    ('the grammar', 'the checker of loops', 'a wrong result')
    """
    kinds = {"the grammar": ("GrammarError", "after "), "the checker of loops": ("IllegalProgramError",)}
    kinds["a wrong result"] = ("output", "gradient", "slope", "AssertionError")
    return next((kind for kind, first in kinds.items() if how.startswith(first)), "another error")


def written(page: str, found: Mapping[str, Any]) -> str:
    """The page with the table of the bugs that have been found, and how many have no result."""
    rows = [(bug.name, found[bug.name]) for bug in BUGS if bug.name in found]
    lines = ["| bug | seconds | programs | found by |", "|---|---|---|---|"]
    lines += [f"| {name} | {row['seconds']} | {row['programs']} | {row['by']} |" for name, row in rows]
    if len(rows) < len(BUGS):
        lines += ["", f"{len(BUGS) - len(rows)} of the {len(BUGS)} bugs have no result that is kept."]
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + "\n".join(lines) + "\n\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    sys.exit(main())
