"""Checkpoints and host functions: another function is another program, the same one written anew is not."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.ir.graph import HostFunction
from polyrhythm.errors import UnsupportedError
from polyrhythm.runtime.errors import CheckpointMismatchError
from polyrhythm.runtime.host_identity import identity

i, I = pr.dim("i")


def program(call: Callable[..., Any], backend: str = "numpy") -> Any:
    w = pr.recurrent((), ((i, I + 1),))
    w[0] = 1.0
    w[i + 1] = pr.host(call, [w], ())
    return pr.compile(w[I], backend=backend)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_a_run_does_not_go_on_with_another_function(tmp_path: Path, backend: str) -> None:
    checkpoints = pr.Checkpoints(tmp_path, over=i, every=2)
    halved = program(lambda w: (w / 2).astype("float32"), backend)(bounds={I: 4}, checkpoint=checkpoints)
    assert float(halved) == 1 / 16
    with pytest.raises(CheckpointMismatchError, match="fingerprint"):
        program(lambda w: (w + 1).astype("float32"), backend)(bounds={I: 4}, checkpoint=checkpoints)
    again = program(lambda w: (w / 2).astype("float32"), backend)(bounds={I: 4}, checkpoint=checkpoints)
    assert float(again) == 1 / 16


def digest(call: Callable[..., Any], effect: str | None = None) -> str:
    return identity(HostFunction("f", call, (), effect))


def scaled(factor: Any) -> Callable[..., Any]:
    return lambda x: x * factor


class Scale:
    def __init__(self, factor: Any) -> None:
        self.factor = factor

    def __call__(self, x: Any) -> Any:
        return x * self.factor

    def method(self, x: Any) -> Any:
        return x + self.factor


def default(x: Any, factor: int = 2) -> Any:
    return x * factor


def other_default(x: Any, factor: int = 3) -> Any:
    return x * factor


SAME: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "closures": (lambda: scaled(2), lambda: scaled(2)),
    "arrays": (lambda: scaled(np.arange(3)), lambda: scaled(np.arange(3))),
    "containers": (lambda: scaled({"a": [1, (2.0,)]}), lambda: scaled({"a": [1, (2.0,)]})),
    "objects": (lambda: Scale(2), lambda: Scale(2)),
    "methods": (lambda: Scale(2).method, lambda: Scale(2).method),
    "partials": (lambda: functools.partial(default, factor=4), lambda: functools.partial(default, factor=4)),
    "NumPy's": (lambda: np.sin, lambda: np.sin),
}
OTHER: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "closures": (lambda: scaled(2), lambda: scaled(3)),
    "arrays": (lambda: scaled(np.arange(3)), lambda: scaled(np.arange(3) + 1)),
    "dtypes": (lambda: scaled(np.arange(3)), lambda: scaled(np.arange(3.0))),
    "containers": (lambda: scaled({"a": [1, (2.0,)]}), lambda: scaled({"a": [1, (3.0,)]})),
    "objects": (lambda: Scale(2), lambda: Scale(3)),
    "methods": (lambda: Scale(2).method, lambda: Scale(3).method),
    "defaults": (lambda: default, lambda: other_default),
    "partials": (lambda: functools.partial(default, factor=4), lambda: functools.partial(default, factor=5)),
    "NumPy's": (lambda: np.sin, lambda: np.cos),
    "inner functions": (lambda: scaled(lambda: 1), lambda: scaled(lambda: 2)),
    "code": (lambda: lambda x: x + 1, lambda: lambda x: x - 1),
    "names": (lambda: lambda x: np.sin(x), lambda: lambda x: np.cos(x)),
}


@pytest.mark.parametrize("kind", SAME)
def test_the_same_function_made_again(kind: str) -> None:
    first, second = SAME[kind]
    assert digest(first()) == digest(second())


@pytest.mark.parametrize("kind", OTHER)
def test_another_function(kind: str) -> None:
    first, second = OTHER[kind]
    assert digest(first()) != digest(second())


def test_what_an_effect_keeps_is_state() -> None:
    log: list[int] = []
    before = digest(lambda x: log.append(x), effect="log")
    log.append(1)
    assert digest(lambda x: log.append(x), effect="log") == before
    assert digest(lambda x: log.extend(x), effect="log") != before


def test_a_function_that_calls_itself() -> None:
    def down(x: int) -> int:
        return 0 if x == 0 else down(x - 1)

    assert digest(down) == digest(down)


def test_what_cannot_be_told_apart_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="cannot tell the host function f from another"):
        digest(scaled(threading.Lock()))


def test_nothing_is_remembered_from_one_program_to_the_next() -> None:
    factors = [1]
    function = scaled(factors)
    before = digest(function)
    factors.append(2)
    assert digest(function) != before
    assert digest(function) == digest(scaled([1, 2]))


def test_a_log_that_a_function_fills_leaves_its_program_the_same(tmp_path: Path) -> None:
    log: list[float] = []

    def halve(w: np.ndarray) -> np.ndarray:
        log.append(float(w))
        return (w / 2).astype("float32")

    halved = program(halve)
    for _ in range(2):
        assert float(halved(bounds={I: 4}, checkpoint=pr.Checkpoints(tmp_path, over=i, every=2))) == 1 / 16
    assert len(log) == 4
