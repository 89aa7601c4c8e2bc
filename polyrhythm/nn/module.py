"""What all layers share: weights by name, the same layer with other weights, and training or not.

The attributes of a module that are arrays or tensors are its weights; those that are modules, or lists of modules, are
its parts. The name of a weight is the path to it, as in torch: `layers.0.weight`. Weights that no gradient changes,
such as running statistics, are *buffers*; their names stand in the class attribute `buffer_names`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from polyrhythm.compiler.ir.dtypes import is_float
from polyrhythm.language.index import Dim
from polyrhythm.language.inputs import parameter
from polyrhythm.language.tensor import Tensor
from polyrhythm.nn.errors import WeightsMismatchError
from polyrhythm.nn.files import load, names_of, save

Weight = np.ndarray | Tensor


class Module:
    """A layer. Its weights are attributes. It is made for training, as in torch; `eval` gives its other side."""

    buffer_names: ClassVar[frozenset[str]] = frozenset()
    training = True
    iterations: Dim | None = None

    def weights(self) -> dict[str, Any]:
        """All weights by name, buffers too: torch's `state_dict`.

        >>> from polyrhythm import nn
        >>> {name: value.shape for name, value in nn.MLP([3, 4, 2]).weights().items()}
        {'layers.0.weight': (4, 3), 'layers.0.bias': (4,), 'layers.1.weight': (2, 4), 'layers.1.bias': (2,)}
        """
        return {name: weight for name, weight, _ in self._named()}

    def parameters(self, prefix: str = "") -> dict[str, Tensor]:
        """An input for each weight that is an array, with it as the stored value; weights that are tensors as they are.

        Buffers are not among them.

        >>> import polyrhythm as pr
        >>> from polyrhythm import nn
        >>> model = nn.LayerNorm(2)
        >>> y = model.using(model.parameters("norm."))(pr.constant([1.0, 3.0]))
        >>> pr.evaluate(y, {"norm.bias": [0, 5.0]}).round(2).tolist()
        [-1.0, 6.0]
        """
        return {name: _parameter(prefix + name, weight) for name, weight, buffer in self._named() if not buffer}

    def parts(self) -> Iterator[tuple[str, Module]]:
        """The modules that this one is made of, and theirs, each with the path to it.

        >>> from polyrhythm import nn
        >>> [name for name, part in nn.MLP([3, 4, 2]).parts()]
        ['layers.0', 'layers.1']
        """
        for name, value in vars(self).items():
            for place, part in _parts(name, value):
                yield place, part
                for inner, own in part.parts():
                    yield f"{place}.{inner}", own

    def buffers(self, prefix: str = "") -> dict[str, Tensor]:
        """The same of the buffers.

        >>> from polyrhythm import nn
        >>> list(nn.BatchNorm(2).buffers())
        ['running_mean', 'running_var', 'num_batches_tracked']
        """
        return {name: _parameter(prefix + name, weight) for name, weight, buffer in self._named() if buffer}

    def using(self, weights: Mapping[str, Any]) -> Self:
        """The same module with other weights: one for each name, arrays or tensors, which may have dims.

        Buffers may be left out, and stay as they are.
        """
        self._check(weights)
        return self._replaced(weights, "")

    def save(self, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
        """Write all weights into a safetensors file, buffers too.

        >>> import tempfile
        >>> from polyrhythm import nn
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nn.LayerNorm(2).save(folder + "/norm.safetensors")
        ...     nn.LayerNorm(2).load(folder + "/norm.safetensors").weights()["weight"].tolist()
        [1.0, 1.0]
        """
        save(self.weights(), path, metadata)

    def load(self, path: str | os.PathLike[str], prefix: str = "", cast: bool = False) -> Self:
        """The same module with the weights of a file, of several with an index, or of a folder with either.

        Of names that begin with a prefix, only those count, without it. Names, shapes and dtypes are compared with the
        module's before an array is read; with `cast` floats of another size are converted.
        """
        found = {n.removeprefix(prefix): array for n, array in load(path).items() if n.startswith(prefix)}
        self._check(found, f" in {path}")
        for name, own in self.weights().items():
            if name in found and found[name].dtype != own.dtype:
                if not (cast and is_float(found[name].dtype) and is_float(own.dtype)):
                    raise WeightsMismatchError(
                        f"the weight {name!r} in {path} is {found[name].dtype}, but the module has {own.dtype}",
                        fix="load with cast=True, or module.using(nn.load(path)) to compute in the dtype of the file",
                    )
                found[name] = found[name].astype(own.dtype)
        return self._replaced(found, "")

    def _check(self, weights: Mapping[str, Any], where: str = "") -> None:
        """Refuse weights with other names or shapes; buffers may be missing."""
        own = self.weights()
        needed = {name for name, _, buffer in self._named() if not buffer}
        missing, unknown = needed - weights.keys(), weights.keys() - own.keys()
        if missing or unknown:
            raise WeightsMismatchError(
                f"the weights{where} do not fit the module: missing {names_of(missing)}; unknown {names_of(unknown)}",
                fix="give one weight for each name in module.weights()",
            )
        for name, weight in weights.items():
            wanted, have = tuple(own[name].shape), tuple(weight.shape)
            if have != wanted:
                raise WeightsMismatchError(
                    f"the weight {name!r}{where} has shape {have}, but the module needs {wanted}",
                    fix="give weights of the shapes in module.weights()",
                )

    def train(self, i: Dim | None = None) -> Self:
        """The module while it is trained, over iterations i: buffers become tensors over i, and noise is drawn anew.

        What the layers do at iteration i defines the buffers at i + 1, so each is to be called once.

        >>> import polyrhythm as pr
        >>> from polyrhythm import nn
        >>> i, I = pr.dim("i")
        >>> norm = nn.BatchNorm(1).train(i)
        >>> y = norm(pr.input("x", (2, 1), (i,)))
        >>> mean = norm.buffers()["running_mean"]
        >>> pr.evaluate(mean, {"x": [[[0], [4.0]], [[2], [6.0]]]}).round(2).tolist()
        [[0.0], [0.20000000298023224], [0.5799999833106995]]
        """
        return self._in_mode(True, i)

    def eval(self) -> Self:
        """The module as it is used: nothing is dropped, and running statistics stand for those of the batch.

        >>> import polyrhythm as pr
        >>> from polyrhythm import nn
        >>> pr.evaluate(nn.Dropout(0.5).eval()(pr.ones((3,)))).tolist()
        [1.0, 1.0, 1.0]
        """
        return self._in_mode(False, None)

    def _in_mode(self, training: bool, i: Dim | None) -> Self:
        changed = copy.copy(self)
        changed.training, changed.iterations = training, i
        for name, value in vars(self).items():
            if isinstance(value, Module):
                setattr(changed, name, value._in_mode(training, i))
            elif isinstance(value, list):
                setattr(changed, name, [part._in_mode(training, i) for part in value])
        changed._begin()
        return changed

    def _begin(self) -> None:
        """Called on a module whose mode has changed."""

    def _replaced(self, weights: Mapping[str, Any], prefix: str) -> Self:
        changed = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (np.ndarray, Tensor)):
                setattr(changed, name, weights.get(prefix + name, value))
            elif isinstance(value, Module):
                setattr(changed, name, value._replaced(weights, f"{prefix}{name}."))
            elif isinstance(value, list):
                parts = [part._replaced(weights, f"{prefix}{name}.{k}.") for k, part in enumerate(value)]
                setattr(changed, name, parts)
        return changed

    def _named(self) -> Iterator[tuple[str, Any, bool]]:
        """Every weight: its name, its value, and whether it is a buffer."""
        for name, value in vars(self).items():
            if isinstance(value, (np.ndarray, Tensor)):
                yield name, value, name in self.buffer_names
            for place, part in _parts(name, value):
                for inner, weight, buffer in part._named():
                    yield f"{place}.{inner}", weight, buffer


AnyModule = TypeVar("AnyModule", bound=Module)


def layered(l: Dim, modules: Sequence[AnyModule], prefix: str = "") -> AnyModule:
    """Several modules of one kind as one whose weights vary along a dim: the module at each of its steps.

    The weights are parameters over l with the stored values of the modules. The dim needs `max=` the number of modules,
    or that number as its bound when compiling.

    >>> import polyrhythm as pr
    >>> from polyrhythm import nn
    >>> l, L = pr.dim("l", max=3)
    >>> layer = layered(l, [nn.Linear(2, 2) for _ in range(3)])
    >>> h = pr.recurrent((2,), ((l, L + 1),))
    >>> h[0] = pr.ones((2,))
    >>> h[l + 1] = layer(h)
    >>> pr.evaluate(h[L], bounds={L: 3}).shape
    (2,)
    """
    trees = [module.weights() for module in modules]
    dims = ((l, len(modules)),)
    stacks = {name: np.stack([tree[name] for tree in trees]) for name in trees[0]}
    return modules[0].using(
        {n: parameter(prefix + n, stack.shape[1:], stack, dims, stack.dtype) for n, stack in stacks.items()}
    )


def _parts(name: str, value: Any) -> Iterator[tuple[str, Module]]:
    """The modules in an attribute, with their places."""
    if isinstance(value, Module):
        yield name, value
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield f"{name}.{number}", part


def _parameter(name: str, weight: Weight) -> Tensor:
    return weight if isinstance(weight, Tensor) else parameter(name, weight.shape, weight, (), weight.dtype)
