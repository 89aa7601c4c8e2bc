"""Runs the Python blocks of a page with the installed package alone: `python installed.py README.md`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import polyrhythm


def main(page: Path) -> None:
    checkout = page.resolve().parent / "polyrhythm"
    assert not Path(polyrhythm.__file__).is_relative_to(checkout), "this runs the checkout, not the wheel"
    text = page.read_text(encoding="utf-8")
    blocks = [b for b in re.findall(r"^```python *\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if ">>>" not in b]
    assert blocks, f"{page} has no example"
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    print(f"{len(blocks)} examples of {page.name} ran with polyrhythm {polyrhythm.__version__}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
