"""A mixture of experts on the simulated accelerator: the same program on the CPU, and as streams of tiles.

The layer is written once. Lowered with directives it runs on the simulator of a dataflow accelerator, which gives
values and cycles. Padding every expert to whole tiles, or letting a tile be as long as its tokens, is one word.
"""

from __future__ import annotations

import numpy as np

import polyrhythm as pr
from polyrhythm import stream

TOKENS, CHOICES, HIDDEN, EXPERTS, INNER = 12, 2, 8, 4, 16


def layer() -> tuple[pr.Tensor, pr.Dim, pr.Dim, pr.Dim]:
    """Every token goes through the experts chosen for it, with SwiGLU; also the dims that a schedule names."""
    token, _ = pr.dim("token")
    choice, C = pr.dim("choice")
    hidden, H = pr.dim("hidden")
    expert, E = pr.dim("expert")
    inner, F = pr.dim("inner")
    tokens = pr.input("tokens", (), (token, hidden))
    routing, weights = pr.input("routing", (), (token, choice), "int32"), pr.input("weights", (), (token, choice))
    up, gate = (pr.input(name, (), (expert, hidden, inner)) for name in ("up", "gate"))
    down = pr.input("down", (), (expert, inner, hidden))
    x = tokens[token, 0:H]
    raised = pr.silu(pr.dot(x, pr.take(gate[0:E, 0:H], routing, 0))) * pr.dot(x, pr.take(up[0:E, 0:H], routing, 0))
    lowered = raised[{inner: slice(0, F)}] @ pr.take(down[0:E, 0:F, 0:H], routing, 0)
    return (lowered * weights)[{choice: slice(0, C)}].sum(0), token, hidden, inner


def main() -> None:
    rng = np.random.default_rng(0)
    shapes = {"tokens": (TOKENS, HIDDEN), "weights": (TOKENS, CHOICES), "up": (EXPERTS, HIDDEN, INNER)}
    shapes |= {"gate": (EXPERTS, HIDDEN, INNER), "down": (EXPERTS, INNER, HIDDEN)}
    data = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    data["routing"] = np.argsort(rng.random((TOKENS, EXPERTS)), 1)[:, :CHOICES].astype("int32")

    output, token, hidden, inner = layer()
    expected = pr.compile(output, backend="numpy")(**data)
    hardware = stream.Hardware(fifo_depth=32)
    for name, directive in {
        "tiles of 4 tokens": stream.tile(token, 4),
        "tiles as long as they are": stream.tile(token, dynamic=True),
    }.items():
        lowered = stream.lower(output, [directive, stream.tile(inner, 8), stream.tile(hidden, dynamic=True)], data)
        assert np.allclose(lowered(hardware), expected, atol=1e-3)
        run = stream.simulate(lowered.program, hardware)
        print(f"{name:26} {run.cycles:>7,} cycles; the values are those of the CPU")


if __name__ == "__main__":
    main()
