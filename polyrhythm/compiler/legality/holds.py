"""A held load stands for the value in its slot: this iteration, or the one before it, has put it there last.

Looking back from the load, item by item in the body of the innermost loop around it, the first store that may be to the
same slot must be to that very slot, outside of guards and of further loops. If there is none, a register of the loop
must have brought it: its place is stored to once in the body, one step further on. Where that store has a guard, the
register brings what its slot holds after it. The first iteration loads a register from the buffer. All of this is in
the text, so it needs no integer sets.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.legality.failure import IllegalProgramError
from polyrhythm.compiler.loops.ir import For, Item, Load, LoopProgram, Register, Site, Steps, Store, sites, walk


def check_holds(program: LoopProgram) -> None:
    """Prove that held loads have the values of their slots; raise an IllegalProgramError otherwise."""
    _check_body(program, program.body, ())
    for loop in walk(program.body):
        if isinstance(loop, For):
            for register in loop.registers:
                _check_register(program, loop, register)
            _check_body(program, loop.body, loop.registers)


def _check_register(program: LoopProgram, loop: For, register: Register) -> None:
    stores = [(site, s) for site in sites(loop.body) for s in site.block.stores if s.place == register.place]
    moved = tuple(term.substitute({loop.counter: Term.of(loop.counter) - 1}) for term in register.now)
    alone = len(stores) == 1 and stores[0][1].index == register.now and not stores[0][0].loops
    if not alone or moved != register.before or program.places[register.place].kind == "variable":
        name = f"{register.place}[{', '.join(map(str, register.before))}]"
        what = f"the register {name} of the loop over {loop.counter} is not what the iteration before it has left"
        raise IllegalProgramError("hold", what, at=program.places[register.place].at)


def _check_body(program: LoopProgram, items: Sequence[Item], registers: Sequence[Register]) -> None:
    """The held loads of a body, without those of the loops in it."""
    given = {(register.place, register.before) for register in registers}
    inside = list(sites(items))
    for number, site in enumerate(inside):
        for load in site.block.loads if not site.loops else ():
            if load.held and not _is_held(load, inside[:number], given):
                what = f"{site.block.name} holds {load}, which may have been overwritten"
                raise IllegalProgramError("hold", what, at=program.places[load.place].at)


def _is_held(load: Load, earlier: Sequence[Site], given: set[tuple[str, tuple[Term, ...]]]) -> bool:
    index = tuple(entry for entry in load.index if isinstance(entry, Term))
    if len(index) != len(load.index):
        return False
    for site in reversed(earlier):
        for store in reversed([store for store in site.block.stores if store.place == load.place]):
            if store.index == index:
                return not site.loops and not site.guards
            if not _is_other(store, index):
                return False
    return (load.place, index) in given


def _is_other(store: Store, index: tuple[Term | Steps, ...]) -> bool:
    """Whether a store is surely to another slot."""
    distances = (a - b for a, b in zip(store.index, index, strict=True) if isinstance(b, Term))
    return any(distance.is_never_zero for distance in distances)
