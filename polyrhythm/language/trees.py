"""Outputs come as a tensor, or a tuple, list or dict of them, and results go back the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polyrhythm.errors import OperandError
from polyrhythm.language.tensor import Tensor


def flattened(outputs: Any) -> tuple[list[Tensor], Callable[[list[Any]], Any]]:
    """The tensors in a structure, and a function that puts results in their places.

    >>> tensors, rebuild = flattened(())
    >>> rebuild([])
    ()
    """
    if isinstance(outputs, Tensor):
        return [outputs], lambda results: results[0]
    if isinstance(outputs, (tuple, list)):
        kind = type(outputs)
        parts = [flattened(part) for part in outputs]
        make = kind._make if hasattr(kind, "_make") else kind  # a named tuple takes its parts one by one
        return _joined(parts), lambda results: make(_split(parts, results))
    if isinstance(outputs, dict):
        parts = [flattened(part) for part in outputs.values()]
        return _joined(parts), lambda results: dict(zip(outputs, _split(parts, results), strict=True))
    raise OperandError(
        f"an output must be a tensor, not {type(outputs).__name__}",
        fix="pass a tensor, or a tuple, list or dict of tensors; of an index expression make pr.value(...)",
    )


def names_of(outputs: Any, path: str = "") -> list[str | None]:
    """The names of the tensors in a structure: their keys in dicts and their numbers in lists there.

    >>> import polyrhythm as pr
    >>> names_of({"last": pr.ones(()), "layers": [pr.ones(()), pr.ones(())]})
    ['last', 'layers.0', 'layers.1']
    >>> names_of((pr.ones(()), {"mean": pr.ones(())}))
    [None, 'mean']
    """
    if isinstance(outputs, dict):
        entries = [(f"{path}.{key}" if path else str(key), part) for key, part in outputs.items()]
    elif isinstance(outputs, (tuple, list)):
        entries = [(f"{path}.{number}" if path else "", part) for number, part in enumerate(outputs)]
    else:
        return [path or None]
    return [name for inner, part in entries for name in names_of(part, inner)]


Part = tuple[list[Tensor], Callable[[list[Any]], Any]]


def _joined(parts: list[Part]) -> list[Tensor]:
    return [tensor for tensors, _ in parts for tensor in tensors]


def _split(parts: list[Part], results: list[Any]) -> list[Any]:
    rebuilt, start = [], 0
    for tensors, rebuild in parts:
        rebuilt.append(rebuild(results[start : start + len(tensors)]))
        start += len(tensors)
    return rebuilt
