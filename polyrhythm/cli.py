"""The command `polyrhythm`: language models, agents, and what this installation can do."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from polyrhythm import __version__
from polyrhythm.errors import PolyrhythmError
from polyrhythm.llm import commands

app = typer.Typer(no_args_is_help=True, help="Dynamic deep-learning programs, compiled whole.")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"polyrhythm {__version__}")
        raise typer.Exit


@app.callback()
def callback(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Dynamic deep-learning programs, compiled whole."""


app.command()(commands.generate)
app.command()(commands.chat)
app.command()(commands.serve)
app.command()(commands.info)


@app.command()
def train(
    algorithm: Annotated[str, typer.Argument(help="ppo, a2c or reinforce.")],
    env: Annotated[str, typer.Option(help="The environment, by Gymnasium's name.")] = "CartPole-v1",
    num_envs: Annotated[int, typer.Option(min=1, help="The number of environments, which run in parallel.")] = 8,
    num_steps: Annotated[int, typer.Option(min=1, help="Steps of each environment per iteration.")] = 128,
    iterations: Annotated[int, typer.Option(min=1, help="Iterations to train for.")] = 100,
    total_steps: Annotated[int | None, typer.Option(min=1, help="Steps in all, instead of --iterations.")] = None,
    learning_rate: Annotated[float, typer.Option(help="The learning rate.")] = 1e-3,
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
    if total_steps is not None:
        iterations = max(1, total_steps // (num_envs * num_steps))
    lines = learning.Lines(num_envs * num_steps)
    try:
        learning.train(
            algorithm,
            learning.source(env, num_envs, compiled, seed),
            iterations,
            hidden=tuple(map(int, sizes)),
            seed=seed,
            log=log,
            checkpoint=checkpoint,
            every=every,
            backend=backend,
            show=lambda row: print(lines(row), flush=True),
            steps=num_steps,
            learning_rate=learning_rate,
        )
    except PolyrhythmError as error:
        print(f"{type(error).__name__}: {error.what}\n  fix: {error.fix}", file=sys.stderr)
        raise typer.Exit(1) from None


@app.command()
def doctor() -> None:
    """Say what is installed, what is missing, and whether XLA behaves. Exit code 1 if something must be mended."""
    from polyrhythm.doctor import findings

    good = True
    for finding in findings():
        print(finding, flush=True)
        good &= finding.good
    if not good:
        raise typer.Exit(1)


@app.command()
def calibrate() -> None:
    """Measure the rates of this machine, from which the compiler chooses how much runs at once."""
    from polyrhythm.compiler.backends.jax.run.calibration import calibrate

    machine = calibrate()
    print(f"a call {machine.call * 1e6:.0f} us, an operation in a loop {machine.launch * 1e6:.2f} us")
    print(f"{machine.near / 1e9:.0f} GB/s up to {machine.cache >> 20} MB, {machine.far / 1e9:.0f} GB/s beyond")


def main() -> None:
    """The entry point."""
    app()


if __name__ == "__main__":
    main()
