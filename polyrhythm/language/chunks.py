"""How many steps of a parallel loop run at once: one mechanism behind loops, vectors and tiles.

A chunk of one step is a loop, a chunk of all steps a vector, and anything between a tile: a run-time number of
chunks of a static size, the last one partly empty. The compiler chooses by a cost model (`loops/cost.py`) among those
whose largest values fit into what a run may take. A user may choose, or have it measured with `schedule="measure"`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from polyrhythm.errors import DeclarationError


@dataclass(frozen=True)
class Chunk:
    """How many steps of a dim run at once; None is all of them, `over` devices along axes of a mesh perhaps."""

    steps: int | None
    over: tuple[str, ...] = field(default=(), repr=False)

    def wish(self, dim: object) -> str:
        """What the user wrote to have it."""
        if self.over:
            return f"shard={{{dim}: {self.over[0]!r}}}" if len(self.over) == 1 else f"shard={{{dim}: {self.over}}}"
        return f"schedule={{{dim}: {self}}}"

    def otherwise(self, dim: object) -> str:
        """What to do where it cannot be."""
        if self.over:
            return f"leave {dim} out of shard=, and spread a dim whose steps are independent"
        return f"leave {dim} out of schedule=, which lets the compiler choose, or write {{{dim}: pr.loop()}}"

    def __str__(self) -> str:
        return {None: "pr.vector()", 1: "pr.loop()"}.get(self.steps, f"pr.chunk({self.steps})")


def loop() -> Chunk:
    """One step after the other.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> pr.compile(pr.exp(x), schedule={t: pr.loop()})(x=[0.0, 0.0])
    array([1., 1.], dtype=float32)
    """
    return Chunk(1)


def vector() -> Chunk:
    """All steps at once.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> pr.compile(pr.exp(x), schedule={t: pr.vector()})(x=[0.0, 0.0])
    array([1., 1.], dtype=float32)
    """
    return Chunk(None)


def chunk(steps: int) -> Chunk:
    """So many steps at once, then the next so many.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> pr.compile(pr.exp(x), schedule={t: pr.chunk(2)})(x=[0.0, 0.0, 0.0])
    array([1., 1., 1.], dtype=float32)
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise DeclarationError(f"a chunk of {steps} steps", fix="give a number of steps, as in pr.chunk(256)")
    return Chunk(steps)
