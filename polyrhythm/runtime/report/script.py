"""`polyrhythm report script.py`: run a script, and write a page about every program that it compiles."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polyrhythm.runtime.program import Options, Program, Wanted
from polyrhythm.runtime.report.gather import gather
from polyrhythm.runtime.report.page import write


def reported(script: Path, arguments: Sequence[str], output: Path, profile: bool) -> list[Path]:
    """The pages about the programs of a script, which is run as from the command line.

    A page is written even where the script ends in an error, which is then raised.
    """
    programs: list[Program] = []
    before = sys.argv, sys.path[:]
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    try:
        with recorded(programs, profile):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before
        pages = [_page(output, number, len(programs)) for number in range(len(programs))]
        for page, program in zip(pages, programs, strict=True):
            write(gather(program), page)
    return pages


def _page(output: Path, number: int, count: int) -> Path:
    return output if count == 1 else output.with_stem(f"{output.stem}-{number + 1}")


@contextmanager
def recorded(programs: list[Program], profile: bool) -> Iterator[None]:
    """While this lasts, every program that is made is noted, and its first call is profiled."""
    begun: list[Program] = []
    init, call = Program.__init__, Program.__call__

    def noted(self: Program, wanted: Wanted, options: Options) -> None:
        init(self, wanted, options)
        programs.append(self)

    def profiled(self: Program, **given: Any) -> Any:
        if self in begun or given.get("checkpoint") is not None:
            return call(self, **given)
        begun.append(self)
        return self.profile(**given).results

    Program.__init__ = noted  # type: ignore[method-assign]
    if profile:
        Program.__call__ = profiled  # type: ignore[method-assign]
    try:
        yield
    finally:
        Program.__init__, Program.__call__ = init, call  # type: ignore[method-assign]
