"""Rules about parts: one element along an axis of a contraction is a contraction of parts of the operands.

The gradient of a key of attention is the case they are for. Each step contributes a product for every key it reads, of
which a key wants its own: taken first, the parts are summed over the steps as one contraction (`contract.py`), and the
products of all pairs of steps with all elements are never made.
"""

from __future__ import annotations

from polyrhythm.compiler.ir.graph import Definition, Node
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.terms import ONE, ZERO, Symbol, Term
from polyrhythm.compiler.passes.rewriting import Nodes


def slice_of_contraction(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """One element along axes of a contraction, at places that follow dims of their own, is a contraction of parts.

    Every place is then taken once at most, so nothing is multiplied more often than before.
    """
    access = definition.operands[0]
    inner = nodes.seen_through(access)
    if inner is None or inner.op != "einsum" or nodes.readers[access.source] > 1:
        return None
    words, output = parse_spec(inner.attributes["spec"])
    whole = nodes.type_of(access).shape
    starts, lengths = (tuple(map(Term.of, definition.attributes[key])) for key in ("starts", "lengths"))
    taken: dict[str, Term] = {}
    for letter, start, length, full in zip(output, starts, lengths, whole, strict=True):
        if start is ZERO and length is full:
            continue
        if length is not ONE:
            return None
        taken[letter] = start
    own = {symbol for operand in inner.operands for symbol in operand.symbols}
    if not taken or set(definition.attributes["steps"]) != {1} or not _separate(list(taken.values()), own):
        return None
    operands = []
    for word, operand in zip(words, inner.operands, strict=True):
        if not set(word) & set(taken):
            operands.append(operand)
            continue
        shape = nodes.type_of(operand).shape
        part = {
            "starts": tuple(taken.get(letter, ZERO) for letter in word),
            "lengths": tuple(ONE if letter in taken else n for letter, n in zip(word, shape, strict=True)),
            "steps": (1,) * len(word),
        }
        operands.append(nodes.add(f"{node.name}_part", node, definition, "slice", (operand,), **part))
    return Definition(definition.domain, "einsum", tuple(operands), inner.attributes, definition.at)


def slice_of_broadcast(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """A part of what is repeated along all axes that are cut is what is repeated: the whole need not be made.

    The gradient of a sum over all steps is such a value, of which each step wants its own.
    """
    access = definition.operands[0]
    inner = nodes.seen_through(access)
    if inner is None or inner.op != "broadcast":
        return None
    whole, shape = nodes.type_of(access).shape, nodes.type_of(inner.operands[0]).shape
    starts, lengths = (tuple(map(Term.of, definition.attributes[key])) for key in ("starts", "lengths"))
    extra = len(whole) - len(shape)
    for axis, (start, length, full) in enumerate(zip(starts, lengths, whole, strict=True)):
        is_cut = start is not ZERO or length is not full or definition.attributes["steps"][axis] != 1
        if is_cut and axis >= extra and shape[axis - extra] is not ONE:
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


def _separate(starts: list[Term], own: set[Symbol]) -> bool:
    """Whether starts are different for different steps: each follows one dim that nothing else here follows."""
    used: set[Symbol] = set()
    for start in starts:
        dims = [symbol for symbol in start.symbols if symbol.kind == "dim"]
        if len(dims) != 1 or not start.linear_in(dims[0]) or start.coefficient(dims[0]) == 0:
            return False
        if dims[0] in used | own:
            return False
        used.add(dims[0])
    return True
