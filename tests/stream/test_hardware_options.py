"""Effects that are off by default: rows of DRAM, banks on chip, distance, reconfiguration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.streams.moe import MoeShape, build_moe
from benchmarks.streams.traces import synthetic_routing
from polyrhythm.stream import (
    Hardware,
    OffChip,
    Program,
    linear_load,
    linear_store,
    map_tiles,
    simulate,
    source,
    static,
    tile,
    time_multiplex,
)
from polyrhythm.stream.directives import Directive


def _cycles(program: Program, **options: int) -> int:
    base = Hardware(compute=512, fifo_depth=64)
    return simulate(program, replace(base, **options), functional=False).cycles  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def layer() -> Program:
    routing = synthetic_routing((11, 2, 9, 10), 16)
    schedule: list[Directive] = [tile("token", 4), tile("intermediate", 64), time_multiplex("expert", 2)]
    return build_moe(MoeShape(64, 128, 4, 2), routing, schedule)


@pytest.mark.parametrize("option", ["row_cycles", "hop_cycles", "reconfigure_cycles"])
def test_an_effect_costs_cycles_and_more_of_it_costs_more(layer: Program, option: str) -> None:
    without, little, much = (_cycles(layer, **{option: n}) for n in (0, 200, 2000))
    assert without < little < much


def test_rows_of_a_transfer_are_opened_bank_by_bank() -> None:
    program = Program(linear_store(OffChip("y", 4, 4096), linear_load(OffChip("x", 4, 4096), (1, 4096), (4,))))
    base, slow = _cycles(program), _cycles(program, row_cycles=10, dram_banks=4, row_bytes=1024)
    # Four loads of 16 rows over 4 banks take 40 cycles more each; the stores follow, the last of them alone.
    assert slow - base == 4 * 40 + 40


def test_banks_let_operands_be_read_together() -> None:
    loads = [linear_load(OffChip(name, 4, 64), (1, 64), (4,)) for name in "ab"]
    program = Program(map_tiles("add", *loads))
    assert _cycles(program, sram_banks=2) < _cycles(program)


def test_a_token_takes_the_time_of_its_way() -> None:
    program = Program(map_tiles("exp", source("x", [1.0], (static(1),))))
    assert _cycles(program, hop_cycles=7) == _cycles(program) + 7 * 3  # one to exp, and two out of the program


def test_values_do_not_depend_on_effects() -> None:
    x = source("x", [1.0, 2.0], (static(2),))
    doubled = map_tiles("add", x, x)
    run = simulate(Program(doubled), Hardware(row_cycles=9, sram_banks=2, hop_cycles=3, reconfigure_cycles=5))
    np.testing.assert_array_equal(np.ravel(run.nested(doubled)), [2.0, 4.0])
