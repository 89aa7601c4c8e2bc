"""Random schedules for a while: `python -m tests.stream.fuzz --schedules 20000`, or `make fuzz-streams`.

Prints how many were right and how many refused. A failure prints its seed, program and schedule, and the run goes on;
the exit code says whether there was one. `--seed` repeats a single case.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.stream.schedules import case, check


def main() -> int:
    """Run seeds; the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this seed, with its traceback")
    options = parser.parse_args()
    if options.seed is not None:
        print(describe(options.seed), check(options.seed), sep="\n")
        return 0
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    started = time.monotonic()
    for seed in range(options.first, options.first + options.schedules):
        try:
            counts[check(seed)] += 1
        except Exception as error:
            counts["failed"] += 1
            frame = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} {frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"
            kinds[kind] += 1
            if kinds[kind] <= 3:
                print(f"seed {seed}: {kind}: {str(error).strip()[:300]}\n{describe(seed)}", flush=True)
    print(dict(counts), f"{time.monotonic() - started:.0f} s")
    for kind, count in kinds.most_common():
        print(f"{count:6} {kind}")
    return counts["failed"]


def describe(seed: int) -> str:
    """A seed as text."""
    found = case(seed)
    sizes = ", ".join(f"{bound}={size}" for bound, size in found.bounds.items())
    return f"  {'; '.join(found.story)} | {sizes} | {', '.join(map(str, found.schedule))}"


if __name__ == "__main__":
    sys.exit(min(main(), 1))
