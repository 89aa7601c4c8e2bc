"""`polyrhythm train`: learn to act in an environment, with live progress, logs, and checkpoints that go on exactly.

The training is one program. At the end of each iteration a host function is told its figures, prints them and
writes them down; the environment, if it is one of the host, is another. Both say how to be saved, so that a run
that was stopped goes on as if it had not been.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import value
from polyrhythm.language.inputs import host
from polyrhythm.rl.a2c import Settings as A2CSettings
from polyrhythm.rl.a2c import a2c
from polyrhythm.rl.environments import CartPole, Environment, Pendulum
from polyrhythm.rl.gym import Gym
from polyrhythm.rl.policies import ActorCritic
from polyrhythm.rl.ppo import Settings as PPOSettings
from polyrhythm.rl.ppo import ppo
from polyrhythm.rl.reinforce import Settings as ReinforceSettings
from polyrhythm.rl.reinforce import reinforce
from polyrhythm.rl.running import Arrays, Source
from polyrhythm.rl.training import Training
from polyrhythm.runtime.checkpoints import Checkpoints
from polyrhythm.runtime.program import compile

COMPILED: dict[str, Callable[[], Environment]] = {"CartPole-v1": CartPole, "Pendulum-v1": Pendulum}
"""The environments that can be part of the program, by Gymnasium's names."""

ALGORITHMS: dict[str, tuple[Callable[..., Training], Callable[..., Any]]] = {
    "ppo": (ppo, PPOSettings),
    "a2c": (a2c, A2CSettings),
    "reinforce": (reinforce, ReinforceSettings),
}


def source(name: str, count: int, compiled: bool, seed: int = 0) -> Source:
    """So many environments of a name: part of the program, or Gymnasium's.

    >>> source("CartPole-v1", 3, compiled=True).observation_shape
    (4,)
    """
    if compiled:
        if name not in COMPILED:
            raise DeclarationError(
                f"there is no array environment {name!r}; there are {', '.join(COMPILED)}",
                fix="use Gymnasium's: leave --compiled out",
            )
        return Arrays(COMPILED[name](), count)
    try:
        import gymnasium
    except ImportError as error:
        raise DeclarationError(f"Gymnasium is needed: {error}", fix="install it, or use --compiled") from error
    try:
        mode = gymnasium.vector.AutoresetMode.SAME_STEP
        made = gymnasium.make_vec(name, count, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})
    except (gymnasium.error.Error, ImportError) as error:
        raise DeclarationError(f"Gymnasium has no environment {name!r}: {error}", fix="check the name") from error
    return Gym(made, seed)


Row = dict[str, float | None]
"""The figures of an iteration by name; the return is None if no episode ended in it."""


class Log:
    """The figures of every iteration so far, in a file and on the screen.

    >>> log = Log(["return", "episodes"], None, print)
    >>> log.note(np.float32(0), np.float32(20.5), np.float32(2))
    {'iteration': 0, 'return': 20.5, 'episodes': 2.0}
    array(0., dtype=float32)
    >>> log.note(np.float32(1), np.float32(0), np.float32(0))
    {'iteration': 1, 'return': None, 'episodes': 0.0}
    array(0., dtype=float32)
    """

    def __init__(self, names: list[str], path: str | None, show: Callable[[Row], None]) -> None:
        self.names, self.path, self.show = names, None if path is None else Path(path), show
        self.rows: list[list[float]] = []
        if self.path is not None and not self.path.absolute().parent.is_dir():
            raise DeclarationError(
                f"there is no folder {str(self.path.parent)!r} for the log", fix="make it, or name another"
            )

    def note(self, iteration: np.ndarray, *figures: np.ndarray) -> np.ndarray:
        """One iteration is over."""
        self.rows.append([float(figure) for figure in figures])
        self.show(self._last())
        self._write()
        return np.zeros((), np.float32)

    def _last(self) -> Row:
        """The last row, with its number."""
        row: Row = dict(zip(self.names, self.rows[-1], strict=True))
        if row.get("episodes") == 0:
            row["return"] = None
        return {"iteration": len(self.rows) - 1, **row}

    def _write(self) -> None:
        """Append a row to a CSV file, which is begun with the names; a JSON file has one object per line."""
        if self.path is None:
            return
        row = self._last()
        with self.path.open("a" if row["iteration"] else "w", newline="") as file:
            if self.path.suffix in (".json", ".jsonl"):
                file.write(json.dumps(row) + "\n")
                return
            writer = csv.writer(file)
            if not row["iteration"]:
                writer.writerow(row)
            writer.writerow(row.values())

    def save(self) -> dict[str, np.ndarray]:
        """All rows."""
        return {"rows": np.array(self.rows, np.float64).reshape(len(self.rows), len(self.names))}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Begin with the rows of a checkpoint: the file is written anew without what came after it."""
        kept, self.rows = np.asarray(state["rows"]).tolist(), []
        for row in kept:
            self.rows.append(row)
            self._write()


class Outside:
    """What checkpoints keep besides the program: the log, and environments of the host."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts = parts

    def save(self) -> dict[str, Any]:
        """All of them, under their names."""
        return {f"{name}.{key}": a for name, part in self.parts.items() for key, a in part.save().items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Give each its own."""
        for name, part in self.parts.items():
            start = f"{name}."
            part.restore({key.removeprefix(start): a for key, a in state.items() if key.startswith(start)})


def train(
    algorithm: str,
    environments: Source,
    iterations: int,
    *,
    hidden: tuple[int, ...] = (64, 64),
    seed: int = 0,
    log: str | None = None,
    checkpoint: str | None = None,
    every: int = 10,
    backend: str = "jax",
    show: Callable[[Row], None] = lambda row: None,
    **settings: Any,
) -> dict[str, Any]:
    """Train, and return the figures of all iterations and the last weights.

    `checkpoint` is a folder: a run with a checkpoint in it goes on from there. `show` is told the figures of
    each iteration as soon as it is over.
    """
    if algorithm not in ALGORITHMS:
        raise DeclarationError(
            f"there is no algorithm {algorithm!r}", fix=f"use one of {', '.join(map(repr, ALGORITHMS))}"
        )
    make, settings_of = ALGORITHMS[algorithm]
    model = ActorCritic(environments.observation_shape, environments.actions, hidden, np.random.default_rng(seed))
    training = make(environments, model, settings_of(**settings))
    figures = {name: tensor for name, tensor in training.outputs.items() if name != "weights"}
    noted = Log(list(figures), log, show)
    note = host(noted.note, [value(training.i), *figures.values()], effect="log")
    program = compile(training.outputs, training.bounds, effects=[note], backend=backend, progress=False)
    saved = None
    if checkpoint is not None:
        # Environments first: what is not theirs is refused before the log is written anew.
        parts = ({"environments": environments} if isinstance(environments, Gym) else {}) | {"log": noted}
        Outside(parts).save()  # what cannot be saved is told now, not after some iterations
        saved = Checkpoints(checkpoint, over=training.i, every=every, outside=Outside(parts))
    result: dict[str, Any] = program(bounds={training.iterations: iterations}, seed=seed, checkpoint=saved)
    return result


class Lines:
    """Lines of progress; the steps per second are those of this process, which may go on from a checkpoint.

    >>> lines = Lines(100)
    >>> lines({"iteration": 4, "return": 31.5, "episodes": 8.0}).split()[:6]
    ['iteration', '5', 'return', '31.50', 'episodes', '8.00']
    >>> lines({"iteration": 5, "return": None, "episodes": 0.0}).split()[:4]
    ['iteration', '6', 'return', '-']
    """

    def __init__(self, steps: int) -> None:
        self.steps, self.shown, self.began = steps, 0, time.perf_counter()

    def __call__(self, row: Row) -> str:
        """One line, for an iteration that is over."""
        self.shown += 1
        rate = self.shown * self.steps / max(time.perf_counter() - self.began, 1e-9)
        figures = {name: row[name] for name in ("return", "episodes", "entropy") if name in row}
        parts = [f"{name} {'-' if figure is None else f'{figure:.2f}'}" for name, figure in figures.items()]
        return f"iteration {int(row['iteration'] or 0) + 1:5d}  {'  '.join(parts)}  {rate:.0f} steps/s"
