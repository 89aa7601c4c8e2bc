"""What devices would say to each other on 8, 64 and 512 of them: `python -m benchmarks.scaling`.

Each program is compiled for eight forced host devices, and its collectives are read from the compiled program. What a
step should move follows from the sizes of the program on paper; at eight devices both have to agree, or the command
fails. On more devices each collective moves what its formula says for so many, and a device computes its share. Forced
host devices show collectives and correctness, never speed: there are no seconds here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

COUNTED = 8
DEVICES = (8, 64, 512)


@dataclass(frozen=True)
class Row:
    """A program on eight devices: the bytes of its all-reduces in a step on paper, and where to read those counted."""

    name: str
    program: Any
    bounds: dict[str, int]
    reduced: int


def rows() -> list[Row]:
    """The programs, each on a mesh of all devices."""
    import jax

    import polyrhythm as pr
    from tests.devices.mesh_cases import HEADS, decoding, training

    mesh = jax.make_mesh((COUNTED,), ("data",))
    outputs, b, _, _, _ = training()
    learner = pr.compile(outputs, mesh=mesh, shard={b: "data"})
    h, s, _, _, _ = decoding()
    texts = pr.compile(h, mesh=mesh, shard={s: "data"})
    h, _, _, _, _ = decoding()
    heads = pr.compile(h, mesh=jax.make_mesh((COUNTED,), ("model",)), shard=HEADS)
    parameters = 4 * (8 * 16 + 16)
    return [
        # Gradients and the loss; the loss of the last step, which has no update, is in a loop of its own.
        Row("training, data parallel", learner, {"B": 512, "I": 8}, parameters + 4 + 4),
        Row("decoding, by sequence", texts, {"B": 512, "T": 64}, 0),
        Row("decoding, by head", heads, {"B": 4, "T": 64}, 4 * 4 * 16),  # what attention adds to each of 4 texts
    ]


def table(made: Callable[[], list[Row]] = rows) -> list[str]:
    """A line for each program and number of devices; raises where paper and program differ."""
    lines = [f"{'program':26} {'devices':>7} {'bytes sent by a device in a step':>33} {'flops of a device':>18}"]
    for row in made():
        lowered = row.program.lowered(row.bounds)
        inside = [one for one in lowered.collectives if one.loops]
        counted = sum(one.bytes for one in inside)
        if counted != row.reduced or any(one.kind != "all-reduce" for one in inside):
            raise AssertionError(f"{row.name}: {row.reduced} bytes on paper, {counted} counted: {inside}")
        flops = lowered.cost.get("flops", 0.0)
        for devices in DEVICES:
            sent = sum(replace(one, devices=devices).sent for one in inside)
            share = flops * COUNTED / devices
            lines.append(f"{row.name:26} {devices:7} {sent:33,} {share:18,.0f}")
    return lines


def main() -> None:
    """Run in a process with eight devices."""
    if "--here" in sys.argv:
        print("\n".join(table()))
        return
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={COUNTED}".strip()
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "benchmarks.scaling", "--here"]
    sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
