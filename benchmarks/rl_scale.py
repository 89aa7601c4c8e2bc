"""`python -m benchmarks.rl_scale [--only what=seeds]`: seeds side by side, large observations, long contexts.

- `seeds` and `small_seeds`: PPO in CartPole, 16 seeds by `jax.vmap` over the program, and the same program one seed
  after another; the same of JAX by an expert. With 64 x 64 networks and 128 steps products take most of the time, with
  8 and 32 steps starting operations does.
- `images`: PPO with observations of as many numbers as an image has, up to 3 x 128 x 128: the peak of the process above
  what it had before, over the bytes of the observations of one rollout; ours, JAX by an expert, CleanRL's torch.
- `context`: PPO with a transformer that attends to 128 steps, and acting alone: the peaks of the plans, and the bytes
  of a cache of keys and values with every transition.

Each row runs in a process of its own, and is kept in `build/benchmarks/rl_scale_rows.json`; the table that is in
`rl_scale.json` is for `benchmarks.tables --take rl_scale`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import where_and_when
from benchmarks.rows import Entry, Only, Rows, add_options, own_peak_mb

OUT = Path("build/benchmarks/rl_scale_rows.json")
KEYS = ("what", "size", "system")
SEEDS = 16
RUNS = {"seeds": ((64, 64), 128, 20), "small_seeds": ((8,), 32, 100)}
"""Hidden layers, steps of each iteration, iterations."""
ENVS, STEPS = 8, 512
SIDES = (32, 64, 128)
ROWS = [
    *({"what": what, "size": SEEDS, "system": s} for what in RUNS for s in ("polyrhythm", "jax")),
    *({"what": "images", "size": n, "system": s} for n in SIDES for s in ("polyrhythm", "jax", "torch")),
    {"what": "context", "size": 128, "system": "polyrhythm"},
]


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        row = json.loads(given.row)
        print(json.dumps(row | globals()[row["what"]](row["size"], row["system"])))
        return
    kept, only = Rows(OUT, KEYS), Only(given.only)
    for row in filter(only, ROWS):
        if given.again or kept.get(row) is None:
            command = [sys.executable, "-m", "benchmarks.rl_scale", "--row", json.dumps(row)]
            # Memory that is freed goes back at once, so that the peak is what was in use; where time counts it stays.
            returned = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
            environment = {**os.environ, **(returned if row["what"] == "images" else {})}
            done = subprocess.run(command, capture_output=True, text=True, timeout=given.limit, env=environment)
            failed = {**row, "failed": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
            kept.add(failed if done.returncode else json.loads(done.stdout.strip().splitlines()[-1]))
    table = [_told(entry) for row in ROWS if (entry := kept.entry(row)) is not None]
    shown = {**where_and_when("rl_scale"), "command": "python -m benchmarks.rl_scale", "results": table}
    OUT.with_name("rl_scale.json").write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(table, indent=1))


def _told(entry: Entry) -> dict[str, str]:
    """A row as the page shows it."""
    size, found = entry["size"], entry
    systems = {"polyrhythm": "ours", "jax": "JAX by an expert", "torch": "torch, in the style of CleanRL"}
    whats = {
        **{what: f"PPO, CartPole, {size} seeds, {_network(what)}" for what in RUNS},
        "images": f"PPO, observations of 3 x {size} x {size}",
        "context": f"PPO, a transformer of context {size}",
    }
    told = {"what": whats[found["what"]], "system": systems[found["system"]]}
    if "failed" in found:
        return told | {"measured": found["failed"], "ratio": ""}
    if found["what"] in RUNS:
        measured = f"{found['together_s']:.2f} s by vmap, {found['one_after_another_s']:.2f} s one after another"
        ratio = f"{found['times_faster']:.1f} times faster, of the processor {found['times_less']:.1f}"
        return told | {"measured": measured, "ratio": ratio}
    if found["what"] == "images":
        measured = f"{found['peak_mb']:.0f} MB; one rollout is {found['rollout_mb']:.0f} MB"
        return told | {"measured": measured, "ratio": f"{found['rollouts']:.2f} rollouts"}
    whole, acting, caches = (found[name] for name in ("peak_mb", "acting_mb", "caches_mb"))
    measured = f"{whole:.1f} MB, acting alone {acting:.2f} MB; a cache with each transition is {caches:.0f} MB"
    return told | {"measured": measured, "ratio": f"{caches / whole:.1f}, acting {caches / acting:.0f} times less"}


def _network(what: str) -> str:
    hidden, steps, iterations = RUNS[what]
    return f"network {' x '.join(map(str, hidden))}, {iterations} iterations of {steps} steps"


def seeds(count: int, system: str, what: str = "seeds") -> dict[str, float]:
    """Seconds of all seeds, side by side and one after another, compiling apart."""
    import jax

    from polyrhythm import rl

    hidden, steps, iterations = RUNS[what]
    carts = rl.Arrays(rl.CartPole(), 4)
    model = rl.ActorCritic(carts.observations, carts.actions, hidden, np.random.default_rng(0))
    settings = rl.PPOSettings(steps=steps)
    made = _ours if system == "polyrhythm" else _experts
    together, alone = made(carts, model, settings, iterations, count)
    with jax.enable_x64(True):
        side, after = together(), alone()
        if system == "polyrhythm":
            np.testing.assert_allclose(side[3], after[3], rtol=1e-3)
        found = {name: min(_seconds(way) for _ in range(3)) for name, way in (("a", together), ("b", alone))}
    (side, used), (after, all_used) = found["a"], found["b"]
    ratios = {"times_faster": after / side, "times_less": all_used / used}
    return {"together_s": side, "one_after_another_s": after} | ratios


def small_seeds(count: int, system: str) -> dict[str, float]:
    """The same with a small network and few steps."""
    return seeds(count, system, "small_seeds")


def _ours(carts: Any, model: Any, settings: Any, iterations: int, count: int) -> tuple[Any, Any]:
    """A figure of the last iteration of all seeds, side by side and one after another."""
    import jax

    import polyrhythm as pr
    from polyrhythm import rl

    training = rl.ppo(carts, model, settings)
    outputs = {name: x for name, x in training.outputs.items() if name != "weights"}
    program = pr.compile(outputs, training.bounds)
    bounds = {training.iterations: iterations}
    every = jax.jit(jax.vmap(lambda seed: program(bounds=bounds, seed=seed)["return"]))
    numbers = np.arange(count, dtype=np.uint32)
    return (
        lambda: np.asarray(every(numbers))[:, -1],
        lambda: np.array([program(bounds=bounds, seed=int(seed))["return"][-1] for seed in numbers]),
    )


def _experts(carts: Any, model: Any, settings: Any, iterations: int, count: int) -> tuple[Any, Any]:
    """The same of the trainer in JAX, whose state begins with the weights and ends with a key."""
    import jax

    from benchmarks import rl_jax

    with jax.enable_x64(False):
        step = rl_jax.cartpole(carts.environment.limit)
        iteration, start = rl_jax.trainer(model.weights(), carts.count, step, (4,), 2, settings)

        def trained(key: Any) -> Any:
            def one(_: int, run: tuple[Any, Any]) -> tuple[Any, Any]:
                return iteration.__wrapped__(run[0])

            begun = (*start[:3], key), jax.numpy.zeros(())
            return jax.lax.fori_loop(0, iterations, one, begun)[1]

        keys = jax.vmap(jax.random.key)(np.arange(count))
        every, single = jax.jit(jax.vmap(trained)), jax.jit(trained)

    def together() -> Any:
        with jax.enable_x64(False):
            return np.asarray(every(keys))

    def alone() -> Any:
        with jax.enable_x64(False):
            return np.array([single(key) for key in keys])

    return together, alone


def _seconds(way: Any) -> tuple[float, float]:
    """By the clock, and of the processor."""
    began, used = time.perf_counter(), time.process_time()
    way()
    return time.perf_counter() - began, time.process_time() - used


def images(side: int, system: str) -> dict[str, float]:
    """The peak of a process in two iterations, above what it is with observations of one number."""
    size, settings_of = 3 * side * side, ENVS * STEPS * 4
    _iterations(system, 1)
    gc.collect()
    before = own_peak_mb()
    _iterations(system, size)
    peak, rollout = own_peak_mb() - before, settings_of * size / 2**20
    return {"peak_mb": peak, "rollout_mb": rollout, "rollouts": peak / rollout}


def _iterations(system: str, size: int) -> None:
    """Two iterations of PPO with observations of so many numbers, in one minibatch after another."""
    import polyrhythm as pr
    from polyrhythm import rl

    settings = rl.PPOSettings(steps=STEPS, minibatches=32, epochs=1)
    lamps = rl.Arrays(rl.Synthetic((size,), 100, 4), ENVS)
    model = rl.ActorCritic(lamps.observations, lamps.actions, (16,), np.random.default_rng(0))
    if system == "polyrhythm":
        training = rl.ppo(lamps, model, settings)
        outputs = {name: x for name, x in training.outputs.items() if name != "weights"}
        pr.compile(outputs, training.bounds)(bounds={training.iterations: 2})
    elif system == "jax":
        from benchmarks import rl_jax
        from benchmarks.rl import repeated

        step = rl_jax.synthetic((size,), 100, 4)
        repeated(*rl_jax.trainer(model.weights(), ENVS, step, (size,), 4, settings))(2)
    else:
        from benchmarks import rl_torch

        iteration = rl_torch.trainer(model.weights(), ENVS, (size,), 100, 4, settings)
        iteration()
        iteration()


def context(length: int, system: str) -> dict[str, float]:
    """Bytes of a whole iteration of PPO, and those of a cache with each transition of its rollout."""
    import polyrhythm as pr
    from polyrhythm import rl

    steps, size, layers = 128, 64, 2
    games = rl.Arrays(rl.Recall(), ENVS)
    memory = rl.Transformer(size, heads=4, layers=layers, context=length)
    model = rl.ActorCritic(games.observations, games.actions, (size,), np.random.default_rng(0), memory=memory)
    training = rl.ppo(games, model, rl.PPOSettings(steps=steps, minibatches=8, epochs=1))
    program = pr.compile(training.outputs, training.bounds)
    peak, caches = program.memory.peak({str(training.iterations): 2}), steps * ENVS * length * layers * 2 * size * 4
    i, _ = pr.dim("i")
    t, last = pr.dim("t")
    along = rl.Acting(i, t, ENVS)
    acted = games.run(i, t, lambda seen: model(seen, along)[0].sample((i, t), name="actions"))
    along.ended(acted)
    alone = pr.compile(rl.episodes(i, t, acted)[1], {last: steps}, backend="numpy").memory.peak({"I": 2})
    found = {"peak_mb": peak, "acting_mb": alone, "caches_mb": caches}
    return {name: bytes / 2**20 for name, bytes in found.items()} | {"times_less": caches / peak}


if __name__ == "__main__":
    main()
