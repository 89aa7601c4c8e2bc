"""`polyrhythm train`, `evaluate`, `play` and `plot`.

A run is a folder: `run.toml` says what it is of, `log.csv` has its figures, `weights.safetensors` its last weights,
`best.safetensors` the best by evaluation, `checkpoint` what it goes on from.
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from polyrhythm.errors import DeclarationError, PolyrhythmError


def train(
    context: typer.Context,
    algorithm: Annotated[str, typer.Argument(help="ppo, a2c, reinforce, impala, dqn, c51, qr-dqn, sac, td3 or ddpg.")],
    env: Annotated[
        str | None, typer.Option(help="The environment, by Gymnasium's name. [default: CartPole-v1]")
    ] = None,
    num_envs: Annotated[int | None, typer.Option(min=1, help="The number of environments. [default: 8]")] = None,
    num_steps: Annotated[int | None, typer.Option(min=1, help="Steps of each environment per iteration.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Iterations to train for.")] = None,
    total_steps: Annotated[
        int | None, typer.Option(min=1, help="Steps in all, instead of --iterations. [default: the preset's]")
    ] = None,
    hidden: Annotated[str | None, typer.Option(help="The sizes of the hidden layers. [default: 64,64]")] = None,
    memory: Annotated[str | None, typer.Option(help="lstm, gru or transformer: a policy that remembers.")] = None,
    compiled: Annotated[
        bool | None, typer.Option("--compiled", help="Make the environment a part of the program.")
    ] = None,
    threads: Annotated[bool | None, typer.Option("--threads", help="Step Gymnasium's environments in threads.")] = None,
    config: Annotated[str | None, typer.Option(help="A TOML file of options and settings.")] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show all options and settings as such a file, and end.")
    ] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Runs with one seed are the same. [default: 0]")] = None,
    num_seeds: Annotated[
        int | None, typer.Option(min=1, help="Train so many seeds at once (needs --compiled).")
    ] = None,
    output: Annotated[str | None, typer.Option(help="A folder for the run: log, weights, checkpoints.")] = None,
    log: Annotated[str | None, typer.Option(help="A file for the figures: .csv, or .json with a line each.")] = None,
    tensorboard: Annotated[str | None, typer.Option(help="A folder for TensorBoard.")] = None,
    wandb: Annotated[str | None, typer.Option(help="A project of Weights & Biases.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="A folder to save to, and to go on from.")] = None,
    every: Annotated[int | None, typer.Option(min=1, help="Save after so many iterations. [default: 10]")] = None,
    evaluate_every: Annotated[
        int | None, typer.Option(min=0, help="Evaluate after so many iterations; 0 never. [default: 0]")
    ] = None,
    evaluate_episodes: Annotated[
        int | None, typer.Option(min=1, help="Episodes of an evaluation. [default: 10]")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="jax, torch or numpy. [default: jax]")] = None,
) -> None:
    """Learn to act in an environment. Settings of the algorithm are options too: --learning-rate, --gamma, ...

    --print-config shows all of them, with what they are.
    """
    named = {name: value for name, value in context.params.items() if value is not None}
    for name in ("algorithm", "config", "print_config"):
        named.pop(name, None)
    with _errors():
        from polyrhythm.rl.runs import Run, as_toml, over

        run = Run(algorithm, over(named | _extra(context.args), _from_file(config, algorithm)))
        if print_config:
            print(as_toml(run.facts()), end="")
        elif run.options.num_seeds > 1 or run.several:
            run.many()
        else:
            run.once()


def evaluate(
    run: Annotated[str, typer.Argument(help="The folder of a run.")],
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the episodes.")] = 1_000_003,
    best: Annotated[bool, typer.Option("--best", help="The best weights instead of the last.")] = False,
    backend: Annotated[str, typer.Option(help="jax, torch or numpy.")] = "jax",
) -> None:
    """Play episodes without exploration, and say what they returned."""
    from polyrhythm.rl import presets
    from polyrhythm.rl.evaluation import Evaluator

    with _errors():
        facts, model, weights, statistics = _trained(Path(run), best)
        own = {"algorithm": facts["algorithm"], "training": False}
        source = presets.source(facts["env"], episodes, facts["compiled"], seed, **own)
        found = Evaluator(source, model, seed, backend)(weights, statistics)
        spread = f"from {found.min():.2f} to {found.max():.2f}"
        print(f"return {found.mean():.2f} +- {found.std():.2f}  {spread}  {episodes} episodes")


def play(
    run: Annotated[str, typer.Argument(help="The folder of a run.")],
    video: Annotated[str | None, typer.Option(help="A .gif file for what is seen; without it, a window.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the episode.")] = 1_000_003,
    best: Annotated[bool, typer.Option("--best", help="The best weights instead of the last.")] = False,
) -> None:
    """Watch one episode, in a window or as a video."""
    from polyrhythm.rl.evaluation import Evaluator
    from polyrhythm.rl.video import check_name, filmed, write

    with _errors():
        if video is not None:
            check_name(video)
        facts, model, weights, statistics = _trained(Path(run), best)
        mode = "rgb_array" if video is not None else "human"
        source, frames = filmed(facts["env"], seed, mode, facts["algorithm"])
        found = Evaluator(source, model, seed, "numpy")(weights, statistics)
        if video is not None:
            write(frames, video)
        print(f"return {found.mean():.2f}")


def plot(
    runs: Annotated[list[str], typer.Argument(help="Folders of runs, or logs; those of one name=... are one curve.")],
    output: Annotated[str, typer.Option(help="The picture: .svg, .png or .pdf.")] = "curves.svg",
    figure: Annotated[str, typer.Option(help="What to show.")] = "return",
    window: Annotated[int, typer.Option(min=1, help="Iterations that a point is the mean of.")] = 10,
) -> None:
    """Learning curves: the mean over runs and a band that holds 95 % of such means."""
    from polyrhythm.rl.curves import curves_of, draw

    with _errors():
        draw(curves_of(runs, figure, window), output, figure)
        print(output)


class _errors:
    """Errors of ours as one line and a fix."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, PolyrhythmError):
            print(f"{type(error).__name__}: {error.what}\n  fix: {error.fix}", file=sys.stderr)
            raise typer.Exit(1) from None
        if isinstance(error, OSError) and error.filename is not None:  # a path that is taken, or may not be written
            print(f"{error.filename}: {error.strerror}", file=sys.stderr)
            raise typer.Exit(1) from None
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(130) from None


def _trained(folder: Path, best: bool) -> tuple[dict[str, Any], Any, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What a run was of, its model, its weights, and the statistics of its observations."""
    from polyrhythm.nn.files import load
    from polyrhythm.rl import presets
    from polyrhythm.rl import train as learning
    from polyrhythm.rl.runs import Options, sizes_of

    path = folder / ("best.safetensors" if best else "weights.safetensors")
    if not (folder / "run.toml").is_file() or not path.is_file():
        begun = (folder / "checkpoint").is_dir() and not best
        raise DeclarationError(
            f"there is no trained run in {str(folder)!r}: {path.name} is missing",
            fix="it was stopped: train it to its end by the same command, which goes on from there"
            if begun
            else "train one: polyrhythm train ppo --output FOLDER" + " --evaluate-every 10" * best,
        )
    facts = _toml(folder / "run.toml")
    if lacking := [name for name in ("algorithm", "env", "compiled", "hidden") if name not in facts]:
        raise DeclarationError(
            f"{folder / 'run.toml'} does not say the {lacking[0]} of its run",
            fix="give the folder of a run as it was made",
        )
    facts |= vars(learning.made(Options, {name: facts[name] for name in ("env", "compiled", "hidden")}))
    source = presets.source(facts["env"], 1, facts["compiled"], algorithm=facts["algorithm"])
    names = [field.name for field in fields(learning.algorithm_of(facts["algorithm"]).options)]
    options = {name: facts[name] for name in names if name in facts}
    model = learning.model_for(facts["algorithm"], source, sizes_of(facts["hidden"]), **options)
    return facts, model, *learning.parted(load(path))


def _from_file(path: str | None, algorithm: str) -> dict[str, Any]:
    """The options and settings of a TOML file; names as on the command line, with _ or -."""
    if path is None:
        return {}
    named = _toml(Path(path))
    if named.pop("algorithm", algorithm) != algorithm:
        raise DeclarationError(f"{path} is not of {algorithm}", fix="take its algorithm, or leave that out of the file")
    return named


def _toml(path: Path) -> dict[str, Any]:
    """What a file has, by names with _; the sizes of layers may be a list, or one number."""
    try:
        found = {name.replace("-", "_"): value for name, value in tomllib.loads(path.read_text()).items()}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DeclarationError(f"{path} cannot be read: {error}", fix="give a TOML file such as run.toml") from error
    if isinstance(sizes := found.get("hidden"), (list, int)):
        found["hidden"] = ",".join(map(str, sizes if isinstance(sizes, list) else [sizes]))
    return found


def _extra(arguments: list[str]) -> dict[str, str]:
    """Settings of the algorithm among the arguments: `--gamma 0.9` or `--gamma=0.9`."""
    given, rest = {}, list(arguments)
    while rest:
        name = rest.pop(0)
        if not name.startswith("--"):
            raise DeclarationError(f"{name!r} is not an option", fix="options begin with --")
        name, equals, text = name.partition("=")
        if not equals:
            if not rest:
                raise DeclarationError(f"{name} has no value", fix=f"write {name} VALUE")
            text = rest.pop(0)
        given[name.removeprefix("--").replace("-", "_")] = text
    return given
