"""The functions compiled, on all backends, over static and dynamic axes."""

import numpy as np
import pytest

import polyrhythm as pr
from tests.language.functions.everywhere import check_everywhere
from tests.language.functions.helpers import f32, i32, random_array

NAMES = "acos asin atan cosh digamma elu exp2 hard_sigmoid hard_swish hard_tanh leaky_relu lgamma log10 log2 mish"
NAMES += " log_sigmoid relu6 selu sinh softsign tan trunc"


@pytest.mark.parametrize("gradients", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_elementwise_functions(gradients: bool) -> None:
    x = np.clip(np.abs(random_array((5,))) * 0.5 + 0.2, 0, 0.9)
    check_everywhere({name: getattr(pr, name) for name in NAMES.split()}, x, gradients=gradients, lengths=(0, 1))


def test_functions_of_order() -> None:
    x = f32([[3, 1], [np.nan, 1], [2, 0], [2, 5], [-1, 1]])
    table = {
        "median": lambda x: pr.median(x, 0),
        "quantile": lambda x: pr.quantile(x, pr.constant([0.1, 0.5, 1.0]), 0),
        "topk": lambda x: pr.topk(x, 1, 0),
        "search": lambda x: pr.searchsorted(pr.sort(x.axes[:, 1]), x),
        "search_right": lambda x: pr.searchsorted(pr.sort(x.axes[:, 1]), x, side="right"),
        "interp": lambda x: pr.interp(x, pr.constant([0.0, 1.0, 3.0]), pr.constant([1.0, 5.0, 2.0])),
        "diag": lambda x: pr.diag(x.axes[:, 1]),
        "diagonal": lambda x: pr.diagonal(x, 1),
        "trace": lambda x: pr.trace(x),
    }
    check_everywhere(table, x, lengths=(1, 2))
    del table["topk"]
    check_everywhere(table, np.nan_to_num(x), lengths=(0, 1))
    sums = {name: lambda x, f=function: f(x).sum() for name, function in table.items()}
    check_everywhere(sums, np.nan_to_num(x), prefixes=True)


def test_diagonals_of_squares_that_grow() -> None:
    table = {
        "diagonal": lambda x: (pr.diagonal(x @ x.mT) ** 2).sum(),
        "above": lambda x: (pr.diagonal(x @ x.mT, 1) ** 2).sum(),
        "flat": lambda x: ((x @ x.mT).reshape(x.shape[0] * x.shape[0]) ** 3).sum(),
    }
    check_everywhere(table, random_array((4, 2)), gradients=True, prefixes=True)


def test_gradients_of_functions_of_order() -> None:
    x = random_array((5, 2))
    table = {
        "median": lambda x: pr.median(x, 0),
        "quantile": lambda x: pr.quantile(x, 0.3, 0),
        "interp": lambda x: pr.interp(x, pr.constant([-1.0, 0.1, 3.0]), pr.constant([1.0, 5.0, 2.0])),
        "diag": lambda x: pr.diag(x.axes[:, 1], -1),
        "trace": lambda x: pr.trace(x),
        "linspace": lambda x: pr.linspace(x.axes[0, 0], x.axes[0, 1], 4),
    }
    check_everywhere(table, x, gradients=True, lengths=(1,))


def test_draws_are_the_same_everywhere() -> None:
    x = np.abs(random_array((5,))) + 0.1
    table = {
        "exponential": lambda x: pr.exponential((3,), 2.0, name="e"),
        "gamma": lambda x: pr.gamma((20,), 0.3, name="g"),
        "beta": lambda x: pr.beta((20,), 0.5, 0.5, name="b"),
        "multinomial": lambda x: pr.multinomial(7, x / x.sum(), name="m"),
        "choice": lambda x: pr.choice(x, (2, 3), name="c"),
        "weighted": lambda x: pr.choice(x, (2, 3), p=x / x.sum(), name="w"),
        "once": lambda x: pr.choice(x, 1, replace=False, p=x, name="o"),
    }
    check_everywhere(table, x, lengths=(1,))


def test_integers_are_searched_and_counted() -> None:
    check_everywhere(
        {"search": lambda x: pr.searchsorted(x, pr.constant([0, 3, 9])), "many": lambda x: pr.searchsorted(x, x)},
        i32([1, 3, 3, 5] * 5).cumsum(dtype="int32"),
        lengths=(0, 1),
    )
