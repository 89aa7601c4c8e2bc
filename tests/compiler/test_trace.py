"""From tensors to the graph: names, random sites, shared parts, structure of outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import errors
from polyrhythm.compiler.ir.graph import operand_type
from polyrhythm.compiler.trace import trace


def test_outputs_keep_their_structure() -> None:
    t, T = pr.dim("t")
    a, b = pr.value(t), pr.value(t) + 1
    have = pr.evaluate({"x": (a, [b]), "y": a}, bounds={T: 1})
    assert isinstance(have["x"], tuple)
    assert isinstance(have["x"][1], list)
    assert (have["x"][0].tolist(), have["x"][1][0].tolist(), have["y"].tolist()) == ([0], [1], [0])
    assert pr.evaluate(()) == ()
    with pytest.raises(errors.DTypeError):
        pr.evaluate({"a": 3})


def test_nodes_are_called_as_the_user_calls_them() -> None:
    t, _ = pr.dim("t")
    x = pr.input("observations", (), (t,))
    hidden = pr.recurrent((), (t,))
    hidden[t] = x
    named = pr.recurrent((), (t,), name="given")
    named[t] = hidden
    nodes = trace([named]).nodes
    assert {"observations", "hidden", "given"} <= nodes.keys()


def test_equal_names_of_recurrent_tensors_are_told_apart() -> None:
    t, T = pr.dim("t")
    made = []
    for k in range(2):
        y = pr.recurrent((), (t,), "int32")
        y[t] = k
        made.append(y)
    have = pr.evaluate(tuple(made), bounds={T: 1})
    assert [array.tolist() for array in have] == [[0], [1]]


def test_equal_names_of_inputs_are_refused() -> None:
    a, b = pr.input("x"), pr.input("x")
    with pytest.raises(errors.DuplicateNameError):
        pr.evaluate(a + b, {"x": 1.0})
    with pytest.raises(errors.DuplicateNameError):
        pr.evaluate(a + pr.parameter("x"), {"x": 1.0})
    assert pr.evaluate(a + a, {"x": 1.0}).tolist() == 2


def test_an_input_and_a_recurrent_tensor_may_share_a_name() -> None:
    t, _ = pr.dim("t")
    y = pr.recurrent((), (t,))
    y[t] = pr.input("y", (), (t,)) * 2
    assert pr.evaluate(y, {"y": [1.0, 2.0]}).tolist() == [2, 4]


def test_deep_expressions_need_no_recursion() -> None:
    x = pr.input("x", (), (), "int32")
    total: Any = x
    for _ in range(2000):
        total = total + 1
    assert pr.evaluate(total, {"x": np.int32(1)}).tolist() == 2001


def draws(outputs: Any, **options: Any) -> Any:
    return pr.evaluate(outputs, **options)


def test_draws_depend_on_the_seed() -> None:
    t, T = pr.dim("t")
    u = pr.uniform((4,), dims=(t,))
    first = draws(u, bounds={T: 3}, seed=1)
    np.testing.assert_array_equal(first, draws(u, bounds={T: 3}, seed=1))
    assert not np.isin(first, draws(u, bounds={T: 3}, seed=2)).any()
    assert len(np.unique(first)) == 12


def test_draws_do_not_depend_on_how_much_is_evaluated() -> None:
    t, T = pr.dim("t")
    u = pr.uniform((2,), dims=(t,), name="u")
    whole = draws(u, bounds={T: 5})
    np.testing.assert_array_equal(draws(u, bounds={T: 3}), whole[:3])
    np.testing.assert_array_equal(draws(u[T - 1], bounds={T: 5}), whole[4])
    np.testing.assert_array_equal(draws(u[t:T].sum(0), bounds={T: 5})[3], whole[3] + whole[4])
    np.testing.assert_array_equal(draws(u[T - 1 - t], bounds={T: 5}), whole[::-1])


def test_named_sites_do_not_feel_unrelated_changes() -> None:
    t, T = pr.dim("t")
    u = pr.uniform((2,), dims=(t,), name="u")
    alone = draws(u, bounds={T: 3})
    other = pr.normal((2,), dims=(t,))
    together = draws({"other": other, "u": u * 1.0, "more": pr.uniform((3,), dims=(t,))}, bounds={T: 3})
    np.testing.assert_array_equal(together["u"], alone)
    again = pr.uniform((2,), dims=(t,), name="u")
    np.testing.assert_array_equal(draws(again, bounds={T: 3}), alone)


def test_sites_never_merge() -> None:
    t, T = pr.dim("t")
    a, b = pr.uniform((2,), dims=(t,)), pr.uniform((2,), dims=(t,))
    one, two = draws((a, b), bounds={T: 3})
    assert not np.isin(one, two).any()
    same = draws((a, a), bounds={T: 3})
    np.testing.assert_array_equal(same[0], same[1])
    with pytest.raises(errors.DuplicateNameError):
        draws((pr.uniform(name="u"), pr.uniform(name="u")))


def test_sites_without_a_name_are_numbered_in_the_walk_of_the_outputs() -> None:
    t, T = pr.dim("t")
    a, b = pr.uniform(dims=(t,)), pr.uniform(dims=(t,))
    a_first = draws((a, b), bounds={T: 2})
    b_first = draws((b, a), bounds={T: 2})
    np.testing.assert_array_equal(a_first[0], b_first[0])
    np.testing.assert_array_equal(a_first[1], b_first[1])


def test_draws_inside_a_recurrence_are_those_outside() -> None:
    t, T = pr.dim("t")
    u = pr.uniform(dims=(t,), name="u")
    y = pr.recurrent((), (t,))
    y[0] = u[0]
    y[t + 1] = u[t + 1] + 0 * y
    np.testing.assert_array_equal(draws(y, bounds={T: 4}), draws(u, bounds={T: 4}))


def test_draws_differ_along_each_dim() -> None:
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    both = draws(pr.uniform(dims=(i, t), name="u"), bounds={I: 3, T: 4})
    assert len(np.unique(both)) == 12
    assert draws(pr.uniform(name="u"), bounds={}).shape == ()


def copying() -> dict[str, pr.Tensor]:
    """Recurrences, a choice, a view of a view, a stopped loss and its gradient: whatever the compiler copies."""
    t, T = pr.dim("t")
    x, w = pr.input("x", (3,), (t,)), pr.input("w", (3,))
    h = pr.recurrent((3,), (t,))
    h[0] = pr.where(t < T - 1, x, 0.0)[0]
    h[t + 1] = pr.tanh(h * w + x[t + 1])
    total = pr.recurrent((), (t,))
    total[0] = h.sum(0)[0]
    total[t + 1] = total + h.sum(0)[t + 1]
    loss = total[T - 1]
    recent = pr.window(h, t, 2).sum(0)
    return {"h": h, "loss": loss, "slope": pr.grad(loss, w), "last": recent[T - 1], "recent": recent[0:T].sum(0)}


def test_what_keeps_its_shape_is_a_copy() -> None:
    outputs = copying()
    program = pr.compile(outputs, backend="numpy")
    for graph in (trace(list(outputs.values())), program.compiled.graph):
        definitions = [(node, definition) for node in graph for definition in node.definitions]
        assert any(definition.op == "copy" for _, definition in definitions)
        for node, definition in definitions:
            if definition.op == "broadcast":
                (access,) = definition.operands
                assert operand_type(access, graph[access.source]).shape != node.shape, node.name
    arrays: dict[str, Any] = {"x": np.random.default_rng(0).normal(size=(4, 3)), "w": np.ones(3)}
    expected = pr.evaluate(outputs, arrays)
    for name, value in program(**arrays).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)
