"""Programs that are stopped and go on, for the tests of checkpoints; run as a script, one that may be killed.

`python -m tests.runtime.stopping FOLDER BACKEND MOMENT` trains with checkpoints in a folder and prints the digest of
its results. MOMENT is `never`, or where the process kills itself: `WHAT:N`, at the N-th checkpoint, with WHAT one of
`writing` (half of the file is written), `renaming` (all of it, under the name it does not keep) and `removing` (before
old ones are).
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import polyrhythm as pr
from polyrhythm import optim
from polyrhythm.runtime import snapshots

ITERATIONS, EVERY = 23, 3


def training() -> tuple[dict[str, Any], pr.Dim, pr.Bound]:
    """Gradient descent with momentum on inputs with noise: what it returns, and the dim of the iterations."""
    i, I = pr.dim("i")
    weights = optim.over(i, {"w": pr.parameter("w", (3, 3), init=np.eye(3) * 0.5)})
    x = pr.input("x", (4, 3), (i,))
    y = pr.tanh(x @ weights["w"]) + 0.1 * pr.normal((4, 3), dims=(i,), name="noise")
    loss = ((y - 0.5) ** 2).sum()
    optim.sgd(i, weights, pr.grad(loss, weights), 0.05, momentum=0.9)
    return {"losses": loss[0:I], "w": weights["w"][I]}, i, I


def inputs() -> dict[str, Any]:
    """What it is trained on."""
    return {"x": np.random.default_rng(0).normal(size=(ITERATIONS, 4, 3)).astype("float32")}


def through_time() -> dict[str, Any]:
    """A recurrent network trained by Adam."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    weights = optim.over(i, {"w": pr.parameter("w", (3, 3), init=np.eye(3) * 0.5)})
    x = pr.input("x", (3,), (i, t))
    h = pr.recurrent((3,), (i, (t, T + 1)), name="h")
    h[i, 0] = 0.0
    h[i, t + 1] = pr.tanh(h @ weights["w"] + x)
    loss = ((h[i, T] - 0.5) ** 2).sum()
    optim.adam(i, weights, pr.grad(loss, weights), 0.05)
    return {"losses": loss[0:I], "w": weights["w"][I]}


def digest(results: dict[str, Any]) -> str:
    """The bits of all results."""
    parts = b"".join(np.asarray(results[name]).tobytes() for name in sorted(results))
    return hashlib.sha256(parts).hexdigest()


def die(*_: Any) -> None:
    """As `kill -9` ends a process: nothing is flushed or cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def at_the(number: int, action: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does something else the n-th time."""
    calls = 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return (instead if calls == number else action)(*arguments, **options)

    return counted


def _half(arrays: Any, path: Path, metadata: Any) -> None:
    """Begin to write a file."""
    snapshots_save(arrays, path, metadata=metadata)
    os.truncate(path, path.stat().st_size // 2)
    die()


snapshots_save = save_file


def main() -> None:
    """Train, or die on the way."""
    folder, backend, moment = sys.argv[1:]
    outputs, i, _ = training()
    if moment != "never":
        what, number = moment.split(":")
        if what == "writing":
            vars(snapshots)["save_file"] = at_the(int(number), save_file, _half)
        elif what == "renaming":
            os.replace = at_the(int(number), os.replace, die)
        else:
            remove = at_the(int(number), Path.unlink, die)
            Path.unlink = lambda path: os.unlink(path) if path.suffix == snapshots.PARTIAL else remove(path)  # type: ignore
    program = pr.compile(outputs, backend=backend)
    print("begins", flush=True)
    print(digest(program(seed=7, checkpoint=pr.Checkpoints(folder, over=i, every=EVERY), **inputs())), flush=True)


if __name__ == "__main__":
    main()
