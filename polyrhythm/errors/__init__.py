"""Every error of the compiler that a user can meet: one class per situation.

A message says what is wrong, shows the user's line, gives a concrete counterexample where there is one, and ends
with a fix. The docstring of a class is its documentation page. Errors of libraries live with their libraries:
`polyrhythm.runtime.errors`, `polyrhythm.nn.errors`, `polyrhythm.llm.errors`.
"""

from polyrhythm.errors import calls, definitions, expressions
from polyrhythm.errors.base import PolyrhythmError
from polyrhythm.errors.calls import *
from polyrhythm.errors.definitions import *
from polyrhythm.errors.expressions import *

# A user meets them under one name, whatever file their page is in.
for _module in (definitions, expressions, calls):
    for _kind in vars(_module).values():
        if isinstance(_kind, type) and issubclass(_kind, PolyrhythmError):
            _kind.__module__ = __name__
PolyrhythmError.__module__ = __name__
