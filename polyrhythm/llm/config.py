"""What a model is: its sizes, what each layer does, and what is done between them.

A family reads its `config.json` into a `Config` (see `polyrhythm.llm.families`). Nothing is guessed: a value that
decides what the model computes and is not understood is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyrhythm.llm.quantised import Format
from polyrhythm.llm.rope import Rotary


@dataclass(frozen=True)
class Kind:
    """What a layer does where layers differ: a window, positions, experts, or something else than attention."""

    window: int | None = None
    rotary: Rotary | None = None
    experts: bool = False
    mixer: str = "attention"


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: of `count` networks each token goes through the `active` ones that its router prefers.

    `normalised` makes their weights add up to 1; `shared` is the size of a network that every token goes through, and
    `gated` whether that one has a gate. `groups` and `active_groups` restrict the choice (DeepSeek); `scale` multiplies
    the weights. `form` is the family's own way of routing.
    """

    count: int
    active: int
    hidden: int
    normalised: bool = False
    shared: int = 0
    gated: bool = False
    form: str = "softmax"
    groups: int = 1
    active_groups: int = 1
    scale: float = 1.0


@dataclass(frozen=True)
class Config:
    """The sizes of a model, and what it does between them. Defaults are those of Llama."""

    family: str
    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    epsilon: float
    activation: str
    positions: int
    tied: bool
    kinds: tuple[Kind, ...]
    dtype: np.dtype = np.dtype("float32")  # noqa: RUF009
    ends: tuple[int, ...] = ()
    begin: int | None = None
    limit: int | None = None  # the longest text, where positions are learnt
    norm: str = "rms"  # rms, rms+1 (Gemma), layer, or layer without a bias
    order: str = "pre"  # where the norms are: pre, post, both, or pre with attention and network in parallel
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: str | None = None  # of each head, or of the whole width
    scale: float | None = None  # of attention, instead of one over the root of the size of a head
    softcap: float | None = None  # of the scores of attention
    final_softcap: float | None = None  # of the logits
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    experts: Experts | None = None
    wide: bool = False  # whether what layers add to is float32 whatever the weights are
    detail: Any = None  # what only one family has
    kv_dtype: np.dtype | None = None  # of stored keys and values, where not that of the weights
    formats: Mapping[str, Format] = field(default_factory=dict)  # of the weights that are quantised

    @property
    def group(self) -> int:
        """How many heads of queries share one head of keys."""
        return self.heads // self.kv_heads

    @property
    def window(self) -> int | None:
        """The window of all layers; None if one of them attends to everything."""
        sizes = [kind.window for kind in self.kinds]
        return None if None in sizes else max(size for size in sizes if size is not None)


@dataclass(frozen=True)
class Stack:
    """Layers that are one loop: `repeats` times the `period` layers from `start` on."""

    start: int
    period: int
    repeats: int


def stacks(kinds: Sequence[Any]) -> list[Stack]:
    """The loops that layers make: in each, the kinds of layers repeat with a period.

    >>> stacks("sssss"), stacks("sfsfs")
    ([Stack(start=0, period=1, repeats=5)], [Stack(start=0, period=2, repeats=2), Stack(start=4, period=1, repeats=1)])
    """
    found: list[Stack] = []
    start = 0
    while start < len(kinds):
        best = Stack(start, 1, 1)
        for period in range(1, (len(kinds) - start) // 2 + 1):
            first, repeats = kinds[start : start + period], 1
            while kinds[start + repeats * period : start + (repeats + 1) * period] == first:
                repeats += 1
            if repeats > 1 and repeats * period > best.repeats * best.period:
                best = Stack(start, period, repeats)
        found.append(best)
        start += best.repeats * best.period
    return found
