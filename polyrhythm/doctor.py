"""What this installation has and lacks: `polyrhythm doctor`.

Each line is a fact or a remedy: versions, extras, the C kernel, the cache, memory bandwidth, devices. The last check is
an asymptotic canary: a loop that updates one slot of a buffer must take as long for a large buffer as for a small one.
In versions of XLA that copy the buffer at every step it does not, and then every recurrence is quadratic.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import numpy as np

from polyrhythm.compiler.backends import native
from polyrhythm.compiler.backends.jax.products import kernel
from polyrhythm.compiler.backends.jax.run import calibration
from polyrhythm.runtime.settings import quiet

EXTRAS = {
    "torch": ("torch",),
    "llm": ("tokenizers", "gguf", "jinja2"),
    "serve": ("starlette", "uvicorn"),
    "rl": ("gymnasium",),
    "optax": ("optax",),
    "logs": ("tensorboard",),
    "stream": ("matplotlib",),
    "docs": ("mkdocs", "mkdocstrings"),
}
"""What each extra brings, by the names of modules."""

CANARY_STEPS = 2_000
SLOWER = 8.0
"""A loop over a buffer 256 times as large may take so many times as long: more than noise, far less than 256."""


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what was found, and whether it is as it should be."""

    what: str
    found: str
    good: bool = True

    def __str__(self) -> str:
        return f"{'ok  ' if self.good else 'FAIL'}  {self.what:<11} {self.found}"


def findings() -> Iterator[Finding]:
    """All that the doctor says, one by one.

    >>> next(findings()).what
    'python'
    """
    yield Finding("python", f"{platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores")
    for name in ("polyrhythm", "jax", "jaxlib", "numpy", "islpy"):
        yield _installed(name)
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if find_spec(module) is None]
        line = f"not installed: pip install 'polyrhythm[{extra}]'" if missing else "installed"
        yield Finding(f"[{extra}]", line)
    yield from _machine()
    yield _conforms()
    yield _canary()


def _installed(name: str) -> Finding:
    try:
        return Finding(name, version(name))
    except PackageNotFoundError:
        return Finding(name, f"not installed: pip install {name}", good=False)


def _machine() -> Iterator[Finding]:
    import jax

    yield Finding("devices", ", ".join(f"{d.platform} {d.device_kind}" for d in jax.devices()))
    why = kernel.missing()
    yield Finding("C kernel", "compiled for this processor" if why is None else f"XLA multiplies instead: {why}")
    folder = native.folder()
    yield Finding("cache", "off ($POLYRHYTHM_CACHE is empty)" if folder is None else str(folder))
    machine = calibration.known()
    figures = f"{machine.near / 1e9:.0f} GB/s up to {machine.cache >> 20} MB, {machine.far / 1e9:.0f} GB/s beyond"
    yield Finding("bandwidth", figures + ("" if machine.calibrated else " (assumed: polyrhythm calibrate measures it)"))


def _conforms() -> Finding:
    """Whether small programs give on XLA what their definitions say: rings, guards, gradients, vectorised loops."""
    import polyrhythm as pr

    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    h = pr.recurrent((3,), (t,))
    h[0] = x[0]
    h[t + 1] = pr.tanh(pr.window(h, t, 2).mean(0)) + x[t + 1]
    back = pr.recurrent((), (t,))
    back[T - 1] = 0.0
    back[t < T - 1] = 0.5 * back[t + 1] + x[t + 1].sum()
    so_far = pr.softmax(x[0 : t + 1] @ x, 0) @ x[0 : t + 1]
    outputs = {"ring": h, "backwards": back, "ranges": so_far, "gradient": pr.grad((h[T - 1] ** 2).sum(), x)}
    given: dict[str, Any] = {"x": np.linspace(-1, 1, 21, dtype="float32").reshape(7, 3)}
    expected = pr.evaluate(outputs, given)
    with quiet():
        found = pr.compile(outputs)(**given)
    wrong = [name for name in outputs if not np.allclose(found[name], expected[name], atol=1e-4)]
    if wrong:
        return Finding("conforms", f"XLA computes {', '.join(wrong)} wrongly: please report it", good=False)
    return Finding("conforms", f"{len(outputs)} programs give on XLA what they define")


def _canary() -> Finding:
    small, large = (_seconds(size) for size in (1 << 10, 1 << 18))
    ratio = large / small
    if ratio <= SLOWER:
        return Finding(
            "in place", f"buffers of loops are updated in place (256 times as large: {ratio:.1f} times as long)"
        )
    remedy = "pip install 'jax>=0.10.2,<0.11'"
    return Finding("in place", f"XLA copies buffers in loops ({ratio:.0f} times as long): {remedy}", good=False)


def _seconds(size: int) -> float:
    """The least time of a loop that stores one slot of a buffer at each step, and reads another."""
    import jax
    from jax import lax

    def step(i: Any, buffer: Any) -> Any:
        return buffer.at[i].set(buffer[i - 1] + 1)

    run: Callable[..., Any] = jax.jit(lambda b: lax.fori_loop(1, CANARY_STEPS, step, b)[CANARY_STEPS - 1])
    buffer = jax.numpy.zeros(max(size, CANARY_STEPS), "float32")
    run(buffer).block_until_ready()
    times = []
    for _ in range(5):
        started = time.perf_counter()
        run(buffer).block_until_ready()
        times.append(time.perf_counter() - started)
    return min(times)
