"""Schedule directives: how a dim of a layer is mapped to the accelerator.

The same three objects steer the hand-built layers of this package and the lowering of recurrent tensors: `tile` cuts a
dim into tiles, `time_multiplex` lets several branches share a region, `parallelize` deals a dim out to regions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

from polyrhythm.language.index import Dim
from polyrhythm.stream.errors import DirectiveMismatch

Policy = Literal["coarse", "interleave", "dynamic"]


@dataclass(frozen=True)
class TileDirective:
    """Cut `dim` into tiles of `size`; with `dynamic`, into one tile of whatever size there is."""

    dim: str | Dim
    size: int | None
    dynamic: bool

    def __str__(self) -> str:
        return f"tile({str(self.dim)!r}, {'dynamic=True' if self.dynamic else self.size})"


@dataclass(frozen=True)
class TimeMultiplexDirective:
    """Let the branches along `dim` share `regions` regions."""

    dim: str | Dim
    regions: int

    def __str__(self) -> str:
        return f"time_multiplex({str(self.dim)!r}, {self.regions})"


@dataclass(frozen=True)
class ParallelizeDirective:
    """Deal `dim` out to `regions` regions by `policy`; a coarse block has at least `block` entries."""

    dim: str | Dim
    regions: int
    policy: Policy
    block: int

    def __str__(self) -> str:
        return f"parallelize({str(self.dim)!r}, {self.regions}, {self.policy!r})"


Directive = TileDirective | TimeMultiplexDirective | ParallelizeDirective
DirectiveKind = TypeVar("DirectiveKind", TileDirective, TimeMultiplexDirective, ParallelizeDirective)


def tile(dim: str | Dim, size: int | None = None, *, dynamic: bool = False) -> TileDirective:
    """Cut a dim into tiles of a fixed size, or, with `dynamic`, into one tile as large as the data.

    >>> tile("token", dynamic=True).dynamic, tile("token", 16).size
    (True, 16)
    """
    if (size is None) != dynamic:
        raise DirectiveMismatch(
            f"tile({dim!r}, {size}, dynamic={dynamic})", fix="give either a size or dynamic=True, not both"
        )
    found = TileDirective(dim, size, dynamic)
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


def parallelize(dim: str | Dim, regions: int, policy: Policy = "dynamic", block: int = 16) -> ParallelizeDirective:
    """Deal a dim out to regions: in blocks (coarse), in rotation (interleave), or to whoever is free (dynamic).

    A coarse block has `block` entries, or more where the regions would not hold all of them.

    >>> parallelize("request", regions=4).policy
    'dynamic'
    """
    if policy not in ("coarse", "interleave", "dynamic"):
        raise DirectiveMismatch(
            f"parallelize({str(dim)!r}, ..., {policy!r}): there is no such policy",
            fix="choose coarse, interleave or dynamic",
        )
    found = ParallelizeDirective(dim, regions, policy, block)
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


def find(directives: Iterable[Directive], kind: type[DirectiveKind], dim: str) -> DirectiveKind | None:
    """The directive of one kind for a dim, or None.

    >>> find([tile("token", 16)], TileDirective, "token").size
    16
    """
    for directive in directives:
        if isinstance(directive, kind) and directive.dim == dim:
            return directive
    return None
