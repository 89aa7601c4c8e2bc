"""Simplification: the algebraic table of `rules.py` and the rules of `structure.py`, until none applies.

Every rule replaces one definition by another of the same value, looking through plain nodes that are read at a single
point. Legal by the rules; each has a test of its name. The cost is linear in the graph for each round, and a
round is needed only where the last one changed something.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction, disjunction, eq, le
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, Range, Step
from polyrhythm.compiler.ir.sets import proves
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.types import Array
from polyrhythm.compiler.passes.copies import propagate_copies
from polyrhythm.compiler.passes.notes import Notes, bytes_of
from polyrhythm.compiler.passes.parts import slice_of_range
from polyrhythm.compiler.passes.rewriting import Nodes
from polyrhythm.compiler.passes.rules import RULES, Apply, Letter, Number, Pattern, Rule
from polyrhythm.compiler.passes.structure import STRUCTURAL, contract_transposed, sum_of_products

ROUNDS = 12
"""More than any program needs; a bound in case two rules undo each other."""

FEW = 64
"""Sums of so many products stay as they are written."""

BY_OP: dict[str, list[Rule]] = {}
for _rule in RULES:
    BY_OP.setdefault(_rule.left.op, []).append(_rule)


def simplify(graph: Graph, notes: Notes) -> Graph:
    """The graph after all rules."""
    for _ in range(ROUNDS):
        nodes = Nodes(graph)
        before = len(notes.notes)
        for name in list(graph.nodes):
            _simplify_node(nodes, name, notes)
        if len(notes.notes) == before:
            break
        graph = propagate_copies(nodes.done(), Notes())
    return graph


def contracted_first(graph: Graph, notes: Notes) -> Graph:
    """The graph with sums of products over more and more steps as contractions, to be differentiated: so is the result.

    Ranges that are turned are read back to front. The derivative of a product and a sum as they are written would be a
    product for every term of every sum.
    """
    nodes = Nodes(graph)
    leaves = {leaf for node in graph for d in node.definitions for leaf in d.attributes.get("leaves", ())}
    for node in graph:
        for number, definition in enumerate(node.definitions):
            if definition.op == "slice" and (better := slice_of_range(nodes, node, definition)) is not None:
                nodes.redefine(nodes[node.name], number, better)
            # Gradients stop at a leaf, so it has to be read.
            own = definition.op == "reduce" and definition.operands[0].source not in leaves
            if own and _grows(nodes, node, definition):
                product = nodes.seen_through(definition.operands[0])
                read = [] if product is None else [_turned(nodes, access) for access in product.operands]
                backwards = any(run.step < 0 for access in read for run in access.ranges)
                better = sum_of_products(nodes, node, definition, (lambda _: True) if backwards else any)
                if better is not None:
                    read = [a if a.source in leaves else _turned(nodes, a) for a in better.operands]
                    better = replace(better, operands=tuple(read))
                    better = contract_transposed(nodes, node, better) or better
                    nodes.redefine(nodes[node.name], number, better)
                    notes.did("recognise-matmul", definition.at or node.at, "a sum of products is a contraction")
    return nodes.done()


def _turned(nodes: Nodes, access: Access) -> Access:
    """What is read where that is a copy of a range."""
    inner = nodes.seen_through(access)
    return inner.operands[0] if inner is not None and inner.op == "copy" and inner.operands[0].ranges else access


def _grows(nodes: Nodes, node: Node, definition: Definition) -> bool:
    """Whether the number of elements that are reduced differs from step to step, and has no limit."""
    shape = nodes.type_of(definition.operands[0]).shape
    lengths = [shape[axis] for axis in definition.attributes["axes"]]
    varying = [length for length in lengths if length.symbols & set(node.symbols)]
    return any(not proves(node.points, le(n, FEW)) for n in varying)


def _simplify_node(nodes: Nodes, name: str, notes: Notes) -> None:
    node = nodes[name]
    for number in range(len(node.definitions)):
        for _ in range(ROUNDS):
            definition = node.definitions[number]
            found = _rewritten(nodes, node, definition)
            if found is None:
                break
            rule, better = found
            node = nodes.redefine(node, number, better)
            copied = _is_copy(better) and not _is_copy(definition)
            what = f"{definition.op} is a copy" if copied else f"{definition.op} is {better.op}"
            saved = bytes_of(node) if copied else Term(0)
            notes.did(rule, definition.at or node.at, what, int(copied or better.op == definition.op), saved)
    if len(node.definitions) > 1:
        _merge_pieces(nodes, node, notes)


def _is_copy(definition: Definition) -> bool:
    return definition.record.repeats or definition.op == "constant"


def _rewritten(nodes: Nodes, node: Node, definition: Definition) -> tuple[str, Definition] | None:
    if definition.record.sited:
        return None
    for rule in BY_OP.get(definition.op, ()):
        better = _applied(nodes, node, definition, rule)
        if better is not None:
            return rule.name, better
    for name, ops, structural in STRUCTURAL:
        if ops is None or definition.op in ops:
            better = structural(nodes, node, definition)
            if better is not None:
                return name, better
    return None


def _applied(nodes: Nodes, node: Node, definition: Definition, rule: Rule) -> Definition | None:
    bound: dict[str, Access] = {}
    operands = zip(rule.left.operands, definition.operands, strict=True)
    if not all(_matches(nodes, pattern, access, bound) for pattern, access in operands):
        return None
    kind = dtypes.kind(nodes.type_of(bound["A"]).dtype)
    if kind not in rule.kinds:
        return None
    if isinstance(rule.right, Letter):
        return nodes.copy(node, bound[rule.right.name], definition)
    if isinstance(rule.right, Number):
        value = Array(np.array(rule.right.value).astype(node.dtype))
        if node.shape == ():
            return Definition(definition.domain, "constant", (), {"value": value}, definition.at)
        return nodes.copy(
            node, nodes.add(f"{node.name}_value", node, definition, "constant", (), value=value), definition
        )
    letters = [part.name for part in rule.right.operands if isinstance(part, Letter)]
    operands_now = tuple(bound[name] for name in letters)
    if all(nodes.type_of(access).shape != node.shape for access in operands_now):
        return None  # what is left out gave the result its shape
    return Definition(definition.domain, rule.right.op, operands_now, {}, definition.at)


def _matches(nodes: Nodes, pattern: Pattern, access: Access, bound: dict[str, Access]) -> bool:
    if isinstance(pattern, Letter):
        return bound.setdefault(pattern.name, access) == access
    inner = nodes.seen_through(access)
    if isinstance(pattern, Apply):
        if inner is None or inner.op != pattern.op or len(inner.operands) != len(pattern.operands):
            return False
        pairs = zip(pattern.operands, inner.operands, strict=True)
        return all(_matches(nodes, part, operand, bound) for part, operand in pairs)
    while inner is not None and inner.record.repeats:
        inner = nodes.seen_through(inner.operands[0])
    if inner is None or inner.op != "constant":
        return False
    value = inner.attributes["value"].value
    return _is_number(value, pattern.value)


def _is_number(value: np.ndarray, number: bool | int | float) -> bool:
    """Whether every element is a number; zeros of floats must have its sign."""
    if value.size == 0 or isinstance(number, bool) != (value.dtype == dtypes.BOOL):
        return False
    if (value.dtype.kind == "u" and number < 0) or (value.dtype.kind in "iu" and abs(number) == math.inf):
        return False
    wanted = np.array(number).astype(value.dtype)
    same = np.all(value == wanted)
    return bool(same) and (number != 0 or not dtypes.is_float(value.dtype) or _same_sign(value, wanted))


def _same_sign(value: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(np.all(np.signbit(value.astype(np.float64)) == np.signbit(wanted.astype(np.float64))))


def _merge_pieces(nodes: Nodes, node: Node, notes: Notes) -> None:
    """Two definitions that read the same, each where it holds, are one: `y[0] = x[0]` and `y[t + 1] = x[t + 1]`."""
    kept: list[Definition] = []
    for definition in node.definitions:
        for number, other in enumerate(kept):
            for general, special in ((definition, other), (other, definition)):
                if _is_instance(nodes, node, special, general):
                    domain = disjunction(general.domain, special.domain)
                    kept[number] = Definition(domain, general.op, general.operands, general.attributes, general.at)
                    notes.did("merge-pieces", special.at or node.at, "a definition repeats another")
                    break
            else:
                continue
            break
        else:
            kept.append(definition)
    if len(kept) < len(node.definitions):
        if len(kept) == 1:
            kept = [Definition(TRUE, kept[0].op, kept[0].operands, kept[0].attributes, kept[0].at)]
        nodes.nodes[node.name] = replace(node, definitions=tuple(kept))


def _is_instance(nodes: Nodes, node: Node, special: Definition, general: Definition) -> bool:
    """Whether `general` gives the value of `special` wherever `special` holds."""
    if special.record.sited or special.op != general.op or special.attributes != general.attributes:
        return False
    if [access.source for access in special.operands] != [access.source for access in general.operands]:
        return False
    given = nodes.known(node, special)
    for a, b in zip(special.operands, general.operands, strict=True):
        if not all(_same_step(x, y, given) for x, y in zip(a.steps, b.steps, strict=True)):
            return False
    return True


def _same_step(a: Step, b: Step, given: Condition) -> bool:
    if isinstance(a, Range) and isinstance(b, Range):
        same = conjunction(eq(a.start, b.start), eq(a.length, b.length))
        return a.step == b.step and proves(given, same)
    if isinstance(a, Range) or isinstance(b, Range):
        return False
    return a is b or proves(given, eq(a, b))
