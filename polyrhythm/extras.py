"""Packages that an extra brings: where one is missing, the error is the line to type."""

from __future__ import annotations

from importlib.util import find_spec

from polyrhythm.errors import UnsupportedError


def needs(package: str, extra: str, what: str) -> None:
    """Refuse to go on without a package.

    >>> needs("numpy", "none", "arithmetic")
    >>> needs("no_such_package", "llm", "reading")
    Traceback (most recent call last):
    ...
    polyrhythm.errors.UnsupportedError: reading needs the package no_such_package, which is not installed
      ...
      fix: pip install 'polyrhythm[llm]'
    """
    try:
        found = find_spec(package) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise UnsupportedError(
            f"{what} needs the package {package}, which is not installed", fix=f"pip install 'polyrhythm[{extra}]'"
        )
