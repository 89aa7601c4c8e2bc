"""Writes what examples print into the pages that show it: `python -m tests.pages docs/tutorial/*.md`.

After a deliberate change of what programs print; review the diff. The pages are tests themselves (`conftest.py`), which
compare. An example that raises keeps what stands there.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import linecache
import sys
import textwrap
from pathlib import Path
from typing import Any

from conftest import PYTHON_BLOCK


def filled(path: Path) -> str:
    """The text of a page with what its examples print now."""
    text, names, last = path.read_text(encoding="utf-8"), dict[str, Any](__name__="__main__"), 0
    found = (match for match in PYTHON_BLOCK.finditer(text) if not match.group(2))
    blocks = [(m, textwrap.dedent(m.group(3)), text.count("\n", 0, m.start(3))) for m in found]
    lines: list[str] = []
    for _, source, above in blocks:
        if ">>> " not in source:
            lines += ["\n"] * (above - len(lines)) + source.splitlines(keepends=True)
    linecache.cache[str(path)] = (sum(map(len, lines)), None, lines, str(path))
    made = []
    for match, source, above in blocks:
        made.append(text[last : match.start(3)])
        last = match.end(3)
        if ">>> " in source:
            made.append(textwrap.indent(_run(source, names), match.group(1)) + "\n")
        else:
            exec(compile("\n" * above + source, str(path), "exec"), names)
            made.append(match.group(3))
    return "".join([*made, text[last:]])


def _run(source: str, names: dict[str, Any]) -> str:
    """A block of examples with what they print."""
    made = ""
    for example in doctest.DocTestParser().get_examples(source):
        printed, wanted = io.StringIO(), example.want
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(example.source, "<example>", "single"), names)
            wanted = printed.getvalue()
        except Exception:
            assert "Traceback" in wanted, example.source
        first, *rest = example.source.rstrip("\n").split("\n")
        made += "".join([f">>> {first}\n", *(f"... {line}\n" for line in rest)])
        made += "".join(
            f"{line if line.strip() else '<BLANKLINE>'}\n" for line in wanted.rstrip("\n").split("\n") if wanted
        )
    return made


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        page.write_text(filled(page), encoding="utf-8")
