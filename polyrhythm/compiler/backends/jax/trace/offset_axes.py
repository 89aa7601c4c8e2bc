"""Which axes an operation takes where they lie: those that begin at the same place in all its operands.

What is read from a step on, `x[t:T]`, is the whole buffer, of which the elements from `t` on are meant (see
`ops/padded.py`). An operation that does the same at every position of an axis, or combines all of them in any order,
need not have them moved to the front, if whatever it meets along that axis begins at the same place: it treats the
garbage before the start as it treats that behind the end. The signature tells which axes meet, and what is done along
them.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyrhythm.compiler.backends.jax.ops.padded import Length, Padded, Start, is_static, moved
from polyrhythm.compiler.ir.ops import record
from polyrhythm.compiler.ir.ops.record import Signature


def in_place(
    op: str, signature: Signature, operands: Sequence[Padded], capacities: Sequence[int], lengths: Sequence[Length]
) -> tuple[list[Padded], dict[int, Start], tuple[int, ...]]:
    """The operands with all axes moved that have to be; the starts of the result, and its capacities."""
    known = {label for label, length in zip(signature.result, lengths, strict=True) if is_static(length)}
    found: dict[int, tuple[Start, int] | None] = {}
    for labels, operand in zip(signature.operands, operands, strict=True):
        for axis, label in enumerate(labels):
            if label is not None:
                start = operand.starts.get(axis)
                here = None if start is None else (start, operand.array.shape[axis])
                kept = found.setdefault(label, here) == here and labels.count(label) == 1
                found[label] = here if kept and label not in known and _works(op, signature, label) else None
    ready = [
        moved(operand, [axis for axis, label in enumerate(labels) if label is None or found[label] is None])
        for labels, operand in zip(signature.operands, operands, strict=True)
    ]
    starts, room = {}, list(capacities)
    for axis, label in enumerate(signature.result):
        frame = found.get(label) if label is not None else None
        if frame is not None:
            starts[axis], room[axis] = frame
    return ready, starts, tuple(room)


def _works(op: str, signature: Signature, label: int) -> bool:
    known = record(op)
    # These never look at where an element lies, but for masking.
    works = known.elementwise or known.repeats or op in ("reduce", "einsum", "transpose")
    return works and signature.roles[label].kind in ("parallel", "reduce")
