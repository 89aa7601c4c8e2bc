"""Common subexpressions at any steps, and what must not be taken for one."""

from __future__ import annotations

from typing import Any

import numpy as np

import polyrhythm as pr
from tests.compiler.passes.cases import after, operations, rules

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def test_the_policy_of_acting_and_of_the_loss_is_computed_once() -> None:
    t, _ = pr.dim("t")
    seen, w, v = pr.input("seen", (4,), (t,)), pr.input("w", (4, 8)), pr.input("v", (8, 3))

    def policy(seen: pr.Tensor) -> pr.Tensor:
        return pr.tanh(seen @ w) @ v

    acting, loss = policy(seen), pr.exp(policy(seen)).sum()
    graph, notes = after([acting, loss], {"seen": floats(5, 4), "w": floats(4, 8), "v": floats(8, 3)})
    assert operations(graph).count("einsum") == 2
    assert rules(notes).count("share") == 3


def test_at_the_next_step() -> None:
    """The value of the next state is the value of the state, one step on."""
    t, T = pr.dim("t")
    seen, w = pr.input("seen", (4,), ((t, T + 1),)), pr.input("w", (4, 8))

    def value(seen: pr.Tensor) -> pr.Tensor:
        return pr.tanh(seen @ w).sum()

    error = value(seen[t + 1]) * 0.9 - value(seen)[t]
    whole = value(seen)[0 : T + 1].sum(0)
    graph, notes = after([whole, error[0:T].sum(0)], {"seen": floats(6, 4), "w": floats(4, 8)})
    assert operations(graph).count("einsum") == 1
    assert any("at " in note.what and note.rule == "share" for note in notes)


def test_cheap_values_at_other_steps_are_computed_again() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), ((t, T + 1),))
    graph, _ = after([(x * 2)[0 : T + 1].sum(0), (x[t + 1] * 2)[0:T].sum(0)], {"x": floats(5)})
    assert operations(graph).count("mul") == 2


def test_different_reads_are_different() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (4,), (t,))
    w = pr.input("w", (4, 4))
    graph, _ = after([x[0] @ w, x[T - 1] @ w, x[0] @ w], {"x": floats(3, 4), "w": floats(4, 4)})
    assert operations(graph).count("einsum") == 2


def test_draws_are_never_shared() -> None:
    t, T = pr.dim("t")
    a, b = pr.uniform((3,), dims=(t,), name="a"), pr.uniform((3,), dims=(t,), name="b")
    graph, _ = after([a, b, a + b], {}, {T: 4})
    assert operations(graph).count("random_bits") == 2


def test_host_calls_are_never_shared() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    calls = [pr.host(lambda v: v + 1, (x,), (), "float32", (t,)) for _ in range(2)]
    graph, _ = after([calls[0] * 2, calls[1] * 2], {"x": floats(3)})
    assert operations(graph).count("host") == 2


def test_gradients_share_the_forward_pass() -> None:
    t, T = pr.dim("t")
    x, w = pr.input("x", (4,), (t,)), pr.input("w", (4, 4))
    h = pr.tanh(x @ w)
    loss = (h[0:T] ** 2).sum()
    graph, _ = after([loss, pr.grad(loss, w)], {"x": floats(5, 4), "w": floats(4, 4)})
    assert operations(graph).count("tanh") == 1


def test_what_is_made_at_too_few_steps_is_not_shared_with_later_ones() -> None:
    """The product at t + 1 is one of those at t, but for the last, which nobody asks for at t."""
    t, T = pr.dim("t")
    x, w = pr.input("x", (3,), (t,)), pr.input("w", (3, 3))
    now, following = x @ w, x[t + 1] @ w
    y = pr.where(t < T - 1, now * 2 + following, 0.0)
    given = {"x": np.arange(15, dtype="float32").reshape(5, 3), "w": np.arange(9, dtype="float32").reshape(3, 3)}
    product = given["x"] @ given["w"]
    expected = np.concatenate([2 * product[:-1] + product[1:], np.zeros((1, 3), "float32")])
    np.testing.assert_allclose(pr.compile(y, backend="numpy")(**dict[str, Any](given)), expected)


def test_what_sharing_saves_in_bytes() -> None:
    t, _ = pr.dim("t")
    x, w = pr.input("x", (3,), (t,)), pr.input("w", (3, 5))
    outputs = {"one": pr.tanh(x @ w), "other": pr.exp(x @ w)}
    notes = pr.compile(outputs, backend="numpy").compiled.notes
    (saved,) = (note.bytes for note in notes if note.rule == "share" and "einsum" in note.what)
    assert str(saved) == "20*T"


def _gated(count: int) -> tuple[pr.Tensor, list[pr.Tensor], dict[str, Any]]:
    """A recurrence with some weights, and its loss."""
    t, T = pr.dim("t")
    x, weights = pr.input("x", (3,), (t,)), [pr.input(f"w{k}", (3, 3)) for k in range(count)]
    h = pr.recurrent((3,), ((t, T + 1),))
    h[0] = pr.zeros((3,))
    h[t + 1] = pr.tanh(sum((h @ w for w in weights), x))
    return (h[T] ** 2).sum(), weights, {"x": floats(5, 3)} | {f"w{k}": floats(3, 3) for k in range(count)}


def test_gradients_that_are_asked_for_one_by_one_go_back_once() -> None:
    loss, weights, given = _gated(3)
    together, _ = after([loss, *pr.grad(loss, weights)], given)
    one_by_one, notes = after([loss, *(pr.grad(loss, w) for w in weights)], given)
    assert sorted(operations(one_by_one)) == sorted(operations(together))
    assert any("the same recurrence" in note.what for note in notes)


def test_recurrences_that_begin_or_go_on_otherwise_are_different() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))

    def mean(first: float, rate: float, ahead: int = 1) -> pr.Tensor:
        m = pr.recurrent((), ((t, T + 2),))
        m[0], m[1] = pr.constant(first), pr.constant(0.5)
        m[t + 2] = pr.tanh(rate * m[t + ahead] + x)
        return m[T + 1]

    graph, notes = after(
        [mean(0.0, 0.5), mean(0.0, 0.25), mean(1.0, 0.5, 0), mean(0.0, 0.5, 0)],
        {"x": floats(5)},
    )
    assert operations(graph).count("tanh") == 4
    assert not any("the same recurrence" in note.what for note in notes)


def test_recurrences_that_read_each_other_are_compared_together() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))

    def pair(first: float) -> list[pr.Tensor]:
        a, b = (pr.recurrent((), ((t, T + 1),)) for _ in range(2))
        a[0], b[0] = pr.constant(0.0), pr.constant(first)
        a[t + 1], b[t + 1] = pr.tanh(b + x), pr.tanh(a - x)
        return [a[T], b[T]]

    graph, _ = after([*pair(0.0), *pair(0.0)], {"x": floats(5)})
    assert operations(graph).count("tanh") == 2
    graph, _ = after([*pair(0.0), *pair(1.0)], {"x": floats(5)})
    assert operations(graph).count("tanh") == 4


def test_two_walks_draw_their_own_numbers() -> None:
    t, T = pr.dim("t")

    def walk() -> pr.Tensor:
        w = pr.recurrent((), ((t, T + 1),))
        w[0] = pr.constant(0.0)
        w[t + 1] = w + pr.normal((), dims=(t,))
        return w[T]

    one, other = pr.compile([walk(), walk()])(bounds={T: 4})
    assert one != other
