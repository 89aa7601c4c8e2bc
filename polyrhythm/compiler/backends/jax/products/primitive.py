"""Operations of ours that XLA sees: what one becomes is decided when it is lowered.

By then all lanes of the loops that are done at once have been added to its operands. On one CPU it may call a kernel of
ours; elsewhere XLA knows its own operations only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Array = jax.Array


def primitive(
    name: str,
    ours: Callable[..., Array],
    by_xla: Callable[..., Array],
    shape: Callable[..., Any],
    more: Collection[int] = (0,),
    linear: int = 1,
) -> Primitive:
    """An operation that is linear in each of its first operands; lanes of the operands `more` are more rows of them.

    `ours` is what it becomes where our kernels can be called, and when it is run by itself.
    """
    made = Primitive(name)

    def mapped(values: Sequence[Array], lanes: Sequence[int | None], **how: Any) -> tuple[Array, int]:
        if all(lane is None for at, lane in enumerate(lanes) if at not in more):
            size = next(v.shape[lane] for v, lane in zip(values, lanes, strict=True) if lane is not None)
            rows = list(values)
            for at in more:
                lane, value = lanes[at], values[at]
                spread = jnp.broadcast_to(value, (size, *value.shape)) if lane is None else value
                rows[at] = jnp.moveaxis(spread, lane or 0, 0)
            return made.bind(*rows, **how), 0
        return jax.vmap(lambda *given: by_xla(*given, **how), in_axes=tuple(lanes))(*values), 0

    def differentiated(values: Sequence[Array], tangents: Sequence[Any], **how: Any) -> tuple[Array, Any]:
        parts = [
            by_xla(*values[:at], tangent, *values[at + 1 :], **how)
            for at, tangent in enumerate(tangents[:linear])
            if type(tangent) is not ad.Zero
        ]
        result = made.bind(*values, **how)
        return result, sum(parts[1:], parts[0]) if parts else jnp.zeros_like(result)

    lowered_by_xla = mlir.lower_fun(by_xla, multiple_results=False)
    lowered_as_ours = mlir.lower_fun(ours, multiple_results=False)

    def lowered(context: Any, *operands: Any, **how: Any) -> Any:
        return (lowered_as_ours if _runs_alone(context) else lowered_by_xla)(context, *operands, **how)

    ad.primitive_jvps[made] = differentiated
    made.def_impl(ours)
    made.def_abstract_eval(shape)
    batching.primitive_batchers[made] = mapped
    mlir.register_lowering(made, lowered_by_xla)
    mlir.register_lowering(made, lowered, platform="cpu")
    return made


def _runs_alone(context: Any) -> bool:
    """Whether what is lowered stays in this process on one device."""
    module = context.module_context
    several = getattr(module.axis_context, "num_devices", 1) not in (None, 1)
    return not (module.lowering_parameters.for_export or several)
