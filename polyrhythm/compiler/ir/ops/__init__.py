"""The op table: every primitive operation by its name, one module per family.

>>> sorted(TABLE)[:4], TABLE["add"].name
(['abs', 'add', 'and', 'argreduce'], 'add')
"""

from polyrhythm.compiler.ir.ops import (
    complex_numbers,
    contraction,
    creation,
    elementwise,
    external,
    factors,
    grouped,
    indexing,
    opaque,
    quantised,
    random,
    reductions,
    shapes,
    transforms,
    windows,
)
from polyrhythm.compiler.ir.ops.record import Op

_FAMILIES = (
    elementwise,
    complex_numbers,
    reductions,
    contraction,
    factors,
    shapes,
    indexing,
    windows,
    grouped,
    creation,
    random,
    opaque,
    quantised,
    transforms,
)

TABLE: dict[str, Op] = {op.name: op for family in _FAMILIES for op in family.OPS}
"""Each operation that array libraries compute, under its name. A record more is an operation more."""

EXTERNAL: dict[str, Op] = {op.name: op for op in external.OPS}
"""The operations that they do not compute."""


def record(name: str) -> Op:
    """What is known of an operation.

    >>> record("exp").elementwise, record("input").external, record("einsum").heavy
    (True, True, True)
    """
    found = TABLE.get(name) or EXTERNAL.get(name)
    if found is None:
        raise KeyError(f"there is no operation {name}")
    return found


__all__ = ["EXTERNAL", "TABLE", "Op", "record"]
