"""The scheduler: an order of all blocks as a tree of loops.

At every level of the tree the blocks are grouped, from the last consumer back to the first producer. A group is a
single block, or a loop over one dim that all its members have. A producer joins the group of its first consumer
when the distance between them along the dim is bounded, and gets a loop of its own, before it, when it is not.
Inside a loop every member has a rank, `rate * t + offset`: it handles step t in that iteration, so that reads of the
future become delays. Shifts are the smallest that the dependences allow (longest paths), then moved
so that values wait as little as possible. What is not settled by the loop goes to the next level.

Components that depend on themselves need a dim along which all their dependences go one way. Loops count upwards
always; a backward recurrence has a negative rate.

The method is the component-wise retiming of Darte, Robert and Vivien, with fusion in the manner of Kennedy and
McKinley. What it returns is checked by `legality.py`, which knows nothing of how it was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from polyrhythm.errors import PolyrhythmError
from polyrhythm.ir.conditions import TRUE, Condition, conjunction, eq
from polyrhythm.ir.sets import facts, least, simplified, solutions
from polyrhythm.ir.terms import ZERO, Symbol, Term
from polyrhythm.lang.depth import FEW_STEPS, Need, depths, most_steps, rankings
from polyrhythm.lang.progress import components
from polyrhythm.schedule.blocks import Block
from polyrhythm.schedule.dependences import Dependence
from polyrhythm.schedule.shifts import Ranks, Shifts, matched


@dataclass(frozen=True)
class Member:
    """How a block takes part in a loop: iteration `time` handles its step of `dim`.

    `time` is `rate * dim + offset`; the offset may contain bounds. A block without the dim runs in one iteration.
    """

    dim: Symbol | None
    time: Term

    @property
    def rate(self) -> int:
        return 0 if self.dim is None else self.time.coefficient(self.dim)

    @property
    def offset(self) -> Term:
        return self.time if self.dim is None else self.time - Term.of(self.dim) * self.rate


@dataclass(frozen=True)
class Loop:
    """A loop of the schedule: its counter, how each block takes part, and what one iteration does, in order.

    A loop is parallel when no dependence leads from one iteration to another.
    """

    counter: Symbol
    members: Mapping[str, Member]
    body: tuple[Item, ...]
    parallel: bool = False


Item = Loop | str
"""A loop, or the name of a block."""


class ScheduleError(PolyrhythmError):
    """No order was found for the program. Every program that passes the checks should have one: please report it."""


def schedule(
    blocks: Mapping[str, Block],
    dependences: Sequence[Dependence],
    first: Symbol | None = None,
    at_once: frozenset[Symbol] = frozenset(),
) -> tuple[Item, ...]:
    """A tree of loops that respects every dependence; where there is a choice the dim `first` is outermost.

    Loops over the dims in `at_once` are not joined if their iterations then wait for each other.
    """
    remaining = {name: tuple(sorted(b.dims, key=lambda s: s is not first)) for name, b in blocks.items()}
    return _Scheduler(blocks, first, at_once).nest(list(blocks), dependences, remaining)


@dataclass(frozen=True)
class _Way:
    """A dim along which a group may be a loop, and the rankings the loop may follow."""

    dims: dict[str, Symbol | None]
    candidates: list[Ranks]

    @property
    def symbol(self) -> Symbol:
        return next(dim for dim in self.dims.values() if dim is not None)


@dataclass(eq=False)
class _Group:
    """Blocks that share a loop, with the ways it can be one, best first; or one block alone, without any."""

    members: list[str]
    ways: list[_Way] = field(default_factory=list)

    @property
    def is_loop(self) -> bool:
        return bool(self.ways)


class _Scheduler:
    def __init__(self, blocks: Mapping[str, Block], first: Symbol | None, at_once: frozenset[Symbol]) -> None:
        self.blocks, self.at_once = blocks, at_once
        self.position = {name: number for number, name in enumerate(blocks)}
        self.first = first
        self.loops = 0
        self.shifts = Shifts(blocks)

    def nest(
        self,
        names: Sequence[str],
        dependences: Sequence[Dependence],
        remaining: Mapping[str, tuple[Symbol, ...]],
        settled: Sequence[Dependence] = (),
    ) -> tuple[Item, ...]:
        """Order some blocks, given the dependences among them that outer loops leave open, and those they settle."""
        kept = {s for d in settled for s in remaining[d.source] if s in remaining[d.reader]}
        groups = self._groups(names, dependences, remaining, kept)
        groups = self._merged(groups, dependences, kept)
        groups = self._gathered(groups, dependences, kept)
        groups = _old_before_new(groups, dependences, settled)
        return tuple(self._loop(g, dependences, remaining) if g.is_loop else g.members[0] for g in groups)

    def _groups(
        self,
        names: Sequence[str],
        dependences: Sequence[Dependence],
        remaining: Mapping[str, tuple[Symbol, ...]],
        kept: set[Symbol],
    ) -> list[_Group]:
        """Groups in order of execution; built from the last consumers backwards."""
        consumers: dict[str, list[str]] = {name: [] for name in names}
        for dependence in dependences:
            consumers[dependence.source].append(dependence.reader)
        groups: list[_Group] = []
        place: dict[str, _Group] = {}
        # Tarjan yields a component after all it points to: consumers first.
        for component in components(consumers):
            inside = set(component)
            own = _inside(dependences, inside)
            fresh = self._component(component, own, remaining)
            readers = {groups.index(place[c]) for name in component for c in consumers[name] if c not in inside}
            at = min(readers, default=len(groups))
            targets = sorted(readers) if readers else self._siblings(component, dependences, groups)
            before = _before(groups, dependences) if len(readers) > 1 else {}  # one reader has nothing in between
            for target in targets:
                if any(_reaches(before, target, other) for other in readers - {target}):
                    continue  # what it needs of another reader comes between
                if self._join(groups[target], fresh, dependences, kept):
                    group = groups[target]
                    at = min(at, target)  # a sibling stays where it is
                    # It now comes before every reader, and so does all it needs.
                    early = [*(n for n in range(at, target) if _reaches(before, target, n)), target]
                    late = [n for n in range(at, len(groups)) if n not in early]
                    groups[at:] = [groups[n] for n in [*early, *late]]
                    break
            else:
                group = fresh
                groups.insert(at, group)
            place.update(dict.fromkeys(component, group))
        return groups

    def _merged(self, groups: list[_Group], dependences: Sequence[Dependence], kept: set[Symbol]) -> list[_Group]:
        """Loops of which one reads from the other, with nothing in between, become one where that is still possible."""
        at = 0
        while at < len(groups):
            before = _before(groups, dependences)
            readers = [late for late in range(at + 1, len(groups)) if at in before[late]]
            for late in readers:
                between = any(n != at and _reaches(before, n, at) for n in before[late])
                if not between and self._join(groups[late], groups[at], dependences, kept):
                    # All that the merged loop needs comes first; what lies between and needs nothing of it, too.
                    groups[at : late + 1] = [groups[n] for n in _around(before, at, late)]
                    at = -1
                    break
            at += 1
        return groups

    def _gathered(self, groups: list[_Group], dependences: Sequence[Dependence], kept: set[Symbol]) -> list[_Group]:
        """Loops of the same single step that do not wait for each other become one.

        So do the beginnings of the parameters of a network, `p[0, i + 1] = p[U, i]`.
        """
        steps = {group: self._single_step(group) for group in groups}
        late = 1
        while late < len(groups):
            own = steps[groups[late]]
            alike = [n for n in range(late) if own is not None and steps[groups[n]] is own]
            before = _before(groups, dependences) if alike else {}
            for at in alike:
                if not _reaches(before, late, at) and self._join(groups[late], groups[at], dependences, kept):
                    groups[at : late + 1] = [groups[n] for n in _around(before, at, late)]
                    break
            else:
                late += 1
        return groups

    def _single_step(self, group: _Group) -> Condition | None:
        """The one step that a loop has, if it is the same for all its members."""
        if not group.is_loop or self._most_steps(group, group.ways[0].symbol) != 1:
            return None
        steps = {self._steps(name, group.ways[0].symbol) for name in group.members}
        return steps.pop() if len(steps) == 1 else None

    def _siblings(
        self, component: Sequence[str], dependences: Sequence[Dependence], groups: Sequence[_Group]
    ) -> list[int]:
        """For what nobody reads here: a loop that reads the same values."""
        sources = {d.source for d in dependences if d.reader in component}
        readers = {d.reader for d in dependences if d.source in sources}
        return [n for n, group in enumerate(groups) if group.is_loop and readers.intersection(group.members)][:1]

    def _component(
        self, component: Sequence[str], own: Sequence[Dependence], remaining: Mapping[str, tuple[Symbol, ...]]
    ) -> _Group:
        """What one component can be: a loop over any dim that carries all its dependences one way.

        Of several dims those are kept that leave the fewest loops whose iterations wait for each other.
        """
        members = sorted(component, key=self.position.__getitem__)
        ways = []
        needs = [Need(d.reader, d.source, d.condition, d.steps) for d in own]
        for symbol in dict.fromkeys(symbol for name in members for symbol in remaining[name]):
            dims = {name: symbol if symbol in remaining[name] else None for name in members}
            ranks = rankings(members, needs, remaining, symbol, lambda name: self.blocks[name].piece_of is not None)
            candidates = [signed for signed in ranks if self.shifts.earliest(members, own, signed) is not None]
            if candidates:
                ways.append(_Way(dims, candidates))
        if not ways and own:
            raise ScheduleError(
                f"no loop carries all the dependences among {', '.join(members)}",
                fix="make the recurrence go one way along some dim; please report a program that should work",
            )
        if len(ways) > 1 and own and self.first is None:
            found = depths(members, needs, {name: remaining[name] for name in members})
            fewest = min(found.values(), default=0)
            ways = [way for way in ways if found.get(way.symbol, fewest) == fewest]
            ways.sort(key=lambda way: way.symbol in self.at_once)  # another dim may carry what this one need not
        return _Group(members, ways)

    def _join(self, target: _Group, fresh: _Group, dependences: Sequence[Dependence], kept: set[Symbol]) -> bool:
        """Add a producer to the loop of its consumers, if the distance along the loop is bounded."""
        members = fresh.members + target.members
        early_members, late_members = set(fresh.members), set(target.members)
        both = early_members | late_members
        among = _inside(dependences, both)
        crossing = [d for d in among if d.source in early_members and d.reader in late_members]
        incoming = [d for d in dependences if d.reader in early_members and d.source not in both]
        # Both can be loops. If nothing leads back, the producer is shifted as far ahead as its readers need.
        one_way = not any(d.source in late_members and d.reader in early_members for d in among)
        ways = []
        for early in fresh.ways:
            for late in target.ways:
                dims = {**early.dims, **late.dims}
                candidates: list[Ranks] = []
                for consumer in late.candidates:
                    for producer in early.candidates:
                        ranks = matched(producer, consumer, crossing, dims)
                        if ranks is None or ranks in candidates:
                            continue
                        fits = (
                            self.shifts.bounded(crossing, ranks)
                            if one_way
                            else self.shifts.earliest(members, among, ranks)
                        )
                        if fits:
                            candidates.append(ranks)
                if candidates and self._in_strips(dims, candidates[0]):
                    continue
                if candidates and self._is_worth(fresh, target, early.symbol, candidates[0], among, kept, incoming):
                    ways.append(_Way(dims, candidates))
        if not ways:
            return False
        target.members, target.ways = members, ways
        return True

    def _in_strips(self, dims: Mapping[str, Symbol | None], ranks: Ranks) -> bool:
        """Whether some blocks do in one iteration, along another dim, as many steps as others do in as many iterations.

        A common loop would have one iteration for each step, and in most of them only a few of its blocks.
        """
        rates = {n: abs(rank.coefficient(dim)) for n, rank in ranks.items() if (dim := dims[n])}
        if len(set(rates.values())) <= 1:
            return False
        rates = {name: rate for name, rate in rates.items() if self._goes_on(name, dims[name])}
        fastest = min(rates.values(), default=1)
        return any(
            rate > fastest and most_steps(self.blocks[name].domain, other) == rate // fastest
            for name, rate in rates.items()
            for other in self.blocks[name].dims
            if other is not dims[name]
        )

    def _goes_on(self, name: str, dim: Symbol | None) -> bool:
        """Whether a block has more than a step of a dim."""
        return dim is not None and most_steps(self.blocks[name].domain, dim) not in (0, 1)

    def _is_worth(
        self,
        fresh: _Group,
        target: _Group,
        symbol: Symbol,
        ranks: Ranks,
        among: Sequence[Dependence],
        kept: set[Symbol],
        incoming: Sequence[Dependence],
    ) -> bool:
        """Whether a common loop is better than two: not where it makes iterations wait and saves no storage.

        Steps of the producer that are independent would have to come one after the other. That is not worth it where a
        user wants them at once. It is if they are few, or if its values then need not be kept for all steps. They are
        kept anyway if they are read without a limit later, or if another definition of the same tensor is in the loop
        already and this one has no more steps than are kept there; or if both loops are parallel and an outer loop
        keeps values for all steps in any case. In that case two parallel loops stay apart too unless they have the same
        steps: one would be cut into pieces. Contractions that are much faster for all steps at once stay out of the
        loop of a recurrence that reads them, or that they read (`hoisting.py`). What reads ranges without a limit of
        values made before stays out too: those are kept whole, and its own take no more.
        """
        if self.first is not None:
            return True
        if not self.shifts.is_parallel(fresh.members, ranks, among):
            apart = any(symbol in self.blocks[name].apart for name in target.members)
            return not (apart and self.shifts.is_parallel(target.members, ranks, among))
        steps = self._most_steps(fresh, symbol)
        crossing = [d for d in among if d.source in fresh.members and d.reader in target.members]
        if self.shifts.is_parallel(list(ranks), ranks, among):
            pairs = [(d.source, d.reader) for d in crossing] or [(fresh.members[0], target.members[0])]
            return symbol not in kept or all(self._steps(a, symbol) is self._steps(b, symbol) for a, b in pairs)
        if symbol in self.at_once:
            return False
        if steps in (0, 1):
            return True
        if any(symbol in self.blocks[name].apart for name in fresh.members):
            return False
        if steps is not None and self._tensors(fresh) & self._tensors(target):
            return False
        if steps is not None and steps <= FEW_STEPS:
            return True
        if symbol in kept and self.shifts.is_parallel(target.members, ranks, among):
            return False
        if any(_reads_without_limit(d, symbol) for d in incoming):
            return False
        distances = ((d, ranks[d.reader] - ranks[d.source].substitute(d.steps)) for d in crossing)
        return all(least(-distance, d.condition) is not None for d, distance in distances)

    def _steps(self, name: str, symbol: Symbol) -> Condition:
        """The steps of a dim that a block has."""
        block = self.blocks[name]
        whole = conjunction(block.domain, facts(block.domain.symbols))
        steps = solutions(whole).without(s for s in block.dims if s is not symbol)
        return simplified(steps.condition(), TRUE)

    def _most_steps(self, group: _Group, symbol: Symbol) -> int | None:
        """The most steps that a member has along a dim; None where there is no limit."""
        most = 0
        for name in group.members:
            block = self.blocks[name]
            if symbol in block.dims:
                steps = most_steps(block.domain, symbol)
                if steps is None:
                    return None
                most = max(most, steps)
        return most

    def _tensors(self, group: _Group) -> set[str]:
        """The tensors that a group makes."""
        blocks = (self.blocks[name] for name in group.members)
        return {s.node for block in blocks for s in block.statements if s.steps == block.current}

    def _loop(
        self, group: _Group, dependences: Sequence[Dependence], remaining: Mapping[str, tuple[Symbol, ...]]
    ) -> Loop:
        """The loop of a group, by the first of its rankings that leaves something that can be ordered inside."""
        among = _inside(dependences, set(group.members))
        rankings = [(way, ranks) for way in group.ways for ranks in way.candidates]
        for way, ranks in rankings[:-1]:
            try:
                return self._ranked(group, way, ranks, among, remaining)
            except ScheduleError:
                continue
        return self._ranked(group, *rankings[-1], among, remaining)

    def _ranked(
        self,
        group: _Group,
        way: _Way,
        ranks: Ranks,
        among: Sequence[Dependence],
        remaining: Mapping[str, tuple[Symbol, ...]],
    ) -> Loop:
        shifts = self.shifts.of(group.members, among, ranks)
        assert shifts is not None
        members = {name: Member(way.dims[name], ranks[name] + shifts[name]) for name in group.members}
        self.loops += 1
        counter = Symbol(way.symbol.name, "dim", serial=-10 - self.loops)
        inner = list(still_open(among, members))
        left = {name: tuple(s for s in remaining[name] if s is not members[name].dim) for name in group.members}
        unchanged = {(d.source, d.reader) for d in inner}
        settled = [d for d in among if (d.source, d.reader) not in unchanged]
        parallel = all((members[d.reader].time - members[d.source].time.substitute(d.steps)) is ZERO for d in among)
        return Loop(counter, members, self.nest(group.members, inner, left, settled), parallel)


def still_open(among: Iterable[Dependence], members: Mapping[str, Member]) -> Iterator[Dependence]:
    """The part of each dependence whose two ends fall into one iteration."""
    for d in among:
        distance = members[d.reader].time - members[d.source].time.substitute(d.steps)
        if distance.is_constant and distance.constant:
            continue
        condition = conjunction(d.condition, eq(distance, 0))
        if not solutions(condition).is_empty:
            yield replace(d, condition=condition)


def _reads_without_limit(dependence: Dependence, symbol: Symbol) -> bool:
    """Whether a block reads a range along a dim that goes back, or ahead, as far as there are steps."""
    step = dependence.steps.get(symbol)
    if step is None or all(s.kind != "dim" or s is symbol for s in step.symbols):
        return False
    behind = Term.of(symbol) - step
    return any(least(way, dependence.condition) is None for way in (behind, -behind))


def _old_before_new(
    groups: Sequence[_Group], dependences: Sequence[Dependence], settled: Sequence[Dependence]
) -> list[_Group]:
    """Reorder so that a value of an earlier iteration is read before its successor is written, where that is possible.

    A value then needs one place instead of two.
    """
    place = {name: number for number, group in enumerate(groups) for name in group.members}
    before = _before(groups, dependences)
    for d in settled:
        reader, writer = place[d.reader], place[d.source]
        if reader != writer and not _reaches(before, reader, writer):
            before[writer].add(reader)
    ordered: list[int] = []
    while len(ordered) < len(groups):
        ready = next(n for n in before if n not in ordered and before[n] <= set(ordered))
        ordered.append(ready)
    return [groups[number] for number in ordered]


def _before(groups: Sequence[_Group], dependences: Sequence[Dependence]) -> dict[int, set[int]]:
    """For each group those it reads from."""
    place = {name: number for number, group in enumerate(groups) for name in group.members}
    found: dict[int, set[int]] = {number: set() for number in range(len(groups))}
    for d in dependences:
        if d.source in place and d.reader in place and place[d.source] != place[d.reader]:
            found[place[d.reader]].add(place[d.source])
    return found


def _inside(dependences: Sequence[Dependence], names: set[str]) -> list[Dependence]:
    """The dependences among some blocks."""
    return [d for d in dependences if d.source in names and d.reader in names]


def _around(before: Mapping[int, set[int]], early: int, late: int) -> list[int]:
    """The groups from one to another that become one, in order: what the second needs, itself, the others."""
    between = range(early + 1, late)
    needed = [n for n in between if _reaches(before, late, n)]
    return [*needed, late, *(n for n in between if n not in needed)]


def _reaches(before: Mapping[int, set[int]], start: int, goal: int) -> bool:
    """Whether `goal` must come before `start` already."""
    waiting, seen = [start], {start}
    while waiting:
        for other in before[waiting.pop()]:
            if other == goal:
                return True
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return False
