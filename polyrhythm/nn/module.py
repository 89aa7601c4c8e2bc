"""What all layers share: weights by name, and the same layer with other weights.

The attributes of a module that are arrays or tensors are its weights; those that are modules, or lists of modules, are
its parts. The name of a weight is the path to it, as in torch: `layers.0.weight`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np

from polyrhythm.errors import DeclarationError
from polyrhythm.lang.inputs import parameter
from polyrhythm.lang.tensor import Tensor

Weight = np.ndarray | Tensor


class Module:
    """A layer. Its weights are attributes."""

    def weights(self) -> dict[str, Any]:
        """All weights by name.

        >>> from polyrhythm import nn
        >>> {name: value.shape for name, value in nn.MLP([3, 4, 2]).weights().items()}
        {'layers.0.weight': (4, 3), 'layers.0.bias': (4,), 'layers.1.weight': (2, 4), 'layers.1.bias': (2,)}
        """
        found: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, (np.ndarray, Tensor)):
                found[name] = value
            for place, part in _parts(name, value):
                found |= {f"{place}.{inner}": weight for inner, weight in part.weights().items()}
        return found

    def parameters(self, prefix: str = "") -> dict[str, Tensor]:
        """An input for each weight that is an array, with it as the stored value; weights that are tensors as they are.

        >>> import polyrhythm as pr
        >>> from polyrhythm import nn
        >>> model = nn.LayerNorm(2)
        >>> y = model.using(model.parameters("norm."))(pr.constant([1.0, 3.0]))
        >>> pr.evaluate(y, {"norm.bias": [0, 5.0]}).round(2).tolist()
        [-1.0, 6.0]
        """
        return {name: _parameter(prefix + name, weight) for name, weight in self.weights().items()}

    def using(self, weights: Mapping[str, Any]) -> Self:
        """The same module with other weights: one for each name, arrays or tensors, which may have dims."""
        own = self.weights()
        missing, unknown = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
        if missing or unknown:
            raise DeclarationError(
                f"these weights do not fit the module: missing {missing}, unknown {unknown}",
                fix="give one weight for each name in module.weights()",
            )
        for name, weight in weights.items():
            needed, have = tuple(own[name].shape), tuple(weight.shape)
            if have != needed:
                raise DeclarationError(
                    f"the weight {name!r} has shape {have}, but the module needs {needed}",
                    fix="give weights of the shapes in module.weights()",
                )
        return self._replaced(weights, "")

    def _replaced(self, weights: Mapping[str, Any], prefix: str) -> Self:
        changed = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (np.ndarray, Tensor)):
                setattr(changed, name, weights[prefix + name])
            elif isinstance(value, Module):
                setattr(changed, name, value._replaced(weights, f"{prefix}{name}."))
            elif isinstance(value, list):
                parts = [part._replaced(weights, f"{prefix}{name}.{k}.") for k, part in enumerate(value)]
                setattr(changed, name, parts)
        return changed


def _parts(name: str, value: Any) -> Iterator[tuple[str, Module]]:
    """The modules in an attribute, with their places."""
    if isinstance(value, Module):
        yield name, value
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield f"{name}.{number}", part


def _parameter(name: str, weight: Weight) -> Tensor:
    return weight if isinstance(weight, Tensor) else parameter(name, weight.shape, weight, (), weight.dtype)
