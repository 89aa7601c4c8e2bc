"""Polyrhythm: dynamic deep-learning programs, written as recurrences and compiled whole.

Everything a user needs is here: `import polyrhythm as pr`. The libraries `pr.nn`, `pr.optim`, `pr.rl`, `pr.llm` and
`pr.stream`, and the compiler with its runtime, are imported when they are first named.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from polyrhythm import errors
from polyrhythm.language import fft, linalg
from polyrhythm.language.budget import Budget
from polyrhythm.language.checkpoint import checkpoint
from polyrhythm.language.chunks import chunk, loop, vector
from polyrhythm.language.custom import custom_vjp
from polyrhythm.language.foreign import jax_function, torch_function
from polyrhythm.language.functions import activations as _activations
from polyrhythm.language.functions import arithmetic as _arithmetic
from polyrhythm.language.functions import complex_numbers as _complex
from polyrhythm.language.functions import creation as _creation
from polyrhythm.language.functions import elementwise as _elementwise
from polyrhythm.language.functions import indexing as _indexing
from polyrhythm.language.functions import linalg as _linalg
from polyrhythm.language.functions import quantised as _quantised
from polyrhythm.language.functions import random as _random
from polyrhythm.language.functions import reductions as _reductions
from polyrhythm.language.functions import shapes as _shapes
from polyrhythm.language.functions import sorting as _sorting
from polyrhythm.language.functions import windows as _windows
from polyrhythm.language.functions.activations import *
from polyrhythm.language.functions.arithmetic import *
from polyrhythm.language.functions.complex_numbers import *
from polyrhythm.language.functions.creation import *
from polyrhythm.language.functions.elementwise import *
from polyrhythm.language.functions.indexing import *
from polyrhythm.language.functions.linalg import *
from polyrhythm.language.functions.quantised import *
from polyrhythm.language.functions.random import *
from polyrhythm.language.functions.reductions import *
from polyrhythm.language.functions.shapes import *
from polyrhythm.language.functions.sorting import *
from polyrhythm.language.functions.windows import *
from polyrhythm.language.gradient import detach, grad, value_and_grad
from polyrhythm.language.index import Bound, Condition, Dim, Index, dim, size
from polyrhythm.language.index import index_max as max
from polyrhythm.language.index import index_min as min
from polyrhythm.language.inputs import host, input, parameter
from polyrhythm.language.naming import name_results as _name_results
from polyrhythm.language.recurrent import Recurrent, otherwise, recurrent
from polyrhythm.language.sharding import shard
from polyrhythm.language.tensor import Tensor, window

if _TYPE_CHECKING:
    from polyrhythm import llm as llm
    from polyrhythm import nn as nn
    from polyrhythm import optim as optim
    from polyrhythm import rl as rl
    from polyrhythm import stream as stream
    from polyrhythm.compiler.analysis.calls import Ragged
    from polyrhythm.oracle import evaluate
    from polyrhythm.runtime.checkpoints import Checkpoints
    from polyrhythm.runtime.exporting import load
    from polyrhythm.runtime.program import Program, compile
    from polyrhythm.runtime.settings import settings

__version__ = "0.1.0"

# fmt: off
__all__ = [
    "Bound", "Budget", "Checkpoints", "Condition", "Dim", "Index", "Program", "Ragged", "Recurrent", "Tensor",
    "checkpoint", "chunk", "compile", "custom_vjp", "detach", "dim", "errors", "evaluate", "fft", "grad", "host",
    "input", "jax_function", "linalg", "load", "loop", "max", "min", "otherwise", "parameter", "recurrent",
    "settings", "shard", "size", "torch_function", "value_and_grad", "vector", "window",
]
# fmt: on
__all__ += _activations.__all__
__all__ += _arithmetic.__all__
__all__ += _complex.__all__
__all__ += _creation.__all__
__all__ += _elementwise.__all__
__all__ += _indexing.__all__
__all__ += _linalg.__all__
__all__ += _quantised.__all__
__all__ += _random.__all__
__all__ += _reductions.__all__
__all__ += _shapes.__all__
__all__ += _sorting.__all__
__all__ += _windows.__all__

_LIBRARIES = ("llm", "nn", "optim", "rl", "stream")
_LATER = {
    "Checkpoints": "runtime.checkpoints",
    "Program": "runtime.program",
    "Ragged": "compiler.analysis.calls",
    "compile": "runtime.program",
    "evaluate": "oracle",
    "load": "runtime.exporting",
    "settings": "runtime.settings",
}
"""Where the names are that are imported when they are first used: writing a program needs no compiler."""

_name_results(globals(), [name for name in __all__ if name not in _LATER])

if not _TYPE_CHECKING:  # a type checker would take every name to be there

    def __getattr__(name: str) -> object:
        if name in _LIBRARIES:
            return _import_module(f"polyrhythm.{name}")
        if name in _LATER:
            value = getattr(_import_module(f"polyrhythm.{_LATER[name]}"), name)
            return globals().setdefault(name, value)
        raise AttributeError(f"module 'polyrhythm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_LIBRARIES, "__version__"])
