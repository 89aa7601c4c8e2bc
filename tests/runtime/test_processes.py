"""Programs inside JAX's transformations, in forked processes, and pickled."""

from __future__ import annotations

import os
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.errors import UnsupportedError
from tests.runtime.kills import survive


def running_sum(backend: str) -> pr.Program:
    t, _ = pr.dim("t")
    x, p = pr.input("x", (), (t,)), pr.parameter("p", (), init=2.0)
    y = pr.recurrent((), (t,))
    y[0], y[t + 1] = x[0], y * p + x[t + 1]
    return pr.compile(y, backend=backend)


def test_a_first_call_inside_jit_leaves_no_tracers_behind() -> None:
    program = running_sum("jax")
    inside = jax.jit(lambda x: program(x=x))(jnp.ones(5))
    np.testing.assert_allclose(program(x=np.ones(5, "float32")), inside)
    np.testing.assert_allclose(jax.jit(lambda x: program(x=x) * 2)(jnp.ones(5)), 2 * inside)
    assert program(x=jnp.ones(7)).shape == (7,)


def test_vmap_over_seeds() -> None:
    t, _ = pr.dim("t")
    program = pr.compile(pr.input("x", (), (t,)) + pr.normal((), dims=(t,)))
    found = jax.vmap(lambda seed: program(x=jnp.ones(3), seed=seed))(jnp.arange(4))
    expected = np.stack([program(x=np.ones(3, "float32"), seed=seed) for seed in range(4)])
    np.testing.assert_array_equal(found, expected)


def test_a_program_cannot_be_pickled_and_says_what_to_do() -> None:
    with pytest.raises(UnsupportedError, match=r"program\.save"):
        pickle.dumps(running_sum("numpy"))


@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_forked_processes(backend: str) -> None:
    """On JAX, which would hang, an error says what to do; NumPy goes on."""
    program, x = running_sum(backend), np.ones(3, "float32")
    program(x=x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX and Python warn of forks beside threads
        child = os.fork()
    if child == 0:
        try:
            program(x=x)
            os._exit(1)
        except UnsupportedError as error:
            os._exit(2 if "spawn" in str(error) else 3)
        except BaseException:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (2 if backend == "jax" else 1)


@pytest.mark.slow
def test_runs_with_effects_survive_kills_at_random_moments() -> None:
    ended, killed, inside = survive(kills=6, seed=1)
    assert ended >= 1
    assert killed == 6
    assert inside >= 3
