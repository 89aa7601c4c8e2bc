"""`python -m benchmarks.rl [--only env=synthetic,network=2x64]`: iterations of PPO and DQN, and other implementations.

The systems of a row (an environment and a network) run in processes of their own that take turns, so what else the
machine does is the same for all; ratios are medians over rounds. First the losses of all systems but stable-baselines3
and sbx and their gradients are compared on one batch, with the same weights. Systems in torch run with as many threads
as they are fastest with. While others keep the machine busy, the time of the processor says more than that of the
clock; both are given.

Rows go to `build/benchmarks/rl_rows.json` as they finish, and a run that was stopped goes on with what is missing. The
table at the end has all rows of the file; it is in `rl.json` too, for `benchmarks.tables --take rl`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.harness import where_and_when
from benchmarks.rows import Entry, Only, Rows, add_options
from benchmarks.turns import Turns, answer

OUT = Path("build/benchmarks/rl_rows.json")
SYSTEMS = ("polyrhythm", "jax", "torch", "stable-baselines3", "sbx")
NAMES = {
    "polyrhythm": "ours",
    "jax": "JAX by an expert, one `jit`",
    "torch": "torch, in the style of CleanRL",
    "stable-baselines3": "stable-baselines3",
    "sbx": "sbx",
}
SHAPE, LENGTH, ACTIONS = (8,), 100, 4
KEYS = ("env", "envs", "steps", "network", "system")
ROUNDS, BLOCK_S = 7, 0.4
"""How often the systems take turns, and about how long a turn is."""


@dataclass(frozen=True)
class Row:
    """What is measured. Of CartPole there is `cartpole host`, Gymnasium's, and `cartpole compiled`; `dqn` before a name
    says that it is not PPO."""

    env: str
    envs: int
    steps: int
    network: str

    @property
    def hidden(self) -> tuple[int, ...]:
        """The sizes of the hidden layers: `2x64` are two of 64."""
        count, size = self.network.split("x")
        return (int(size),) * int(count)


ROWS = [
    *(Row("synthetic", envs, 250, network) for envs in (32, 512) for network in ("2x64", "16x64", "2x256")),
    Row("cartpole compiled", 32, 250, "2x64"),
    Row("cartpole host", 32, 250, "2x64"),
    Row("dqn cartpole compiled", 8, 4, "2x64"),
    Row("dqn cartpole host", 8, 4, "2x64"),
]
QUICK = [Row("synthetic", 32, 250, "2x64")]


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one row, without stable-baselines3 and sbx")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often the systems take turns")
    parser.add_argument("--table", action="store_true", help="measure nothing, show what the file has")
    add_options(parser)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        what = json.loads(given.child)
        system = what.pop("system")
        threaded = system in ("torch", "stable-baselines3", "sbx")
        answer(lambda: started(Row(**what), system), best_threads if threaded else None)
        return
    kept, only = Rows(OUT, KEYS), Only(given.only)
    if not given.table:
        compare()
        for row in QUICK if given.quick else ROWS:
            keys = [{**asdict(row), "system": system} for system in systems_of(row)]
            wanted = [key for key in keys if only(key) and not (given.quick and key["system"] in SYSTEMS[3:])]
            if wanted and (given.again or any(kept.get(key) is None for key in wanted)):
                for entry in measured(wanted, given.rounds):
                    kept.add(entry)
                    print(json.dumps(entry), flush=True)
    report(kept)


def systems_of(row: Row) -> tuple[str, ...]:
    """Those that a row has, ours first."""
    host = ("polyrhythm", "stable-baselines3", "sbx")
    has = {"cartpole host": host, "cartpole compiled": SYSTEMS[:2]}
    has |= {"dqn cartpole host": (*host, "torch"), "dqn cartpole compiled": SYSTEMS[:2]}
    return has.get(row.env, SYSTEMS)


def measured(keys: Sequence[Entry], rounds: int) -> list[Entry]:
    """The systems of a row in turn."""
    return raced(keys, begun(keys), rounds)


def begun(keys: Sequence[Entry]) -> list[Turns]:
    """The systems of a row, ready to be told what to do."""
    return [Turns("benchmarks.rl", key) for key in keys]


def raced(keys: Sequence[Entry], children: Sequence[Turns], rounds: int) -> list[Entry]:
    """What each takes; ratios are over the first, round by round."""
    turns: list[list[Entry]] = [[] for _ in keys]
    for _ in range(rounds):
        for child, found in zip(children, turns, strict=True):
            if not child.failed:
                found.append(child.block(max(1, round(BLOCK_S / child.ready["seconds"]))))
    for child in children:
        child.end()
    return [_entry(*each, turns[0]) for each in zip(keys, children, turns, strict=True)]


def _entry(key: Entry, child: Turns, turns: list[Entry], first: list[Entry]) -> Entry:
    if child.failed:
        return {**key, "failed": child.ready["failed"]}
    seconds = [turn["seconds"] for turn in turns]
    usual = statistics.median(seconds)
    rows = key["envs"] * key["steps"] * (DQN_ITERATIONS if key["env"].startswith("dqn") else 1)
    entry = {
        **key,
        "ms_per_iteration": 1e3 * usual,
        "ms_range": [1e3 * min(seconds), 1e3 * max(seconds)],
        "cpu_ms_per_iteration": 1e3 * statistics.median(turn["processor"] for turn in turns),
        "steps_per_s": rows / usual,
        "compile_s": child.ready["first_s"] - usual,
        "peak_rss_mb": turns[-1]["peak_mb"],
        "threads": child.ready.get("threads"),
    }
    for name in ("seconds", "processor"):
        over = [turn[name] / ours[name] for turn, ours in zip(turns, first, strict=False)]
        entry[f"{name}_over_first"] = statistics.median(over)
    return entry


def report(kept: Rows) -> None:
    """All rows so far as a table, in the order of the benchmark, and as the page shows them."""
    table = Table(title=f"ms per iteration of PPO, per {DQN_ITERATIONS} of DQN")
    headings = ("environment", "environments", "network", "system", "ms an iteration", "over ours", "processor")
    headings += ("over ours, processor", "steps/s", "MB")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("environment", "network", "system") else "right")
    lines: list[dict[str, str]] = []
    for row in ROWS:
        fixed = [row.env, str(row.envs), row.network.replace("x", " x ")]
        for system in systems_of(row):
            entry = kept.entry({**asdict(row), "system": system})
            if entry is None:
                continue
            cells = [*fixed, NAMES[system], *_cells(entry)]
            table.add_row(*cells)
            lines.append(dict(zip(headings, cells, strict=False)))
            fixed = ["", "", ""]
    Console(width=170).print(table)
    shown = {**where_and_when("rl"), "command": "python -m benchmarks.rl", "results": lines}
    path = kept.path.with_name("rl.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")
    print(f"written to {kept.path} and {path}")


def _cells(entry: Entry) -> list[str]:
    if "failed" in entry:
        return [str(entry["failed"])]
    ours = entry["system"] == "polyrhythm"
    ratios = ["" if ours else f"{entry[f'{name}_over_first']:.2f}" for name in ("seconds", "processor")]
    times = [f"{entry[name]:,.1f}" for name in ("ms_per_iteration", "cpu_ms_per_iteration")]
    costs = [f"{entry['steps_per_s']:,.0f}", f"{entry['peak_rss_mb']:.0f}"]
    return [times[0], ratios[0], times[1], ratios[1], *costs]


def best_threads(run: Any) -> Entry:
    """With how many threads torch is fastest; those of small products may wait for each other most of the time."""
    import torch

    counts = range(1, (os.cpu_count() or 1) + 1)
    times = dict.fromkeys(counts, float("inf"))
    for threads in [*counts] * 3:  # in turn, and the fastest of each: a single one may be disturbed
        torch.set_num_threads(threads)
        began = time.perf_counter()
        run(1)
        times[threads] = min(times[threads], time.perf_counter() - began)
    best = min(times, key=times.__getitem__)
    torch.set_num_threads(best)
    return {"threads": best}


def started(row: Row, system: str) -> Any:
    """A function that makes so many iterations."""
    from polyrhythm import rl

    if row.env.startswith("dqn"):
        return started_dqn(row, system)
    settings = rl.PPOSettings(steps=row.steps)
    if system in ("stable-baselines3", "sbx"):
        from benchmarks import rl_baselines

        if row.env == "synthetic":
            made = rl_baselines.ManyLamps(row.envs, SHAPE, LENGTH, ACTIONS)
        else:
            made = rl_baselines.cartpoles(row.envs)
        return rl_baselines.trainer(made, row.hidden, settings, system)
    if row.env == "cartpole host":
        import gymnasium

        source: rl.Source = rl.Gym(gymnasium.make_vec("CartPole-v1", row.envs, vectorization_mode="sync"))
    else:
        environment = rl.CartPole() if row.env == "cartpole compiled" else rl.Synthetic(SHAPE, LENGTH, ACTIONS)
        source = rl.Arrays(environment, row.envs)
    model = rl.ActorCritic(source.observations, source.actions, row.hidden, np.random.default_rng(0))
    if system == "polyrhythm":
        import polyrhythm as pr

        training = rl.ppo(source, model, settings)
        program = pr.compile(training.outputs, bounds=training.bounds)
        return lambda count: program(bounds={training.iterations: count})
    if system == "jax":
        from benchmarks import rl_jax

        compiled = row.env == "cartpole compiled"
        step = rl_jax.cartpole(500) if compiled else rl_jax.synthetic(SHAPE, LENGTH, ACTIONS)
        sizes: Any = ((4,), 2) if compiled else (SHAPE, ACTIONS)
        return repeated(*rl_jax.trainer(model.weights(), row.envs, step, *sizes, settings))
    from benchmarks import rl_torch

    step = rl_torch.trainer(model.weights(), row.envs, SHAPE, LENGTH, ACTIONS, settings)
    return lambda count: [step() for _ in range(count)]


def repeated(iteration: Any, state: Any) -> Any:
    """A function that makes so many iterations of JAX."""

    def run(count: int) -> None:
        nonlocal state
        for _ in range(count):
            state, last = iteration(state)
        last.block_until_ready()

    return run


DQN_ITERATIONS = 200
"""So many are timed as one: an iteration of DQN is a few steps and one update."""


def started_dqn(row: Row, system: str) -> Any:
    """A function that makes so many blocks of iterations."""
    from polyrhythm import rl

    settings = rl.DQNSettings(steps=row.steps, learning_starts=0)
    if system in ("stable-baselines3", "sbx"):
        from benchmarks import rl_baselines

        one = rl_baselines.dqn_trainer(rl_baselines.cartpoles(row.envs), row.hidden, settings, system)
    else:
        source: rl.Source = rl.Arrays(rl.CartPole(), row.envs)
        if "host" in row.env and system == "polyrhythm":
            import gymnasium

            source = rl.Gym(gymnasium.make_vec("CartPole-v1", row.envs, vectorization_mode="sync"))
        model = rl.QNetwork(source.observations, source.actions, row.hidden, np.random.default_rng(0))
        if system == "polyrhythm":
            import polyrhythm as pr

            training = rl.dqn(source, model, settings)
            program = pr.compile(training.outputs, bounds=training.bounds)
            return lambda count: program(bounds={training.iterations: DQN_ITERATIONS * count})
        from benchmarks import rl_dqn

        if system == "jax":
            one = repeated(*rl_dqn.jax_trainer(model.weights(), row.envs, settings))
        else:
            step = rl_dqn.torch_trainer(model.weights(), row.envs, settings)
            return lambda count: [step() for _ in range(DQN_ITERATIONS * count)]
    return lambda count: one(DQN_ITERATIONS * count)


def compare() -> None:
    """Raise unless all have the same loss and gradients on one batch, with the same weights."""
    import jax
    import torch

    import polyrhythm as pr
    from benchmarks import rl_jax, rl_torch
    from polyrhythm import rl
    from polyrhythm.rl.ppo import Batch, loss

    random, settings = np.random.default_rng(0), rl.PPOSettings()
    model = rl.ActorCritic(SHAPE, rl.Discrete(ACTIONS), (8, 8), random)
    numbers = [random.normal(size=32).astype("float32") for _ in range(4)]
    batch = (random.normal(size=(32, *SHAPE)).astype("float32"), random.integers(0, ACTIONS, 32), *numbers)
    weights = model.parameters()
    total = loss(model.using(weights), Batch(*(pr.constant(a) for a in batch)), settings).total
    ours, slopes = pr.evaluate((total, pr.grad(total, weights)))
    by_jax, jax_slopes = jax.value_and_grad(rl_jax.loss)(model.weights(), batch, settings)
    modules = {name: rl_torch.module(model.weights(), name) for name in ("policy", "value")}
    by_torch = rl_torch.loss(*modules.values(), tuple(torch.tensor(a) for a in batch), settings)
    by_torch.backward()
    np.testing.assert_allclose([by_jax, by_torch.item()], ours, rtol=1e-4)
    for name, slope in slopes.items():
        network, _, number, part = name.split(".")
        theirs = getattr(modules[network][2 * int(number)], part).grad.numpy()
        np.testing.assert_allclose(jax_slopes[name], slope, rtol=1e-3, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(theirs, slope, rtol=1e-3, atol=1e-5, err_msg=name)
    compare_dqn()


def compare_dqn() -> None:
    """The same for DQN."""
    import jax
    import torch

    import polyrhythm as pr
    from benchmarks import rl_dqn
    from polyrhythm import rl
    from polyrhythm.rl.dqn import td_loss

    random, settings = np.random.default_rng(0), rl.DQNSettings()
    model, slow = (rl.QNetwork((4,), rl.Discrete(2), (8, 8), random) for _ in range(2))
    seen, after = (random.normal(size=(32, 4)).astype("float32") for _ in range(2))
    over = random.integers(0, 2, 32).astype("float32")
    arrays = (seen, random.integers(0, 2, 32), random.normal(size=32).astype("float32"), after, over)
    batch = dict(zip(rl_dqn.NAMES, arrays, strict=True))
    discounted = [*arrays[:4], np.float32(settings.gamma) * (1 - over)]
    weights = model.parameters()
    total = td_loss(model.using(weights), slow, rl.Transitions(*map(pr.constant, discounted))).each.mean()
    ours, slopes = pr.evaluate((total, pr.grad(total, weights)))
    by_jax, jax_slopes = jax.value_and_grad(rl_dqn.loss)(model.weights(), slow.weights(), batch, settings)
    w = {name: torch.tensor(a, requires_grad=True) for name, a in model.weights().items()}
    other = {name: torch.tensor(a) for name, a in slow.weights().items()}
    by_torch = rl_dqn.torch_loss(w, other, {name: torch.tensor(a) for name, a in batch.items()}, settings)
    by_torch.backward()
    np.testing.assert_allclose([by_jax, by_torch.item()], ours, rtol=1e-4)
    for name, slope in slopes.items():
        for theirs in (jax_slopes[name], w[name].grad):
            np.testing.assert_allclose(theirs, slope, rtol=1e-3, atol=1e-5, err_msg=name)


if __name__ == "__main__":
    main()
