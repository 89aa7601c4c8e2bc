"""Train a perceptron on a mesh of devices: data by rows, weights and the state of the optimiser by columns.

    python examples/sharded_training.py                      # eight devices, forced on this CPU
    polyrhythm launch -n 2 examples/sharded_training.py run  # two processes, with checkpoints in the folder `run`

The program is the one for a single device. What is spread is said where it is compiled, and the results are the same up
to rounding. At the end it prints what the devices say to each other in a step.
"""

import os
import sys

if "POLYRHYTHM_PROCESSES" not in os.environ:  # started alone: devices are forced before JAX is imported
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import numpy as np

import polyrhythm as pr
from polyrhythm import nn, optim

ROWS, INPUTS, HIDDEN, STEPS = 200, 16, 64, 60


def training() -> tuple[dict[str, pr.Tensor], pr.Dim, pr.Dim, pr.Bound]:
    """The losses of all steps and the last weights, over rows b and steps i."""
    b, B = pr.dim("b")
    i, I = pr.dim("i")
    model = nn.MLP([INPUTS, HIDDEN, 1], rng=np.random.default_rng(0))
    x, y = pr.input("x", (INPUTS,), (b,)), pr.input("y", (1,), (b,))
    weights = optim.over(i, model.parameters())
    loss = ((model.using(weights)(x) - y) ** 2).sum()[{b: slice(0, B)}].mean()
    optim.adamw(i, weights, pr.grad(loss, weights), 0.02)
    return {"loss": loss[0:I], **{name: w[I] for name, w in weights.items()}}, b, i, I


def main(folder: str | None = None) -> None:
    """Compile for all devices there are, train, and say how it went."""
    outputs, b, i, I = training()
    count = jax.device_count()
    columns = 2 if count % 2 == 0 else 1
    mesh = jax.make_mesh((count // columns, columns), ("data", "model"))
    shard = {b: "data", "layers.0.weight": ("model", None), "layers.1.weight": (None, "model")}
    program = pr.compile(outputs, mesh=mesh, shard=shard)

    rng = np.random.default_rng(1)  # every process makes the same rows; each device takes its part
    x = rng.normal(size=(ROWS, INPUTS)).astype("float32")
    y = np.sin(x[:, :1] * 2) + 0.5 * x[:, 1:2]
    checkpoint = None if folder is None else pr.Checkpoints(folder, over=i, every=20)
    result = program(x=x, y=y.astype("float32"), bounds={I: STEPS}, checkpoint=checkpoint)
    if jax.process_index() == 0:
        losses = np.asarray(result["loss"])
        print(f"{count} devices, {jax.process_count()} processes: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
        text = program.explain()
        print(text[text.index("devices:") : text.index("compiled in:")].rstrip())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
