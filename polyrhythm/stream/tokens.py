"""Tokens: how nested groups travel through a FIFO, empty groups included.

A token is `(value, level)`. A value is an element or `EMPTY`. Level k >= 1 closes a group of rank k; several groups
that close together send only the highest level, and it rides on the last element. A token `(EMPTY, k)` is a bare
stop: it closes the groups below rank k that are still open, then the group of rank k, which is an empty group when
nothing came before it. The end of the stream is the closing of the channel.

    [[1, 2], []] at rank 1  ->  (1, 0) (2, 1) (EMPTY, 1)
    [[[]], []]   at rank 2  ->  (EMPTY, 1) (EMPTY, 2) (EMPTY, 2)

Operators may send a bare stop where the level could have ridden on the element before, because they learned of the
end too late; what is decoded and encoded again has every stop where it can ride.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class _Empty:
    """The value of a bare stop token."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "EMPTY"


EMPTY = _Empty()
Token = tuple[Any, int]


def encode(nested: Sequence[Any], rank: int) -> list[Token]:
    """The tokens of a stream of `rank`, given as nested lists of depth rank + 1.

    >>> encode([[1, 2], [], [3]], 1)
    [(1, 0), (2, 1), (EMPTY, 1), (3, 1)]
    """
    tokens: list[Token] = []
    for group in nested:
        tokens.extend(_encode_group(group, rank))
    return tokens


def _encode_group(group: Any, rank: int) -> list[Token]:
    if rank == 0:
        return [(group, 0)]
    tokens = encode(group, rank - 1)
    if not tokens:
        return [(EMPTY, rank)]
    value, _ = tokens[-1]
    if value is EMPTY:
        return [*tokens, (EMPTY, rank)]
    return [*tokens[:-1], (value, rank)]


def decode(tokens: Iterable[Token], rank: int) -> list[Any]:
    """The nested lists of depth rank + 1 that a token sequence stands for.

    >>> decode([(1, 0), (2, 1), (EMPTY, 1), (3, 1)], 1)
    [[1, 2], [], [3]]
    """
    # open_groups[k] collects the members of the group of rank k + 1 that is being read, or the stream for k = rank.
    open_groups: list[list[Any]] = [[] for _ in range(rank + 1)]
    has_content = [False] * (rank + 1)
    for value, level in tokens:
        if level > rank:
            raise ValueError(f"level {level} in a stream of rank {rank}")
        if value is not EMPTY:
            open_groups[0].append(value)
            has_content[0] = True
        for k in range(1, level + 1):
            if k < level and not has_content[k - 1]:
                continue
            open_groups[k].append(open_groups[k - 1])
            open_groups[k - 1] = []
            has_content[k - 1] = False
            has_content[k] = True
    if any(has_content[:rank]):
        raise ValueError("the stream ended inside a group")
    return open_groups[rank]
