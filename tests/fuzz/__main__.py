"""`python -m tests.fuzz --minutes N [--seed S] [--jobs N] [--log FILE]`: random programs until one fails.

Rounds go through the strategies in turn, each with seeds of its own, until the time is over. Most programs are tiny or
small: the oracle and NumPy run all of them, torch every fourth, JAX every eighth, at two choices of bounds each. What
was seen before does not count. The first failure is shrunk, written to `build/fuzz/` as a stand-alone script and
printed; the exit code is then 1. XLA makes simple code, and where the seed is a multiple of five what it makes for
users. `--jobs` processes run side by side, each with its own seeds. Every strategy of a round appends its counts to the
file of `--log`; `--table FILE` adds up what is there.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import textwrap
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.compiling import context, keep_nothing, share_contexts, simple_code
from tests.fuzz import log
from tests.fuzz.check import COUNTS, Mismatch, check, drawn
from tests.fuzz.features import features
from tests.fuzz.mutate import judge, mutants, rightly_refused
from tests.fuzz.program import Program
from tests.fuzz.programs import programs, small_programs, tiny_programs
from tests.fuzz.script import definition
from tests.fuzz.special import (
    aligned,
    attended,
    begun,
    crossed,
    divided,
    hosted,
    paired,
    picked,
    ragged,
    recalled,
    resumed,
    running,
    stopped,
    swept,
)
from tests.fuzz.spellings import check_spellings
from tests.fuzz.subsets import FIRED, Case, check_gradients, check_lengths, check_subset, pairs, subsets

FOLDER = Path("build/fuzz")

EACH = 12
"""How many programs a strategy draws in a round, in units of which most draw a quarter."""

OF_ONE_SEED = 8
"""How many programs of one seed: they resemble each other, so few of many."""

FAR = 1_000_003
"""How far the seeds of one job are from those of the next."""


class Session:
    """What a run has seen so far."""

    def __init__(self, minutes: float) -> None:
        self.end = time.monotonic() + 60 * minutes
        self.began = time.monotonic()
        self.features: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.programs = 0
        self.failing: tuple[Any, Exception] | None = None
        self.found: str | None = None
        self.seen: set[int] = set()

    def passes_by(self, case: Any) -> bool:
        """Whether there is nothing to do for a program: the time is over, or it was seen before."""
        share_contexts()
        if self.failing is not None:
            return False  # it is being made smaller
        known = hash(case) in self.seen
        self.seen.add(hash(case))
        return known or self.over()

    def over(self) -> bool:
        return time.monotonic() > self.end

    def program(self, program: Program) -> None:
        """One program against the brute force."""
        if self.passes_by(program):
            return
        try:
            shown = check(program, twice=True)
        except Exception as error:
            if not rightly_refused(program, error):
                self.failing = (program, error)
                raise
            self.features["rightly refused"] += 1
            return
        self.programs += 1
        self.features.update(features(program) if shown else ["not shown to progress"])

    def subset(self, case: Case) -> None:
        """One program without some passes, against the brute force; and its gradients against the oracle."""
        if self.passes_by(case):
            return
        try:
            check_subset(case)
            self.features[f"gradient {check_gradients(case)}"] += 1
        except Exception as error:
            if not rightly_refused(case[0], error):
                self.failing = (case[0], error)
                raise
            self.features["rightly refused"] += 1
            return
        self.programs += 1
        self.features["a subset of the passes"] += 1

    def spelled(self, program: Program) -> None:
        """One program in two spellings."""
        if self.passes_by(("spelled", program)):
            return
        try:
            check_spellings(program)
        except Exception as error:
            if not rightly_refused(program, error):
                self.failing = (program, error)
                raise
            self.features["rightly refused"] += 1
            return
        self.programs += 1
        self.features["two spellings"] += 1

    def lengths(self, program: Program) -> None:
        """The gradients of a program whose rows have lengths of their own."""
        if self.passes_by(("gradients", program)):
            return
        try:
            self.features[f"gradient over lengths {check_lengths(program)}"] += 1
        except Exception as error:
            self.failing = (program, error)
            raise
        self.programs += 1

    def mutant(self, drawn: tuple[Program, str]) -> None:
        """One program made wrong on purpose."""
        if self.passes_by(("mutant", drawn[0])):
            return
        try:
            verdict = judge(drawn[0])
        except Exception as error:
            self.failing = (drawn[0], error)
            raise
        self.programs += 1
        self.verdicts[verdict] += 1

    def round(self, strategy: SearchStrategy[Any], work: Callable[[Any], None], examples: int, number: int) -> bool:
        """Some examples of a strategy; False if one failed."""
        try:
            drawn(strategy, work, examples, number, OF_ONE_SEED)
        except Exception as error:
            if self.failing is None:
                raise
            program, last = self.failing
            self._report(program, last if isinstance(last, (Mismatch, AssertionError)) else error, number)
            return False
        return True

    def _report(self, program: Program, error: Exception, number: int) -> None:
        what = error.what if isinstance(error, Mismatch) else f"{type(error).__name__}: {error}"
        self.found = next(iter(what.splitlines()), "")
        if isinstance(error, Mismatch):
            text = error.script
        else:
            trace = "".join(traceback.format_exception(error))
            text = f"{textwrap.indent(trace, '# ', lambda _: True)}{definition(program)}"
        FOLDER.mkdir(parents=True, exist_ok=True)
        path = FOLDER / f"failure_{number}.py"
        path.write_text(text, encoding="utf-8")
        print(text)
        print(f"{what}\nseed {number}; the script above is in {path}")

    def counts(self) -> dict[str, dict[str, float]]:
        """All that was counted so far."""
        spent = (time.monotonic() - self.began) / 60
        return {
            "session": {"programs": self.programs, "minutes": spent},
            "features": dict(self.features),
            "compiled": dict(COUNTS),
            "rules": dict(FIRED),
            "verdicts": dict(self.verdicts),
        }

    def progress(self) -> None:
        spent = time.monotonic() - self.began
        rate = f"{self.programs / spent:.1f} a second"
        print(f"{spent:6.0f} s  {self.programs} programs  {rate}  {len(self.features)} features", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=1, help="how many processes run side by side")
    parser.add_argument("--log", type=Path, help="append what each round counted, as a line of JSON")
    parser.add_argument("--table", type=Path, metavar="LOG", help="add up what a log holds, and do nothing else")
    arguments = parser.parse_args()
    if arguments.table:
        print(log.summary(log.read(arguments.table)))
        return 0
    start = arguments.seed if arguments.seed is not None else time.time_ns() % 1_000_000_000
    if arguments.jobs > 1:
        return side_by_side(arguments, start)
    print(f"seed {start}", flush=True)
    # What compiling leaves lives long: looking through it for garbage takes a quarter of the time.
    gc.set_threshold(200_000, 20, 1_000)
    keep_nothing()
    if start % 5:
        simple_code()
    session = Session(arguments.minutes)
    number, of = start, log.commit()
    before: log.Counts = {}
    failed = False
    while not failed and not session.over():
        for strategy, work, examples in lanes(session):
            failed = not session.over() and not session.round(strategy, work, examples, number)
            number += -(-examples // OF_ONE_SEED)
            counts = session.counts()
            if arguments.log:
                log.append(arguments.log, start, of, counts, before, session.found)
            before = counts
            if failed or session.over():
                break
        session.progress()
        context.cache_clear()
        gc.collect()
    print(log.summary([{"seed": start, "commit": of, **session.counts()}]))
    return int(failed)


def lanes(session: Session) -> list[tuple[SearchStrategy[Any], Callable[[Any], None], int]]:
    """What a round draws, what is done with it, and how many programs it draws."""
    return [
        (tiny_programs("int"), session.program, 12 * EACH),
        (tiny_programs("float"), session.program, 12 * EACH),
        (small_programs("int"), session.program, 4 * EACH),
        (small_programs("float"), session.program, 4 * EACH),
        (programs("int"), session.program, EACH // 4),
        (programs("float"), session.program, EACH // 4),
        (st.tuples(st.one_of(small_programs("int"), small_programs("float")), subsets()), session.subset, EACH // 4),
        (st.tuples(st.one_of(programs("int"), programs("float")), subsets()), session.subset, EACH // 12),
        (st.tuples(small_programs("float"), pairs()), session.subset, EACH // 6),
        (st.one_of(small_programs("int"), small_programs("float")), session.spelled, EACH),
        (mutants(), session.mutant, EACH // 2),
        (ragged(), session.program, EACH // 4),
        (stopped(), session.program, EACH // 4),
        (ragged("float32"), session.program, EACH // 4),
        (st.one_of(ragged("float32"), stopped("float32")), session.lengths, EACH // 4),
        (begun(), session.program, EACH // 4),
        (hosted(), session.program, EACH // 4),
        (paired(), session.program, EACH // 4),
        (swept(), session.program, EACH // 4),
        (aligned(), session.program, EACH // 4),
        (st.tuples(attended(), subsets()), session.subset, EACH // 4),
        (st.tuples(st.one_of(picked(), divided()), subsets()), session.subset, EACH // 4),
        (running(), session.program, EACH // 4),
        (recalled(), session.program, EACH // 4),
        (st.one_of(crossed(), resumed()), session.program, EACH // 4),
    ]


def side_by_side(arguments: argparse.Namespace, start: int) -> int:
    """Several processes, each with seeds of its own; 1 if one of them failed."""
    command = [sys.executable, "-m", "tests.fuzz", "--minutes", str(arguments.minutes)]
    command += ["--log", str(arguments.log)] if arguments.log else []
    running = [subprocess.Popen([*command, "--seed", str(start + FAR * job)]) for job in range(arguments.jobs)]
    return max([job.wait() for job in running])


if __name__ == "__main__":
    sys.exit(main())
