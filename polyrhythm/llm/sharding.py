"""`llm.load(path, mesh=mesh)`: how a language model is spread over devices.

The axis `model` of a mesh, or its only axis, spreads weights as Megatron-LM does: the matrices that make heads and
hidden units by what they make, those that read them by what they read, so that attention and the perceptron of a layer
each need one all-reduce. Keys and values so far lie with their heads. The axis `data` spreads the sequences of a batch,
which share nothing; one alone is computed on every device. A matrix whose heads or units do not divide into as many
parts is on every device.
"""

from __future__ import annotations

import math
import re
from typing import Any

from polyrhythm.llm.config import Config
from polyrhythm.llm.quantised import OFFSETS, SCALES

MAKES = re.compile(r"\.(q_proj|k_proj|v_proj|gate_proj|up_proj)\.(weight|bias)$")
READS = re.compile(r"\.(o_proj|down_proj)\.weight$")
FACTOR = re.compile(f"({re.escape(SCALES)}|{re.escape(OFFSETS)})$")
OUTPUT = "lm_head.weight"
MANY = 8
"""From so many sequences on their number is a multiple of it: a row more costs little as long as weights are read."""


def weight_specs(config: Config, shapes: dict[str, tuple[int, ...]], mesh: Any) -> dict[str, tuple[str | None, ...]]:
    """Over which axis of the mesh each axis of a weight goes; weights that are not named are on every device."""
    axis = "model" if "model" in mesh.shape else next((name for name in mesh.shape if name != "data"), None)
    if axis is None:
        return {}
    ways = mesh.shape[axis]
    found: dict[str, tuple[str | None, ...]] = {}
    for name, shape in shapes.items():
        own = FACTOR.sub("", name)
        at = _axis(own, shape)
        if at is None or not _divides(config, own, shapes[own][at], ways):
            continue
        if own in config.formats and at == len(shape) - 1 and not _splits(config, own, shapes, ways):
            continue
        if shape[at] % ways:  # the only scale of a row, which every device has
            continue
        found[name] = tuple(axis if number == at else None for number in range(len(shape)))
    return found


def _axis(name: str, shape: tuple[int, ...]) -> int | None:
    """The axis of heads, hidden units or words of a weight, if it has one."""
    made = MAKES.search(name)
    if made is not None:
        return len(shape) - (1 if made[2] == "bias" else 2)
    if READS.search(name):
        return len(shape) - 1
    return len(shape) - 2 if name == OUTPUT else None


def _divides(config: Config, name: str, length: int, ways: int) -> bool:
    """Whether every device gets whole heads."""
    if ".self_attn." in name:
        heads = config.kv_heads if re.search(r"\.[kv]_proj\.", name) else config.heads
        return math.gcd(heads, config.kv_heads) % ways == 0
    return length % ways == 0


def _splits(config: Config, name: str, shapes: dict[str, tuple[int, ...]], ways: int) -> bool:
    """Whether every device gets whole blocks of the codes along a row, or parts of the only one."""
    blocks = shapes[name + SCALES][-1]
    return blocks % ways == 0 or (blocks == 1 and config.formats[name].bits == 8)


def sequences_on(mesh: Any, batch: int) -> int:
    """How many sequences a program has for so many prompts: few numbers, and as many on each device.

    A power of two, or a multiple of eight, so that another number of prompts seldom needs another program. The last
    ones may say nothing.

    >>> [sequences_on(None, batch) for batch in (1, 2, 3, 5, 8, 9, 17)]
    [1, 2, 4, 8, 8, 16, 24]
    """
    batch = 1 << (batch - 1).bit_length() if batch <= MANY else -(-batch // MANY) * MANY
    ways = 1 if mesh is None or batch == 1 else mesh.shape.get("data", 1)
    return -(-batch // ways) * ways


def devices_of(mesh: Any, specs: dict[str, tuple[str | None, ...]], scores: bool = True) -> dict[str, Any]:
    """What a program is compiled with so that its weights are spread; its sequences are by their dim (`batches.py`).

    One that makes no `scores` does not read the output layer.
    """
    if mesh is None:
        return {}
    return {
        "mesh": mesh,
        "shard": {name: spec for name, spec in specs.items() if scores or FACTOR.sub("", name) != OUTPUT},
    }


def spread_weights(weights: dict[str, Any], specs: dict[str, tuple[str | None, ...]], mesh: Any) -> dict[str, Any]:
    """Weights on their devices, moved there once."""
    from jax.sharding import NamedSharding, PartitionSpec

    from polyrhythm.compiler.backends.jax.run.mesh import put
    from polyrhythm.compiler.backends.jax.run.placing import auto_mesh

    whole = auto_mesh(mesh)
    return {name: put(w, NamedSharding(whole, PartitionSpec(*specs.get(name, ())))) for name, w in weights.items()}
