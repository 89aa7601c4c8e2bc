"""Random blocks and dependences: uniform distances, ranges, reads at fixed steps, over one to three dims."""

from __future__ import annotations

from random import Random

from polyrhythm.compiler.ir.conditions import Condition, conjunction, ge, lt, within
from polyrhythm.compiler.ir.sets import facts
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.schedule.blocks import Block
from polyrhythm.compiler.schedule.dependences import Dependence

BOUNDS = {name: Symbol(name.upper(), "bound") for name in "itu"}
DIMS = {name: Symbol(name, "dim", bound=BOUNDS[name]) for name in "itu"}


def box(dims: tuple[Symbol, ...]) -> Condition:
    """All steps of some dims."""
    return conjunction(*(within(s, Term.of(BOUNDS[s.name])) for s in dims))


def make_block(name: str, dims: tuple[Symbol, ...]) -> Block:
    """A block over whole dims that computes nothing."""
    return Block(name, dims, box(dims), ())


def make_dependence(
    source: Block, reader: Block, steps: dict[Symbol, Term], known: Condition | None = None
) -> Dependence:
    """`reader` needs `source` at some steps, wherever those exist."""
    condition = conjunction(reader.domain, source.domain.substitute(steps))
    if known is not None:
        condition = conjunction(condition, known)
    condition = conjunction(condition, facts(condition.symbols))
    return Dependence(source.name, reader.name, condition, steps, source.name)


def uniform(source: Block, reader: Block, **distances: int) -> Dependence:
    """A read of `source` at a distance along each dim: `t=-1` reads the step before."""
    return make_dependence(source, reader, {s: Term.of(s) + distances.get(s.name, 0) for s in source.dims})


def program(random: Random) -> tuple[dict[str, Block], list[Dependence]]:
    """Some blocks that read each other."""
    dims = tuple(DIMS[name] for name in "itu"[: random.choice([1, 1, 2, 2, 2, 3])])
    blocks = {}
    for number in range(random.randint(1, 4)):
        own = dims if random.random() < 0.7 else tuple(s for s in dims if random.random() < 0.6)
        blocks[f"b{number}"] = make_block(f"b{number}", own)
    names = list(blocks)
    dependences = []
    for _ in range(random.randint(1, 5)):
        source, reader = blocks[random.choice(names)], blocks[random.choice(names)]
        dependences.append(_read(random, source, reader))
    return blocks, dependences


def _read(random: Random, source: Block, reader: Block) -> Dependence:
    steps: dict[Symbol, Term] = {}
    known: list[Condition] = []
    # Mostly reads of the past, so that many programs have an order.
    distances = (-2, -1, -1, 0, 0, 0, 1, 2) if random.random() < 0.5 else (-2, -1, -1, -1, 0, 0)
    for number, symbol in enumerate(source.dims):
        step, bound = Term.of(symbol), Term.of(BOUNDS[symbol.name])
        position = Term.of(Symbol(f"k{number}", "dim", serial=-1))
        if symbol not in reader.dims:
            choice = random.choice(["first", "last", "all"])
        else:
            choice = "point" if random.random() < 0.8 else random.choice(["past", "future", "few", "all"])
        if choice == "point":
            steps[symbol] = step + random.choice(distances)
            continue
        if choice in ("first", "last"):
            steps[symbol] = Term(0) if choice == "first" else bound - 1
            continue
        start, stop = {
            "past": (Term(0), step),
            "future": (step + 1, bound),
            "few": (step - 2, step),
            "all": (Term(0), bound),
        }[choice]
        known += [ge(position, 0), lt(position, stop - start)]
        steps[symbol] = start + position
    return make_dependence(source, reader, steps, conjunction(*known))
