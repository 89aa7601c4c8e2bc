"""The collectives of a compiled program: what devices say to each other, read from XLA's own text.

Each has a kind, the arrays it makes on a device, and how many devices take part. What a device sends follows from the
usual algorithms on a ring of n devices: an all-reduce sends 2 (n - 1) / n of its bytes, a gather or a scatter
(n - 1) / n, a permutation all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")

_WIDTHS = {"pred": 1, "s4": 1, "u4": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2, "f8": 1}
_WIDTHS |= {"s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16}

_LINE = re.compile(rf"^\s*(?:ROOT )?%?[\w.-]+ = (.*?) ({'|'.join(KINDS)})(?:-start)?\((.*)$")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_OPENING = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{\s*$")
_CALLED = re.compile(r"(?:body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")


@dataclass(frozen=True)
class Collective:
    """One collective: the arrays that it makes on each device, and among how many; `loops` are around `where` it is."""

    kind: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    devices: int
    loops: int = 0
    where: str = ""

    @property
    def bytes(self) -> int:
        """The bytes of what it makes on a device."""
        return sum(math.prod(shape) * _WIDTHS.get(dtype, 4) for dtype, shape in self.shapes)

    @property
    def sent(self) -> int:
        """The bytes that a device sends, on a ring."""
        n = self.devices
        if self.kind == "all-reduce":
            return 2 * (n - 1) * self.bytes // n
        if self.kind == "reduce-scatter":
            return (n - 1) * self.bytes
        return self.bytes if "permute" in self.kind or "broadcast" in self.kind else (n - 1) * self.bytes // n

    def __str__(self) -> str:
        arrays = ", ".join(f"{dtype}[{', '.join(map(str, shape))}]" for dtype, shape in self.shapes)
        often = " in each iteration" if self.loops else ""
        return f"{self.kind} of {arrays} among {self.devices} devices: {self.bytes:,} bytes, {self.sent:,} sent{often}"


def collectives(text: str, devices: int) -> list[Collective]:
    """All collectives in the text of a compiled program that runs on some number of devices.

    >>> line = "  %all-reduce.1 = f32[8,2]{1,0} all-reduce(%x), replica_groups={{0,1},{2,3}}, to_apply=%add"
    >>> found = collectives("ENTRY %main (x: f32[8,2]) -> f32[8,2] {\\n" + line + "\\n}", 4)
    >>> print(found[0])
    all-reduce of f32[8, 2] among 2 devices: 64 bytes, 64 sent
    >>> for groups in ("mesh['x'=2,'y'=4] {'y'}", "mesh['x'=1,'y'=2,'z'=4], device_ids=([4,2]T(1,0)) {'y'}"):
    ...     own = line.replace("{{0,1},{2,3}}", groups)
    ...     print(collectives("ENTRY %main (x: f32[8,2]) -> f32[8,2] {\\n" + own + "\\n}", 8)[0].devices)
    4
    2
    """
    depths = _depths(text)
    return [
        Collective(kind, arrays, _among(rest, devices), depths.get(where, 0), where)
        for where, kind, arrays, rest in _lines(text)
    ]


def _lines(text: str) -> Iterator[tuple[str, str, tuple[tuple[str, tuple[int, ...]], ...], str]]:
    where = ""
    for line in text.splitlines():
        opening = _OPENING.match(line)
        if opening and not line.startswith(" "):
            where = opening[1]
        found = _LINE.match(line)
        if found:
            made = [(dtype, tuple(int(n) for n in dims.split(",") if n)) for dtype, dims in _ARRAY.findall(found[1])]
            if f"{found[2]}-start(" in line:
                made = made[len(made) // 2 :]  # operands come first
            yield where, found[2], tuple(made), found[3]


def _among(rest: str, devices: int) -> int:
    """How many devices a collective is among."""
    listed = re.search(r"replica_groups=\{\{([\d,]*)\}", rest)
    if listed:
        return len(listed[1].split(","))
    tiled = re.search(r"replica_groups=\[(\d+),(\d+)\]", rest)
    if tiled:
        return int(tiled[2])
    named = re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", rest)
    if named is None:
        return devices
    sizes = {name: int(n) for name, n in re.findall(r"'([^']+)'=(\d+)", named[1])}
    return math.prod(sizes[name] for name in re.findall(r"'([^']+)'", named[2]) if name in sizes)


def _depths(text: str) -> dict[str, int]:
    """How many loops each computation is inside of."""
    calls: dict[str, list[tuple[str, int]]] = {}
    where = entry = ""
    for line in text.splitlines():
        opening = _OPENING.match(line)
        if opening and not line.startswith(" "):
            where = opening[1]
            entry = where if line.startswith("ENTRY") else entry
            calls.setdefault(where, [])
            continue
        looped = int(" while(" in line)
        names = _CALLED.findall(line) + [n.strip().lstrip("%") for g in _BRANCHES.findall(line) for n in g.split(",")]
        calls.setdefault(where, []).extend((name, looped) for name in names)
    depths: dict[str, int] = {entry: 0}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        for called, looped in calls.get(name, ()):
            depth = depths[name] + looped
            if depths.get(called, -1) < depth:
                depths[called] = depth
                waiting.append(called)
    return depths
