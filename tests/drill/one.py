"""`python -m tests.drill.one NUMBER SECONDS`: one bug is put in, then random programs until one shows it.

Prints what found it: a wrong result, a graph against the grammar, a program that the checker of loops refuses, or
an error where a right compiler has none. Exits with 1 if nothing did in time. With `control` for the number nothing is
put in, and every lane runs: then nothing may be found. Seconds are those of the processor.
"""

from __future__ import annotations

import gc
import sys
import time
from functools import partial

from tests.compiling import keep_nothing, share_contexts, simple_code
from tests.drill.bugs import BUGS
from tests.drill.inject import changed, inject

CONTROL = "control"


def main() -> int:
    bug, limit = None if sys.argv[1] == CONTROL else BUGS[int(sys.argv[1])], float(sys.argv[2])
    if bug is not None:
        inject(bug.module, partial(changed, bug))
    # Only now may the package be imported.
    gc.set_threshold(200_000, 20, 1_000)  # what compiling leaves lives long
    keep_nothing()
    simple_code()
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis import strategies as st

    from tests.compiler.gradients.test_random import check_slopes
    from tests.fuzz.mutate import rightly_refused
    from tests.fuzz.programs import programs, small_programs
    from tests.fuzz.special import (
        aligned,
        attended,
        begun,
        crossed,
        divided,
        paired,
        picked,
        ragged,
        recalled,
        resumed,
        running,
        stopped,
        swept,
    )
    from tests.fuzz.subsets import Case, check_gradients, check_subset, subsets

    began, tried = time.process_time(), 0
    first: Exception | None = None
    lanes = {"numpy": (1, 0, 0), "torch": (0, 1, 0), "jax": (0, 0, 1), "rows": (1, 0, 0), CONTROL: (1, 4, 6)}
    seen_in = CONTROL if bug is None else bug.lane

    def examples(case: Case) -> None:
        nonlocal tried, first
        if time.process_time() - began > limit:
            return
        tried += 1
        share_contexts()
        try:
            if seen_in in ("gradients", CONTROL):
                check_gradients(case)
            if seen_in == "slopes":
                check_slopes(case[0])
            elif seen_in != "gradients":
                check_subset(case, lanes.get(seen_in, (0, 0, 0)))
        except Exception as error:
            if not rightly_refused(case[0], error):
                first = first or error
                raise

    number = 0
    while time.process_time() - began < limit:
        number += 1
        lane = "float" if seen_in in ("gradients", "slopes") else ("int", "float")[number % 2]
        drawn = programs(lane)
        if seen_in in ("numpy", "torch"):
            drawn = st.one_of(small_programs(lane), drawn)
        if seen_in == "jax":
            drawn = st.one_of(small_programs(lane), drawn, paired(), swept(), begun(), recalled())
        if seen_in == "passes":
            drawn = st.one_of(drawn, drawn, aligned(), running(), running(), crossed(), resumed())
        drawn = st.one_of(drawn, drawn, attended(), picked(), running()) if seen_in == "gradients" else drawn
        drawn = st.one_of(drawn, drawn, divided()) if seen_in == "slopes" else drawn
        drawn = st.one_of(ragged(), stopped()) if seen_in == "rows" else drawn
        run = settings(
            max_examples=12,
            deadline=None,
            database=None,
            derandomize=False,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )(
            given(
                st.tuples(
                    drawn,
                    subsets() if bug is None else st.just(()),
                )
            )(examples)
        )
        try:
            seed(number)(run)()
        except Exception as error:
            lines = str(first or error).strip().splitlines() or [type(error).__name__]
            print(f"{time.process_time() - began:.0f}\t{tried}\t{lines[0][:90]}")
            return 0
    print(f"{time.process_time() - began:.0f}\t{tried}\tnot found")
    return 1


if __name__ == "__main__":
    sys.exit(main())
