"""What a schedule does, found by going through all points at small bounds.

Nothing here shares code with the scheduler, the storage plan or their checkers: times are read off the tree of
loops, dependences are evaluated point by point, lifetimes are followed one value at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.schedule.blocks import Block
from polyrhythm.compiler.schedule.dependences import Dependence
from polyrhythm.compiler.schedule.scheduler import Item, Loop

Point = tuple[int, ...]
Instance = tuple[str, Point]
When = tuple[int, ...]
Bounds = Mapping[str, int]


def points_of(block: Block, bounds: Bounds) -> Iterator[Point]:
    """Every point of a block."""
    for values in product(*(reach(symbol, bounds) for symbol in block.dims)):
        if block.domain.evaluate(lookup(bounds, dict(zip(block.dims, values, strict=True)))):
            yield values


def reach(symbol: Symbol, bounds: Bounds) -> range:
    """The steps that a dim may have: at most one more than the largest bound, unless it counts diagonals of two."""
    largest = max(bounds.values(), default=0)
    return range(3 * largest + 3 if symbol.serial == serials.DIAGONAL else largest + 2)


def lookup(bounds: Bounds, values: Mapping[Symbol, int]) -> Callable[[Symbol], int]:
    """Values of symbols: bounds by name, the rest from `values`."""
    return lambda symbol: values[symbol] if symbol in values else bounds[symbol.name]


def pairs(dependence: Dependence, blocks: Mapping[str, Block], bounds: Bounds) -> set[tuple[Instance, Instance]]:
    """Every (source, reader) of a dependence."""
    reader, source = blocks[dependence.reader], blocks[dependence.source]
    positions = sorted({s for s in dependence.condition.symbols if s.kind == "dim"} - set(reader.dims), key=str)
    found = set()
    for point in points_of(reader, bounds):
        for more in product(*(reach(symbol, bounds) for symbol in positions)):
            at = lookup(bounds, dict(zip([*reader.dims, *positions], [*point, *more], strict=True)))
            if dependence.condition.evaluate(at):
                steps = tuple(dependence.steps[s].evaluate(at) for s in source.dims)
                found.add(((source.name, steps), (reader.name, point)))
    return found


def all_pairs(
    dependences: Sequence[Dependence], blocks: Mapping[str, Block], bounds: Bounds
) -> set[tuple[Instance, Instance]]:
    """Every (source, reader) of all dependences."""
    return set().union(*(pairs(d, blocks, bounds) for d in dependences))


def when(items: Sequence[Item], blocks: Mapping[str, Block], bounds: Bounds) -> dict[Instance, When]:
    """When each instance runs: positions and loop counters from the outside in. Tuples compare as time does."""
    found: dict[Instance, When] = {}
    for block in blocks.values():
        path = _path(items, block.name)
        assert path is not None, f"{block.name} is not in the schedule"
        for point in points_of(block, bounds):
            at = lookup(bounds, dict(zip(block.dims, point, strict=True)))
            time: list[int] = []
            for position, loop in path:
                time.append(position)
                if loop is not None:
                    time.append(loop.members[block.name].time.evaluate(at))
            found[block.name, point] = tuple(time)
    return found


def _path(items: Sequence[Item], name: str) -> list[tuple[int, Loop | None]] | None:
    for position, item in enumerate(items):
        if item == name:
            return [(position, None)]
        if isinstance(item, Loop) and name in item.members:
            inner = _path(item.body, name)
            assert inner is not None, f"{name} is a member of a loop but not in its body"
            return [(position, item), *inner]
    return None


def violations(
    items: Sequence[Item], blocks: Mapping[str, Block], dependences: Sequence[Dependence], bounds: Bounds
) -> list[tuple[Instance, Instance]]:
    """Dependences that a schedule does not respect, and instances that it runs at the same time."""
    times = when(items, blocks, bounds)
    wrong = [(s, r) for s, r in all_pairs(dependences, blocks, bounds) if not times[s] < times[r]]
    taken: dict[When, Instance] = {}
    for instance, time in times.items():
        if time in taken:
            wrong.append((taken[time], instance))
        taken[time] = instance
    return wrong


def has_cycle(dependences: Sequence[Dependence], blocks: Mapping[str, Block], bounds: Bounds) -> bool:
    """Whether some value needs itself (Kahn's algorithm gets stuck)."""
    needs: dict[Instance, set[Instance]] = {}
    for source, reader in all_pairs(dependences, blocks, bounds):
        needs.setdefault(reader, set()).add(source)
        needs.setdefault(source, set())
    while needs:
        ready = [instance for instance, sources in needs.items() if not sources]
        if not ready:
            return True
        for instance in ready:
            del needs[instance]
        for sources in needs.values():
            sources.difference_update(ready)
    return False
