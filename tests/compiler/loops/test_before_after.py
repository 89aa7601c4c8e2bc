"""What each pass after the graph does to a small program: its loops without the pass and with it, as text.

`tests/golden/compiler/loops/test_before_after/...` has a file for each. That leaving a pass out changes no value is
shown by the programs of `tests/fuzz/test_passes.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import polyrhythm as pr
from polyrhythm.compiler.loops.show import show
from polyrhythm.compiler.passes import LATER

Made = tuple[pr.Tensor, dict[str, Any]]
"""An output, and options of `pr.compile`."""


def _projected() -> Made:
    """A contraction that no step waits for, for a backend whose loops are Python's."""
    t, T = pr.dim("t")
    x, w = pr.input("x", (1, 256), (t,)), pr.input("w", (256, 256))
    h = pr.recurrent((1, 256), ((t, T + 1),))
    h[0] = pr.zeros((1, 256))
    h[t + 1] = pr.tanh(x @ w + h @ w)
    return h[T], {"backend": "numpy"}


def _chained() -> Made:
    t, _ = pr.dim("t")
    return pr.exp(pr.sin(pr.input("x", (4,), (t,))) * 2), {}


def _smoothed() -> Made:
    """A recurrence that reads softmaxes."""
    t, _ = pr.dim("t", min=1)
    x, h = pr.input("x", (4,), (t,)), pr.recurrent((4,), (t,))
    shares = pr.softmax(x)
    h[0] = shares[0]
    h[t + 1] = pr.tanh(0.5 * h + shares[t + 1])
    return h, {}


def _delayed() -> Made:
    """A value that the next step reads too, made for all steps at once."""
    t, _ = pr.dim("t")
    u = pr.softmax(pr.sin(pr.input("x", (4096,), (t,))))
    return pr.tanh(u + pr.where(t >= 1, u[t - 1], 0.0)), {}


def _edged() -> Made:
    """Attention of each step to the one before it, which the first step lacks."""
    s, _ = pr.dim("s")
    j, J = pr.dim("j")
    x = pr.input("x", (4,), (s, j))
    seen = pr.softmax(x[s - 1, 0:J] @ x, 0) @ x[s - 1, 0:J]
    return pr.tanh(x + pr.where(s >= 1, seen, 0.0)), {}


def _layered() -> Made:
    """A few layers with weights of their own."""
    t, T = pr.dim("t", min=1)
    n, N = pr.dim("n")
    w = pr.input("w", (256, 256), (n,))
    h = pr.recurrent((256,), (t, (n, N + 1)))
    y = pr.recurrent((256,), (t,))
    y[0] = pr.input("first", (256,))
    y[t + 1] = h[t, N]
    h[t, 0] = y
    h[t, n + 1] = pr.tanh(h[t, n] @ w)
    return y[T - 1], {"bounds": {N: 3}}


def _decoded() -> Made:
    """Attention to all steps so far, of what comes from the step before."""
    t, T = pr.dim("t", min=1)
    h = pr.recurrent((8,), (t,))
    h[0] = pr.input("first", (8,))
    scores = pr.softmax((h[0 : t + 1] * h).sum(-1))
    h[t + 1] = pr.tanh(scores @ h[0 : t + 1])
    return h[T - 1], {}


PROGRAMS: dict[str, Callable[[], Made]] = {
    "hoist": _projected,
    "fuse": _chained,
    "distribute": _smoothed,
    "tile": _delayed,
    "mask": _edged,
    "unroll": _layered,
    "vector": _chained,
    "grow": _decoded,
}


def test_every_pass_has_a_program() -> None:
    assert PROGRAMS.keys() == set(LATER)


@pytest.mark.parametrize("name", LATER)
def test_before_and_after(name: str, golden: Callable[[str, str], None]) -> None:
    texts = []
    for without in ((name,), ()):
        outputs, options = PROGRAMS[name]()
        with pr.settings(without=without):
            loops = pr.compile(outputs, **options).compiled.loops
        chosen = "".join(f"{dim}: {chunk}\n" for dim, chunk in loops.chunks.items())
        growth = "" if loops.growth is None else f"{loops.growth.bound} grows from {loops.growth.least}\n"
        texts.append(show(loops) + chosen + growth)
    before, after = texts
    assert before != after, "the pass did something"
    golden(name, f"# without {name}\n\n{before}\n# with it\n\n{after}")
