"""Plots of the studies, one file each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from benchmarks.streams.studies import Row


def plot_studies(rows: Sequence[Row], folder: Path, distance: Callable[[Sequence[Row]], float]) -> list[Path]:
    """Write all plots and return their paths. `distance` is the improvement of dynamic tiles that a title tells."""
    return [
        _tiling([row for row in rows if row.study == "dynamic_tiling"], folder / "dynamic_tiling.png", distance),
        _multiplexing([row for row in rows if row.study == "time_multiplex"], folder / "time_multiplex.png"),
        _parallelization([row for row in rows if row.study == "dynamic_parallel"], folder / "dynamic_parallel.png"),
    ]


def _tiling(rows: Sequence[Row], path: Path, distance: Callable[[Sequence[Row]], float]) -> Path:
    panels = sorted({(row.model or "", row.batch) for row in rows})
    conventions = ("authors", "authors_v2", "like_for_like")
    figure, axes = plt.subplots(len(panels), 3, figsize=(13, 3.2 * len(panels)), squeeze=False)
    for line, (model, batch) in zip(axes, panels, strict=True):
        for axis, convention in zip(line, conventions, strict=True):
            shown = [r for r in rows if (r.model, r.batch, r.convention) == (model, batch, convention)]
            still = [row for row in shown if row.tile != "dynamic"]
            axis.plot([r.on_chip_bytes / 1e6 for r in still], [r.cycles / 1e6 for r in still], "o-", label="static")
            for row in still:
                axis.annotate(str(row.tile), (row.on_chip_bytes / 1e6, row.cycles / 1e6), fontsize=7)
            best = [row for row in shown if row.tile == "dynamic"]
            axis.plot(
                [r.on_chip_bytes / 1e6 for r in best], [r.cycles / 1e6 for r in best], "*", ms=12, label="dynamic"
            )
            axis.set_title(f"{model} B={batch}, {convention}: PID {distance(shown):.2f}", fontsize=9)
            axis.set_xscale("log")
            axis.set_xlabel("on-chip memory (MB)", fontsize=8)
            axis.set_ylabel("cycles (millions)", fontsize=8)
    axes[0][0].legend(fontsize=8)
    return _save(figure, path)


def _multiplexing(rows: Sequence[Row], path: Path) -> Path:
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.6))
    for size in (32, "dynamic"):
        shown = sorted((row for row in rows if row.tile == size), key=lambda row: row.regions or 0)
        regions = [row.regions or 0 for row in shown]
        axes[0].plot(regions, [row.cycles / 1e6 for row in shown], "o-", label=f"tile {size}")
        axes[1].plot(regions, [row.on_chip_bytes / 1e6 for row in shown], "o-")
        axes[2].plot(regions, [row.utilisation for row in shown], "o-")
    labels = ("cycles (millions)", "on-chip memory (MB)", "compute utilisation")
    for axis, label in zip(axes, labels, strict=True):
        axis.set_xscale("log", base=2)
        axis.set_xlabel("regions")
        axis.set_ylabel(label)
    axes[0].legend()
    return _save(figure, path)


def _parallelization(rows: Sequence[Row], path: Path) -> Path:
    batches = sorted({row.batch for row in rows})
    figure, axes = plt.subplots(len(batches), 1, figsize=(12, 3.4 * len(batches)), squeeze=False)
    for axis, batch in zip(axes[:, 0], batches, strict=True):
        traces = sorted({row.trace for row in rows if row.batch == batch})
        for shift, policy in enumerate(("coarse", "interleave", "dynamic")):
            cycles = {row.trace: row.cycles for row in rows if row.batch == batch and row.policy == policy}
            places = [position + 0.27 * (shift - 1) for position in range(len(traces))]
            axis.bar(places, [cycles[trace] / 1e3 for trace in traces], 0.27, label=policy)
        axis.set_xticks(range(len(traces)), [trace.replace("kv_", "") for trace in traces], rotation=60, fontsize=7)
        axis.set_ylabel("cycles (thousands)")
        axis.set_title(f"decode attention, batch {batch}, four regions")
    axes[0][0].legend(ncols=3, loc="lower center", bbox_to_anchor=(0.85, 1.0))
    return _save(figure, path)


def _save(figure: Figure, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
