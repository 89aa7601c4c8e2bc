"""How the steps of blocks in one loop are matched: common scales, distances, and shifts.

Every block of a loop has a rank, an affine function of its steps. A dependence has a distance between the ranks of its
two ends. Shifts added to the ranks make all distances possible: nothing runs before what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from polyrhythm.compiler.analysis.ranks import growth, least_shifts
from polyrhythm.compiler.ir.reads import components
from polyrhythm.compiler.ir.sets import least
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.schedule.blocks import Block
from polyrhythm.compiler.schedule.dependences import ByBlock, Dependence

Ranks = dict[str, Term]
"""For each block, an affine function of its steps that no dependence lets fall by more than a constant."""


Distance = tuple[str, str, int]
"""A source, its reader, and the smallest distance between their ranks."""


Aligned = dict[str, tuple[str, int]]
"""Shifts by which no dependence leads from one iteration to another: for each block, one of the blocks that dependences
connect it with, the same for all of these, and its shift against that one."""


@dataclass(frozen=True)
class Ranking:
    """Ranks of some blocks, and shifts that make the iterations independent, if there are any."""

    ranks: Ranks
    aligned: Aligned | None = None

    @property
    def parallel(self) -> bool:
        return self.aligned is not None


class Shifts:
    """The distances of dependences between ranks, and the shifts that they ask for."""

    def __init__(self, blocks: Mapping[str, Block], steps: frozenset[str] = frozenset()) -> None:
        self.blocks, self.steps = blocks, steps
        # With the dependence, so that its id is not given to another.
        self.distances: dict[tuple[int, Term, Term], tuple[Dependence, Term]] = {}

    def bounded(self, dependences: Sequence[Dependence], ranks: Ranks) -> bool:
        """Whether no distance is without a limit."""
        distances = ((self.distance(d, ranks[d.reader], ranks[d.source]), d.condition) for d in dependences)
        return all(least(*distance) is not None for distance in distances)

    def aligned(self, ranks: Ranks, among: Sequence[Dependence]) -> Aligned | None:
        """Shifts by which no dependence among blocks leads from one iteration to another; None if there are none."""
        return self._connected({name: (name, 0) for name in ranks}, ranks, among)

    def joined(
        self, producer: Ranking, consumer: Ranking, ranks: Ranks, crossing: Sequence[Dependence], dependences: ByBlock
    ) -> Aligned | None:
        """`aligned` of two rankings together: where ranks stay as they are, only what crosses can be in the way."""
        if producer.aligned is None or consumer.aligned is None:
            return None
        if any(ranks[name] is not rank for each in (producer, consumer) for name, rank in each.ranks.items()):
            return self.aligned(ranks, dependences.inside({*ranks}))
        return self._connected({**producer.aligned, **consumer.aligned}, ranks, crossing)

    def _connected(self, aligned: Aligned, ranks: Ranks, among: Sequence[Dependence]) -> Aligned | None:
        """Shifts that respect further dependences, by union-find with distances; None if there are none."""
        moved = Aligned()

        def now(part: str, shift: int) -> tuple[str, int]:
            while part in moved:
                over, more = moved[part]
                if over in moved:  # halve the path for those who come later
                    over, more = moved[part] = moved[over][0], more + moved[over][1]
                part, shift = over, shift + more
            return part, shift

        for d in among:
            distance = self.distance(d, ranks[d.reader], ranks[d.source])
            if not distance.is_constant or d.gap:
                return None
            (source, early), (reader, late) = now(*aligned[d.source]), now(*aligned[d.reader])
            lag = early - distance.constant - late
            if source != reader:
                moved[reader] = source, lag
            elif lag:
                return None
        return {name: now(*at) if at[0] in moved else at for name, at in aligned.items()}

    def of(self, members: Sequence[str], among: Sequence[Dependence], ranks: Ranks) -> dict[str, int] | None:
        """How each member is shifted, such that nothing runs before what it needs; None if that is impossible.

        Shifts that leave the iterations independent come first; else values wait as little as possible.
        """
        found = self.earliest(members, among, ranks)
        if found is None:
            return None
        shifts, distances = found
        aligned = self.aligned({name: ranks[name] for name in members}, among)
        if aligned is not None:
            first: dict[str, int] = {}
            shifts = {name: shift - first.setdefault(part, shift) for name, (part, shift) in aligned.items()}
        elif late := self._latest(members, shifts, distances) if self.steps else None:
            shifts = late
        else:
            self._shorten(members, shifts, distances)
        return _anchored(members, shifts, distances, {n for n in members if self.blocks[n].piece_of})

    def of_tiles(self, members: Sequence[str], among: Sequence[Dependence], ranks: Ranks, tile: int) -> dict[str, int]:
        """Shifts for a loop over tiles: by whole tiles, so that all members have the same ones; else the usual."""
        found = self.earliest(members, among, ranks)
        assert found is not None
        whole = least_shifts(members, [(source, reader, gap // tile) for source, reader, gap in found[1]])
        if whole is not None:
            return {name: shift * tile for name, shift in whole.items()}
        shifts = self.of(members, among, ranks)
        assert shifts is not None
        lowest = min(shifts.values())
        return {name: shift - lowest for name, shift in shifts.items()}

    def earliest(
        self, members: Sequence[str], among: Sequence[Dependence], ranks: Ranks
    ) -> tuple[dict[str, int], list[Distance]] | None:
        """The earliest shift of each member, and the distances that it respects; None if there is none."""
        distances = []
        for d in among:
            smallest = least(self.distance(d, ranks[d.reader], ranks[d.source]), d.condition)
            if smallest is None:
                return None
            distances.append((d.source, d.reader, smallest - d.gap))
        shifts = least_shifts(members, distances)
        return None if shifts is None else (shifts, distances)

    def distance(self, d: Dependence, reader: Term, source: Term) -> Term:
        """The distance of a dependence between two ranks; groups that grow ask for the same again and again."""
        key = id(d), reader, source
        if key not in self.distances:
            self.distances[key] = d, reader - source.substitute(d.steps)
        return self.distances[key][1]

    def _latest(
        self, members: Sequence[str], shifts: Mapping[str, int], distances: Sequence[Distance]
    ) -> dict[str, int] | None:
        """Shifts by which what a step does not need comes after it, and takes no item of an input before.

        What steps have and what nothing else reads stays where it is, a recurrence where its values are; the rest
        comes as late as its readers allow. None if the definitions of a tensor cannot stay together then.
        """
        order, _ = _by_component(members, distances)
        part = {name: number for number, names in enumerate(order) for name in names}
        read = {part[source] for source, reader, _ in distances if part[source] != part[reader]}
        far, start = sum(abs(gap) for *_, gap in distances), ""
        recurrent = {part[name] for name in members if self.blocks[name].piece_of}
        wanted = [(reader, source, gap) for source, reader, gap in distances]
        for name in members:
            ends = part[name] not in read and (self.blocks[name].piece_of or part[name] not in recurrent)
            if ends or any(s.node in self.steps for s in self.blocks[name].statements):
                wanted.append((start, name, shifts[name] - far))
        wanted += [(one, other, 0) for one in members for other in members if self._owner(one) == self._owner(other)]
        found = least_shifts([start, *members], wanted)
        return None if found is None else {name: far - found[name] for name in members}

    def _shorten(self, members: Sequence[str], shifts: dict[str, int], distances: Sequence[Distance]) -> None:
        """Shift members within what the dependences allow so that values wait less between being made and read.

        All definitions of a recurrent tensor move together, so that it is written at one time: as early as it can be
        where that costs nothing, because then the iteration that computes `y[t + 1]` also writes it.
        """
        units: dict[str, list[str]] = {}
        for name in members:
            units.setdefault(self._owner(name), []).append(name)
        into: dict[str, list[Distance]] = {owner: [] for owner in units}
        out_of: dict[str, list[Distance]] = {owner: [] for owner in units}
        for distance in distances:
            into[self._owner(distance[1])].append(distance)
            out_of[self._owner(distance[0])].append(distance)
        for owner, parts in units.items():
            if len({shifts[name] for name in parts}) > 1:
                together = {**shifts, **dict.fromkeys(parts, max(shifts[name] for name in parts))}
                if all(together[r] >= together[s] - gap for s, r, gap in (*into[owner], *out_of[owner])):
                    shifts.update(together)
        movable = {owner: parts for owner, parts in units.items() if len({shifts[name] for name in parts}) == 1}
        for _ in range(len(units)):
            moved = False
            for owner, parts in movable.items():  # between its waits and its limits a unit may be anywhere
                waits = [shifts[s] - gap for s, _, gap in into[owner] if s not in parts]
                limits = [shifts[r] + gap for _, r, gap in out_of[owner] if r not in parts]
                touched = [d for o in {owner, *(self._owner(s) for s, _, _ in into[owner])} for d in out_of[o]]
                for wish in (max(waits, default=None), min(limits, default=None)):
                    now = shifts[parts[0]]
                    if wish is None or wish == now:
                        continue
                    waiting = self._waiting(shifts, touched)
                    shifts.update(dict.fromkeys(parts, wish))
                    gain = waiting - self._waiting(shifts, touched)
                    if gain > 0 or (gain == 0 and self.blocks[parts[0]].piece_of and wish < now):
                        moved = True
                    else:
                        shifts.update(dict.fromkeys(parts, now))
            if not moved:
                return

    def _owner(self, name: str) -> str:
        """The recurrent tensor of which a block is a definition, or else itself."""
        return self.blocks[name].piece_of or name

    def _waiting(self, shifts: Mapping[str, int], distances: Sequence[Distance]) -> int:
        """How many iterations values wait for their last reader, in total."""
        longest: dict[str, int] = {}
        for source, reader, gap in distances:
            owner = self._owner(source)
            longest[owner] = max(longest.get(owner, 0), shifts[reader] - shifts[source] + gap)
        return sum(longest.values())


def _anchored(
    members: Sequence[str], shifts: Mapping[str, int], distances: Sequence[Distance], pieces: set[str]
) -> dict[str, int]:
    """The same shifts counted from the first recurrence, so that the loop counts the user's steps."""
    _, recurrent = _by_component(members, distances)
    main = [name for name in members if name in recurrent and name not in pieces] or list(members)
    first = min(shifts[name] for name in main)
    return {name: shift - first for name, shift in shifts.items()}


def _by_component(members: Sequence[str], distances: Sequence[Distance]) -> tuple[list[list[str]], set[str]]:
    """Components of the members, consumers first, and the members that depend on themselves."""
    graph: dict[str, list[str]] = {name: [] for name in members}
    for source, reader, _ in distances:
        graph[source].append(reader)
    order = components(graph)
    return order, {name for part in order for name in part if len(part) > 1 or name in graph[name]}


def _same_way(one: Ranks, other: Ranks, dims: Mapping[str, Symbol | None]) -> bool:
    """Whether two rankings go through the steps of one dim in the same direction."""
    ways = [
        {(dim, ranks[name].coefficient(dim) > 0) for name in ranks if (dim := dims[name])} for ranks in (one, other)
    ]
    return bool(ways[0] & ways[1])


def _scaled(ranks: Ranks, factor: int, offset: Term) -> Ranks:
    """Ranks times a factor and moved; most blocks of a loop have the same one."""
    if factor == 1 and offset is Term(0):
        return ranks
    found = {rank: rank * factor + offset for rank in {*ranks.values()}}
    return {name: found[rank] for name, rank in ranks.items()}


def matched(
    producer: Ranks, consumer: Ranks, crossing: Sequence[Dependence], dims: Mapping[str, Symbol | None]
) -> Ranks | None:
    """Both rankings on one scale, so that what is made together with what reads it runs in the same iteration.

    None where they do not move together. Without reads from one to the other they share a loop over the same dim.
    """
    together = not crossing and _same_way(producer, consumer, dims)
    for d in crossing:
        symbol = dims[d.reader]
        rank = producer[d.source].substitute(d.steps)
        if symbol is None or symbol not in rank.symbols:
            continue
        together = True
        read, reading = growth(rank, symbol), growth(consumer[d.reader], symbol)
        if read is None or reading is None:
            continue
        ratio = reading[None] / read[None]
        if ratio < 0:
            return None
        up, down = ratio.numerator, ratio.denominator
        keys = {key for key in (*read, *reading) if key is not None}
        apart = {key: reading.get(key, Fraction(0)) * down - read.get(key, Fraction(0)) * up for key in keys}
        if any(value.denominator != 1 for value in apart.values()):
            return None
        offset = sum((Term.of(key) * int(value) for key, value in apart.items()), Term(0))
        return _scaled(producer, up, offset) | _scaled(consumer, down, Term(0))
    return {**producer, **consumer} if together else None
