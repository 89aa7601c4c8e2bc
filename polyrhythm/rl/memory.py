"""Policies that remember: recurrent cells and a transformer, defined once for acting, training and burn-in.

A memory is called on features over steps t and *along* something that knows where these steps come from:

- `Acting`: iterations i and their steps, each iteration going on where the last one ended;
- `Learning`: the same steps again with other weights, over updates u, from what was remembered as the iteration began.

Both give a cell its state before a step, and attention its past as an index over time: the steps `t - C + 1 .. t`. The
cache of a transformer is then derived, a ring while acting; what is stored for training is one key and value per
step, not a cache per step. At the end of an episode all is forgotten: cells are reset, and attention is masked.

Burn-in (Kapturowski et al., 2019) needs nothing of its own: it is learning with the first steps left out of the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from polyrhythm.language.functions import (
    as_tensor,
    concat,
    einsum,
    ones,
    relu,
    reshape,
    softmax,
    unsqueeze,
    where,
    zeros,
)
from polyrhythm.language.gradient import detach
from polyrhythm.language.index import Dim
from polyrhythm.language.recurrent import Recurrent, recurrent
from polyrhythm.language.tensor import Tensor
from polyrhythm.nn.layers import Linear
from polyrhythm.nn.module import Module, Weight
from polyrhythm.nn.norms import LayerNorm
from polyrhythm.nn.recurrent import GRU, LSTM
from polyrhythm.optim.states import bound_of
from polyrhythm.rl.running import Steps, carried

Peek = Callable[[Tensor], Tensor]
"""What would be remembered after one more step, of other features, in the same episode; nothing is stored."""


class Along(Protocol):
    """Where the steps of a memory come from."""

    t: Dim
    begins: Tensor
    """One flag per environment: whether an episode begins at this step."""
    peek: Peek | None
    """Set by the memory that was called last."""

    def state(self, first: Tensor) -> Recurrent:
        """A tensor over t, before each step; `[{t: t + 1}]` remains to be defined."""

    def past(self, x: Tensor, length: int) -> Tensor:
        """The last values of x, this step's the last, as a leading axis; zeros where there were none."""


class Acting:
    """Steps of acting, over iterations i and steps t. `ended` is to be called when the steps are known."""

    def __init__(self, i: Dim, t: Dim, count: int) -> None:
        self.i, self.t = i, t
        self._begins = carried(i, t, ones((count,), "bool"), "begins")
        self.begins: Tensor = self._begins
        self.peek: Peek | None = None
        self.kept: list[Recurrent] = []

    def state(self, first: Tensor) -> Recurrent:
        """Carried on from one iteration to the next."""
        self.kept.append(carried(self.i, self.t, first))
        return self.kept[-1]

    def past(self, x: Tensor, length: int) -> Tensor:
        """Values before the first step are those of the iteration before."""
        i, t, before = self.i, self.t, length - 1
        long = recurrent(x.shape, (i, (t, bound_of(t) + before)), x.dtype)
        long[(i == 0) & (t < before)] = zeros(x.shape, x.dtype)
        long[(i > 0) & (t < before)] = long[i - 1, t + bound_of(t)]
        long[t >= before] = x[{t: t - before}]
        self.kept.append(long)
        return long[{t: slice(t, t + length)}]

    def ended(self, steps: Steps) -> None:
        """After a step that ended an episode another one begins; so it does after a step that only reset."""
        over = steps.terminated | steps.truncated if steps.valid is None else ~steps.valid
        self._begins[self.i, self.t + 1] = over


class Learning:
    """The steps of acting once more, over updates u, of the environments that `choose` picks along the first axis."""

    def __init__(self, acting: Acting, u: Dim, choose: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        self.t, self._acting, self._u, self._choose = acting.t, acting, u, choose
        self.begins = choose(detach(acting.begins))
        self.peek: Peek | None = None
        self._number = 0

    def state(self, first: Tensor) -> Recurrent:
        """What was remembered as the iteration began."""
        kept = self._next()
        state = self._like(kept, bound_of(self.t) + 1)
        state[{self.t: 0}] = kept[{self.t: 0}]
        return state

    def past(self, x: Tensor, length: int) -> Tensor:
        """Before the first step: what acting remembered of the iteration before."""
        t, before, kept = self.t, length - 1, self._next()
        long = self._like(kept, bound_of(t) + before)
        long[t < before] = kept
        long[t >= before] = x[{t: t - before}]
        return long[{t: slice(t, t + length)}]

    def _next(self) -> Tensor:
        """What acting kept at this place of the memory, whose calls come in the same order."""
        self._number += 1
        return self._choose(detach(self._acting.kept[self._number - 1]))

    def _like(self, kept: Tensor, extent: Any) -> Recurrent:
        return recurrent(kept.shape, (self._u, self._acting.i, (self.t, extent)), kept.dtype)


class Memory(Protocol):
    """What a policy remembers by."""

    size: int
    """The number of features it gives."""

    def __call__(self, x: Tensor, along: Along) -> Tensor:
        """Features after reading x at each step."""


class Cells(Module):
    """A recurrent layer, `nn.LSTM` or `nn.GRU`, that is reset where an episode begins.

    >>> from polyrhythm import nn
    >>> Cells(nn.GRU(4, 8)).size
    8
    """

    def __init__(self, layer: LSTM | GRU) -> None:
        self.layer, self.size = layer, layer.hidden

    def __call__(self, x: Tensor, along: Along) -> Tensor:
        """The state after reading x."""
        layer, t = self.layer, along.t
        first = zeros((x.shape[0], layer.hidden), x.dtype)
        kept = [[along.state(first) for _ in range(layer.layers)] for _ in range(layer.memories)]
        begins = unsqueeze(along.begins, -1)
        after = layer.step(x, [[where(begins, 0.0, state) for state in states] for states in kept])
        for states, new in zip(kept, after, strict=True):
            for state, value in zip(states, new, strict=True):
                state[{t: t + 1}] = value
        along.peek = lambda seen: layer.step(seen, after)[0][-1]
        return after[0][-1]


class Transformer(Module):
    """Attention to the last `context` steps of the episode, with a learnt weight for how long ago each was.

    >>> Transformer(8, heads=2, layers=1, context=16).size
    8
    """

    def __init__(
        self, size: int, heads: int = 4, layers: int = 1, context: int = 32, rng: np.random.Generator | None = None
    ) -> None:
        self.size, self.context = size, context
        self.blocks = [_Block(size, heads, context, rng) for _ in range(layers)]
        self.norm = LayerNorm(size)

    def __call__(self, x: Tensor, along: Along) -> Tensor:
        """Features after attending to the past, this step included."""
        t = along.t
        # Episodes are told apart by their number: 0 where there was no step, from 1 on otherwise.
        number = along.state(zeros(along.begins.shape, "int32"))
        current = number + along.begins.cast("int32")
        number[{t: t + 1}] = current
        same = along.past(current, self.context) == current
        pasts = []
        for block in self.blocks:
            keys, values = (along.past(part, self.context) for part in block.key_and_value(x))
            pasts.append((keys, values))
            x = block(x, keys, values, same)

        def peek(seen: Tensor) -> Tensor:
            later = concat([same.axes[1:], ones((1, *same.shape[1:]), "bool")], 0)
            for block, past in zip(self.blocks, pasts, strict=True):
                own = block.key_and_value(seen)
                longer = [concat([p.axes[1:], unsqueeze(o, 0)], 0) for p, o in zip(past, own, strict=True)]
                seen = block(seen, longer[0], longer[1], later)
            return self.norm(seen)

        along.peek = peek
        return self.norm(x)


class _Block(Module):
    """Attention and two linear layers, each after a norm and added to what comes in."""

    def __init__(self, size: int, heads: int, context: int, rng: np.random.Generator | None) -> None:
        self.heads, self.size = heads, size
        self.before_attention, self.before_layers = LayerNorm(size), LayerNorm(size)
        self.query, self.key, self.value, self.project = (Linear(size, size, rng=rng) for _ in range(4))
        self.wide, self.narrow = Linear(size, 4 * size, rng=rng), Linear(4 * size, size, rng=rng)
        self.distance: Weight = np.zeros((heads, context), np.float32)

    def key_and_value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of one step, to be attended to."""
        normed = self.before_attention(x)
        return self._heads(self.key(normed)), self._heads(self.value(normed))

    def __call__(self, x: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        """Of one step, given the keys and values (context, ..., heads, features) and which of them count."""
        query = self._heads(self.query(self.before_attention(x)))
        scores = einsum("nhd,cnhd->nhc", query, keys) * (self.size // self.heads) ** -0.5 + as_tensor(self.distance)
        scores = where(unsqueeze(seen.T, 1), scores, -1e9)
        mixed = einsum("nhc,cnhd->nhd", softmax(scores, -1), values)
        x = x + self.project(reshape(mixed, x.shape))
        return x + self.narrow(relu(self.wide(self.before_layers(x))))

    def _heads(self, x: Tensor) -> Tensor:
        return reshape(x, (*x.shape[:-1], self.heads, self.size // self.heads))
