"""Processes of tests that run a script on JAX, forked from one that has JAX and this package imported, not used.

Importing them takes most of what such a process takes. Everything else is as in a new interpreter: the environment,
the arguments, `__main__`, the end. What depends on how an interpreter starts, as on `PYTHONHASHSEED`, needs a new one.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

SERVER = """
import json, os, sys, types
import jax, polyrhythm, polyrhythm.compiler.backends.jax.backend, polyrhythm.oracle

for line in sys.stdin:
    text, arguments, environment, said = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    for number, name in ((0, os.devnull), (1, said + "/out"), (2, said + "/err")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, main = arguments, types.ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(text, arguments[0], "exec"), vars(main))
    break
"""


@lru_cache
def _server() -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=pipe, stdout=pipe, text=True)
    atexit.register(server.communicate)  # which ends it
    return server


def forked(
    text: str, *arguments: str, environment: Mapping[str, str] | None = None, name: str = "<string>"
) -> subprocess.CompletedProcess[str]:
    """A script that was run with some arguments, under a name, and with some variables in its environment."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as said:
        asked = [name, *arguments]
        print(json.dumps([text, asked, {**os.environ, **(environment or {})}, said]), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        out, err = (Path(said, one).read_text(encoding="utf-8") for one in ("out", "err"))
        return subprocess.CompletedProcess(asked, code, out, err)


def output_of(text: str, *arguments: str, environment: Mapping[str, str] | None = None, name: str = "<string>") -> str:
    """What a script prints that is run so; its failure is an error."""
    ran = forked(text, *arguments, environment=environment, name=name)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
