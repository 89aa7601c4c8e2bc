"""Tensors are called like the variables that receive them: `keys = pr.einsum(...)` makes a tensor called keys."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from inspect import isfunction
from typing import Any, ParamSpec, TypeVar

from polyrhythm.language.tensor import Tensor
from polyrhythm.source import assigned

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def names_result(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A function of tensors that calls the tensor it returns, or each of several, like the variable it goes to.

    What has a name keeps it, and so does what was given to the function.

    >>> import polyrhythm as pr
    >>> halves, rest = pr.constant([1.0, 3.0]) / 2, pr.constant([1.0, 3.0]) % 2
    >>> halves.name, rest.name
    ('halves', 'rest')
    """

    @wraps(function)
    def named(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        result = function(*args, **kwargs)
        made = result if isinstance(result, (tuple, list)) else (result,)
        given = (*args, *kwargs.values())
        if any(isinstance(one, Tensor) and one.name is None for one in made):
            target = assigned(sys._getframe(1))
            if target is not None and target.whole:
                names = (target.name,) if result is made[0] else target.parts
                for one, name in zip(made, names, strict=False):
                    if isinstance(one, Tensor) and one.name is None and not any(one is other for other in given):
                        one.name = name
        return result

    return named


def name_results(namespace: dict[str, Any], names: list[str]) -> None:
    """Let the functions of those names in a namespace name their results."""
    for name in names:
        if isfunction(namespace[name]):
            namespace[name] = names_result(namespace[name])
