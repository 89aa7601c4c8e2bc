"""Run the cases of a module in a process with some number of host devices.

A case is a function named `case_...` that asserts what it claims and returns something that JSON can hold. One process
runs all cases of a module, since starting JAX takes longer than most of them; a failure of one is reported as its own.
"""

import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def run_cases(module: str, devices: int, names: tuple[str, ...] = (), timeout: float = 600) -> dict[str, Any]:
    """What each case of a module returned, or the text of its failure as `{"failed": ...}`."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.devices.running", module, *names]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(module: str, *names: str) -> None:
    """Run cases here, and print what they returned."""
    from tests.devices import mesh_programs

    home: Any = importlib.import_module(module)
    cases = {n: f for n, f in vars(home).items() if n.startswith("case_")}
    results: dict[str, Any] = {}
    for name in names or cases:
        home.RANDOM = mesh_programs.RANDOM = np.random.default_rng(0)
        started = time.perf_counter()
        try:
            results[name] = cases[name]()
        except (Exception, pytest.fail.Exception):
            results[name] = {"failed": traceback.format_exc()}
        print(f"{name}: {time.perf_counter() - started:.1f} s", file=sys.stderr)
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
