"""What happens when a function of NumPy, JAX or torch is called on a tensor: an error that names ours.

Operators with an array on the left work: they are handed to the tensor on the right. The hooks are those that each
library looks for: `__array_ufunc__` and `__array_function__`, `__torch_function__`, and `__jax_array__`, which JAX only
asks for, without saying on whose behalf; the name is then read off the user's line.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from polyrhythm.errors import OperandError
from polyrhythm.source import Source

_OPERATORS: dict[str, tuple[str, str]] = {
    **{
        numpy: (f"__{python}__", f"__r{python}__")
        for numpy, python in {
            "add": "add",
            "subtract": "sub",
            "multiply": "mul",
            "divide": "truediv",
            "true_divide": "truediv",
            "floor_divide": "floordiv",
            "remainder": "mod",
            "power": "pow",
            "matmul": "matmul",
            "bitwise_and": "and",
            "bitwise_or": "or",
            "bitwise_xor": "xor",
        }.items()
    },
    "equal": ("__eq__", "__eq__"),
    "not_equal": ("__ne__", "__ne__"),
    "less": ("__lt__", "__gt__"),
    "less_equal": ("__le__", "__ge__"),
    "greater": ("__gt__", "__lt__"),
    "greater_equal": ("__ge__", "__le__"),
}
"""The operators by their names in NumPy: the method of a left operand, and that of a right one."""

_OURS = {
    "absolute": "abs",
    "arccos": "acos",
    "arcsin": "asin",
    "arctan": "atan",
    "arctan2": "atan2",
    "array": "constant",
    "asarray": "constant",
    "as_tensor": "constant",
    "cat": "concat",
    "clamp": "clip",
    "concatenate": "concat",
    "expand_dims": "unsqueeze",
    "fmod": "remainder",
    "mm": "matmul",
    "mod": "remainder",
    "power": "pow",
    "rint": "round",
    "stop_gradient": "detach",
    "take_along_axis": "gather",
}
"""Functions that have another name here."""

_METHODS = ("max", "min")


def array_ufunc(self: Any, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """NumPy's `__array_ufunc__`: operators are ours, other functions are refused."""
    names = _OPERATORS.get(ufunc.__name__)
    if method != "__call__" or names is None:
        raise _refusal("NumPy", ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}")
    left, right = inputs
    first = getattr(type(left), "__array_ufunc__", None) is array_ufunc
    return getattr(left, names[0])(right) if first else getattr(right, names[1])(left)


def array_function(self: Any, function: Callable[..., Any], *rest: Any) -> Any:
    """NumPy's `__array_function__`."""
    raise _refusal("NumPy", function.__name__)


def torch_function(cls: type, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Torch's `__torch_function__`; operators of its tensors are left to ours."""
    if getattr(function, "__objclass__", None) is not None or function.__name__.startswith("__"):
        return NotImplemented
    raise _refusal("torch", function.__name__)


def jax_array(self: Any) -> Any:
    """What JAX finds where it looks for `__jax_array__`: nothing where an operator may be ours, else the error."""
    module = sys._getframe(1).f_globals.get("__name__", "")
    if not module.startswith("jax.") or module.endswith("array_methods"):
        raise AttributeError("__jax_array__")
    raise _refusal("JAX", None)


def _refusal(library: str, name: str | None) -> OperandError:
    frame = _user_frame(sys._getframe(1))
    line = Source(frame.f_code.co_filename, frame.f_lineno)
    if name is None:
        called = re.search(r"\b(?:jnp|jax|lax|nn|numpy)\.(?:\w+\.)*(\w+)\(", linecache.getline(line.file, line.line))
        name = called[1] if called else None
    ours = _OURS.get(name or "", name or "")
    public = getattr(sys.modules["polyrhythm"], "__all__", ())
    if ours in _METHODS:
        fix = f"use the method: x.{ours}(axis)"
    elif ours in public:
        fix = f"use pr.{ours}"
    else:
        fix = "write it with functions of Polyrhythm, or pass it whole: pr.jax_function, pr.torch_function or pr.host"
    what = f"{library}'s function {name}" if name else f"a function of {library}"
    return OperandError(
        f"{what} computes with numbers, which a tensor has only when the program runs", fix=fix, at=line
    )


def _user_frame(frame: FrameType) -> FrameType:
    """The innermost frame that belongs neither to this package nor to the library."""
    foreign = ("polyrhythm", "numpy", "jax", "jaxlib", "torch")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in foreign:
        frame = frame.f_back
    return frame
