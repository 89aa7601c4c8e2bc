"""`python -m tests.drill.one NUMBER SECONDS`: one bug is put in, then random programs until one shows it.

Prints what found it: a wrong result, a graph against the grammar, a program that the checker of loops refuses, or
an error where a right compiler has none. Exits with 1 if nothing did in time.
"""

from __future__ import annotations

import sys
import time

from tests.drill.bugs import BUGS
from tests.drill.inject import inject


def main() -> int:
    bug, limit = BUGS[int(sys.argv[1])], float(sys.argv[2])
    inject(bug)
    # Only now may the package be imported.
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis import strategies as st

    from tests.fuzz.programs import programs
    from tests.fuzz.subsets import Case, check_gradients, check_subset

    began, tried = time.monotonic(), 0
    lanes = {"numpy": (1, 0, 0), "torch": (0, 1, 0), "jax": (0, 0, 1)}

    def examples(case: Case) -> None:
        nonlocal tried
        if time.monotonic() - began > limit:
            return
        tried += 1
        if bug.lane == "gradients":
            check_gradients(case)
        else:
            check_subset(case, lanes.get(bug.lane, (0, 0, 0)))

    number = 0
    while time.monotonic() - began < limit:
        number += 1
        lane = "float" if bug.lane == "gradients" else ("int", "float")[number % 2]
        run = settings(
            max_examples=12,
            deadline=None,
            database=None,
            derandomize=False,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )(given(st.tuples(programs(lane), st.just(())))(examples))
        try:
            seed(number)(run)()
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            print(f"{time.monotonic() - began:.0f}\t{tried}\t{lines[0][:90]}")
            return 0
    print(f"{time.monotonic() - began:.0f}\t{tried}\tnot found")
    return 1


if __name__ == "__main__":
    sys.exit(main())
