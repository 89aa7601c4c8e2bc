"""`python -m benchmarks.streams.tables [--run PART ...] [--data DIR]`: write the tables of `docs/streams.md`.

Their rows are kept in `benchmarks/streams/results.json`; `--run` makes those of some parts again first: `studies`,
`search`, `options` (the effects that are off by default), `speed`, or `all`. A test compares the page with the results.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.streams.attention import attention_hardware, build_attention
from benchmarks.streams.moe import MIXTRAL, QWEN
from benchmarks.streams.programs.moe import mixture_of_experts
from benchmarks.streams.recorded import ATTENTION_B16, MIXTRAL_B64, TIME_MULTIPLEX
from benchmarks.streams.search import searches
from benchmarks.streams.studies import POLICIES, Row, improvement_distance, matched, moe_point, run_studies
from benchmarks.streams.traces import Traces, find_traces
from polyrhythm.stream import BF16, Exploration, Hardware, explore, parallelize, simulate, tile, time_multiplex
from polyrhythm.stream.directives import Directive

RESULTS = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parents[2] / "docs" / "streams.md"
Line = Mapping[str, str]
Tables = dict[str, list[Line]]


def text(table: Iterable[Line]) -> str:
    """Rows as a Markdown table.

    >>> print(text([{"a": "1", "b": "2"}]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = list(table)
    rows = [list(lines[0]), ["---"] * len(lines[0]), *(list(line.values()) for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" if row[0] != "---" else f"|{'|'.join(row)}|" for row in rows)


def page(tables: Tables, written: str) -> str:
    """The page with its tables, each between two marks."""
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, _, rest = written.partition(begin)
        if not rest:
            raise KeyError(f"the page has no mark {begin.strip()}")
        written = f"{before}{begin}{text(table)}\n{end}{rest.partition(end)[2]}"
    return written


def mean(factors: Iterable[float]) -> float:
    """The geometric mean."""
    return float(np.exp(np.mean(np.log(list(factors)))))


def studies(traces: Traces) -> Tables:
    """The tables of the studies: improvement distances, headlines, and the recorded figures."""
    rows = run_studies(traces)
    return {"improvement": improvements(rows), "headlines": headlines(rows), "recorded": recorded(rows)}


def improvements(rows: list[Row]) -> list[Line]:
    """The Pareto improvement distances of dynamic tiles."""
    found: list[Line] = []
    for model in ("mixtral", "qwen"):
        for batch in (64, 1024):
            own = _where(rows, "dynamic_tiling", model=model, batch=batch)
            found.append({"layer": f"{model.capitalize()}, batch {batch}"} | {
                name: f"{improvement_distance(r for r in own if r.convention == name):.2f}"
                for name in ("authors", "authors_v2", "like_for_like")
            })  # fmt: skip
    return found


def headlines(rows: list[Row]) -> list[Line]:
    """What the paper claims, and what comes out here."""
    layers = [(model, batch) for model in ("mixtral", "qwen") for batch in (64, 1024)]

    def tiled(model: str, batch: int, size: Any, convention: str = "authors") -> Row:
        return _where(rows, "dynamic_tiling", model=model, batch=batch, tile=size, convention=convention)[0]

    def faster(convention: str) -> float:
        sizes = {64: 16, 1024: 256}
        pairs = [(tiled(m, b, sizes[b], convention), tiled(m, b, "dynamic", convention)) for m, b in layers]
        return mean(static.cycles / dynamic.cycles for static, dynamic in pairs)

    def used(size: Any) -> float:
        many, few = (_where(rows, "time_multiplex", tile=size, regions=n)[0].utilisation for n in (128, 32))
        return few / many

    def dealt(policy: str, batch: int) -> float:
        own = _where(rows, "dynamic_parallel", batch=batch)
        cycles = {(row.trace, row.policy): row.cycles for row in own}
        return mean(cycles[t, policy] / cycles[t, "dynamic"] for t in dict.fromkeys(row.trace for row in own))

    memory = mean(tiled(m, 64, 64).on_chip_bytes / tiled(m, 64, "dynamic").on_chip_bytes for m in ("mixtral", "qwen"))
    distances = [float(line["authors_v2"]) for line in improvements(rows)]
    pairs = {
        convention: [matched(_where(rows, "decoder", model=m, convention=convention)) for m in ("mixtral", "qwen")]
        for convention in ("authors", "like_for_like")
    }
    equal, fastest = ({c: [own[k] for own in found] for c, found in pairs.items()} for k in (0, 1))

    def both(found: dict[str, Any], figure: Callable[[Any], str]) -> str:
        shown = {convention: " and ".join(map(figure, own)) for convention, own in found.items()}
        return shown["authors"] + (
            "" if len(set(shown.values())) == 1 else f" (`like_for_like` {shown['like_for_like']})"
        )

    listed = [
        ("2.18x less on-chip memory by dynamic tiles", f"{memory:.2f}x",
         "`authors`: geometric mean of tile 64 over dynamic, both models at batch 64"),
        ("1.45x faster by dynamic tiles", f"{faster('authors'):.2f}x",
         "`authors`: geometric mean over all four layers, against tile 16 or 256; "
         f"`like_for_like` {faster('like_for_like'):.2f}x"),
        ("2.57x better utilisation by time-multiplexing", f"{mean([used(32), used('dynamic')]):.2f}x",
         "32 regions against 128, mean of tile 32 and dynamic"),
        ("1.5x by dynamic parallelization", f"{dealt('coarse', 64):.2f}x and {dealt('interleave', 64):.2f}x",
         "batch 64, geometric means over the traces: against coarse blocks, and against rotation"),
        ("PID 1.33 to 2.11", f"{min(distances):.2f} to {max(distances):.2f}", "`authors_v2`"),
        ("2.64x utilisation (revised)", f"{used(32):.2f}x", "tile 32, 32 regions against 128"),
        ("2.72x against coarse blocks at batch 16", f"{dealt('coarse', 16):.1f}x",
         "all traces of the data folder, geometric mean; the paper has one trace"),
        ("1.27x and 1.15x for whole decoder layers at equal memory", both(equal, lambda own: f"{own.faster:.2f}x"),
         "the static tile nearest in memory"),
        ("1.05x and 1.14x with 20 % and 88 % less memory",
         f"{both(fastest, lambda own: f'{own.faster:.2f}x')} with "
         f"{both(fastest, lambda own: f'{100 * own.less_memory:.0f} %')}",
         "the fastest static tile"),
    ]  # fmt: skip
    return [dict(zip(("published", "here", "convention and points"), line, strict=True)) for line in listed]


def recorded(rows: list[Row]) -> list[Line]:
    """Cycles beside the recorded ones."""
    points: list[tuple[str, int, int]] = []
    for size, (cycles, _, _) in MIXTRAL_B64.items():
        name = "dynamic tiles" if size == "dynamic" else f"tile {size}"
        own = _where(rows, "dynamic_tiling", model="mixtral", batch=64, tile=size, convention="authors")
        points.append((f"Mixtral, batch 64, {name}", cycles, own[0].cycles))
    for regions, (cycles, _) in TIME_MULTIPLEX.items():
        own = _where(rows, "time_multiplex", tile=32, regions=regions)
        points.append((f"Qwen, batch 64, tile 32, {regions} regions", cycles, own[0].cycles))
    for trace, recordings in ATTENTION_B16.items():
        for policy, cycles in zip(POLICIES, recordings, strict=True):
            own = _where(rows, "dynamic_parallel", trace=trace, policy=policy)
            points.append((f"attention {trace.removeprefix('kv_b16_')}, {policy}", cycles, own[0].cycles))
    return [
        {"point": name, "recorded": f"{was:,}", "simulated": f"{now:,}", "difference": f"{now / was - 1:+.2%}"}
        for name, was, now in points
    ]


def _where(rows: list[Row], study: str, **wanted: Any) -> list[Row]:
    return [row for row in rows if row.study == study and all(getattr(row, k) == v for k, v in wanted.items())]


OPTIONS: dict[str, tuple[dict[str, int], str]] = {
    "`row_cycles=30`": (
        {"row_cycles": 30},
        "a transfer opens DRAM rows of `row_bytes`, those in different `dram_banks` at the same time",
    ),
    "`sram_banks=2`": ({"sram_banks": 2}, "a unit reads two operands at the same time"),
    "`hop_cycles=2`": ({"hop_cycles": 2}, "tokens travel over a square of processes, in the order of the program"),
    "`reconfigure_cycles=1000`": (
        {"reconfigure_cycles": 1000},
        "the loaders of a shared region pause when it goes over to another branch",
    ),
}


def options(traces: Traces) -> Tables:
    """What the effects that are off by default do to recorded points."""
    mixtral, qwen = (traces.routing(f"routing_{model}_b64") for model in ("mixtral", "qwen"))
    lengths = next((t for t in traces.kv_lengths() if t.name in ATTENTION_B16), traces.kv_lengths()[0])
    programs = {
        "Mixtral, tile 16": (moe_point(MIXTRAL, mixtral, 16, 64, Hardware()).program, Hardware()),
        "Mixtral, dynamic": (moe_point(MIXTRAL, mixtral, "dynamic", 64, Hardware()).program, Hardware(compute=6400)),
        "Qwen, 8 regions": (moe_point(QWEN, qwen, 32, 48, Hardware(), 8).program, Hardware(compute=1024)),
    }
    for name, policy in (("attention, rotation", POLICIES[1]), ("attention, dynamic", POLICIES[2])):
        built = build_attention(lengths.values.tolist(), [parallelize("request", 4, policy)], safe_softmax=False)
        programs[name] = (built, attention_hardware())
    base = {name: simulate(program, own, functional=False).cycles for name, (program, own) in programs.items()}
    found: list[Line] = []
    for option, (change, meaning) in OPTIONS.items():
        line = {"option": option, "meaning": meaning}
        for name, (program, own) in programs.items():
            cycles = simulate(program, replace(own, **change), functional=False).cycles  # type: ignore[arg-type]
            line[name] = f"{100 * (cycles / base[name] - 1):+.1f} %" if cycles != base[name] else "0"
        found.append(line)
    return {"options": found}


def qwen_exploration(traces: Traces, jobs: int = 2) -> Exploration:
    """500 schedules of the experts of Qwen: tiles of tokens and of the inner dim, and shared regions."""
    layer = mixture_of_experts()
    inners = [n for n in range(16, QWEN.intermediate + 1) if QWEN.intermediate % n == 0]
    space: list[list[Directive | None]] = [
        [*(tile("token", n) for n in (4, 8, 16, 32, 64)), tile("token", dynamic=True)],
        [tile("intermediate", n) for n in inners],
        [None, *(time_multiplex("expert", 2**k) for k in range(7))],
        [tile("hidden", dynamic=True)],
    ]
    assert prod(map(len, space)) >= 500
    sizes = {"hidden": QWEN.hidden, "intermediate": QWEN.intermediate, "expert": QWEN.experts}
    bounds = {layer.bounds[name]: size for name, size in sizes.items()}
    routing = {"routing": np.asarray(traces.routing("routing_qwen_b64").values, np.int32)}
    return explore(layer.output, routing, Hardware(compute=1024), space=space, bounds=bounds, storage=BF16, jobs=jobs)


def many_requests(count: int, regions: int, average: int) -> int:
    """Cycles of decode attention of requests whose lengths are drawn, dealt out dynamically."""
    drawn = np.random.default_rng(0).lognormal(np.log(average) - 0.32, 0.8, count)
    lengths = np.clip(drawn, 1, 4 * average).astype(int).tolist()
    program = build_attention(lengths, [parallelize("request", regions)])
    return simulate(program, attention_hardware(), functional=False).cycles


def explored() -> str:
    """What becomes of 500 schedules."""
    states = [point.status for point in qwen_exploration(find_traces()).points]
    return ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))


LARGE: dict[str, tuple[str, int, Callable[[], str]]] = {
    "attention, 1,024 requests of 2,048 on average, 32 regions": (
        "5 s, 500 MB",
        0,
        lambda: f"{many_requests(1024, 32, 2048):,} cycles",
    ),
    "attention, 256 requests of 16,384 on average, 16 regions": (
        "5 s, 500 MB",
        0,
        lambda: f"{many_requests(256, 16, 16384):,} cycles",
    ),
    "500 schedules of the experts of Qwen, batch 64, two processes": ("120 s, 500 MB", 2, explored),
}
"""Large points: their limits, their worker processes, and what comes out."""


def measured(name: str) -> dict[str, str]:
    """One large point in this process: the result, seconds, and the memory of the process and its workers."""
    limit, jobs, run = LARGE[name]
    started = time.monotonic()
    result = run()
    seconds = time.monotonic() - started
    own, workers = (resource.getrusage(w).ru_maxrss for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    memory = f"{(own + jobs * workers) / 1000:.0f} MB"
    return {"what": name, "result": result, "seconds": f"{seconds:.1f}", "limit": limit, "memory": memory}


def alone(name: str) -> dict[str, str]:
    """One large point in a process of its own."""
    code = "import json, sys; from benchmarks.streams.tables import measured; print(json.dumps(measured(sys.argv[1])))"
    run = subprocess.run([sys.executable, "-c", code, name], check=True, capture_output=True)
    found: dict[str, str] = json.loads(run.stdout)
    return found


def speed(traces: Traces) -> Tables:
    """Seconds and memory of large points."""
    return {"speed": [alone(name) for name in LARGE]}


PARTS: dict[str, Callable[[Traces], Tables]] = {
    "studies": studies,
    "search": lambda traces: {"search": [found.row() for found in searches(traces)]},
    "options": options,
    "speed": speed,
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams.tables", description=__doc__)
    parser.add_argument("--run", nargs="+", choices=[*PARTS, "all"], default=[], help="parts to run again")
    parser.add_argument("--data", type=Path, default=None, help="folder of the traces")
    asked = parser.parse_args()
    tables: Tables = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for part in PARTS if "all" in asked.run else asked.run:
        tables |= PARTS[part](find_traces(asked.data))
        RESULTS.write_text(json.dumps(tables, indent=1) + "\n")
    PAGE.write_text(page(tables, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
