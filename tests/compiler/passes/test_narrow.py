"""Domain reduction: what does not vary along a dim is computed once."""

from __future__ import annotations

import numpy as np

from polyrhythm.compiler.passes.narrow import narrow
from polyrhythm.compiler.passes.notes import Notes
from polyrhythm.oracle import run
from tests.compiler.ir.parse import parse
from tests.compiler.ir.verify import verify

TEXT = """
bound I
bound T
dim i < I
dim t < T

x: f32[3] over i < I = input(name="x")

e: f32[3] over i < I, t < T = exp(x[i])

f: f32[3] over i < I, t < T = {f}

output f
"""


def narrowed(text: str) -> tuple[list[str], Notes]:
    """The dims of the node of each operation after the pass, whose result is compared with the one before."""
    graph, notes = parse(text), Notes("narrow")
    verify(graph)
    changed = narrow(graph, notes)
    verify(changed)
    inputs = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    for want, have in zip(run(graph, inputs, {"T": 4}), run(changed, inputs, {"T": 4}), strict=True):
        np.testing.assert_array_equal(have, want)
    found = [f"{d.op} over {', '.join(map(str, n.symbols))}" for n in changed for d in n.definitions]
    return sorted(found), notes


def test_an_operation_moves_out_of_the_loop() -> None:
    found, notes = narrowed(TEXT.replace("{f}", "sin(e[i, t])"))
    assert "exp over i" in found
    assert "sin over i, t" in found  # an output stays what it is
    assert [note.what for note in notes] == ["exp is computed once for all t"]


def test_what_reads_a_range_reads_a_copy() -> None:
    text = TEXT.replace("{f}", 'reduce(e[i, 0 +: T], monoid="sum", axes=(0,))')
    found, _ = narrowed(text)
    assert "exp over i" in found
    assert "copy over i, t" in found


def test_draws_stay_where_they_are() -> None:
    text = TEXT.replace("exp(x[i])", "sin(x[i])").replace("{f}", "sin(e[i, t])")
    text = text.replace("output f", 'r: u32[2] over t < T = random_bits(shape=(2,), site="s")\n\noutput f\noutput r')
    found, _ = narrowed(text)
    assert "random_bits over t" in found
