"""For which platform a program is being lowered: some forms are faster on a CPU and slower, or wrong, elsewhere.

On a CPU: products of few rows one by one, transposes before tall products, barriers made of loops that never run, sorts
packed into 64 bits. An accelerator gets the plain operations, for which its compiler has the kernels, and no loop whose
condition the host would have to read back. There products of float32 have the precision of float32 unless the user
wants otherwise; a GPU would take TensorFloat-32 and a TPU bfloat16. A module for several platforms is lowered for the
most general one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

import jax

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
