"""`polyrhythm launch -n 4 script.py`: several processes of a script on this machine, started again if one dies.

A process that dies leaves the others waiting in a collective, where Python cannot reach them; JAX ends them after its
heartbeat. So recovery is a matter of whoever started them: here all are ended and started anew, and a script that calls
its program with `checkpoint=` goes on from the last checkpoint. On a cluster the same is done by what starts processes
there (`docs/devices.md`).
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

ADDRESS, COUNT, NUMBER = "POLYRHYTHM_COORDINATOR", "POLYRHYTHM_PROCESSES", "POLYRHYTHM_PROCESS"

HEARTBEAT = 10
"""Seconds after which a process that says nothing is taken to be dead."""


def launch(script: str, arguments: Sequence[str], processes: int, restarts: int) -> int:
    """Run a script in several processes until all have ended well; the exit code."""
    for attempt in range(restarts + 1):
        code = _once(script, arguments, processes)
        if code == 0:
            return 0
        left = restarts - attempt
        then = f"starting all anew, {left - 1} more times" if left else "giving up"
        print(f"polyrhythm: a process ended with {_named(code)}; {then}", file=sys.stderr, flush=True)
    return code


def _named(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _once(script: str, arguments: Sequence[str], processes: int) -> int:
    """Start all processes, and end all when the first one fails; its exit code."""
    address = f"localhost:{_free_port()}"
    command = [sys.executable, "-m", "polyrhythm.runtime.launching", script, *arguments]
    running = [
        subprocess.Popen(command, env={**os.environ, ADDRESS: address, COUNT: str(processes), NUMBER: str(number)})
        for number in range(processes)
    ]
    try:
        while True:
            codes = [process.poll() for process in running]
            failed = [code for code in codes if code]
            if failed:
                return failed[0]
            if all(code == 0 for code in codes):
                return 0
            time.sleep(0.05)
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


def run_child() -> None:
    """One of the processes: connect to the others, then run the script as if it had been started alone."""
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    count, number = int(os.environ[COUNT]), int(os.environ[NUMBER])
    if count > 1:
        jax.distributed.initialize(os.environ[ADDRESS], count, number, heartbeat_timeout_seconds=HEARTBEAT)
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    run_child()
