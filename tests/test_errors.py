"""Every message a user can meet: each program below makes one mistake.

`tests/golden/errors` has a file for each section, with every program and its message below it, in which this file is
called `program.py` and has no line numbers. Every message must show lines of this file only, never one inside the
package.
"""

import inspect
import json
import re
import tempfile
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import errors, llm, nn
from polyrhythm.errors import PolyrhythmError, calls, definitions, expressions
from polyrhythm.llm import errors as llm_errors
from polyrhythm.llm.errors import (
    ContextLengthError,
    ModelDamagedError,
    ModelMismatchError,
    ModelMissingError,
    PromptError,
)
from polyrhythm.nn import errors as nn_errors
from polyrhythm.nn.errors import WeightsFileError, WeightsMismatchError
from polyrhythm.runtime import errors as runtime_errors
from polyrhythm.runtime.errors import CheckpointDamagedError, CheckpointInUseError, CheckpointMismatchError

Program = Callable[[], object]
CASES: dict[str, tuple[type[PolyrhythmError], Program]] = {}
SECTIONS: dict[str, list[str]] = {}

t, T = pr.dim("t")
i, I = pr.dim("i")
b, B = pr.dim("b")
x = pr.input("x", (), (t,))
v = pr.input("v", (3,), (t,))
table = pr.input("table", (), ((t, T + 1),))
lengths = pr.input("lengths", (), (b,), "int32")
s, S = pr.dim("s", extent=lengths, max=4)
X = {"x": [1.0, 2.0, 4.0]}


def section(name: str) -> None:
    """Begin a section: the file that holds the programs which follow."""
    SECTIONS[name] = []


def raises(error: type[PolyrhythmError]) -> Callable[[Program], Program]:
    def register(program: Program) -> Program:
        CASES[program.__name__] = error, program
        SECTIONS[next(reversed(SECTIONS))].append(program.__name__)
        return program

    return register


# The definitions of a recurrent tensor.

section("definitions")


@raises(errors.UndefinedError)
def no_definition() -> None:
    y = pr.recurrent((), (t,))
    pr.evaluate(y + 1, bounds={T: 3})


@raises(errors.UndefinedError)
def no_definition_of_a_nameless_tensor() -> None:
    pr.evaluate([pr.recurrent((), (t,)), x], X)


@raises(errors.GapError)
def gap_at_the_start() -> None:
    y = pr.recurrent((), (t,))
    y[t + 1] = y + 1
    pr.evaluate(y, bounds={T: 3})


@raises(errors.GapError)
def gap_at_the_end() -> None:
    y = pr.recurrent((), ((t, T + 1),))
    y[t] = 1
    pr.evaluate(y, bounds={T: 3})


@raises(errors.GapError)
def gap_along_an_edge() -> None:
    y = pr.recurrent((), (i, t))
    y[0, t] = 0
    y[i + 1, t + 1] = y + 1
    pr.evaluate(y, bounds={T: 3, I: 3})


@raises(errors.GapError)
def gap_between_even_steps() -> None:
    y = pr.recurrent((), (t,))
    y[2 * t] = 1
    pr.evaluate(y, bounds={T: 3})


@raises(errors.OverlapError)
def overlap_at_a_point() -> None:
    y = pr.recurrent((), (t,))
    y[0] = 0
    y[t] = x
    pr.evaluate(y, X)


@raises(errors.OverlapError)
def overlap_of_conditions() -> None:
    y = pr.recurrent((), (t,))
    y[t < 5] = 0
    y[t > 2] = x
    y[pr.otherwise] = 3
    pr.evaluate(y, X)


@raises(errors.DefinitionError)
def second_otherwise() -> None:
    y = pr.recurrent((), (t,))
    y[pr.otherwise] = 0
    y[pr.otherwise] = 1


@raises(errors.DefinitionError)
def assignment_to_an_input() -> None:
    x[0] = 1


@raises(errors.DataIndexError)
def definition_where_data_says() -> None:
    y = pr.recurrent((), (t,))
    y[x > 0] = 1


@raises(errors.UnboundDimError)
def right_side_with_a_free_dim() -> None:
    y = pr.recurrent((), (t,))
    y[0] = x


@raises(errors.UnboundDimError)
def condition_on_another_dim() -> None:
    y = pr.recurrent((), (t,))
    y[i > 0] = 1


@raises(errors.UnboundDimError)
def shape_with_a_free_dim() -> None:
    pr.recurrent((t + 1,), (i,))


@raises(errors.DTypeError)
def right_side_of_a_wider_type() -> None:
    y = pr.recurrent((), (t,), "int32")
    y[0] = 0.5


@raises(errors.ShapeError)
def right_side_of_another_shape() -> None:
    y = pr.recurrent((2,), (t,))
    y[t] = v


@raises(errors.LeftSideError)
def slice_on_the_left() -> None:
    y = pr.recurrent((), (t,))
    y[0:3] = 1


@raises(errors.LeftSideError)
def quotient_on_the_left() -> None:
    y = pr.recurrent((), (t,))
    y[t // 2] = 1


@raises(errors.LeftSideError)
def ragged_dim_shifted_on_the_left() -> None:
    y = pr.recurrent((), (b, s))
    y[b + 1, s] = 1


@raises(errors.NotInjectiveError)
def two_steps_to_one_point() -> None:
    y = pr.recurrent((), (t,))
    y[i + t] = 1


# Reads.

section("reads")


@raises(errors.OutOfRangeError)
def read_before_the_first_step() -> None:
    y = x[t - 1] * 2
    pr.evaluate(y, X)


@raises(errors.OutOfRangeError)
def read_behind_the_last_step_of_a_plain_value() -> None:
    doubled = x * 2
    ahead = doubled[t + 1] + 1
    pr.evaluate(ahead, X)


@raises(errors.OutOfRangeError)
def read_to_define_a_recurrent_tensor() -> None:
    y = pr.recurrent((), (t,))
    y[0] = 0
    y[t + 1] = x[t + 2]
    pr.evaluate(y, X)


@raises(errors.OutOfRangeError)
def slice_that_is_too_long() -> None:
    total = x[t : t + 3].sum(0)
    pr.evaluate(total, X)


@raises(errors.OutOfRangeError)
def slice_of_a_size_nothing_bounds() -> None:
    P = pr.size("P")
    pr.evaluate(x[0:P].sum(0), X, bounds={P: 1})


@raises(errors.OutOfRangeError)
def negative_step() -> None:
    pr.evaluate(x[-1], X)


@raises(errors.OutOfRangeError)
def data_condition_does_not_narrow() -> None:
    pr.evaluate(pr.where(x > 0, x[t - 1], 0), X)


@raises(errors.OutOfRangeError)
def ragged_read_at_another_row() -> None:
    y = pr.where(b > 0, pr.value(s)[b - 1, s], 0)
    pr.evaluate(y, {"lengths": [1, 2]})


@raises(errors.OutOfRangeError)
def position_outside_an_axis() -> None:
    v.axes[5]


@raises(errors.OutOfRangeError)
def symbolic_position_outside_an_axis() -> None:
    pr.evaluate(v.axes[t], {"v": np.zeros((2, 3))})


@raises(errors.OutOfRangeError)
def symbolic_position_never_inside_an_axis() -> None:
    v.axes[t + 5]


@raises(errors.ShapeError)
def negative_length() -> None:
    y = pr.zeros((t - 1,)).sum(0)
    pr.evaluate(y, bounds={T: 3})


@raises(errors.EmptyAxisError)
def argmax_of_what_may_be_nothing() -> None:
    best = x[0:t].argmax(0)
    pr.evaluate(best, X)


@raises(errors.EmptyAxisError)
def argmax_of_nothing() -> None:
    pr.zeros((0, 2)).argmax(0)


@raises(errors.RequirementError)
def too_few_steps() -> None:
    last = x[T - 1]
    pr.evaluate(last, {"x": []})


@raises(errors.RequirementError)
def too_few_steps_of_a_plain_value() -> None:
    doubled = x * 2
    fourth = doubled[3]
    pr.evaluate(fourth, X)


@raises(errors.RequirementError)
def argmax_of_too_few_steps() -> None:
    best = x[0:T].argmax(0)
    pr.evaluate(best, {"x": []})


# Cycles.

section("cycles")


@raises(errors.CycleError)
def cycle_of_two() -> None:
    y = pr.recurrent((), (t,))
    z = pr.recurrent((), (t,))
    y[t] = z + 1
    z[t] = y * 2
    pr.evaluate(y, bounds={T: 3})


@raises(errors.CycleError)
def cycle_through_a_plain_value() -> None:
    y = pr.recurrent((), (t,))
    y[0] = 1
    doubled = y * 2
    y[t + 1] = doubled[t + 1]
    pr.evaluate(y, bounds={T: 3})


@raises(errors.CycleError)
def cycle_through_a_slice() -> None:
    y = pr.recurrent((), (t,))
    y[t] = y[0:T].sum(0)
    pr.evaluate(y, bounds={T: 3})


@raises(errors.CycleError)
def cycle_through_a_length() -> None:
    n = pr.recurrent((), (b,), "int32")
    u, U = pr.dim("u", extent=n, max=4)
    n[b] = pr.value(u)[b, 0:U].sum(0)
    pr.evaluate(n, bounds={B: 2})


@raises(errors.ProgressError)
def both_ways_in_one_definition() -> None:
    y = pr.recurrent((), ((t, 4 * T),))
    y[t % 4 == 0] = 1
    y[t % 4 > 0] = 2 * pr.where(t % 4 == 2, y[t + 1], pr.where(t % 4 == 3, y[t - 2], y[t - 1]))
    pr.evaluate(y, bounds={T: 3})


# Indices and conditions.

section("indices")


@raises(errors.IndexingError)
def too_many_indices() -> None:
    v[t, 0]


@raises(errors.IndexingError)
def index_without_dims() -> None:
    pr.zeros((3,))[0]


@raises(errors.IndexingError)
def condition_as_an_index() -> None:
    x[t > 0]


@raises(errors.IndexingError)
def slice_with_step_zero() -> None:
    x[0:T:0]


@raises(errors.IndexingError)
def two_tensors_in_axes() -> None:
    pr.zeros((3, 3)).axes[pr.constant([0]), pr.constant([1])]


@raises(errors.IndexingError)
def axis_slice_with_step_zero() -> None:
    v.axes[::0]


@raises(errors.UnknownDimError)
def index_by_another_dim() -> None:
    x[{i: 0}]


@raises(errors.DataIndexError)
def step_chosen_by_data() -> None:
    x[x[0:T].argmax(0)]


@raises(errors.DataIndexError)
def mask_on_an_axis() -> None:
    v.axes[v > 0]


@raises(errors.IndexValueError)
def index_of_a_float() -> None:
    x[0.5]


@raises(errors.IndexValueError)
def index_plus_a_float() -> None:
    half: Any = 0.5
    t + half


@raises(errors.IndexValueError)
def index_maximum_of_a_tensor() -> None:
    tensor: Any = x
    pr.max(tensor, 0)


@raises(errors.IndexValueError)
def axis_indexed_by_a_string() -> None:
    position: Any = "a"
    v.axes[position]


@raises(errors.IndexValueError)
def index_of_a_tensor() -> None:
    step: Any = x
    pr.value(step)


@raises(errors.IndexValueError)
def fraction_of_an_index() -> None:
    x[t / 2]


@raises(errors.IndexValueError)
def fraction_by_an_index() -> None:
    x[2 / t]


@raises(errors.NonAffineError)
def power_of_an_index() -> None:
    x[t**2]


@raises(errors.NonAffineError)
def remainder_by_an_index() -> None:
    x[5 % t]


@raises(errors.NonAffineError)
def product_of_symbols() -> None:
    x[i * t]


@raises(errors.NonAffineError)
def quotient_by_a_symbol() -> None:
    x[t // T]


@raises(errors.ConditionValueError)
def condition_in_an_if() -> None:
    if t > 0:
        pass


@raises(errors.ConditionValueError)
def chained_comparison() -> None:
    0 < t < 3


@raises(errors.ConditionValueError)
def truth_of_an_index() -> None:
    bool(t)


@raises(errors.ConditionValueError)
def python_loop_over_steps() -> None:
    for _ in range(T):
        pass


@raises(errors.ConditionValueError)
def truth_of_a_tensor() -> None:
    assert x


@raises(errors.IterationError)
def unpacked_tensor() -> None:
    _first, _second = pr.zeros((2,))


@raises(errors.RaggedShapeError)
def stacked_prefixes() -> None:
    x[0 : t + 1][0:T]


@raises(errors.RaggedShapeError)
def sliced_under_a_ragged_dim() -> None:
    pr.value(s)[0:B, s]


@raises(errors.RaggedShapeError)
def shape_of_another_row() -> None:
    pr.zeros((S,))[b + 1]


@raises(errors.RaggedShapeError)
def output_ragged_twice() -> None:
    prefixes = pr.zeros((s + 1,))
    pr.evaluate(prefixes, {"lengths": [1, 2]})


# Declarations.

section("declarations")


@raises(errors.DeclarationError)
def bound_instead_of_a_dim() -> None:
    dims: Any = (T,)
    pr.input("y", (), dims)


@raises(errors.DeclarationError)
def dim_listed_twice() -> None:
    pr.recurrent((), (t, t))


@raises(errors.DeclarationError)
def ragged_extent_of_floats() -> None:
    pr.dim("u", extent=x)


@raises(errors.DeclarationError)
def ragged_extent_of_an_index() -> None:
    pr.dim("u", extent=T + 1)


@raises(errors.DeclarationError)
def dim_without_a_name() -> None:
    name: Any = 3
    pr.dim(name)


@raises(errors.DeclarationError)
def host_with_too_many_dtypes() -> None:
    pr.host(print, [], shape=[()], dtype=["int32", "int32"])


@raises(errors.UnboundDimError)
def host_without_the_dim_of_an_input() -> None:
    pr.host(print, [x], dims=(b,))


@raises(errors.ShapeError)
def input_of_changing_shape() -> None:
    pr.input("y", (t,), (t,))


@raises(errors.ShapeError)
def parameter_of_symbolic_shape() -> None:
    pr.parameter("w", (T,))


@raises(errors.ShapeError)
def parameter_with_another_value() -> None:
    pr.parameter("w", (2,), init=[1.0, 2.0, 3.0])


@raises(errors.DuplicateNameError)
def two_inputs_of_one_name() -> None:
    other = pr.input("x", (), (t,))
    pr.evaluate(x + other, X)


@raises(errors.DuplicateNameError)
def two_random_sites_of_one_name() -> None:
    first = pr.uniform((), name="noise")
    second = pr.uniform((), name="noise")
    pr.evaluate(first + second)


# Calls.

section("calls")


@raises(errors.MissingInputError)
def missing_input() -> None:
    pr.evaluate(v)


@raises(errors.UnknownInputError)
def unknown_input() -> None:
    pr.evaluate(x, {**X, "z": 1.0})


@raises(errors.InputShapeError)
def input_with_too_many_axes() -> None:
    pr.evaluate(x, {"x": [[1.0]]})


@raises(errors.InputShapeError)
def input_with_a_wrong_length() -> None:
    pr.evaluate(v, {"v": np.zeros((2, 4))})


@raises(errors.InputShapeError)
def input_length_no_bound_explains() -> None:
    pr.evaluate(table, {"table": []})


@raises(errors.InputShapeError)
def rows_of_different_lengths() -> None:
    pr.evaluate(v, {"v": [[1.0, 2.0, 3.0], [1.0]]})


@raises(errors.InputShapeError)
def ragged_input_that_is_too_short() -> None:
    word = pr.input("word", (), (b, s))
    pr.evaluate(word, {"lengths": [1, 3], "word": np.zeros((2, 2))})


@raises(errors.InputDTypeError)
def integers_for_floats() -> None:
    pr.evaluate(x, {"x": np.array([1, 2])})


@raises(errors.MissingBoundError)
def missing_bound() -> None:
    pr.evaluate(pr.value(t))


@raises(errors.BoundsError)
def bounds_and_input_disagree() -> None:
    pr.evaluate(x, X, bounds={T: 4})


@raises(errors.BoundsError)
def two_inputs_disagree() -> None:
    pr.evaluate(x + table[t + 1], {**X, "table": [0.0, 1.0, 2.0]})


@raises(errors.BoundsError)
def bound_above_its_maximum() -> None:
    P = pr.size("P", max=T)
    pr.evaluate(x[0:P], X, bounds={P: 4})


@raises(errors.BoundsError)
def bound_above_a_fixed_maximum() -> None:
    P = pr.size("P", max=3)
    pr.evaluate(pr.zeros((P,)), bounds={P: 4})


@raises(errors.BoundsError)
def run_that_ends_before_a_size() -> None:
    P = pr.size("P", max=T)
    y = pr.where(t < P, x, 0.0)
    pr.evaluate(y, X, bounds={P: 3}, until={t: x < 9.0})


@raises(errors.BoundsError)
def negative_bound() -> None:
    pr.evaluate(pr.value(t), bounds={T: -1})


@raises(errors.BoundsError)
def dim_instead_of_its_bound() -> None:
    pr.evaluate(pr.value(t), bounds={t: 3})


@raises(errors.OperandError)
def output_that_is_no_tensor() -> None:
    pr.evaluate([x, 3], X)


@raises(errors.UntilError)
def until_depends_on_its_length() -> None:
    done = pr.value(t) == T - 1
    pr.evaluate(x, X, until={t: done})


@raises(errors.UntilError)
def until_of_floats() -> None:
    pr.evaluate(x, X, until={t: x})


@raises(errors.UntilError)
def until_by_a_string() -> None:
    until: Any = {"t": x > 0}
    pr.evaluate(x, X, until=until)


@raises(errors.LengthError)
def length_above_its_maximum() -> None:
    pr.evaluate(pr.value(s), {"lengths": [1, 5]})


@raises(errors.LengthError)
def negative_ragged_length() -> None:
    pr.evaluate(pr.value(s), {"lengths": [1, -2]})


@raises(errors.HostError)
def host_result_of_another_shape() -> None:
    def pair(value: Any) -> Any:
        return np.zeros(2, "float32")

    pr.evaluate(pr.host(pair, [x]), X)


@raises(errors.HostError)
def host_result_of_another_kind() -> None:
    def half(value: Any) -> Any:
        return value / 2

    pr.evaluate(pr.host(half, [x], dtype="int32"), X)


@raises(errors.HostError)
def host_with_too_few_results() -> None:
    def one(value: Any) -> Any:
        return (value,)

    first, second = pr.host(one, [x], shape=[(), ()])
    pr.evaluate(first + second, X)


@raises(errors.HostError)
def host_without_a_tuple() -> None:
    def one(value: Any) -> Any:
        return float(value)

    first, second = pr.host(one, [x], shape=[(), ()])
    pr.evaluate(first + second, X)


@raises(errors.EffectError)
def effect_against_its_order() -> None:
    def read(value: Any) -> Any:
        return value

    def write(value: Any) -> Any:
        return value

    first = pr.host(read, [x], effect="file")
    second = pr.host(write, [first[T - 1 - t]], effect="file")
    pr.evaluate(second, X)


# Compiling.

section("compiling")


@raises(errors.UnsupportedError)
def compiled_effect_in_rows() -> None:
    noted = pr.host(lambda step: step, [pr.value(s)], dtype="int32", effect="log")
    pr.compile(noted, backend="numpy")


@raises(errors.UnsupportedError)
def compiled_function_of_a_row() -> None:
    row = pr.value(s)[b, 0:S]
    pr.compile(pr.host(lambda v: v.sum(), [row], dtype="int32"), backend="numpy")


@raises(errors.UnsupportedError)
def compiled_reshape_of_rows() -> None:
    pairs = pr.stack([pr.value(s)[b, 0:S], pr.value(s)[b, 0:S]], 0)
    pr.compile(pr.reshape(pairs, (2 * S,)), backend="numpy")


@raises(errors.GradientError)
def gradient_of_a_vector() -> None:
    pr.grad(x[0:T], x)


@raises(errors.GradientError)
def gradient_by_a_view() -> None:
    pr.grad(x * x, x[0])


@raises(errors.GradientError)
def gradient_through_a_host_function() -> None:
    doubled = pr.host(lambda value: value * 2, [x])
    pr.evaluate(pr.grad(doubled * 1.0, x), X)


@raises(errors.GradientError)
def gradient_given_with_too_many_results() -> None:
    pr.custom_vjp(pr.round, lambda g, y, v: (g, g))(x)


@raises(errors.RecomputeError)
def checkpoint_of_an_input() -> None:
    pr.checkpoint(x)


@raises(errors.RecomputeError)
def checkpoint_with_segments_of_unknown_length() -> None:
    y = pr.checkpoint(x * x, over=t)
    pr.evaluate(pr.grad(y * y, x), X)


@raises(errors.UnsupportedError)
def unknown_backend() -> None:
    pr.compile(x, backend="fortran")


@raises(errors.InputShapeError)
def ragged_input_of_a_dim_that_is_not() -> None:
    pr.compile(x * 2, backend="numpy")(x=pr.Ragged.of([[1.0], [2.0, 3.0]]))


@raises(errors.DeclarationError)
def input_named_like_an_argument() -> None:
    seed = pr.input("seed")
    pr.compile(seed * 2, backend="numpy")


@raises(errors.MissingBoundError)
def stream_of_unknown_length() -> None:
    pr.compile(x * 2, backend="numpy").stream(over=t, x=iter([1.0]))


@raises(errors.UnknownDimError)
def stream_over_a_dim_of_no_output() -> None:
    pr.compile(x[0:T].sum(0), backend="numpy").stream(over=t, x=X["x"])


@raises(errors.InputShapeError)
def stream_whose_iterator_ends_early() -> None:
    list(pr.compile(x * 2, backend="numpy").stream(over=t, bounds={T: 3}, x=iter([np.float32(1)])))


@raises(errors.NotFiniteError)
def nan_from_a_division() -> None:
    ratio = x / (x - 2)
    with pr.settings(check_nan=True):
        pr.compile(ratio, backend="numpy")(x=X["x"])


@raises(errors.NotFiniteError)
def nan_in_an_input() -> None:
    with pr.settings(check_nan=True):
        pr.compile(v * 2, backend="numpy")(v=[[1.0, 2.0, 3.0], [1.0, float("nan"), 3.0]])


# Functions.

section("functions")


@raises(errors.OperandError)
def list_as_an_operand() -> None:
    weights: Any = [1, 2, 3]
    v * weights


@raises(errors.OperandError)
def constant_of_a_tensor() -> None:
    pr.constant(x)


@raises(errors.DTypeError)
def unknown_dtype() -> None:
    pr.zeros((2,), "float80")


@raises(errors.DTypeError)
def number_that_does_not_fit() -> None:
    pr.value(t) + 2**40


@raises(errors.DTypeError)
def constant_that_does_not_fit() -> None:
    pr.constant([2**40])


@raises(errors.DTypeError)
def where_on_floats() -> None:
    pr.where(x, 1, 2)


@raises(errors.DTypeError)
def integer_to_a_negative_power() -> None:
    pr.value(t) ** -1


@raises(errors.DTypeError)
def sum_of_truth_values() -> None:
    (x > 0) + (x > 1)


@raises(errors.DTypeError)
def axis_indexed_by_floats() -> None:
    v.axes[x]


@raises(errors.DTypeError)
def unknown_approximation() -> None:
    approximation: Any = "fast"
    pr.gelu(v, approximation)


@raises(errors.DTypeError)
def indices_that_are_floats() -> None:
    pr.take(v, x, 0)


@raises(errors.DTypeError)
def random_integers_as_floats() -> None:
    pr.randint((), 0, 3, dtype="float32")


@raises(errors.DTypeError)
def random_floats_as_integers() -> None:
    pr.uniform((), dtype="int32")


@raises(errors.DTypeError)
def norm_of_an_odd_order() -> None:
    pr.norm(v, order=3)


@raises(errors.DTypeError)
def range_without_progress() -> None:
    pr.arange(0, 3, 0)


@raises(errors.DTypeError)
def symbolic_range_of_floats() -> None:
    pr.arange(0, T, 0.5)


@raises(errors.DTypeError)
def padding_of_another_type() -> None:
    pr.pad(pr.constant([1, 2]), 1, 0.5)


@raises(errors.AxisError)
def missing_axis() -> None:
    v.sum(1)


@raises(errors.AxisError)
def axis_that_is_no_integer() -> None:
    axis: Any = 0.5
    v.sum(axis)


@raises(errors.AxisError)
def axis_named_twice() -> None:
    pr.zeros((2, 3)).sum((0, -2))


@raises(errors.AxisError)
def transpose_without_an_axis() -> None:
    pr.transpose(pr.zeros((2, 3)), (0, 0))


@raises(errors.AxisError)
def cumsum_of_a_scalar() -> None:
    x.cumsum()


@raises(errors.AxisError)
def axes_of_a_scalar() -> None:
    x.axes[0]


@raises(errors.ShapeError)
def no_broadcast() -> None:
    v + pr.zeros((4,))


@raises(errors.ShapeError)
def no_symbolic_broadcast() -> None:
    x[0:T] + pr.zeros((I,))


@raises(errors.ShapeError)
def no_broadcast_to() -> None:
    pr.broadcast_to(v, (2,))


@raises(errors.ShapeError)
def matrices_that_do_not_fit() -> None:
    v @ pr.zeros((4, 2))


@raises(errors.ShapeError)
def matmul_of_a_scalar() -> None:
    v @ x


@raises(errors.ShapeError)
def dot_of_matrices() -> None:
    pr.dot(pr.zeros((2, 2)), v)


@raises(errors.ShapeError)
def einsum_of_too_few_operands() -> None:
    pr.einsum("i,i->", v)


@raises(errors.ShapeError)
def einsum_of_no_letters() -> None:
    pr.einsum("1->1", v)


@raises(errors.ShapeError)
def einsum_of_too_many_letters() -> None:
    pr.einsum("ij->i", v)


@raises(errors.ShapeError)
def einsum_with_a_new_label() -> None:
    pr.einsum("i->j", v)


@raises(errors.ShapeError)
def einsum_of_two_lengths() -> None:
    pr.einsum("i,i->", v, pr.zeros((4,)))


@raises(errors.ShapeError)
def reshape_to_another_size() -> None:
    v.reshape((2,))


@raises(errors.ShapeError)
def reshape_that_does_not_divide() -> None:
    v.reshape((2, -1))


@raises(errors.ShapeError)
def reshape_with_two_unknowns() -> None:
    v.reshape((-1, -1))


@raises(errors.ShapeError)
def shape_with_a_negative_length() -> None:
    pr.zeros((-2,))


@raises(errors.ShapeError)
def squeezed_axis_of_length_three() -> None:
    v.squeeze(0)


@raises(errors.ShapeError)
def concat_of_scalars() -> None:
    pr.concat([x, x])


@raises(errors.ShapeError)
def concat_of_different_ranks() -> None:
    pr.concat([v, pr.zeros((3, 3))])


@raises(errors.ShapeError)
def concat_of_different_lengths() -> None:
    pr.concat([pr.zeros((2, 3)), pr.zeros((2, 4))])


@raises(errors.ShapeError)
def concat_of_nothing() -> None:
    pr.concat([])


@raises(errors.ShapeError)
def stack_of_different_shapes() -> None:
    pr.stack([v, x])


@raises(errors.ShapeError)
def split_into_unequal_parts() -> None:
    pr.split(v, 2)


@raises(errors.ShapeError)
def pad_of_an_axis_too_many() -> None:
    pr.pad(v, [(0, 0), (1, 1)])


@raises(errors.ShapeError)
def pad_of_a_negative_width() -> None:
    pr.pad(v, -1)


@raises(errors.ShapeError)
def triangle_of_a_vector() -> None:
    pr.tril(v)


@raises(errors.ShapeError)
def top_of_too_few() -> None:
    pr.topk(v, 4)


@raises(errors.ShapeError)
def scatter_of_another_shape() -> None:
    pr.scatter_add(v, pr.constant([0, 1]), pr.zeros((3,)))


@raises(errors.ShapeError)
def gather_of_another_rank() -> None:
    pr.gather(v, pr.zeros((2, 2), "int32"), 0)


@raises(errors.ShapeError)
def scatter_along_another_shape() -> None:
    pr.scatter_add_along(v, pr.zeros((2,), "int32"), pr.zeros((3,)), 0)


@raises(errors.ShapeError)
def convolution_into_unequal_groups() -> None:
    pr.conv1d(pr.zeros((1, 2, 8)), pr.zeros((3, 1, 2)), groups=2)


@raises(errors.ShapeError)
def empty_window() -> None:
    pr.max_pool(v, 0, stride=1)


@raises(errors.ShapeError)
def negative_padding() -> None:
    pr.max_pool(v, 2, padding=-1)


@raises(errors.ShapeError)
def convolution_without_channels() -> None:
    pr.conv1d(v, pr.zeros((1, 1, 2)))


@raises(errors.ShapeError)
def convolution_of_other_channels() -> None:
    pr.conv1d(pr.zeros((1, 2, 8)), pr.zeros((1, 3, 2)))


@raises(errors.ShapeError)
def pool_over_too_many_axes() -> None:
    pr.max_pool(v, (2, 2))


@raises(errors.ShapeError)
def stride_of_zero() -> None:
    pr.max_pool(v, 2, stride=0)


@raises(errors.ShapeError)
def padding_of_too_many_axes() -> None:
    pr.max_pool(v, 2, padding=[(0, 0), (1, 1)])


# Functions of other libraries.

section("other_libraries")


@raises(errors.OpaqueError)
def jax_function_of_other_shapes() -> None:
    pr.jax_function(jnp.dot, [v, pr.zeros((7,))])


# Weights of modules.

section("weights")


@raises(WeightsFileError)
def weights_from_nowhere() -> None:
    nn.load("nowhere.safetensors")


@raises(WeightsMismatchError)
def weights_of_another_layer() -> None:
    nn.Linear(2, 1).using(nn.Linear(2, 1, bias=False).weights())


# Checkpoints of runs.

section("checkpoints")


RUNS = tempfile.TemporaryDirectory(prefix="models-")


def saved_run() -> tuple[pr.Program, pr.Checkpoints]:
    w = pr.recurrent((), ((i, I + 1),))
    w[0] = 1.0
    w[i + 1] = 2.0 * w
    program = pr.compile(w[I], backend="numpy")
    checkpoints = pr.Checkpoints(tempfile.mkdtemp(dir=RUNS.name), over=i, every=2)
    program(bounds={I: 4}, checkpoint=checkpoints)
    return program, checkpoints


@raises(CheckpointMismatchError)
def checkpoint_of_a_longer_run() -> None:
    program, checkpoints = saved_run()
    program(bounds={I: 2}, checkpoint=checkpoints)


@raises(CheckpointDamagedError)
def checkpoint_cut_short() -> None:
    program, checkpoints = saved_run()
    last = checkpoints.folder / "iteration-000000004.safetensors"
    last.write_bytes(last.read_bytes()[:-1])
    program(bounds={I: 4}, checkpoint=checkpoints)


@raises(CheckpointInUseError)
def checkpoints_of_two_runs_in_one_folder() -> None:
    program, checkpoints = saved_run()
    with checkpoints.held():
        program(bounds={I: 4}, checkpoint=checkpoints)


@raises(errors.UnsupportedError)
def checkpoints_of_an_effect() -> None:
    seen = pr.host(print, [x], (), "float32", effect="screen")
    y = pr.recurrent((), ((t, T + 1),))
    y[0] = 0.0
    y[t + 1] = y + seen
    pr.compile(y[T], backend="numpy")(x=[1.0], checkpoint=pr.Checkpoints(RUNS.name, over=t))


# Memory.

section("memory")


@raises(errors.MemoryBudgetError)
def budget_below_what_is_kept() -> None:
    pr.compile(pr.exp(x)[0:T].sum(0), backend="numpy", memory_budget="1KB")(x=np.ones(1000, "float32"))


@raises(errors.MemoryBudgetError)
def budget_below_what_a_step_computes() -> None:
    wide = pr.exp(pr.broadcast_to(x, (1000,)))
    pr.compile(wide.sum(0), memory_budget="1KB")(x=[1.0, 2.0, 3.0])


@raises(errors.DeclarationError)
def budget_in_another_unit() -> None:
    pr.compile(pr.exp(x), memory_budget="12 parsecs")


@raises(errors.DeclarationError)
def choice_for_another_program() -> None:
    pr.compile(pr.exp(x), schedule={pr.dim("other")[0]: pr.loop()})


@raises(errors.DependentStepsError)
def recurrence_all_at_once() -> None:
    y = pr.recurrent((), (t,))
    y[0] = x[0]
    y[t + 1] = pr.tanh(y) + x[t + 1]
    pr.compile(y, schedule={t: pr.vector()})


@raises(errors.DependentStepsError)
def recurrence_backwards_in_tiles() -> None:
    g = pr.recurrent((), ((t, T + 1),))
    g[T] = 0
    g[t] = x + 0.9 * g[t + 1]
    pr.compile(g[0], schedule={t: pr.chunk(8)})


@raises(errors.DependentStepsError)
def circle_through_a_value_without_a_name_all_at_once() -> None:
    h = pr.recurrent((3,), (t,))
    past = h[0:t].sum(0)
    h[t] = pr.where(t > 0, pr.tanh(past), 0) + v
    pr.compile(h, schedule={t: pr.vector()})


@raises(errors.DependentStepsError)
def distant_recurrence_all_at_once() -> None:
    y = pr.recurrent((), (t,))
    y[t < 20] = x
    y[t >= 20] = pr.tanh(y[t - 20]) + x
    pr.compile(y, schedule={t: pr.vector()})


@raises(errors.DependentStepsError)
def circle_of_two_all_at_once() -> None:
    y, z = pr.recurrent((), (t,)), pr.recurrent((), (t,))
    y[t] = pr.tanh(z + x)
    z[0] = 0
    z[t + 1] = y * 2
    pr.compile(y, schedule={t: pr.vector()})


@raises(errors.DependentStepsError)
def gradient_of_a_recurrence_all_at_once() -> None:
    y = pr.recurrent((), (t,))
    y[0] = x[0]
    y[t + 1] = y * x[t + 1]
    pr.compile(pr.grad(y[T - 1], x), schedule={t: pr.vector()})


@raises(errors.DependentStepsError)
def effect_all_at_once() -> None:
    log = pr.host(print, [x], (), "float32", effect="log")
    pr.compile(x, effects=[log], schedule={t: pr.vector()})


@raises(errors.UnsupportedError)
def host_function_all_at_once() -> None:
    pr.compile(pr.host(np.sin, [x], (), "float32"), schedule={t: pr.vector()})


@raises(errors.DependentStepsError)
def early_end_all_at_once() -> None:
    pr.compile(pr.exp(x), until={t: x > 1}, schedule={t: pr.vector()})


@raises(errors.UnsupportedError)
def all_at_once_on_numpy() -> None:
    pr.compile(pr.exp(x), backend="numpy", schedule={t: pr.vector()})


@raises(errors.ShardingError)
def axis_that_the_mesh_does_not_have() -> None:
    mesh = jax.make_mesh((1,), ("data",))
    pr.compile(pr.exp(x), mesh=mesh, shard={t: "batch"})


# Language models from a folder.

section("language_models")


MODELS = tempfile.TemporaryDirectory(prefix="models-")


def random_model(**config: Any) -> Path:
    return llm.write_random(tempfile.mkdtemp(dir=MODELS.name), **config)


@raises(ModelMissingError)
def model_without_weights() -> None:
    path = random_model()
    (path / "model.safetensors").unlink()
    llm.load(path)


@raises(ModelDamagedError)
def model_cut_off() -> None:
    path = random_model()
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    llm.load(path)


@raises(ModelMismatchError)
def model_of_another_configuration() -> None:
    path = random_model()
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "intermediate_size": 100}))
    llm.load(path)


@raises(ContextLengthError)
def text_longer_than_the_positions() -> None:
    model = llm.load(random_model(family="gpt2", n_positions=8))
    model.generate([1, 2, 3], max_new_tokens=6)


@raises(PromptError)
def token_outside_the_vocabulary() -> None:
    model = llm.load(random_model())
    model.generate([1, 2, 300])


def shown(error: PolyrhythmError) -> str:
    """A message that does not change when this file moves or grows."""
    text = f"{type(error).__name__}: {error}"
    text = re.sub(r"\S*/models-\w+/\w+", "folder", text)
    return re.sub(r"\S*test_errors\.py:\d+", "program.py", text)


@cache
def error_of(name: str) -> PolyrhythmError:
    """The error that a program raises."""
    with pytest.raises(PolyrhythmError) as caught:
        CASES[name][1]()
    return caught.value


def source_of(name: str) -> str:
    """The lines of a program."""
    source = inspect.getsource(CASES[name][1])
    _, _, body = source.partition(f"def {name}() -> None:\n")
    return textwrap.dedent(body).rstrip("\n")


@pytest.mark.parametrize("name", CASES)
def test_message(name: str) -> None:
    error = error_of(name)
    assert type(error) is CASES[name][0]
    for source in (error.at, *(source for _, source in error.also)):
        assert source.file == __file__
        assert source.text


@pytest.mark.parametrize("name", SECTIONS)
def test_messages_of_a_section(name: str, golden: Callable[..., None]) -> None:
    pages = (f"# {case}\n\n{source_of(case)}\n\n{shown(error_of(case))}\n" for case in SECTIONS[name])
    golden(name, "\n\n".join(pages), folder="errors")


MODULES = (definitions, expressions, calls, runtime_errors, nn_errors, llm_errors)
CLASSES: list[type[PolyrhythmError]] = [
    kind
    for module in MODULES
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, PolyrhythmError) and kind is not PolyrhythmError
    if f"class {kind.__name__}" in inspect.getsource(module)
]
"""Every error, in the order of the pages."""


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_has_a_snapshot(kind: type[PolyrhythmError]) -> None:
    assert kind in {error for error, _ in CASES.values()}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_shows_a_failing_and_a_corrected_example(kind: type[PolyrhythmError]) -> None:
    page = kind.__doc__ or ""
    assert f"{kind.__module__}.{kind.__name__}:" in page
    _, corrected = page.rsplit("Traceback", 1)
    assert ">>> " in corrected


def test_no_golden_file_is_left_over() -> None:
    folder = Path(__file__).parent / "golden" / "errors"
    assert {path.stem for path in folder.iterdir()} == set(SECTIONS)


def test_no_name_of_ours_is_shown() -> None:
    """Values the user did not name are called after the user's line, not after a node of the graph."""
    ours = r"\b((\w+_)?(add|mul|sub|index|choice|broadcast|copy|reduce|host|recurrent)(_\d+)?\[|k0\b)"
    for name in CASES:
        assert not re.search(ours, str(error_of(name)))


# The index page.

INDEX = Path(__file__).parents[1] / "docs" / "errors.md"


def index_page() -> str:
    """One line per error; one that belongs to a library with its module."""
    lines = []
    for kind in CLASSES:
        name = kind.__name__ if kind.__module__ == "polyrhythm.errors" else f"{kind.__module__}.{kind.__name__}"
        lines.append(f"- `{name}`: {(kind.__doc__ or '').splitlines()[0]}")
    return "\n".join(lines)


def test_the_index_page_lists_every_error(request: pytest.FixtureRequest) -> None:
    """`--update-golden` rewrites the list on the page."""
    before, _, rest = INDEX.read_text(encoding="utf-8").partition("<!-- errors -->\n")
    listed, _, after = rest.partition("\n<!-- end -->")
    if request.config.getoption("--update-golden"):
        page = f"{before}<!-- errors -->\n{index_page()}\n<!-- end -->{after}"
        INDEX.write_text(page, encoding="utf-8")
    else:
        assert listed == index_page()


# The counterexample of a message really is one.


def point_of(program: Program) -> dict[str, int]:
    point = error_of(program.__name__).point
    assert point is not None
    return point


def test_a_gap_is_covered_by_nothing() -> None:
    at = point_of(gap_along_an_edge)
    assert 0 <= at["i"] < at["I"]
    assert 0 <= at["t"] < at["T"]
    covered = at["i"] == 0 or (at["i"] >= 1 and at["t"] >= 1)
    assert not covered
    assert point_of(gap_at_the_end) == {"T": 0, "t": 0}
    assert point_of(gap_between_even_steps)["t"] % 2 == 1


def test_an_overlap_is_covered_twice() -> None:
    at = point_of(overlap_of_conditions)
    assert at["t"] < at["T"]
    assert 2 < at["t"] < 5


@pytest.mark.parametrize(
    ("program", "first", "last"),
    [
        (read_before_the_first_step, -1, -1),
        (read_behind_the_last_step_of_a_plain_value, 1, 1),
        (slice_that_is_too_long, 0, 2),
    ],
)
def test_a_read_out_of_range_is_one(program: Program, first: int, last: int) -> None:
    at = point_of(program)
    assert 0 <= at["t"] < at["T"]
    assert at["t"] + first < 0 or at["t"] + last >= at["T"]


def test_the_counterexample_of_a_definition_is_in_its_own_steps() -> None:
    at = point_of(read_to_define_a_recurrent_tensor)
    assert 1 <= at["t"] < at["T"]
    assert at["t"] + 1 >= at["T"]


def test_a_requirement_fails_below_and_holds_at_its_minimum() -> None:
    assert point_of(too_few_steps_of_a_plain_value) == {"T": 3}
    fourth = (x * 2)[3]
    assert pr.evaluate(fourth, {"x": [1.0, 2.0, 3.0, 4.0]}) == 8


def test_a_counterexample_is_small() -> None:
    for error in map(error_of, CASES):
        if isinstance(error, (errors.GapError, errors.OverlapError, errors.OutOfRangeError)):
            assert all(value <= 5 for value in (error.point or {}).values())
