"""Memory follows the objective: reductions over all steps of a loop are added up in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr

t, T = pr.dim("t")


def decay() -> pr.Tensor:
    """A recurrence of 64 elements."""
    y = pr.recurrent((64,), (t,))
    y[0] = pr.input("x", (64,))
    y[t + 1] = pr.tanh(y * 0.9 + 0.1)
    return y


def accumulated(program: pr.Program) -> int:
    return sum(note.by == "accumulate" for note in program.compiled.notes)


X = np.random.default_rng(0).normal(size=64).astype("float32")


def test_sums_means_and_extrema_of_a_loop_store_no_steps() -> None:
    y = decay()
    outputs = {"sum": y[0:T].sum(0), "mean": y[0:T].mean(0), "max": y[0:T].max(0), "all": y[0:T].sum()}
    program = pr.compile(outputs)
    assert program.memory.bytes({T: 100_000}) < 20_000
    assert program.memory.peak({T: 100_000}) == program.memory.peak({T: 1_000})
    for steps in (0, 1, 2, 7):
        want, found = pr.evaluate(outputs, {"x": X}, {T: steps}), program(x=X, bounds={T: steps})
        for name in outputs:
            np.testing.assert_allclose(found[name], want[name], rtol=1e-5, atol=1e-5, err_msg=f"{name} at {steps}")


@pytest.mark.parametrize("first", [0, 1, 2, 5])
def test_the_first_steps_may_be_left_out(first: int) -> None:
    """Also where there are fewer steps than that, so that nothing is summed."""
    y = decay()
    outputs = (
        {"sum": y[first:T].sum(0), "all but the last": y[first : T - 1].sum(0)} if first else {"sum": y[0:T].sum(0)}
    )
    program = pr.compile(outputs, backend="numpy")
    assert accumulated(program) == len(outputs)
    for steps in (0, 1, 2, 3, 7):
        want, found = pr.evaluate(outputs, {"x": X}, {T: steps}), program(x=X, bounds={T: steps})
        for name in outputs:
            np.testing.assert_allclose(found[name], want[name], rtol=1e-5, atol=1e-5, err_msg=f"{name} at {steps}")


def test_gradients_of_what_goes_back_are_added_up_on_the_way_forward() -> None:
    y = pr.recurrent((8,), (t,))
    x, w = pr.input("x", (8,)), pr.input("w", (8,))
    y[T - 1] = x
    y[t - 1] = pr.exp(-pr.abs(y * w))
    output = pr.grad(y[0].sum(), w)
    program = pr.compile(output, backend="numpy")
    assert accumulated(program) == 1
    given: dict[str, Any] = {"x": X[:8], "w": X[8:16]}
    for steps in (1, 2, 6):
        want = pr.evaluate(output, given, {T: steps})
        np.testing.assert_allclose(program(**given, bounds={T: steps}), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_the_other_backends(backend: str) -> None:
    output = pr.square(decay())[0:T].sum(0)
    program = pr.compile(output, backend=backend)
    assert accumulated(program) == 1
    np.testing.assert_allclose(program(x=X, bounds={T: 5}), pr.evaluate(output, {"x": X}, {T: 5}), rtol=1e-5)


def test_a_recurrence_that_goes_back_is_added_up_on_its_way() -> None:
    y = pr.recurrent((8,), ((t, T + 1),))
    y[T] = pr.input("x", (8,))
    y[t] = pr.tanh(y[t + 1] * 0.9 + 0.1)
    output = y[0:T].sum(0)
    program = pr.compile(output)
    assert accumulated(program) == 1
    assert program.memory.bytes({T: 100_000}) < 20_000
    assert program.memory.peak({T: 100_000}) == program.memory.peak({T: 1_000})
    np.testing.assert_allclose(program(x=X[:8], bounds={T: 9}), pr.evaluate(output, {"x": X[:8]}, {T: 9}), rtol=1e-5)


def test_what_is_stored_anyway_is_reduced_at_once() -> None:
    """An output, what another reads in ranges, and what the way back reads."""
    y = decay()
    late = (y[0:T] * y[T - 1]).sum(0)
    w = pr.input("w", (64,))
    z = pr.recurrent((64,), (t,))
    z[0] = w
    z[t + 1] = pr.tanh(z * w)
    read_back = z[0:T].sum(0), pr.grad(z[T - 1].sum(), w)
    for outputs, count in (((y[0:T].sum(0), y), 0), ((y[0:T].sum(0), late), 0), (read_back, 1)):
        assert accumulated(pr.compile(outputs, backend="numpy")) == count


MOVES, EMITTED = pr.input("moves", (16, 16)), pr.input("emitted", (4, 16), (t,))
A, B, SEEN = pr.input("a", (32,)), pr.input("b", (32,)), pr.input("x", (8, 32), (t,))


def beliefs() -> pr.Tensor:
    """Four chains of 16 states by the forward algorithm: at every step a sum over pairs, which is no product."""
    alpha = pr.recurrent((4, 16), (t,))
    alpha[0] = EMITTED[0]
    alpha[t + 1] = pr.logsumexp(alpha.unsqueeze(2) + pr.log_softmax(MOVES, 1), 1) + EMITTED[t + 1]
    return pr.logsumexp(alpha[T - 1], 1).sum()


def scaled(spelling: str) -> pr.Tensor:
    """Recurrences with parameters that no contraction takes: their gradients are sums of what each step makes."""
    x, a, b = SEEN, A, B
    h = pr.recurrent((8, 32), ((t, T + 1),))
    h[0] = 0.0
    if spelling == "affine":
        h[t + 1] = pr.tanh(a * h + b + x)
    elif spelling == "gate":
        gate = pr.sigmoid(a * h + b)
        h[t + 1] = gate * h + (1.0 - gate) * x
    else:
        h[t + 1] = pr.where(x > 0.0, pr.exp(-pr.exp(a)) * h, h * b) + x
    return pr.square(h[T]).mean()


@pytest.mark.parametrize("spelling", ["affine", "gate", "decay"])
def test_gradients_of_parameters_are_added_up_on_the_way_back(spelling: str) -> None:
    """What one step of the way back adds is not stored: only what the way forward has left is."""
    loss = scaled(spelling)
    gradients = dict(zip("ab", pr.grad(loss, [A, B]), strict=True))
    program = pr.compile(gradients)
    assert accumulated(program) == 2
    with pr.settings(without=("accumulate",)):
        without = pr.compile(gradients)
    step = 8 * 32 * 4
    assert program.memory.peak({T: 1_000}) <= without.memory.peak({T: 1_000}) - 1_000 * step
    random = np.random.default_rng(3)
    values = {name: random.normal(size=32).astype("float32") for name in "ab"}
    for steps in (0, 1, 2, 9):
        given: dict[str, Any] = {**values, "x": random.normal(size=(steps, 8, 32)).astype("float32")}
        want, found = pr.evaluate(gradients, given, {T: steps}), program(**given, bounds={T: steps})
        for name in gradients:
            np.testing.assert_allclose(found[name], want[name], rtol=1e-4, atol=1e-5, err_msg=f"{name} at {steps}")


def test_the_gradient_of_beliefs_stores_one_table_of_pairs_a_step() -> None:
    gradient = pr.grad(beliefs(), MOVES)
    program = pr.compile(gradient)
    pairs = 4 * 16 * 16 * 4
    grown = program.memory.peak({T: 2_000}) - program.memory.peak({T: 1_000})
    assert grown < 1_000 * pairs * 1.3
    random = np.random.default_rng(4)
    moves = random.normal(size=(16, 16)).astype("float32")
    for steps in (1, 2, 3, 8):
        given: dict[str, Any] = {"moves": moves, "emitted": random.normal(size=(steps, 4, 16)).astype("float32")}
        np.testing.assert_allclose(program(**given), pr.evaluate(gradient, given), rtol=1e-4, atol=1e-5)


def test_what_is_contracted_after_the_way_back_is_done_for_all_steps_at_once() -> None:
    """The gradient of a weight before a recurrence is one product, and so is what else its values are needed for."""
    w = pr.input("w", (32, 32))
    h = pr.recurrent((8, 32), ((t, T + 1),))
    h[0] = 0.0
    h[t + 1] = pr.tanh(A * h + SEEN @ w)
    gradients = pr.grad(pr.square(h[T]).mean(), [w, A])
    assert accumulated(pr.compile(gradients)) == 0


def test_the_gradient_of_a_recurrent_weight_stays_one_product() -> None:
    h = pr.recurrent((16,), ((t, T + 1),))
    w = pr.input("w", (16, 16))
    h[0] = 1.0
    h[t + 1] = pr.tanh(pr.einsum("a,ab->b", h, w))
    program = pr.compile(pr.grad(h[T].sum(), w), backend="numpy")
    assert accumulated(program) == 0


def policy(n: int | None) -> dict[str, pr.Tensor]:
    """REINFORCE as one writes it: the mean over the steps, and its gradient. Returns of n steps, None for all."""
    i, iterations = pr.dim("i")
    width, envs = 48, 2
    weights, biases = pr.recurrent((width, 4), ((i, iterations + 1),)), pr.recurrent((4,), ((i, iterations + 1),))
    weights[0], biases[0] = pr.input("w", (width, 4)), 0.0
    seen = pr.recurrent((envs, width), (i, (t, T + 1)))
    seen[i, 0] = 1.0
    logits = pr.einsum("ko,oa->ka", seen, weights) + biases
    moved = pr.detach(pr.softmax(logits).axes[:, 0:1])
    seen[i, t + 1] = pr.tanh(seen * 0.9 + moved)
    reward = pr.detach(seen).mean(1)
    if n is None:
        gain: pr.Tensor = pr.recurrent((envs,), (i, (t, T + 1)))
        gain[i, T] = 0.0
        gain[i, t] = reward + 0.9 * gain[i, t + 1]
    else:
        gain = reward
        for k in range(1, n + 1):
            gain = gain + 0.9**k * pr.where(t + k <= T, reward[i, t + k], 0.0)
    log_prob = pr.log(pr.softmax(logits)).axes[:, 0]
    loss = (-log_prob * pr.detach(gain))[i, 0:T].mean()
    by_weights, by_biases = pr.grad(loss, [weights, biases])
    weights[i + 1] = weights - 0.1 * by_weights
    biases[i + 1] = biases - 0.1 * by_biases
    return {"weights": weights[iterations], "biases": biases[iterations]}


@pytest.mark.parametrize(("n", "most"), [(1, 1.02), (3, 1.02), (None, 30.0)])
def test_natural_policy_gradients_store_what_their_returns_look_ahead(n: int | None, most: float) -> None:
    outputs = policy(n)
    program = pr.compile(outputs)
    bytes_at = {steps: program.memory.peak({"T": steps, "I": 3}) for steps in (1_000, 10_000)}
    observation = 2 * 48 * 4
    if n is not None:
        assert accumulated(program) >= 2
        # A few numbers of each environment may be stored for all steps, but no observation.
        assert bytes_at[10_000] - bytes_at[1_000] < 9_000 * observation / 4
    assert bytes_at[10_000] <= max(most, 12.0) * bytes_at[1_000]
    values: Any = {"w": np.random.default_rng(1).normal(size=(48, 4)).astype("float32")}
    for steps in (1, 2, 6):
        want = pr.evaluate(outputs, values, {"T": steps, "I": 2})
        found = program(**values, bounds={"T": steps, "I": 2})
        for name in outputs:
            np.testing.assert_allclose(found[name], want[name], rtol=1e-4, atol=1e-5)


def test_gradients_of_a_table_are_summed_after_it() -> None:
    """Its loop goes along two dims, by diagonals; a sum along one of them would be one more table to go through."""
    (i, I), (j, J) = pr.dim("i", min=1), pr.dim("j", min=1)
    x, y = pr.input("x", (), (i,)), pr.input("y", (), (j,))
    cost = pr.recurrent((), (i, j))
    up, left = pr.where(i > 0, cost[i - 1, j], 9.0), pr.where(j > 0, cost[i, j - 1], 9.0)
    cost[i, j] = (x - y) ** 2 + pr.where((i > 0) | (j > 0), -pr.logsumexp(-pr.stack([up, left]), 0), 0.0)
    program = pr.compile(pr.grad(cost[I - 1, J - 1], x))
    assert not [note for note in program.compiled.notes if note.by == "accumulate"]
