"""`python -m tests.drill [--seconds 600]`: the fuzzer against each bug in turn, and a table of what it found.

The last line is a control without any bug, in which nothing may be found. The exit code is 1 if a bug was not found
within the time, which is for each, or if the control found one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from tests.drill.bugs import BUGS
from tests.drill.one import CONTROL


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
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
