"""Rotary positions (Su et al., 2021), with the scalings of Hugging Face's `rope_scaling`.

Pairs of elements are turned by angles that grow with the position, each pair at a speed of its own. Two layouts are in
use: Llama pairs element k of the first half with element k of the second; GPT-J pairs neighbours (`interleaved`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import TensorLike, as_tensor, concat, cos, reshape, sin, split, stack, value
from polyrhythm.language.index import Dim, Index
from polyrhythm.language.tensor import Tensor


def rotary_speeds(size: int, base: float = 10000.0, scaling: Mapping[str, Any] | None = None) -> np.ndarray:
    """The angle that each pair is turned by from one position to the next.

    `scaling` is Hugging Face's `rope_scaling`: of type `default`, `linear`, or `llama3`.

    >>> rotary_speeds(4).tolist()
    [1.0, 0.009999999776482582]
    >>> rotary_speeds(4, scaling={"rope_type": "linear", "factor": 2.0}).tolist()
    [0.5, 0.004999999888241291]
    """
    speeds = (1.0 / np.float32(base) ** (np.arange(0, size, 2, dtype=np.float32) / np.float32(size))).astype(np.float32)
    if scaling is None:
        return speeds
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind not in SCALINGS:
        raise DeclarationError(
            f"the scaling {kind!r} of rotary positions is not known; known are {', '.join(SCALINGS)}",
            fix="use a model with one of these",
        )
    needed = NEEDED[kind] - scaling.keys()
    if needed:
        raise DeclarationError(
            f"the scaling {kind!r} of rotary positions lacks {', '.join(sorted(needed))}",
            fix="take `rope_scaling` from the model's config.json as it is",
        )
    return SCALINGS[kind](speeds, scaling).astype(np.float32)


def rotary(
    x: TensorLike,
    position: Dim | Index | Tensor,
    base: float = 10000.0,
    scaling: Mapping[str, Any] | None = None,
    interleaved: bool = False,
) -> Tensor:
    """Turn pairs of elements of the last axis by angles that grow with the position.

    The position is an index expression, or an integer tensor that broadcasts against the other axes of x.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> pr.evaluate(rotary(pr.constant([1.0, 0.0]), t), bounds={T: 2}).round(3).tolist()
    [[1.0, 0.0], [0.5400000214576721, 0.8410000205039978]]
    """
    tensor = as_tensor(x)
    size = int(tensor.shape[-1])
    place = position if isinstance(position, Tensor) else value(position)
    angles = place.cast("float32").unsqueeze(-1) * rotary_speeds(size, base, scaling)
    turn, lift = cos(angles).cast(tensor.dtype), sin(angles).cast(tensor.dtype)
    if interleaved:
        pairs = reshape(tensor, *tensor.shape[:-1], size // 2, 2)
        first, second = pairs.axes[..., 0], pairs.axes[..., 1]
        return reshape(stack([first * turn - second * lift, second * turn + first * lift], -1), *tensor.shape)
    first, second = split(tensor, 2, -1)
    return concat([first * turn - second * lift, second * turn + first * lift], -1)


def _llama3(speeds: np.ndarray, scaling: Mapping[str, Any]) -> np.ndarray:
    """Slow pairs go slower by a factor, fast ones stay, those between are mixed (Llama 3.1)."""
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * speeds / (2 * math.pi)  # in all positions trained on
    fast = np.clip((turns - low) / (high - low), 0, 1)
    return (1 - fast) * speeds / factor + fast * speeds


SCALINGS = {
    "default": lambda speeds, scaling: speeds,
    "linear": lambda speeds, scaling: speeds / scaling["factor"],
    "llama3": _llama3,
}
"""The speeds after each known scaling."""

NEEDED: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
}
"""What each scaling has to say."""
