"""Small compiled programs for the checker: the hand-written ones that can be compiled, and some more about effects and
stops. Which cannot is listed in `tests/programs/case.py`; any other that is refused fails its tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import polyrhythm as pr
from polyrhythm.compiler.ir.graph import Graph
from polyrhythm.compiler.loops.ir import LoopProgram
from polyrhythm.compiler.pipeline import compile_tensors
from polyrhythm.language.trees import flattened
from tests.programs import PROGRAMS

Made = tuple[Graph, LoopProgram]


@cache
def made(name: str) -> Made:
    """The graph and the loops of a program."""
    outputs, effects, until = BUILDERS[name]()
    compiled = compile_tensors(flattened(outputs)[0], effects, until)
    return compiled.graph, compiled.loops


def _same(value: Any) -> Any:
    return value


def logs() -> Any:
    """Calls of one effect inside a loop, before it and after it."""
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    start = pr.input("start", ())
    first = pr.host(_same, [start], effect="log")
    middle = pr.host(_same, [x], effect="log")
    again = pr.host(_same, [middle + 1], effect="log")
    last = pr.host(_same, [start + 1], effect="log")
    return {"first": first, "again": again, "last": last}, (), None


def nested_logs() -> Any:
    """Calls of one effect along two dims, one of them once per row."""
    (b, _), (t, T) = pr.dim("b"), pr.dim("t")
    x = pr.input("x", (), (b, t))
    seen = pr.host(_same, [x], effect="log")
    row = pr.host(_same, [x[b, 0:T].sum(0)], effect="log")
    return {"row": row, "seen": seen}, (), None


def counting() -> Any:
    """A loop that ends early, with a value of the past and one that needs the length."""
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    total = pr.recurrent((), (t,))
    total[0] = x[0]
    total[t + 1] = total + x[t + 1]
    done = total > 10
    tripled = total * 3
    return {"last": total[T - 1], "mean": tripled[0:T].mean(0)}, (), {t: done}


def stopped_log() -> Any:
    """Nothing is logged after the end."""
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    total = pr.recurrent((), (t,))
    total[0] = x[0]
    total[t + 1] = total + x[t + 1]
    seen = pr.host(_same, [total], effect="log")
    return {"seen": seen}, (), {t: total > 10}


def stopped_log_of_the_past() -> Any:
    """What is logged is known two steps before it is known whether there is such a step."""
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    total = pr.recurrent((), ((t, T + 2),))
    total[0] = 0.0
    total[1] = 1.0
    total[t + 2] = total[t + 1] + x
    return {"sum": total[T + 1]}, (pr.host(_same, [total + x], effect="log"),), {t: total[t + 2] > 10}


def delayed_stop() -> Any:
    """A loop that ends early among statements that run ahead of the condition and behind it."""
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    smooth = x[pr.max(0, t - 2) : t + 1].sum(0)
    ahead = pr.recurrent((), (t,))
    ahead[0] = x[0]
    ahead[t + 1] = ahead + smooth[t]
    return {"ahead": ahead, "end": ahead[T - 1]}, (), {t: ahead > 5}


def _hand_written(case: Any) -> Callable[[], Any]:
    return lambda: (case.built.outputs, case.built.effects, case.built.until)


OWN = (logs, nested_logs, counting, stopped_log, stopped_log_of_the_past, delayed_stop)
BUILDERS: dict[str, Callable[[], Any]] = {
    **{case.name: _hand_written(case) for case in PROGRAMS},
    **{build.__name__: build for build in OWN},
}
