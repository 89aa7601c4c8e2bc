"""Rules about parts: one element along an axis of a contraction is a contraction of parts of the operands.

A part of a range of steps, or the range back to front, is a range itself, and one step of it that step.

The gradient of a key of attention is the case they are for. Each step contributes a product for every key it reads, of
which a key wants its own: taken first, the parts are summed over the steps as one contraction (`contract.py`), and the
products of all pairs of steps with all elements are never made.
"""

from __future__ import annotations

from polyrhythm.compiler.ir.graph import Access, Definition, Node, Range
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.terms import ONE, ZERO, Symbol, Term, dims_of
from polyrhythm.compiler.ir.types import Shape
from polyrhythm.compiler.passes.rewriting import Nodes


def slice_of_contraction(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """One element along axes of a contraction, at places that follow dims of their own, is a contraction of parts.

    Every place is then taken once at most, so nothing is multiplied more often than before. A place may also follow the
    step that is read, as in a window that slides.
    """
    access = definition.operands[0]
    inner = nodes.seen_through(access)
    if inner is None or inner.op != "einsum" or nodes.readers[access.source] > 1:
        return None
    words, output = parse_spec(inner.attributes["spec"])
    cut = cuts(definition, nodes.type_of(access).shape)
    taken = {output[axis]: start for axis, (start, length) in cut.items() if length is ONE}
    own = {symbol for operand in inner.operands for symbol in operand.symbols}
    single = set(definition.attributes["steps"]) == {1} and 0 < len(taken) == len(cut)
    if not single or not _separate(list(taken.values()), own):
        return None
    operands = []
    for word, operand in zip(words, inner.operands, strict=True):
        if not set(word) & set(taken):
            operands.append(operand)
            continue
        if any({*taken[letter].symbols} & own - {*operand.symbols} for letter in word if letter in taken):
            return None  # the same part for many steps, of which each would have a copy
        shape = nodes.type_of(operand).shape
        part = {
            "starts": tuple(taken.get(letter, ZERO) for letter in word),
            "lengths": tuple(ONE if letter in taken else n for letter, n in zip(word, shape, strict=True)),
            "steps": (1,) * len(word),
        }
        operands.append(nodes.add(f"{node.name}_part", node, definition, "slice", (operand,), **part))
    return Definition(definition.domain, "einsum", tuple(operands), inner.attributes, definition.at)


def slice_of_range(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """A slice of ranges that differ from step to step, also backwards, reads ranges; of others all is there anyway."""
    (access,) = definition.operands
    entries = [definition.attributes[key] for key in ("starts", "lengths", "steps")]
    changed = {*cuts(definition, nodes.type_of(access).shape), *(a for a, n in enumerate(entries[2]) if n != 1)}
    if not changed or max(changed) >= len(access.ranges) or not any(dims_of(run.length) for run in access.ranges):
        return None
    ranges = zip(access.ranges, *entries, strict=False)  # what is not cut comes after them
    parts = (Range(run.at(Term.of(start)), Term.of(n), run.step * by) for run, start, n, by in ranges)
    steps = tuple(next(parts) if isinstance(step, Range) else step for step in access.steps)
    return nodes.copy(node, Access(access.source, steps), definition)


def reshape_of_range(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """A range of one step without its axis is that step."""
    (access,) = definition.operands
    steps = tuple(s.start if isinstance(s, Range) and s.length is ONE else s for s in access.steps)
    read = Access(access.source, steps)
    return nodes.copy(node, read, definition) if read != access and nodes.type_of(read).shape == node.shape else None


def slice_of_broadcast(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """A part of what is repeated along all axes that are cut is what is repeated: the whole need not be made.

    The gradient of a sum over all steps is such a value, of which each step wants its own.
    """
    access = definition.operands[0]
    inner = nodes.seen_through(access)
    if inner is None or inner.op != "broadcast":
        return None
    whole, shape = nodes.type_of(access).shape, nodes.type_of(inner.operands[0]).shape
    extra = len(whole) - len(shape)
    if any(axis >= extra and shape[axis - extra] is not ONE for axis in cuts(definition, whole)):
        return None
    return Definition(definition.domain, "broadcast", inner.operands, {"shape": node.shape}, definition.at)


def reshape_of_contraction(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """A contraction without its axes of length one is a contraction of operands without them.

    Ranges of steps keep theirs, as labels that are summed: what is read of a large buffer then goes into the product as
    it lies in memory.
    """
    access = definition.operands[0]
    inner = nodes.seen_through(access)
    if inner is None or inner.op != "einsum" or nodes.readers[access.source] > 1:
        return None
    words, output = parse_spec(inner.attributes["spec"])
    whole = nodes.type_of(access).shape
    kept = [letter for letter, n in zip(output, whole, strict=True) if n is not ONE]
    left = tuple(n for n in whole if n is not ONE)
    if left != node.shape or len(kept) == len(output):
        return None
    dropped = set(output) - set(kept)
    operands, left_words = [], []
    for word, operand in zip(words, inner.operands, strict=True):
        if set(word) & dropped and not operand.ranges:
            shape = tuple(
                n for letter, n in zip(word, nodes.type_of(operand).shape, strict=True) if letter not in dropped
            )
            operand = nodes.add(f"{node.name}_part", node, definition, "reshape", (operand,), shape=shape)
            word = "".join(letter for letter in word if letter not in dropped)
        operands.append(operand)
        left_words.append(word)
    spec = f"{','.join(left_words)}->{''.join(kept)}"
    return Definition(definition.domain, "einsum", tuple(operands), {"spec": spec}, definition.at)


def cuts(definition: Definition, whole: Shape) -> dict[int, tuple[Term, Term]]:
    """The axes of which a slice leaves something out: where it begins, and how long it is."""
    starts, lengths = (map(Term.of, definition.attributes[key]) for key in ("starts", "lengths"))
    entries = enumerate(zip(starts, lengths, whole, strict=True))
    return {axis: (start, n) for axis, (start, n, full) in entries if start is not ZERO or n is not full}


def _separate(starts: list[Term], own: set[Symbol]) -> bool:
    """Whether starts are different for different steps: each follows one dim that nothing else here follows.

    The dims of what is read, `own`, are the same for all of them.
    """
    used: set[Symbol] = set()
    for start in starts:
        dims = [symbol for symbol in start.symbols if symbol.kind == "dim" and symbol not in own]
        if len(dims) != 1 or not start.linear_in(dims[0]) or start.coefficient(dims[0]) == 0 or dims[0] in used:
            return False
        used.add(dims[0])
    return True
