"""`polyrhythm train`, `evaluate`, `play` and `plot`.

A run is a folder: `run.toml` says what it is of, `log.csv` has its figures, `weights.safetensors` its last weights,
`best.safetensors` the best by evaluation, `checkpoint` what it goes on from.
"""

from __future__ import annotations

import os
import signal
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from polyrhythm.errors import DeclarationError, PolyrhythmError, UnsupportedError

ON_POLICY_STEPS, VALUE_STEPS, CONTINUOUS_STEPS = 100_000, 50_000, 20_000
"""How long a run is that does not say so: in all, with one environment for continuous actions and eight otherwise."""


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
        int | None, typer.Option(min=1, help="Steps in all, instead of --iterations. [default: as known to learn]")
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
    """Learn to act in an environment. Settings of the algorithm are options too: --learning-rate, --gamma, ..."""
    named = {name: value for name, value in context.params.items() if value is not None}
    for name in ("algorithm", "config", "print_config"):
        named.pop(name, None)
    with _errors():
        run = _Run(algorithm, _from_file(config) | named | _extra(context.args))
        if print_config:
            print(_toml(run.facts()), end="")
        elif run.options.num_seeds > 1:
            run.many()
        else:
            run.once()


@dataclass(frozen=True)
class Options:
    """What a run can be told besides the settings of the algorithm and the options of its model."""

    env: str = "CartPole-v1"
    num_envs: int | None = None
    num_steps: int | None = None
    iterations: int | None = None
    total_steps: int | None = None
    hidden: str = "64,64"
    compiled: bool = False
    threads: bool = False
    seed: int = 0
    num_seeds: int = 1
    output: str | None = None
    log: str | None = None
    tensorboard: str | None = None
    wandb: str | None = None
    checkpoint: str | None = None
    every: int = 10
    evaluate_every: int = 0
    evaluate_episodes: int = 10
    backend: str = "jax"


class _Run:
    """What the command line and a file ask for."""

    def __init__(self, algorithm: str, given: Mapping[str, Any]) -> None:
        from polyrhythm.rl import presets
        from polyrhythm.rl import train as learning

        chosen = learning.algorithm_of(algorithm)
        preset = presets.preset(algorithm, str(given.get("env", Options.env)))
        if "iterations" in given:
            preset.pop("total_steps", None)
        given = preset | dict(given)
        own = {field.name for field in fields(Options)}
        models = {field.name for other in learning.ALGORITHMS.values() for field in fields(other.options)}
        self.algorithm = algorithm
        self.options: Options = learning.made(Options, {n: v for n, v in given.items() if n in own})
        self.hidden = _sizes(self.options.hidden)
        self.settings = {n: v for n, v in given.items() if n not in own | models}
        if self.options.num_steps is not None:
            self.settings["steps"] = self.options.num_steps
        self.made = learning.made(chosen.settings, self.settings)
        continuous = algorithm in ("sac", "td3", "ddpg")
        self.count = self.options.num_envs or (1 if continuous else 8)
        self.rows = self.count * self.made.steps
        usual = ON_POLICY_STEPS if chosen.on_policy else CONTINUOUS_STEPS if continuous else VALUE_STEPS
        total = self.options.total_steps or usual
        self.iterations = self.options.iterations or max(1, total // self.rows)
        self.source = self._source(self.count, self.options.seed, threads=self.options.threads)
        self.model = learning.model_options(algorithm, {n: v for n, v in given.items() if n in models})

    def _source(self, count: int, seed: int, **options: Any) -> Any:
        from polyrhythm.rl import presets

        return presets.source(self.options.env, count, self.options.compiled, seed, algorithm=self.algorithm, **options)

    def facts(self) -> dict[str, Any]:
        """What is needed to make the model and the environments again, and the run."""
        chosen = self.options
        facts = {"algorithm": self.algorithm, "env": chosen.env, "num_envs": self.count, "compiled": chosen.compiled}
        facts |= {"threads": chosen.threads, "hidden": chosen.hidden, "seed": chosen.seed}
        facts |= {"iterations": self.iterations, **self.model}
        return {name: value for name, value in (facts | vars(self.made)).items() if value is not None}

    def sinks(self) -> list[Any]:
        """Where else the figures go."""
        from polyrhythm.rl import logs

        board, project = self.options.tensorboard, self.options.wandb
        found: list[Any] = [] if board is None else [logs.TensorBoard(board, self.rows)]
        return found + ([] if project is None else [logs.Wandb(project, self.facts(), self.rows)])

    def once(self) -> None:
        """One run."""
        from polyrhythm.nn.files import save
        from polyrhythm.rl import train as learning
        from polyrhythm.rl.logs import Lines

        chosen = self.options
        folder = None if chosen.output is None else _folder(chosen.output)
        checkpoint = chosen.checkpoint
        if folder is not None and checkpoint is None:
            checkpoint = str(folder / "checkpoint")
            if not self._savable():
                print("these environments cannot be saved: there will be no checkpoints", file=sys.stderr)
                checkpoint = None
        lines = Lines(self.rows, self.iterations * self.rows)
        judged: dict[str, Any] = {}
        if chosen.evaluate_every:
            tested = self._source(chosen.evaluate_episodes, chosen.seed + 1_000_003, training=False)
            best = None if folder is None else str(folder / "best.safetensors")
            judged = {"evaluation": tested, "evaluate_every": chosen.evaluate_every, "best": best}
        print(f"compiling {self.algorithm} in {chosen.env}, {self.count} environments", file=sys.stderr, flush=True)
        with _described(folder, _toml(self.facts())), _Stop(checkpoint is not None) as stop:

            def show(row: Mapping[str, Any]) -> None:
                stop.begun = True
                print(lines(dict(row)), flush=True)

            result = learning.train(
                self.algorithm,
                self.source,
                self.iterations,
                hidden=self.hidden,
                model=self.model,
                seed=chosen.seed,
                log=chosen.log or (f"{folder}/log.csv" if folder else None),
                checkpoint=checkpoint,
                sinks=self.sinks(),
                every=chosen.every,
                backend=chosen.backend,
                show=show,
                stop=stop if checkpoint is not None else None,
                **judged,
                **self.settings,
            )
        if folder is not None:
            kept = learning.joined(result["weights"], result.get("statistics", {}))
            save({name: np.asarray(array) for name, array in kept.items()}, folder / "weights.safetensors")

    def _savable(self) -> bool:
        """Whether checkpoints can have the state of the environments."""
        from polyrhythm.rl.train import Outside, savable

        try:
            Outside(savable(self.source)).save()
        except UnsupportedError:
            return False
        return True

    def many(self) -> None:
        """Several seeds in one call, each with its own weights and numbers."""
        from polyrhythm.rl.seeds import train_seeds, write

        chosen, seeds = self.options, self.options.num_seeds
        if not chosen.compiled or chosen.backend != "jax":
            raise DeclarationError(
                "several seeds run at once in compiled environments with the JAX backend only",
                fix="add --compiled, or train the seeds one after another",
            )
        log = chosen.log or (f"{_folder(chosen.output)}/log.csv" if chosen.output else None)
        print(f"compiling {self.algorithm} in {chosen.env} for {seeds} seeds", file=sys.stderr, flush=True)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # one call of XLA, which Python cannot interrupt
        numbers = range(chosen.seed, chosen.seed + seeds)
        curves = train_seeds(
            self.algorithm, self.source, self.iterations, numbers, self.hidden, self.model, **self.settings
        )
        if log is not None:
            write(curves, log)
        for place in sorted({round(k * (self.iterations - 1) / 9) for k in range(10)}):
            recent = curves["return"][:, max(0, place - 9) : place + 1]
            count = curves["episodes"][:, max(0, place - 9) : place + 1]
            means = (recent * count).sum(1) / np.maximum(count.sum(1), 1)
            done = (place + 1) * self.rows
            figures = f"return {means.mean():.2f} +- {means.std():.2f}"
            print(f"{done:>9}/{self.iterations * self.rows}  {figures}  {seeds} seeds")


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
    from polyrhythm.rl.video import filmed, write

    with _errors():
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


class _Stop:
    """Ctrl-C asks a run to save itself and end; a second one ends it at once, and so does one while it is compiled."""

    def __init__(self, wanted: bool) -> None:
        self.wanted, self.asked, self.begun = wanted, False, False

    def __call__(self) -> bool:
        return self.asked

    def __enter__(self) -> _Stop:
        if self.wanted:
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def _ask(self, number: int, frame: Any) -> None:
        if not self.begun:
            print("nothing to save yet", file=sys.stderr, flush=True)
            os._exit(130)  # XLA does not stop compiling for an exception
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("saving, then ending; again to end at once", file=sys.stderr, flush=True)

    def __exit__(self, *error: object) -> None:
        if self.wanted:
            signal.signal(signal.SIGINT, self._before)


@contextmanager
def _described(folder: Path | None, text: str) -> Iterator[None]:
    """A folder says what its run is of; if that run is refused, it says what it said before."""
    if folder is None:
        yield
        return
    path = folder / "run.toml"
    before = path.read_text() if path.is_file() else None
    path.write_text(text)
    try:
        yield
    except PolyrhythmError:
        path.unlink() if before is None else path.write_text(before)
        raise


class _errors:
    """Errors of ours as one line and a fix."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, PolyrhythmError):
            print(f"{type(error).__name__}: {error.what}\n  fix: {error.fix}", file=sys.stderr)
            raise typer.Exit(1) from None
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(130) from None


def _trained(folder: Path, best: bool) -> tuple[dict[str, Any], Any, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What a run was of, its model, its weights, and the statistics of its observations."""
    from polyrhythm.nn.files import load
    from polyrhythm.rl import presets
    from polyrhythm.rl import train as learning

    path = folder / ("best.safetensors" if best else "weights.safetensors")
    if not (folder / "run.toml").is_file() or not path.is_file():
        raise DeclarationError(
            f"there is no trained run in {str(folder)!r}: {path.name} is missing",
            fix="train one: polyrhythm train ppo --output FOLDER",
        )
    facts = tomllib.loads((folder / "run.toml").read_text())
    source = presets.source(facts["env"], 1, facts["compiled"], algorithm=facts["algorithm"])
    names = [field.name for field in fields(learning.algorithm_of(facts["algorithm"]).options)]
    options = {name: facts[name] for name in names if name in facts}
    model = learning.model_for(facts["algorithm"], source, _sizes(facts["hidden"]), **options)
    return facts, model, *learning.parted(load(path))


def _folder(path: str) -> Path:
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _from_file(path: str | None) -> dict[str, Any]:
    """The options and settings of a TOML file; names as on the command line, with _ or -."""
    if path is None:
        return {}
    try:
        found = tomllib.loads(Path(path).read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise DeclarationError(f"{path} cannot be read: {error}", fix="give a TOML file such as run.toml") from error
    named = {name.replace("-", "_"): value for name, value in found.items() if name != "algorithm"}
    if isinstance(named.get("hidden"), list):
        named["hidden"] = ",".join(map(str, named["hidden"]))
    return named


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


def _sizes(hidden: str) -> tuple[int, ...]:
    sizes = [size.strip() for size in hidden.split(",") if size.strip()]
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise DeclarationError(f"{hidden!r} is not a list of sizes", fix="give the sizes of layers such as 64,64")
    return tuple(map(int, sizes))


def _toml(facts: Mapping[str, Any]) -> str:
    """Facts as a TOML file."""

    def text(value: Any) -> str:
        return (
            str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else repr(value)
        )

    return "".join(f"{name} = {text(value)}\n" for name, value in facts.items())
