"""Tensors are called like the variables that receive them: `keys = pr.einsum(...)` makes a tensor called keys."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from inspect import isfunction
from typing import Any, ParamSpec, TypeVar

from polyrhythm.language.tensor import Tensor
from polyrhythm.source import is_internal

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
        if is_internal(sys._getframe(1)):
            return result
        given = {id(value) for value in (*args, *kwargs.values())}
        for number, tensor in enumerate(result) if isinstance(result, (tuple, list)) else [(None, result)]:
            if isinstance(tensor, Tensor) and tensor.name is None and id(tensor) not in given:
                target = tensor.line.target
                if target is not None and target.whole:
                    tensor.name = target.name if number is None else dict(enumerate(target.parts)).get(number)
        return result

    return named


def name_results(namespace: dict[str, Any], names: list[str]) -> None:
    """Let the functions of those names in a namespace name their results."""
    for name in names:
        if isfunction(namespace[name]):
            namespace[name] = names_result(namespace[name])
