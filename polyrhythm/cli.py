"""The command `polyrhythm`: `generate PATH --prompt "..."` writes with a language model, `train ppo` learns to act."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from polyrhythm.errors import PolyrhythmError

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Dynamic deep-learning programs, compiled whole.")


@app.callback()
def commands() -> None:
    """Dynamic deep-learning programs, compiled whole."""


@app.command()
def generate(
    path: Annotated[str, typer.Argument(help="The folder of a Hugging Face checkpoint on this machine.")],
    prompt: Annotated[list[str], typer.Option("--prompt", "-p", help="What to go on from; may be repeated.")],
    tokens: Annotated[int, typer.Option("--tokens", "-n", help="The most tokens to write after each prompt.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token, more draws.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw among so many of the likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw among the likeliest tokens of this probability.")] = None,
    seed: Annotated[int, typer.Option(help="Draws with one seed are the same.")] = 0,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; else as config.json says.")] = None,
    window: Annotated[int | None, typer.Option(min=1, help="Attend to so many of the last tokens only.")] = None,
    backend: Annotated[str, typer.Option(help="jax, torch or numpy.")] = "jax",
    stream: Annotated[bool, typer.Option("--stream", help="Show each token as soon as it is there.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show the loops and the memory plan of the program.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Write with a language model: text that goes on from each prompt."""
    from polyrhythm import llm
    from polyrhythm.llm.sampling import choice

    if stream and as_json:
        raise typer.BadParameter("--json prints one object at the end; give it or --stream", param_hint="--stream")
    try:
        began = time.perf_counter()
        model = llm.load(path, dtype, None if window is None else llm.window(window), backend)
        loaded = time.perf_counter()
        choosing: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        if stream:
            _stream(model, prompt, tokens, choosing)
        found = [] if stream else model.generate(prompt, tokens, **choosing)
        ended = time.perf_counter()
        how = choice(temperature, top_k, top_p, model.config.vocabulary)
        made = model.generating(len(prompt), how).program if plan else None
    except PolyrhythmError as error:
        print(f"{type(error).__name__}: {error.what}\n  fix: {error.fix}", file=sys.stderr)
        raise typer.Exit(1) from None
    if as_json:
        print(json.dumps(_report(prompt, found, made, loaded - began, ended - loaded)))
        return
    if not stream:
        for given, one in zip(prompt, found, strict=True):
            print(given + one.text)
    if made is not None:
        _show_plan(made)


@app.command()
def train(
    algorithm: Annotated[str, typer.Argument(help="ppo, a2c or reinforce.")],
    env: Annotated[str, typer.Option(help="The environment, by Gymnasium's name.")] = "CartPole-v1",
    envs: Annotated[int, typer.Option(min=1, help="How many of them run at once.")] = 8,
    steps: Annotated[int, typer.Option(min=1, help="How many steps each makes per iteration.")] = 128,
    iterations: Annotated[int, typer.Option(min=1, help="How many iterations to train for.")] = 100,
    rate: Annotated[float, typer.Option(help="The rate of learning.")] = 1e-3,
    hidden: Annotated[str, typer.Option(help="The sizes of the hidden layers.")] = "64,64",
    compiled: Annotated[bool, typer.Option("--compiled", help="Make the environment a part of the program.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Runs with one seed are the same.")] = 0,
    log: Annotated[str | None, typer.Option(help="A file for the figures: .csv, or .json with a line each.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="A folder to save to, and to go on from.")] = None,
    every: Annotated[int, typer.Option(min=1, help="Save after so many iterations.")] = 10,
    backend: Annotated[str, typer.Option(help="jax, torch or numpy.")] = "jax",
) -> None:
    """Learn to act in an environment."""
    from polyrhythm.rl import train as learning

    sizes = [size.strip() for size in hidden.split(",") if size.strip()]
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise typer.BadParameter(f"{hidden!r} is not a list of sizes such as 64,64", param_hint="--hidden")
    lines = learning.Lines(envs * steps)
    try:
        learning.train(
            algorithm,
            learning.source(env, envs, compiled, seed),
            iterations,
            hidden=tuple(map(int, sizes)),
            seed=seed,
            log=log,
            checkpoint=checkpoint,
            every=every,
            backend=backend,
            show=lambda row: print(lines(row), flush=True),
            steps=steps,
            rate=rate,
        )
    except PolyrhythmError as error:
        print(f"{type(error).__name__}: {error.what}\n  fix: {error.fix}", file=sys.stderr)
        raise typer.Exit(1) from None


@app.command()
def calibrate() -> None:
    """Measure the rates of this machine, from which the compiler chooses how much runs at once."""
    from polyrhythm.compiler.backends.jax.run.calibration import calibrate

    machine = calibrate()
    print(f"a call {machine.call * 1e6:.0f} us, an operation in a loop {machine.launch * 1e6:.2f} us")
    print(f"{machine.near / 1e9:.0f} GB/s up to {machine.cache >> 20} MB, {machine.far / 1e9:.0f} GB/s beyond")


def _stream(model: Any, prompts: list[str], tokens: int, choosing: dict[str, Any]) -> None:
    """Show text as it comes: of one prompt as running text, of several line by line with the number of the prompt."""
    if len(prompts) == 1:
        print(prompts[0], end="", flush=True)
    for pieces in model.stream(prompts, tokens, **choosing):
        for number, piece in enumerate(pieces):
            if piece is not None:
                if len(prompts) == 1:
                    print(piece.text, end="", flush=True)
                elif piece.text:
                    print(f"{number}: {piece.text!r}", flush=True)
    if len(prompts) == 1:
        print()


def _report(prompts: list[str], found: list[Any], made: Any, load: float, run: float) -> dict[str, Any]:
    """What was written, and how long it took."""
    results = [
        {"prompt": prompt, "text": one.text, "tokens": one.tokens.tolist()}
        for prompt, one in zip(prompts, found, strict=True)
    ]
    report: dict[str, Any] = {"results": results, "load_seconds": load, "generate_seconds": run}
    if made is not None:
        report |= {"schedule": made.schedule, "memory": str(made.memory)}
    return report


def _show_plan(program: Any) -> None:
    console = Console(stderr=True)
    console.print(Panel(escape(program.schedule.rstrip()), title="the loops", expand=False))
    console.print(Panel(escape(str(program.memory).rstrip()), title="what is kept, and why", expand=False))


def main() -> None:
    """The entry point."""
    app()


if __name__ == "__main__":
    main()
