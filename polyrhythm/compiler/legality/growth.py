"""A loop whose buffers grow stays inside of them: at every capacity, for the iterations that run at it.

At a capacity C below the bound T, places have the slots of T = C, and the iterations before all limits at C run
(`Growth.limits`). Proved with C as an unknown: every slot that the body of the loop, or a companion, stores to or reads
exists at C, if the loop runs at all: under the condition of its unit, which must have the same value at C as at T, and
the facts, which must hold at C (`Growth.unchanged`, `Growth.facts`). Nothing else in these bodies may depend on T, so
that an iteration is the same at every capacity. What runs before the loop, and is no companion, is the program itself
at T = C, if its limits and guards are among what must have the same value at C as at T.
"""

from __future__ import annotations

from collections.abc import Iterator

from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction, ge, lt, negation
from polyrhythm.compiler.ir.ops import record
from polyrhythm.compiler.ir.ops.record import attribute_terms
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.legality.failure import IllegalProgramError
from polyrhythm.compiler.legality.prover import Prover
from polyrhythm.compiler.loops.growth import Growth
from polyrhythm.compiler.loops.ir import Block, For, If, Item, Load, LoopProgram, Site, Steps, line_of, sites, walk
from polyrhythm.compiler.loops.units import Unit, units

CAPACITY = Symbol("capacity", "bound", serial=-50)


def check_growth(program: LoopProgram) -> None:
    """Prove that a growing loop stays inside of its buffers; raise an IllegalProgramError otherwise."""
    growth = program.growth
    if growth is None:
        return
    prover = Prover(conjunction(*(requirement.condition for requirement in program.requirements)))
    every = units(program.body)
    for number, unit in enumerate(every[: growth.unit + 1]):
        if growth.bound in unit.condition.symbols and unit.condition not in growth.unchanged:
            raise _wrong(program, growth, f"whether {unit.name} runs is another at another length")
        if number == growth.unit or number in growth.companions:
            loop = unit.loop
            if loop is None or loop is not (growth.companions.get(number) or growth.loop):
                raise _wrong(program, growth, "it is not the loop of its unit")
            limits = growth.limits(Term.of(CAPACITY)) if number == growth.unit else (loop.end,)
            _check_loop(program, growth, prover, unit, loop, limits)
        else:
            _check_same(program, growth, unit.item)


def _check_loop(
    program: LoopProgram, growth: Growth, prover: Prover, unit: Unit, loop: For, limits: tuple[Term, ...]
) -> None:
    small = {growth.bound: Term.of(CAPACITY)}
    counter, bound = Term.of(loop.counter), Term.of(growth.bound)
    before = [lt(counter, limit.substitute(small)) for limit in limits]
    # A capacity is used only if the facts hold at it and the loop runs at it as it does at the bound.
    held = (unit.condition, unit.condition.substitute(small), *(fact.substitute(small) for fact in growth.facts))
    known = conjunction(ge(Term.of(CAPACITY), growth.least), lt(Term.of(CAPACITY), bound), *held, *before)
    for site in sites((loop,)):
        if growth.bound in _mentioned(site):
            raise _wrong(program, growth, f"{site.block.name} is another at another length")
        for name, slot, count, where in _slots(program, site):
            inside = conjunction(ge(slot, 0), lt(slot, count.substitute(small)))
            here = conjunction(known, site.known, where, _read_at_all(site, name, slot))
            if (at := prover.violation(here, inside)) is not None:
                what = f"{site.block.name} uses slot {slot} of {name}, which is not there yet"
                raise _wrong(program, growth, f"{what} (at {', '.join(f'{s} = {n}' for s, n in at.items())})")


def _slots(program: LoopProgram, site: Site) -> Iterator[tuple[str, Term, Term, Condition]]:
    """Every slot that a block uses along every axis, the first and the last of several, and where it does."""
    uses: list[tuple[str, tuple[Term | Steps, ...], Condition]]
    uses = [(store.place, store.index, TRUE) for store in site.block.stores]
    for compute in site.block.body:
        chosen = compute.attributes["condition"] if compute.op == "choose" else TRUE
        for number, operand in enumerate(compute.operands):
            if isinstance(operand, Load):
                uses.append(
                    (operand.place, operand.index, chosen if number == 0 or chosen is TRUE else negation(chosen))
                )
    for name, index, where in uses:
        for entry, count in zip(index, program.places[name].slots, strict=True):
            if isinstance(entry, Term):
                yield name, entry, count, where
            elif entry.ring is None:
                yield name, entry.start, count, where
                yield name, entry.start + (entry.length - 1) * entry.step, count, where


def _read_at_all(site: Site, name: str, slot: Term) -> Condition:
    """What is known where a slot is used: of several slots, that there are some."""
    entries = (e for load in site.block.loads if load.place == name for e in load.index if isinstance(e, Steps))
    ends = (e for e in entries if slot is e.start or slot is e.start + (e.length - 1) * e.step)
    return conjunction(*(ge(e.length, 1) for e in ends))


def _check_same(program: LoopProgram, growth: Growth, item: Item) -> None:
    """What comes before the loop runs at a capacity as it does at the bound."""
    for inner in walk((item,)):
        if isinstance(inner, Block):
            wrong = growth.bound in _mentioned(Site(inner))
        else:
            parts = (inner.condition,) if isinstance(inner, If) else (inner.first, inner.end)
            wrong = any(growth.bound in part.symbols and part not in growth.unchanged for part in parts)
        if wrong:
            raise _wrong(program, growth, "what comes before it is another at another length")


def _mentioned(site: Site) -> set[Symbol]:
    """The symbols in the code of a block."""
    block = site.block
    terms: list[Term | Condition] = [term for store in block.stores for term in store.index]
    for compute in block.body:
        # At which step a value is made decides about it only if it is no function of its operands.
        terms += [*(compute.step if record(compute.op).sited else ()), *compute.type.shape]
        terms += [term for value in compute.attributes.values() for term in attribute_terms(value)]
    for load in block.loads:
        terms += [*load.type.shape, *_terms(load)]
    return set().union(*(term.symbols for term in terms))


def _terms(load: Load) -> Iterator[Term]:
    for entry in load.index:
        yield from (entry.start, entry.length) if isinstance(entry, Steps) else (entry,)


def _wrong(program: LoopProgram, growth: Growth, what: str) -> IllegalProgramError:
    told = f"the buffers of the loop over {growth.loop.counter} cannot grow with {growth.bound}: {what}"
    return IllegalProgramError("growth", told, at=line_of((growth.loop,)))
