"""The derivative of an opaque operation: another one, which the library of the function makes of it."""

from __future__ import annotations

from polyrhythm.compiler.gradients.rules import Results, Rule, Step
from polyrhythm.compiler.ir import dtypes


def _opaque(s: Step) -> Results:
    """Each result is differentiated alone; what several contribute is summed as usual."""
    places = tuple(k for k, x in enumerate(s.x) if s.wanted[k] and dtypes.is_float(x.dtype))
    back = s["function"].pullback(s["result"], places)
    made = {k: s.space.apply("opaque", *s.x, s.g, function=back, result=number) for number, k in enumerate(places)}
    return [made.get(k) for k in range(len(s.x))]


OPAQUE: dict[str, Rule] = {"opaque": _opaque}
