"""Every way in which operands can fail to fit, with the words of the message that matter."""

from typing import Any

import numpy as np
import pytest

from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction, eq, ge, gt
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.ops.shapes import slice_in_range
from polyrhythm.compiler.ir.terms import ONE, ZERO, Symbol, Term
from polyrhythm.compiler.ir.types import Array, TensorType
from polyrhythm.errors import AxisError, DTypeError, EmptyAxisError, OutOfRangeError, PolyrhythmError, ShapeError
from tests.compiler.ir.ops.samples import UNARY, i, j, k, tensor

f, n, b = "f32", "i32", "bool"
WINDOW = {"stride": (1,), "padding": ((0, 0),), "dilation": (1,), "groups": 1}
POOL = {"monoid": "max", "window": (2,), "stride": (1,), "padding": ((0, 0),)}
SLICE = {"starts": (ZERO,), "lengths": (ONE,), "steps": (1,)}

Case = tuple[str, tuple[TensorType, ...], dict[str, Any], type[PolyrhythmError], str]

BROADCASTING: list[Case] = [
    ("add", (tensor(f, 3), tensor(f, 4)), {}, ShapeError, r"add: shapes \(3,\) and \(4,\) do not broadcast"),
    ("mul", (tensor(f, i), tensor(f, j)), {}, ShapeError, "lengths I and J meet, .* for all values"),
    ("le", (tensor(f, i, 2), tensor(f, 3)), {}, ShapeError, r"\(I, 2\) and \(3,\)"),
    ("add", (tensor(f, i), tensor(f, i + 1)), {}, ShapeError, r"lengths I and I \+ 1"),
    ("select", (tensor(b, 2), tensor(f, 3), tensor(f)), {}, ShapeError, r"\(2,\) and \(3,\) and \(\)"),
    ("broadcast", (tensor(f, 3),), {"shape": (Term(4),)}, ShapeError, r"\(3,\) does not broadcast to \(4,\)"),
    ("broadcast", (tensor(f, 3, 1),), {"shape": (Term(3),)}, ShapeError, "does not broadcast"),
    ("broadcast", (tensor(f, i),), {"shape": (j,)}, ShapeError, "does not broadcast"),
    ("broadcast", (tensor(f, 1),), {"shape": (Term(-1),)}, ShapeError, "negative length"),
]

DTYPES: list[Case] = [
    ("add", (tensor(f, 3), tensor(n, 3)), {}, DTypeError, "float32 and int32"),
    ("add", (tensor(b), tensor(b)), {}, DTypeError, "add: needs complex or integer or float elements, got bool"),
    ("div", (tensor(n), tensor(n)), {}, DTypeError, "use // for whole numbers"),
    ("and", (tensor(f), tensor(f)), {}, DTypeError, "needs bool or integer"),
    ("exp", (tensor(n),), {}, DTypeError, "cast the operand to a float dtype"),
    ("floor", (tensor(n),), {}, DTypeError, "an integer is whole already"),
    ("select", (tensor(n), tensor(f), tensor(f)), {}, DTypeError, "the condition must be bool, got int32"),
    ("select", (tensor(b), tensor(f), tensor(n)), {}, DTypeError, "different dtypes"),
    ("cast", (tensor(f),), {"dtype": np.dtype("datetime64[s]")}, DTypeError, "is not supported"),
    ("reduce", (tensor(b, 2),), {"monoid": "sum", "axes": (0,)}, DTypeError, "use any or all"),
    ("reduce", (tensor(b, 2),), {"monoid": "prod", "axes": (0,)}, DTypeError, "use any or all"),
    ("reduce", (tensor(f, 2),), {"monoid": "any", "axes": (0,)}, DTypeError, r"reduce any: needs bool"),
    ("cumulative", (tensor(b, 2),), {"monoid": "sum", "axis": 0, "reverse": False}, DTypeError, "cumulative sum"),
    ("einsum", (tensor(f, 2), tensor(n, 2)), {"spec": "i,i->"}, DTypeError, "different dtypes"),
    ("einsum", (tensor(b, 2),), {"spec": "i->"}, DTypeError, "cast truth values"),
    ("concat", (tensor(f, 2), tensor(n, 2)), {"axis": 0}, DTypeError, "concat: operands have different dtypes"),
    ("pad", (tensor(n, 2),), {"before": (0,), "after": (0,), "value": 0.5}, DTypeError, "0.5 is not a value"),
    ("pad", (tensor("u8", 2),), {"before": (0,), "after": (0,), "value": -1}, DTypeError, "-1 is not a value"),
    ("pad", (tensor(b, 2),), {"before": (0,), "after": (0,), "value": 2}, DTypeError, "2 is not a value"),
    ("take", (tensor(f, 2), tensor(f, 2)), {"axis": 0}, DTypeError, "indices must be integers, got float32"),
    ("take_along", (tensor(f, 2), tensor(b, 2)), {"axis": 0}, DTypeError, "got bool"),
    ("scatter_add", (tensor(f, 2), tensor(f), tensor(f)), {"axis": 0}, DTypeError, "indices must be integers"),
    ("scatter_add", (tensor(f, 2), tensor(n), tensor(n)), {"axis": 0}, DTypeError, "different dtypes"),
    ("scatter_add", (tensor(b, 2), tensor(n), tensor(b)), {"axis": 0}, DTypeError, "got bool"),
    ("scatter_along", (tensor(f, 2), tensor(f, 2), tensor(f, 2)), {"axis": 0}, DTypeError, "must be integers"),
    ("scatter_along", (tensor(f, 2), tensor(n, 2), tensor(n, 2)), {"axis": 0}, DTypeError, "different dtypes"),
    ("scatter_along", (tensor(b, 2), tensor(n, 2), tensor(b, 2)), {"axis": 0}, DTypeError, "got bool"),
    ("conv", (tensor(f, 1, 1, 4), tensor(n, 1, 1, 2)), WINDOW, DTypeError, "different dtypes"),
    ("conv", (tensor(b, 1, 1, 4), tensor(b, 1, 1, 2)), WINDOW, DTypeError, "cast truth values"),
    ("reduce_window", (tensor(b, 4),), {**POOL, "monoid": "sum"}, DTypeError, "reduce_window sum"),
    ("constant", (), {"value": Array(np.array(1, "longdouble"))}, DTypeError, "is not supported"),
]

AXES: list[Case] = [
    ("reduce", (tensor(f, 2, 3),), {"monoid": "sum", "axes": (2,)}, AxisError, "axis 2 .* choose .* 0 to 1"),
    ("reduce", (tensor(f, 2, 3),), {"monoid": "sum", "axes": (-1,)}, AxisError, "axis -1"),
    ("reduce", (tensor(f),), {"monoid": "sum", "axes": (0,)}, AxisError, "a scalar has no axes"),
    ("reduce", (tensor(f, 2),), {"monoid": "sum", "axes": (0, 0)}, AxisError, "twice"),
    ("argreduce", (tensor(f, 2),), {"which": "max", "axis": 1}, AxisError, "argmax: axis 1"),
    ("cumulative", (tensor(f, 2),), {"monoid": "sum", "axis": 1, "reverse": False}, AxisError, "axis 1"),
    ("argsort", (tensor(f, 2),), {"axis": 1, "descending": False}, AxisError, "axis 1"),
    ("transpose", (tensor(f, 2, 3),), {"axes": (0, 0)}, AxisError, r"name each of the axes \(0, 1\) once"),
    ("concat", (tensor(f, 2),), {"axis": 1}, AxisError, "axis 1"),
    ("take", (tensor(f), tensor(n)), {"axis": 0}, AxisError, "no axes"),
    ("take_along", (tensor(f, 2), tensor(n, 2)), {"axis": 1}, AxisError, "axis 1"),
    ("scatter_add", (tensor(f, 2), tensor(n), tensor(f)), {"axis": 1}, AxisError, "axis 1"),
    ("scatter_along", (tensor(f, 2), tensor(n, 2), tensor(f, 2)), {"axis": 1}, AxisError, "axis 1"),
]

SHAPES: list[Case] = [
    ("argreduce", (tensor(f, 0),), {"which": "min", "axis": 0}, EmptyAxisError, "has no min"),
    ("einsum", (tensor(f, 2), tensor(f, 2)), {"spec": "i,i"}, ShapeError, "not an explicit specification"),
    ("einsum", (tensor(f, 2),), {"spec": "...->"}, ShapeError, "not an explicit specification"),
    ("einsum", (tensor(f, 2),), {"spec": "i->ii"}, ShapeError, "each once"),
    ("einsum", (tensor(f, 2),), {"spec": "i->j"}, ShapeError, "labels of the operands"),
    ("einsum", (tensor(f, 2),), {"spec": "i,j->"}, ShapeError, "labels for 2 operands, got 1"),
    ("einsum", (tensor(f, 2, 2),), {"spec": "i->i"}, ShapeError, r"'i' .* labels 1 axes"),
    ("einsum", (tensor(f, i, j), tensor(f, k, 2)), {"spec": "ij,jk->ik"}, ShapeError, "lengths J and K"),
    ("einsum", (tensor(f, 2, 3),), {"spec": "ii->i"}, ShapeError, "lengths 2 and 3"),
    ("einsum", (tensor(f, 1), tensor(f, 3)), {"spec": "i,i->"}, ShapeError, "lengths 1 and 3"),
    ("reshape", (tensor(f, 2, 3),), {"shape": (Term(5),)}, ShapeError, "has 6 elements, shape .* has 5"),
    ("reshape", (tensor(f, i, j),), {"shape": (i * i,)}, ShapeError, r"I\*J elements"),
    ("reshape", (tensor(f, 4),), {"shape": (Term(-2), Term(-2))}, ShapeError, "negative length"),
    ("concat", (tensor(f, 2), tensor(f, 2, 2)), {"axis": 0}, ShapeError, "different numbers of axes"),
    ("concat", (tensor(f, 2, i), tensor(f, 2, j)), {"axis": 0}, ShapeError, "axis 1 of the first has length I"),
    ("pad", (tensor(f, 2),), {"before": (0, 0), "after": (0,), "value": 0.0}, ShapeError, "`before` is .* not 2"),
    ("pad", (tensor(f, 2),), {"before": (0,), "after": (-1,), "value": 0.0}, ShapeError, "negative amount"),
    ("slice", (tensor(f, 3, 3),), SLICE, ShapeError, "`starts` is .* not 1"),
    ("slice", (tensor(f, 3),), {**SLICE, "steps": (0,)}, ShapeError, "contain 0"),
    ("slice", (tensor(f, 3),), {**SLICE, "starts": (Term(3),)}, OutOfRangeError, "do not lie inside"),
    ("slice", (tensor(f, 3),), {**SLICE, "starts": (Term(-1),)}, OutOfRangeError, "do not lie inside"),
    ("slice", (tensor(f, 3),), {**SLICE, "lengths": (Term(-1),)}, OutOfRangeError, "do not lie inside"),
    ("slice", (tensor(f, i),), {**SLICE, "starts": (i,)}, OutOfRangeError, "do not lie inside"),
    ("scatter_add", (tensor(f, 4), tensor(n, 2), tensor(f, 3)), {"axis": 0}, ShapeError, r"of shape \(2,\)"),
    ("scatter_add", (tensor(f, 4), tensor(n, 2), tensor(f)), {"axis": 0}, ShapeError, r"of shape \(2,\)"),
    ("take_along", (tensor(f, 4), tensor(n, 2, 2)), {"axis": 0}, ShapeError, "with 1 axes"),
    ("take_along", (tensor(f, 4, i), tensor(n, 2, j)), {"axis": 0}, ShapeError, "as long as the tensor's"),
    ("scatter_along", (tensor(f, 4), tensor(n, 2), tensor(f, 3)), {"axis": 0}, ShapeError, "equally long"),
    ("scatter_along", (tensor(f, 4), tensor(n, 2), tensor(f, 2, 2)), {"axis": 0}, ShapeError, "do not fit"),
    ("scatter_along", (tensor(f, 4, 2), tensor(n, 2, 1), tensor(f, 2, 3)), {"axis": 0}, ShapeError, "do not fit"),
    ("iota", (), {"length": Term(-1)}, ShapeError, "negative length"),
    ("random_bits", (), {"shape": (Term(-1),), "site": "a"}, ShapeError, "negative length"),
]

WINDOWS: list[Case] = [
    ("conv", (tensor(f, 4), tensor(f, 4)), WINDOW, ShapeError, "at least two"),
    ("conv", (tensor(f, 1, 1, 4), tensor(f, 1, 1)), WINDOW, ShapeError, "same number of axes"),
    ("conv", (tensor(f, 1, 2, 4), tensor(f, 1, 3, 2)), WINDOW, ShapeError, "2 channels .* 1 groups"),
    ("conv", (tensor(f, 1, i, 4), tensor(f, 1, j, 2)), WINDOW, ShapeError, "I channels"),
    ("conv", (tensor(f, 1, 4, 4), tensor(f, 3, 2, 2)), {**WINDOW, "groups": 2}, ShapeError, "3 output channels"),
    ("conv", (tensor(f, 1, 0, 4), tensor(f, 3, 2, 2)), {**WINDOW, "groups": 0}, ShapeError, "0 groups"),
    ("conv", (tensor(f, 1, 1, 4), tensor(f, 1, 1, 0)), WINDOW, ShapeError, "may be empty"),
    ("conv", (tensor(f, 1, 1, 4), tensor(f, 1, 1, i)), WINDOW, ShapeError, "may be empty"),
    ("conv", (tensor(f, 1, 1, 4), tensor(f, 1, 1, 2)), {**WINDOW, "stride": (0,)}, ShapeError, "`stride` is"),
    ("conv", (tensor(f, 1, 1, 4), tensor(f, 1, 1, 2)), {**WINDOW, "dilation": (0,)}, ShapeError, "`dilation` is"),
    ("conv", (tensor(f, 1, 1, 4), tensor(f, 1, 1, 2)), {**WINDOW, "dilation": ()}, ShapeError, "0 entries"),
    ("conv", (tensor(f, 1, 1, 4), tensor(f, 1, 1, 2)), {**WINDOW, "padding": ((0, -1),)}, ShapeError, "negative"),
    ("reduce_window", (tensor(f),), POOL, ShapeError, "too few axes"),
    ("reduce_window", (tensor(f, 4),), {**POOL, "window": (0,)}, ShapeError, "may be empty"),
    ("reduce_window", (tensor(f, 4),), {**POOL, "stride": (1, 1)}, ShapeError, "2 entries for 1 window axes"),
]

CASES = [*BROADCASTING, *DTYPES, *AXES, *SHAPES, *WINDOWS]


def infer(op: str, operands: tuple[TensorType, ...], attributes: dict[str, Any], given: Condition = TRUE) -> TensorType:
    return TABLE[op].type_rule(operands, attributes, given)


@pytest.mark.parametrize(("op", "operands", "attributes", "error", "words"), CASES)
def test_what_does_not_fit_is_refused(
    op: str, operands: tuple[TensorType, ...], attributes: dict[str, Any], error: type[PolyrhythmError], words: str
) -> None:
    with pytest.raises(error, match=f"(?s){words}") as caught:
        infer(op, operands, attributes)
    assert type(caught.value) is error
    assert "\n  fix: " in str(caught.value)


@pytest.mark.parametrize("op", [op for op, allowed in UNARY.items() if "bool" not in allowed])
def test_arithmetic_functions_refuse_truth_values(op: str) -> None:
    with pytest.raises(DTypeError, match=f"{op}: needs"):
        infer(op, (tensor(b, 2),), {})


def test_what_is_given_can_make_lengths_equal() -> None:
    operands = (tensor(f, i, 3), tensor(f, j, 1))
    assert infer("add", operands, {}, eq(i, j)) == tensor(f, i, 3)
    assert infer("einsum", (tensor(f, i), tensor(f, j)), {"spec": "i,i->"}, eq(i, j)) == tensor(f)
    assert infer("reshape", (tensor(f, i, 2),), {"shape": (j,)}, eq(2 * i, j)) == tensor(f, j)
    assert infer("add", (tensor(f, i), tensor(f, 4)), {}, eq(i, 4)) == tensor(f, 4)


def test_symbolic_products_compare_as_polynomials() -> None:
    assert infer("reshape", (tensor(f, i + 1, j),), {"shape": (i * j + j,)}) == tensor(f, i * j + j)


def test_what_is_given_can_make_an_axis_nonempty() -> None:
    attributes = {"which": "max", "axis": 0}
    assert infer("argreduce", (tensor(f, i),), attributes, gt(i, 0)) == tensor(n)
    t = Term.of(Symbol("t", "dim"))
    assert infer("argreduce", (tensor(f, t + 1),), attributes) == tensor(n)
    assert infer("argreduce", (tensor(f, i * j + 1),), attributes) == tensor(n)


def test_windows_of_symbolic_axes() -> None:
    x, w = tensor(f, i, 2, j), tensor(f, 4, 2, 3)
    assert str(infer("conv", (x, w), WINDOW).shape[2]) == "max(0, J - 2)"
    assert infer("conv", (x, w), {**WINDOW, "padding": ((2, 0),)}) == tensor(f, i, 4, j)
    assert infer("conv", (x, w), WINDOW, ge(j, 2)) == tensor(f, i, 4, j - 2)


@pytest.mark.parametrize("value", [0, 1, False, True])
def test_truth_values_are_padded_with_0_and_1_too(value: int | bool) -> None:
    attributes = {"before": (0,), "after": (1,), "value": value}
    assert infer("pad", (tensor(b, 2),), attributes) == tensor(b, 3)
    assert TABLE["pad"].numpy(np.zeros(2, bool), **attributes)[2] == bool(value)


def test_nothing_is_refused_where_nothing_is_possible() -> None:
    """Contradictory knowledge proves anything; it must not be taken for an error of the user."""
    attributes = {**SLICE, "starts": (i - 1,)}
    assert infer("slice", (tensor(f, i),), attributes, conjunction(eq(i, 1), eq(i, 2))) == tensor(f, 1)


def test_a_slice_that_may_leave_the_axis_states_what_it_needs() -> None:
    operand, attributes = tensor(f, i), {**SLICE, "starts": (i - 1,)}
    assert infer("slice", (operand,), attributes) == tensor(f, 1)
    assert slice_in_range(operand, attributes) is ge(i, 1)
