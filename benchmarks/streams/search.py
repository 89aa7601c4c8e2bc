"""The best schedules that a search finds, beside those of the paper.

    python -m benchmarks.streams.search [--data DIR]

For each study `stream.explore` goes over tiles, shared regions and policies of the same layer, on the same hardware. A
row says how many cycles the paper's dynamic schedule takes, and those of the best one found that needs no more memory.
Under `authors` dynamic tiles have 6400 FLOPs a cycle and node and static ones 4096, so both are searched apart; under
`like_for_like` all have 4096.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.streams.attention import AttentionShape, attention_hardware
from benchmarks.streams.moe import MIXTRAL, QWEN, MoeShape
from benchmarks.streams.programs.attention import decode_attention
from benchmarks.streams.programs.moe import mixture_of_experts
from benchmarks.streams.traces import Traces, find_traces
from polyrhythm.stream import BF16, Hardware, explore
from polyrhythm.stream.directives import Directive, Policy, parallelize, tile, time_multiplex
from polyrhythm.stream.exploration import Point

POLICIES: tuple[Policy, ...] = ("coarse", "interleave", "dynamic")


@dataclass(frozen=True)
class Found:
    """One study under one convention: the paper's point, and the best that needs no more memory."""

    study: str
    convention: str
    paper: Point
    best: Point

    def __str__(self) -> str:
        gain = self.paper.figures["cycles"] / self.best.figures["cycles"]
        memory = self.best.figures["on_chip_bytes"] / self.paper.figures["on_chip_bytes"]
        numbers = (
            f"{self.paper.figures['cycles']:,.0f} | {self.best.figures['cycles']:,.0f} | {gain:.2f}x | {memory:.0%}"
        )
        return f"| {self.study} | {self.convention} | {numbers} | {self.best.schedule} |"


def experts(
    name: str, shape: MoeShape, routing: np.ndarray, inner: int, regions: int | None, computes: tuple[int, int]
) -> Iterator[Found]:
    """Tiles of tokens and of the inner dim, and shared regions, of a mixture of experts."""
    layer = mixture_of_experts()
    whole = tile("hidden", dynamic=True)
    inners = [n for n in (16, 32, 48, 64, 96, 128, 256) if shape.intermediate % n == 0]
    shared = [n for n in (64, 32, 16, 8, 4) if n < shape.experts]
    space: list[list[Directive | None]] = [
        [*(tile("token", n) for n in (8, 16, 32, 64)), tile("token", dynamic=True)],
        [tile("intermediate", n) for n in inners],
        [None, *(time_multiplex("expert", n) for n in shared)],
        [whole],
    ]
    paper: list[Directive] = [tile("token", dynamic=True), tile("intermediate", inner), whole]
    paper += [] if regions is None else [time_multiplex("expert", regions)]
    sizes = {"hidden": shape.hidden, "intermediate": shape.intermediate, "expert": shape.experts}
    given: dict[str, Any] = {
        "data": {"routing": np.asarray(routing, np.int32)},
        "bounds": {layer.bounds[key]: size for key, size in sizes.items()},
        "storage": BF16,
    }
    for convention, compute in zip(("authors", "like_for_like"), computes, strict=True):
        hardware = Hardware(compute=compute, fifo_depth=2)
        own = explore(layer.output, hardware=hardware, space=[[d] for d in paper], jobs=1, **given).best
        limit = {"on_chip_bytes": own.figures["on_chip_bytes"]}
        found = [explore(layer.output, hardware=hardware, space=space, limits=limit, **given).best]
        if compute != 4096:
            static = [[d for d in space[0] if "dynamic" not in str(d)], *space[1:]]
            slower = replace(hardware, compute=4096)
            tried = explore(layer.output, hardware=slower, space=static, limits=limit, **given)
            found += tried.front[:1]
        yield Found(name, convention, own, min([own, *found], key=lambda point: point.figures["cycles"]))


def attention(name: str, lengths: np.ndarray) -> Iterator[Found]:
    """Policies, blocks and tiles of the caches of decode attention, on four regions."""
    shape = AttentionShape()
    step = decode_attention(shape.queries, shape.width, safe_softmax=False)
    capacity = -(-(int(lengths.max()) + 1) // 128) * 128
    dealt = [parallelize("request", 4, policy) for policy in POLICIES[1:]]
    dealt += [parallelize("request", 4, "coarse", block) for block in (1, 4, 16)]
    given: dict[str, Any] = {
        "data": {"length": np.asarray(lengths, np.int32)},
        "bounds": {step.bounds["request"]: len(lengths), step.bounds["kv"]: capacity},
        "storage": BF16,
    }
    hardware = attention_hardware()
    paper: list[list[Directive | None]] = [[parallelize("request", 4, "dynamic")], [tile("kv", 32)]]
    own = explore(step.outputs, hardware=hardware, space=paper, jobs=1, **given).best
    tiles: list[Directive | None] = [tile("kv", n) for n in (16, 32, 64, 128)]
    limit = {"on_chip_bytes": own.figures["on_chip_bytes"]}
    found = explore(step.outputs, hardware=hardware, space=[[*dealt], tiles], limits=limit, **given)
    yield Found(name, "both", own, min([own, found.best], key=lambda point: point.figures["cycles"]))


def searches(traces: Traces) -> Iterator[Found]:
    """All studies."""
    mixtral, qwen = (traces.routing(f"routing_{model}_b64").values for model in ("mixtral", "qwen"))
    yield from experts("tiling, Mixtral", MIXTRAL, mixtral, 64, None, (6400, 4096))
    yield from experts("tiling, Qwen", QWEN, qwen, 64, None, (6400, 4096))
    yield from experts("time-multiplexing, Qwen", QWEN, qwen, 48, 32, (1024, 1024))
    every = [trace for trace in traces.kv_lengths() if len(trace.values) == 16]
    yield from attention("parallelization, batch 16", every[len(every) // 2].values)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams.search", description=__doc__)
    parser.add_argument("--data", type=Path, default=None, help="folder of the traces")
    print("| study | convention | paper's schedule | best found | faster | memory | schedule |")
    print("|---|---|---|---|---|---|---|")
    for found in searches(find_traces(parser.parse_args().data)):
        print(found, flush=True)


if __name__ == "__main__":
    main()
