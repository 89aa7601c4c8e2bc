"""`grouped`: rows times the entries of a table that they choose, on padded arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from polyrhythm.compiler.backends.jax.ops import contraction, indexing
from polyrhythm.compiler.backends.jax.ops.indexing import clamped
from polyrhythm.compiler.backends.jax.ops.padded import Implementation, Padded, Result, fit, is_static
from polyrhythm.compiler.backends.jax.products.grouped import grouped
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.ops.grouped import taken_spec


def _grouped(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> jax.Array:
    """The axes of rows come first; x is repeated along those that it lacks, and those the result lacks are summed."""
    if not all(is_static(n) and n for operand in operands for n in operand.lengths):
        return _taken(operands, attributes["spec"], result)
    words, output = parse_spec(attributes["spec"])
    sizes = dict(zip(output, result.capacities, strict=True))
    for operand, word in zip(operands, words, strict=True):
        sizes = dict(zip(word, operand.array.shape, strict=True)) | sizes
    x, table, which = (fit(v.array, [sizes[label] for label in w]) for v, w in zip(operands, words, strict=True))
    rows, entries, own = words
    a, b = "".join(label for label in rows if label not in own), entries[1:]
    o = "".join(dict.fromkeys(label for label in a + b if label in output))
    met = [label for label in own if label in rows]
    x = lax.transpose(x, [rows.index(label) for label in (*met, *a)])
    places = [own.index(label) for label in met] + [*range(len(own), len(own) + len(a))]
    x = lax.broadcast_in_dim(x, [sizes[label] for label in own + a], places)
    made = grouped(x, table, clamped(which, table.shape[0]), a, b, o)
    gone = [axis for axis, label in enumerate(own) if label not in output]
    made = made.sum(gone) if gone else made
    left = "".join(label for label in own if label in output) + o
    return lax.convert_element_type(lax.transpose(made, [left.index(label) for label in output]), result.dtype)


def _taken(operands: Sequence[Padded], spec: str, result: Result) -> jax.Array:
    """With axes of unknown length or without elements: the entries are taken, and multiplied by the rows."""
    x, table, which = operands
    lengths = (*which.lengths, *table.lengths[1:])
    own = Result((*which.array.shape, *table.array.shape[1:]), lengths, np.dtype(table.array.dtype))
    taken = Padded(indexing.IMPLEMENTATIONS["take"]((table, which), {"axis": 0}, own), lengths)
    return contraction.IMPLEMENTATIONS["einsum"]((x, taken), {"spec": taken_spec(spec)}, result)


IMPLEMENTATIONS: dict[str, Implementation] = {"grouped": _grouped}
