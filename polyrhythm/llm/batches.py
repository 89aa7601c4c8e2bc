"""The sequences of a batch: a dim of the program, whose steps share nothing and run at once.

One sequence needs none. A backend that runs the steps of a dim one after the other has an axis of every value instead,
and so have quantised weights, of which a row is decoded into a slot that all lanes would share, and texts of a grammar:
what may follow is given step by step, and steps with a dim in them may choose before the last choice has been handed
over. The definitions of a model hold for both, since what they say is about the last axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polyrhythm.language.chunks import vector
from polyrhythm.language.functions import all as all_of
from polyrhythm.language.index import Bound, Dim, dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.runtime.program import Program, compile
from polyrhythm.runtime.settings import quiet


@dataclass(frozen=True)
class Batch:
    """So many sequences: what every value of theirs has beside its own dims and axes."""

    count: int
    backend: str
    axis: bool
    b: Dim
    B: Bound

    @staticmethod
    def of(count: int, backend: str, axis: bool = False) -> Batch:
        """Sequences of a program for a backend; `axis` says that they cannot be a dim."""
        return Batch(count, backend, axis, *dim("b"))

    @property
    def is_dim(self) -> bool:
        """Whether the sequences are the steps of a dim."""
        return self.count > 1 and self.backend == "jax" and not self.axis

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dim of the sequences, which comes after that of steps."""
        return (self.b,) if self.is_dim else ()

    @property
    def axes(self) -> tuple[int, ...]:
        """The axis of the sequences, before all others."""
        return () if self.is_dim or self.count == 1 else (self.count,)

    def all(self, x: Tensor) -> Tensor:
        """Whether something holds for all sequences."""
        if self.is_dim:
            return all_of(x[{self.b: slice(0, self.B)}], 0)
        return all_of(x, 0) if self.axes else x

    def compiled(
        self, outputs: Any, bounds: dict[Bound, int], mesh: Any = None, shard: Any = None, **how: Any
    ) -> Program:
        """The program of some outputs, on a mesh with its sequences over the axis `data`."""
        if self.is_dim:
            bounds = {**bounds, self.B: self.count}
            if mesh is not None and "data" in mesh.shape:
                shard = {**(shard or {}), self.b: "data"}
            else:
                how["schedule"] = {self.b: vector()}
        with quiet():
            return compile(outputs, bounds=bounds, backend=self.backend, mesh=mesh, shard=shard, **how)
