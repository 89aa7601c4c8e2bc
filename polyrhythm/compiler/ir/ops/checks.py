"""What type rules share: comparing symbolic lengths, broadcasting, and messages a user understands.

Two lengths are equal when they are one term or can be proved equal from what is given. A literal 1 broadcasts; a
symbolic length never does, even where it happens to be 1, because the shape of the result must not depend on
the values of the bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from polyrhythm.compiler.ir import dtypes, sets
from polyrhythm.compiler.ir.conditions import Condition, conjunction, ge
from polyrhythm.compiler.ir.ops.record import PARALLEL, Labels, Signature
from polyrhythm.compiler.ir.terms import ONE, ZERO, Term, ordered
from polyrhythm.compiler.ir.types import Shape, TensorType
from polyrhythm.errors import AxisError, DTypeError, ShapeError


def show(shape: Iterable[Term | int]) -> str:
    """A shape as a user writes it.

    >>> show((Term(3),)), show(())
    ('(3,)', '()')
    """
    lengths = [str(length) for length in shape]
    return f"({lengths[0]},)" if len(lengths) == 1 else f"({', '.join(lengths)})"


def terms(values: Sequence[int | Term]) -> Shape:
    """Integers and terms as terms."""
    return tuple(Term.of(value) for value in values)


def same_length(a: Term, b: Term, given: Condition) -> bool:
    """Whether two lengths are equal wherever `given` holds."""
    if a is b or (a.is_constant and b.is_constant):
        return a is b
    return sets.equal(a, b, given)


def is_positive(length: Term, given: Condition) -> bool:
    """Whether a length is at least 1 wherever `given` holds; dims are known not to be negative."""
    if length.is_constant:
        return length.constant >= 1
    # Products of symbols are unknowns to the integer sets, but a sum of non-negative terms and 1 is positive.
    if length.constant >= 1 and all(is_nonnegative(part, given) for part in _monomial_terms(length)):
        return True
    return sets.proves(with_dims(given, length), ge(length, 1))


def is_nonnegative(length: Term, given: Condition) -> bool:
    """Whether a term is not negative wherever `given` holds; dims are known not to be negative."""
    if length.is_constant:
        return length.constant >= 0
    if len(length.monomials) == 1 and length.constant == 0 and length.monomials[0][1] > 0:
        atoms = length.monomials[0][0]
        if len(atoms) > 1:
            return all(is_nonnegative(Term(0, (((atom,), 1),)), given) for atom in atoms)
    return sets.proves(with_dims(given, length), ge(length, ZERO))


def with_dims(given: Condition, *used: Term) -> Condition:
    """`given`, and that the dims that occur in some terms are not negative, which holds everywhere."""
    symbols = ordered(symbol for term in used for symbol in term.symbols)
    return conjunction(given, *(ge(Term.of(s), ZERO) for s in dict.fromkeys(symbols) if s.kind == "dim"))


def _monomial_terms(term: Term) -> list[Term]:
    return [Term(0, ((monomial, coefficient),)) for monomial, coefficient in term.monomials]


def check_axis(name: str, axis: int, operand: TensorType) -> None:
    """An axis must be one of `0 <= axis < rank`; negative axes are resolved by the language."""
    if not 0 <= axis < operand.rank:
        raise AxisError(
            f"{name}: axis {axis} does not exist in a tensor of shape {show(operand.shape)}",
            fix=f"choose an axis from 0 to {operand.rank - 1}" if operand.rank else "a scalar has no axes",
        )


def check_kind(name: str, operand: TensorType, kinds: Sequence[dtypes.Kind], fix: str | None = None) -> None:
    """The operand's elements must be of one of some kinds."""
    if dtypes.kind(operand.dtype) not in kinds:
        words = {"bool": "bool", "int": "integer", "float": "float", "complex": "complex"}
        wanted = " or ".join(words[kind] for kind in kinds)
        raise DTypeError(
            f"{name}: needs {wanted} elements, got {operand.dtype}",
            fix=fix or f"cast the operand to a {words[kinds[-1]]} dtype first",
        )


def check_same_dtype(name: str, *operands: TensorType) -> np.dtype:
    """The one dtype of all operands."""
    first = operands[0].dtype
    for other in operands[1:]:
        if other.dtype != first:
            raise DTypeError(
                f"{name}: operands have different dtypes, {first} and {other.dtype}",
                fix=f"cast one of them, for example to {first}",
            )
    return first


def check_same_length(name: str, a: TensorType, i: int, b: TensorType, j: int, given: Condition) -> None:
    """Axis i of one operand must be as long as axis j of another."""
    if not same_length(a.shape[i], b.shape[j], given):
        raise ShapeError(
            f"{name}: shapes {show(a.shape)} and {show(b.shape)} do not fit: axis {i} of the first has length "
            f"{a.shape[i]}, axis {j} of the second {b.shape[j]}",
            fix="make the two lengths equal, by slicing, padding or reshaping one operand",
        )


def check_rank(name: str, operand: TensorType, rank: int, what: str) -> None:
    """An operand or attribute must have as many entries as the tensor has axes."""
    if operand.rank != rank:
        raise ShapeError(
            f"{name}: {what} for a tensor of shape {show(operand.shape)}, which has {operand.rank} axes, not {rank}",
            fix="give one entry per axis",
        )


def broadcast_shapes(name: str, shapes: Sequence[Shape], given: Condition) -> Shape:
    """The common shape of operands, aligned at the last axis; a literal 1 stretches.

    >>> from polyrhythm.compiler.ir.conditions import TRUE
    >>> show(broadcast_shapes("add", [terms((4, 1)), terms((3,))], TRUE))
    '(4, 3)'
    """
    rank = max(map(len, shapes))
    result: list[Term] = [ONE] * rank
    for shape in shapes:
        for axis, length in enumerate(shape, rank - len(shape)):
            known = result[axis]
            if known is ONE:
                result[axis] = length
            elif length is not ONE and not same_length(known, length, given):
                raise ShapeError(
                    f"{name}: shapes {' and '.join(map(show, shapes))} do not broadcast: lengths {known} and "
                    f"{length} meet, and are not the same" + _doubt(known, length),
                    fix="make the two lengths equal, or insert an axis of length 1 where one shall be repeated",
                )
            elif length.is_constant and length is not ONE:
                result[axis] = length
    return tuple(result)


def _doubt(a: Term, b: Term) -> str:
    return "" if a.is_constant and b.is_constant else " for all values of their symbols"


def broadcast_labels(shape: Shape, result: Shape) -> Labels:
    """The labels of an operand that broadcasts to a result whose axis i is labelled i."""
    shift = len(result) - len(shape)
    return tuple(
        None if length is ONE and result[axis] is not ONE else axis for axis, length in enumerate(shape, shift)
    )


def broadcast_signature(operands: Sequence[TensorType]) -> Signature:
    """The signature of an elementwise operation: every axis is parallel."""
    rank = max(operand.rank for operand in operands)
    lengths: list[Term] = [ONE] * rank
    for operand in operands:
        for axis, length in enumerate(operand.shape, rank - operand.rank):
            lengths[axis] = length if lengths[axis] is ONE else lengths[axis]
    result = tuple(lengths)
    labels = tuple(broadcast_labels(operand.shape, result) for operand in operands)
    return Signature(labels, tuple(range(rank)), (PARALLEL,) * rank)
