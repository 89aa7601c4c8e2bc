"""Loops of small steps are one kernel each on a CPU, whatever their operations, and values are the oracle's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.run import small_loops
from polyrhythm.compiler.backends.jax.run.small_loops import OPTION, compile_lowered

CALL = "xla_cpu_small_call"
"""The attribute that XLA gives to the call of a loop that it makes a kernel of."""

t, T = pr.dim("t")


def many_operations() -> Any:
    """A loop of many operations on few numbers: more than a kilobyte a step."""
    x, y = jnp.ones(64), jnp.ones(64)

    def step(_: int, state: tuple[Any, Any]) -> tuple[Any, Any]:
        a, b = state
        return jnp.tanh(a) + b.sum(), jnp.flip(b) * a.max()

    return jax.jit(lambda a, b: jax.lax.fori_loop(0, 10, step, (a, b))).lower(x, y)


def test_the_limit_is_that_of_a_compilation() -> None:
    """JAX's own programs, before and after, keep XLA's limit."""
    assert CALL not in many_operations().compile().as_text()
    assert CALL in compile_lowered(many_operations()).as_text()
    assert CALL not in many_operations().compile().as_text()
    assert CALL not in compile_lowered(many_operations(), limit=1).as_text()


def test_a_limit_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", f"--xla_backend_extra_options={OPTION}=1024")
    assert CALL not in compile_lowered(many_operations()).as_text()


def test_without_the_options_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of JAX that makes its options elsewhere compiles as ever."""
    monkeypatch.setattr(small_loops, "_can_be_told", lambda: False)
    assert CALL not in compile_lowered(many_operations()).as_text()


def test_what_xla_refuses_is_compiled_with_its_own_limit() -> None:
    class Refused:
        asked = 0

        def compile(self) -> str:
            Refused.asked += 1
            if small_loops._limit.get():
                raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: a library inside of a kernel")
            return "made"

    assert compile_lowered(Refused()) == "made"
    assert Refused.asked == 2


def filters() -> tuple[Any, dict[str, Any]]:
    """A cascade of filters of second order, and its gradient."""
    x, c = pr.input("x", (), (t,)), pr.input("c", (3, 5))
    v: Any = x
    for section in range(3):
        b0, b1, b2, a1, a2 = (c.axes[section, k] for k in range(5))
        near, far = pr.recurrent((), (t,)), pr.recurrent((), (t,))
        y = b0 * v + near
        near[0], far[0] = 0.0, 0.0
        near[t + 1] = b1 * v - a1 * y + far
        far[t + 1] = b2 * v - a2 * y
        v = y
    loss = (v * v)[0:T].mean(0)
    random = np.random.default_rng(0)
    given = {"x": random.normal(size=9), "c": random.normal(size=(3, 5)) * 0.3}
    return {"loss": loss, "c": pr.grad(loss, c)}, given


def orbits() -> tuple[Any, dict[str, Any]]:
    """Bodies that attract each other, and the gradient by where they start."""
    start, force = pr.input("start", (5, 2)), pr.input("force", (), (t,))
    x, v = pr.recurrent((5, 2), (t,)), pr.recurrent((5, 2), (t,))
    away = x.unsqueeze(0) - x.unsqueeze(1)
    near = (away * away).sum(2) + 0.1
    x[0], v[0] = start, pr.zeros((5, 2))
    v[t + 1] = v + force * (away / near.unsqueeze(2)).sum(1)
    x[t + 1] = x + 0.1 * v[t + 1]
    loss = (x[T - 1] * x[T - 1]).sum((0, 1))
    random = np.random.default_rng(1)
    given = {"start": random.normal(size=(5, 2)), "force": random.normal(size=6) * 0.1}
    return {"loss": loss, "start": pr.grad(loss, start)}, given


def ranks() -> tuple[Any, dict[str, Any]]:
    """A sort, which no kernel of a loop has in it, beside a table of comparisons and a cumulative maximum."""
    x = pr.input("x", (40,), (t,))
    state = pr.recurrent((40,), (t,))
    state[0] = x[0]
    table = (state.unsqueeze(0) > x[t + 1].unsqueeze(1)).sum((0, 1)).astype("float32")
    state[t + 1] = pr.sort(state, 0) * 0.5 + pr.cummax(x[t + 1], 0) + table * 1e-3
    given = {"x": np.random.default_rng(2).normal(size=(7, 40))}
    return {"all": state, "sum": state[0:T].sum((0, 1))}, given


@pytest.mark.parametrize(("make", "kernel"), [(filters, True), (orbits, True), (ranks, False)])
def test_values(make: Any, kernel: bool) -> None:
    outputs, given = make()
    given = {name: array.astype("float32") for name, array in given.items()}
    want = pr.evaluate(outputs, given)
    program = pr.compile(outputs)
    found = program(**given)
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    assert kernel == any(CALL in made.as_text() for made in program.backend.executor.programs.values())
