"""A character model is trained and then writes, each as one compiled program.

The model is a recurrent network written as equations over the iteration `i` and the step `t`. Its gradients, the
updates and the loop over iterations are part of the same program. It learns from this project's own documentation, for
about a minute. What it writes is shown letter by letter, as the program makes it.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

import polyrhythm as pr
from polyrhythm import optim

HIDDEN, BATCH, STEPS, ITERATIONS, RATE = 192, 32, 64, 1200, 4e-3
LETTERS, SHARPNESS = 400, 1.6
console = Console()


def read_text() -> str:
    """The documentation that comes with the project."""
    root = Path(__file__).resolve().parent.parent
    return "\n".join(path.read_text() for path in (root / "README.md", *sorted((root / "docs").glob("*.md")))).lower()


def train(text: str) -> tuple[list[str], dict[str, np.ndarray]]:
    """Learn to predict the next character."""
    characters = sorted(set(text))
    size = len(characters)
    numbers = np.array([characters.index(c) for c in text], np.int32)
    rng = np.random.default_rng(0)

    i, I = pr.dim("i")
    t, T = pr.dim("t")
    sizes = {"embedding": (size, HIDDEN), "recurrent": (HIDDEN, HIDDEN), "output": (HIDDEN, size)}
    first = {name: pr.parameter(name, shape, rng.normal(size=shape) * 0.08) for name, shape in sizes.items()}
    weights = optim.over(i, first)

    seen = pr.input("seen", (BATCH,), (i, t), "int32")
    following = pr.input("following", (BATCH,), (i, t), "int32")
    state = pr.recurrent((BATCH, HIDDEN), (i, (t, T + 1)), name="state")
    state[i, 0] = 0.0
    state[i, t + 1] = pr.tanh(pr.take(weights["embedding"], seen, axis=0) + state @ weights["recurrent"])
    scores = pr.log_softmax(state[i, t + 1] @ weights["output"], axis=1)
    loss = -(scores * pr.one_hot(following, size)).sum() / float(BATCH * STEPS)

    gradients = optim.clip_by_global_norm(i, pr.grad(loss, weights), 1.0)
    optim.adam(i, weights, gradients, optim.linear(i, RATE, RATE / 20, ITERATIONS))
    program = pr.compile({"loss": loss[i, 0:T].sum(0), "weights": {n: w[I] for n, w in weights.items()}})

    console.print(f"learning from {len(text):,} characters: {ITERATIONS} iterations, each {BATCH} x {STEPS} of them")
    starts = rng.integers(0, len(numbers) - STEPS - 1, size=(ITERATIONS, BATCH))
    places = starts[:, None, :] + np.arange(STEPS)[None, :, None]
    began = time.perf_counter()
    results = program(seen=numbers[places], following=numbers[places + 1])
    seconds = time.perf_counter() - began

    points = [f"{value:.2f}" for value in results["loss"][:: max(1, ITERATIONS // 8)]]
    console.print(f"loss: {' -> '.join(points)}")
    rate = ITERATIONS * BATCH * STEPS / seconds
    console.print(f"{seconds:.0f} s, compiling included: {rate:,.0f} characters a second")
    steady = [line for line in program.schedule.splitlines() if "for" in line][:8]
    console.print(Panel(escape("\n".join(steady)), title="the loops of the training program", expand=False))
    kept = program.memory.kept({I: ITERATIONS, T: STEPS})
    console.print(f"kept between steps: {kept / 1e6:.1f} MB, known before anything runs\n")
    return characters, results["weights"]


def write(characters: list[str], weights: dict[str, np.ndarray]) -> None:
    """Let the model write: every character depends on those before it."""
    t, T = pr.dim("t")
    embedding, recurrent, output = (pr.input(name, weights[name].shape) for name in weights)
    state = pr.recurrent((HIDDEN,), (t,), name="state")
    letter = pr.recurrent((), (t,), "int32", name="letter")
    letter[0] = characters.index("\n")
    state[0] = pr.tanh(pr.take(embedding, letter[0], axis=0))
    state[t + 1] = pr.tanh(pr.take(embedding, letter[t + 1], axis=0) + state @ recurrent)
    letter[t + 1] = pr.categorical((state @ output) * SHARPNESS)
    program = pr.compile(letter)
    named = {name: np.asarray(value) for name, value in weights.items()}

    console.rule("what it writes")
    for number in program.stream(over=t, chunk=8, bounds={T: LETTERS}, seed=1, **named):
        console.print(characters[int(number)], end="", markup=False, highlight=False)
    console.print()
    console.rule()

    program(bounds={T: LETTERS}, seed=1, **named)
    began = time.perf_counter()
    program(bounds={T: LETTERS}, seed=1, **named)
    console.print(f"{LETTERS / (time.perf_counter() - began):,.0f} tokens a second, a token being a character")
    console.print(Panel(escape(program.schedule.rstrip()), title="the schedule of the writing program", expand=False))
    console.print(Panel(escape(str(program.memory)), title="its memory", expand=False))


def main() -> None:
    """Train, then write."""
    console.print("[bold]Polyrhythm[/bold]: a recurrent network trained by one compiled program\n")
    write(*train(read_text()))


if __name__ == "__main__":
    main()
