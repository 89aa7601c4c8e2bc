"""`python -m benchmarks.compile_time [--quick]`: what compiling costs before the backend, and until the first result.

PPO (three dims, a network of two layers, Adam) and a Llama-shaped decoder of 28 and of 64 layers. Each runs in a
process of its own that has compiled nothing yet, with an empty cache. The seconds of each phase are the clock's; of the
whole both the clock and the processor are given, since others may keep the machine busy. The first result is counted
from the start of the process, with imports, what the backend compiles, and the first call.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.harness import Fact, Result, is_busy, report

LIMITS = {"ppo": 3.0, "decoder of 28 layers": 5.0}
GROWTH = 1.5
LIMIT_SECONDS = 600


def main() -> None:
    """Run and report, or be the process of one row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one process for each row instead of three")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        print(json.dumps(measured(given.row, given.began)))
    else:
        report("compile_time", run(given.quick))


def run(quick: bool) -> list[Result | Fact]:
    """Every row, the fastest of some processes."""
    facts: list[Result | Fact] = []
    totals = {}
    for name in ROWS:
        tries = [in_a_process(name) for _ in range(1 if quick else 3)]
        best = min(tries, key=lambda row: row["processor"])
        busy = is_busy(os.getloadavg()[0])
        totals[name] = best["processor"] if busy else sum(best["phases"].values())
        phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in best["phases"].items())
        facts += [
            Fact(f"{name}: before the backend", totals[name], "s", LIMITS.get(name), phases),
            Fact(f"{name}: of the processor", best["processor"], "s"),
            Fact(f"{name}: first result in a fresh process", min(row["first"] for row in tries), "s"),
        ]
    growth = totals["decoder of 64 layers"] / totals["decoder of 28 layers"]
    facts.append(Fact("decoder of 64 layers over one of 28", growth, "times", GROWTH))
    return facts


def in_a_process(name: str) -> dict[str, Any]:
    """One row, in a process that has compiled nothing yet."""
    command = [sys.executable, "-m", "benchmarks.compile_time", "--row", name, "--began", repr(time.time())]
    environment = {**os.environ, "POLYRHYTHM_CACHE": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=environment)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def measured(name: str, began: float) -> dict[str, Any]:
    """Compile one of the programs and wait for its first result."""
    import polyrhythm.compiler.backends.jax.backend  # noqa: F401 (importing JAX is no part of compiling)

    with tempfile.TemporaryDirectory() as folder:
        compiled, first = ROWS[name](folder)
        used = time.process_time()
        phases = compiled()
        used = time.process_time() - used
        first()
    return {"phases": phases, "processor": used, "first": time.time() - began}


Row = tuple[Callable[[], dict[str, float]], Callable[[], object]]
"""What compiles, returning the seconds of each phase; and what runs for the first time."""


def ppo(folder: str) -> Row:
    """Proximal policy optimisation in 32 environments, of 250 steps each."""
    import numpy as np

    import polyrhythm as pr
    from polyrhythm import rl

    source = rl.Arrays(rl.Synthetic((8,), 100, 4), 32)
    model = rl.ActorCritic(source.observations, source.actions, (64, 64), np.random.default_rng(0))
    training = rl.ppo(source, model, rl.PPOSettings(steps=250))
    made: list[pr.Program] = []

    def compiled() -> dict[str, float]:
        made.append(pr.compile(training.outputs, bounds=training.bounds))
        return made[0].compiled.seconds

    return compiled, lambda: made[0](bounds={training.iterations: 1})


def decoder(layers: int) -> Callable[[str], Row]:
    """A random model of the shape of Llama; its first result is the first token after a prompt."""

    def row(folder: str) -> Row:
        from polyrhythm import llm
        from polyrhythm.llm.patterns import causal
        from polyrhythm.llm.programs import generating
        from polyrhythm.llm.sampling import GREEDY

        model = llm.load(llm.write_random(folder, num_hidden_layers=layers, eos_token_id=2))

        def compiled() -> dict[str, float]:
            return generating(model.config, 1, GREEDY, causal, "jax").program.compiled.seconds

        return compiled, lambda: model.generate("what is said here is of no matter", max_new_tokens=1)

    return row


ROWS = {"ppo": ppo, "decoder of 28 layers": decoder(28), "decoder of 64 layers": decoder(64)}

if __name__ == "__main__":
    main()
