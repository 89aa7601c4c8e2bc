"""What is set for a stretch of code, not for one program: what runs show and check, which passes are left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Settings:
    """What programs take over when they are compiled."""

    check_nan: bool = False
    progress: bool = True
    without: tuple[str, ...] = ()


_now = ContextVar("_now", default=Settings())  # noqa: B039  (it is frozen)


def current() -> Settings:
    """What is set where this is called."""
    return _now.get()


@contextmanager
def settings(
    *, check_nan: bool | None = None, progress: bool | None = None, without: Sequence[str] | None = None
) -> Iterator[None]:
    """Set something for the programs that are compiled inside; what is not named stays as it is.

    With `check_nan` runs stop at the first NaN or infinity that they make of finite values, and name the line and the
    step. Without `progress` long runs and compilations show nothing. `without` names passes of the compiler to leave
    out, such as "lift": for measurements only, since every pass keeps the meaning.

    >>> import polyrhythm as pr
    >>> x = pr.input("x")
    >>> with pr.settings(check_nan=True):
    ...     program = pr.compile(pr.log(x), backend="numpy")
    >>> program(x=-1.0)
    Traceback (most recent call last):
    ...
    polyrhythm.errors.NotFiniteError: log makes a NaN: nan
    ...
    """
    left_out = None if without is None else tuple(without)
    given: dict[str, Any] = {"check_nan": check_nan, "progress": progress, "without": left_out}
    token = _now.set(replace(current(), **{name: value for name, value in given.items() if value is not None}))
    try:
        yield
    finally:
        _now.reset(token)


def quiet() -> AbstractContextManager[None]:
    """For programs of libraries, which show what they do in their own words."""
    return settings(progress=False)


__all__ = ["Settings", "current", "quiet", "settings"]
