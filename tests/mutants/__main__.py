"""`python -m tests.mutants [--count 200] [--seed 5]`: a random sample of mutants against chosen tests.

A parent loads what the package imports, though not the package, and forks a child for each mutant; the child imports
the package with the change in it and runs tests until one fails. First all mutants meet a short list, the most telling
tests of their folder; those that nothing notices then meet a long one. Each list must pass without a change, and a
mutant that takes much longer than that does not end, and counts as found. Results go to `build/mutants.json` one by
one, so that a run can be stopped and goes on where it was. `docs/mutants.md` explains those that nothing noticed.
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
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.drill.inject import inject
from tests.mutants.operators import Mutant, applied, modules, mutants_of

ROOT = Path(__file__).parents[2]
FOLDERS = tuple(f"compiler/{name}" for name in ("passes", "schedule", "loops", "legality", "backends"))
OUT = Path("build/mutants.json")

SLACK = 20
"""Processor seconds more than twice those of a run without a change, after which a mutant counts as endless."""

PROGRAMS = "tests/runtime/test_programs.py"
RANDOM = ("tests/fuzz/test_passes.py", "tests/fuzz/test_programs.py")

HOSTED = tuple(
    f"polyrhythm.compiler.backends.jax.run.{n}" for n in ("packing", "host_driver", "host_regions", "stepping")
)
"""The modules for programs that call host functions, or go step by step."""

SHORT: dict[str, tuple[str, ...]] = {
    "polyrhythm.compiler.passes": (
        PROGRAMS,
        *(f"tests/compiler/passes/test_{n}.py" for n in ("structure", "lift", "narrow", "share")),
    ),
    "polyrhythm.compiler.schedule": (PROGRAMS, "tests/compiler/schedule/test_hoisting.py"),
    "polyrhythm.compiler.legality": (PROGRAMS, "tests/compiler/legality/test_legality.py"),
    "polyrhythm.compiler.loops": (
        PROGRAMS,
        *(f"tests/compiler/loops/test_{n}.py" for n in ("growth", "segments", "units")),
    ),
    "polyrhythm.compiler.backends.torch": (PROGRAMS, "tests/compiler/backends/test_torch_ops.py"),
    "polyrhythm.compiler.backends.jax": (
        PROGRAMS,
        *(f"tests/compiler/backends/test_{n}.py" for n in ("lanes", "chunks", "scalars")),
    ),
    "polyrhythm.compiler.backends.jax.ops": ("tests/compiler/backends/test_jax_ops.py",),
    **dict.fromkeys(HOSTED, (PROGRAMS, "tests/runtime/test_calls.py", "tests/runtime/test_streams.py")),
    "polyrhythm.compiler.backends.jax.run.growing": ("tests/compiler/backends/test_growing.py",),
    "polyrhythm.compiler.backends": (PROGRAMS,),
}
"""The tests that every mutant meets, by the longest prefix of the module."""

LONG: dict[str, tuple[str, ...]] = {
    "polyrhythm.compiler.passes": ("tests/compiler/passes", *RANDOM),
    "polyrhythm.compiler.schedule": ("tests/compiler/schedule", "tests/test_memory_plan.py", *RANDOM),
    "polyrhythm.compiler.legality": ("tests/compiler/legality/test_legality_mutants.py", *RANDOM),
    "polyrhythm.compiler.loops": ("tests/compiler/loops", "tests/compiler/backends/test_growing.py", *RANDOM),
    "polyrhythm.compiler.backends.torch": RANDOM,
    "polyrhythm.compiler.backends.jax": ("tests/runtime", "tests/compiler/backends", *RANDOM),
    "polyrhythm.compiler.backends": ("tests/runtime", *RANDOM),
}
"""The tests that those meet which nothing has noticed so far."""

KEYWORD = {
    "polyrhythm": "not torch and not jax",
    "polyrhythm.compiler.backends.torch": "torch",
    "polyrhythm.compiler.backends.jax": "not torch and not numpy",
}
"""Which programs of the short list matter: on NumPy if the backend does not, since passes and loops are the same."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--list", action="store_true", help="print the sample and stop")
    parser.add_argument("--short", action="store_true", help="leave out the long list")
    arguments = parser.parse_args()
    sample = drawn(arguments.count, arguments.seed)
    if arguments.list:
        print("\n".join(mutant.name for mutant in sample))
        return 0
    run = Run(arguments.out)
    for lists in (SHORT,) if arguments.short else (SHORT, LONG):
        for mutant in sample:
            run.judge(mutant, lists)
    found = Counter(run.found(mutant) is not None for mutant in sample)
    print(f"{found[True]} of {len(sample)} found; {found[False]} survived")
    return 0


class Run:
    """What is known of mutants so far, kept in a file."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.known: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
        self.limits: dict[tuple[str, ...], int] = {}
        preloaded()

    def found(self, mutant: Mutant) -> str | None:
        """What noticed a mutant."""
        verdict: str | None = self.known.get(mutant.name, {}).get("found")
        return verdict

    def judge(self, mutant: Mutant, lists: dict[str, tuple[str, ...]]) -> None:
        """Run a list of tests on a mutant, unless that is done or needless."""
        stage = "short" if lists is SHORT else "long"
        entry = self.known.setdefault(mutant.name, {"found": None})
        if entry["found"] is not None or stage in entry:
            return
        key = prefix(mutant.module, lists)
        tests = lists[key]
        if lists is SHORT:
            tests = (*tests, "-k", KEYWORD[prefix(mutant.module, KEYWORD)])
        if tests not in self.limits:
            verdict, seconds = judged(None, tests, 0)
            assert verdict is None, f"without a change: {verdict}"
            print(f"{stage} list of {key}: {seconds:.0f} s without a change", flush=True)
            self.limits[tests] = int(2 * seconds + SLACK)
        verdict, seconds = judged(mutant, tests, self.limits[tests])
        entry.update({"found": verdict, stage: round(seconds, 1)})
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(json.dumps(self.known, indent=1) + "\n")
        print(f"{stage} {seconds:5.0f} s  {verdict or 'SURVIVED'}  {mutant.name}", flush=True)


def drawn(count: int, seed: int) -> list[Mutant]:
    """The sample: the same one for the same source and seed."""
    return random.Random(seed).sample(every_mutant(), count)


@cache
def every_mutant() -> list[Mutant]:
    """The mutants of all files that are asked for."""
    return [m for name, source in modules(ROOT / "polyrhythm", FOLDERS) for m in mutants_of(name, source)]


def prefix(module: str, known: Mapping[str, object]) -> str:
    """The longest prefix of a module among those known."""
    return max((name for name in known if module.startswith(name)), key=len)


def preloaded() -> None:
    """Import what the package and the tests import, so that children need not; nothing of the package itself.

    What XLA compiles is kept, since most mutants change the code of few programs.
    """
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / "build" / "mutants-cache"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    import islpy
    import jax.numpy
    import numpy
    import pytest
    import torch

    assert "polyrhythm" not in sys.modules, (islpy, jax, numpy, pytest, torch)


def judged(mutant: Mutant | None, tests: tuple[str, ...], limit: int) -> tuple[str | None, float]:
    """What noticed a mutant, or None; and the processor seconds it took."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX does not like forks, but nothing of it has been started
        child = os.fork()
    if child == 0:
        os.close(reader)
        os.setsid()
        if limit:
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        _run_child(mutant, tests, writer)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    _, status, usage = os.wait4(child, 0)
    seconds = usage.ru_utime + usage.ru_stime
    if os.WIFSIGNALED(status):
        by = signal.Signals(os.WTERMSIG(status))
        return ("it does not end" if by == signal.SIGXCPU else f"it dies by {by.name}"), seconds
    return said or None, seconds


def _run_child(mutant: Mutant | None, tests: tuple[str, ...], writer: int) -> None:
    """Run the tests with the change in the package; write what failed. Does not return."""
    said = "the tests cannot be run"
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        if mutant is not None:
            inject(mutant.module, partial(applied, mutant))
        import pytest

        first = _First()
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=no"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code = pytest.main([*options, *tests], plugins=[first])
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
