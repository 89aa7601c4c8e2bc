"""Numbers that a caller gives, checked before anything runs."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from polyrhythm.llm.errors import PromptError

END = 2**31
"""Steps are counted in int32."""


def whole(value: Any, least: int, what: str, fix: str) -> int:
    """An integer of Python or NumPy, at least so large; otherwise `what` is refused.

    >>> import numpy as np
    >>> whole(np.int64(3), 0, "3 tokens", "give more")
    3
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) < END:
        raise PromptError(what, fix=fix)
    return int(value)


def integer(value: Any, what: str, fix: str) -> int:
    """An integer of Python or NumPy that 64 bits hold: of more, some would be the same.

    >>> integer(-3, "-3", "give an integer")
    -3
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not -(2**63) <= int(value) < 2**64:
        raise PromptError(what, fix=fix)
    return int(value)
