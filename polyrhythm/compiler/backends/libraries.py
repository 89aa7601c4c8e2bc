"""Which opaque functions a backend can run: those of its own library."""

from __future__ import annotations

from polyrhythm.compiler.loops.ir import LoopProgram, blocks_of
from polyrhythm.errors import UnsupportedError


def check_libraries(program: LoopProgram, backend: str) -> None:
    """Refuse a program with functions of another library than the backend's."""
    for block in blocks_of(program.body):
        for compute in block.body:
            if compute.op == "opaque" and compute.attributes["function"].library != backend:
                function = compute.attributes["function"]
                raise UnsupportedError(
                    f"the {function.library} function {function} cannot run on the backend {backend!r}",
                    fix=f"compile with backend={function.library!r}, or write it with operations of this language",
                    at=compute.at,
                )
