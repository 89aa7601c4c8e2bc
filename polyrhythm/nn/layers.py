"""Layers without memory: linear maps, embeddings, dropout, and stacks of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import TensorLike, as_tensor, bernoulli, einsum, relu, take, where
from polyrhythm.language.tensor import Tensor
from polyrhythm.nn import initialisers
from polyrhythm.nn.initialisers import Random
from polyrhythm.nn.module import Module, Weight


class Linear(Module):
    """`x @ weight.T + bias` along the last axis.

    >>> import polyrhythm as pr
    >>> layer = Linear(2, 1).using({"weight": pr.constant([[1.0, 2.0]]), "bias": pr.constant([3.0])})
    >>> pr.evaluate(layer(pr.constant([1.0, 1.0])))
    array([6.], dtype=float32)
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = True, rng: Random = None) -> None:
        self.weight: Weight = initialisers.fan_in((outputs, inputs), rng)
        self.bias: Weight | None = initialisers.uniform((outputs,), inputs**-0.5, rng) if bias else None

    def __call__(self, x: TensorLike) -> Tensor:
        result = einsum("...i,oi->...o", x, self.weight)
        return result if self.bias is None else result + self.bias


class Embedding(Module):
    """A vector for each of a number of integers.

    >>> import polyrhythm as pr
    >>> layer = Embedding(3, 2).using({"weight": pr.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])})
    >>> pr.evaluate(layer(pr.constant([2, 0])))
    array([[5., 6.],
           [1., 2.]], dtype=float32)
    """

    def __init__(self, count: int, size: int, rng: Random = None) -> None:
        self.weight: Weight = initialisers.normal((count, size), 1.0, rng)

    def __call__(self, indices: TensorLike) -> Tensor:
        return take(self.weight, indices, 0)


class Dropout(Module):
    """Each element zero with probability p, the others greater by as much. Every step draws anew; `eval` drops nothing.

    The draws are keyed by the seed of the call, `name` and the step, so all backends drop the same elements. Trained
    over iterations, `dropout.train(i)`, it draws anew at each, also where x is the same.

    >>> import polyrhythm as pr
    >>> sorted(set(pr.evaluate(Dropout(0.5)(pr.ones((100,)))).tolist()))
    [0.0, 2.0]
    """

    def __init__(self, p: float = 0.5, name: str | None = None) -> None:
        if not 0 <= p <= 1:
            raise DeclarationError(f"a probability of {p}", fix="give p from 0 to 1")
        self.p, self.name = p, name

    def __call__(self, x: TensorLike) -> Tensor:
        tensor = as_tensor(x)
        if not self.training or not self.p:
            return tensor
        if self.p == 1:
            return tensor * 0.0
        dims = list(tensor.dims)
        if self.iterations is not None and self.iterations.symbol not in tensor.symbols:
            dims.append(self.iterations)
        kept = bernoulli(1 - self.p, tensor.shape, dims=dims, name=self.name)
        return where(kept, tensor / (1 - self.p), 0.0)


class MLP(Module):
    """Linear layers of the given sizes with a function between them.

    >>> import polyrhythm as pr
    >>> pr.evaluate(MLP([3, 8, 2])(pr.ones((5, 3)))).shape
    (5, 2)
    """

    def __init__(
        self, sizes: Sequence[int], between: Callable[[Tensor], Tensor] = relu, bias: bool = True, rng: Random = None
    ) -> None:
        self.between = between
        self.layers = [Linear(a, b, bias, rng) for a, b in pairwise(sizes)]

    def __call__(self, x: TensorLike) -> Tensor:
        result = as_tensor(x)
        for number, layer in enumerate(self.layers):
            result = layer(self.between(result) if number else result)
        return result


class Sequential(Module):
    """Modules and functions of one tensor, one after the other. The weights are named by their numbers, as in torch.

    >>> import polyrhythm as pr
    >>> model = Sequential(Linear(3, 8), pr.tanh, Linear(8, 2))
    >>> list(model.weights()), pr.evaluate(model(pr.ones((5, 3)))).shape
    (['0.weight', '0.bias', '2.weight', '2.bias'], (5, 2))
    >>> len(model), type(model[0]).__name__
    (3, 'Linear')
    """

    def __init__(self, *steps: Callable[[Tensor], Tensor]) -> None:
        self.order = tuple(None if isinstance(step, Module) else step for step in steps)
        for number, step in enumerate(steps):
            if isinstance(step, Module):
                setattr(self, str(number), step)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, number: int) -> Callable[[Tensor], Tensor]:
        step = self.order[number]
        return getattr(self, str(range(len(self.order))[number])) if step is None else step

    def __call__(self, x: TensorLike) -> Tensor:
        result = as_tensor(x)
        for number in range(len(self.order)):
            result = self[number](result)
        return result
