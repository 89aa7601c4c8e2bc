"""What devices say to each other and compute on 8, 64 and 512 of them: `python -m benchmarks.scaling`.

Each program is compiled for so many forced host devices, and its collectives are read from what XLA made of it. What
a step has to move is said on paper first, from what the program declares: the shapes of its parameters and inputs, and
its schedule. Both have to agree to the byte, but for means that PPO takes over a minibatch, or the command fails. A
step is an iteration of the loop that moves most.
Shares of a batch or a sequence are the same on any number of devices, weights are those of the whole model. Forced host
devices show collectives and correctness, never speed: there are no seconds here.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import OUT, where_and_when
from polyrhythm.compiler.backends.jax.run.collectives import Collective

DEVICES = (8, 64, 512)
Made = tuple[Any, dict[str, int]]
"""A program on a mesh of some devices, and its bounds."""


@dataclass(frozen=True)
class Row:
    """A program, and the bytes of each kind of collective that one of its steps needs on paper."""

    name: str
    make: Callable[[int], Made]
    paper: Callable[[Any, int], dict[str, int]]
    why: str
    scalars: int = 0  # so many bytes of single numbers may come on top
    most: int = max(DEVICES)  # as many devices as it can be spread over


def _mesh(devices: int, name: str = "data") -> Any:
    import jax

    return jax.make_mesh((devices,), (name,), devices=jax.devices()[:devices])


def _trained(devices: int) -> Made:
    import polyrhythm as pr
    from tests.devices.mesh_programs import training

    outputs, b, *_ = training()
    return pr.compile(outputs, mesh=_mesh(devices), shard={b: "data"}), {"B": 64 * devices, "I": 8}


def _fully_sharded(devices: int) -> Made:
    import polyrhythm as pr
    from tests.devices.mesh_programs import training

    outputs, b, *_ = training(512, 16)
    shard = {b: "data", "w1": ("data",)}
    return pr.compile(outputs, mesh=_mesh(devices), shard=shard), {"B": 64 * devices, "I": 8}


def _texts(devices: int) -> Made:
    import polyrhythm as pr
    from tests.devices.mesh_programs import decoding

    h, s, *_ = decoding()
    return pr.compile(h, mesh=_mesh(devices), shard={s: "data"}), {"B": 8 * devices, "T": 64}


def _heads(devices: int) -> Made:
    import polyrhythm as pr
    from tests.devices.mesh_programs import HEADS, decoding

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
    from tests.devices.mesh_programs import attention

    y, _, t, _ = attention()
    return pr.compile(y, mesh=_mesh(devices), shard={t: "data"}), {"B": 1, "T": 16 * devices}


def _heat(devices: int) -> Made:
    import polyrhythm as pr
    from tests.devices.mesh_programs import heat

    h, t = heat()
    return pr.compile(h, mesh=_mesh(devices), shard={t: "data"}), {"I": 8, "T": 16 * devices}


def _agent(devices: int) -> Made:
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
    program = scoring(model.config, 1, None, "jax", **devices_of(model.mesh, model.specs))
    return program, {symbol.name: 64 for symbol in program.compiled.loops.bounds}


FLOAT = 4


def _bytes(program: Any, *names: str) -> int:
    """What some inputs or parameters of a program take, of each of its dims one step; all parameters without names."""
    if not names:
        return sum(FLOAT * math.prod(np.shape(array)) for array in program.params.values())
    shapes = [program.compiled.graph.inputs[name].shape for name in names]
    return sum(FLOAT * math.prod(int(str(n)) for n in shape) for shape in shapes)


def _row(program: Any, name: str) -> int:
    """What one row of a matrix takes, which is what a product with it makes of one row."""
    return FLOAT * int(str(program.compiled.graph.inputs[name].shape[-1]))


TEXTS, ROWS_EACH, STEPS_EACH, TOKENS = 4, 64, 16, 64

ROWS = [
    Row(
        "training, data parallel",
        _trained,
        lambda program, n: {"all-reduce": _bytes(program, "w1", "w2") + FLOAT},
        "gradients of all parameters, and the loss",
    ),
    Row(
        "training, fully sharded",
        _fully_sharded,
        lambda program, n: {
            "all-gather": _bytes(program, "w1"),
            "all-reduce": _bytes(program, "w1", "w2") + FLOAT,
        },
        "the spread parameter; gradients, which XLA on CPU sums whole before each device keeps its part, and the loss",
    ),
    Row("decoding, by sequence", _texts, lambda program, n: {}, "nothing: sequences share nothing"),
    Row(
        "decoding, by head",
        _heads,
        lambda program, n: {"all-reduce": TEXTS * _row(program, "o")},
        "what attention adds to each of 4 texts",
    ),
    Row(
        "perceptron, tensor parallel",
        _perceptron,
        lambda program, n: {"all-reduce": ROWS_EACH * _row(program, "w2")},
        "the outputs of 64 rows",
    ),
    Row(
        "attention, ring",
        _ring,
        lambda program, n: {"collective-permute": STEPS_EACH * (_made(program, "k") + _made(program, "v"))},
        "keys and values of a device's 16 steps go to the next device",
    ),
    Row(
        "stencil, halo exchange",
        _heat,
        lambda program, n: {"collective-permute": 2 * FLOAT},
        "one number to each neighbour",
    ),
    Row(
        "PPO",
        _agent,
        lambda program, n: {"all-reduce": _bytes(program)},
        "gradients of actor and critic; and means over a minibatch, at most 64 bytes",
        64,
    ),
    Row(
        "language model, by head",
        _language_model,
        lambda program, n: {"all-reduce": 2 * TOKENS * _bytes(program, "model.norm.weight") + FLOAT},
        "in each layer what attention and the perceptron add to 64 tokens, and whether all keys are finite",
        most=8,
    ),
]


def _made(program: Any, name: str) -> int:
    """What a product with weights (inputs, heads, size) makes of one step."""
    _, *made = program.compiled.graph.inputs[name].shape
    return FLOAT * math.prod(int(str(n)) for n in made)


def counted(program: Any, bounds: dict[str, int]) -> tuple[dict[str, int], int, float]:
    """The bytes of each kind of collective of a step, those that a device sends, and operations of the program."""
    lowered = program.lowered(bounds)
    steps: dict[str, list[Collective]] = {}
    for one in lowered.collectives:
        steps.setdefault(one.where, []).append(one)
    step = max(steps.values(), key=lambda found: sum(one.bytes for one in found), default=[])
    kinds: Counter[str] = Counter()
    for one in step:
        kinds[one.kind] += one.bytes
    return dict(kinds), sum(one.sent for one in step), lowered.cost.get("flops", 0.0)


def compared(rows: Sequence[Row], most: int = max(DEVICES)) -> list[dict[str, str]]:
    """A row of the table for each program and number of devices; raises where paper and program differ."""
    found = []
    for row in rows:
        for devices in (n for n in DEVICES if n <= min(most, row.most)):
            program, bounds = row.make(devices)
            paper, (kinds, sent, flops) = row.paper(program, devices), counted(program, bounds)
            above = {kind: size - paper.get(kind, 0) for kind, size in kinds.items()}
            if kinds.keys() != paper.keys() or any(not 0 <= size <= row.scalars for size in above.values()):
                raise AssertionError(f"{row.name} on {devices} devices: {paper} on paper, {kinds} counted")
            found.append(
                {
                    "program": row.name,
                    "devices": f"{devices}",
                    "collectives of a step, on paper": _told(paper),
                    "counted, bytes": f"{sum(kinds.values()):,}",
                    "sent by a device": f"{sent:,}",
                    "operations of a device": f"{flops:,.0f}",
                    "why": row.why if devices == DEVICES[0] else "",
                }
            )
    return found


def _told(paper: dict[str, int]) -> str:
    return ", ".join(f"{kind} {size:,}" for kind, size in sorted(paper.items())) or "none"


def main() -> None:
    """Run in a process with as many devices, and leave the rows where `benchmarks.tables` finds them."""
    if "--here" in sys.argv:
        found = compared(ROWS)
        for row in found:
            print("  ".join(cell for column, cell in row.items() if column != "why"))
        OUT.mkdir(parents=True, exist_ok=True)
        facts = where_and_when("scaling") | {"command": "python -m benchmarks.scaling"}
        (OUT / "scaling.json").write_text(json.dumps({**facts, "results": found}, indent=1) + "\n")
        return
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={max(DEVICES)}".strip()
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "benchmarks.scaling", "--here"]
    sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
