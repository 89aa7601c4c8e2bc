"""What devices say to each other and compute on 8, 64 and 512 of them: `python -m benchmarks.scaling`.

Each program is compiled for so many forced host devices, and its collectives are read from what XLA made of it. What
a step should move follows from the sizes of the program on paper; both have to agree, or the command fails. Shares of
a batch or a sequence are the same on any number of devices, weights are those of the whole model. Forced host devices
show collectives and correctness, never speed: there are no seconds here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DEVICES = (8, 64, 512)
Made = tuple[Any, dict[str, int]]
"""A program on a mesh of some devices, and its bounds."""


@dataclass(frozen=True)
class Row:
    """A program, and the bytes of each kind of collective that one of its steps needs on paper."""

    name: str
    make: Callable[[int], Made]
    paper: Callable[[int], dict[str, int]]
    inside: bool = True  # a step is an iteration; else it is the whole program
    most: int = max(DEVICES)  # as many devices as it can be spread over


def _mesh(devices: int, name: str = "data") -> Any:
    import jax

    return jax.make_mesh((devices,), (name,), devices=jax.devices()[:devices])


def _trained(devices: int) -> Made:
    import polyrhythm as pr
    from tests.devices.mesh_cases import training

    outputs, b, *_ = training()
    return pr.compile(outputs, mesh=_mesh(devices), shard={b: "data"}), {"B": 64 * devices, "I": 8}


def _fully_sharded(devices: int) -> Made:
    import polyrhythm as pr
    from tests.devices.mesh_cases import training

    outputs, b, *_ = training(512, 16)
    shard = {b: "data", "w1": ("data",)}
    return pr.compile(outputs, mesh=_mesh(devices), shard=shard), {"B": 64 * devices, "I": 8}


def _texts(devices: int) -> Made:
    import polyrhythm as pr
    from tests.devices.mesh_cases import decoding

    h, s, *_ = decoding()
    return pr.compile(h, mesh=_mesh(devices), shard={s: "data"}), {"B": 8 * devices, "T": 64}


def _heads(devices: int) -> Made:
    import polyrhythm as pr
    from tests.devices.mesh_cases import HEADS, decoding

    h, *_ = decoding(512)
    return pr.compile(h, mesh=_mesh(devices, "model"), shard=HEADS), {"B": 4, "T": 64}


def _perceptron(devices: int) -> Made:
    import polyrhythm as pr

    b, _ = pr.dim("b")
    x, w1, w2 = pr.input("x", (8,), (b,)), pr.input("w1", (8, 512)), pr.input("w2", (512, 8))
    shard = {"w1": (None, "model"), "w2": ("model",)}
    return pr.compile(pr.tanh(x @ w1) @ w2, mesh=_mesh(devices, "model"), shard=shard), {"B": 64}


def _ring(devices: int) -> Made:
    import polyrhythm as pr
    from tests.devices.mesh_cases import _attention

    y, _, t, _ = _attention()
    return pr.compile(y, mesh=_mesh(devices), shard={t: "data"}), {"B": 1, "T": 16 * devices}


def _heat(devices: int) -> Made:
    import polyrhythm as pr
    from tests.devices.mesh_cases import heat

    h, t = heat()
    return pr.compile(h, mesh=_mesh(devices), shard={t: "data"}), {"I": 8, "T": 16 * devices}


def _agent(devices: int) -> Made:
    import numpy as np

    import polyrhythm as pr
    from polyrhythm import rl

    carts = rl.Arrays(rl.CartPole(), devices)
    model = rl.ActorCritic(carts.observations, carts.actions, (8,), np.random.default_rng(0))
    done = rl.ppo(carts, model, rl.PPOSettings(steps=8, epochs=2, minibatches=2), mesh=_mesh(devices))
    return pr.compile(done.outputs, bounds=done.bounds, mesh=done.mesh), {str(done.iterations): 4}


def _language_model(devices: int) -> Made:
    from polyrhythm import llm
    from polyrhythm.llm.programs import scoring
    from polyrhythm.llm.sharding import devices_of

    sizes = {"num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 2}
    with tempfile.TemporaryDirectory() as folder:
        model = llm.load(llm.write_random(folder, **sizes), mesh=_mesh(devices, "model"))
    program = scoring(model.config, 1, None, "jax", **devices_of(model.mesh, model.specs, 1, ()))
    return program, {symbol.name: 64 for symbol in program.compiled.loops.bounds}


MLP, AGENT = 4 * (8 * 16 + 16), 4 * (2 * (4 * 8 + 8) + 8 * 2 + 2 + 8 + 1)
"""Bytes of the parameters of a perceptron of 8, 16 and 1, and of an actor and a critic of 8 hidden units."""

ROWS = [
    # Gradients and the loss; that of the last step, which has no update, is in a loop of its own.
    Row("training, data parallel", _trained, lambda n: {"all-reduce": MLP + 4 + 4}),
    # The weight for a step, and for the loss of the last; XLA on CPU sums gradients whole before each keeps its part.
    Row(
        "training, fully sharded",
        _fully_sharded,
        lambda n: {"all-gather": 2 * 4 * 512 * 16, "all-reduce": 4 * (512 * 16 + 16) + 4 + 4},
    ),
    Row("decoding, by sequence", _texts, lambda n: {}),
    Row("decoding, by head", _heads, lambda n: {"all-reduce": 4 * 4 * 16}),  # what attention adds to each of 4 texts
    Row("perceptron, tensor parallel", _perceptron, lambda n: {"all-reduce": 4 * 64 * 8}, inside=False),
    # Blocks of 16 keys and of 16 values in one round: 8 heads of 4.
    Row("attention, ring", _ring, lambda n: {"collective-permute": 2 * (4 * 16 * 8 * 4)}),
    Row("stencil, halo exchange", _heat, lambda n: {"collective-permute": 2 * 4}),
    # All gradients of an update, once inside the loop and once for the last update; and means over a minibatch.
    Row("PPO", _agent, lambda n: {"all-reduce": 2 * (AGENT + 20) + 8 + 16}),
    # What attention and the perceptron of a layer add to 64 tokens of width 64; and whether keys are finite.
    Row("language model, by head", _language_model, lambda n: {"all-reduce": 2 * 4 * 64 * 64 + 4}, False, 8),
]


def counted(row: Row, devices: int) -> tuple[dict[str, int], int, float]:
    """The bytes of each kind of collective of a step, those that a device sends, and its operations."""
    program, bounds = row.make(devices)
    lowered = program.lowered(bounds)
    found = [one for one in lowered.collectives if one.loops or not row.inside]
    kinds: Counter[str] = Counter()
    for one in found:
        kinds[one.kind] += one.bytes
    return dict(kinds), sum(one.sent for one in found), lowered.cost.get("flops", 0.0)


def table(rows: list[Row] | None = None, most: int = max(DEVICES)) -> list[str]:
    """A line for each program and number of devices; raises where paper and program differ."""
    lines = [
        f"{'program':28} {'devices':>7} {'bytes of collectives':>21} {'sent by a device':>17} {'flops of a device':>18}"
    ]
    for row in rows or ROWS:
        for devices in (n for n in DEVICES if n <= min(most, row.most)):
            kinds, sent, flops = counted(row, devices)
            if kinds != row.paper(devices):
                raise AssertionError(f"{row.name} on {devices} devices: {row.paper(devices)} on paper, {kinds} counted")
            lines.append(f"{row.name:28} {devices:7} {sum(kinds.values()):21,} {sent:17,} {flops:18,.0f}")
    return lines


def main() -> None:
    """Run in a process with as many devices."""
    if "--here" in sys.argv:
        print("\n".join(table()))
        return
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={max(DEVICES)}".strip()
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "benchmarks.scaling", "--here"]
    sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
