"""Every error a user can meet: one class per situation.

A message says what is wrong, shows the user's line, gives a concrete counterexample where there is one, and ends
with a fix. The docstring of a class is its documentation page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyrhythm.source import Source, here


class PolyrhythmError(Exception):
    """The base of all errors.

    `at` is the user's line (by default the one being executed), `point` a concrete counterexample,
    `outcome` what happens there, and `also` names further lines that take part.
    """

    def __init__(
        self,
        what: str,
        *,
        fix: str,
        at: Source | None = None,
        point: Mapping[Any, int] | None = None,
        outcome: str | None = None,
        also: tuple[tuple[str, Source], ...] = (),
    ) -> None:
        self.what, self.fix, self.at, self.also = what, fix, at or here(), also
        self.point = {str(symbol): value for symbol, value in point.items()} if point is not None else None
        lines = [what, f"  at {self.at}: {self.at.text}"]
        lines += [f"  {label} {source}: {source.text}" for label, source in also]
        if self.point:
            values = ", ".join(f"{symbol} = {value}" for symbol, value in self.point.items())
            lines.append(f"  for example at {values}" + (f": {outcome}" if outcome else ""))
        lines.append(f"  fix: {fix}")
        super().__init__("\n".join(lines))


class GapError(PolyrhythmError):
    """A recurrent tensor has points that no definition covers.

    The definitions together must cover every point of the tensor, for every value of the bounds. `y[t + 1] = ...`
    defines y at 1, 2, and so on, but not at 0.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> y = pr.recurrent((), (t,))
    >>> y[t + 1] = 2 * y
    >>> pr.evaluate(y, bounds={T: 3})
    Traceback (most recent call last):
    ...
    polyrhythm.errors.GapError: y has no definition where t == 0
      at ...
      for example at T = 1, t = 0: nothing defines y[0]
      fix: define it there, y[t == 0] = ..., or wherever nothing else does, y[pr.otherwise] = ...

    Define the missing points:

    >>> y[0] = 1
    >>> pr.evaluate(y, bounds={T: 3}).tolist()
    [1.0, 2.0, 4.0]
    """


class OverlapError(PolyrhythmError):
    """Two definitions of a recurrent tensor cover the same point.

    The order of the definitions does not matter, so none of them wins. `y[t] = ...` covers every step, step 0 too.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> y = pr.recurrent((), (t,))
    >>> y[0] = 1
    >>> y[t] = pr.value(t) * 10
    >>> pr.evaluate(y, bounds={T: 3})
    Traceback (most recent call last):
    ...
    polyrhythm.errors.OverlapError: y is defined twice where t == 0
      at ...: y[t] = pr.value(t) * 10
      and at ...: y[0] = 1
      for example at T = 1, t = 0: both define y[0]
      fix: ...

    Let one of them hold only elsewhere:

    >>> y = pr.recurrent((), (t,))
    >>> y[0] = 1
    >>> y[t > 0] = pr.value(t) * 10
    >>> pr.evaluate(y, bounds={T: 3}).tolist()
    [1.0, 10.0, 20.0]
    """


class OutOfRangeError(PolyrhythmError):
    """A read may fall outside the tensor it reads.

    Every read is proved to stay inside before anything runs. Negative steps do not count from the end, and slices of
    steps are not cut off. A read that fails only while the bounds are small is no error but a requirement, checked
    at the call (see `RequirementError`).

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> pr.evaluate(x - x[t - 1], {"x": [1.0, 3.0, 4.0]})
    Traceback (most recent call last):
    ...
    polyrhythm.errors.OutOfRangeError: x[t - 1] may lie outside x, which has steps 0 <= t < T
      at ...
      for example at T = 1, t = 0: it reads x[-1]
      fix: read it only where it exists: inside pr.where(condition, ..., other), ...

    A condition on the steps limits where its branches are read:

    >>> pr.evaluate(x - pr.where(t > 0, x[t - 1], 0), {"x": [1.0, 3.0, 4.0]}).tolist()
    [1.0, 2.0, 1.0]
    """


class UndefinedError(PolyrhythmError):
    """A recurrent tensor is read but never given a definition.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> y = pr.recurrent((), (t,))
    >>> pr.evaluate(y + 1, bounds={T: 2})
    Traceback (most recent call last):
    ...
    polyrhythm.errors.UndefinedError: y is used but has no definition
      at ...: y = pr.recurrent((), (t,))
      fix: assign to it before it is compiled or evaluated, as in y[0] = ...

    Assign to it, at any time before it is evaluated:

    >>> y[pr.otherwise] = 4
    >>> pr.evaluate(y + 1, bounds={T: 2}).tolist()
    [5.0, 5.0]
    """


class CycleError(PolyrhythmError):
    """A value depends on itself.

    Reads of the future are legal, and the order of computation is the compiler's business, but every value must be
    computed from others. The message follows a concrete cycle.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> y, z = pr.recurrent((), (t,), name="y"), pr.recurrent((), (t,), name="z")
    >>> y[t] = z + 1
    >>> z[t] = y * 2
    >>> pr.evaluate(y, bounds={T: 3})
    Traceback (most recent call last):
    ...
    polyrhythm.errors.CycleError: a value depends on itself: z[0] reads y[0], which reads z[0]
      at ...: z[t] = y * 2
      through ...: y[t] = z + 1
      for example at T = 1
      fix: read an earlier or later step, so that every value is computed from others

    Read another step on the way:

    >>> z = pr.recurrent((), (t,))
    >>> y = pr.where(t > 0, z[t - 1], 0) + 1
    >>> z[t] = y * 2
    >>> pr.evaluate(y, bounds={T: 3}).tolist()
    [1.0, 3.0, 7.0]
    """


class ProgressError(PolyrhythmError):
    """A recursive definition could not be shown to make progress, and no cycle was found either.

    The proof looks for a direction along the dims in which every read goes back, one for each definition. A single
    definition whose read jumps both ways may defeat it.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> y = pr.recurrent((), ((t, 4 * T),))
    >>> y[t % 4 == 0] = 1
    >>> y[t % 4 > 0] = 2 * pr.where(t % 4 == 2, y[t + 1], pr.where(t % 4 == 3, y[t - 2], y[t - 1]))
    >>> pr.evaluate(y, bounds={T: 1})
    Traceback (most recent call last):
    ...
    polyrhythm.errors.ProgressError: could not show that y makes progress: its reads go both ways through time
      at ...
      fix: ...

    Give each way its own definition:

    >>> y = pr.recurrent((), ((t, 4 * T),))
    >>> y[t % 4 == 0] = 1
    >>> y[t % 4 == 1] = 2 * y[t - 1]
    >>> y[t % 4 == 2] = 2 * y[t + 1]
    >>> y[t % 4 == 3] = 2 * y[t - 2]
    >>> pr.evaluate(y, bounds={T: 1}).tolist()
    [1.0, 2.0, 8.0, 4.0]
    """


class ShapeError(PolyrhythmError):
    """Shapes do not fit together.

    Shapes broadcast as in NumPy: aligned at the last axis, and only a length that is the number 1 is repeated. A
    symbolic length never is, even if its value happens to be 1.

    >>> import polyrhythm as pr
    >>> pr.zeros((2, 3)) + pr.ones((2,))
    Traceback (most recent call last):
    ...
    polyrhythm.errors.ShapeError: add: shapes (2, 3) and (2,) do not broadcast: lengths 3 and 2 meet, ...
      at ...
      fix: make the two lengths equal, or insert an axis of length 1 where one shall be repeated

    Insert the axis along which the value shall be repeated:

    >>> (pr.zeros((2, 3)) + pr.ones((2,)).unsqueeze(1)).shape
    (2, 3)
    """


class RaggedShapeError(PolyrhythmError):
    """Stacking steps whose shapes differ would not give an array.

    It is raised when a dim is sliced along which the shape, or the length of another dim, differs, and when an
    output is ragged along more than one axis.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> past = x[0:t + 1]
    >>> past[0:T]
    Traceback (most recent call last):
    ...
    polyrhythm.errors.RaggedShapeError: the shape (t + 1,) differs from step to step of t, ...
      at ...
      fix: reduce or pad the value to one shape for every t before slicing along t

    Reduce the differing axis first:

    >>> past.sum(0)[0:T].shape
    (T,)
    """


class DTypeError(PolyrhythmError):
    """Element types do not fit together.

    Operands promote to a common type, but some operations want a certain kind of elements, and a definition does not
    convert to a narrower type by itself.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> count = pr.recurrent((), (t,), "int32")
    >>> count[t] = pr.value(t) / 2
    Traceback (most recent call last):
    ...
    polyrhythm.errors.DTypeError: a float32 value cannot define count, which is int32, without losing information
      at ...
      fix: cast the right side, value.cast('int32'), or declare the tensor as float32

    Say what is meant:

    >>> count[t] = pr.value(t) // 2
    >>> pr.evaluate(count, bounds={T: 4}).tolist()
    [0, 0, 1, 1]
    """


class OperandError(DTypeError):
    """Something that is no tensor stands where a tensor is needed.

    Operands may be tensors, numbers, NumPy arrays and index expressions. A Python list is none of these, because it
    has no element type of its own.

    >>> import polyrhythm as pr
    >>> pr.zeros((2,)) + [1, 2]
    Traceback (most recent call last):
    ...
    polyrhythm.errors.OperandError: a tensor cannot be made of list [1, 2]
      at ...
      fix: pass a tensor, a number, a NumPy array or an index expression; of a list make pr.constant([...])

    Make a constant of it:

    >>> pr.evaluate(pr.zeros((2,)) + pr.constant([1, 2])).tolist()
    [1.0, 2.0]
    """


class AxisError(PolyrhythmError):
    """An axis that the value does not have.

    Axes are counted from 0, or from -1 backwards. Dims are not axes: `x.sum(0)` reduces the first axis of the value at
    each step.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (3,), (t,))
    >>> x.sum(1)
    Traceback (most recent call last):
    ...
    polyrhythm.errors.AxisError: axis 1 of a value with 1 axes, of shape (3,)
      at ...
      fix: use an axis from -1 to 0

    The steps become an axis, the first, by slicing:

    >>> x[0:T].sum(1).shape
    (T,)
    """


class EmptyAxisError(PolyrhythmError):
    """The position of the greatest or least element of an axis that may be empty.

    A sum over nothing is 0 and a maximum over nothing is minus infinity, but a position in nothing does not exist.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> best = x[0:t].argmax(0)
    >>> pr.evaluate(best, {"x": [3.0, 1.0, 5.0]})
    Traceback (most recent call last):
    ...
    polyrhythm.errors.EmptyAxisError: argmax over an axis of length t, which may be empty
      at ...
      for example at t = 0
      fix: take it only where the axis has an element, as in pr.where(condition, x.argmax(0), 0)

    Take it only where there is an element:

    >>> pr.evaluate(pr.where(t > 0, best, -1), {"x": [3.0, 1.0, 5.0]}).tolist()
    [-1, 0, 0]
    """


class UnknownDimError(PolyrhythmError):
    """An index names a dim that the tensor does not have.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> i, I = pr.dim("i")
    >>> x = pr.input("x", (), (t,))
    >>> x[{i: 0}]
    Traceback (most recent call last):
    ...
    polyrhythm.errors.UnknownDimError: i is not a dim of this tensor; its dims are (t)
      at ...
      fix: name one of the tensor's own dims, as in x[{t: t - 1}]

    Name a dim it has:

    >>> x[{t: i}].dims
    (i,)
    """


class UnboundDimError(PolyrhythmError):
    """A value varies along a dim that its place does not have.

    The right side of a definition may vary only along the dims that stand on the left; likewise the condition of a
    definition, a declared shape, and the inputs of a host function with given dims.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> y = pr.recurrent((), (t,))
    >>> y[0] = x
    Traceback (most recent call last):
    ...
    polyrhythm.errors.UnboundDimError: the right side varies along t, which the left side does not bind
      at ...
      fix: index the right side at one step of t (such as value[0]), reduce over it, or write t on the left

    Say which step of x is meant:

    >>> y[0] = x[0]
    >>> y[t + 1] = y + x[t + 1]
    >>> pr.evaluate(y, {"x": [1.0, 2.0]}).tolist()
    [1.0, 3.0]
    """


class IndexingError(PolyrhythmError):
    """An index between brackets that does not fit the tensor's dims.

    `x[...]` selects steps, one entry per dim. Axes of the value are indexed with `x.axes[...]`.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (3,), (t,))
    >>> x[t, 0]
    Traceback (most recent call last):
    ...
    polyrhythm.errors.IndexingError: 2 indices for a tensor whose dims are (t)
      at ...
      fix: give at most one index per dim; axes of the value are indexed with x.axes[...]

    Index the axis as an axis:

    >>> x[t].axes[0].shape
    ()
    """


class DataIndexError(IndexingError):
    """An index that is data where it must be known before the program runs.

    The compiler proves and orders reads by their steps, so steps cannot be chosen by data. Axes can, by integers;
    by truth values they cannot, since the length of the result would depend on data.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> best = x[0:T].argmax(0)
    >>> x[best]
    Traceback (most recent call last):
    ...
    polyrhythm.errors.DataIndexError: steps cannot be indexed by data: the compiler must know which steps are read
      at ...
      fix: read the steps as an axis and pick from it: pr.take(x[0:T], index, axis=0)

    Read all the steps as an axis, and pick from that:

    >>> pr.evaluate(pr.take(x[0:T], best, axis=0), {"x": [3.0, 7.0, 5.0]}).tolist()
    7.0
    """


class IndexValueError(DTypeError):
    """An index expression is made of something that is not an integer.

    Index expressions are made of dims, bounds, sizes and integers. `pr.min` and `pr.max` are for them alone.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> t * 0.5
    Traceback (most recent call last):
    ...
    polyrhythm.errors.IndexValueError: index expressions are integers; 0.5 is not
      at ...
      fix: write pr.value(t) to compute with the number of a step

    Make a tensor of the step to compute with it:

    >>> pr.evaluate(pr.value(t) * 0.5, bounds={T: 3}).tolist()
    [0.0, 0.5, 1.0]
    """


class NonAffineError(PolyrhythmError):
    """An index expression that multiplies or divides by symbols.

    Indices are sums of dims, bounds and sizes times integers, divided by positive integers, with `pr.min` and `pr.max`.
    About these everything can be proved. Shapes may be products.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> n = pr.size("n")
    >>> x = pr.input("x", (), (t,))
    >>> x[t // n]
    Traceback (most recent call last):
    ...
    polyrhythm.errors.NonAffineError: t // n: an index is divided by positive integers only
      at ...
      fix: divide by a positive Python integer

    Divide by a number:

    >>> pr.evaluate(x[t // 2], {"x": [1.0, 2.0, 3.0]}).tolist()
    [1.0, 1.0, 2.0]
    """


class LeftSideError(IndexingError):
    """The left side of a definition cannot be solved for the steps it defines.

    `y[f(t)] = rhs` defines y at f(t) for every step t. To know the right side at a point, f is inverted. That works
    for sums of dims times integers. Slices, `//`, `%`, `pr.min` and `pr.max` cannot stand on the left.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> y = pr.recurrent((), (t,))
    >>> y[0:3] = 1
    Traceback (most recent call last):
    ...
    polyrhythm.errors.LeftSideError: a definition assigns to single steps, not to a slice
      at ...
      fix: use a condition, as in y[t < 3] = ..., and write the right side for the current step

    Use a condition:

    >>> y[t < 3] = 1
    >>> y[pr.otherwise] = 2
    >>> pr.evaluate(y, bounds={T: 5}).tolist()
    [1.0, 1.0, 1.0, 2.0, 2.0]
    """


class NotInjectiveError(PolyrhythmError):
    """The left side of a definition sends several steps to one point.

    Each point has one value, so no two steps may define the same one.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> i, I = pr.dim("i")
    >>> x = pr.input("x", (), (i, t))
    >>> y = pr.recurrent((), (t,))
    >>> y[t + i] = x
    Traceback (most recent call last):
    ...
    polyrhythm.errors.NotInjectiveError: the left side [i + t] sends several steps to one point: ...
      at ...
      fix: give every step symbol on the left its own dim, or reduce over it on the right

    Reduce over the other dim:

    >>> y[t] = x[0:I, t].sum(0)
    >>> pr.evaluate(y, {"x": [[1.0, 2.0], [3.0, 4.0]]}).tolist()
    [4.0, 6.0]
    """


class ConditionValueError(PolyrhythmError):
    """A condition, an index or a tensor was used where Python needs its value at once.

    Its value is known only when the program runs. Python asks for it in `if`, `and`, `or`, `not`, in chained
    comparisons such as `0 < t < 3`, and in `range(T)`.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> 1.0 if t > 0 else 2.0
    Traceback (most recent call last):
    ...
    polyrhythm.errors.ConditionValueError: the condition t >= 1 has no truth value
      at ...
      fix: combine conditions with & | ~ ...

    Choose inside the program:

    >>> pr.evaluate(pr.where((t > 0) & (t < 3), 1.0, 2.0), bounds={T: 4}).tolist()
    [2.0, 1.0, 1.0, 2.0]
    """


class IterationError(PolyrhythmError):
    """Python tried to iterate over a tensor.

    How long an axis is, and how many steps there are, is known only when the program runs.

    >>> import polyrhythm as pr
    >>> pair = pr.zeros((2,))
    >>> a, b = pair
    Traceback (most recent call last):
    ...
    polyrhythm.errors.IterationError: a tensor of shape (2,) cannot be iterated over in Python
      at ...
      fix: write the recurrence over a dim, or take positions of an axis with x.axes[k]

    Take the positions one by one:

    >>> a, b = pair.axes[0], pair.axes[1]
    """


class DeclarationError(PolyrhythmError):
    """Dims, extents or results that cannot be declared.

    `dims` lists dims made by `pr.dim`, each once, or pairs of a dim and an extent. The extent of a ragged dim is an
    integer at each step. A host function has one dtype per shape.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> pr.input("x", (), (T,))
    Traceback (most recent call last):
    ...
    polyrhythm.errors.DeclarationError: T is not a dim
      at ...
      fix: list dims made by pr.dim, or pairs such as (t, T + 1)

    Name the dim, not its bound:

    >>> pr.input("x", (), (t,)).dims
    (t,)
    """


class DefinitionError(PolyrhythmError):
    """A definition of a tensor that cannot have it.

    Only tensors made by `pr.recurrent` are defined by assignment. `y[pr.otherwise] = ...` covers everything that no
    other definition covers, so there can be only one.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> y = pr.recurrent((), (t,))
    >>> y[pr.otherwise] = 1
    >>> y[pr.otherwise] = 2
    Traceback (most recent call last):
    ...
    polyrhythm.errors.DefinitionError: y already has a definition for pr.otherwise
      at ...
      the other is at ...
      fix: keep one of them, and give the other a condition

    Give the others conditions:

    >>> y[t > 1] = 2
    >>> pr.evaluate(y, bounds={T: 3}).tolist()
    [1.0, 1.0, 2.0]
    """


class DuplicateNameError(PolyrhythmError):
    """Two different inputs, parameters or random sites of one program share a name.

    >>> import polyrhythm as pr
    >>> x = pr.input("x")
    >>> also_x = pr.input("x")
    >>> pr.evaluate(x + also_x, {"x": 1.0})
    Traceback (most recent call last):
    ...
    polyrhythm.errors.DuplicateNameError: two inputs are called 'x'
      at ...
      the other is at ...
      fix: give each its own name, or use one tensor in both places

    Use one tensor in both places:

    >>> pr.evaluate(x + x, {"x": 1.0}).tolist()
    2.0
    """


class MissingInputError(PolyrhythmError):
    """The program was called without one of its inputs.

    Only the inputs that the outputs depend on are needed. A parameter has a stored value and may be left out.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (2,), (t,))
    >>> pr.evaluate(x[0])
    Traceback (most recent call last):
    ...
    polyrhythm.errors.MissingInputError: the input 'x' (float32[T, 2]) is missing
      at ...
      declared at ...: x = pr.input("x", (2,), (t,))
      fix: give it: {'x': array}

    Give it:

    >>> pr.evaluate(x[0], {"x": [[1.0, 2.0], [3.0, 4.0]]}).tolist()
    [1.0, 2.0]
    """


class UnknownInputError(PolyrhythmError):
    """The program was called with an input it does not have.

    >>> import polyrhythm as pr
    >>> x = pr.input("x")
    >>> pr.evaluate(x, {"x": 1.0, "y": 2.0})
    Traceback (most recent call last):
    ...
    polyrhythm.errors.UnknownInputError: the program has no input 'y'; its inputs are 'x'
      at ...
      fix: check the name, or leave it out

    Leave it out:

    >>> pr.evaluate(x, {"x": 1.0}).tolist()
    1.0
    """


class InputShapeError(PolyrhythmError):
    """An input array has the wrong shape.

    An input is one array: an axis for each dim, in order, then the axes of the value.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (2,), (t,))
    >>> pr.evaluate(x[0], {"x": [1.0, 2.0]})
    Traceback (most recent call last):
    ...
    polyrhythm.errors.InputShapeError: the input 'x' has 1 axes (shape (2,)), but is declared as float32[T, 2]: ...
      at ...
      declared at ...
      fix: put the dims first, in order, then the axes of the value

    Put the steps first:

    >>> pr.evaluate(x[0], {"x": [[1.0, 2.0]]}).tolist()
    [1.0, 2.0]
    """


class InputDTypeError(PolyrhythmError):
    """An input array has elements of the wrong kind.

    Inputs are converted within a kind, float64 to float32 say. From integers to floats, or back, the caller converts.
    Python lists carry no type, so whole numbers in a list may be floats.

    >>> import polyrhythm as pr
    >>> import numpy as np
    >>> x = pr.input("x", (2,))
    >>> pr.evaluate(x, {"x": np.array([1, 2])})
    Traceback (most recent call last):
    ...
    polyrhythm.errors.InputDTypeError: the input 'x' has int64 elements, but is declared as float32
      at ...
      declared at ...
      fix: convert it first, array.astype('float32'), or declare the input as int64

    Convert it:

    >>> pr.evaluate(x, {"x": np.array([1, 2]).astype("float32")}).tolist()
    [1.0, 2.0]
    """


class MissingBoundError(PolyrhythmError):
    """A bound can neither be read off the inputs nor was it given.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> squares = pr.value(t) * pr.value(t)
    >>> pr.evaluate(squares)
    Traceback (most recent call last):
    ...
    polyrhythm.errors.MissingBoundError: the bound T is not the length of any input and was not given
      at ...
      fix: pass bounds={T: ...}

    Give it:

    >>> pr.evaluate(squares, bounds={T: 4}).tolist()
    [0, 1, 4, 9]
    """


class BoundsError(PolyrhythmError):
    """A bound has two values, exceeds its maximum, or is no bound at all.

    Bounds come from the lengths of the inputs and from `bounds=`, which must agree.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x, y = pr.input("x", (), (t,)), pr.input("y", (), (t,))
    >>> pr.evaluate(x + y, {"x": [1.0, 2.0, 3.0], "y": [1.0, 2.0]})
    Traceback (most recent call last):
    ...
    polyrhythm.errors.BoundsError: axis 0 of 'y' has length 2, but T is 3 (T = 3 from axis 0 of 'x')
      at ...
      declared at ...
      fix: make the inputs and the given bounds agree

    Make them agree:

    >>> pr.evaluate(x + y, {"x": [1.0, 2.0], "y": [1.0, 2.0]}).tolist()
    [2.0, 4.0]
    """


class RequirementError(PolyrhythmError):
    """The program needs larger bounds than it was called with.

    A read that is out of range only while a bound is small does not make the program wrong. It becomes a requirement,
    checked at the call.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> last = x[T - 1]
    >>> pr.evaluate(last, {"x": []})
    Traceback (most recent call last):
    ...
    polyrhythm.errors.RequirementError: the program needs T >= 1: x[T - 1] may lie outside x, which has steps 0 <= t < T
      at ...
      called at ...
      for example at T = 0
      fix: call it with T >= 1, or read inside pr.where(condition, ..., other)

    Call it with enough steps, or say what the value is otherwise:

    >>> pr.evaluate(last, {"x": [5.0, 6.0]}).tolist()
    6.0
    >>> pr.evaluate(pr.where(T > 0, last, 0), {"x": []}).tolist()
    0.0
    """


class UntilError(PolyrhythmError):
    """A stopping condition that cannot decide where its dim ends.

    `until={t: done}` ends t after the first step with `done`. It must be a boolean scalar that varies along t, and
    may not depend on the length T which it decides.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> pr.evaluate(x, {"x": [1.0, 5.0, 2.0]}, until={t: x == x[0:T].max(0)})
    Traceback (most recent call last):
    ...
    polyrhythm.errors.UntilError: the stopping condition of t depends on T, the length it decides
      at ...
      fix: stop on values of the current and earlier steps only, without T

    Look only at the steps so far:

    >>> pr.evaluate(x, {"x": [1.0, 5.0, 2.0]}, until={t: x > 4}).tolist()
    [1.0, 5.0]
    """


class LengthError(PolyrhythmError):
    """A length of a ragged dim is negative or above the declared maximum.

    The lengths are data, so this is found when the program runs.

    >>> import polyrhythm as pr
    >>> b, B = pr.dim("b")
    >>> lengths = pr.input("lengths", (), (b,), "int32")
    >>> t, T = pr.dim("t", extent=lengths, max=3)
    >>> pr.evaluate(pr.value(t), {"lengths": [2, 4]})
    Traceback (most recent call last):
    ...
    polyrhythm.errors.LengthError: the length T is 4, above its maximum 3
      at ...
      given at ...
      for example at b = 1
      fix: make every length at least 0 and at most the declared max

    Keep the promise:

    >>> pr.evaluate(pr.value(t), {"lengths": [2, 3]}).lengths.tolist()
    [2, 3]
    """


class HostError(PolyrhythmError):
    """A host function returned something other than what was declared.

    >>> import polyrhythm as pr
    >>> import numpy as np
    >>> def pair():
    ...     return np.zeros(2, "float32")
    >>> pr.evaluate(pr.host(pair))
    Traceback (most recent call last):
    ...
    polyrhythm.errors.HostError: the host function pair returned float32[2] where float32[] was declared
      at ...
      fix: return the declared shape and dtype, or declare what is returned

    Declare what it returns:

    >>> pr.evaluate(pr.host(pair, shape=(2,))).tolist()
    [0.0, 0.0]
    """


class EffectError(PolyrhythmError):
    """Host calls that share an effect cannot run in the order the effect demands.

    Calls of one effect run in the order of their steps, then as written. A call may not wait for one that comes
    after it.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> def read(value):
    ...     return value
    >>> def write(value):
    ...     return value
    >>> first = pr.host(read, [x], effect="file")
    >>> second = pr.host(write, [first[T - 1 - t]], effect="file")
    >>> pr.evaluate(second, {"x": [1.0, 2.0]})
    Traceback (most recent call last):
    ...
    polyrhythm.errors.EffectError: the call of write at t = 0 waits for the call of read at t = 1, ...
      at ...
      through ...
      fix: let a call depend only on calls that come before it: earlier steps, or earlier lines

    Give them effects of their own, if their order does not matter:

    >>> second = pr.host(write, [first[T - 1 - t]], effect="screen")
    >>> pr.evaluate(second, {"x": [1.0, 2.0]}).tolist()
    [2.0, 1.0]
    """


class UnsupportedError(PolyrhythmError):
    """A construct that compiled programs cannot run yet.

    The oracle, `pr.evaluate`, runs every program. A compiled program refuses by name what its backend cannot do,
    rather than do it wrongly.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> pr.compile(x[0:t + 1], backend="numpy")
    Traceback (most recent call last):
        ...
    polyrhythm.errors.UnsupportedError: compiled programs cannot return a value whose shape differs from ...
    ...

    Reduce or pad the value to one shape for every step:

    >>> program = pr.compile(x[0:t + 1].sum(0), backend="numpy")
    >>> program(x=[1.0, 2.0, 3.0])
    array([1., 3., 6.], dtype=float32)
    """


class GradientError(PolyrhythmError):
    """A gradient that cannot be taken.

    It happens when the loss is not a scalar float, when what it is differentiated by is not a tensor of the program
    but a view of one, when the way between them leads through a host function, or when a derivative that was given
    with `pr.custom_vjp` does not fit its function.

    >>> import polyrhythm as pr
    >>> x = pr.input("x", (3,))
    >>> pr.grad(x * x, x)
    Traceback (most recent call last):
        ...
    polyrhythm.errors.GradientError: a loss must be a float scalar at each step, not float32[3]
    ...

    Reduce the loss to one number:

    >>> pr.evaluate(pr.grad((x * x).sum(), x), {"x": [1.0, 2.0, 3.0]})
    array([2., 4., 6.], dtype=float32)
    """


class RecomputeError(PolyrhythmError):
    """A checkpoint that cannot be made: what is marked is not computed, or its segments are not known.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> y = pr.checkpoint(x * x, over=t)
    >>> pr.compile(pr.grad(y * y, x), backend="numpy")
    Traceback (most recent call last):
        ...
    polyrhythm.errors.RecomputeError: segments of t should have about the square root of T steps, but T has no maximum
    ...

    Say how many steps a segment has, or how many there are at most:

    >>> y = pr.checkpoint(x * x, over=t, every=16)
    >>> pr.compile(pr.grad(y * y, x), backend="numpy")(x=[1.0, 2.0])
    array([ 4., 32.], dtype=float32)
    """


class NotFiniteError(PolyrhythmError):
    """A program compiled with `check_nan=True` met a NaN, or an infinity made of finite values.

    The message names the line that computed it and the step. Infinities that are written into the program, as in a
    mask, are none of its business; a NaN in an input is named as such. On JAX the run is repeated on NumPy to find the
    line, and what never reaches an output is not noticed.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> program = pr.compile(pr.log(x), backend="numpy", check_nan=True)
    >>> program(x=[1.0, 0.0])
    Traceback (most recent call last):
    ...
    polyrhythm.errors.NotFiniteError: log makes an infinity of finite values
      at ...: program = pr.compile(pr.log(x), backend="numpy", check_nan=True)
      for example at t = 1: the value is -inf
      fix: keep its operands where it is finite, or compile without check_nan

    Keep the operand where the function is finite:

    >>> program = pr.compile(pr.log(pr.maximum(x, 1e-6)), backend="numpy", check_nan=True)
    >>> program(x=[1.0, 0.0])
    array([  0.      , -13.815511], dtype=float32)
    """


class CheckpointMismatchError(PolyrhythmError):
    """A checkpoint belongs to another run than the one that is to go on from it.

    A run goes on only where it was stopped: with the same program, backend, inputs, bounds and seed. Anything else
    would give a result that neither run has. Nothing has run when it is raised, and no file was changed.

    >>> import polyrhythm as pr, tempfile
    >>> i, I = pr.dim("i")
    >>> x = pr.input("x", (), (i,))
    >>> total = pr.recurrent((), ((i, I + 1),))
    >>> total[0] = 0.0
    >>> total[i + 1] = total + x
    >>> program = pr.compile(total[I], backend="numpy")
    >>> folder = tempfile.TemporaryDirectory()
    >>> program(x=[1.0, 2.0], checkpoint=pr.Checkpoints(folder.name, over=i))
    array(3., dtype=float32)
    >>> program(x=[1.0, 5.0], checkpoint=pr.Checkpoints(folder.name, over=i))
    Traceback (most recent call last):
    ...
    polyrhythm.errors.CheckpointMismatchError: the checkpoint ... belongs to another run: the input 'x' has other values
      at ...
      fix: call the program as before, or give this run another folder; nothing was changed

    Give every run a folder of its own:

    >>> program(x=[1.0, 5.0], checkpoint=pr.Checkpoints(folder.name + "/other", over=i))
    array(6., dtype=float32)
    >>> folder.cleanup()
    """


class CheckpointDamagedError(PolyrhythmError):
    """A checkpoint is not what was written: the file was cut short or changed.

    A run writes a file under another name first and never leaves half of one, so this is the fault of the disk, of a
    copy, or of an edit. The run does not begin silently from an older checkpoint: that is for you to decide.

    >>> import polyrhythm as pr, tempfile
    >>> i, I = pr.dim("i")
    >>> w = pr.recurrent((), ((i, I + 1),))
    >>> w[0] = 1.0
    >>> w[i + 1] = 2.0 * w
    >>> program = pr.compile(w[I], backend="numpy")
    >>> folder = tempfile.TemporaryDirectory()
    >>> checkpoints = pr.Checkpoints(folder.name, over=i, every=2)
    >>> program(bounds={I: 4}, checkpoint=checkpoints)
    array(16., dtype=float32)
    >>> last = checkpoints.folder / "iteration-000000004.safetensors"
    >>> _ = last.write_bytes(last.read_bytes()[:-1])
    >>> program(bounds={I: 4}, checkpoint=checkpoints)
    Traceback (most recent call last):
    ...
    polyrhythm.errors.CheckpointDamagedError: the checkpoint ... is damaged: ...
      at ...
      fix: move the file away to go on from iteration 2; nothing was changed

    >>> last.unlink()
    >>> program(bounds={I: 4}, checkpoint=checkpoints)
    array(16., dtype=float32)
    >>> folder.cleanup()
    """


class CheckpointInUseError(PolyrhythmError):
    """Another run is writing to the same folder of checkpoints.

    >>> import polyrhythm as pr, tempfile
    >>> i, I = pr.dim("i")
    >>> w = pr.recurrent((), ((i, I + 1),))
    >>> w[0] = 1.0
    >>> w[i + 1] = 2.0 * w
    >>> program = pr.compile(w[I], backend="numpy")
    >>> folder = tempfile.TemporaryDirectory()
    >>> checkpoints = pr.Checkpoints(folder.name, over=i)
    >>> with checkpoints.held():
    ...     program(bounds={I: 4}, checkpoint=checkpoints)
    Traceback (most recent call last):
    ...
    polyrhythm.errors.CheckpointInUseError: another run is writing checkpoints to ...
      at ...
      fix: wait until it has ended, or give each run a folder of its own

    >>> program(bounds={I: 4}, checkpoint=checkpoints)
    array(16., dtype=float32)
    >>> folder.cleanup()
    """


class ModelMissingError(PolyrhythmError):
    """A file of a language model is not there.

    A folder has `config.json`, weights in `model.safetensors`, or in several files that `model.safetensors.index.json`
    names, and `tokenizer.json` if it is to read and write text.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from polyrhythm import llm
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = llm.write_random(folder.name)
    >>> _ = (path / "model.safetensors").rename(path / "weights.safetensors")
    >>> llm.load(path)
    Traceback (most recent call last):
    ...
    polyrhythm.errors.ModelMissingError: there are no weights in ...: neither model.safetensors nor ...
      at ...
      fix: ...

    Give the file the name it is looked for by:

    >>> _ = (path / "weights.safetensors").rename(path / "model.safetensors")
    >>> llm.load(path).config.layers
    2
    >>> folder.cleanup()
    """


class ModelDamagedError(PolyrhythmError):
    """A file of a language model is cut off, or is not what its name says.

    >>> import tempfile
    >>> from polyrhythm import llm
    >>> folder = tempfile.TemporaryDirectory()
    >>> weights = llm.write_random(folder.name) / "model.safetensors"
    >>> whole = weights.read_bytes()
    >>> _ = weights.write_bytes(whole[:1000])
    >>> llm.load(folder.name)
    Traceback (most recent call last):
    ...
    polyrhythm.errors.ModelDamagedError: ...model.safetensors is not a whole safetensors file (1,000 bytes): ...
      at ...
      fix: copy the file again; it was probably cut off

    Copy it again:

    >>> _ = weights.write_bytes(whole)
    >>> llm.load(folder.name).config.layers
    2
    >>> folder.cleanup()
    """


class ModelMismatchError(PolyrhythmError):
    """The files of a language model do not belong together.

    The weights `config.json` calls for are compared with those in the files, by name and shape, before any is read.

    >>> import json, tempfile
    >>> from polyrhythm import llm
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = llm.write_random(folder.name) / "config.json"
    >>> config = json.loads(path.read_text())
    >>> _ = path.write_text(json.dumps({**config, "num_hidden_layers": 3}))
    >>> llm.load(folder.name)
    Traceback (most recent call last):
    ...
    polyrhythm.errors.ModelMismatchError: the weights in ... are not those of its configuration: missing ...
      at ...
      fix: take the config.json that belongs to the weights

    Take the configuration of these weights:

    >>> _ = path.write_text(json.dumps(config))
    >>> llm.load(folder.name).config.layers
    2
    >>> folder.cleanup()
    """


class ContextLengthError(PolyrhythmError):
    """A text would be longer than the positions a language model has learnt.

    GPT-2 has a vector for each position, and none beyond the last. Models with rotary positions have no such end.

    >>> import tempfile
    >>> from polyrhythm import llm
    >>> folder = tempfile.TemporaryDirectory()
    >>> model = llm.load(llm.write_random(folder.name, "gpt2", n_positions=8), backend="numpy")
    >>> model.generate([1, 2, 3], max_new_tokens=100)
    Traceback (most recent call last):
    ...
    polyrhythm.errors.ContextLengthError: the text would have 103 tokens, but the model has 8 positions
      at ...
      fix: shorten the prompt or ask for fewer tokens

    Ask for fewer tokens:

    >>> len(model.generate([1, 2, 3], max_new_tokens=5).tokens)
    5
    >>> folder.cleanup()
    """


class PromptError(PolyrhythmError):
    """Something a language model cannot go on from: a prompt, a number of tokens or a way of choosing them.

    >>> import tempfile
    >>> from polyrhythm import llm
    >>> folder = tempfile.TemporaryDirectory()
    >>> model = llm.load(llm.write_random(folder.name), backend="numpy")
    >>> model.generate([1, 2, 777], max_new_tokens=2)
    Traceback (most recent call last):
    ...
    polyrhythm.errors.PromptError: the token 777 is not one of the 260 that the model knows
      at ...
      fix: give the tokens of the model's own tokenizer

    Give tokens of the model's vocabulary:

    >>> len(model.generate([1, 2, 7], max_new_tokens=2).tokens)
    2
    >>> folder.cleanup()
    """


class WeightsFileError(PolyrhythmError):
    """A file of weights is not there, is cut off, or is no safetensors file.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from polyrhythm import nn
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name) / "norm.safetensors"
    >>> nn.LayerNorm(2).save(path)
    >>> whole = path.read_bytes()
    >>> _ = path.write_bytes(whole[:-1])
    >>> nn.load(path)
    Traceback (most recent call last):
    ...
    polyrhythm.errors.WeightsFileError: ...norm.safetensors is not a whole safetensors file (...)...
      at ...
      fix: copy the file again; it was probably cut off

    Copy it again:

    >>> _ = path.write_bytes(whole)
    >>> sorted(nn.load(path))
    ['bias', 'weight']
    >>> folder.cleanup()
    """


class WeightsMismatchError(PolyrhythmError):
    """Weights do not fit the module they are given to: by name, shape or dtype.

    >>> import numpy as np
    >>> from polyrhythm import nn
    >>> nn.Linear(2, 1).using({"weight": np.ones((2, 1)), "bias": np.ones(1)})
    Traceback (most recent call last):
    ...
    polyrhythm.errors.WeightsMismatchError: the weight 'weight' has shape (2, 1), but the module needs (1, 2)
      at ...
      fix: give weights of the shapes in module.weights()

    Weights of linear layers have the outputs first, as in torch:

    >>> layer = nn.Linear(2, 1).using({"weight": np.ones((1, 2)), "bias": np.ones(1)})
    """


class OpaqueError(PolyrhythmError):
    """A function of another library cannot be part of the program: it fails, or returns what programs do not have.

    It is called once on shapes alone when it is written down, so that its mistakes show at that line.

    >>> import jax.numpy as jnp
    >>> import polyrhythm as pr
    >>> x, y = pr.input("x", (3,)), pr.input("y", (2,))
    >>> pr.jax_function(jnp.add, [x, y])
    Traceback (most recent call last):
    ...
    polyrhythm.errors.OpaqueError: add cannot be called with float32[3], float32[2]: TypeError: ...
      at ...
      fix: call the function by itself with arrays of these types, and correct it or what it is given

    Shapes that fit together:

    >>> pr.evaluate(pr.jax_function(jnp.add, [x, y.axes[0]]), {"x": [1, 2, 3], "y": [10, 20]}).tolist()
    [11.0, 12.0, 13.0]
    """


class MemoryBudgetError(PolyrhythmError):
    """A program needs more memory than it was given.

    `memory_budget` limits what a run may take: inputs, outputs, what is kept in between, and the values of the steps
    that run at once. Fewer steps run at once where that is enough. What is kept is given by the program and the
    bounds of the call; if that alone is too much, the error names the largest.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (1000,), (t,))
    >>> program = pr.compile(x[0:T].sum(0), backend="numpy", memory_budget="1MB")
    >>> import numpy as np
    >>> program(x=np.ones((1000, 1000), "float32"))
    Traceback (most recent call last):
        ...
    polyrhythm.errors.MemoryBudgetError: 4,004,000 bytes are needed, but the budget is 1,048,576; input x takes ...
    ...

    Give it more, or fewer steps at a time:

    >>> program(x=np.ones((100, 1000), "float32"))[:2]
    array([100., 100.], dtype=float32)
    """


class DependentStepsError(PolyrhythmError):
    """Steps that need each other were to run at once.

    `schedule={t: pr.vector()}` and `pr.chunk(n)` ask for many steps of a dim at the same time. That is possible only
    where none of them needs what another one makes, in the whole program: a recurrence along the dim rules it out,
    and so do effects, which have an order, and a stopping condition.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> y = pr.recurrent((), (t,))
    >>> y[0] = x[0]
    >>> y[t + 1] = pr.tanh(y) + x[t + 1]
    >>> pr.compile(y, schedule={t: pr.vector()})
    Traceback (most recent call last):
        ...
    polyrhythm.errors.DependentStepsError: schedule={t: pr.vector()} cannot be: a step of t needs what another one makes
      at ...: y[t + 1] = pr.tanh(y) + x[t + 1]
      for example at T = 3: y[2] needs y[1]
      fix: leave t out of schedule=, which lets the compiler choose, or write {t: pr.loop()}

    Choose for dims whose steps are independent, and leave the others to the compiler:

    >>> b, B = pr.dim("b")
    >>> x = pr.input("x", (), (b, t))
    >>> y = pr.recurrent((), (b, t))
    >>> y[b, 0] = x[b, 0]
    >>> y[b, t + 1] = pr.tanh(y) + x[b, t + 1]
    >>> pr.compile(y, schedule={b: pr.vector()})(x=[[0.0, 1.0], [0.0, 2.0]])
    array([[0., 1.],
           [0., 2.]], dtype=float32)
    """
