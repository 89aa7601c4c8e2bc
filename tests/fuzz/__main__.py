"""`python -m tests.fuzz --minutes N [--seed S]`: random programs until the time is over or one fails.

Rounds go through the strategies in turn, each with a seed of its own. The first failure is shrunk, written to
`build/fuzz/` as a stand-alone script and printed; the exit code is then 1.
"""

from __future__ import annotations

import argparse
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

from tests.fuzz.check import COUNTS, Mismatch, check, drawn
from tests.fuzz.features import features, table
from tests.fuzz.mutate import judge, mutants, rightly_refused
from tests.fuzz.program import Program
from tests.fuzz.programs import programs
from tests.fuzz.script import definition
from tests.fuzz.special import (
    aligned,
    attended,
    begun,
    divided,
    hosted,
    paired,
    picked,
    ragged,
    running,
    stopped,
    swept,
)
from tests.fuzz.subsets import FIRED, Case, check_gradients, check_lengths, check_subset, pairs, subsets

FOLDER = Path("build/fuzz")

EACH = 12
"""How many programs of one seed: they resemble each other, so few of many."""


class Session:
    """What a run has seen so far."""

    def __init__(self, minutes: float) -> None:
        self.end = time.monotonic() + 60 * minutes
        self.began = time.monotonic()
        self.features: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.programs = 0
        self.failing: tuple[Any, Exception] | None = None

    def over(self) -> bool:
        return time.monotonic() > self.end

    def program(self, program: Program) -> None:
        """One program against the brute force."""
        if self.failing is None and self.over():
            return
        try:
            shown = check(program)
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
        if self.failing is None and self.over():
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

    def lengths(self, program: Program) -> None:
        """The gradients of a program whose rows have lengths of their own."""
        if self.failing is None and self.over():
            return
        try:
            self.features[f"gradient over lengths {check_lengths(program)}"] += 1
        except Exception as error:
            self.failing = (program, error)
            raise
        self.programs += 1

    def mutant(self, drawn: tuple[Program, str]) -> None:
        """One program made wrong on purpose."""
        if self.failing is None and self.over():
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
            drawn(strategy, work, examples, number, examples)
        except Exception as error:
            if self.failing is None:
                raise
            program, last = self.failing
            self._report(program, last if isinstance(last, (Mismatch, AssertionError)) else error, number)
            return False
        return True

    def _report(self, program: Program, error: Exception, number: int) -> None:
        if isinstance(error, Mismatch):
            text = error.script
        else:
            trace = "".join(traceback.format_exception(error))
            text = f"{textwrap.indent(trace, '# ', lambda _: True)}{definition(program)}"
        FOLDER.mkdir(parents=True, exist_ok=True)
        path = FOLDER / f"failure_{number}.py"
        path.write_text(text, encoding="utf-8")
        print(text)
        print(
            f"{error if not isinstance(error, Mismatch) else error.what}\nseed {number}; the script above is in {path}"
        )

    def progress(self) -> None:
        spent = time.monotonic() - self.began
        rate = f"{self.programs / spent:.1f} a second"
        print(f"{spent:6.0f} s  {self.programs} programs  {rate}  {len(self.features)} features", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    start = arguments.seed if arguments.seed is not None else time.time_ns() % 1_000_000_000
    print(f"seed {start}", flush=True)
    session = Session(arguments.minutes)
    lanes: list[tuple[SearchStrategy[Any], Callable[[Any], None], int]] = [
        (programs("int"), session.program, EACH),
        (programs("float"), session.program, EACH),
        (st.tuples(st.one_of(programs("int"), programs("float")), subsets()), session.subset, EACH),
        (st.tuples(programs("float"), pairs()), session.subset, EACH // 4),
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
    ]
    number = start
    while not session.over():
        for strategy, work, examples in lanes:
            number += 1
            if not session.over() and not session.round(strategy, work, examples, number):
                return 1
        session.progress()
    print(table(session.features, session.programs - session.verdicts.total()))
    print("compiled: " + ", ".join(f"{k} {v}" for k, v in sorted(COUNTS.items())))
    print("rules of passes: " + ", ".join(f"{k} {v}" for k, v in FIRED.most_common()))
    print("programs made wrong on purpose: " + ", ".join(f"{k} {v}" for k, v in session.verdicts.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
