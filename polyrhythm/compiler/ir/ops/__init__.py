"""The op table: every primitive operation by its name, one module per family.

>>> sorted(TABLE)[:4], TABLE["add"].name
(['abs', 'add', 'and', 'argreduce'], 'add')
"""

from polyrhythm.compiler.ir.ops import (
    contraction,
    creation,
    elementwise,
    indexing,
    opaque,
    random,
    reductions,
    shapes,
    windows,
)
from polyrhythm.compiler.ir.ops.record import Op

_FAMILIES = (elementwise, reductions, contraction, shapes, indexing, windows, creation, random, opaque)

TABLE: dict[str, Op] = {op.name: op for family in _FAMILIES for op in family.OPS}
"""Each operation under its name."""

__all__ = ["TABLE", "Op"]
