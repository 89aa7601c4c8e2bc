"""The language a user writes: dims, recurrent tensors, functions of tensors."""

from polyrhythm.language.functions import install_methods
from polyrhythm.language.tensor import Tensor

install_methods(Tensor)
