"""The compiled engine and the one in Python do the same in every cycle; what only Python does is left to it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.streams.attention import attention_hardware, build_attention
from benchmarks.streams.decoder import DecoderShape, build_decoder
from benchmarks.streams.moe import MoeShape, build_moe
from benchmarks.streams.tables import LARGE, alone
from polyrhythm.compiler.backends.native import Built
from polyrhythm.stream import (
    F32,
    U64,
    DataMismatch,
    Deadlock,
    Hardware,
    OffChip,
    Program,
    Selector,
    Stream,
    Tile,
    accum,
    bufferize,
    compiled,
    eager_merge,
    expand,
    feedback,
    flat_map,
    flatten,
    linear_load,
    linear_store,
    map_tiles,
    parallelize,
    parallelize_stream,
    partition,
    promote,
    ragged,
    random_load,
    random_store,
    reassemble,
    repeat,
    reshape,
    scan,
    simulate,
    source,
    static,
    streamify,
    streamify_by,
    tile,
    time_multiplex,
    window,
    zip_streams,
)
from polyrhythm.stream.engine import Engine
from polyrhythm.stream.simulate import Run
from polyrhythm.stream.types import BufferValue
from tests.stream.running import assert_same

SHALLOW, DEEP = Hardware(fifo_depth=2), Hardware(fifo_depth=64, fifo_latency=3, row_cycles=5, sram_banks=2)
SLOW = Hardware(fifo_depth=8, hop_cycles=2, reconfigure_cycles=50, channels=1, channel_bandwidth=7, element_cycles=3)


@pytest.fixture(autouse=True)
def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each run was one of compiled code."""
    found: list[bool] = []
    inner = compiled.run_compiled

    def watched(engine: Engine) -> bool:
        found.append(inner(engine))
        return found[-1]

    monkeypatch.setattr(importlib.import_module("polyrhythm.stream.simulate"), "run_compiled", watched)
    return found


def both(program: Program, hardware: Hardware, outcomes: list[bool]) -> tuple[Run, Run]:
    """A run in compiled code and the same one in Python."""
    fast = simulate(program, hardware, functional=False)
    assert outcomes[-1], "the run was left to Python"
    slow = simulate(program, hardware, functional=False, tracing=True)
    assert not outcomes[-1]
    assert_same(fast, slow)
    for stream in program.ends:
        for copy in range(stream.copies) if isinstance(stream, Stream) else ():
            assert described(fast.tokens(stream, copy)) == described(slow.tokens(stream, copy))
    return fast, slow


def described(value: Any) -> Any:
    """All that is known of a value."""
    if isinstance(value, BufferValue):
        return described(value.tokens)
    if isinstance(value, list | tuple):
        return [described(part) for part in value]
    return {name: getattr(value, name) for name in getattr(value, "__slots__", ())} or value


GROUPS = [[1.0, 2.0, 3.0], [], [4.0], [5.0, 6.0]]


def ragged_source() -> Stream:
    return source("x", GROUPS, (static(4), ragged("r", 6)))


def loads(tensor: str = "w", shape: tuple[int, int] = (2, 32)) -> Stream:
    return linear_load(OffChip(tensor, 64, 64), shape, (4, 2))


def chosen(count: int = 3) -> Stream:
    return source("routes", [(0,), (2,), (0, 1), (), (1,)], (static(5),), Selector("routes", count))


def routed() -> Stream:
    five = source("five", [1.0, 2.0, 3.0, 4.0, 5.0], (static(5),))
    return partition(five, chosen(), write_back=True)


def summed_loop() -> Stream:
    numbers = source("numbers", [1.0, 2.0, 3.0], (static(3),))
    state = feedback("state", (static(3),), Tile(1, 1, F32), initial=[0.0])
    total = map_tiles("add", numbers, state.stream)
    state.connect(total)
    return total


def addresses() -> Stream:
    return source("at", [3, 0, 5, 5], (static(4),), Tile(1, 1, U64))


def twice(value: object, copy: int) -> list[tuple[object, int]]:
    return [(value, 0), (value, 0)] if value.data.item() > 2 else []  # type: ignore[attr-defined]


CASES: dict[str, Callable[[], Program]] = {
    "map and fused accum": lambda: Program(
        accum("matmul", loads("a"), loads("b", (32, 16)), rank=1), map_tiles("exp", loads())
    ),
    "scan": lambda: Program(scan("add", ragged_source())),
    "accum of empty groups": lambda: Program(accum("add", ragged_source()), accum("add", ragged_source(), rank=1)),
    "flat map": lambda: Program(flat_map(twice, ragged_source(), (ragged("two", 8),), Tile(1, 1, F32), cycles=2)),
    "flatten": lambda: Program(flatten(promote(ragged_source(), 0), 0, 1), flatten(ragged_source(), 0, 1)),
    "reshape": lambda: Program(reshape(ragged_source(), 0, 2, pad=0.0)),
    "reshape of groups": lambda: Program(reshape(ragged_source(), 1, 2)),
    "promote": lambda: Program(promote(ragged_source()), promote(ragged_source(), 1)),
    "expand": lambda: Program(expand(promote(accum("add", ragged_source()), 0), ragged_source(), 1)),
    "repeat": lambda: Program(repeat(ragged_source(), 3)),
    "zip": lambda: Program(zip_streams(ragged_source(), ragged_source())),
    "buffers": lambda: Program(streamify(bufferize(ragged_source(), 1), (2, 2))),
    "buffer handles": lambda: Program(bufferize(ragged_source(), 1)),
    "buffers by reference": lambda: Program(
        streamify_by(promote(bufferize(ragged_source(), 1), 0), ragged_source(), 1)
    ),
    "window": lambda: Program(window(source("y", [[1, 2, 3]] * 2, (static(2), static(3))), 1, [[0], [], [0, 1, 2]], 2)),
    "store": lambda: Program(linear_store(OffChip("out", 64, 64), loads())),
    "held": lambda: Program(linear_load(OffChip("w", 4, 32), (2, 32), (2,), ref=ragged_source(), held=True)),
    "by reference": lambda: Program(linear_load(OffChip("w", 4, 32), (2, 32), (2, 2), (0, 1), ref=ragged_source())),
    "random": lambda: Program(
        random_store(OffChip("o", 8, 16), addresses(), random_load(OffChip("w", 8, 16), (1, 16), addresses()))
    ),
    "slabs": lambda: Program(random_load(OffChip("w", 4, 16, slabs=2), (1, 16), addresses())),
    "route and join": lambda: Program(reassemble(routed(), chosen())),
    "merge": lambda: Program(*eager_merge(routed())),
    "merge groups": lambda: Program(*eager_merge(accum("add", promote(routed())))),
    "deal": lambda: Program(parallelize_stream(ragged_source(), 3)),
    "feedback": lambda: Program(summed_loop()),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("hardware", [DEEP, SLOW], ids=["deep", "slow"])
def test_operators(name: str, hardware: Hardware, outcomes: list[bool]) -> None:
    both(CASES[name](), hardware, outcomes)


@pytest.mark.parametrize("size", [4, None])
@pytest.mark.parametrize("regions", [None, 2])
def test_experts(size: int | None, regions: int | None, outcomes: list[bool]) -> None:
    routing = np.random.default_rng(1).integers(0, 6, (40, 1))
    rows = tile("token", dynamic=True) if size is None else tile("token", size)
    shared = [] if regions is None else [time_multiplex("expert", regions)]
    program = build_moe(MoeShape(32, 64, 6, 1), routing, [rows, tile("intermediate", 16), *shared])
    both(program, Hardware(fifo_depth=64), outcomes)
    both(program, Hardware(fifo_depth=64, reconfigure_cycles=30), outcomes)


@pytest.mark.parametrize("policy", ["coarse", "interleave", "dynamic"])
def test_attention(policy: str, outcomes: list[bool]) -> None:
    lengths = np.random.default_rng(2).integers(0, 400, 24).tolist()
    program = build_attention(lengths, [parallelize("request", 3, policy)])  # type: ignore[arg-type]
    both(program, attention_hardware(), outcomes)


def test_a_whole_layer(outcomes: list[bool]) -> None:
    shape = DecoderShape(MoeShape(16, 16, 4, 2), 2, 2, 8)
    routing = np.random.default_rng(3).permuted(np.tile(np.arange(4), (6, 1)), axis=1)[:, :2]
    layer = build_decoder(shape, [3, 0, 17, 5, 9, 30], routing, None, "dynamic", 2, 2, tiles=(4, 8))
    both(layer.program, Hardware(fifo_depth=64, fifo_depths={"metadata": 256}), outcomes)


def test_values_are_those_of_python(outcomes: list[bool]) -> None:
    """Values need Python, and so does a trace."""
    program = CASES["scan"]()
    assert simulate(program).nested(program.ends[0])[0][-1].item() == 6  # type: ignore[arg-type]
    assert outcomes == [False]


def test_errors_are_those_of_python(outcomes: list[bool]) -> None:
    """What goes wrong in compiled code is repeated, and says what is wrong."""
    far = random_load(OffChip("w", 4, 16), (1, 16), addresses())
    with pytest.raises(DataMismatch, match="tile 5 of w, which has 4"):
        simulate(Program(far), functional=False)
    centred = source("x", [[1.0] * 8], (static(1), static(8)))
    mean = expand(promote(accum("add", centred), 0), centred, 1)
    with pytest.raises(Deadlock, match="full FIFOs: broadcast x"):
        simulate(Program(map_tiles("subtract", centred, mean)), SHALLOW, functional=False)
    assert outcomes == [False, False]


def test_an_interrupt_ends_a_run() -> None:
    def interrupted(value: object, copy: int) -> list[tuple[object, int]]:
        raise KeyboardInterrupt

    end = flat_map(interrupted, ragged_source(), (ragged("two", 8),), Tile(1, 1, F32))
    with pytest.raises(KeyboardInterrupt):
        simulate(Program(end), functional=False)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, outcomes: list[bool]) -> None:
    program = build_moe(MoeShape(32, 64, 2, 1), np.array([[0], [1], [0]]), [tile("token", 2), tile("intermediate", 16)])
    fast = simulate(program, DEEP, functional=False)
    monkeypatch.setattr(compiled, "library", lambda: Built(None, "there is none today"))
    assert_same(simulate(program, DEEP, functional=False), fast)
    assert outcomes == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LARGE if name.startswith("attention")])
def test_attention_of_many_and_of_long_requests(name: str) -> None:
    found = alone(name)
    assert float(found["seconds"]) < 5
    assert int(found["memory"].removesuffix(" MB")) < 500
