"""What the compiler made of a program, and why, as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.terms import ZERO
from polyrhythm.compiler.loops.notes import notes_of
from polyrhythm.compiler.loops.show import show
from polyrhythm.compiler.passes import Note
from polyrhythm.compiler.pipeline import Compiled
from polyrhythm.compiler.schedule import fusion_notes
from polyrhythm.compiler.schedule.dependences import Dependence
from polyrhythm.compiler.schedule.scheduler import Item, Loop
from polyrhythm.runtime.memory import Memory


def explain(compiled: Compiled, compiled_loops: bool, kernels: Sequence[str] = (), tuned: Sequence[str] = ()) -> str:
    """Outputs, order, loops and storage, each with its reason, and the lines they come from.

    `compiled_loops` says that the backend compiles loops, and so may run their steps at once; `kernels` what it does
    with code of its own.
    """
    parts = [
        ("outputs", _outputs(compiled)),
        ("needs", [f"{r.condition}: {r.why}" for r in compiled.graph.requirements]),
        ("passes", _passes(compiled, compiled_loops)),
        ("order", list(_loops(compiled.schedule, compiled.dependences))),
        ("loops", show(compiled.loops, details=False).rstrip("\n").split("\n")),
        ("kernels", kernels),
        ("tuned", tuned),
        ("storage", str(Memory(compiled.loops)).split("\n")),
        ("lines", _lines(compiled)),
        ("compiled in", [f"{phase} {seconds * 1000:.1f} ms" for phase, seconds in compiled.seconds.items()]),
    ]
    return "\n".join(line for title, lines in parts if lines for line in (f"{title}:", *(f"  {one}" for one in lines)))


def _outputs(compiled: Compiled) -> list[str]:
    lines = []
    for name in compiled.graph.outputs:
        node = compiled.graph[name]
        dims = f" over {', '.join(map(str, node.symbols))}" if node.symbols else ""
        lines.append(f"{described(node)}: {node.type}{dims}")
    return lines


def _passes(compiled: Compiled, compiled_loops: bool) -> list[str]:
    """What each pass did to which line and what that saved, then what it refused; the same on one line is counted."""
    counted: dict[tuple[str, str, str, bool], list[Note]] = {}
    later = (*fusion_notes.notes_of(compiled.graph, compiled.blocks), *notes_of(compiled.loops, compiled_loops))
    for note in (*compiled.notes, *later):
        counted.setdefault((note.by, note.rule, str(note.at or ""), note.refused), []).append(note)
    lines = []
    for (by, rule, _, refused), notes in counted.items():
        first = notes[0]
        where = f" at {first.at} ({first.at.text})" if first.at is not None else ""
        times = f" {len(notes)} times" if len(notes) > 1 else ""
        verb = "refused " if refused else ""
        lines.append(f"{by}: {verb}{rule}{times}{where}: {first.what}{_saved(notes)}")
    return lines


def _saved(notes: Sequence[Note]) -> str:
    operations = sum(note.operations for note in notes)
    launches = sum(note.launches for note in notes)
    written = sum((note.bytes for note in notes), ZERO)
    saved = [f"{operations} operation{'s' if operations != 1 else ''} a point"] if operations > 0 else []
    saved += [f"{launches} launch{'es' if launches != 1 else ''} a point"] if launches > 0 else []
    costs = written is not ZERO and written.constant <= 0 and all(factor < 0 for _, factor in written.monomials)
    if written is not ZERO and not costs:
        saved.append(f"{written} bytes")
    told = f"; saves {', '.join(saved)}" if saved else ""
    return f"{told}; keeps {-written} bytes more" if costs else told


def _lines(compiled: Compiled) -> list[str]:
    """The user's line of everything that is kept."""
    places = (place for place in compiled.loops.places.values() if place.at is not None)
    return [f"{place.name}: {place.at}: {place.at.text}" for place in places if place.at is not None]


def _loops(items: Sequence[Item], dependences: Sequence[Dependence], indent: str = "") -> Iterator[str]:
    """Every loop with its members, how late they run, and why loops that follow it are not the same loop."""
    for number, item in enumerate(items):
        if not isinstance(item, Loop):
            yield f"{indent}{item}: once"
            continue
        yield f"{indent}loop over {item.counter}:"
        for name, member in item.members.items():
            if member.dim is None:
                yield f"{indent}  {name} runs in iteration {member.time}"
            elif member.rate < 0:
                yield f"{indent}  {name} runs backwards: {member.dim} in iteration {member.time}"
            elif member.rate != 1 or member.offset.symbols or member.offset.constant:
                yield f"{indent}  {name} at step {member.dim} runs in iteration {member.time}"
        for later in items[number + 1 :]:
            yield from _apart(item, later, dependences, indent)
        inner = [part for part in item.body if isinstance(part, Loop)]
        yield from _loops(inner, dependences, indent + "  ")


def _apart(loop: Loop, later: Item, dependences: Sequence[Dependence], indent: str) -> Iterator[str]:
    """The first dependence that keeps two loops apart."""
    readers = set(later.members) if isinstance(later, Loop) else {later}
    for dependence in dependences:
        if dependence.source in loop.members and dependence.reader in readers:
            reader, why = dependence.reader, dependence.why
            yield f"{indent}  ends before {reader} begins, which reads {why} at distances without a bound"
            return
