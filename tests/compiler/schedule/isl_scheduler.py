"""The same blocks and dependences given to isl's scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import islpy as isl

from polyrhythm.compiler.ir.conditions import Condition, conjunction, eq
from polyrhythm.compiler.ir.sets import facts, points
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.schedule.blocks import Block
from polyrhythm.compiler.schedule.dependences import Dependence

Bounds = tuple[Symbol, ...]


@contextmanager
def whole_components() -> Iterator[None]:
    """isl interleaves what depends on each other at a distance only with this option."""
    context = isl.DEFAULT_CONTEXT
    before = context.get_schedule_whole_component()
    context.set_schedule_whole_component(1)
    try:
        yield
    finally:
        context.set_schedule_whole_component(before)


def isl_schedule(blocks: Mapping[str, Block], dependences: Sequence[Dependence], bounds: Bounds) -> isl.Schedule | None:
    """isl's schedule, or None where it finds none."""
    domain = isl.UnionSet.empty(isl.Space.params_alloc(isl.DEFAULT_CONTEXT, 0))
    for block in blocks.values():
        domain = domain.union(isl.UnionSet.from_set(domain_of(block, bounds)))
    validity = isl.UnionMap.empty(isl.Space.params_alloc(isl.DEFAULT_CONTEXT, 0))
    near = validity
    for d in dependences:
        relation = isl.UnionMap.from_map(relation_of(d, blocks, bounds))
        validity = validity.union(relation)
        if len(blocks[d.source].dims) == len(blocks[d.reader].dims):
            near = near.union(relation)
    constraints = isl.ScheduleConstraints.on_domain(domain).set_validity(validity).set_proximity(near)
    with whole_components():
        try:
            return constraints.compute_schedule()
        except isl.Error:
            return None


def domain_of(block: Block, bounds: Bounds) -> isl.Set:
    """The points of a block, with bounds as parameters."""
    condition = conjunction(block.domain, facts(frozenset(bounds)))
    return _relation(condition, bounds, (), block.dims, "", block.name).range()


def relation_of(dependence: Dependence, blocks: Mapping[str, Block], bounds: Bounds) -> isl.Map:
    """A dependence as a map from the source's points to the reader's."""
    source, reader = blocks[dependence.source], blocks[dependence.reader]
    names = {s: Symbol(s.name, "dim", serial=-90) for s in source.dims}
    steps = [eq(Term.of(names[s]), dependence.steps[s]) for s in source.dims]
    condition = conjunction(dependence.condition, *steps)
    return _relation(condition, bounds, tuple(names.values()), reader.dims, source.name, reader.name)


def _relation(condition: Condition, bounds: Bounds, first: Bounds, second: Bounds, source: str, reader: str) -> isl.Map:
    columns = (*bounds, *first, *second)
    extra = tuple(s for s in condition.symbols if s not in columns)
    found = points(condition, (*columns, *extra)).without(extra).isl_set
    relation = isl.Map.from_range(found)
    for number, bound in enumerate(bounds):
        relation = relation.move_dims(isl.dim_type.param, number, isl.dim_type.out, 0, 1)
        relation = relation.set_dim_name(isl.dim_type.param, number, bound.name)
    if first:
        relation = relation.move_dims(isl.dim_type.in_, 0, isl.dim_type.out, 0, len(first))
    if source:
        relation = relation.set_tuple_name(isl.dim_type.in_, _name(source))
    return relation.set_tuple_name(isl.dim_type.out, _name(reader))


def _name(block: str) -> str:
    return block.replace(".", "__")


def times_of(schedule: isl.Schedule, blocks: Mapping[str, Block]) -> dict[str, isl.Map]:
    """When each block runs, by isl's schedule."""
    found: list[isl.Map] = []
    schedule.get_map().foreach_map(found.append)
    by_name = {m.get_tuple_name(isl.dim_type.in_): m for m in found}
    return {name: by_name[_name(name)] for name in blocks if _name(name) in by_name}


def respected(times: Mapping[str, isl.Map], relation: isl.Map, source: str, reader: str) -> bool:
    """Whether every source of a dependence is strictly earlier than its reader."""
    apart = relation.apply_domain(times[source]).apply_range(times[reader])
    space = apart.get_space().domain()
    return bool(apart.is_subset(isl.Map.lex_lt(space)))
