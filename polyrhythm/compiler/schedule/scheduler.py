"""The scheduler: an order of all blocks as a tree of loops.

At every level of the tree the blocks are grouped, from the last consumer back to the first producer. A group is a
single block, or a loop over one dim that all its members have. A producer joins the group of its first consumer
when the distance between them along the dim is bounded, and gets a loop of its own, before it, when it is not.
Inside a loop every member has a rank, `rate * t + offset`: it handles step t in that iteration, so that reads of the
future become delays. Shifts are the smallest that the dependences allow (longest paths), then moved
so that values wait as little as possible. What is not settled by the loop goes to the next level.

Components that depend on themselves need a dim along which all their dependences go one way. Loops count upwards
always; a backward recurrence has a negative rate. Where no dim does, members follow dims of their own, or a
combination of several (`analysis/farkas.py`): an iteration then handles the points of a block at which that has one
value, and loops over its dims come inside. What is well-founded by affine rankings has such loops, whatever is around.

The method is the component-wise retiming of Darte, Robert and Vivien, with fusion after Kennedy and McKinley.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, product

from polyrhythm.compiler.analysis.farkas import all_rankings
from polyrhythm.compiler.analysis.ranks import FEW_STEPS, Component, Need, most_steps
from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction, eq
from polyrhythm.compiler.ir.reads import components
from polyrhythm.compiler.ir.sets import least, simplified, solutions, with_facts
from polyrhythm.compiler.ir.terms import ZERO, Symbol, Term, dims_of
from polyrhythm.compiler.schedule.blocks import Block
from polyrhythm.compiler.schedule.dependences import ByBlock, Dependence
from polyrhythm.compiler.schedule.groups import (
    Group,
    Joint,
    Order,
    Way,
    is_apart,
    is_cheap_to_keep,
    is_early,
    is_kept,
    left_by_others,
    left_for_later,
    lets_go,
    most_steps_of,
    old_before_new,
    reads_without_limit,
)
from polyrhythm.compiler.schedule.shifts import Ranking, Ranks, Shifts, matched
from polyrhythm.compiler.schedule.tiles import Tiling
from polyrhythm.errors import PolyrhythmError


@dataclass(frozen=True)
class Member:
    """How a block takes part in a loop: iteration `time` handles its step of `dim`.

    `time` is `rate * dim + offset`; the offset may contain bounds. A block without a dim runs in the iteration `time`,
    which may depend on several of its dims.
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

    A loop is parallel when no dependence leads from one iteration to another. With a `tile`, an iteration handles so
    many steps of each member, which has a loop over them inside (`tiles.py`).
    """

    counter: Symbol
    members: Mapping[str, Member]
    body: tuple[Item, ...]
    parallel: bool = False
    tile: int = 0


Item = Loop | str
"""A loop, or the name of a block."""


MOST_RANKINGS = 16
"""How many ways to go through the steps of a loop are kept: those of its parts, combined, double with each part."""


class ScheduleError(PolyrhythmError):
    """No order was found for the program. Every program that passes the checks should have one: please report it."""


def schedule(
    blocks: Mapping[str, Block],
    dependences: Sequence[Dependence],
    first: Symbol | None = None,
    at_once: frozenset[Symbol] = frozenset(),
    tiling: Tiling | None = None,
    steps: frozenset[str] = frozenset(),
) -> tuple[Item, ...]:
    """A tree of loops that respects every dependence; where there is a choice the dim `first` is outermost.

    Loops over the dims in `at_once` are not joined if their iterations then wait for each other. With `tiling`, some of
    those that are go over tiles. What a step of a stream does not need comes after its tensors, if `steps` has any.
    """
    remaining = {name: tuple(sorted(b.dims, key=lambda s: s is not first)) for name, b in blocks.items()}
    try:
        return _Scheduler(blocks, first, at_once, tiling, steps).nest(list(blocks), dependences, remaining)
    except ScheduleError:
        return _Careful(blocks, first, at_once, None, steps).nest(list(blocks), dependences, remaining)


class _Scheduler:
    def __init__(
        self,
        blocks: Mapping[str, Block],
        first: Symbol | None,
        at_once: frozenset[Symbol],
        tiling: Tiling | None,
        steps: frozenset[str],
    ) -> None:
        self.blocks, self.at_once, self.tiling = blocks, at_once, tiling
        self.inside: frozenset[Symbol] = frozenset()  # the dims of the tiles around
        self.position = {name: number for number, name in enumerate(blocks)}
        self.first = first
        self.numbers = count(1)  # of loops
        self.shifts = Shifts(blocks, steps)

    def nest(
        self,
        names: Sequence[str],
        dependences: Sequence[Dependence],
        remaining: Mapping[str, tuple[Symbol, ...]],
        settled: Sequence[Dependence] = (),
    ) -> tuple[Item, ...]:
        """Order some blocks, given the dependences among them that outer loops leave open, and those they settle."""
        # The dims that order dependences which outer loops have settled.
        kept = {s for d in settled for s in remaining[d.source] if s in remaining[d.reader]}
        among = ByBlock(dependences)

        # Strongly connected components become loops, which are fused: with readers, then with each other.
        order = self._groups(names, among, remaining, kept)
        self._merge(order, among, kept)
        self._gather(order, among, kept)

        # Values of the iteration before are read before they are overwritten; then each loop is scheduled inside.
        groups = old_before_new(order, settled)
        return tuple(self._loop(g, among, remaining) if g.is_loop else g.members[0] for g in groups)

    def _groups(
        self, names: Sequence[str], among: ByBlock, remaining: Mapping[str, tuple[Symbol, ...]], kept: set[Symbol]
    ) -> Order:
        """Groups in order of execution; built from the last consumers backwards."""
        consumers = {name: [d.reader for d in among.out_of(name)] for name in names}
        order = Order()
        groups = order.groups
        place: dict[str, Group] = {}
        # Tarjan yields a component after all it points to: consumers first.
        for component in components(consumers):
            inside = set(component)
            group = self._component(component, among, remaining)
            readers = {place[c] for name in component for c in consumers[name] if c not in inside}
            targets = sorted(groups.index(reader) for reader in readers)
            at = min(targets, default=len(groups))
            for target in targets or self._siblings(component, among, groups, place):
                needed = order.needed(at, target)
                if not needed.isdisjoint(readers):
                    continue  # what it needs of another reader comes between
                if self._join(groups[target], group, among, kept):
                    group = groups[target]
                    order.put(min(at, target), target, needed)  # a sibling stays where it is
                    break
            else:
                groups.insert(at, group)
            order.add(group, readers)
            place.update(dict.fromkeys(component, group))
        return order

    def _merge(self, order: Order, among: ByBlock, kept: set[Symbol]) -> None:
        """Loops of which one reads from the other, with nothing in between, become one where that is still possible."""
        at = 0
        while at < len(order.groups):
            early = order.groups[at]
            readers = (n for n, group in enumerate(order.groups) if early in order.before[group])
            for late in readers if early.is_loop else ():
                needed = order.needed(at + 1, late)
                between = any(early in order.before[group] for group in needed)
                if not between and self._join(order.groups[late], early, among, kept):
                    order.join(at, late, needed)
                    at = -1
                    break
            at += 1

    def _gather(self, order: Order, among: ByBlock, kept: set[Symbol]) -> None:
        """Loops of the same single step that do not wait for each other become one.

        So do the beginnings of the parameters of a network, `p[0, i + 1] = p[U, i]`.
        """
        groups = order.groups
        steps = {group: self._single_step(group) for group in groups}
        late = 1
        while late < len(groups):
            own = steps[groups[late]]
            for at in [n for n in range(late) if own is not None and steps[groups[n]] is own]:
                needed = order.needed(at, late)
                if groups[at] not in needed and self._join(groups[late], groups[at], among, kept):
                    order.join(at, late, needed)
                    break
            else:
                late += 1

    def _single_step(self, group: Group) -> Condition | None:
        """The one step that a loop has, if it is the same for all its members."""
        if not group.is_loop or most_steps_of(self.blocks, group, group.ways[0].symbol) != 1:
            return None
        steps = {self._steps(name, group.ways[0].symbol) for name in group.members}
        return steps.pop() if len(steps) == 1 else None

    def _siblings(
        self, component: Sequence[str], among: ByBlock, groups: list[Group], place: Mapping[str, Group]
    ) -> list[int]:
        """For what nobody reads here: a loop that reads the same values."""
        sources = {d.source for name in component for d in among.into(name)}
        readers = {d.reader for source in sources for d in among.out_of(source)}
        loops = {place[name] for name in readers if name in place and place[name].is_loop}
        return sorted(groups.index(group) for group in loops)[:1]

    def _component(
        self, component: Sequence[str], dependences: ByBlock, remaining: Mapping[str, tuple[Symbol, ...]]
    ) -> Group:
        """What one component can be: a loop over any dim that carries all its dependences one way.

        Of several dims those are kept that leave the fewest loops whose iterations wait for each other.
        """
        members = sorted(component, key=self.position.__getitem__)
        own = dependences.inside(set(members))
        needs = [Need(d.reader, d.source, d.condition, d.steps, d.gap) for d in own]
        circle = Component(members, needs, remaining, {n for n in members if self.blocks[n].piece_of is not None})
        ways = []
        for symbol in circle.symbols:
            dims = {name: symbol if symbol in remaining[name] else None for name in members}
            fitting = [r for r in circle.rankings(symbol) if self.shifts.earliest(members, own, r) is not None]
            fitting = self._orderly(circle, symbol, fitting)
            if fitting:
                ways.append(Way(dims, [Ranking(signed, self.shifts.aligned(signed, own)) for signed in fitting]))
        if not ways and own:
            ways = list(self._skewed(circle, own))
        if not ways and own:
            raise ScheduleError(
                f"no loop carries all the dependences among {', '.join(members)}",
                fix="make the recurrence go one way along some dim; please report a program that should work",
            )
        if len(ways) > 1 and own and self.first is None:
            found = circle.depths()
            fewest = min(found.values(), default=0)
            ways = [way for way in ways if found.get(way.symbol, fewest) == fewest]
            ways.sort(key=lambda way: way.symbol in self.at_once)  # another dim may carry what this one need not
        return Group(members, ways)

    def _orderly(self, circle: Component[str], symbol: Symbol, fitting: list[Ranks]) -> list[Ranks]:
        """The rankings to try; nearly all leave something that can be ordered inside, and others are tried then."""
        return fitting

    def _skewed(self, circle: Component[str], own: Sequence[Dependence]) -> Iterator[Way]:
        """Loops along no common dim."""
        return iter(())

    def _shifts(self, group: Group, among: Sequence[Dependence], ranks: Ranks) -> dict[str, int]:
        """How the members of a loop are shifted."""
        shifts = self.shifts.of(group.members, among, ranks)
        assert shifts is not None
        return shifts

    def _join(self, target: Group, fresh: Group, dependences: ByBlock, kept: set[Symbol]) -> bool:
        """Add a producer to the loop of its consumers, if the distance along the loop is bounded."""
        if not (fresh.is_loop and target.is_loop):
            return False
        members = fresh.members + target.members
        early_members, late_members = set(fresh.members), set(target.members)
        crossing = dependences.between(early_members, late_members)
        # Both can be loops. If nothing leads back, the producer is shifted as far ahead as its readers need.
        one_way = not (back := dependences.between(late_members, early_members))
        ways = []
        for early in fresh.ways:
            for late in target.ways:
                dims = {**early.dims, **late.dims}
                found: list[Joint] = []
                for consumer, producer in product(late.candidates, early.candidates):
                    if len(found) == MOST_RANKINGS:
                        break
                    ranks = matched(producer.ranks, consumer.ranks, crossing, dims)
                    if ranks is None or any(ranks == joint.both.ranks for joint in found):
                        continue
                    fits = (
                        self.shifts.bounded(crossing, ranks)
                        if one_way
                        else self.shifts.earliest(members, dependences.inside({*members}), ranks)
                    )
                    if fits and not (one_way and self._waits_for_all(dims, ranks, crossing)):
                        aligned = self.shifts.joined(producer, consumer, ranks, [*crossing, *back], dependences)
                        found.append(Joint(producer, consumer, Ranking(ranks, aligned), dims, crossing))
                if found and self._in_strips(dims, found[0].both.ranks):
                    continue
                if found and self._is_worth(fresh, target, early.symbol, found[0], dependences, kept):
                    tile = self._tile(early, late, found[0], dependences)
                    if tile is not None:
                        ways.append(Way(dims, [joint.both for joint in found], tile))
        if not ways:
            return False
        target.members, target.ways = members, ways
        return True

    def _waits_for_all(self, dims: Mapping[str, Symbol | None], ranks: Ranks, crossing: Sequence[Dependence]) -> bool:
        """Whether a consumer would lag behind its producer by most of the steps there are, which are many.

        Where a dim has a limit every distance has one. A common loop would then be a long one of the producer alone,
        and another of the consumer, and would save nothing.
        """
        return self.first is None and any(
            self._is_most(dims, ranks, d, least(ranks[d.reader] - ranks[d.source].substitute(d.steps), d.condition))
            for d in crossing
        )

    def _is_most(
        self, dims: Mapping[str, Symbol | None], ranks: Ranks, d: Dependence, least_distance: int | None
    ) -> bool:
        """Whether a distance is at least half of the iterations that a source has, if that are more than a few."""
        dim = dims[d.source]
        steps = None if dim is None else most_steps(self.blocks[d.source].domain, dim)
        if dim is None or steps is None or steps <= FEW_STEPS or least_distance is None:
            return False
        return -2 * least_distance >= steps * abs(ranks[d.source].coefficient(dim))

    def _tile(self, early: Way, late: Way, joint: Joint, dependences: ByBlock) -> int | None:
        """The steps of a tile of a common loop, 0 if its steps come one by one; None if two loops are better."""
        tile, symbol = early.tile or late.tile, late.symbol
        if joint.both.parallel and not tile:
            return 0
        if symbol in self.inside:
            return None if joint.early.parallel or joint.late.parallel else 0
        independent = (early.tile or joint.early.parallel) and (late.tile or joint.late.parallel)
        if self.tiling is None or not independent:
            return 0  # with a recurrence step by step, which needs no more than a step of anything
        ranks = joint.both.ranks
        long = all(most_steps(self.blocks[n].domain, symbol) is None for n in ranks)
        rates = {rank.coefficient(symbol) for rank in ranks.values()}
        plain = all(dim is symbol for dim in joint.dims.values()) and rates in ({1}, {-1})
        steps = self.tiling.steps(ranks)
        host = any(self.blocks[name].host for name in ranks)
        if not long or symbol in self.tiling.untiled or host:
            return None if tile else 0
        if self.tiling.is_affordable(self.blocks[d.source] for d in joint.crossing):
            return None
        if not (plain and steps):
            return None if tile else 0
        read = (self.blocks[d.source] for d in joint.crossing)
        if joint.early.parallel and all(self.tiling.is_stored(block, ranks, dependences) for block in read):
            return None
        return min(tile or steps, steps)

    def _in_strips(self, dims: Mapping[str, Symbol | None], ranks: Ranks) -> bool:
        """Whether some blocks do in one iteration, along another dim, as many steps as others do in as many iterations.

        A common loop would have one iteration for each step, and in most of them only a few of its blocks.
        """
        alike = {(rank, dims[name]) for name, rank in ranks.items()}  # far fewer than blocks
        if len({abs(rank.coefficient(dim)) for rank, dim in alike if dim}) <= 1:
            return False
        rates = {n: abs(ranks[n].coefficient(dim)) for n, dim in dims.items() if dim and self._goes_on(n, dim)}
        fastest = min(rates.values(), default=1)
        return any(
            rate > fastest and most_steps(self.blocks[name].domain, other) == rate // fastest
            for name, rate in rates.items()
            for other in self.blocks[name].dims
            if other is not dims[name]
        )

    def _goes_on(self, name: str, dim: Symbol) -> bool:
        """Whether a block has more than a step of a dim."""
        return most_steps(self.blocks[name].domain, dim) not in (0, 1)

    def _is_worth(
        self, fresh: Group, target: Group, symbol: Symbol, joint: Joint, dependences: ByBlock, kept: set[Symbol]
    ) -> bool:
        """Whether a common loop is better than two: not where it makes iterations wait and saves no storage.

        Steps of the producer that are independent would have to come one after the other. That is not worth it where a
        user wants them at once. It is if they are few, or if its values then need not be kept for all steps. They are
        kept anyway if they are read without a limit later, or if another definition of the same tensor is in the loop
        already and this one has no more steps than are kept there; or if both loops are parallel and an outer loop
        keeps values for all steps in any case. In that case two parallel loops stay apart too unless they have the same
        steps: one would be cut into pieces. Contractions that are much faster for all steps at once stay out of the
        loop of a recurrence that reads them, or that they read (`hoisting.py`); what narrows stays with what it reads.
        What reads ranges without a limit of values made before stays out too: those are kept whole. For the rest of
        what a loop may be better without see `groups.py`.
        """
        if self.first is not None:
            return True
        blocks, ranks, crossing = self.blocks, joint.both.ranks, joint.crossing
        # What narrows stays with what it reads.
        early = is_early(target, blocks, symbol)
        if is_apart(fresh, blocks, symbol) if early else joint.early.parallel and is_early(fresh, blocks, symbol):
            return False
        # The producer is a recurrence: its steps come one after the other in any case.
        if not joint.early.parallel:
            if early or not joint.late.parallel:
                return True
            stored = is_kept(blocks, target, joint)
            left = left_by_others(blocks, fresh, joint, dependences)
            pays = is_cheap_to_keep(blocks, self.tiling, target, dependences, crossing, left)
            return not (is_apart(target, blocks, symbol) or stored or pays)
        # Nobody would wait.
        if joint.both.parallel and symbol in self.inside:  # members of one loop over a tile begin where the tile does
            return all((ranks[d.reader] - ranks[d.source].substitute(d.steps)) is ZERO for d in crossing)
        if joint.both.parallel and lets_go(blocks, fresh, target, symbol, dependences):
            return False
        if joint.both.parallel:
            pairs = [(d.source, d.reader) for d in crossing] or [(fresh.members[0], target.members[0])]
            return symbol not in kept or all(self._steps(a, symbol) is self._steps(b, symbol) for a, b in pairs)
        # Independent steps of the producer would have to wait.
        steps = most_steps_of(blocks, fresh, symbol)
        if symbol in self.at_once:
            return False
        if symbol in self.inside:
            return not joint.late.parallel and steps in (0, 1)
        if steps in (0, 1):
            return True
        if is_apart(fresh, blocks, symbol):
            return False
        if steps is not None and self._tensors(fresh) & self._tensors(target):
            return False
        if steps is not None and steps <= FEW_STEPS:
            return True
        if symbol in kept and joint.late.parallel:
            return False
        # That pays if its values are then not stored for all steps.
        incoming = (d for name in fresh.members for d in dependences.into(name) if d.source not in ranks)
        if any(reads_without_limit(d, symbol) for d in incoming):
            return False
        for d in crossing:
            longest = least(ranks[d.source].substitute(d.steps) - ranks[d.reader], d.condition)
            if longest is None or self._is_most(joint.dims, ranks, d, longest):
                return False
        left = left_for_later(blocks, self.tiling, fresh, target, dependences)
        return not is_cheap_to_keep(blocks, self.tiling, fresh, dependences, crossing, left)

    def _steps(self, name: str, symbol: Symbol) -> Condition:
        """The steps of a dim that a block has."""
        block = self.blocks[name]
        whole = with_facts(block.domain)
        steps = solutions(whole).without(s for s in block.dims if s is not symbol)
        return simplified(steps.condition(), TRUE)

    def _tensors(self, group: Group) -> set[str]:
        """The tensors that a group makes."""
        blocks = (self.blocks[name] for name in group.members)
        return {s.node for block in blocks for s in block.statements if s.steps == block.current}

    def _loop(self, group: Group, dependences: ByBlock, remaining: Mapping[str, tuple[Symbol, ...]]) -> Loop:
        """The loop of a group, by the first of its rankings that leaves something that can be ordered inside."""
        among = dependences.inside(set(group.members))
        rankings = [(way, candidate.ranks) for way in group.ways for candidate in way.candidates]
        for number, (way, ranks) in enumerate(rankings, 1):
            try:
                return (self._tiled if way.tile else self._ranked)(group, way, ranks, among, remaining)
            except ScheduleError:
                if number == len(rankings):
                    raise
        raise AssertionError("a loop has a ranking")

    def _tiled(
        self,
        group: Group,
        way: Way,
        ranks: Ranks,
        among: Sequence[Dependence],
        remaining: Mapping[str, tuple[Symbol, ...]],
    ) -> Loop:
        """A loop over tiles: inside it, the members have loops over the steps of a tile."""
        shifts = self.shifts.of_tiles(group.members, among, ranks, way.tile)
        members = {n: Member(None, (ranks[n] + shifts[n]) // way.tile) for n in group.members}
        counter = Symbol(f"{way.symbol.name}_tile", "dim", serial=serials.COUNTER - next(self.numbers))
        outside, self.inside = self.inside, self.inside | {way.symbol}
        body = self.nest(group.members, list(still_open(among, members)), remaining)
        self.inside = outside
        return Loop(counter, members, body, tile=way.tile)

    def _ranked(
        self,
        group: Group,
        way: Way,
        ranks: Ranks,
        among: Sequence[Dependence],
        remaining: Mapping[str, tuple[Symbol, ...]],
    ) -> Loop:
        shifts = self._shifts(group, among, ranks)
        members = {name: Member(way.dims[name], ranks[name] + shifts[name]) for name in group.members}
        counter = Symbol(way.symbol.name, "dim", serial=serials.COUNTER - next(self.numbers))
        inner = list(still_open(among, members))
        left = {name: tuple(s for s in remaining[name] if s is not members[name].dim) for name in group.members}
        unchanged = {(d.source, d.reader) for d in inner}
        settled = [d for d in among if (d.source, d.reader) not in unchanged]
        parallel = all((members[d.reader].time - members[d.source].time.substitute(d.steps)) is ZERO for d in among)
        return Loop(counter, members, self.nest(group.members, inner, left, settled), parallel)


class _Careful(_Scheduler):
    """For programs whose usual loops leave circles inside that no order settles, although no value is in one.

    Loops are not joined, and follow rankings of which it is known that what they leave open can be ordered; or else
    such as settle something, of any form.
    """

    def _orderly(self, circle: Component[str], symbol: Symbol, fitting: list[Ranks]) -> list[Ranks]:
        return [ranks for ranks in fitting if circle.depth_by(symbol, ranks) is not None]

    def _skewed(self, circle: Component[str], own: Sequence[Dependence]) -> Iterator[Way]:
        whole = replace(circle, dims={name: self.blocks[name].dims for name in circle.members})
        for ranks in all_rankings(whole):
            left = whole.left_open(ranks)
            if left is not None and left[0] and self.shifts.earliest(whole.members, own, ranks) is not None:
                yield Way({n: _single(ranks[n], circle.dims[n]) for n in whole.members}, [Ranking(ranks)])
                return

    def _shifts(self, group: Group, among: Sequence[Dependence], ranks: Ranks) -> dict[str, int]:
        found = self.shifts.earliest(group.members, among, ranks)
        assert found is not None
        return found[0]

    def _join(self, target: Group, fresh: Group, dependences: ByBlock, kept: set[Symbol]) -> bool:
        return False


def _single(rank: Term, dims: Sequence[Symbol]) -> Symbol | None:
    """The one dim that a rank counts, if it is left."""
    found = dims_of(rank)
    return next((s for s in found if len(found) == 1 and s in dims and rank.linear_in(s)), None)


def still_open(among: Iterable[Dependence], members: Mapping[str, Member]) -> Iterator[Dependence]:
    """The part of each dependence whose two ends fall into one iteration."""
    for d in among:
        distance = members[d.reader].time - members[d.source].time.substitute(d.steps)
        if distance.is_constant and distance.constant:
            continue
        condition = conjunction(d.condition, eq(distance, 0))
        if not solutions(condition).is_empty:
            yield replace(d, condition=condition)
