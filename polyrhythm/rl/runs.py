"""A run as the command line and files ask for it: what is chosen, its folder, and how it is stopped.

What is given stands before what a preset has, and that before the defaults of the algorithm.
"""

from __future__ import annotations

import os
import signal
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm.errors import DeclarationError, PolyrhythmError, UnsupportedError
from polyrhythm.language.inputs import input
from polyrhythm.nn.files import save
from polyrhythm.rl import logs, presets
from polyrhythm.rl import train as learning
from polyrhythm.rl.seeds import train_seeds, write
from polyrhythm.runtime.errors import CheckpointMismatchError

ON_POLICY_STEPS, VALUE_STEPS, CONTINUOUS_STEPS = 100_000, 50_000, 20_000
"""How long a run is that does not say so: in all, with one environment for continuous actions and eight otherwise."""


SAME = (("iterations", "total_steps"), ("num_steps", "steps"))
"""Names of which a run has one: they say the same."""


def over(given: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """What is given stands before more of it, and what it says by one name before what that says by another.

    >>> over({"total_steps": 100}, {"iterations": 3, "gamma": 0.9})
    {'gamma': 0.9, 'total_steps': 100}
    """
    if several := [pair for pair in SAME if given.keys() >= {*pair}]:
        first, second = (f"--{name.replace('_', '-')}" for name in several[0])
        raise DeclarationError(f"{first} and {second} say the same", fix="give one of the two")
    said = {name for pair in SAME if given.keys() & {*pair} for name in pair}
    return {name: value for name, value in more.items() if name not in said} | dict(given)


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


class Run:
    """What the command line and a file ask for."""

    def __init__(self, algorithm: str, given: Mapping[str, Any]) -> None:
        chosen = learning.algorithm_of(algorithm)
        given = over(given, presets.preset(algorithm, str(given.get("env", Options.env))))
        own = {field.name for field in fields(Options)}
        models = {field.name for other in learning.ALGORITHMS.values() for field in fields(other.options)}
        self.algorithm = algorithm
        self.options: Options = learning.made(Options, {n: v for n, v in given.items() if n in own})
        self.hidden = sizes_of(self.options.hidden)
        self.settings = {n: v for n, v in given.items() if n not in own | models}
        self.several = _several(chosen.settings, self.settings)
        self.settings |= {name: values[0] for name, values in self.several.items()}
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
        return presets.source(self.options.env, count, self.options.compiled, seed, algorithm=self.algorithm, **options)

    def facts(self) -> dict[str, Any]:
        """What is needed to make the model and the environments again, and the run."""
        chosen = self.options
        facts = {"algorithm": self.algorithm, "env": chosen.env, "num_envs": self.count, "compiled": chosen.compiled}
        facts |= {"threads": chosen.threads, "hidden": chosen.hidden, "seed": chosen.seed}
        facts |= {"iterations": self.iterations, **self.model, **vars(self.made)}
        facts |= {name: list(values) for name, values in self.several.items()}
        return {name: value for name, value in facts.items() if value is not None}

    def sinks(self) -> list[Any]:
        """Where else the figures go."""
        board, project = self.options.tensorboard, self.options.wandb
        found: list[Any] = [] if board is None else [logs.TensorBoard(board, self.rows)]
        return found + ([] if project is None else [logs.Wandb(project, self.facts(), self.rows)])

    def once(self) -> None:
        """One run."""
        chosen = self.options
        folder = None if chosen.output is None else _folder(chosen.output)
        checkpoint = chosen.checkpoint
        if folder is not None and checkpoint is None:
            checkpoint = str(folder / "checkpoint")
            if not self._savable():
                print("these environments cannot be saved: there will be no checkpoints", file=sys.stderr)
                checkpoint = None
        lines = logs.Lines(self.rows, self.iterations * self.rows)
        judged: dict[str, Any] = {}
        if chosen.evaluate_every:
            tested = self._source(chosen.evaluate_episodes, chosen.seed + 1_000_003, training=False)
            best = None if folder is None else str(folder / "best.safetensors")
            judged = {"evaluation": tested, "evaluate_every": chosen.evaluate_every, "best": best}
        print(f"compiling {self.algorithm} in {chosen.env}, environments: {self.count}", file=sys.stderr, flush=True)
        with _described(folder, as_toml(self.facts())), _Stop(checkpoint is not None) as stop:

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
                checkpoint=checkpoint,
                sinks=[*map(logs.File, self._logs()), *self.sinks()],
                every=chosen.every,
                backend=chosen.backend,
                show=show,
                stop=stop if checkpoint is not None else None,
                **judged,
                **self.settings,
            )
        if checkpoint is not None and not stop.begun:
            print(
                f"nothing was left to do: all {self.iterations} iterations are there; give more --iterations to go on"
            )
        if folder is not None:
            kept = learning.joined(result["weights"], result.get("statistics", {}))
            save({name: np.asarray(array) for name, array in kept.items()}, folder / "weights.safetensors")

    def _logs(self) -> list[str]:
        """The files for the figures: the folder's own, and the one that was asked for."""
        own = [] if self.options.output is None else [str(_folder(self.options.output) / "log.csv")]
        return own + ([] if self.options.log is None else [self.options.log])

    def _savable(self) -> bool:
        """Whether checkpoints can have the state of the environments."""
        try:
            learning.Outside(learning.savable(self.source)).save()
        except UnsupportedError:
            return False
        return True

    def many(self) -> None:
        """Several seeds in one call, with each of the values of settings that have several."""
        chosen, seeds = self.options, self.options.num_seeds
        if not chosen.compiled or chosen.backend != "jax":
            raise DeclarationError(
                "several seeds or values run at once in compiled environments with the JAX backend only",
                fix="add --compiled, or train them one after another",
            )
        for name in ("checkpoint", "evaluate_every", "tensorboard", "wandb"):
            if getattr(chosen, name):
                raise DeclarationError(
                    f"several seeds or values run in one call, which has no --{name.replace('_', '-')}",
                    fix="leave it out, or train them one after another",
                )
        cases = list(product(*self.several.values()))
        named = [
            ",".join(f"{name}={value:g}" for name, value in zip(self.several, case, strict=True)) for case in cases
        ]
        what = f"{seeds} seeds" + (f" with each of {' '.join(named)}" if self.several else "")
        print(f"compiling {self.algorithm} in {chosen.env} for {what}", file=sys.stderr, flush=True)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # one call of XLA, which Python cannot interrupt
        columns = np.repeat(np.array(cases, np.float32), seeds, axis=0).T
        curves = train_seeds(
            self.algorithm,
            self.source,
            self.iterations,
            [chosen.seed + number for _ in cases for number in range(seeds)],
            self.hidden,
            self.model,
            dict(zip(self.several, columns, strict=True)),
            **self.settings | {name: input(name, ()) for name in self.several},
        )
        for number, name in enumerate(named):
            own = {figure: array[number * seeds : (number + 1) * seeds] for figure, array in curves.items()}
            for log in map(Path, self._logs()):
                write(own, str(log.with_stem(f"{log.stem}-{name}") if name else log))
            self._told(own, f"  {name}" if name else "")

    def _told(self, curves: Mapping[str, np.ndarray], name: str) -> None:
        """Ten lines of what some seeds have learnt."""
        for place in sorted({round(k * (self.iterations - 1) / 9) for k in range(10)}):
            recent = curves["return"][:, max(0, place - 9) : place + 1]
            count = curves["episodes"][:, max(0, place - 9) : place + 1]
            means = (recent * count).sum(1) / np.maximum(count.sum(1), 1)
            done = (place + 1) * self.rows
            figures = f"return {means.mean():.2f} +- {means.std():.2f}"
            print(f"{done:>9}/{self.iterations * self.rows}  {figures}  {len(means)} seeds{name}")


def _several(kind: type, given: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    """The values of settings that have several: `1e-3,3e-3`, or a list in a file.

    >>> from polyrhythm import rl
    >>> _several(rl.PPOSettings, {"gamma": 0.9, "learning_rate": "1e-3,3e-3"})
    {'learning_rate': (0.001, 0.003)}
    """
    found: dict[str, tuple[float, ...]] = {}
    for name, value in given.items():
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list) or len(parts) < 2:
            continue
        values: list[Any] = [getattr(learning.made(kind, {name: part}), name, None) for part in parts]
        if not all(isinstance(one, float) for one in values):
            raise DeclarationError(
                f"{name} has several values, {value}, but decides what is compiled", fix=f"give one value of {name}"
            )
        if len(set(values)) < len(values):
            raise DeclarationError(f"{name} has a value twice: {value}", fix="give each value once")
        found[name] = tuple(values)
    return found


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
    except PolyrhythmError as error:
        path.unlink() if before is None else path.write_text(before)
        if isinstance(error, CheckpointMismatchError) and before is not None:
            was, now = tomllib.loads(before), tomllib.loads(text)
            other = [f"{n} is {was.get(n)} there and {now.get(n)} here" for n in was | now if was.get(n) != now.get(n)]
            if other:
                raise CheckpointMismatchError(f"{error.what}: {', '.join(other)}", fix=error.fix) from None
        raise


def _folder(path: str) -> Path:
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def sizes_of(hidden: str) -> tuple[int, ...]:
    sizes = [size.strip() for size in hidden.split(",") if size.strip()]
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise DeclarationError(f"{hidden!r} is not a list of sizes", fix="give the sizes of layers such as 64,64")
    return tuple(map(int, sizes))


def as_toml(facts: Mapping[str, Any]) -> str:
    """Facts as a TOML file."""

    def text(value: Any) -> str:
        return (
            str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else repr(value)
        )

    return "".join(f"{name} = {text(value)}\n" for name, value in facts.items())
