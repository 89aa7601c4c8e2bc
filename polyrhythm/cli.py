"""The command `polyrhythm`: language models, agents, and what this installation can do."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from polyrhythm import __version__
from polyrhythm.errors import PolyrhythmError
from polyrhythm.llm import commands
from polyrhythm.rl import commands as agents

INTERRUPTED = 130

# What a script raises is shown as Python shows it.
app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, help="Dynamic deep-learning programs, compiled whole."
)


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
app.command()(commands.bench)
app.command()(commands.info)


app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(agents.train)
app.command()(agents.evaluate)
app.command()(agents.play)
app.command()(agents.plot)


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


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def report(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The script; its options follow.")],
    output: Annotated[Path, typer.Option(help="The page; with several programs each gets a number.")] = Path(
        "report.html"
    ),
    profile: Annotated[bool, typer.Option(help="Profile the first call of each program.")] = True,
) -> None:
    """Run a script, and write a page about every program that it compiles."""
    from polyrhythm.runtime.report.script import reported

    try:
        pages = reported(script, context.args, output, profile)
    except PolyrhythmError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if not pages:
        print(f"{script} compiles no program", file=sys.stderr)
        raise typer.Exit(1)
    for page in pages:
        print(page)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def launch(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The script; its options follow.")],
    processes: Annotated[int, typer.Option("-n", "--processes", min=1, help="How many processes.")] = 2,
    restarts: Annotated[int, typer.Option(min=0, help="How often to start all anew when one has died.")] = 3,
) -> None:
    """Run a script in several processes that are connected by jax.distributed, on this machine."""
    from polyrhythm.runtime.launching import launch

    raise typer.Exit(launch(str(script), context.args, processes, restarts))


@app.command()
def calibrate() -> None:
    """Measure the rates of this machine, from which the compiler chooses how much runs at once."""
    from polyrhythm.compiler.backends.jax.run.calibration import calibrate

    machine = calibrate()
    print(f"a call {machine.call * 1e6:.0f} us, an operation in a loop {machine.launch * 1e6:.2f} us")
    print(f"{machine.near / 1e9:.0f} GB/s up to {machine.cache >> 20} MB, {machine.far / 1e9:.0f} GB/s beyond")


def main() -> None:
    """The entry point. An interrupt ends the process at once, though XLA may be compiling."""
    try:
        app()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise


if __name__ == "__main__":
    main()
