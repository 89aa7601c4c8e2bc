"""Tensors are called like the variables they go to, wherever the value passes through on its way there."""

from __future__ import annotations

from typing import Any

import numpy as np

import polyrhythm as pr
from polyrhythm import nn, optim
from polyrhythm.compiler.trace import trace

x = pr.input("x", (4,))


def shifted(x: pr.Tensor) -> pr.Tensor:
    out = x + 1
    out = out * 2
    return out


def scaled(x: pr.Tensor) -> pr.Tensor:
    return pr.softmax(x)


def pair(x: pr.Tensor) -> tuple[pr.Tensor, pr.Tensor]:
    lower = x - 1
    return lower, x * 3


def test_two_on_one_line_are_told_apart() -> None:
    keys, values = shifted(x), scaled(x)
    assert (keys.name, values.name) == ("keys", "values")
    a, b = x @ x, x * 2
    assert (a.name, b.name) == ("a", "b")
    one = pr.tanh(x)
    other = pr.tanh(x)
    assert (one.name, other.name) == ("one", "other")
    up, down = pr.recurrent((), ()), pr.recurrent((), ())
    assert (up.name, down.name) == ("up", "down")


def test_only_the_result_of_an_expression_has_its_name() -> None:
    mean = x.mean() + 1
    names = [node.label for node in trace([mean])]
    assert names.count("mean") == 2  # the tensor, and the output that copies it
    assert set(names) == {"x", "mean", None}


def test_functions_with_several_results() -> None:
    low, high = pair(x)
    assert (low.name, high.name) == ("low", "high")
    first, second = pr.split(x, 2)
    assert (first.name, second.name) == ("first", "second")
    best, index = pr.topk(x, 2)
    assert (best.name, index.name) == ("best", "index")
    both = pr.split(x, 2)
    assert [part.name for part in both] == [None, None]


def test_other_ways_to_assign() -> None:
    annotated: pr.Tensor = x + 1
    long = (
        x
        .sum()
        .exp()
    )  # fmt: skip
    double = lambda v: v * 2  # noqa: E731
    twice = double(x)
    chosen = x * 2 if annotated.rank else x * 3
    x2 = x
    x2 += 1
    holder: Any = type("Holder", (), {})()
    holder.hidden = x @ x
    table = {"squares": x * x}
    found = [annotated, long, twice, chosen, x2, holder.hidden, table["squares"]]
    assert [t.name for t in found] == ["annotated", "long", "twice", "chosen", "x2", "hidden", "squares"]


def test_each_pass_of_a_loop_has_the_name() -> None:
    made = []
    h = x
    for _ in range(3):
        h = pr.tanh(h)
        made.append(h)
    assert [t.name for t in made] == ["h"] * 3
    assert [node.name for node in trace([h])] == ["x", "h_2", "h_3", "h_4", "h"]


def test_what_was_given_keeps_its_name() -> None:
    same = pr.reshape(x, (4,))
    assert same.name == "x"
    named = x + 1
    again = named
    assert again.name == "named"


def test_operands_contribute_to_a_variable() -> None:
    total = x * 2 + pr.exp(x)
    assert {node.name for node in trace([total])} >= {"total_mul", "total_exp"}
    t, _ = pr.dim("t")
    y = pr.recurrent((4,), (t,))
    y[0] = x
    y[t + 1] = pr.tanh(y) * 0.5
    assert {node.name for node in trace([y])} >= {"y", "y_mul", "y_tanh"}


def test_layers_pass_names_on_and_say_where_they_are() -> None:
    layer = nn.Linear(4, 4)
    hidden = layer(x)
    assert hidden.name == "hidden"
    assert hidden.line.library == "nn/layers.py: Linear"
    assert "hidden = layer(x)" in hidden.line.text
    assert (x + 1).line.library == ""


def test_optimisers_name_what_they_keep() -> None:
    i, _ = pr.dim("i")
    model = nn.MLP([4, 2, 1])
    weights = optim.over(i, model.parameters("policy."))
    losses = (model.using(weights)(x) ** 2).sum()
    optim.adam(i, weights, pr.grad(losses, weights))
    names = {node.label for node in trace([weights["layers.0.weight"]])}
    first = "policy.layers.0.weight"
    assert names >= {first, f"{first}_i", f"{first}_i_first", f"{first}_i_second"}
    plain = optim.over(i, {"w": np.ones(2), "b": [np.ones(1)]})
    assert (plain["w"].name, plain["b"][0].name) == ("w", "b.0")
    p = optim.over(i, np.ones(2))
    assert p.name == "p"


def test_code_without_source_has_operations_for_names() -> None:
    scope = {"pr": pr, "x": x}
    exec("y = pr.tanh(x)", scope)
    assert scope["y"].name is None  # type: ignore[attr-defined]
    assert [node.name for node in trace([scope["y"]])] == ["x", "tanh", "output"]  # type: ignore[list-item]
