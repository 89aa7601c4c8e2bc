"""Schedule directives: how a dim of a layer is mapped to the accelerator.

The same three objects steer the hand-built layers of this package and the lowering of recurrent tensors: `tile` cuts a
dim into tiles, `time_multiplex` lets several branches share a region, `parallelize` deals a dim out to regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.stream.errors import DirectiveMismatch

Policy = Literal["coarse", "interleave", "dynamic"]


class On:
    """The tensors whose operations a directive is for, with whatever lies between them.

    >>> On(()).tensors
    ()
    """

    def __init__(self, tensors: Tensor | Sequence[Tensor]) -> None:
        self.tensors = (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, On) and list(map(id, self.tensors)) == list(map(id, other.tensors))

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.tensors)))

    def __str__(self) -> str:
        lines = ", ".join(dict.fromkeys(str(tensor.line.line) for tensor in self.tensors))
        return f", on=line {lines}" if self.tensors else ""


EVERYWHERE = On(())


@dataclass(frozen=True)
class TileDirective:
    """Cut `dim` into tiles of `size`; with `dynamic`, into one tile of whatever size there is."""

    dim: str | Dim
    size: int | None
    dynamic: bool
    on: On = EVERYWHERE

    def __str__(self) -> str:
        return f"tile({str(self.dim)!r}, {'dynamic=True' if self.dynamic else self.size}{self.on})"


@dataclass(frozen=True)
class TimeMultiplexDirective:
    """Let the branches along `dim` share `regions` regions."""

    dim: str | Dim
    regions: int
    on: On = EVERYWHERE

    def __str__(self) -> str:
        return f"time_multiplex({str(self.dim)!r}, {self.regions})"


@dataclass(frozen=True)
class ParallelizeDirective:
    """Deal `dim` out to `regions` regions by `policy`; a coarse block has at least `block` entries."""

    dim: str | Dim
    regions: int
    policy: Policy
    block: int
    on: On = EVERYWHERE

    def __str__(self) -> str:
        return f"parallelize({str(self.dim)!r}, {self.regions}, {self.policy!r}{self.on})"


Directive = TileDirective | TimeMultiplexDirective | ParallelizeDirective


def tile(
    dim: str | Dim, size: int | None = None, *, dynamic: bool = False, on: Tensor | Sequence[Tensor] = ()
) -> TileDirective:
    """Cut a dim into tiles of a fixed size, or, with `dynamic`, into one tile as large as the data.

    With `on`, only for the operations that compute these tensors, and those between them.

    >>> tile("token", dynamic=True).dynamic, tile("token", 16).size
    (True, 16)
    """
    if (size is None) != dynamic:
        raise DirectiveMismatch(
            f"tile({dim!r}, {size}, dynamic={dynamic})", fix="give either a size or dynamic=True, not both"
        )
    found = TileDirective(dim, size, dynamic, On(on))
    if not dynamic:
        _check_count(found, "size", size)
    return found


def time_multiplex(dim: str | Dim, regions: int) -> TimeMultiplexDirective:
    """Let consecutive branches along a dim share regions of the accelerator.

    >>> time_multiplex("expert", regions=8).regions
    8
    """
    found = TimeMultiplexDirective(dim, regions)
    _check_count(found, "number of regions", regions)
    return found


def parallelize(
    dim: str | Dim,
    regions: int,
    policy: Policy = "dynamic",
    block: int = 16,
    *,
    on: Tensor | Sequence[Tensor] = (),
) -> ParallelizeDirective:
    """Deal a dim out to regions: in blocks (coarse), in rotation (interleave), or to whoever is free (dynamic).

    Coarse blocks of `block` entries go to the regions in turn. With `on`, only the operations that compute these
    tensors, and those between them, are dealt out; tiles of the dim without an `on` are then for the others.

    >>> parallelize("request", regions=4).policy
    'dynamic'
    """
    if policy not in ("coarse", "interleave", "dynamic"):
        raise DirectiveMismatch(
            f"parallelize({str(dim)!r}, ..., {policy!r}): there is no such policy",
            fix="choose coarse, interleave or dynamic",
        )
    found = ParallelizeDirective(dim, regions, policy, block, On(on))
    _check_count(found, "number of regions", regions)
    _check_count(found, "block", block)
    return found


def _check_count(directive: Directive, what: str, count: object) -> None:
    """Sizes and numbers of regions are whole numbers from one on, and dims are dims or their names."""
    if not isinstance(directive.dim, str | Dim):
        raise DirectiveMismatch(
            f"{directive}: {directive.dim!r} is no dim", fix="give a dim of the program or its name"
        )
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise DirectiveMismatch(f"{directive}: the {what} is {count!r}", fix="give a whole number of at least 1")
