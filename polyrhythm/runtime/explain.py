"""What the compiler made of a program, and why, as text for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.terms import ZERO
from polyrhythm.compiler.loops import notes as loop_notes
from polyrhythm.compiler.loops.pseudo_code import pseudo_code
from polyrhythm.compiler.passes import Note
from polyrhythm.compiler.pipeline import Compiled
from polyrhythm.compiler.schedule import fusion_notes
from polyrhythm.compiler.schedule.scheduler import Item, Loop, Member
from polyrhythm.runtime.memory import Memory

MOST_LINES = {"outputs": 6, "needs": 3, "passes": 10, "order": 4, "storage": 6}
"""How many lines of a part a short explanation has; it fits on two screens together with the loops."""


def explain(
    compiled: Compiled,
    compiled_loops: bool,
    kernels: Sequence[str] = (),
    tuned: Sequence[str] = (),
    level: int = 1,
    devices: Sequence[str] = (),
    files: Sequence[str] = (),
) -> str:
    """Outputs, loops, storage and order, each with its reason, and the lines they come from.

    `compiled_loops` says that the backend compiles loops, and so may vectorise them; `kernels` what it does with code
    of its own; `devices` what it spreads over them; `files` what the last call did for its budget. Level 1 has the
    largest and the first of everything, level 2 all.
    """
    short = level < 2
    seconds = {phase: f"{phase} {seconds * 1000:.1f} ms" for phase, seconds in compiled.seconds.items()}
    parts = {
        "outputs": _outputs(compiled),
        "needs": _needs(compiled, short),
        "loops": pseudo_code(compiled.loops, short).rstrip("\n").split("\n"),
        "storage": str(Memory(compiled.loops)).split("\n"),
        "budget": files,
        "passes": _passes(compiled, compiled_loops, MOST_LINES["passes"] if short else None),
        "order": list(_loops(compiled, compiled.schedule)),
        "kernels": kernels,
        "tuned": tuned,
        "devices": devices,
        "lines": [] if short else _lines(compiled),
        "compiled in": [", ".join(seconds.values())],
    }
    if short:
        parts = {title: _first(lines, MOST_LINES.get(title)) for title, lines in parts.items()}
    texts = (line for title, lines in parts.items() if lines for line in (f"{title}:", *(f"  {one}" for one in lines)))
    return "\n".join(texts)


def _first(lines: Sequence[str], most: int | None) -> Sequence[str]:
    if most is None or len(lines) <= most:
        return lines
    return [*lines[:most], f"... and {len(lines) - most} more: explain(level=2)"]


def _needs(compiled: Compiled, short: bool) -> list[str]:
    """The conditions on bounds with what needs them, in short only the first."""
    reasons: dict[str, list[str]] = {}
    for requirement in compiled.graph.requirements:
        reasons.setdefault(str(requirement.condition), []).append(requirement.why)
    return [f"{condition}: {why}" for condition, found in reasons.items() for why in (found[:1] if short else found)]


def _outputs(compiled: Compiled) -> list[str]:
    lines = []
    for name in compiled.graph.outputs:
        node = compiled.graph[name]
        dims = f" over {', '.join(map(str, node.symbols))}" if node.symbols else ""
        lines.append(f"{described(node)}: {node.type}{dims}")
    return lines


def notes_of(compiled: Compiled, compiled_loops: bool) -> tuple[Note, ...]:
    """What every pass did or refused, those after the graph included."""
    fused = fusion_notes.notes_of(compiled.graph, compiled.blocks)
    tiled = fusion_notes.tile_notes(compiled.graph, compiled.schedule)
    return (*compiled.notes, *fused, *tiled, *loop_notes.notes_of(compiled.loops, compiled_loops))


def _passes(compiled: Compiled, compiled_loops: bool, most: int | None) -> list[str]:
    """What each pass did where and what that saved, then what it refused; the same at one place is counted.

    With more lines than `most`, the same at any place is counted.
    """
    notes = notes_of(compiled, compiled_loops)
    lines = _counted(notes, lambda note: note.at.shown if note.at is not None else "")
    return lines if most is None or len(lines) <= most else _counted(notes, lambda note: "")


def _counted(notes: Sequence[Note], place: Callable[[Note], str]) -> list[str]:
    counted: dict[tuple[str, str, str, bool], list[Note]] = {}
    for note in notes:
        counted.setdefault((note.by, note.rule, place(note), note.refused), []).append(note)
    lines = []
    for (by, rule, where, refused), same in counted.items():
        places = {note.at.shown for note in same if note.at is not None}
        at = f" at {where}" if where else f" at {len(places)} places" if len(places) > 1 else ""
        at = f" at {next(iter(places))}" if not where and len(places) == 1 else at
        times = f" {len(same)} times" if len(same) > 1 else ""
        verb = "refused " if refused else ""
        example = "for example " if len(places) > 1 else ""
        lines.append(f"{by}: {verb}{rule}{times}{at}: {example}{same[0].what}{_saved(same)}")
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
    text = f"; saves {', '.join(saved)}" if saved else ""
    return f"{text}; stores {-written} bytes more" if costs else text


def _lines(compiled: Compiled) -> list[str]:
    """The user's line, or the part of a library, of everything that is stored."""
    places = (place for place in compiled.loops.places.values() if place.at is not None)
    return [f"{place.name}: {place.at.shown}" for place in places if place.at is not None]


def _loops(compiled: Compiled, items: Sequence[Item], indent: str = "") -> Iterator[str]:
    """Every loop with its members, how late they run, and why loops that follow it are not the same loop."""
    blocks = compiled.blocks
    for number, item in enumerate(items):
        if not isinstance(item, Loop):
            yield f"{indent}{blocks[item].node}: once"
            continue
        yield f"{indent}loop over {item.counter}:"
        for line in dict.fromkeys(_when(blocks[name].node, member) for name, member in item.members.items()):
            if line:
                yield f"{indent}  {line}"
        later = dict.fromkeys(line for other in items[number + 1 :] for line in _between(compiled, item, other))
        yield from (f"{indent}  {line}" for line in later)
        yield from _loops(compiled, [part for part in item.body if isinstance(part, Loop)], indent + "  ")


def _when(name: str, member: Member) -> str:
    """In which iteration of a loop a tensor is computed, where that is not the one of its own step."""
    if member.dim is None:
        return f"{name} runs in iteration {member.time}"
    if member.rate < 0:
        return f"{name} runs backwards: {member.dim} in iteration {member.time}"
    if member.rate != 1 or member.offset.symbols or member.offset.constant:
        return f"{name} at step {member.dim} runs in iteration {member.time}"
    return ""


def _between(compiled: Compiled, loop: Loop, later: Item) -> Iterator[str]:
    """The first dependence that keeps two loops from being one."""
    readers = set(later.members) if isinstance(later, Loop) else {later}
    for dependence in compiled.dependences:
        if dependence.source in loop.members and dependence.reader in readers:
            reader = compiled.blocks[dependence.reader].node
            yield f"ends before {reader} begins, which reads {dependence.why} at distances without a bound"
            return
