"""Lets the API reference show the examples of docstrings as code: they stand there without any mark of Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n?)(?:^(?!\s*$).*\n?)*", re.MULTILINE)


def fenced(text: str) -> str:
    """A docstring with its examples in fences.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2").splitlines()[2:]
    ['```pycon', '>>> 1 + 1', '2', '```']
    """
    return EXAMPLE.sub(lambda match: f"```pycon\n{match.group().rstrip()}\n```\n", text).rstrip("\n")


class Doctests(griffe.Extension):
    """Changes every docstring that has examples."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)
