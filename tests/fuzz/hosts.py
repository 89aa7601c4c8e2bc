"""The host functions that random programs may call, as text for scripts and as functions for the brute force.

Each appends what it was called with to `log`, so that tests can see the order of calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SOURCE = """log = []
def double(v):
    return v * 2
def combine(a, b):
    return a + 3 * b
def count(v):
    log.append(("count", v.tolist()))
    return v + 1
def tell(v):
    log.append(("tell", v.tolist()))
    return v - 1"""

EFFECTS = ("count", "tell")


def call(name: str, *values: np.ndarray) -> Any:
    """What a host function returns, written a second time."""
    if name == "double":
        return values[0] + values[0]
    if name == "combine":
        return values[0] + values[1] + values[1] + values[1]
    return values[0] + (1 if name == "count" else -1)
