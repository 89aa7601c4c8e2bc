"""The Loop IR as text that people can read: places first, then loops as pseudo-code."""

from __future__ import annotations

from collections.abc import Iterator

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.loops.ir import Block, Compute, For, If, Item, LoopProgram, Place


def show(program: LoopProgram, details: bool = True) -> str:
    """The program as text; without details only its loops and what they store."""
    lines = [_place(place) for place in program.places.values()] if details else []
    lines += [line for item in program.body for line in _item(item, "", details)]
    return "\n".join(lines) + "\n"


def _place(place: Place) -> str:
    sizes = ", ".join(map(str, place.whole))
    kept = f"  # {'; '.join(place.folded)}; {place.why}" if place.folded else ""
    return f"{place.kind} {place.name}: {dtypes.short(place.type.dtype)}[{sizes}]{kept}"


def _item(item: Item, indent: str, details: bool) -> Iterator[str]:
    if isinstance(item, For):
        stop = f" until {item.stop.done}, then {item.stop.bound} = {item.stop.length}" if item.stop else ""
        word = "for all" if item.parallel else "for"
        unrolled = ", written out" if item.unrolled else ""
        slots = (f"{r.place}[{', '.join(map(str, r.before))}]" for r in item.registers)
        passed = f", holding {', '.join(slots)}" if item.registers else ""
        yield f"{indent}{word} {item.counter} in {item.first} .. {item.end - 1}{unrolled}{passed}{stop}:"
    elif isinstance(item, If):
        yield f"{indent}if {item.condition}:"
    else:
        yield from _block(item, indent, details)
        return
    for inner in item.body:
        yield from _item(inner, indent + "    ", details)


def _block(block: Block, indent: str, details: bool) -> Iterator[str]:
    if details:
        for compute in block.body:
            yield f"{indent}{compute.result} = {_call(compute)}"
    for store in block.stores:
        place = f"{store.place}[{', '.join(map(str, store.index))}]" if store.index else store.place
        if not details or place != store.value:
            reads = "" if details else f"  # {_sources(block)}"
            yield f"{indent}{place} = {store.value}{reads}"


def _call(compute: Compute) -> str:
    operands = [str(operand) for operand in compute.operands]
    attributes = [f"{key}={_value(value)}" for key, value in compute.attributes.items()]
    return f"{compute.op}({', '.join([*operands, *attributes])})"


def _value(value: object) -> str:
    return f"({', '.join(map(_value, value))})" if isinstance(value, tuple) else str(value)


def _sources(block: Block) -> str:
    loads = dict.fromkeys(str(o) for compute in block.body for o in compute.operands if hasattr(o, "place"))
    return f"reads {', '.join(loads)}" if loads else "reads nothing"
