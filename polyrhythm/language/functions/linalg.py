"""Products of tensors: `einsum` of any number of operands, and `matmul`, `dot`, `outer` in terms of it.

Every product is a chain of the primitive contraction of at most two operands, taken from left to right, so that it
reaches the backend's matrix multiplication. An axis is summed out as soon as no later operand needs it.
"""

from __future__ import annotations

import string
from collections.abc import Iterable

from polyrhythm.compiler.ir.ops.checks import show
from polyrhythm.compiler.ir.terms import ONE
from polyrhythm.errors import ShapeError
from polyrhythm.language.functions.reductions import flat
from polyrhythm.language.functions.support import TensorLike, as_tensor, promoted, reshaped
from polyrhythm.language.tensor import Tensor, apply

__all__ = ["dot", "einsum", "matmul", "outer"]

Labels = tuple[str, ...]


def einsum(spec: str, *operands: TensorLike) -> Tensor:
    """Sums of products in Einstein's notation, as in NumPy: an ellipsis, repeated labels, an implicit output.

    >>> import polyrhythm as pr
    >>> a = pr.constant([[1.0, 2.0], [3.0, 4.0]])
    >>> pr.evaluate(pr.einsum("ij,jk->ik", a, a))
    array([[ 7., 10.],
           [15., 22.]], dtype=float32)
    >>> pr.evaluate(pr.einsum("ii", a))
    array(5., dtype=float32)
    """
    tensors, _ = promoted(*operands)
    inputs, output, dots = _parsed(spec, tensors)
    longer = _longer(dots, inputs, tensors)
    pending = [_squeezed(x, labels, longer) for x, labels in zip(tensors, inputs, strict=True)]
    result, labels = pending[0]
    if len(pending) == 1:
        return _contracted(output, (result, labels))
    for position, right in enumerate(pending[1:], start=1):
        later = {label for _, others in pending[position + 1 :] for label in others} | set(output)
        seen = dict.fromkeys((*labels, *right[1]))
        kept = output if position == len(pending) - 1 else tuple(label for label in seen if label in later)
        result, labels = _contracted(kept, (result, labels), right), kept
    return result


def matmul(x: TensorLike, y: TensorLike) -> Tensor:
    """`x @ y`: the matrix product over the last two axes; leading axes broadcast, a vector stands for a row or column.

    >>> import polyrhythm as pr
    >>> a = pr.constant([[1.0, 2.0], [3.0, 4.0]])
    >>> pr.evaluate(a @ pr.constant([1.0, 1.0]))
    array([3., 7.], dtype=float32)
    """
    left, right = as_tensor(x), as_tensor(y)
    if not left.rank or not right.rank:
        raise ShapeError("matmul takes no scalars", fix="multiply by a scalar with *")
    first = ("...i" if left.rank > 1 else "") + "j"
    second = "...jk" if right.rank > 1 else "j"
    output = "..." + ("i" if left.rank > 1 else "") + ("k" if right.rank > 1 else "")
    inner = left.type.shape[-1], right.type.shape[-2 if right.rank > 1 else 0]
    if inner[0].is_constant and inner[1].is_constant and inner[0] is not inner[1]:
        raise ShapeError(
            f"matmul of shapes {show(left.type.shape)} and {show(right.type.shape)}: "
            f"{inner[0]} columns meet {inner[1]} rows",
            fix="transpose one operand, or write the contraction out with pr.einsum",
        )
    return einsum(f"{first},{second}->{output}", left, right)


def dot(x: TensorLike, y: TensorLike) -> Tensor:
    """The inner product of two vectors.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.dot(pr.constant([1.0, 2.0]), pr.constant([3.0, 4.0])))
    array(11., dtype=float32)
    """
    left, right = as_tensor(x), as_tensor(y)
    if left.rank != 1 or right.rank != 1:
        raise ShapeError(
            f"dot is of two vectors, not of shapes {show(left.type.shape)} and {show(right.type.shape)}",
            fix="use x @ y for matrices, or pr.einsum",
        )
    return einsum("i,i->", left, right)


def outer(x: TensorLike, y: TensorLike) -> Tensor:
    """All products of an element of x with an element of y; both are flattened.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.outer(pr.constant([1, 2]), pr.constant([3, 4])))
    array([[3, 4],
           [6, 8]], dtype=int32)
    """
    return einsum("i,j->ij", flat(as_tensor(x)), flat(as_tensor(y)))


def _contracted(output: Labels, *parts: tuple[Tensor, Labels]) -> Tensor:
    """One primitive contraction; nothing where it would change nothing."""
    if len(parts) == 1 and parts[0][1] == output:
        return parts[0][0]
    spec = ",".join("".join(labels) for _, labels in parts) + "->" + "".join(output)
    return apply("einsum", *(tensor for tensor, _ in parts), spec=spec)


def _parsed(spec: str, operands: tuple[Tensor, ...]) -> tuple[list[Labels], Labels, Labels]:
    """The label of every axis of every operand, those of the result, and those of the axes under an ellipsis."""
    text = spec.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ShapeError(
            f"einsum({spec!r}) describes {len(terms)} operands but got {len(operands)}",
            fix="give one comma-separated group of labels per operand",
        )
    for term in (*terms, right):
        _check_letters(spec, term)
    widths = [_ellipsis_rank(spec, term, x) for term, x in zip(terms, operands, strict=True)]
    spare = [letter for letter in string.ascii_letters if letter not in text]
    dots = tuple(spare[: max(widths, default=0)])
    inputs = [_expanded(term, dots[len(dots) - width :]) for term, width in zip(terms, widths, strict=True)]
    if not arrow:
        single = sorted(letter for letter in set(left) - set(",.") if left.count(letter) == 1)
        return inputs, (*dots, *single), dots
    output = _expanded(right, dots)
    known = {label for labels in inputs for label in labels}
    if len(set(output)) < len(output) or not known.issuperset(output):
        raise ShapeError(
            f"einsum({spec!r}): the result repeats a label, or has one that no operand has",
            fix="name each axis of the result once, by a label of an operand",
        )
    return inputs, output, dots


def _check_letters(spec: str, term: str) -> None:
    letters = term.replace("...", "", 1)
    if any(letter not in string.ascii_letters for letter in letters):
        raise ShapeError(
            f"einsum({spec!r}): {term!r} is not made of letters and at most one ellipsis",
            fix="label axes by letters, as in 'bij,jk->bik'",
        )


def _ellipsis_rank(spec: str, term: str, x: Tensor) -> int:
    named = len(term.replace("...", ""))
    if named > x.rank or ("..." not in term and named != x.rank):
        raise ShapeError(
            f"einsum({spec!r}): {term!r} does not describe an operand of shape {show(x.type.shape)}",
            fix="give one label per axis, or an ellipsis for the axes left out",
        )
    return x.rank - named


def _expanded(term: str, dots: Iterable[str]) -> Labels:
    before, ellipsis, after = term.partition("...")
    return (*before, *dots, *after) if ellipsis else tuple(before)


def _longer(dots: Labels, inputs: list[Labels], operands: tuple[Tensor, ...]) -> set[str]:
    """The labels under an ellipsis that are longer than 1 somewhere; against those an axis of length 1 broadcasts."""
    return {
        label
        for x, labels in zip(operands, inputs, strict=True)
        for length, label in zip(x.type.shape, labels, strict=True)
        if label in dots and length is not ONE
    }


def _squeezed(x: Tensor, labels: Labels, longer: set[str]) -> tuple[Tensor, Labels]:
    """The operand without the axes of length 1 that broadcast."""
    axes = [i for i, label in enumerate(labels) if label not in longer or x.type.shape[i] is not ONE]
    return reshaped(x, tuple(x.type.shape[i] for i in axes)), tuple(labels[i] for i in axes)
