"""The demo: a character model is trained and then writes, each as one compiled program.

The model is a recurrent network written as equations over the iteration `i` and the step `t`. Its gradients, the
updates and the loop over iterations are part of the same program. It learns from this project's own documentation.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

import polyrhythm as pr

HIDDEN, BATCH, STEPS, ITERATIONS, RATE = 96, 24, 48, 500, 0.03
console = Console()


def read_text() -> str:
    """The documentation that comes with the project."""
    root = Path(__file__).resolve().parent.parent
    return "\n".join((root / name).read_text() for name in ("README.md", "docs/language.md")).lower()


def train(text: str) -> tuple[list[str], dict[str, np.ndarray]]:
    """Learn to predict the next character."""
    characters = sorted(set(text))
    size = len(characters)
    numbers = np.array([characters.index(c) for c in text], np.int32)
    rng = np.random.default_rng(0)

    i, I = pr.dim("i")
    t, T = pr.dim("t")

    def parameter(name: str, shape: tuple[int, ...], scale: float) -> pr.Recurrent:
        value = pr.recurrent(shape, ((i, I + 1),), name=name)
        value[0] = pr.parameter(f"{name}_start", shape, init=rng.normal(size=shape) * scale)
        return value

    embedding = parameter("embedding", (size, HIDDEN), 0.3)
    recurrent = parameter("recurrent", (HIDDEN, HIDDEN), 0.1)
    output = parameter("output", (HIDDEN, size), 0.1)

    seen = pr.input("seen", (BATCH,), (i, t), "int32")
    following = pr.input("following", (BATCH,), (i, t), "int32")
    state = pr.recurrent((BATCH, HIDDEN), (i, (t, T + 1)), name="state")
    state[i, 0] = 0.0
    state[i, t + 1] = pr.tanh(pr.take(embedding, seen, axis=0) + state @ recurrent)
    scores = pr.log_softmax(state[i, t + 1] @ output, axis=1)
    loss = -(scores * pr.one_hot(following, size)).sum() / float(BATCH)

    weights = [embedding, recurrent, output]
    for weight, gradient in zip(weights, pr.grad(loss, weights), strict=True):
        weight[i + 1] = weight - RATE * pr.clip(gradient, -1.0, 1.0)

    last = {weight.name: weight[I] for weight in weights}
    program = pr.compile({"loss": loss[i, 0:T].mean(0), "weights": last})

    starts = rng.integers(0, len(numbers) - STEPS - 1, size=(ITERATIONS, BATCH))
    places = starts[:, None, :] + np.arange(STEPS)[None, :, None]
    began = time.perf_counter()
    results = program(seen=numbers[places], following=numbers[places + 1])
    seconds = time.perf_counter() - began

    steady = [line for line in program.schedule.splitlines() if "for" in line][:12]
    console.print(Panel(escape("\n".join(steady)), title="the loops of the training program", expand=False))
    kept = program.memory.kept({I: ITERATIONS, T: STEPS})
    console.print(f"kept between steps: {kept / 1e6:.1f} MB, known before anything runs")
    points = [f"{value:.2f}" for value in results["loss"][:: max(1, ITERATIONS // 8)]]
    console.print(f"loss: {' -> '.join(points)}")
    console.print(f"{ITERATIONS} iterations in {seconds:.1f} s, compiling included\n")
    return characters, results["weights"]


def write(characters: list[str], weights: dict[str, np.ndarray], length: int = 300) -> None:
    """Let the model write: every character depends on those before it."""
    t, T = pr.dim("t")
    embedding, recurrent, output = (pr.input(name, weights[name].shape) for name in weights)
    state = pr.recurrent((HIDDEN,), (t,))
    letter = pr.recurrent((), (t,), "int32")
    letter[0] = characters.index("\n")
    state[0] = pr.tanh(pr.take(embedding, letter[0], axis=0))
    state[t + 1] = pr.tanh(pr.take(embedding, letter[t + 1], axis=0) + state @ recurrent)
    letter[t + 1] = pr.categorical((state @ output) * 1.5)
    program = pr.compile(letter)
    named = dict(zip(weights, (np.asarray(value) for value in weights.values()), strict=True))
    program(bounds={T: length}, seed=1, **named)
    began = time.perf_counter()
    letters = program(bounds={T: length}, seed=1, **named)
    seconds = time.perf_counter() - began
    console.print(Panel(escape("".join(characters[n] for n in letters)), title="what it writes", expand=False))
    console.print(f"{length / seconds:,.0f} characters a second")
    console.print(Panel(escape(program.schedule.rstrip()), title="the writing program", expand=False))
    console.print(escape(str(program.memory)))


if __name__ == "__main__":
    console.print("[bold]Polyrhythm[/bold]: a recurrent network trained by one compiled program\n")
    write(*train(read_text()))
