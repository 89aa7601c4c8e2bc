"""The functions of the array library: what a user calls as `pr.exp(x)`, and as methods of tensors.

Few primitives, many derived functions: everything here is composed of the op table's operations. A function is exported
by being in the `__all__` of its module, and a method by its line in `methods.py`.
"""

from polyrhythm.language.functions import (
    activations,
    arithmetic,
    complex_numbers,
    creation,
    elementwise,
    indexing,
    linalg,
    quantised,
    random,
    reductions,
    shapes,
    sorting,
    windows,
)
from polyrhythm.language.functions.activations import *
from polyrhythm.language.functions.arithmetic import *
from polyrhythm.language.functions.complex_numbers import *
from polyrhythm.language.functions.creation import *
from polyrhythm.language.functions.elementwise import *
from polyrhythm.language.functions.indexing import *
from polyrhythm.language.functions.linalg import *
from polyrhythm.language.functions.methods import install_methods
from polyrhythm.language.functions.quantised import *
from polyrhythm.language.functions.random import *
from polyrhythm.language.functions.reductions import *
from polyrhythm.language.functions.shapes import *
from polyrhythm.language.functions.sorting import *
from polyrhythm.language.functions.support import TensorLike, as_tensor
from polyrhythm.language.functions.windows import *
from polyrhythm.language.naming import name_results

__all__ = ["TensorLike", "as_tensor", "install_methods"]
__all__ += activations.__all__
__all__ += arithmetic.__all__
__all__ += complex_numbers.__all__
__all__ += creation.__all__
__all__ += elementwise.__all__
__all__ += indexing.__all__
__all__ += linalg.__all__
__all__ += quantised.__all__
__all__ += random.__all__
__all__ += reductions.__all__
__all__ += shapes.__all__
__all__ += sorting.__all__
__all__ += windows.__all__

name_results(globals(), __all__)
