"""Processes that take turns: what each does is compared under the same load, and each has a memory of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.rows import Entry, own_peak_mb

Answer = dict[str, Any]


class Turns:
    """A process that answers with a line of JSON when it is ready, and another for each block it is told to run.

    It is started as `python -m MODULE --child WHAT`, and runs `answer` there.
    """

    def __init__(self, module: str, what: Answer) -> None:
        # What an earlier run has compiled would hide the time of compiling.
        environment = {**os.environ, "POLYRHYTHM_CACHE": ""}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it is open as long as the process runs)
        command = [sys.executable, "-m", module, "--child", json.dumps(what)]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors, "text": True}
        self._process = subprocess.Popen(command, env=environment, **pipes)
        self.ready = self._answer()

    @property
    def failed(self) -> bool:
        """It says nothing any more; `ready` then has the reason."""
        return "failed" in self.ready

    def block(self, iterations: int) -> Answer:
        """Seconds of the clock and of the processor for each iteration."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{iterations}\n")
        self._process.stdin.flush()
        found = self._answer()
        if "failed" in found:
            self.ready = found
        return found

    def _answer(self) -> Answer:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        self._errors.seek(0)
        return {"failed": (self._errors.read().strip().splitlines() or ["no message"])[-1][:300]}

    def end(self) -> None:
        """It has nothing more to do."""
        with contextlib.suppress(OSError):
            self._process.communicate(timeout=10)
        self._process.kill()
        self._process.wait()


def answer(start: Callable[[], Callable[[int], Any]], warm: Callable[[Any], Entry] | None = None) -> None:
    """What a child does: start, make one iteration, and then blocks of as many as it is told."""
    began = time.perf_counter()
    run = start()
    run(1)
    first = time.perf_counter() - began
    facts = {} if warm is None else warm(run)
    seconds = _timed(run, 1)["seconds"]
    print(json.dumps({"first_s": first, "seconds": seconds, **facts}), flush=True)
    for line in sys.stdin:
        print(json.dumps({**_timed(run, int(line)), "peak_mb": own_peak_mb()}), flush=True)


def _timed(run: Callable[[int], Any], iterations: int) -> Answer:
    clock, processor = time.perf_counter(), time.process_time()
    run(iterations)
    seconds, busy = time.perf_counter() - clock, time.process_time() - processor
    return {"seconds": seconds / iterations, "processor": busy / iterations}
