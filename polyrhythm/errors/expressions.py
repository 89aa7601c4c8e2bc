"""Errors of a single expression: raised at the line that writes it."""

from __future__ import annotations

from polyrhythm.errors.base import PolyrhythmError


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
