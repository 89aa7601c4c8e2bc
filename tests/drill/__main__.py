"""`python -m tests.drill [--seconds 600]`: the fuzzer against each bug in turn, and a table of what it found.

The exit code is 1 if a bug was not found within the time, which is for each.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from tests.drill.bugs import BUGS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.drill")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--only", type=int, nargs="*", default=range(len(BUGS)), help="numbers of bugs, from 0")
    arguments = parser.parse_args()
    missed = 0
    print(f"{'bug':62} {'seconds':>7} {'programs':>8}  found by")
    for number in arguments.only:
        command = [sys.executable, "-m", "tests.drill.one", str(number), str(arguments.seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        last = done.stdout.strip().splitlines()[-1:] or [f"-\t-\tfailed: {done.stderr.strip()[-200:]}"]
        seconds, tried, how = last[0].split("\t", 2)
        print(f"{BUGS[number].name:62} {seconds:>7} {tried:>8}  {how}", flush=True)
        missed += done.returncode != 0
    print(f"{len(list(arguments.only)) - missed} of {len(list(arguments.only))} found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
