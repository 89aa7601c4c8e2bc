"""Rotary positions (Su et al., 2021) and how they are scaled for longer texts.

Pairs of elements are turned by angles that grow with the position, each pair at a speed of its own. The scalings are
those of Hugging Face: linear (Chen et al., 2023), llama3, yarn (Peng et al., 2023), dynamic NTK, and a factor for each
pair, which is also what "longrope" (Ding et al., 2024) has within the length that the model was trained on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from polyrhythm.errors import UnsupportedError
from polyrhythm.language.functions import concat, cos, exp, log, maximum, reshape, sin, split, stack, value
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.fields import Fields

KINDS = ("default", "linear", "llama3", "yarn", "dynamic", "longrope", "factors")


@dataclass(frozen=True)
class Rotary:
    """Rotary positions: the base, how the speeds are scaled, and what part of a head is turned.

    `attention` scales cosine and sine, as yarn and longrope do. With `interleaved` neighbours are pairs, otherwise
    element k of the first half and element k of the second.
    """

    base: float
    kind: str = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192
    factors: tuple[float, ...] = ()
    attention: float = 1.0
    truncate: bool = True
    part: float = 1.0
    interleaved: bool = False

    def speeds(self, size: int) -> np.ndarray:
        """The angle per step of each pair of elements.

        "linear" slows all of them; "factors" each by its own; "llama3" only those that turn less than `high` times
        within the original length, and fully those that turn less than `low` times; "yarn" likewise, by their rank.

        >>> Rotary(10000.0).speeds(4).tolist(), Rotary(10000.0, "linear", 2.0).speeds(4).tolist()
        ([1.0, 0.009999999776482582], [0.5, 0.004999999888241291])
        """
        speeds = self.base ** (-np.arange(0, size, 2) / size)
        if self.kind == "linear":
            speeds = speeds / self.factor
        if self.factors:
            speeds = speeds / np.array(self.factors)
        if self.kind == "llama3":
            turns = self.original * speeds / (2 * np.pi)
            kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
            speeds = kept * speeds + (1 - kept) * speeds / self.factor
        if self.kind == "yarn":
            first, last = self._ranks(size)
            slowed = np.clip((np.arange(size // 2) - first) / (last - first), 0, 1)
            speeds = (1 - slowed) * speeds + slowed * speeds / self.factor
        return speeds.astype(np.float32)

    def _ranks(self, size: int) -> tuple[float, float]:
        """Between which pairs yarn goes over from keeping the speed to slowing it down."""

        def rank(turns: float) -> float:
            return size * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(self.base))

        first, last = rank(self.high), rank(self.low)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, size - 1)
        return first, last + 0.001 if first == last else last

    def angles(self, position: Tensor, size: int) -> Tensor:
        """The angle of each pair at a position. Scaled dynamically, the base grows with the position."""
        step = position.cast("float32")
        if self.kind != "dynamic":
            return step * self.speeds(size)
        length = maximum(step + 1.0, float(self.original)) * (self.factor / self.original)
        grown = log(length - (self.factor - 1.0)) * (size / (size - 2))
        powers = (np.arange(0, size, 2) / size).astype(np.float32)
        return step * exp(-(grown + math.log(self.base)) * powers)

    def turned(self, x: Tensor, at: Dim | Tensor) -> Tensor:
        """Elements of the last axis, turned as far as their position says: a step, or one for each row of a batch."""
        whole = int(x.shape[-1])
        size = int(whole * self.part)
        rest = None if size == whole else x.axes[..., size:]
        x = x if size == whole else x.axes[..., :size]
        position = value(at) if isinstance(at, Dim) else reshape(at, *at.shape, *(1,) * (x.rank - at.rank))
        angles = self.angles(position, size)
        turn, lift = (part(angles) * self.attention for part in (cos, sin))
        turn, lift = turn.cast(x.dtype), lift.cast(x.dtype)
        if self.interleaved:
            pairs = reshape(x, *x.shape[:-1], size // 2, 2)
            first, second = pairs.axes[..., 0], pairs.axes[..., 1]
            both = stack([first * turn - second * lift, second * turn + first * lift], -1)
            result = reshape(both, *x.shape)
        else:
            first, second = split(x, 2, -1)
            result = concat([first * turn - second * lift, second * turn + first * lift], -1)
        return result if rest is None else concat([result, rest], -1)


def read_rotary(
    fields: Fields, base: float = 10000.0, part: float = 1.0, interleaved: bool = False, layer: str | None = None
) -> Rotary:
    """Version 5 keeps base and scaling together, version 4 apart. If a file has both, the older key counts.

    `layer` is a kind of layer whose positions are an object of their own.
    """
    key = "rope_parameters" if fields.get("rope_scaling") in (None, {}) else "rope_scaling"
    scaling = fields.inner(key)
    if any(isinstance(entry, dict) for entry in scaling.given.values()):
        if layer is None:
            raise UnsupportedError(
                f"{fields.path} has {key} = {dict(scaling.given)!r}, positions that differ from layer to layer",
                fix="only models are known whose layers turn alike",
            )
        scaling = scaling.inner(layer)
    base = scaling.real("rope_theta", fields.real("rope_theta", base))
    part = _part(fields, scaling, part)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    kind = "longrope" if kind == "su" else kind
    if kind not in KINDS:
        raise UnsupportedError(
            f"{fields.path} has rope_type = {kind!r}, which is not known", fix=f"known: {', '.join(KINDS[:-1])}"
        )
    made = Rotary(base, kind, part=part, interleaved=interleaved)
    return made if kind == "default" else _scaled(made, fields, scaling)


def _part(fields: Fields, scaling: Fields, default: float) -> float:
    """The part of a head that is turned: at most all of it."""
    part = scaling.real("partial_rotary_factor", fields.real("partial_rotary_factor", default))
    if part > 1:
        raise fields.mismatch("partial_rotary_factor", part, "at most 1")
    return part


def _scaled(made: Rotary, fields: Fields, scaling: Fields) -> Rotary:
    """Positions with the numbers of their scaling."""
    kind = made.kind
    if kind == "factors":  # GGUF files have a tensor of them
        return replace(made, factors=scaling.reals("factors"))
    if kind == "linear":
        return replace(made, factor=scaling.real("factor"))
    if kind == "llama3":
        factor, low, high = (scaling.real(key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
        if low >= high:
            raise fields.mismatch("low_freq_factor", low, f"below high_freq_factor = {high}")
        original = scaling.number("original_max_position_embeddings")
        return replace(made, factor=factor, low=low, high=high, original=original)
    longest = fields.number("max_position_embeddings", 2048)
    if kind == "dynamic":
        return replace(made, factor=scaling.real("factor"), original=longest)
    original = scaling.number(
        "original_max_position_embeddings", fields.number("original_max_position_embeddings", longest)
    )
    factor = scaling.real("factor", longest / original)
    given = scaling.optional_real("attention_factor")
    if kind == "longrope":
        grown = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
        factors = scaling.reals("short_factor")
        return replace(made, factor=factor, original=original, factors=factors, attention=given or grown)
    return replace(
        made,
        factor=factor,
        low=scaling.real("beta_slow", 1.0),
        high=scaling.real("beta_fast", 32.0),
        original=original,
        attention=given or _magnitude(scaling, factor),
        truncate=scaling.flag("truncate", True),
    )


def _magnitude(scaling: Fields, factor: float) -> float:
    """How yarn scales cosine and sine, unless the file says so itself."""
    one, other = scaling.optional_real("mscale"), scaling.optional_real("mscale_all_dim")
    if one and other:
        return magnitude(factor, one) / magnitude(factor, other)
    return magnitude(factor)


def magnitude(factor: float, weight: float = 1.0) -> float:
    """The growth of attention's temperature with a text `factor` times as long, by yarn's formula."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
