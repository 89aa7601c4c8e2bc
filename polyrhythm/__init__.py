"""Polyrhythm: dynamic deep-learning programs, written as recurrences and compiled whole.

Everything a user needs is here: `import polyrhythm as pr`.
"""

from polyrhythm import errors
from polyrhythm.compiler.analysis.calls import Ragged
from polyrhythm.language import functions as _functions
from polyrhythm.language.checkpoint import checkpoint
from polyrhythm.language.chunks import chunk, loop, vector
from polyrhythm.language.custom import custom_vjp
from polyrhythm.language.foreign import jax_function, torch_function
from polyrhythm.language.functions import *
from polyrhythm.language.gradient import detach, grad, value_and_grad
from polyrhythm.language.index import Bound, Condition, Dim, Index, dim, size
from polyrhythm.language.index import index_max as max
from polyrhythm.language.index import index_min as min
from polyrhythm.language.inputs import host, input, parameter
from polyrhythm.language.recurrent import Recurrent, otherwise, recurrent
from polyrhythm.language.tensor import Tensor, window
from polyrhythm.oracle import evaluate
from polyrhythm.runtime.checkpoints import Checkpoints
from polyrhythm.runtime.program import Program, compile

__version__ = "0.1.0"

# fmt: off
__all__ = [
    "Bound", "Checkpoints", "Condition", "Dim", "Index", "Program", "Ragged", "Recurrent", "Tensor",
    "checkpoint", "chunk", "compile", "custom_vjp", "detach", "dim", "errors", "evaluate", "grad", "host",
    "input", "jax_function", "loop", "max", "min", "otherwise", "parameter", "recurrent", "size",
    "torch_function", "value_and_grad", "vector", "window",
]
# fmt: on
__all__ += _functions.__all__
