"""A run as the command line and files ask for it: what is chosen, its folder, and how it is stopped.

What is given stands before what a preset has, and that before the defaults of the algorithm.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm.errors import DeclarationError, PolyrhythmError, UnsupportedError
from polyrhythm.nn.files import save
from polyrhythm.rl import logs, presets
from polyrhythm.rl import train as learning
from polyrhythm.rl.seeds import train_seeds, write

ON_POLICY_STEPS, VALUE_STEPS, CONTINUOUS_STEPS = 100_000, 50_000, 20_000
"""How long a run is that does not say so: in all, with one environment for continuous actions and eight otherwise."""


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
        preset = presets.preset(algorithm, str(given.get("env", Options.env)))
        if "iterations" in given:
            preset.pop("total_steps", None)
        given = preset | dict(given)
        own = {field.name for field in fields(Options)}
        models = {field.name for other in learning.ALGORITHMS.values() for field in fields(other.options)}
        self.algorithm = algorithm
        self.options: Options = learning.made(Options, {n: v for n, v in given.items() if n in own})
        self.hidden = sizes_of(self.options.hidden)
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
        print(f"compiling {self.algorithm} in {chosen.env}, {self.count} environments", file=sys.stderr, flush=True)
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
        try:
            learning.Outside(learning.savable(self.source)).save()
        except UnsupportedError:
            return False
        return True

    def many(self) -> None:
        """Several seeds in one call, each with its own weights and numbers."""
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
