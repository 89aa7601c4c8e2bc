"""Errors of a call: its arrays and bounds, what happens in the run, and what a backend or a budget cannot do."""

from __future__ import annotations

from polyrhythm.errors.base import PolyrhythmError


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
      fix: make every length at least 0, or the declared min, and at most the declared max

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
    >>> pr.compile(x[0:t + 1].sum(0), backend="numpy", schedule={t: pr.vector()})
    Traceback (most recent call last):
        ...
    polyrhythm.errors.UnsupportedError: schedule={t: ...} cannot be on numpy, which runs one step after the other
    ...

    Leave out what the backend cannot do, or use one that can:

    >>> program = pr.compile(x[0:t + 1].sum(0), backend="numpy")
    >>> program(x=[1.0, 2.0, 3.0])
    array([1., 3., 6.], dtype=float32)
    """


class NotFiniteError(PolyrhythmError):
    """A program compiled under `pr.settings(check_nan=True)` met a NaN, or an infinity made of finite values.

    The message names the line that computed it and the step. Infinities that are written into the program, as in a
    mask, are none of its business; a NaN in an input is named as such. On JAX the run is repeated on NumPy to find the
    line, and what never reaches an output is not noticed.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> with pr.settings(check_nan=True):
    ...     program = pr.compile(pr.log(x), backend="numpy")
    >>> program(x=[1.0, 0.0])
    Traceback (most recent call last):
    ...
    polyrhythm.errors.NotFiniteError: log makes an infinity of finite values
      at ...: program = pr.compile(pr.log(x), backend="numpy")
      for example at t = 1: the value is -inf
      fix: keep its operands where it is finite, or compile without check_nan

    Keep the operand where the function is finite:

    >>> with pr.settings(check_nan=True):
    ...     program = pr.compile(pr.log(pr.maximum(x, 1e-6)), backend="numpy")
    >>> program(x=[1.0, 0.0])
    array([  0.      , -13.815511], dtype=float32)
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
    that run at once. Fewer steps run at once, and gradients compute values again, where that is enough; with
    `pr.Budget(bytes, spill=folder)` tensors over steps lie in files. What is kept is given by the program and the
    bounds of the call; if that alone is too much, the error names the largest.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (1000,), (t,))
    >>> program = pr.compile(x[0:T].sum(0), backend="numpy", memory_budget="1MB")
    >>> import numpy as np
    >>> program(x=np.ones((1000, 1000), "float32"))
    Traceback (most recent call last):
        ...
    polyrhythm.errors.MemoryBudgetError: 4,008,000 bytes are needed, but the budget is 1,048,576; input x takes ...
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


class ShardingError(PolyrhythmError):
    """A program cannot be spread over devices as it was asked for.

    `shard=` names axes of the mesh that is given with it. A length that is fixed has to divide into as many equal parts
    as there are devices along the axis; a length given at a call is rounded up.

    >>> import jax
    >>> import polyrhythm as pr
    >>> b, B = pr.dim("b")
    >>> x = pr.input("x", (), (b,))
    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> pr.compile(pr.exp(x), mesh=mesh, shard={b: "batch"})
    Traceback (most recent call last):
        ...
    polyrhythm.errors.ShardingError: shard={b: 'batch'}: the mesh has no axis 'batch'
      at ...
      fix: name one of 'data'

    Name an axis that it has:

    >>> pr.compile(pr.exp(x), mesh=mesh, shard={b: "data"})(x=[0.0, 0.0])
    array([1., 1.], dtype=float32)
    """
