"""Imagination as in Dreamer: a policy is trained inside a learned model of the world, in one program.

Two phases share one iteration. The model is fitted to real transitions of a small control task. The policy is
unrolled in the model for a few imagined steps, and the gradient of the imagined reward flows through those steps:
dims `i` (iterations) and `k` (imagined steps), and nothing else to write.
"""

from __future__ import annotations

import numpy as np

import polyrhythm as pr
from polyrhythm import nn, optim

BATCH, STEPS = 32, 8


class Agent(nn.Module):
    """A model of the world, and a policy."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.model, self.policy = nn.MLP((3, 24, 2), rng=rng), nn.MLP((2, 24, 1), rng=rng)


def world(state: pr.Tensor, action: pr.Tensor) -> pr.Tensor:
    """The true dynamics: a point with friction that is pushed."""
    place, speed = state.axes[:, 0], state.axes[:, 1]
    speed = 0.9 * speed + 0.3 * action
    return pr.stack([place + 0.5 * speed, speed], 1)


def reward(state: pr.Tensor) -> pr.Tensor:
    return -(state.axes[:, 0] ** 2) - 0.1 * state.axes[:, 1] ** 2


def build() -> tuple[pr.Program, pr.Bound]:
    """Training of model and policy; the reward is measured in the real world."""
    i, I = pr.dim("i")
    k, K = pr.dim("k")
    agent = Agent(np.random.default_rng(0))
    fitted = optim.over(i, {n: w for n, w in agent.parameters().items() if n.startswith("model")})
    acting = optim.over(i, {n: w for n, w in agent.parameters().items() if n.startswith("policy")})

    def predicted(state: pr.Tensor, action: pr.Tensor, weights: dict[str, pr.Tensor]) -> pr.Tensor:
        return state + agent.using(weights | acting).model(pr.concat([state, action.unsqueeze(1)], 1))

    def chosen(state: pr.Tensor) -> pr.Tensor:
        return 2 * pr.tanh(agent.using(fitted | acting).policy(state).axes[:, 0])

    # Phase one: fit the model to what the world did.
    seen = pr.normal((BATCH, 2), dims=(i,), name="seen")
    tried = 2 * pr.uniform((BATCH,), -1, 1, dims=(i,), name="tried")
    error = ((predicted(seen, tried, fitted) - world(seen, tried)) ** 2).mean()
    optim.adam(i, fitted, pr.grad(error, fitted), 1e-2)

    # Phase two: dream, and follow the gradient of the imagined reward.
    start = pr.normal((BATCH, 2), dims=(i,), name="start")
    frozen = {name: pr.detach(w) for name, w in fitted.items()}
    dream, real = (pr.recurrent((BATCH, 2), (i, (k, K + 1))) for _ in range(2))
    dream[i, 0] = start
    dream[i, k + 1] = predicted(dream, chosen(dream), frozen)
    regret = -reward(dream[{k: k + 1}]).mean()[{k: slice(0, K)}].mean()
    optim.adam(i, acting, pr.grad(regret, acting), 1e-2)

    # What the policy earns in the world.
    real[i, 0] = start
    real[i, k + 1] = world(real, chosen(real))
    earned = reward(real[{k: k + 1}]).mean()[{k: slice(0, K)}].mean()
    outputs = {"error": error[0:I], "imagined": -regret[0:I], "earned": earned[0:I]}
    return pr.compile(outputs, bounds={K: STEPS}), I


def main(iterations: int = 150) -> None:
    program, I = build()
    result = program(bounds={I: iterations}, seed=1)
    for name, figures in result.items():
        print(f"{name:9} {figures[:10].mean():8.4f} -> {figures[-10:].mean():8.4f}")
    assert result["error"][-10:].mean() < 0.1 * result["error"][:10].mean()
    assert result["earned"][-10:].mean() > result["earned"][:10].mean() + 0.2


if __name__ == "__main__":
    main()
