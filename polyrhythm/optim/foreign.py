"""Transformations of optax as optimisers: one opaque JAX function per iteration, its state as recurrences.

The transformation sees all parameters of an iteration at once; what it keeps becomes tensors over the iterations like
those of our own optimisers. So it runs inside the compiled program, and only on the JAX backend.
"""

from __future__ import annotations

from typing import Any

from polyrhythm.errors import DeclarationError
from polyrhythm.language.foreign import jax_function
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.optim.states import over


def optax(i: Dim, params: Any, gradients: Any, transformation: Any) -> Any:
    """Steps as a transformation of optax makes them; returns its state, a tree of tensors over i.

    Parameters with further dims need a fixed number of steps along them, since the transformation sees them whole.

    >>> import optax
    >>> import polyrhythm as pr
    >>> from polyrhythm import optim
    >>> i, I = pr.dim("i")
    >>> p = optim.over(i, pr.constant(8.0))
    >>> state = optim.optax(i, p, pr.grad(0.5 * p * p, p), optax.sgd(0.5))
    >>> pr.compile(p)(bounds={I: 3}).tolist()
    [8.0, 4.0, 2.0, 1.0]
    """
    try:
        import jax
        from jax.tree_util import tree_map
        from optax import apply_updates  # type: ignore[import-untyped]
    except ImportError as error:
        raise DeclarationError(f"optax and JAX are needed: {error}", fix="pip install 'polyrhythm[optax]'") from error
    keys: dict[int, Any] = {}  # which leaves of the state are random keys, and of which kind

    def stored(state: Any) -> Any:
        """A state without keys, which programs do not have: their bits instead."""
        leaves, structure = jax.tree_util.tree_flatten(state)
        for place, leaf in enumerate(leaves):
            if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                keys[place] = jax.random.key_impl(leaf)
                leaves[place] = jax.random.key_data(leaf)
        return jax.tree_util.tree_unflatten(structure, leaves)

    def restored(state: Any) -> Any:
        leaves, structure = jax.tree_util.tree_flatten(state)
        for place, kind in keys.items():
            leaves[place] = jax.random.wrap_key_data(leaves[place], impl=kind)
        return jax.tree_util.tree_unflatten(structure, leaves)

    def init(now: Any) -> Any:
        return stored(transformation.init(now))

    def step(gradients: Any, state: Any, now: Any) -> tuple[Any, Any]:
        updates, after = transformation.update(gradients, restored(state), now)
        return apply_updates(now, updates), stored(after)

    def define(tensor: Tensor, value: Tensor) -> None:
        others = _others(tensor, i)
        tensor[i + 1] = value.axes[tuple(others)] if others else value

    begun = tree_map(lambda p: _whole(p[{i: 0}], i), params)
    state = tree_map(lambda leaf: over(i, leaf), jax_function(init, [begun], name="optax_init"))
    trees = [tree_map(lambda x: _whole(x, i), tree) for tree in (gradients, state, params)]
    new_params, new_state = jax_function(step, trees, name="optax_update")
    tree_map(define, params, new_params)
    tree_map(define, state, new_state)
    return state


def _others(tensor: Tensor, i: Dim) -> list[Dim]:
    return [dim for dim in tensor.dims if dim.symbol is not i.symbol]


def _whole(tensor: Tensor, i: Dim) -> Tensor:
    """All of a tensor at an iteration: its other dims become axes."""
    others = _others(tensor, i)
    return tensor[dict.fromkeys(others, slice(None))] if others else tensor
