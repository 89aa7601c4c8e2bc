"""Loops against what an expert writes by hand: EMA, LSTM, edit distance, a Python environment; and how time grows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import polyrhythm as pr
from benchmarks import programs
from benchmarks.harness import Fact, Result, interleaved, race

FEATURES = HIDDEN = 128
POLICY = 32
HOISTED = "scan, inputs multiplied before it"


def run(quick: bool) -> list[Result | Fact]:
    """Everything; `quick` only shows that it runs."""
    rounds, scale = (3, 10) if quick else (21, 1)
    return [
        ema(True, 100_000 // scale, 5 * rounds),
        ema(False, 100_000 // scale, 5 * rounds),
        lstm(1, 1000 // scale, rounds),
        lstm(32, 1000 // scale, rounds),
        edit_distance(1000 // scale, rounds),
        host_loop(10_000 // scale, rounds),
        *overheads(100_000 // scale, rounds),
        *growth(1 if quick else 4, rounds),
        *compile_times(2 if quick else 9),
    ]


def ema(every: bool, steps: int, rounds: int) -> Result:
    """A moving average of scalars."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=steps), "float32")
    program = pr.compile(programs.ema(every))
    a = np.float32(programs.DECAY)

    @jax.jit
    def scanned(x: jax.Array) -> jax.Array:
        def step(y: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array | None]:
            y = a * y + (1 - a) * x
            return y, y if every else None

        last, values = lax.scan(step, x[0], x[1:])
        return jnp.concatenate([x[:1], values]) if every else last

    name = f"EMA, T={steps}, {'all values' if every else 'last only'}"
    return race(name, {"ours": lambda: program(x=x), "scan": lambda: scanned(x)}, {"scan": 1.15}, rounds)


def lstm(batch: int, steps: int, rounds: int) -> Result:
    """An LSTM; the limit is against the scan of the same step, the other peer does a seventh less arithmetic in it."""
    rng = np.random.default_rng(0)
    given = {
        "x": jnp.asarray(rng.normal(size=(steps, batch, FEATURES)), "float32"),
        "wx": jnp.asarray(rng.normal(size=(FEATURES, 4 * HIDDEN)) / 12, "float32"),
        "wh": jnp.asarray(rng.normal(size=(HIDDEN, 4 * HIDDEN)) / 12, "float32"),
        "bias": jnp.asarray(rng.normal(size=4 * HIDDEN), "float32"),
    }
    program = pr.compile(programs.lstm(batch, FEATURES, HIDDEN)[0])

    def cell(c: jax.Array, gates: jax.Array) -> tuple[jax.Array, jax.Array]:
        into, forget, new, out = jnp.split(gates, 4, -1)
        c = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(into) * jnp.tanh(new)
        return jax.nn.sigmoid(out) * jnp.tanh(c), c

    zeros = jnp.zeros((batch, HIDDEN))

    @jax.jit
    def scanned(x: jax.Array, wx: jax.Array, wh: jax.Array, bias: jax.Array) -> dict[str, jax.Array]:
        def step(carry: tuple[jax.Array, jax.Array], x: jax.Array) -> Any:
            h, c = cell(carry[1], x @ wx + carry[0] @ wh + bias)
            return (h, c), h

        (_, c), h = lax.scan(step, (zeros, zeros), x)
        return {"h": h, "c": c}

    @jax.jit
    def hoisted(x: jax.Array, wx: jax.Array, wh: jax.Array, bias: jax.Array) -> dict[str, jax.Array]:
        def step(carry: tuple[jax.Array, jax.Array], x: jax.Array) -> Any:
            h, c = cell(carry[1], x + carry[0] @ wh)
            return (h, c), h

        (_, c), h = lax.scan(step, (zeros, zeros), x @ wx + bias)
        return {"h": h, "c": c}

    ways = {
        "ours": lambda: program(**given),
        "scan": lambda: scanned(**given),
        HOISTED: lambda: hoisted(**given),
    }
    return race(f"LSTM {HIDDEN}, T={steps}, batch {batch}", ways, {"scan": 1.15}, rounds)


def edit_distance(size: int, rounds: int) -> Result:
    """Edit distance; a row at a time needs a prefix minimum, which we do not find: our loop goes point by point."""
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.integers(0, 4, size), "int32") for _ in range(2))
    program = pr.compile(programs.edit_distance())
    columns = jnp.arange(size + 1, dtype="int32")

    @jax.jit
    def by_rows(a: jax.Array, b: jax.Array) -> jax.Array:
        def row(above: jax.Array, letter: jax.Array) -> tuple[jax.Array, None]:
            best = jnp.minimum(above[1:] + 1, above[:-1] + (letter != b))
            new = jnp.concatenate([above[:1] + 1, best])
            return lax.cummin(new - columns) + columns, None

        return lax.scan(row, columns, a)[0][-1]

    @jax.jit
    def by_points(a: jax.Array, b: jax.Array) -> jax.Array:
        def row(i: jax.Array, above: jax.Array) -> jax.Array:
            def point(j: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
                above, corner, left = state
                up = above[j + 1]
                new = jnp.minimum(corner + (a[i] != b[j]), jnp.minimum(up, left) + 1)
                return above.at[j + 1].set(new), up, new

            above, _, _ = lax.fori_loop(0, size, point, (above.at[0].set(i + 1), above[0], i + 1))
            return above

        return lax.fori_loop(0, size, row, columns)[-1]

    ways = {
        "ours": lambda: program(a=a, b=b),
        "scan over rows": lambda: by_rows(a, b),
        "fori over points": lambda: by_points(a, b),
    }
    started = time.perf_counter()
    _python_edit_distance(np.asarray(a)[:100], np.asarray(b)[:100])
    python = (time.perf_counter() - started) / 1e4
    return race(f"edit distance {size}x{size}", ways, {}, rounds, note=f"plain Python {python * 1e6:.2g} us a point")


def _python_edit_distance(a: np.ndarray, b: np.ndarray) -> int:
    letters, others = a.tolist(), b.tolist()
    above = list(range(len(others) + 1))
    for i, letter in enumerate(letters):
        row = [i + 1]
        for j, other in enumerate(others):
            row.append(min(above[j] + (letter != other), above[j + 1] + 1, row[-1] + 1))
        above = row
    return above[-1]


def host_loop(steps: int, rounds: int) -> Result:
    """A Python environment and a small policy network on the device."""
    rng = np.random.default_rng(0)
    w1 = jnp.asarray(rng.normal(size=(4, POLICY)), "float32")
    w2 = jnp.asarray(rng.normal(size=(POLICY, 2)) / POLICY**0.5, "float32")
    ours, theirs = programs.Environment(), programs.Environment()
    program = pr.compile(programs.episode(ours, POLICY))

    @jax.jit
    def act(w1: jax.Array, w2: jax.Array, observation: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tanh(observation @ w1) @ w2)

    def by_hand() -> dict[str, Any]:
        observation, total = theirs.reset(), np.float32(0)
        for _ in range(steps):
            observation, reward = theirs.step(np.asarray(act(w1, w2, observation)))
            total += reward
        return {"total": total, "last": observation}

    ways = {
        "ours": lambda: program(w1=w1, w2=w2, bounds={"T": steps}),
        "Python loop around a jitted step": by_hand,
    }
    name = f"Python environment, {steps} steps"
    return race(name, ways, {"Python loop around a jitted step": 1.3}, rounds, 1e-3)


def overheads(steps: int, rounds: int) -> list[Result | Fact]:
    """What a call costs, and what one point of a loop costs."""
    program = pr.compile(programs.ema(False))
    x = jnp.asarray(np.random.default_rng(0).normal(size=steps), "float32")
    few = jax.block_until_ready(x[:2])
    times = interleaved({"few": lambda: program(x=few), "many": lambda: program(x=x)}, 2 * rounds)
    few_seconds, many_seconds = (statistics.median(times[key]) for key in ("few", "many"))
    return [
        Fact("a call of a small program", few_seconds * 1e6, "us"),
        Fact("one point of a scalar loop", (many_seconds - few_seconds) / steps * 1e6, "us"),
    ]


def growth(factor: int, rounds: int) -> list[Result | Fact]:
    """How much longer twice as many steps take; powers of two, so that nothing is padding."""
    rng = np.random.default_rng(0)
    moving = pr.compile(programs.ema(True))
    cells = pr.compile(programs.lstm(1, FEATURES, HIDDEN)[0])
    words = pr.compile(programs.edit_distance())
    weights = {
        "wx": jnp.asarray(rng.normal(size=(FEATURES, 4 * HIDDEN)) / 12, "float32"),
        "wh": jnp.asarray(rng.normal(size=(HIDDEN, 4 * HIDDEN)) / 12, "float32"),
        "bias": jnp.zeros(4 * HIDDEN, "float32"),
    }

    def floats(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), "float32")

    def letters(n: int) -> jax.Array:
        return jnp.asarray(rng.integers(0, 4, n), "int32")

    cases: dict[str, tuple[int, Callable[[int], Any], Callable[[Any], Any], int]] = {
        "EMA": (8192 * factor, lambda n: floats(n), lambda x: moving(x=x), 2),
        "LSTM, batch 1": (64 * factor, lambda n: floats(n, 1, FEATURES), lambda x: cells(x=x, **weights), 2),
        "edit distance": (64 * factor, lambda n: (letters(n), letters(n)), lambda ab: words(a=ab[0], b=ab[1]), 4),
    }
    facts: list[Result | Fact] = []
    for name, (n, make, call, work) in cases.items():
        given = {size: make(size) for size in (n, 2 * n, 4 * n)}
        ways = {str(size): partial(call, value) for size, value in given.items()}
        interleaved(ways, 1)
        times = interleaved(ways, rounds)
        for small, large in ((n, 2 * n), (2 * n, 4 * n)):
            ratio = statistics.median(b / a for a, b in zip(times[str(small)], times[str(large)], strict=True))
            what = f"{name}, from {small} to {large}" + (", per doubling of the work" if work == 4 else "")
            facts.append(Fact(what, ratio if work == 2 else ratio**0.5, "times", 2.5))
    return facts


def compile_times(rounds: int) -> list[Result | Fact]:
    """Seconds of each phase for T = 10 and T = 10,000, known to the compiler; dims are new each time."""
    sizes = (10, 10_000)
    phases: dict[int, dict[str, list[float]]] = {size: {} for size in sizes}
    rng = np.random.default_rng(0)
    weights = {
        "wx": rng.normal(size=(8, 32)).astype("float32"),
        "wh": rng.normal(size=(8, 32)).astype("float32"),
        "bias": np.zeros(32, "float32"),
    }
    for number in range(rounds + 1):
        for size in sizes[:: 1 if number % 2 else -1]:
            outputs, T = programs.lstm(1, 8, 8)
            program = pr.compile(outputs, bounds={T: size})
            program(x=np.zeros((size, 1, 8), "float32"), **weights)
            seconds = {**program.compiled.seconds, "XLA": program.backend.compilations[-1].seconds}
            seconds["all of ours"] = sum(program.compiled.seconds.values())
            if number:  # the first is a warm-up
                for phase, value in seconds.items():
                    phases[size].setdefault(phase, []).append(value)
    facts: list[Result | Fact] = []
    for phase in phases[10]:
        small, large = (statistics.median(phases[size][phase]) for size in sizes)
        ratio = statistics.median(b / a for a, b in zip(*(phases[size][phase] for size in sizes), strict=True))
        limit = 1.2 if phase in ("all of ours", "XLA") else None
        note = f"{small * 1e3:.1f} ms at T=10, {large * 1e3:.1f} ms at T=10000"
        facts.append(Fact(f"compile time, {phase}", ratio, "times", limit, note))
    return facts
