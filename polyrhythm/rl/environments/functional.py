"""Environments written as pure functions of JAX, such as gymnax's and Brax's, compiled into the program.

One adapter for all: a function that begins an episode by a key, and one that makes a step of a state. A state may be
any pytree. What the program carries are its leaves, the observation, and a key for each environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from polyrhythm.errors import DeclarationError
from polyrhythm.language.foreign import jax_function
from polyrhythm.language.functions import randint
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.rl.environments.base import State
from polyrhythm.rl.spaces import Box, Discrete, Space

Reset = Callable[[Any], tuple[Any, Any]]
"""Of a key: a state and what is seen of it."""
Step = Callable[[Any, Any, Any], tuple[Any, Any, Any, Any]]
"""Of a key, a state and an action: the state after it, what is seen, the reward, and whether the episode ended."""


class Functional:
    """An environment of two functions of JAX, for one environment each.

    >>> import jax.numpy as jnp
    >>> import polyrhythm as pr
    >>> reset = lambda key: (jnp.zeros(()), jnp.zeros((1,)))
    >>> step = lambda key, state, action: (state + action, (state + action)[None], state, state >= 2)
    >>> counter = Functional(reset, step, Discrete(2), limit=10)
    >>> state, reward, terminated = counter.step(counter.reset(3), pr.ones((3,), "int32"))
    >>> pr.evaluate(counter.observe(state)).ravel().tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, reset: Reset, step: Step, actions: Space, limit: int) -> None:
        import jax

        self.actions, self.limit = actions, limit
        state, seen = jax.eval_shape(reset, jax.ShapeDtypeStruct((2,), np.uint32))
        if not hasattr(seen, "shape"):
            raise DeclarationError("what is seen is not one array", fix="join its parts into one array")
        self.observations = Box(tuple(seen.shape), dtype=str(seen.dtype))
        leaves, self._structure = jax.tree_util.tree_flatten(state)
        self._kinds = [(tuple(leaf.shape), leaf.dtype) for leaf in leaves]
        self._reset, self._step = reset, step

    def reset(self, count: int, dims: Sequence[Dim] = (), name: str | None = None) -> State:
        """New episodes, each by a key of its own."""
        import jax

        keys = randint((count, 2), 0, 2**31 - 1, dims=dims, dtype="uint32", name=name)

        def begin(keys: Any) -> tuple[Any, ...]:
            state, seen = jax.vmap(self._reset)(keys)
            return (keys, seen, *self._leaves(state))

        return self._named(jax_function(begin, [keys], name="reset"))

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """One step of all; each key gives the next."""
        import jax
        from jax.numpy import asarray

        def one(key: Any, leaves: Any, action: Any) -> tuple[Any, ...]:
            now, later = jax.random.split(key)
            before = jax.tree_util.tree_unflatten(self._structure, leaves)
            after, seen, reward, terminated = self._step(now, before, action)
            return later, seen, *self._leaves(after), asarray(reward, np.float32), asarray(terminated, bool)

        leaves = [state[f"leaf {number}"] for number in range(len(self._kinds))]
        *after, reward, terminated = jax_function(jax.vmap(one), [state["key"], leaves, action], name="step")
        return self._named(after), reward, terminated

    def observe(self, state: State) -> Tensor:
        """What the functions said."""
        return state["seen"]

    def _leaves(self, state: Any) -> list[Any]:
        """In the dtypes that a new episode has."""
        import jax

        leaves = jax.tree_util.tree_leaves(state)
        return [jax.numpy.asarray(leaf, kind) for leaf, (_, kind) in zip(leaves, self._kinds, strict=True)]

    def _named(self, parts: Sequence[Tensor]) -> State:
        key, seen, *leaves = parts
        return {"key": key, "seen": seen} | {f"leaf {number}": leaf for number, leaf in enumerate(leaves)}


def gymnax(environment: Any, params: Any = None) -> Functional:
    """An environment of gymnax. Its limit of time truncates here; by itself it does not tell that from an end.

    >>> import gymnax as library
    >>> cart = gymnax(library.make("CartPole-v1")[0])
    >>> cart.observations.shape, cart.actions, cart.limit
    ((4,), Discrete(n=2), 500)
    """
    params = environment.default_params if params is None else params
    limit = int(getattr(params, "max_steps_in_episode", 2**30))
    if hasattr(params, "max_steps_in_episode"):
        params = params.replace(max_steps_in_episode=2**30)

    def reset(key: Any) -> tuple[Any, Any]:
        seen, state = environment.reset_env(key, params)
        return state, seen

    def step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        seen, state, reward, done, _ = environment.step_env(key, state, action, params)
        return state, seen, reward, done

    space = environment.action_space(params)
    if hasattr(space, "n"):
        return Functional(reset, step, Discrete(int(space.n)), limit)
    shape = tuple(space.shape) or (1,)
    low, high = (
        tuple(np.broadcast_to(np.asarray(side, float), shape).ravel().tolist()) for side in (space.low, space.high)
    )
    return Functional(reset, step, Box(shape, low, high), limit)


def brax(environment: Any, limit: int = 1000) -> Functional:
    """An environment of Brax, whose actions are from -1 to 1; the limit of time is a wrapper's there."""

    def reset(key: Any) -> tuple[Any, Any]:
        state = environment.reset(key)
        return state, state.obs

    def step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        after = environment.step(state, action)
        return after, after.obs, after.reward, after.done

    return Functional(reset, step, Box((int(environment.action_size),), -1.0, 1.0), limit)
