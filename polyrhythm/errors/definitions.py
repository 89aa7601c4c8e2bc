"""Errors of a program as a whole: raised where it is declared, compiled or evaluated, before anything runs."""

from __future__ import annotations

from polyrhythm.errors.base import PolyrhythmError
from polyrhythm.errors.expressions import IndexingError


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
    polyrhythm.errors.CycleError: a value depends on itself: y[0] reads z[0], which reads y[0]
      at ...: y[t] = z + 1
      through ...: z[t] = y * 2
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
    polyrhythm.errors.UntilError: the stopping condition of t depends on T, the length it decides, through ...
      at ...
      fix: stop on values of the current and earlier steps only, without T

    Look only at the steps so far:

    >>> pr.evaluate(x, {"x": [1.0, 5.0, 2.0]}, until={t: x > 4}).tolist()
    [1.0, 5.0]
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
