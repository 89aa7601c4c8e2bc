"""What a choice costs on a machine: a few rates, and the choices that follow from them.

How many independent steps run at once, a *chunk*, is a trade. Each chunk starts its operations anew and reads again
what all steps share, which speaks for large ones. What a chunk computes and reads back should stay in the cache, which
speaks for small ones. `seconds_of` adds this up: bytes over the rate of where they lie, operations times what it takes
to start one. `chunk_for` compares powers of two. The model is rough, so all steps at once, which needs no loop, is
given up only where a tile is predicted to be clearly faster.

The rates are round figures until the machine is calibrated (`jax/run/calibration.py`), so that the same program
is compiled the same way everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

TILE_SHARE = 0.7
"""Tile only if predicted to take at most this share of the time of the untiled loop."""

LEAST = 512
"""Steps: the least capacity of a growing buffer, over which growing has to pay for itself."""

GROWING = 4
"""The cost of growing buffers in calls of XLA: about a millisecond, 2 to 3 with a dozen buffers."""


@dataclass(frozen=True)
class Machine:
    """The rates of a machine: seconds, bytes, and bytes a second.

    `call` is what it takes to start one more program and to copy its state, `launch` to start an operation inside one.
    Values of up to `cache` bytes move at the rate `near`, others at the rate `far`.
    """

    call: float = 2.3e-4
    launch: float = 2e-6
    near: float = 7e10
    far: float = 3e10
    cache: int = 1 << 25
    calibrated: bool = False


@dataclass(frozen=True)
class Lanes:
    """What the steps of a parallel loop do: how many there are, the operations of one, and the bytes.

    `own` are the bytes that a step computes and reads back by itself, `shared` those that every chunk reads anew.
    """

    count: int
    operations: int
    own: int
    shared: int


def seconds_of(machine: Machine, lanes: Lanes, chunk: int) -> float:
    """What all steps of a loop take, a chunk at a time.

    >>> lanes = Lanes(count=1024, operations=8, own=1 << 16, shared=1 << 20)
    >>> seconds_of(Machine(), lanes, 1) > seconds_of(Machine(), lanes, 1024) > seconds_of(Machine(), lanes, 128)
    True
    """
    chunk = min(chunk, lanes.count)
    chunks, held = -(-lanes.count // max(1, chunk)), chunk * lanes.own
    own = lanes.own / (machine.near if held <= machine.cache else machine.far)
    shared = lanes.shared / (machine.near if held + lanes.shared <= machine.cache else machine.far)
    return chunks * (lanes.operations * machine.launch + shared) + lanes.count * own


def chunk_for(machine: Machine, lanes: Lanes, most: int) -> int | None:
    """How many steps run at once, `most` at most; None is all of them.

    >>> chunk_for(Machine(), Lanes(1024, 8, own=1 << 10, shared=1 << 20), most=1024)
    >>> chunk_for(Machine(), Lanes(4096, 8, own=1 << 16, shared=1 << 20), most=4096)
    512
    >>> chunk_for(Machine(), Lanes(1024, 8, own=1 << 10, shared=1 << 20), most=100)
    64
    """
    tiles = [1 << bits for bits in range(max(1, min(most, lanes.count)).bit_length()) if 1 << bits < lanes.count]
    best = min(reversed(tiles), key=lambda chunk: seconds_of(machine, lanes, chunk), default=None)
    if lanes.count > most:
        return best
    whole = seconds_of(machine, lanes, lanes.count)
    return best if best is not None and seconds_of(machine, lanes, best) < TILE_SHARE * whole else None


def worthwhile(machine: Machine) -> int:
    """The bytes read at a step from which on smaller buffers pay: so that `LEAST` steps make up for growing.

    >>> worthwhile(Machine())
    125781
    """
    return int(machine.near * GROWING * machine.call / LEAST)
