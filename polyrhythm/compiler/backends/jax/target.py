"""For which platform a program is being lowered: some forms are faster on a CPU and slower, or wrong, elsewhere.

On a CPU: products of few rows one by one, transposes before tall products, barriers made of loops that never run, sorts
packed into 64 bits, operations in an order that takes little memory. An accelerator gets the plain operations, for
which its compiler has the kernels, and no loop whose condition the host would have to read back. There products of
float32 have the precision of float32 unless the user wants otherwise; a GPU would take TensorFloat-32 and a TPU
bfloat16. A module for several platforms is lowered for the most general one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

import jax

IN_ORDER = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
"""How XLA orders operations on a CPU: so that little memory is in use, of which the next takes what the last one left.

By default it lets as many as it can run beside each other. The bodies of loops are small operations, and handing them
from thread to thread takes longer than they do; products and large elementwise operations use all threads anyway.
"""

_platforms: ContextVar[tuple[str, ...]] = ContextVar("platforms", default=())


def on_cpu() -> bool:
    """Whether what is traced now runs on a CPU.

    >>> with lowering_for(["cuda"]):
    ...     on_cpu()
    False
    """
    return all(platform == "cpu" for platform in _platforms.get() or (jax.default_backend(),))


def elsewhere() -> bool:
    """Whether what is traced now is for a platform that need not be here."""
    return bool(_platforms.get())


def compiler_options() -> dict[str, str]:
    """What XLA is told to do otherwise than by default when it compiles what is lowered now."""
    return dict(IN_ORDER) if on_cpu() else {}


@contextmanager
def lowering_for(platforms: Sequence[str] = (), precision: str = "float32") -> Iterator[None]:
    """Trace and lower for some platforms, by default the one that is here."""
    token = _platforms.set(tuple(platforms))
    try:
        with ExitStack() as stack:
            if not on_cpu() and precision != "default":
                stack.enter_context(jax.default_matmul_precision(precision))
            yield
    finally:
        _platforms.reset(token)
