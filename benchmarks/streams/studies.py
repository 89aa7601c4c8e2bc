"""The four studies: dynamic tiling, time-multiplexed regions, dynamic parallelization, whole decoder layers.

    python -m benchmarks.streams.studies --out DIR [--data DIR]

runs every design point and writes DIR/studies.json, one row a point and convention, and plots. A *convention* says how
the figures are counted. `authors`: nodes of dynamic graphs have 6400 FLOPs a cycle and those of static graphs 4096, and
buffers of experts without tokens are left out. `authors_v2`: left out for dynamic tiles only. `like_for_like`: 4096 for
both, all experts counted in both.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.streams.attention import attention_hardware, build_attention
from benchmarks.streams.decoder import DECODERS, build_decoder, decoder_hardware
from benchmarks.streams.moe import MIXTRAL, QWEN, MoeShape, build_moe, moe_bindings
from benchmarks.streams.traces import Trace, Traces, find_traces
from polyrhythm.stream.directives import Directive, Policy, parallelize, tile, time_multiplex
from polyrhythm.stream.graph import Program
from polyrhythm.stream.hardware import Hardware
from polyrhythm.stream.metrics import measure
from polyrhythm.stream.simulate import Run, simulate

Convention = Literal["authors", "authors_v2", "like_for_like"]
TileSize = int | Literal["dynamic"]

MODELS: dict[str, MoeShape] = {"mixtral": MIXTRAL, "qwen": QWEN}
STATIC_TILES = {64: (8, 16, 32, 64), 1024: (16, 32, 64, 128, 256, 512, 1024)}
REGIONS = (128, 64, 32, 16, 8, 4)
POLICIES: tuple[Policy, ...] = ("coarse", "interleave", "dynamic")
ATTENTION_REGIONS = 4


@dataclass(frozen=True)
class Row:
    """One line of studies.json; None where a key has no meaning for the study.

    >>> sorted(asdict(Row("dynamic_tiling", None, 1, None, None, None, "x", "authors", 1, 1, 1, 1, 1, 0.5, 0.1)))[:3]
    ['batch', 'convention', 'cycles']
    """

    study: str
    model: str | None
    batch: int
    tile: TileSize | None
    regions: int | None
    policy: str | None
    trace: str
    convention: Convention
    cycles: int
    off_chip_bytes: int
    off_chip_bytes_burst: int
    on_chip_bytes: int
    on_chip_bytes_paper: int
    utilisation: float
    seconds: float


@dataclass(frozen=True)
class Point:
    """A design point that has been run: the program, what it did, and the seconds of processor time it took."""

    program: Program
    run: Run
    seconds: float


def run_point(build: Callable[[], Program], hardware: Hardware) -> Point:
    """Build and simulate a design point, for timing. Its seconds are processor time: the engine has one thread.

    >>> from polyrhythm.stream import source, static
    >>> run_point(lambda: Program(source("x", [1.0], (static(1),))), Hardware()).run.cycles
    0
    """
    started = time.process_time()
    program = build()
    run = simulate(program, hardware, functional=False)
    return Point(program, run, time.process_time() - started)


def moe_point(
    shape: MoeShape, trace: Trace, size: TileSize, inner: int, hardware: Hardware, regions: int | None = None
) -> Point:
    """One design point of the mixture-of-experts layer.

    >>> import numpy as np
    >>> trace = Trace("tiny", np.array([[0], [1]]))
    >>> moe_point(MoeShape(4, 8, 2, 1), trace, "dynamic", 4, Hardware()).run.cycles > 0
    True
    """
    rows = tile("token", dynamic=True) if size == "dynamic" else tile("token", size)
    schedule: list[Directive] = [rows, tile("intermediate", inner)]
    if regions is not None:
        schedule.append(time_multiplex("expert", regions))
    return run_point(lambda: build_moe(shape, trace.values, schedule), hardware)


def attention_point(trace: Trace, policy: Policy, safe_softmax: bool = False) -> Point:
    """One design point of decode attention.

    >>> import numpy as np
    >>> attention_point(Trace("tiny", np.array([40, 3])), "dynamic").run.cycles > 0
    True
    """
    schedule = [parallelize("request", ATTENTION_REGIONS, policy)]
    return run_point(
        lambda: build_attention(trace.values.tolist(), schedule, safe_softmax=safe_softmax), attention_hardware()
    )


def tiling_hardware(model: str, batch: int, size: TileSize, convention: Convention) -> Hardware:
    """The accelerator of the tiling study under a convention.

    >>> tiling_hardware("mixtral", 64, "dynamic", "authors").compute
    6400
    """
    compute = 6400 if size == "dynamic" and convention != "like_for_like" else 4096
    # With shallow FIFOs a rarely chosen expert blocks the token stream of all others for good.
    depth = 1024 if model == "qwen" and batch == 1024 else 2
    return Hardware(compute=compute, fifo_depth=depth)


def counts_active_only(size: TileSize, convention: Convention) -> bool:
    """Whether buffers of experts without tokens are left out.

    >>> counts_active_only(16, "authors"), counts_active_only(16, "authors_v2")
    (True, False)
    """
    return convention == "authors" or (convention == "authors_v2" and size == "dynamic")


def dynamic_tiling(
    traces: Traces, models: Sequence[str] = ("mixtral", "qwen"), batches: Sequence[int] = (64, 1024)
) -> Iterator[Row]:
    """Static tiles of all sizes against dynamic tiles, in all conventions."""
    for model in models:
        for batch in batches:
            sizes = STATIC_TILES[batch]
            trace = traces.routing(f"routing_{model}_b{batch}")
            points: dict[tuple[TileSize, int], Point] = {}
            every: tuple[TileSize, ...] = (*sizes, "dynamic")
            for size in every:
                for convention in _conventions():
                    hardware = tiling_hardware(model, batch, size, convention)
                    key = (size, hardware.compute)
                    if key not in points:
                        points[key] = moe_point(MODELS[model], trace, size, 64, hardware)
                    active = counts_active_only(size, convention)
                    bindings = moe_bindings(MODELS[model], trace.values)
                    labels = _Labels("dynamic_tiling", model, batch, size, None, None, trace.name, convention)
                    yield _row(labels, points[key], bindings, active)


def time_multiplexing(traces: Traces) -> Iterator[Row]:
    """Fewer and fewer regions for the experts of Qwen at batch 64."""
    trace = traces.routing("routing_qwen_b64")
    sizes: tuple[TileSize, ...] = (32, "dynamic")
    for size in sizes:
        for regions in REGIONS if size == 32 else (*REGIONS, 2):
            point = moe_point(QWEN, trace, size, 48, Hardware(compute=1024), regions)
            labels = _Labels("time_multiplex", "qwen", 64, size, regions, None, trace.name, "authors")
            yield _row(labels, point, moe_bindings(QWEN, trace.values), active_only=True)


def dynamic_parallelization(traces: Traces) -> Iterator[Row]:
    """Three ways to deal requests of uneven length out to four regions."""
    for trace in traces.kv_lengths():
        for policy in POLICIES:
            point = attention_point(trace, policy)
            batch = len(trace.values)
            labels = _Labels("dynamic_parallel", None, batch, None, ATTENTION_REGIONS, policy, trace.name, "authors")
            yield _row(labels, point, point.run.bindings, active_only=False)


SHARED_REGIONS = {"mixtral": None, "qwen": 32}
"""The regions that experts share in the dynamic schedule of a whole layer; Mixtral has few experts."""


def decoder_point(model: str, lengths: Trace, routing: Trace, size: TileSize, hardware: Hardware) -> Point:
    """One design point of a whole layer: dynamic in everything, or in nothing."""
    given = [int(n) for n in lengths.values[: len(routing.values)]]
    shape = DECODERS[model]
    if size == "dynamic":
        shared = SHARED_REGIONS[model]
        return run_point(
            lambda: build_decoder(shape, given, routing.values, None, "dynamic", ATTENTION_REGIONS, shared).program,
            hardware,
        )
    return run_point(
        lambda: build_decoder(shape, given, routing.values, size, "interleave", ATTENTION_REGIONS).program, hardware
    )


def decoder_layers(traces: Traces, models: Sequence[str] = ("mixtral", "qwen")) -> Iterator[Row]:
    """Whole layers: dynamic tiles, dispatch and shared regions against static tiles and rotation."""
    lengths = traces.decoder_lengths()
    sizes: tuple[TileSize, ...] = (*STATIC_TILES[64], "dynamic")
    conventions: tuple[Convention, ...] = ("authors", "like_for_like")
    for model in models:
        routing = traces.routing(f"routing_{model}_b64")
        points: dict[tuple[TileSize, int], Point] = {}
        for size in sizes:
            for convention in conventions:
                hardware = decoder_hardware(size == "dynamic", convention == "authors")
                key = (size, hardware.compute)
                if key not in points:
                    points[key] = decoder_point(model, lengths, routing, size, hardware)
                shared = SHARED_REGIONS[model] if size == "dynamic" else None
                policy = "dynamic" if size == "dynamic" else "interleave"
                labels = _Labels("decoder", model, 64, size, shared, policy, lengths.name, convention)
                active = counts_active_only(size, convention)
                yield _row(labels, points[key], points[key].run.bindings, active)


@dataclass(frozen=True)
class Matched:
    """Dynamic over static: how many times faster, and how much less memory, for one static schedule."""

    tile: TileSize | None
    faster: float
    less_memory: float


def matched(rows: Iterable[Row]) -> tuple[Matched, Matched]:
    """Dynamic against the static schedule nearest in memory, and against the fastest one.

    >>> row = lambda tile, cycles, memory: Row("", "", 1, tile, 0, "", "", "authors", cycles, 0, 0, memory, 0, 0.0, 0.0)
    >>> one, other = matched([row(8, 200, 110), row(16, 120, 200), row("dynamic", 100, 100)])
    >>> one.tile, one.faster, other.tile, other.less_memory
    (8, 2.0, 16, 0.5)
    """
    listed = list(rows)
    best = next(row for row in listed if row.tile == "dynamic")
    static = [row for row in listed if row.tile != "dynamic"]
    memory = min(static, key=lambda row: (abs(row.on_chip_bytes - best.on_chip_bytes), row.cycles))
    fastest = min(static, key=lambda row: (row.cycles, row.on_chip_bytes))
    first, second = (
        Matched(row.tile, row.cycles / best.cycles, 1 - best.on_chip_bytes / row.on_chip_bytes)
        for row in (memory, fastest)
    )
    return first, second


@dataclass(frozen=True)
class _Labels:
    """The keys that say which design point and convention a row is about."""

    study: str
    model: str | None
    batch: int
    tile: TileSize | None
    regions: int | None
    policy: str | None
    trace: str
    convention: Convention


def _conventions() -> tuple[Convention, ...]:
    return ("authors", "authors_v2", "like_for_like")


def _row(labels: _Labels, point: Point, bindings: Mapping[str, Any], active_only: bool) -> Row:
    values = measure(point.program, point.run.hardware, active_only=active_only).evaluate(bindings)
    return Row(
        **asdict(labels),
        cycles=point.run.cycles,
        off_chip_bytes=values["off_chip"],
        off_chip_bytes_burst=values["off_chip_burst"],
        on_chip_bytes=values["on_chip"],
        on_chip_bytes_paper=values["on_chip_paper"],
        utilisation=point.run.utilisation,
        seconds=point.seconds,
    )


def improvement_distance(rows: Iterable[Row]) -> float:
    """The Pareto improvement distance of dynamic over static tiles.

    It is the smallest factor, over the static points, by which the dynamic point is better in cycles or in memory.

    >>> row = lambda tile, cycles, memory: Row("", "", 1, tile, 0, "", "", "authors", cycles, 0, 0, memory, 0, 0.0, 0.0)
    >>> improvement_distance([row(8, 200, 100), row(16, 100, 150), row("dynamic", 100, 100)])
    1.5
    """
    listed = list(rows)
    best = next(row for row in listed if row.tile == "dynamic")
    return min(
        max(row.cycles / best.cycles, row.on_chip_bytes / best.on_chip_bytes) for row in listed if row.tile != "dynamic"
    )


def run_studies(traces: Traces, say: Callable[[str], None] = print) -> list[Row]:
    """All rows of all studies, in a fixed order."""
    rows: list[Row] = []
    for title, study in (
        ("dynamic tiling", dynamic_tiling),
        ("time-multiplexing", time_multiplexing),
        ("dynamic parallelization", dynamic_parallelization),
        ("decoder layers", decoder_layers),
    ):
        started = time.perf_counter()
        found = list(study(traces))
        rows.extend(found)
        say(f"{title}: {len(found)} rows in {time.perf_counter() - started:.1f} s")
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams.studies", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for studies.json and the plots")
    parser.add_argument("--data", type=Path, default=None, help="folder of the traces")
    options = parser.parse_args(arguments)
    traces = find_traces(options.data)
    if traces.folder is None:
        print("no trace folder was found: synthetic traces with the same counts are used")
    else:
        print(f"traces from {traces.folder}")
    rows = run_studies(traces)
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps([asdict(row) for row in rows], indent=1)
    (options.out / "studies.json").write_text(text + "\n")
    print(f"wrote {options.out / 'studies.json'}")
    _plot(rows, options.out)
    return 0


def _plot(rows: list[Row], folder: Path) -> None:
    try:
        from benchmarks.streams.plots import plot_studies
    except ModuleNotFoundError as missing:
        print(f"no plots: {missing.name} is not installed (pip install polyrhythm[stream])")
        return
    for path in plot_studies(rows, folder, improvement_distance):
        print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
