"""`grouped`: a contraction with entries of a table, one chosen for each row.

`spec` is that of an `einsum` with one word more: `"d,edh,k->kh"` multiplies `x` (d) by `table` (e, d, h) at the entries
`which` (k), that is `einsum("d,kdh->kh", x, take(table, which))`. Places outside the table are clamped. Nothing of the
table has to be copied for a row: rows that choose one entry can be multiplied together. A pass makes it of the other
(`passes/routes.py`) where no gradient is asked for.
"""

from __future__ import annotations

import numpy as np

from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.ops import contraction, indexing
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.ops.record import OPAQUE, PARALLEL, Attributes, Op, Role, Signature
from polyrhythm.compiler.ir.types import TensorType

Types = tuple[TensorType, ...]

_OPS = {op.name: op for op in (*contraction.OPS, *indexing.OPS)}


def taken_spec(spec: str) -> str:
    """The contraction with what is taken.

    >>> taken_spec("d,edh,k->kh")
    'd,kdh->kh'
    """
    (rows, table, own), output = parse_spec(spec)
    return f"{rows},{own}{table[1:]}->{output}"


def _type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    x, table, which = operands
    taken = _OPS["take"].type_rule((table, which), {"axis": 0}, given)
    return _OPS["einsum"].type_rule((x, taken), {"spec": taken_spec(attributes["spec"])}, given)


def _numpy(x: np.ndarray, table: np.ndarray, which: np.ndarray, spec: str) -> np.ndarray:
    taken = _OPS["take"].numpy(table, which, axis=0)
    return _OPS["einsum"].numpy(x, taken, spec=taken_spec(spec))


def _signature(operands: Types, attributes: Attributes) -> Signature:
    words, output = parse_spec(attributes["spec"])
    letters = tuple(dict.fromkeys("".join(words)))
    numbered = [tuple(letters.index(letter) for letter in word) for word in (*words, output)]
    entry = words[1][0]
    roles = {letter: PARALLEL if letter in output else Role("reduce", "sum") for letter in letters}
    return Signature(tuple(numbered[:-1]), numbered[-1], tuple((roles | {entry: OPAQUE}).values()))


OPS: tuple[Op, ...] = (Op("grouped", _type, _numpy, _signature, heavy=True),)
