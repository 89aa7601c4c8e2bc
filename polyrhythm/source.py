"""Where in the user's code something was written, by which part of a library, and for which variable."""

from __future__ import annotations

import linecache
import os
import re
import sys
from dataclasses import dataclass, field
from types import FrameType

from polyrhythm.variables import Target, receiver

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_ERRORS = _PACKAGE + "errors" + os.sep
_LIBRARIES = tuple(_PACKAGE + name + os.sep for name in ("llm", "nn", "optim", "rl"))


@dataclass(frozen=True)
class Source:
    """A line of the user's code, and the part of a library that was at work there, as in `rl/ppo.py: losses`.

    `variable` is what the statement around it assigns to, be that in the user's code or in the library's.

    >>> here().line >= 1
    True
    """

    file: str
    line: int
    library: str = ""
    variable: str | None = field(default=None, compare=False)

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
    frame = written = _outside()
    library = ""
    inner = sys._getframe(1)
    while inner.f_code.co_filename.startswith(_ERRORS) and inner.f_back is not None:
        inner = inner.f_back
    raised = inner.f_code.co_filename.startswith(_LIBRARIES)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        if not library and not raised and frame.f_code.co_filename.startswith(_LIBRARIES):
            name = re.sub(r"\.<\w+>|\.__call__$", "", frame.f_code.co_qualname)
            library = f"{frame.f_code.co_filename.removeprefix(_PACKAGE)}: {name}"
        frame = frame.f_back
    target = receiver(written, _is_internal)
    return Source(frame.f_code.co_filename, frame.f_lineno, library, target.name if target is not None else None)


def assigned(frame: FrameType | None = None) -> Target | None:
    """The variable that receives what a frame is evaluating, by default the innermost one of a user or a library.

    >>> assigned() is None
    True
    """
    return receiver(frame or _outside(), _is_internal)


def _outside() -> FrameType:
    """The innermost frame of a user or of a library, which is written as users write."""
    frame = sys._getframe(2)
    while frame.f_back is not None and _is_internal(frame):
        frame = frame.f_back
    return frame


def _is_internal(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(_PACKAGE) and not file.startswith(_LIBRARIES)
