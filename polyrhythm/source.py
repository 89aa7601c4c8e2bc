"""Where in the user's code something was written, by which part of a library, and for which variable."""

from __future__ import annotations

import linecache
import os
import re
import sys
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FrameType

from polyrhythm.variables import Target, receiver

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_ERRORS = _PACKAGE + "errors" + os.sep
_UNNAMED = re.compile(r"\.<\w+>|\.__call__$")
_LIBRARIES = tuple(_PACKAGE + name + os.sep for name in ("llm", "nn", "optim", "rl"))


@dataclass(frozen=True)
class Source:
    """A line of the user's code, and the part of a library that was at work there, as in `rl/ppo.py: losses`.

    `target` is where the value that is being computed there goes.

    >>> here().line >= 1
    True
    """

    file: str
    line: int
    library: str = ""
    target: Target | None = field(default=None, compare=False)

    @property
    def variable(self) -> str | None:
        """What the statement around it assigns to, be that in the user's code or in the library's."""
        return self.target.name if self.target is not None else None

    @property
    def text(self) -> str:
        """The line itself, if the file can still be read."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def shown(self) -> str:
        """The line with its text, or the part of a library."""
        return self.library or f"{self} ({self.text})"

    def __str__(self) -> str:
        relative = os.path.relpath(self.file) if os.path.isabs(self.file) else self.file
        shown = self.file if relative.startswith("..") else relative
        return f"{shown}:{self.line}"


def here() -> Source:
    """The innermost line on the call stack that is not part of this package.

    An error that a library raises itself is about the user's line alone.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_ERRORS):
        frame = frame.f_back
    raised = not is_internal(frame)
    while frame.f_back is not None and is_internal(frame):
        frame = frame.f_back
    target = receiver(frame, is_internal)
    library = "" if raised else _library(frame.f_code)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return Source(frame.f_code.co_filename, frame.f_lineno, library, target)


@cache
def _is_internal(file: str) -> bool:
    return file.startswith(_PACKAGE) and not file.startswith(_LIBRARIES)


def is_internal(frame: FrameType) -> bool:
    """Whether a frame is the package's own: not a user's, and not a library's, which is written as users write.

    >>> is_internal(sys._getframe())
    False
    """
    return _is_internal(frame.f_code.co_filename)


def _library(code: CodeType) -> str:
    """The part of a library that some code is, if it is one."""
    if not code.co_filename.startswith(_LIBRARIES):
        return ""
    return f"{code.co_filename.removeprefix(_PACKAGE)}: {re.sub(_UNNAMED, '', code.co_qualname)}"
