"""Attention along a sequence that is spread, as users write it: blocks go round, and scores are never whole."""

from typing import Any
from unittest.mock import patch

import jax
import numpy as np

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.ops import ring
from tests.devices.mesh_programs import attention, close, collectives_of, mesh_of

DEVICES = jax.device_count()
RANDOM = np.random.default_rng(0)


def _programs() -> tuple[pr.Dim, dict[str, pr.Tensor]]:
    (t, T), (n, _) = pr.dim("t"), pr.dim("n")
    q, k, v = pr.input("q", (3,), (t, n)), pr.input("k", (3,), (t,)), pr.input("v", (5,), (t,))
    near, own = pr.input("near", (), (t,)), pr.input("own", (3,), (t, n))
    past = pr.softmax(k[0 : t + 1] @ q)
    scores = k[0 : t + 1] @ q
    larger = pr.exp(scores - scores.max(0))
    both = pr.einsum("hd,sd->hs", pr.stack([q, 2 * q]), k[0 : t + 1])
    return t, {
        "past": past @ v[0 : t + 1],
        "all": pr.softmax(k[0:T] @ q) @ v[0:T],
        "maximum": (k[0 : t + 1] @ q).max(0),
        "without a maximum": pr.exp(k[0 : t + 1] @ q).sum(0),
        "positions": pr.softmax(k[0 : t + 1] @ q - 0.5 * pr.arange(t + 1).cast("float32")) @ v[0 : t + 1],
        "as many, from here on": pr.softmax(k[0 : T - t] @ q + near[t:T]) @ v[0 : T - t],
        "several queries": pr.einsum("hs,sd->hd", pr.softmax(both, axis=-1), v[0 : t + 1]),
        "variance": ((k[0 : t + 1] @ q - (k[0 : t + 1] @ q).mean(0)) ** 2).mean(0),
        "a head for each lane": pr.softmax(own[0 : t + 1, n] @ q) @ v[0 : t + 1],
        "linear": (k[0 : t + 1] @ q) @ v[0 : t + 1],
        "logarithm": pr.logsumexp(k[0 : t + 1] @ q, 0),
        "sharp": pr.softmax(300 * (k[0 : t + 1] @ q)) @ v[0 : t + 1],
        "twice": pr.einsum("s,sd->d", past * past, v[0 : t + 1]),
        "weights and more": past @ v[0 : t + 1] + (past * (k[0 : t + 1] @ q)).sum(0),
        "by hand": (larger / larger.sum(0)) @ v[0 : t + 1],
        "above the mean": pr.softmax(scores - scores.mean(0)) @ v[0 : t + 1],
    }


ONE_ROUND = ("past", "all", "positions", "several queries", "a head for each lane", "sharp")
"""Keys and values go round once: the sums of softmax follow the largest score so far."""


def case_spellings() -> dict[str, int]:
    t, programs = _programs()
    counts = {}
    for name, y in programs.items():
        program = pr.compile(y, mesh=mesh_of("data"), shard={t: "data"})
        for steps, lanes in ((2 * DEVICES, 3), (5, DEVICES), (1, 1)):
            shapes = {
                "q": (steps, lanes, 3),
                "k": (steps, 3),
                "v": (steps, 5),
                "near": (steps,),
                "own": (steps, lanes, 3),
            }
            known = program.compiled.graph.inputs
            data: dict[str, Any] = {n: RANDOM.normal(size=s).astype("float32") for n, s in shapes.items() if n in known}
            close(program(**data), pr.evaluate(y, data))
        # No keys, values or scores; `near[t:T]` is no read from the first step on, and is gathered.
        far = [one for one in collectives_of(program) if one.kind != "collective-permute"]
        assert all(len(shape) < 2 for one in far for _, shape in one.shapes), (name, far)
        counts[name] = len(collectives_of(program))
        if name in ONE_ROUND:
            made = len(program.backend.executor.programs)
            assert sum(one.kind == "collective-permute" for one in collectives_of(program)) == 2 * made, (
                name,
                collectives_of(program),
            )
    return counts


def case_what_is_not_finite_stays_where_it_is_read() -> str:
    t, programs = _programs()
    y = programs["past"]
    program = pr.compile(y, mesh=mesh_of("data"), shard={t: "data"})
    steps = 2 * DEVICES
    for name, value in (("k", np.nan), ("v", np.inf), ("v", np.nan), ("k", -np.inf)):
        data: dict[str, Any] = {
            "q": RANDOM.normal(size=(steps, 2, 3)).astype("float32"),
            "k": RANDOM.normal(size=(steps, 3)).astype("float32"),
            "v": RANDOM.normal(size=(steps, 5)).astype("float32"),
        }
        data[name][steps - 1] = value
        data[name][steps // 2, 1] = value
        found, expected = np.asarray(program(**data)), pr.evaluate(y, data)
        assert np.allclose(found, expected, rtol=2e-5, atol=2e-5, equal_nan=True), (name, value)
    return "ok"


def case_memory() -> dict[int, int]:
    """Temporaries of a device are blocks of scores: with as many steps for each device they do not grow."""
    y, _, t, _ = attention()
    found = {}
    for devices in (n for n in (1, 2, 4, 8) if n <= DEVICES):
        mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
        program = pr.compile(y, mesh=mesh, shard={t: "data"})
        found[devices] = program.lowered({"B": 1, "T": 64 * devices}).memory.temporaries
    sizes = [found[n] for n in found if n > 1]
    assert all(size <= 1.1 * sizes[0] for size in sizes), found
    # Nor do they grow with the square of the steps that a device has.
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    program = pr.compile(y, mesh=mesh, shard={t: "data"})
    some, more = (program.lowered({"B": 1, "T": 2 * steps}).memory.temporaries for steps in (2048, 8192))
    assert more <= 4.5 * some, (some, more)
    return found


def case_a_few_lanes_at_a_time() -> str:
    t, programs = _programs()
    for most in (1, 6, 17):
        with patch.object(ring, "MOST_PAIRS", most):
            for name in ("past", "several queries", "variance"):
                program = pr.compile(programs[name], mesh=mesh_of("data"), shard={t: "data"})
                shapes = {"q": (3 * DEVICES, 2, 3), "k": (3 * DEVICES, 3), "v": (3 * DEVICES, 5)}
                known = program.compiled.graph.inputs
                data: Any = {n: RANDOM.normal(size=s).astype("float32") for n, s in shapes.items() if n in known}
                close(program(**data), pr.evaluate(programs[name], data))
    return "ok"
