"""Learning curves as pictures: the mean over runs, with a band that holds 95 % of such means (by Student's t)."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from polyrhythm.errors import DeclarationError

T_95 = (
    12.71,
    4.30,
    3.18,
    2.78,
    2.57,
    2.45,
    2.36,
    2.31,
    2.26,
    2.23,
    2.20,
    2.18,
    2.16,
    2.14,
    2.13,
    2.12,
    2.11,
    2.10,
    2.09,
)
"""Quantiles of Student's distribution, by degrees of freedom from 1; about 2 beyond."""

Curves = dict[str, np.ndarray]
"""By label: an array of runs and iterations."""


def curves_of(runs: Sequence[str], figure: str, window: int) -> Curves:
    """The curves of some runs: `ppo=runs/a` and `ppo=runs/b` are one label with two runs."""
    found: dict[str, list[np.ndarray]] = {}
    for run in runs:
        label, equals, path = run.partition("=")
        place = Path(path if equals else run)
        for curve in _read(place / "log.csv" if place.is_dir() else place, figure):
            found.setdefault(label if equals and label else place.name, []).append(smoothed(curve, window))
    return {label: np.stack([c[: min(map(len, curves))] for c in curves]) for label, curves in found.items()}


def smoothed(curve: np.ndarray, window: int) -> np.ndarray:
    """The mean of the last `window` iterations that have a figure, at each.

    >>> smoothed(np.array([1.0, np.nan, 3.0, 5.0]), 2).tolist()
    [1.0, 1.0, 3.0, 4.0]
    """
    known = ~np.isnan(curve)
    sums = np.cumsum(np.where(known, curve, 0.0))
    counts = np.cumsum(known)
    before = np.maximum(np.arange(len(curve)) - window, -1)
    total = sums - np.where(before >= 0, sums[before], 0.0)
    count = counts - np.where(before >= 0, counts[before], 0)
    with np.errstate(invalid="ignore"):
        return np.asarray(total / np.where(count == 0, np.nan, count))


def band(curves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of runs, and how far from it the mean of all runs may be.

    >>> mean, half = band(np.array([[1.0], [3.0]]))
    >>> mean.tolist(), half.round(2).tolist()
    ([2.0], [12.71])
    """
    count = len(curves)
    if count == 1:
        return curves[0], np.zeros(curves.shape[1])
    t = T_95[count - 2] if count - 2 < len(T_95) else 2.0
    return curves.mean(0), t * curves.std(0, ddof=1) / math.sqrt(count)


def draw(curves: Curves, path: str, figure: str, steps: Sequence[float] = ()) -> None:
    """Write a picture; `steps` are those between two points of each curve, if not one iteration."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise DeclarationError(f"matplotlib is needed: {error}", fix="pip install 'polyrhythm[stream]'") from error
    drawing, axes = pyplot.subplots(figsize=(6, 3.6))
    known = drawing.canvas.get_supported_filetypes()
    if path.rpartition(".")[2] not in known:
        raise DeclarationError(f"{path!r} is not a picture by its name", fix=f"end it by one of .{', .'.join(known)}")
    for number, (label, runs) in enumerate(curves.items()):
        mean, half = band(runs)
        x = (np.arange(len(mean)) + 1) * (steps[number] if steps else 1.0)
        (line,) = axes.plot(x, mean, label=f"{label} ({len(runs)})", linewidth=1.5)
        axes.fill_between(x, mean - half, mean + half, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xlabel("steps" if steps else "iterations")
    axes.set_ylabel(figure)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    drawing.tight_layout()
    with matplotlib.rc_context({"svg.hashsalt": "curves"}):  # the same curves are the same file
        drawing.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)
    pyplot.close(drawing)


def _read(path: Path, figure: str) -> list[np.ndarray]:
    """The curves of a log: one, or one per seed."""
    if not path.is_file():
        raise DeclarationError(f"there is no log {str(path)!r}", fix="give the folder of a run, or a log file")
    seeds: dict[str, list[float]] = {}
    try:
        with path.open() as file:
            rows = list(csv.DictReader(file)) if path.suffix == ".csv" else [json.loads(line) for line in file]
        if not rows or figure not in rows[0]:
            has = f"it has {', '.join(rows[0]) if rows else 'no rows'}"
            raise DeclarationError(f"{path} has no figure {figure!r}", fix=has)
        for row in rows:
            value = row.get(figure)
            seeds.setdefault(str(row.get("seed", 0)), []).append(math.nan if value in ("", None) else float(value))
    except (ValueError, TypeError) as error:
        raise DeclarationError(f"{path} is not a log of figures: {error}", fix="give the log of a run") from error
    return [np.array(curve) for curve in seeds.values()]
