"""`python -m benchmarks [NAME] [--quick]`: run all benchmarks, or those of one module."""

from __future__ import annotations

import argparse
import os

from benchmarks import (
    attention,
    backends,
    compile_time,
    constants,
    decode_growth,
    loops,
    patterns,
    prefill,
    ragged,
    training,
)
from benchmarks.harness import report

MODULES = {
    "loops": loops,
    "attention": attention,
    "decode_growth": decode_growth,
    "prefill": prefill,
    "patterns": patterns,
    "training": training,
    "ragged": ragged,
    "backends": backends,
    "compile_time": compile_time,
    "constants": constants,
}


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description="benchmarks against hand-written peers")
    parser.add_argument("name", nargs="?", choices=MODULES, help="one module; all of them if left out")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds, to see that it runs")
    arguments = parser.parse_args()
    os.environ["POLYRHYTHM_CACHE"] = ""  # what an earlier run has compiled would hide the time of compiling
    for name in [arguments.name] if arguments.name else MODULES:
        report(name, MODULES[name].run(arguments.quick))


if __name__ == "__main__":
    main()
