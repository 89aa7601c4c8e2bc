"""`python -m tests.mutants [--count 200] [--seed 5]`: a random sample of mutants against a chosen list of tests.

A parent loads what the package imports, though not the package, and forks a child for each mutant; the child imports
the package with the change in it and runs the tests near the changed file, then programs on all backends and random
programs, until one fails. First comes a child without a change, which must pass everything; a mutant that takes much
longer than that does not end, and counts as found. Results go to `build/mutants.json` one by one, so that a run can be
stopped and goes on where it was. `docs/mutants.md` explains those that nothing noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import warnings
from collections import Counter
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.drill.inject import inject
from tests.mutants.operators import Mutant, applied, modules, mutants_of

ROOT = Path(__file__).parents[2]
FOLDERS = ("passes", "schedule", "loops", "backends")
OUT = Path("build/mutants.json")
SLACK = 20
"""Processor seconds more than twice those of a run without a change, after which a mutant counts as endless."""

NEAR = {
    "polyrhythm.passes": ("tests/passes",),
    "polyrhythm.schedule": ("tests/schedule",),
    "polyrhythm.loops.checker": ("tests/loops/test_legality.py", "tests/loops/test_legality_mutants.py"),
    "polyrhythm.loops": ("tests/loops", "tests/backends/test_growing.py"),
    "polyrhythm.backends.torch": ("tests/backends/test_torch_ops.py",),
    "polyrhythm.backends.jax": (
        "tests/backends/test_jax_ops.py",
        "tests/backends/test_lanes.py",
        "tests/backends/test_chunks.py",
        "tests/backends/test_growing.py",
        "tests/backends/test_copies.py",
        "tests/runtime/test_streams.py",
    ),
    "polyrhythm.backends": ("tests/runtime/test_calls.py", "tests/runtime/test_streams.py"),
}
"""The tests that are tried first, by the longest prefix of the module."""

ALWAYS = ("tests/runtime/test_programs.py", "tests/fuzz/test_passes.py", "tests/fuzz/test_programs.py")
"""What is tried after that."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--list", action="store_true", help="print the sample and stop")
    arguments = parser.parse_args()
    sample = drawn(arguments.count, arguments.seed)
    if arguments.list:
        print("\n".join(mutant.name for mutant in sample))
        return 0
    known: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    preloaded()
    limits: dict[str, float] = {}
    for number, mutant in enumerate(sample):
        if mutant.name in known:
            continue
        key = prefix(mutant.module)
        if key not in limits:
            verdict, seconds = judged(None, key, 0)
            assert verdict is None, f"without a change: {verdict}"
            limits[key] = 2 * seconds + SLACK
        verdict, seconds = judged(mutant, key, limits[key])
        known[mutant.name] = {"found": verdict, "seconds": round(seconds, 1)}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(known, indent=1) + "\n")
        print(f"{number + 1:4} {seconds:5.0f} s  {verdict or 'SURVIVED'}  {mutant.name}", flush=True)
    found = Counter(known[mutant.name]["found"] is not None for mutant in sample)
    print(f"{found[True]} of {len(sample)} found; {found[False]} survived")
    return 0


def drawn(count: int, seed: int) -> list[Mutant]:
    """The sample: the same one for the same source and seed."""
    return random.Random(seed).sample(every_mutant(), count)


@cache
def every_mutant() -> list[Mutant]:
    """The mutants of all files that are asked for."""
    return [m for name, source in modules(ROOT / "polyrhythm", FOLDERS) for m in mutants_of(name, source)]


def prefix(module: str) -> str:
    """The longest prefix of a module that tests are near to."""
    return max((name for name in NEAR if module == name or module.startswith(f"{name}.")), key=len)


def preloaded() -> None:
    """Import what the package and the tests import, so that children need not; nothing of the package itself."""
    import islpy
    import jax.numpy
    import numpy
    import pytest
    import torch

    assert "polyrhythm" not in sys.modules, (islpy, jax, numpy, pytest, torch)


def judged(mutant: Mutant | None, key: str, limit: float) -> tuple[str | None, float]:
    """What noticed a mutant, or None; and the processor seconds it took."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX does not like forks, but nothing of it has been started
        child = os.fork()
    if child == 0:
        os.close(reader)
        os.setsid()
        if limit:
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
        _run_child(mutant, key, writer)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    _, status, usage = os.wait4(child, 0)
    seconds = usage.ru_utime + usage.ru_stime
    if os.WIFSIGNALED(status):
        by = signal.Signals(os.WTERMSIG(status))
        return ("it does not end" if by == signal.SIGXCPU else f"it dies by {by.name}"), seconds
    return said or None, seconds


def _run_child(mutant: Mutant | None, key: str, writer: int) -> None:
    """Run the tests with the change in the package; write what failed. Does not return."""
    said = "the tests cannot be run"
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os.nice(5)
        if mutant is not None:
            inject(mutant.module, partial(applied, mutant))
        import pytest

        first = _First()
        options = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "--no-header",
            "--tb=no",
            "-W",
            "ignore::pytest.PytestAssertRewriteWarning",
        ]
        code = pytest.main([*options, *NEAR[key], *ALWAYS], plugins=[first])
        said = "" if code == 0 else first.failed or f"pytest ends with {int(code)}"
    except BaseException as error:
        said = f"{type(error).__name__}"
    finally:
        os.write(writer, said[:200].encode())
        os.close(writer)
        os._exit(0)


class _First:
    """A plugin that keeps the name of the first test that fails."""

    failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid or 'the package'} cannot be imported"


if __name__ == "__main__":
    sys.exit(main())
