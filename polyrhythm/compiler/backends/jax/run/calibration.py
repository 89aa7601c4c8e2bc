"""The rates of this machine, measured once: by `polyrhythm calibrate`, or by the first `schedule="measure"`.

A few small XLA programs, each timed several times, the fastest time of each: a call that copies its state, a loop of
small products, and a pass over arrays of growing sizes. They take about a second, and are kept in a file beside the
compiled programs, one for each kind of device. Without the file, or without a folder to keep it in, the fixed
figures of `loops/cost.py` hold, or round ones for accelerators. While others keep the machine busy the figures are
theirs as much as ours: calibrate when it is idle.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from polyrhythm.compiler.backends.jax.target import on_cpu
from polyrhythm.compiler.backends.native import folder
from polyrhythm.compiler.loops.cost import Machine

ROUNDS = 7
SIZES = tuple(1 << bits for bits in range(20, 28))
"""Bytes of the arrays that are gone through; the last is far larger than any cache but that of large servers."""


ACCELERATOR = Machine(call=1e-4, launch=5e-6, near=3e12, far=1e12, cache=1 << 25)
"""Round figures for a GPU or TPU until it is calibrated: memory is fast, starting an operation is slow."""


def known() -> Machine:
    """The calibrated rates, or the fixed figures."""
    path = _path()
    usual = Machine() if on_cpu() else ACCELERATOR
    if path is None or not path.exists():
        return usual
    try:
        found = Machine(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError):  # a file of another version is as good as none
        return usual
    rates = [value for name, value in asdict(found).items() if name != "calibrated"]
    are_rates = all(type(rate) in (int, float) and 0 < rate < math.inf for rate in rates)
    return found if are_rates else usual


def calibrate() -> Machine:
    """Measure the rates, and keep them if there is a folder for it."""
    rates = {size: _rate(size) for size in SIZES}
    far = rates[SIZES[-1]]
    # Between the fastest cache and memory there are others: the last that is nearer to the fastest counts as near.
    inside = [size for size in SIZES if rates[size] >= math.sqrt(max(rates.values()) * far)]
    near = statistics.median(rates[size] for size in inside)
    machine = Machine(_call(), _launch(), near, far, max(inside), calibrated=True)
    path = _path()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(machine), indent=1) + "\n", encoding="utf-8")
    return machine


def _path() -> Path | None:
    place = folder()
    kind = re.sub(r"\W+", "_", jax.devices()[0].device_kind).strip("_").lower()
    return None if place is None else place / f"machine-{kind}.json"


def _fastest(run: Callable[[], Any]) -> float:
    jax.block_until_ready(run())
    seconds = math.inf
    for _ in range(ROUNDS):
        started = time.perf_counter()
        jax.block_until_ready(run())
        seconds = min(seconds, time.perf_counter() - started)
    return seconds


def _rate(size: int) -> float:
    """Bytes a second that a product with a vector reads of a matrix, many times over."""
    columns = 1 << 10
    matrix = jax.device_put(np.ones((size // (4 * columns), columns), np.float32))
    times = max(1, (1 << 27) // size)

    def run(matrix: jax.Array) -> jax.Array:
        start = jnp.zeros(columns, jnp.float32)
        last: jax.Array = lax.fori_loop(0, times, lambda _, v: (matrix @ v)[:1] * jnp.ones(columns) + v, start)
        return last

    compiled = jax.jit(run)
    return times * size / _fastest(lambda: compiled(matrix))


def _launch() -> float:
    """Seconds to start a small operation inside a loop: of two products a step that depend on each other."""
    steps = 1000
    weights = jax.device_put(np.eye(8, dtype=np.float32))

    def step(_: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tanh(x @ weights) @ weights)

    run = jax.jit(lambda x: lax.fori_loop(0, steps, step, x))
    x = jax.device_put(np.ones((8, 8), np.float32))
    return _fastest(lambda: run(x)) / (4 * steps)


def _call() -> float:
    """Seconds to start a program whose state came from NumPy, as between two capacities of growing buffers."""
    state = [np.ones((256, 128), np.float32) for _ in range(4)]
    run = jax.jit(lambda arrays: [array + 1 for array in arrays], donate_argnums=0)
    return _fastest(lambda: run([jax.device_put(array.copy()) for array in state]))
