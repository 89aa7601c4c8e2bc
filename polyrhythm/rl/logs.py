"""Where the figures of a run go: CSV or JSON files, TensorBoard, Weights & Biases, the screen, callbacks.

A log is told each iteration once. It says how to be saved, so that the files of a run that was stopped and resumed are
those of one that was not.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from polyrhythm.errors import DeclarationError
from polyrhythm.runtime import processes

Row = dict[str, float | None]
"""The figures of an iteration by name; the return is None if no episode ended in it."""

KINDS = (".csv", ".json", ".jsonl")


class Sink(Protocol):
    """Something that is told figures."""

    def write(self, row: Row) -> None:
        """One iteration is over."""

    def close(self) -> None:
        """The run is over."""


class File:
    """A CSV file, or a JSON file with one object per line, by its name."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        if self.path.suffix not in KINDS:
            raise DeclarationError(
                f"a log is CSV or JSON, which {str(self.path)!r} is not by its name",
                fix=f"end it by {', '.join(KINDS)}",
            )
        if not self.path.absolute().parent.is_dir():
            raise DeclarationError(
                f"there is no folder {str(self.path.parent)!r} for the log", fix="make it, or name another"
            )

    def write(self, row: Row) -> None:
        """Append; the first iteration begins the file anew."""
        with self.path.open("a" if row["iteration"] else "w", newline="") as file:
            if self.path.suffix != ".csv":
                file.write(json.dumps(row) + "\n")
                return
            writer = csv.writer(file)
            if not row["iteration"]:
                writer.writerow(row)
            writer.writerow(row.values())

    def close(self) -> None:
        """Nothing is open."""


class TensorBoard:
    """Event files for TensorBoard, one scalar per figure, by the steps of the environments."""

    def __init__(self, folder: str, steps: int) -> None:
        try:
            from tensorboard.summary.writer.event_file_writer import (  # type: ignore[import-untyped]
                EventFileWriter,
            )
        except ImportError as error:
            raise DeclarationError(f"TensorBoard is needed: {error}", fix="pip install 'polyrhythm[logs]'") from error
        self.steps, self._writer = steps, EventFileWriter(folder)

    def write(self, row: Row) -> None:
        """All figures of an iteration; the first says that what the folder has is superseded."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        step = (int(row["iteration"] or 0) + 1) * self.steps
        values = [
            Summary.Value(tag=name, simple_value=figure)
            for name, figure in row.items()
            if figure is not None and name != "iteration"
        ]
        if not row["iteration"]:
            again = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=0, session_log=again))
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        """The thread that writes ends."""
        self._writer.close()


class Wandb:
    """A run of Weights & Biases."""

    def __init__(self, project: str, config: Mapping[str, Any], steps: int) -> None:
        try:
            import wandb  # type: ignore[import-not-found]
        except ImportError as error:
            raise DeclarationError(f"wandb is needed: {error}", fix="pip install wandb") from error
        self.steps, self._run = steps, wandb.init(project=project, config=dict(config))

    def write(self, row: Row) -> None:
        """All figures of an iteration."""
        step = (int(row["iteration"] or 0) + 1) * self.steps
        self._run.log({name: figure for name, figure in row.items() if figure is not None}, step=step)

    def close(self) -> None:
        """The run is complete."""
        self._run.finish()


class Log:
    """The figures of every iteration so far, and where they go.

    >>> log = Log(["return", "episodes"], [], print)
    >>> log.note(np.float32(0), np.float32(20.5), np.float32(2))
    {'iteration': 0, 'return': 20.5, 'episodes': 2.0}
    array(0., dtype=float32)
    >>> log.note(np.float32(1), np.float32(0), np.float32(0))
    {'iteration': 1, 'return': None, 'episodes': 0.0}
    array(0., dtype=float32)
    """

    def __init__(self, names: Sequence[str], sinks: Sequence[Sink], show: Callable[[Row], None]) -> None:
        self.names, self.sinks, self.show = list(names), list(sinks), show
        if not processes.is_first():  # of several processes one speaks for all
            self.sinks, self.show = [], lambda row: None
        self.rows: list[list[float]] = []

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
        if "evaluation" in row and np.isnan(self.rows[-1][self.names.index("evaluation")]):
            row["evaluation"] = None
        return {"iteration": len(self.rows) - 1, **row}

    def _write(self) -> None:
        for sink in self.sinks:
            sink.write(self._last())

    def save(self) -> dict[str, np.ndarray]:
        """All rows."""
        return {"rows": np.array(self.rows, np.float64).reshape(len(self.rows), len(self.names))}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Begin with the rows of a checkpoint: the file is written anew without what came after it."""
        kept, self.rows = np.asarray(state["rows"]).tolist(), []
        for row in kept:
            self.rows.append(row)
            self._write()


class Lines:
    """Lines of progress. The first iteration has compiling in it, so steps per second are those of the others.

    >>> lines = Lines(100, total=1000)
    >>> lines({"iteration": 4, "return": 31.5, "episodes": 8.0}).split()[:6]
    ['500/1000', 'return', '31.50', 'mean', '31.50', 'episodes']
    >>> lines({"iteration": 5, "return": None, "episodes": 0.0}).split()[:5]
    ['600/1000', 'return', '-', 'mean', '31.50']
    """

    def __init__(self, steps: int, total: int) -> None:
        self.steps, self.total, self.shown = steps, total, 0
        self.began = self.first = time.perf_counter()
        self.recent: list[tuple[float, float]] = []

    def __call__(self, row: Row) -> str:
        """One line, for an iteration that is over; the mean is over the last 100 episodes."""
        now = time.perf_counter()
        if self.shown == 0:
            self.first = now
        self.shown += 1
        count = row.get("episodes") or 0.0
        if count and row["return"] is not None:
            self.recent.append((row["return"], count))
            while sum(n for _, n in self.recent[1:]) >= 100:
                self.recent.pop(0)
        weight = sum(n for _, n in self.recent)
        figures: Row = {"return": row.get("return")}
        figures["mean"] = sum(r * n for r, n in self.recent) / weight if weight else None
        figures |= {name: row[name] for name in ("episodes", "entropy", "evaluation") if name in row}
        parts = [f"{name} {'-' if figure is None else f'{figure:.2f}'}" for name, figure in figures.items()]
        done = (int(row["iteration"] or 0) + 1) * self.steps
        rate = (self.shown - 1) * self.steps / max(now - self.first, 1e-9)
        speed = f"{rate:.0f} steps/s" if self.shown > 1 else f"compiled in {now - self.began:.1f} s"
        return f"{done:>9}/{self.total}  {'  '.join(parts)}  {now - self.began:.0f} s  {speed}"
