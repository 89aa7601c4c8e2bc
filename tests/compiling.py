"""How tests, fuzzing and drills compile: XLA makes simple code, and no program is kept for other processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

SIMPLE = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
"""XLA generates code without MLIR and LLVM does not optimise it, which takes a fifth of the time."""


def simple_code() -> None:
    """From now on XLA generates simple code. Its passes, which change the program, run as ever."""
    os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *SIMPLE)).strip()


def keep_nothing() -> None:
    """From now on this process compiles each program itself.

    Tests change parts of the compiler in memory, and the digest under which a program is kept covers files only: a
    process with a change would find what one without it has made, and leave wrong programs for others.
    """
    from polyrhythm.compiler.backends import kept

    kept.digest = lambda value: None


def share_contexts() -> None:
    """Let JAX lower many programs in one context of MLIR: making one takes longer than compiling a small program."""
    mlir: Any = sys.modules.get("jax._src.interpreters.mlir")
    if mlir is not None and mlir.make_ir_context is not context:
        _MAKERS.append(mlir.make_ir_context)
        mlir.make_ir_context = context


_MAKERS: list[Callable[[], object]] = []


@lru_cache(1)
def context() -> object:
    """The context of MLIR that programs share until its cache is cleared."""
    return _MAKERS[0]()
