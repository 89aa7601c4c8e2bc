"""Positions of extremes: argmax and argmin over a range that grows or shrinks with the reader, as running results.

Beside the running maximum P there is the step A of the first element that is equal to it:

    A[u] = u if P changes there else A[u - 1]                  a range that grows: an equal element does not change it
    A[u] = u if x[u] is P[u] else A[u + 1]                     one that shrinks: of equal elements the newest is first

A NaN is greatest and least, as in NumPy, and nothing comes after the first one. The position in the range is A less the
first step of the range.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import TRUE, conjunction
from polyrhythm.compiler.ir.graph import Access, Definition, Node
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.passes.rewriting import Nodes
from polyrhythm.compiler.passes.running import Ranged, Summed, result

TRUTH = {"max": "any", "min": "all"}
"""The greatest and the least of truth values."""


def extreme(node: Node, definition: Definition, dtype: np.dtype) -> tuple[Node, Definition, Summed]:
    """The maximum or minimum whose position is asked for: a stand-in for the node, its definition and its axis."""
    which, axis = definition.attributes["which"], definition.attributes["axis"]
    monoid = TRUTH[which] if dtype == dtypes.BOOL else which
    made = replace(definition, op="reduce", attributes={"monoid": monoid, "axes": (axis,)})
    peak = replace(node, name=f"{node.name}_peak", type=TensorType(node.shape, dtype), definitions=(made,))
    return peak, made, Summed(monoid, (axis,))


def position_result(nodes: Nodes, found: Ranged, node: Node, definition: Definition) -> Definition | None:
    """What an argmax is, after running results of the maximum that was `found` and of its step were added."""
    made = result(nodes, found)
    if made is None:
        return None
    peak = nodes[made.operands[0].source]
    at, own = definition.at, peak.dims[-1].symbol
    begin, rest = (one.domain for one in peak.definitions)
    before = {own: Term.of(own) + (1 if found.reverse else -1)}
    name = nodes.fresh(f"{node.name}_running")
    place = replace(peak, name=name, type=TensorType(node.shape, dtypes.INT32), definitions=(), at=at)
    nodes.nodes[name] = place  # the name is taken before anything else is added under it
    plain = Definition(TRUE, "broadcast", (), {}, at)
    later = replace(place, definitions=(), domain=conjunction(peak.domain, rest), recurrent=False)

    def add(op: str, *operands: Access, **attributes: object) -> Access:
        return nodes.add(f"{node.name}_{op}", later, plain, op, operands, **attributes)

    older = peak.here.substitute(before)
    if found.reverse:
        (element,) = peak.definitions[0].operands
        newer = add("or", add("eq", element, peak.here), add("ne", element, element))
    else:
        newer = add("and", add("ne", peak.here, older), add("eq", older, older))
    step = nodes.add(f"{node.name}_step", replace(later, domain=peak.domain), plain, "index", (), value=Term.of(own))
    chosen = Definition(rest, "select", (newer, step, place.here.substitute(before)), {}, at)
    first = Definition(begin, "broadcast", (step,), {"shape": node.shape}, at)
    nodes.nodes[name] = replace(place, definitions=(first, chosen))
    offset = nodes.add(f"{node.name}_first", node, definition, "index", (), value=found.steps.start)
    return Definition(definition.domain, "sub", (Access(name, made.operands[0].steps), offset), {}, at)
