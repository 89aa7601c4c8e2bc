"""What the lowering refuses: a named error with the user's line and a fix, kept as golden files."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.stream import (
    AccessNotStreamable,
    DirectiveMismatch,
    OperationNotStreamable,
    StreamError,
    lower,
    parallelize,
    tile,
    time_multiplex,
)

t, T = pr.dim("t")
b, B = pr.dim("b")
e, E = pr.dim("e")
x = pr.input("x", (), (t,))
rows = pr.input("rows", (), (b, t))
table = pr.input("table", (2,), (e,))
chosen = pr.input("chosen", (), (b,), "int32")
vector = pr.input("vector", (2,), (b,))
X = {"x": np.ones(6, np.float32)}
ROWS = {"rows": np.ones((4, 6), np.float32)}
PARTS = {"table": np.ones((4, 2), np.float32), "chosen": np.array([0, 1, 1, 3], np.int32)}
CASES: dict[str, tuple[type[StreamError], Callable[[], Any]]] = {}


def refused(error: type[StreamError]) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def register(program: Callable[[], Any]) -> Callable[[], Any]:
        CASES[program.__name__] = error, program
        return program

    return register


@refused(AccessNotStreamable)
def recurrence_from_the_end() -> None:
    rest = pr.recurrent((), (t,))
    rest[T - 1] = x[T - 1]
    rest[t - 1] = rest + x[t - 1]
    lower(rest, inputs=X)


@refused(DirectiveMismatch)
def tiles_of_a_recurrence() -> None:
    total = pr.recurrent((), (t,))
    total[0] = x[0]
    total[t + 1] = total + x[t + 1]
    lower(total, [tile(t, 2)], X)


@refused(DirectiveMismatch)
def shift_across_tiles() -> None:
    before = pr.where(t > 0, x[t - 1], 0.0)
    lower(before, [tile(t, 2)], X)


@refused(AccessNotStreamable)
def output_of_changing_length() -> None:
    prefixes = x[0 : t + 1] * 2
    lower(prefixes, inputs=X)


@refused(DirectiveMismatch)
def sum_over_dealt_entries() -> None:
    total = rows[0:B].sum(0)
    lower(total[0:T].sum(0), [parallelize(b, 2)], ROWS)


@refused(OperationNotStreamable)
def random_numbers() -> None:
    noise = pr.normal((), dims=(t,))
    lower(noise, bounds={T: 3})


@refused(OperationNotStreamable)
def call_of_python() -> None:
    called = pr.host(np.sin, [x], (), "float32")
    lower(called, inputs=X)


@refused(OperationNotStreamable)
def sort_of_a_growing_prefix() -> None:
    middle = pr.sort(x[0 : t + 1], 0).sum(0)
    lower(middle, inputs=X)


@refused(OperationNotStreamable)
def position_that_moves_with_the_step() -> None:
    moving = pr.constant([1.0, 2.0, 3.0]).axes[t % 2 : t % 2 + 2].sum(0) + x
    lower(moving, inputs=X)


@refused(OperationNotStreamable)
def length_decided_by_data() -> None:
    lengths = pr.input("lengths", (), (b,), "int32")
    s, S = pr.dim("s", extent=lengths, max=4)
    word = pr.input("word", (), (b, s))
    lower(word[b, 0:S].sum(0), inputs={"lengths": [1, 2], "word": np.ones((2, 2), np.float32)})


@refused(OperationNotStreamable)
def dim_without_steps() -> None:
    lower(x * 2, inputs={"x": np.ones(0, np.float32)})


@refused(DirectiveMismatch)
def directive_for_no_dim() -> None:
    lower(x * 2, [tile("row", 2)], X)


@refused(DirectiveMismatch)
def two_tiles_of_one_dim() -> None:
    lower(x * 2, [tile(t, 2), tile("t", 3)], X)


@refused(DirectiveMismatch)
def tile_that_does_not_divide() -> None:
    lower(x[0:T].sum(0), [tile(t, 4)], X)


@refused(DirectiveMismatch)
def regions_that_do_not_divide() -> None:
    part = pr.take(table[0:E], chosen, 0)
    lower(vector * part, [time_multiplex(e, 3)], {**PARTS, "vector": np.ones((4, 2), np.float32)})


@refused(DirectiveMismatch)
def two_dims_dealt_out() -> None:
    lower(rows[b, 0:T].sum(0), [parallelize(b, 2), parallelize(t, 2)], ROWS)


@pytest.mark.parametrize("name", CASES)
def test_refusal(name: str, golden: Callable[[str, str], None]) -> None:
    error, program = CASES[name]
    with pytest.raises(error) as caught:
        program()
    message = re.sub(r"[^ ]*test_lowering_errors\.py:\d+", "program.py", str(caught.value))
    assert "program.py: " in message, "a line of the user is shown"
    assert "  fix: " in message
    golden(name, message)
