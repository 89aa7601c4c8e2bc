"""Every computation is what the graph says: operation, operands inside the block, attributes, types.

Most of it is the same terms on both sides, and needs no proof. What was simplified by the builder is proved equal
at the instances where the computation runs.
"""

from __future__ import annotations

from typing import Any

from polyrhythm.compiler.ir.conditions import Condition, conjunction
from polyrhythm.compiler.ir.graph import Access, HostFunction, operand_type
from polyrhythm.compiler.ir.ops.opaque import OpaqueFunction
from polyrhythm.compiler.ir.ops.record import map_attribute
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.legality.failure import IllegalProgramError
from polyrhythm.compiler.legality.subject import Computation, Subject, failure, shown_point
from polyrhythm.compiler.loops.ir import Local


def check_operations(subject: Subject) -> None:
    """Prove every computation equal to its definition; raise an IllegalProgramError otherwise."""
    for computations in subject.computations.values():
        earlier: dict[str, Computation] = {}
        calls: dict[int, Computation] = {}
        for computation in computations:
            if not subject.prover.impossible(computation.domain):
                _check(subject, computation, earlier)
            if computation.compute.result in earlier:
                raise _refused(subject, computation, f"{computation.compute.result} is computed twice in one block")
            earlier[computation.compute.result] = computation
            if computation.compute.op == "host":
                first = calls.setdefault(computation.compute.attributes["call"], computation)
                if first.compute.operands != computation.compute.operands or first.step != computation.step:
                    raise _refused(subject, computation, "one call of a host function serves two points")


def _check(subject: Subject, computation: Computation, earlier: dict[str, Computation]) -> None:
    compute, definition = computation.compute, computation.definition
    if compute.op != definition.op or len(compute.operands) != len(definition.operands):
        raise _refused(subject, computation, f"it is made by {compute.op} where the program says {definition.op}")
    _check_attributes(subject, computation)
    final = subject.scenario.final
    own = TensorType(tuple(n.substitute(final) for n in computation.node.shape), computation.node.dtype)
    _check_type(subject, computation, compute.type, own, "its type")
    for access, operand, _ in computation.reads():
        if isinstance(operand, Local):
            source = earlier.get(operand.name)
            if source is None:
                raise _refused(subject, computation, f"{operand.name} is not computed before it in the same block")
            if not _is_read(subject, computation, access, source):
                raise _refused(subject, computation, f"it reads {operand.name} where the program says {access}")
        else:
            node = subject.graph[access.source]
            read = operand_type(access, node)
            read = TensorType(tuple(n.substitute(final) for n in read.shape), read.dtype)
            _check_type(subject, computation, operand.type, read, f"the type of {operand}")


def _is_read(subject: Subject, computation: Computation, access: Access, source: Computation) -> bool:
    if access.source != source.node.name or access.ranges:
        return False
    steps = zip(access.steps, source.step, strict=True)
    return all(isinstance(a, Term) and subject.prover.same(a, b, computation.domain) for a, b in steps)


def _check_attributes(subject: Subject, computation: Computation) -> None:
    wanted = dict(computation.definition.attributes)
    if computation.compute.op == "host":
        final = subject.scenario.final
        results = wanted["function"].results
        wanted["shapes"] = tuple(tuple(n.substitute(final) for n in result.shape) for result in results)
    have = computation.compute.attributes
    if have.keys() != wanted.keys():
        raise _refused(subject, computation, f"its attributes are {', '.join(have)} instead of {', '.join(wanted)}")
    values, steps = computation.occurrence.values, computation.steps
    for key, value in wanted.items():
        here = map_attribute(have[key], lambda term: term.substitute(values))
        there = map_attribute(value, lambda term: term.substitute(steps))
        if not _same(subject, here, there, computation.domain):
            raise _refused(subject, computation, f"its attribute {key} is {here} where the program says {there}")


def _same(subject: Subject, a: Any, b: Any, given: Condition) -> bool:
    """Whether two attributes are equal wherever `given` holds."""
    if a is b:
        return True
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same(subject, x, y, given) for x, y in zip(a, b, strict=True))
    if isinstance(a, Term) and isinstance(b, Term):
        return subject.prover.same(a, b, given)
    if isinstance(a, Condition) and isinstance(b, Condition):
        prover = subject.prover
        return prover.implied(conjunction(given, a), b) and prover.implied(conjunction(given, b), a)
    if isinstance(a, (HostFunction, OpaqueFunction)) or isinstance(b, (HostFunction, OpaqueFunction)):
        return False
    return type(a) is type(b) and (bool(a == b) or repr(a) == repr(b))


def _check_type(subject: Subject, computation: Computation, have: TensorType, want: TensorType, what: str) -> None:
    values, steps = computation.occurrence.values, computation.steps
    same = have.dtype == want.dtype and have.rank == want.rank
    pairs = zip(have.shape, want.shape, strict=False)
    for a, b in pairs if same else ():
        same = same and subject.prover.same(a.substitute(values), b.substitute(steps), computation.domain)
    if not same:
        raise _refused(subject, computation, f"{what} is {have} where the program says {want}")


def _refused(subject: Subject, computation: Computation, what: str) -> IllegalProgramError:
    domain = computation.domain
    at = subject.prover.example(domain) if not subject.prover.impossible(domain) else {}
    point = shown_point(computation.node, computation.step, at)
    return failure("operation", f"{point} is not computed right: {what}", computation.occurrence, at, computation.at)
