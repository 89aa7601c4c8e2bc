"""The best schedules that a search finds, beside those of the paper.

    python -m benchmarks.streams.search [--data DIR]

For each study `stream.explore` goes over tiles, shared regions and policies of the same layer, on the same hardware. A
row says how many cycles the paper's dynamic schedule takes, and those of the best one found that needs no more memory.
Under `authors` dynamic tiles have 6400 FLOPs a cycle and node and static ones 4096, so both are searched apart; under
`like_for_like` all have 4096.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.streams.attention import AttentionShape, attention_hardware
from benchmarks.streams.decoder import DECODERS, common_schedule, decoder_hardware, decoder_inputs
from benchmarks.streams.moe import MIXTRAL, QWEN, MoeShape
from benchmarks.streams.programs.attention import decode_attention
from benchmarks.streams.programs.decoder import decoder_layer
from benchmarks.streams.programs.moe import mixture_of_experts
from benchmarks.streams.traces import Traces, find_traces
from polyrhythm.stream import BF16, Hardware, explore
from polyrhythm.stream.directives import Directive, Policy, parallelize, tile, time_multiplex
from polyrhythm.stream.exploration import Point

POLICIES: tuple[Policy, ...] = ("coarse", "interleave", "dynamic")
Space = list[list[Directive | None]]


@dataclass(frozen=True)
class Found:
    """One study under one convention: the paper's point, and the best that needs no more memory."""

    study: str
    convention: str
    paper: Point
    best: Point

    def row(self) -> dict[str, Any]:
        """The line of a table.

        >>> one = Point("tile('t', 2)", "simulated", {"cycles": 4, "on_chip_bytes": 9})
        >>> two = Point("tile('t', 4)", "simulated", {"cycles": 2, "on_chip_bytes": 9})
        >>> Found("small", "both", one, two).row()["what is different"]
        "`tile('t', 4)`"
        """
        gain = self.paper.figures["cycles"] / self.best.figures["cycles"]
        memory = self.best.figures["on_chip_bytes"] / self.paper.figures["on_chip_bytes"]
        ours, theirs = (re.findall(r"\w+\([^)]*\)", point.schedule) for point in (self.best, self.paper))
        changed = [f"`{re.sub(', on=.*', ')', each)}`" for each in ours if each not in theirs]
        changed += [f"no `{each}`" for each in theirs if each.split(",")[0] not in self.best.schedule]
        return {
            "study": self.study,
            "convention": self.convention,
            "paper's schedule": f"{self.paper.figures['cycles']:,.0f}",
            "best found": f"{self.best.figures['cycles']:,.0f}",
            "faster": f"{gain:.2f}x",
            "memory": f"{memory:.0%}",
            "what is different": ", ".join(changed) or "nothing",
        }


def compared(
    name: str,
    output: Any,
    paper: Sequence[Directive],
    space: Space,
    hardware: Callable[[bool, bool], Hardware],
    given: dict[str, Any],
) -> Iterator[Found]:
    """The best of a space against a schedule, under both conventions.

    The first choice of the space is that of the tiles of tokens; `hardware` says what dynamic and static ones have, by
    the authors or like for like.
    """
    same = hardware(True, True) == hardware(True, False)
    for convention in ("both",) if same else ("authors", "like_for_like"):
        authors = convention == "authors"
        own = explore(output, hardware=hardware(True, authors), space=[[d] for d in paper], jobs=1, **given).best
        limit = {"on_chip_bytes": own.figures["on_chip_bytes"]}
        kinds: list[tuple[Hardware, Space]] = [(hardware(True, authors), space)]
        if hardware(False, authors) != hardware(True, authors):
            tiles = [[d for d in space[0] if ("dynamic" in str(d)) is dynamic] for dynamic in (True, False)]
            kinds = [(hardware(not k, authors), [tiles[k], *space[1:]]) for k in range(2)]
        found = [own]
        for accelerator, part in kinds:
            found += explore(output, hardware=accelerator, space=part, limits=limit, **given).front[:1]
        yield Found(name, convention, own, min(found, key=lambda point: point.figures["cycles"]))


def experts(
    name: str, shape: MoeShape, routing: np.ndarray, inner: int, regions: int | None, computes: tuple[int, int]
) -> Iterator[Found]:
    """Tiles of tokens and of the inner dim, and shared regions, of a mixture of experts."""
    layer = mixture_of_experts()
    whole = tile("hidden", dynamic=True)
    inners = [n for n in (16, 32, 48, 64, 96, 128, 256) if shape.intermediate % n == 0]
    shared = [n for n in (64, 32, 16, 8, 4) if n < shape.experts]
    space: Space = [
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

    def hardware(dynamic: bool, authors: bool) -> Hardware:
        return Hardware(compute=computes[not (dynamic and authors)], fifo_depth=2)

    return compared(name, layer.output, paper, space, hardware, given)


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
    tiles: list[Directive | None] = [tile("kv", n) for n in (16, 32, 64, 128)]
    paper = [parallelize("request", 4, "dynamic"), tile("kv", 32)]
    return compared(name, step.outputs, paper, [[*dealt], tiles], lambda *_: attention_hardware(), given)


def decoder(name: str, model: str, lengths: np.ndarray, routing: np.ndarray, shared: int | None) -> Iterator[Found]:
    """Tiles of tokens, caches and the inner dim, policies and shared regions of a whole layer."""
    shape = DECODERS[model]
    layer = decoder_layer(shape.width)
    common = common_schedule(layer)
    widths = [n for n in (None, 32, 16, 8, 4) if n is None or n < shape.experts.experts]
    space: Space = [
        [tile("token", 32), tile("token", 64), tile("token", dynamic=True)],
        [tile("kv", n) for n in (32, 64, 128)],
        [tile("intermediate", n) for n in (32, 64, 128)],
        [parallelize("token", 4, policy, on=layer.attention) for policy in POLICIES[1:]],
        [None if n is None else time_multiplex("expert", n) for n in widths],
        *([directive] for directive in common),
    ]
    paper = [tile("token", dynamic=True), tile("kv", 64), tile("intermediate", 64), *common]
    paper.append(parallelize("token", 4, "dynamic", on=layer.attention))
    paper += [] if shared is None else [time_multiplex("expert", shared)]
    data, bounds = decoder_inputs(layer, shape, [int(n) for n in lengths[: len(routing)]], routing, 128)
    given = {"data": data, "bounds": bounds, "storage": BF16}
    return compared(name, layer.output, paper, space, decoder_hardware, given)


def searches(traces: Traces) -> Iterator[Found]:
    """All studies."""
    mixtral, qwen = (traces.routing(f"routing_{model}_b64").values for model in ("mixtral", "qwen"))
    every = [trace for trace in traces.kv_lengths() if len(trace.values) == 16]
    lengths = traces.decoder_lengths().values
    for found in (
        experts("tiling, Mixtral", MIXTRAL, mixtral, 64, None, (6400, 4096)),
        experts("tiling, Qwen", QWEN, qwen, 64, None, (6400, 4096)),
        experts("time-multiplexing, Qwen", QWEN, qwen, 48, 32, (1024, 1024)),
        attention("parallelization, batch 16", every[len(every) // 2].values),
        decoder("whole layer, Mixtral", "mixtral", lengths, mixtral, None),
        decoder("whole layer, Qwen", "qwen", lengths, qwen, 32),
    ):
        yield from found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams.search", description=__doc__)
    parser.add_argument("--data", type=Path, default=None, help="folder of the traces")
    for found in searches(find_traces(parser.parse_args().data)):
        print(" | ".join(map(str, found.row().values())), flush=True)


if __name__ == "__main__":
    main()
