"""What each of several processes runs: training and decoding on a mesh of all devices, results written by the first.

Arguments: a folder, what to do, and after how many checkpoints one process is to be killed (0 for never).
"""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import polyrhythm as pr
from polyrhythm import llm
from polyrhythm.rl import logs
from polyrhythm.runtime import processes, snapshots
from tests.devices import mesh_programs, rl_cases
from tests.devices.mesh_programs import decoding, training, training_data

ITERATIONS = 12


def data(rows: int) -> dict[str, Any]:
    mesh_programs.RANDOM = np.random.default_rng(0)
    return training_data(rows)


def train(folder: Path, kill: int) -> dict[str, Any]:
    """Training with checkpoints; weights are spread too, so that a checkpoint has parts."""
    outputs, b, _, i, I = training()
    program = pr.compile(outputs, mesh=mesh(), shard={b: "data", "w1": (None, "data")})
    if kill and processes.index() == processes.count() - 1 and not (folder / "killed").exists():
        write, seen = snapshots.write, []

        def dying(*arguments: Any) -> Any:
            seen.append(write(*arguments))
            if len(seen) == kill:
                (folder / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return seen[-1]

        vars(snapshots)["write"] = dying
    checkpoints = pr.Checkpoints(folder / "checkpoints", over=i, every=2)
    before = checkpoints.iterations
    found = program(**data(40), bounds={I: ITERATIONS}, checkpoint=checkpoints)
    return {"before": before, **{name: processes.whole(value).tolist() for name, value in found.items()}}


def resume(folder: Path, kill: int) -> dict[str, Any]:
    """The same from whatever checkpoint there is, after the last one has been taken away."""
    if processes.is_first():
        files = snapshots.found(folder / "checkpoints")
        for number, path in files.items():
            if number == ITERATIONS:
                snapshots.remove(path)
    processes.barrier("taken away")
    return train(folder, 0)


def decode(folder: Path, kill: int) -> dict[str, Any]:
    """Sequences spread over processes, from whole arrays and from rows of each process."""
    h, b, _, T, given = decoding()
    program = pr.compile(h, mesh=mesh(), shard={b: "data"})
    found = program(**given, bounds={T: 20})
    rows = given["start"].shape[0] // processes.count()
    own = given["start"][processes.index() * rows : (processes.index() + 1) * rows]
    where = jax.NamedSharding(mesh(), jax.P("data"))
    spread = jax.make_array_from_process_local_data(where, own)
    again = program(**{**given, "start": spread}, bounds={T: 20})
    assert not processes.is_elsewhere(found) or isinstance(found, jax.Array)
    return {"whole": processes.whole(found).tolist(), "local": processes.whole(again).tolist()}


def disagree(folder: Path, kill: int) -> dict[str, Any]:
    """One process has other inputs, then another seed, then another program; all of them log."""
    log = logs.Log(["return"], [logs.File(str(folder / "log.csv"))], lambda row: print(f"logged {row['iteration']}"))
    for number in range(3):
        log.note(np.array(number), np.array(0.5))
    outputs, b, _, _, I = training()
    texts = []
    for change in ("input", "seed", "program"):
        odd = processes.index() == processes.count() - 1
        given = data(40)
        if odd and change == "input":
            given["y"] = given["y"] + 1
        kept = {"losses": outputs["losses"]} if odd and change == "program" else outputs
        program = pr.compile(kept, mesh=mesh(), shard={b: "data"})
        try:
            program(**given, bounds={I: 3}, seed=int(odd and change == "seed"))
        except pr.errors.ShardingError as error:
            texts.append(error.what)
    return {"texts": texts}


def interrupt(folder: Path, kill: int) -> dict[str, Any]:
    """One process is asked to stop: all do at the same iteration, and the next run goes on from there."""
    outputs, b, _, i, I = training()
    program = pr.compile(outputs, mesh=mesh(), shard={b: "data", "w1": (None, "data")})
    looks = iter(range(100))
    checkpoints = pr.Checkpoints(
        folder / "stopped",
        over=i,
        every=4,
        stop=lambda: next(looks) == 2 and processes.index() == processes.count() - 1,
    )
    try:
        program(**data(40), bounds={I: ITERATIONS}, checkpoint=checkpoints)
        raise AssertionError("nothing was interrupted")
    except KeyboardInterrupt:
        processes.barrier("interrupted")
        before = checkpoints.iterations
    found = program(**data(40), bounds={I: ITERATIONS}, checkpoint=replace(checkpoints, stop=None))
    return {"before": before, **{name: processes.whole(value).tolist() for name, value in found.items()}}


def write(folder: Path, kill: int) -> dict[str, Any]:
    """A language model over all processes, by sequences and by heads; every process gets all texts."""
    by_sequence, by_head = (llm.load(folder / "model", mesh=mesh(axis)) for axis in ("data", "model"))
    texts, drawn = (by_sequence.generate(PROMPTS, 6, temperature=heat, seed=3) for heat in (0.0, 1.0))
    streamed = [[piece and piece.token for piece in step] for step in by_sequence.stream(PROMPTS, 4)]
    others = by_head.generate(PROMPTS, 6)
    tokens = [[text.tokens.tolist() for text in each] for each in (texts, drawn, others)]
    return {"tokens": tokens, "streamed": streamed, "logits": by_head.logits(PROMPTS[0]).tolist()}


def learn(folder: Path, kill: int) -> dict[str, Any]:
    """PPO with its environments over all processes, and the same program in each process alone."""
    made = rl_cases._training(mesh(), 4)
    alone = pr.compile(made.outputs, bounds=made.bounds)(bounds={made.iterations: 2}, seed=1)
    found = pr.compile(made.outputs, bounds=made.bounds, mesh=made.mesh)(bounds={made.iterations: 2}, seed=1)
    return {
        way: [processes.whole(leaf).tolist() for leaf in jax.tree.leaves(results)]
        for way, results in (("alone", alone), ("together", found))
    }


PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]


def mesh(axis: str = "data") -> Any:
    return jax.make_mesh((jax.device_count(),), (axis,), axis_types=(jax.sharding.AxisType.Auto,))


if __name__ == "__main__":
    where, what, kill = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    ways = {"train": train, "resume": resume, "decode": decode, "disagree": disagree}
    found = {**ways, "interrupt": interrupt, "write": write, "learn": learn}[what](where, kill)
    if processes.is_first():
        (where / f"{what}.json").write_text(json.dumps(found))
    print(f"process {processes.index()} of {processes.count()} is done")
