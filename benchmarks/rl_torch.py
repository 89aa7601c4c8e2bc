"""PPO in torch as CleanRL writes it, a Python loop over steps and shuffled minibatches."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.rl_jax import Weights
from polyrhythm.rl.ppo import Settings


class Lamps:
    """`rl.Synthetic` in NumPy, all environments at once."""

    def __init__(self, envs: int, shape: tuple[int, ...], length: int, actions: int) -> None:
        self.envs, self.shape, self.length, self.actions = envs, shape, length, actions
        self.random = np.random.default_rng(0)
        self.lights, self.age = self.fresh(), np.zeros(envs, int)

    def fresh(self) -> np.ndarray:
        return self.random.uniform(-1, 1, (self.envs, *self.shape)).astype(np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        push = ((action + 1.0) * (0.1 / self.actions)).astype(np.float32)
        after = np.float32(0.9) * self.lights + push.reshape(-1, *[1] * len(self.shape))
        self.age += 1
        ended = self.age >= self.length
        self.lights = np.where(ended.reshape(-1, *[1] * len(self.shape)), self.fresh(), after) if ended.any() else after
        self.age[ended] = 0
        return after, after.reshape(self.envs, -1).mean(1), ended


def module(weights: Weights, name: str) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for number in range(sum(key.startswith(f"{name}.") for key in weights) // 2):
        weight, bias = (torch.tensor(weights[f"{name}.layers.{number}.{part}"]) for part in ("weight", "bias"))
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data, layer.bias.data = weight, bias
        layers += [torch.nn.Tanh(), layer] if number else [layer]
    return torch.nn.Sequential(*layers)


def loss(policy: Any, value: Any, batch: tuple[torch.Tensor, ...], s: Settings) -> torch.Tensor:
    observation, action, old, before, advantage, target = batch
    choice = torch.distributions.Categorical(logits=policy(observation), validate_args=False)
    worth = value(observation).view(-1)
    ratio = (choice.log_prob(action) - old).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - s.clip_range, 1 + s.clip_range)).mean()
    near = before + (worth - before).clamp(-s.clip_range, s.clip_range)
    value_loss = 0.5 * torch.max((worth - target) ** 2, (near - target) ** 2).mean()
    return policy_loss - s.entropy_coef * choice.entropy().mean() + s.value_coef * value_loss


def trainer(weights: Weights, envs: int, shape: tuple[int, ...], length: int, actions: int, s: Settings) -> Any:
    """A function that makes one iteration."""
    lamps, rows = Lamps(envs, shape, length, actions), envs * s.steps
    policy, value = module(weights, "policy"), module(weights, "value")
    both = [*policy.parameters(), *value.parameters()]
    optimiser = torch.optim.Adam(both, lr=s.learning_rate, eps=1e-5)
    seen, after = torch.zeros((s.steps, envs, *shape)), torch.zeros((s.steps, envs, *shape))
    action = torch.zeros((s.steps, envs), dtype=torch.long)
    old, reward, ended = (torch.zeros((s.steps, envs)) for _ in range(3))
    worth = torch.zeros((s.steps, envs))

    def iteration() -> None:
        for t in range(s.steps):
            seen[t] = torch.from_numpy(lamps.lights)
            with torch.no_grad():
                choice = torch.distributions.Categorical(logits=policy(seen[t]), validate_args=False)
                action[t] = choice.sample()
                old[t], worth[t] = choice.log_prob(action[t]), value(seen[t]).view(-1)
            following, gain, over = lamps.step(action[t].numpy())
            after[t], reward[t], ended[t] = (
                torch.from_numpy(np.asarray(a, np.float32)) for a in (following, gain, over)
            )
        with torch.no_grad():
            error = reward + s.gamma * value(after)[..., 0] - worth
            advantage, later = torch.zeros_like(reward), torch.zeros(envs)
            for t in reversed(range(s.steps)):
                advantage[t] = later = error[t] + s.gamma * s.gae_lambda * (1 - ended[t]) * later
        flat = [a.reshape(rows, *a.shape[2:]) for a in (seen, action, old, worth, advantage, advantage + worth)]
        order = np.arange(rows)
        for _ in range(s.epochs):
            lamps.random.shuffle(order)
            for chosen in order.reshape(s.minibatches, -1):
                optimiser.zero_grad()
                loss(policy, value, tuple(a[chosen] for a in flat), s).backward()
                torch.nn.utils.clip_grad_norm_(both, s.max_grad_norm)
                optimiser.step()

    return iteration
