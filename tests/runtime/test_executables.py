"""Compiled programs that a second process finds, neither traced nor compiled, if they are the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.children import output_of

SCRIPT = """
import json, os, sys, tempfile
import numpy as np
import polyrhythm as pr
from polyrhythm.compiler.backends.jax.run import executables
from polyrhythm.compiler.backends.jax.trace import spilled
from polyrhythm.runtime import spilling

executables.LEAST = spilling.LEAST = 0
factor, way, weights = float(sys.argv[1]), sys.argv[2], {}
t, T = pr.dim("t")
x = pr.input("x", (4,), (t,))
y = pr.recurrent((4,), (t,))
y[0] = x[0]
y[t + 1] = pr.tanh(y @ pr.constant(np.full((4, 4), factor, "float32"))) + x[t + 1]
if way == "codes":
    weights = {"codes": np.ones((4, 16), "int8"), "scales": np.full((4, 1), 0.5, "float16")}
    w = pr.dequantize(*(pr.input(name, value.shape, (), value.dtype) for name, value in weights.items()))
    y = pr.einsum("i,oi->o", pr.concat([y, y, y, y]), w)
if way.startswith("files"):
    z = pr.recurrent((4,), (t,))
    z[T - 1] = y[T - 1]
    z[t - 1] = 0.5 * z + y[t - 1]
    y = z
    spilled.check_available()  # another program with files may have made them known before
    spilling.chosen = lambda loops, bounds, compiles: spilling.candidates(loops, bounds)
    more = [os.open(os.devnull, os.O_RDONLY) for _ in range(int(way.partition(" ")[2] or 0))]
limit = pr.Budget("1GB", os.environ["POLYRHYTHM_CACHE"]) if way.startswith("files") else None
program = pr.compile(y, memory_budget=limit)
given = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
if way == "stream":
    found = np.stack([np.asarray(step) for step in program.stream(over=t, x=iter(given), bounds={T: 20})])
else:
    found = np.asarray(program(x=given, **weights))
np.testing.assert_allclose(found, pr.evaluate(y, {"x": given, **weights}), atol=1e-5)
print(json.dumps([[c.reason for c in program.stats.compilations], found.tolist()]))
"""


def run(cache: Path | str, factor: float = 0.3, way: str = "call", **settings: str) -> tuple[list[str], Any]:
    environment = {"POLYRHYTHM_CACHE": str(cache), **settings}
    reasons, found = json.loads(output_of(SCRIPT, str(factor), way, environment=environment))
    return reasons, found


def kept(reasons: list[str]) -> list[bool]:
    return [reason.endswith("as an earlier process compiled it") for reason in reasons]


@pytest.mark.parametrize("way", ["call", "stream", "codes"])
def test_a_second_process_compiles_nothing(tmp_path: Path, way: str) -> None:
    first, expected = run(tmp_path, way=way)
    assert not any(kept(first))
    second, found = run(tmp_path, way=way)
    assert all(kept(second))
    assert len(second) == len(first)
    assert found == expected


def test_programs_with_files_are_compiled_anew(tmp_path: Path) -> None:
    """The number of an open file is in them, and another file may have it in another process."""
    _, expected = run(tmp_path, way="files")
    reasons, found = run(tmp_path, way="files 3")
    assert found == expected
    assert not any(kept(reasons))


def test_other_programs_and_other_settings_are_not_found(tmp_path: Path) -> None:
    run(tmp_path)
    assert not any(kept(run(tmp_path, factor=0.31)[0]))  # a constant of another value
    assert not any(kept(run(tmp_path, XLA_FLAGS="--xla_cpu_multi_thread_eigen=false")[0]))
    assert not any(kept(run("")[0]))  # nothing is kept at all
    assert all(kept(run(tmp_path)[0]))


def test_files_that_are_damaged_are_made_anew(tmp_path: Path) -> None:
    _, expected = run(tmp_path)
    files = list((tmp_path / "executables").iterdir())
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[:100])
    reasons, found = run(tmp_path)
    assert not any(kept(reasons))
    assert found == expected
    assert all(kept(run(tmp_path)[0]))


def test_files_that_others_may_have_written_are_not_opened(tmp_path: Path) -> None:
    """What is unpickled may run anything."""
    run(tmp_path)
    programs = [path for path in (tmp_path / "executables").iterdir() if not path.suffix]
    assert programs
    for path in programs:
        path.chmod(0o666)
    assert not any(kept(run(tmp_path)[0]))
    mark = tmp_path / "mark"
    for path in programs:
        path.chmod(0o600)
        path.write_bytes(f"cbuiltins\nopen\n(V{mark}\nVw\ntR.".encode())  # a pickle that writes a file
    assert not any(kept(run(tmp_path)[0]))
    assert not mark.exists()


FREED = """
import numpy as np
import polyrhythm as pr
from polyrhythm.compiler.backends.jax.run import executables

def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) / 1e3

executables.LEAST = 0
t, T = pr.dim("t")
program = pr.compile((pr.input("x", (), (t,)) * 2)[0:T])
parts = [bytes(1000) for _ in range(200_000)]
last = bytes(1000)  # what lies above keeps the rest from being given back
del parts
before = resident()
program(x=np.ones(5, "float32"))
print(before - resident())
"""


def test_memory_is_given_back_after_compiling() -> None:
    made = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    assert float(made.stdout) > 100, "megabytes"
