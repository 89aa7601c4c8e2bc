"""The language a user writes: dims, recurrent tensors, functions of tensors."""

from polyrhythm.lang.functions import install_methods
from polyrhythm.lang.tensor import Tensor

install_methods(Tensor)
