"""`polyrhythm train`, `evaluate`, `play` and `plot`.

A run is a folder: `run.toml` says what it is of, `log.csv` has its figures, `weights.safetensors` its last weights,
`best.safetensors` the best by evaluation, `checkpoint` what it goes on from.
"""

from __future__ import annotations

import signal
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from polyrhythm.errors import DeclarationError, PolyrhythmError, UnsupportedError

OWN = ("env", "num_envs", "num_steps", "iterations", "total_steps", "hidden", "memory", "compiled", "seed", "num_seeds")
"""What a file of settings may have besides those of the algorithm."""


def train(
    context: typer.Context,
    algorithm: Annotated[str, typer.Argument(help="ppo, a2c, reinforce, impala, dqn, c51, qr-dqn, sac, td3 or ddpg.")],
    env: Annotated[
        str | None, typer.Option(help="The environment, by Gymnasium's name. [default: CartPole-v1]")
    ] = None,
    num_envs: Annotated[int | None, typer.Option(min=1, help="The number of environments. [default: 8]")] = None,
    num_steps: Annotated[int | None, typer.Option(min=1, help="Steps of each environment per iteration.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Iterations to train for. [default: 100]")] = None,
    total_steps: Annotated[int | None, typer.Option(min=1, help="Steps in all, instead of --iterations.")] = None,
    hidden: Annotated[str | None, typer.Option(help="The sizes of the hidden layers. [default: 64,64]")] = None,
    memory: Annotated[str | None, typer.Option(help="lstm, gru or transformer: a policy that remembers.")] = None,
    compiled: Annotated[bool, typer.Option("--compiled", help="Make the environment a part of the program.")] = False,
    threads: Annotated[bool, typer.Option("--threads", help="Step Gymnasium's environments in threads.")] = False,
    config: Annotated[str | None, typer.Option(help="A TOML file of options and settings.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Runs with one seed are the same.")] = 0,
    num_seeds: Annotated[int, typer.Option(min=1, help="Train so many seeds at once (needs --compiled).")] = 1,
    output: Annotated[str | None, typer.Option(help="A folder for the run: log, weights, checkpoints.")] = None,
    log: Annotated[str | None, typer.Option(help="A file for the figures: .csv, or .json with a line each.")] = None,
    tensorboard: Annotated[str | None, typer.Option(help="A folder for TensorBoard.")] = None,
    wandb: Annotated[str | None, typer.Option(help="A project of Weights & Biases.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="A folder to save to, and to go on from.")] = None,
    every: Annotated[int, typer.Option(min=1, help="Save after so many iterations.")] = 10,
    evaluate_every: Annotated[int, typer.Option(min=0, help="Evaluate after so many iterations; 0 never.")] = 0,
    evaluate_episodes: Annotated[int, typer.Option(min=1, help="Episodes of an evaluation.")] = 10,
    backend: Annotated[str, typer.Option(help="jax, torch or numpy.")] = "jax",
) -> None:
    """Learn to act in an environment. Settings of the algorithm are options too: --learning-rate, --gamma, ..."""
    named = {"env": env, "num_envs": num_envs, "num_steps": num_steps, "iterations": iterations}
    named |= {"total_steps": total_steps, "hidden": hidden, "memory": memory, "compiled": compiled or None}
    with _errors():
        given = _from_file(config) | {name: value for name, value in named.items() if value is not None}
        given |= _extra(context.args)
        run = _Run(algorithm, given, seed, threads)
        if num_seeds > 1:
            run.many(num_seeds, log or (f"{_folder(output)}/log.csv" if output else None), backend)
            return
        folder = _folder(output) if output is not None else None
        run.once(
            folder,
            log=log or (f"{folder}/log.csv" if folder else None),
            checkpoint=checkpoint or (f"{folder}/checkpoint" if folder else None),
            sinks=run.sinks(tensorboard, wandb),
            every=every,
            evaluations=(evaluate_every, evaluate_episodes),
            backend=backend,
        )


class _Run:
    """What the command line and a file ask for."""

    def __init__(self, algorithm: str, given: dict[str, Any], seed: int, threads: bool) -> None:
        from polyrhythm.rl import presets
        from polyrhythm.rl import train as learning

        chosen = learning.algorithm_of(algorithm)
        self.algorithm, self.seed, self.threads = algorithm, seed, threads
        self.env = str(given.pop("env", "CartPole-v1"))
        off_policy = hasattr(chosen.settings, "buffer_size")
        self.count = int(given.pop("num_envs", 1 if off_policy and algorithm in ("sac", "td3", "ddpg") else 8))
        self.compiled = bool(given.pop("compiled", False))
        hidden, self.model = _sizes(str(given.pop("hidden", "64,64"))), {}
        self.hidden = hidden
        if "memory" in given:
            self.model = {"memory": given.pop("memory")}
        given.pop("seed", None)
        asked, total = int(given.pop("iterations", 100)), given.pop("total_steps", None)
        steps = given.pop("num_steps", None)
        self.settings = presets.settings_for(algorithm, self.env) | given
        if steps is not None:
            self.settings["steps"] = steps
        self.made = learning.made(chosen.settings, self.settings)
        self.rows = self.count * self.made.steps
        self.iterations = asked if total is None else max(1, int(total) // self.rows)
        self.source = presets.source(self.env, self.count, self.compiled, seed, threads)

    def facts(self) -> dict[str, Any]:
        """What is needed to make the model and the environments again."""
        facts = {"algorithm": self.algorithm, "env": self.env, "num_envs": self.count, "compiled": self.compiled}
        facts |= {"hidden": ",".join(map(str, self.hidden)), "seed": self.seed, **self.model}
        return facts | {name: value for name, value in vars(self.made).items() if value is not None}

    def sinks(self, tensorboard: str | None, wandb: str | None) -> list[Any]:
        """Where else the figures go."""
        from polyrhythm.rl import logs

        found: list[Any] = [] if tensorboard is None else [logs.TensorBoard(tensorboard, self.rows)]
        return found + ([] if wandb is None else [logs.Wandb(wandb, self.facts(), self.rows)])

    def once(self, folder: Path | None, evaluations: tuple[int, int], **options: Any) -> None:
        """One run."""
        from polyrhythm.nn.files import save
        from polyrhythm.rl import presets
        from polyrhythm.rl import train as learning
        from polyrhythm.rl.logs import Lines

        if folder is not None:
            (folder / "run.toml").write_text(_toml(self.facts()))
            if options["checkpoint"] == f"{folder}/checkpoint" and not self._savable():
                print("these environments cannot be saved: there will be no checkpoints", file=sys.stderr)
                options["checkpoint"] = None
        lines = Lines(self.rows, self.iterations * self.rows)
        judged: dict[str, Any] = {}
        if evaluations[0]:
            tested = presets.source(self.env, evaluations[1], self.compiled, self.seed + 1_000_003)
            best = None if folder is None else str(folder / "best.safetensors")
            judged = {"evaluation": tested, "evaluate_every": evaluations[0], "best": best}
        print(f"compiling {self.algorithm} in {self.env}, {self.count} environments", file=sys.stderr, flush=True)
        with _Stop(options["checkpoint"] is not None) as stop:
            result = learning.train(
                self.algorithm,
                self.source,
                self.iterations,
                hidden=self.hidden,
                model=self.model,
                seed=self.seed,
                show=lambda row: print(lines(row), flush=True),
                stop=stop,
                **judged,
                **options,
                **self.settings,
            )
        if folder is not None:
            kept = {name: np.asarray(weight) for name, weight in result["weights"].items()}
            kept |= {f"statistics.{name}": np.asarray(a) for name, a in result.get("statistics", {}).items()}
            save(kept, folder / "weights.safetensors")

    def _savable(self) -> bool:
        """Whether checkpoints can have the state of the environments."""
        from polyrhythm.rl.train import Outside, savable

        try:
            Outside(savable(self.source)).save()
        except UnsupportedError:
            return False
        return True

    def many(self, seeds: int, log: str | None, backend: str) -> None:
        """Several seeds in one call, each with its own weights and numbers."""
        from polyrhythm.rl.seeds import train_seeds, write

        if not self.compiled or backend != "jax":
            raise DeclarationError(
                "several seeds run at once in compiled environments with the JAX backend only",
                fix="add --compiled, or train the seeds one after another",
            )
        print(f"compiling {self.algorithm} in {self.env} for {seeds} seeds", file=sys.stderr, flush=True)
        numbers = range(self.seed, self.seed + seeds)
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
        source = presets.source(facts["env"], episodes, facts["compiled"], seed)
        found = Evaluator(source, model, seed, backend, statistics)(weights)
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
        source, frames = filmed(facts["env"], seed, "rgb_array" if video is not None else "human")
        found = Evaluator(source, model, seed, "numpy", statistics)(weights)
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
    """Ctrl-C asks a run to save itself and end; a second one ends it at once."""

    def __init__(self, wanted: bool) -> None:
        self.wanted, self.asked = wanted, False

    def __call__(self) -> bool:
        return self.asked

    def __enter__(self) -> Callable[[], bool] | None:
        if not self.wanted:
            return None

        def ask(number: int, frame: Any) -> None:
            if self.asked:
                raise KeyboardInterrupt
            self.asked = True
            print("saving, then ending; again to end at once", file=sys.stderr, flush=True)

        self._before = signal.signal(signal.SIGINT, ask)
        return self

    def __exit__(self, *error: object) -> None:
        if self.wanted:
            signal.signal(signal.SIGINT, self._before)


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


def _trained(
    folder: Path, best: bool
) -> tuple[dict[str, Any], Any, dict[str, np.ndarray], dict[str, np.ndarray] | None]:
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
    source = presets.source(facts["env"], 1, facts["compiled"])
    options = {"memory": facts["memory"]} if "memory" in facts else {}
    model = learning.model_for(facts["algorithm"], source, _sizes(facts["hidden"]), **options)
    arrays = load(path)
    start = "statistics."
    statistics = {name.removeprefix(start): a for name, a in arrays.items() if name.startswith(start)}
    return facts, model, {n: a for n, a in arrays.items() if not n.startswith(start)}, statistics or None


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
    return {name.replace("-", "_"): value for name, value in found.items() if name != "algorithm"}


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
