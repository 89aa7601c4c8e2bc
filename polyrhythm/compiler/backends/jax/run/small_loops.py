"""Compile what is lowered, so that loops of small steps are one kernel each on a CPU.

XLA starts the operations of a loop one by one, 20 to 200 ns each, unless a step touches less than a kilobyte and has no
products: then the loop is one function. The gradient of a small recurrence is often just above. Up to 16 KB, some
thousand numbers a step, one function was never slower (`docs/decisions.md`).

The limit is an entry of an option that is a map, which `jax.jit(compiler_options=...)` cannot set. So it is appended to
the options that JAX hands to XLA, where they are made. Should a version of JAX make them elsewhere, the limit is XLA's
own and programs are slower, nothing else. A limit that the user has set by `XLA_FLAGS` stays.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import Any

import jax

BYTES = 1 << 14
"""What a step may touch at most for its loop to be one kernel."""

OPTION = "xla_cpu_small_while_loop_byte_threshold"
EXTRA_OPTIONS, DEBUG_OPTIONS, BUILD_OPTIONS = 500, 3, 3
"""The numbers of `xla_backend_extra_options` and of the messages around it, in the protocol buffers of XLA."""

_limit: ContextVar[int] = ContextVar("limit", default=0)


def compile_lowered(lowered: Any, limit: int = BYTES) -> Any:
    """What XLA makes of a lowered program; loops whose steps touch fewer bytes than `limit` are one kernel each.

    Where XLA refuses that, as it might an operation that calls a library, its own limit holds.
    """
    if jax.default_backend() != "cpu" or OPTION in os.environ.get("XLA_FLAGS", "") or not _can_be_told():
        return lowered.compile()
    token = _limit.set(limit)
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError:
        _limit.set(0)
        return lowered.compile()
    finally:
        _limit.reset(token)


@lru_cache(1)
def _can_be_told() -> bool:
    """Append to the options of later compilations what the limit says, if there are such options."""
    try:
        from jax._src import compiler

        made = compiler.get_compile_options
        kind = type(made(num_replicas=1, num_partitions=1))
        kind.ParseFromString(made(num_replicas=1, num_partitions=1).SerializeAsString())
    except (ImportError, AttributeError, TypeError, ValueError):
        return False
    compiler.get_compile_options = _with_limit(made)
    return True


def _with_limit(made: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(made)
    def options(*arguments: Any, **named: Any) -> Any:
        found, limit = made(*arguments, **named), _limit.get()
        return type(found).ParseFromString(found.SerializeAsString() + appended(limit)) if limit else found

    return options


def appended(limit: int) -> bytes:
    """The serialised options that set the limit. What is appended to a message is merged into it.

    >>> appended(4096)[-6:]
    b'\\x12\\x044096'
    """
    entry = _field(1, OPTION.encode()) + _field(2, str(limit).encode())
    return _field(BUILD_OPTIONS, _field(DEBUG_OPTIONS, _field(EXTRA_OPTIONS, entry)))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """A number as protocol buffers write it.

    >>> _varint(300)
    b'\\xac\\x02'
    """
    return bytes([number & 127 | 128]) + _varint(number >> 7) if number > 127 else bytes([number])
