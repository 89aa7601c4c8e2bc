"""An agent on a mesh: acting and learning are spread, and only gradients and figures travel."""

from typing import Any

import jax
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import rl
from polyrhythm.compiler.backends.jax.run.collectives import collectives

DEVICES = jax.device_count()


def _training(mesh: Any, count: int = 16) -> rl.Training:
    carts = rl.Arrays(rl.CartPole(), count)
    model = rl.ActorCritic(carts.observations, carts.actions, (8,), np.random.default_rng(0))
    return rl.ppo(carts, model, rl.PPOSettings(steps=8, epochs=2, minibatches=2), mesh=mesh)


def case_ppo() -> dict[str, int]:
    mesh = jax.make_mesh((DEVICES,), ("data",))
    training = _training(mesh)
    plain = pr.compile(training.outputs, bounds=training.bounds)
    program = pr.compile(training.outputs, bounds=training.bounds, mesh=training.mesh)
    expected, found = (p(bounds={training.iterations: 3}, seed=1) for p in (plain, program))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-5, equal_nan=True)
    texts = [one.as_text() for one in program.backend.executor.programs.values()]
    talk = [one for text in texts for one in collectives(text, DEVICES)]
    assert all(one.kind == "all-reduce" for one in talk), talk
    # All gradients of an update travel together; beside them only what a mean of the minibatch needs.
    size = 4 * sum(np.asarray(weight).size for weight in found["weights"].values())
    last = min((one.loops for one in talk), default=0)  # the last update of an iteration is not in the inner loop
    for loops in (last, last + 1) if DEVICES > 1 else ():
        each = [one for one in talk if one.loops == loops]
        (gradients,) = [one for one in each if one.bytes >= size]
        assert gradients.bytes <= size + 4 * 8, gradients
        assert sum(one.bytes for one in each if one is not gradients) <= 4 * 8, each
    assert {one.loops for one in talk} <= {last, last + 1}, talk
    kinds: dict[str, int] = {}
    for one in talk:
        kinds[one.kind] = kinds.get(one.kind, 0) + 1
    return kinds


def case_refusals() -> dict[str, int]:
    mesh = jax.make_mesh((DEVICES,), ("data",))
    with pytest.raises(pr.errors.DeclarationError):
        _training(mesh, DEVICES * 2 + 1)
    return {}
