"""Where in the user's code something was written."""

from __future__ import annotations

import linecache
import os
import re
import sys
from dataclasses import dataclass

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


@dataclass(frozen=True)
class Source:
    """A line of the user's code.

    >>> here().line >= 1
    True
    """

    file: str
    line: int

    @property
    def text(self) -> str:
        """The line itself, if the file can still be read."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def assigned_name(self) -> str | None:
        """The variable that the line assigns to, as in `y = ...`."""
        match = re.match(r"([A-Za-z_]\w*)\s*(:[^=]*)?=[^=]", self.text)
        return match.group(1) if match else None

    def __str__(self) -> str:
        relative = os.path.relpath(self.file) if os.path.isabs(self.file) else self.file
        shown = self.file if relative.startswith("..") else relative
        return f"{shown}:{self.line}"


def here() -> Source:
    """The innermost line on the call stack that is not part of this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return Source(frame.f_code.co_filename, frame.f_lineno)
