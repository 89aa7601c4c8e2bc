"""The operators and methods of tensors: one table from names to functions.

`Methods` is that table, written as a class so that a type checker sees it: it treats `Tensor` as a subclass.
At run time `install_methods` copies the entries into `Tensor`, which is defined below these functions.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction

from polyrhythm.language import steps
from polyrhythm.language.functions import (
    activations,
    arithmetic,
    complex_numbers,
    creation,
    elementwise,
    indexing,
    reductions,
    shapes,
    sorting,
)
from polyrhythm.language.functions.linalg import dot, matmul
from polyrhythm.language.functions.spatial import Axes
from polyrhythm.language.functions.support import TensorLike
from polyrhythm.language.functions.updates import At
from polyrhythm.language.naming import names_result
from polyrhythm.language.tensor import Tensor


def _reflected(function: Callable[[TensorLike, TensorLike], Tensor]) -> Callable[[TensorLike, TensorLike], Tensor]:
    """The operator of a tensor on the right side."""
    return lambda x, y: function(y, x)


class Methods:
    """Every operator and method that tensors have.

    >>> import polyrhythm as pr
    >>> pr.evaluate((pr.constant([1.0, 2.0]) * 2 + 1).sum())
    array(8., dtype=float32)
    """

    __getitem__ = steps.read
    __add__ = arithmetic.add
    __radd__ = _reflected(arithmetic.add)
    __sub__ = arithmetic.subtract
    __rsub__ = _reflected(arithmetic.subtract)
    __mul__ = arithmetic.multiply
    __rmul__ = _reflected(arithmetic.multiply)
    __truediv__ = arithmetic.divide
    __rtruediv__ = _reflected(arithmetic.divide)
    __floordiv__ = arithmetic.floor_divide
    __rfloordiv__ = _reflected(arithmetic.floor_divide)
    __mod__ = arithmetic.remainder
    __rmod__ = _reflected(arithmetic.remainder)
    __pow__ = arithmetic.pow
    __rpow__ = _reflected(arithmetic.pow)
    __and__ = arithmetic.bitwise_and
    __rand__ = _reflected(arithmetic.bitwise_and)
    __or__ = arithmetic.bitwise_or
    __ror__ = _reflected(arithmetic.bitwise_or)
    __xor__ = arithmetic.bitwise_xor
    __rxor__ = _reflected(arithmetic.bitwise_xor)
    __matmul__ = matmul
    __rmatmul__ = _reflected(matmul)
    __neg__ = arithmetic.negative
    __invert__ = arithmetic.invert
    __abs__ = elementwise.abs
    __eq__ = arithmetic.equal  # type: ignore[assignment]
    __ne__ = arithmetic.not_equal  # type: ignore[assignment]
    __lt__ = arithmetic.less
    __le__ = arithmetic.less_equal
    __gt__ = arithmetic.greater
    __ge__ = arithmetic.greater_equal
    __hash__ = object.__hash__

    astype = arithmetic.cast
    cast = arithmetic.cast
    clip = arithmetic.clip
    conj = complex_numbers.conj

    abs = elementwise.abs
    ceil = elementwise.ceil
    cos = elementwise.cos
    erf = elementwise.erf
    exp = elementwise.exp
    expm1 = elementwise.expm1
    floor = elementwise.floor
    isfinite = elementwise.isfinite
    isnan = elementwise.isnan
    log = elementwise.log
    log1p = elementwise.log1p
    reciprocal = elementwise.reciprocal
    round = elementwise.round
    rsqrt = elementwise.rsqrt
    sigmoid = activations.sigmoid
    sign = elementwise.sign
    sin = elementwise.sin
    sqrt = elementwise.sqrt
    square = elementwise.square
    tan = elementwise.tan
    tanh = elementwise.tanh

    all = reductions.all
    any = reductions.any
    argmax = reductions.argmax
    argmin = reductions.argmin
    cummax = reductions.cummax
    cumprod = reductions.cumprod
    cumsum = reductions.cumsum
    log_softmax = reductions.log_softmax
    logsumexp = reductions.logsumexp
    max = reductions.max
    mean = reductions.mean
    min = reductions.min
    norm = reductions.norm
    prod = reductions.prod
    softmax = reductions.softmax
    std = reductions.std
    sum = reductions.sum
    var = reductions.var

    broadcast_to = shapes.broadcast_to
    expand = shapes.expand
    flatten = shapes.flatten
    flip = shapes.flip
    pad = shapes.pad
    repeat = shapes.repeat
    reshape = shapes.reshape
    roll = shapes.roll
    split = shapes.split
    squeeze = shapes.squeeze
    swapaxes = shapes.swapaxes
    tile = shapes.tile
    transpose = shapes.transpose
    unsqueeze = shapes.unsqueeze

    argsort = sorting.argsort
    gather = indexing.gather
    scatter_add = indexing.scatter_add
    sort = sorting.sort
    take = indexing.take
    topk = sorting.topk
    diagonal = creation.diagonal
    dot = dot
    median = sorting.median
    quantile = sorting.quantile
    trace = creation.trace

    @property
    def T(self) -> Tensor:
        """The axes in reverse order."""
        assert isinstance(self, Tensor)
        return shapes.transpose(self)

    @property
    def real(self) -> Tensor:
        """The real part."""
        assert isinstance(self, Tensor)
        return complex_numbers.real(self)

    @property
    def imag(self) -> Tensor:
        """The imaginary part."""
        assert isinstance(self, Tensor)
        return complex_numbers.imag(self)

    @property
    def mT(self) -> Tensor:
        """The last two axes swapped."""
        assert isinstance(self, Tensor)
        return shapes.swapaxes(self, -2, -1)

    @property
    def at(self) -> At:
        """The axes of the value, for replacing elements: `x.at[0, 2].set(1.0)`."""
        assert isinstance(self, Tensor)
        return At(self)

    @property
    def axes(self) -> Axes:
        """The axes of the value, to be indexed as in NumPy: `x.axes[0, ::2]`."""
        assert isinstance(self, Tensor)
        return Axes(self)


_OWN = ("__dict__", "__weakref__", "__module__", "__doc__", "__qualname__")


def install_methods(tensor: type[Tensor]) -> None:
    """Give `Tensor` the operators and methods of the table."""
    for name, function in vars(Methods).items():
        if name not in _OWN:  # a read is no operation, and is not called like the variable that it is given to
            named = isfunction(function) and name != "__getitem__"
            setattr(tensor, name, names_result(function) if named else function)
