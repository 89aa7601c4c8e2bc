"""The Loop IR as text, every operation of it; `pseudo_code.py` is shorter."""

from __future__ import annotations

from collections.abc import Iterator

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.loops.ir import Block, Compute, For, If, Item, LoopProgram, Place


def show(program: LoopProgram) -> str:
    """The program as text."""
    lines = [_place(place) for place in program.places.values()]
    lines += [line for item in program.body for line in _item(item, "")]
    return "\n".join(lines) + "\n"


def _place(place: Place) -> str:
    sizes = ", ".join(map(str, place.whole))
    kept = f"  # {'; '.join(place.folded)}; {place.why}" if place.folded else ""
    return f"{place.kind} {place.name}: {dtypes.short(place.type.dtype)}[{sizes}]{kept}"


def _item(item: Item, indent: str) -> Iterator[str]:
    if isinstance(item, For):
        stop = f" until {item.stop.done}, then {item.stop.bound} = {item.stop.length}" if item.stop else ""
        word = ("lanes" if item.lanes is not None else "for all") if item.parallel else "for"
        unrolled = ", unrolled" if item.unrolled else ""
        slots = (f"{r.place}[{', '.join(map(str, r.before))}]" for r in item.registers)
        passed = f", holding {', '.join(slots)}" if item.registers else ""
        yield f"{indent}{word} {item.counter} in {item.first} .. {item.end - 1}{unrolled}{passed}{stop}:"
    elif isinstance(item, If):
        yield f"{indent}if {item.condition}:"
    else:
        yield from _block(item, indent)
        return
    for inner in item.body:
        yield from _item(inner, indent + "    ")


def _block(block: Block, indent: str) -> Iterator[str]:
    for compute in block.body:
        yield f"{indent}{compute.result} = {_call(compute)}"
    for store in block.stores:
        place = f"{store.place}[{', '.join(map(str, store.index))}]" if store.index else store.place
        if place != store.value:
            yield f"{indent}{place} = {store.value}"


def _call(compute: Compute) -> str:
    operands = [str(operand) for operand in compute.operands]
    attributes = [f"{key}={_value(value)}" for key, value in compute.attributes.items()]
    return f"{compute.op}({', '.join([*operands, *attributes])})"


def _value(value: object) -> str:
    return f"({', '.join(map(_value, value))})" if isinstance(value, tuple) else str(value)
