"""Policies: networks that say how to act and what a state is worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import as_tensor, tanh
from polyrhythm.language.tensor import Tensor
from polyrhythm.nn.module import Module, Weight
from polyrhythm.nn.recurrent import GRU, LSTM
from polyrhythm.rl.distributions import Distribution, distribution, head_size
from polyrhythm.rl.memory import Along, Cells, Memory, Transformer
from polyrhythm.rl.networks import Encoder, linear, mlp, orthogonal_cells
from polyrhythm.rl.spaces import Box, Space, Spaces, as_spaces

MEMORIES = ("lstm", "gru", "transformer")


class ActorCritic(Module):
    """A policy and a value: two networks, or heads on one trunk.

    Observations may be of any space, see `Encoder`. Weights are orthogonal, as PPO is commonly begun: the last layer
    of the policy small, so that at first all actions are about as likely. `shared` makes both heads of one trunk, and
    so does `memory`, which remembers between the trunk and the heads: "lstm", "gru", "transformer" or a module.

    >>> import polyrhythm as pr
    >>> from polyrhythm import rl
    >>> model = ActorCritic((4,), rl.Discrete(2), (8,))
    >>> policy, value = model(pr.zeros((5, 4)))
    >>> policy.logits.shape, value.shape
    ((5, 2), (5,))
    """

    def __init__(
        self,
        observations: Spaces,
        actions: Space,
        hidden: Sequence[int] = (64, 64),
        rng: np.random.Generator | None = None,
        *,
        shared: bool = False,
        memory: str | Memory | None = None,
        context: int = 32,
    ) -> None:
        self.actions: Space = as_spaces(actions)
        outputs = head_size(self.actions)
        self.encoder = Encoder(observations, rng)
        sizes = [self.encoder.size, *hidden]
        self.memory = _memory(memory, sizes[-1], context, rng)
        self.trunk: Any = None
        self.policy: Any
        self.value: Any
        if shared or self.memory is not None:
            self.trunk = mlp(sizes, tanh, 2**0.5, rng)
            size = sizes[-1] if self.memory is None else self.memory.size
            self.policy, self.value = linear(size, outputs, 0.01, rng), linear(size, 1, 1.0, rng)
        else:
            self.policy, self.value = mlp([*sizes, outputs], tanh, 0.01, rng), mlp([*sizes, 1], tanh, 1.0, rng)
            self.value_encoder = Encoder(observations, rng)
        if isinstance(self.actions, Box):
            self.log_std: Weight = np.zeros(outputs, np.float32)

    @property
    def remembers(self) -> bool:
        """Whether the policy has a memory."""
        return self.memory is not None

    def __call__(self, observation: Any, along: Along | None = None) -> tuple[Distribution, Tensor]:
        """The distribution of actions and the value, for each leading index of the observations."""
        if self.trunk is None:
            return self._policy(self.policy(self.encoder(observation))), self.get_value(observation)
        features = self._features(observation)
        if self.memory is not None:
            if along is None:
                raise DeclarationError(
                    "a policy that remembers needs to know its steps", fix="train it by rl.ppo, or give it along="
                )
            features = self.memory(features, along)
        return self._policy(self.policy(features)), self.value(features).axes[..., 0]

    def act(self, observation: Any, along: Along | None = None) -> Tensor:
        """The likeliest action."""
        return self(observation, along)[0].mode()

    def get_value(self, observation: Any, along: Along | None = None) -> Tensor:
        """The value alone; of a policy that remembers: of an observation that follows the current step."""
        if self.trunk is None:
            return self.value(self.value_encoder(observation)).axes[..., 0]
        features = self._features(observation)
        if self.memory is not None:
            assert along is not None
            assert along.peek is not None
            features = along.peek(features)
        return self.value(features).axes[..., 0]

    def _features(self, observation: Any) -> Tensor:
        features = self.encoder(observation)
        return tanh(self.trunk(features)) if self.trunk.layers else features

    def _policy(self, outputs: Tensor) -> Distribution:
        return distribution(self.actions, outputs, as_tensor(self.log_std) if isinstance(self.actions, Box) else None)


def _memory(kind: str | Memory | None, size: int, context: int, rng: np.random.Generator | None) -> Any:
    """A memory by its name."""
    if isinstance(kind, str):
        if kind not in MEMORIES:
            raise DeclarationError(f"there is no memory {kind!r}", fix=f"use one of {', '.join(MEMORIES)}")
        if kind == "transformer":
            return Transformer(size, context=context, rng=rng)
        return Cells(orthogonal_cells((LSTM if kind == "lstm" else GRU)(size, size, rng=rng), rng))
    return kind
