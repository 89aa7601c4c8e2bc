"""Deep Q-learning in CartPole, written out: acting, replay, target network and Adam are one program.

    python examples/dqn.py

The replay buffer is not written anywhere. An update reads `pr.window(x, i, 2000)`, the last 2,000 iterations of what
was seen and done, and the compiler makes rings of that many. The target network is a recurrence that is renewed now
and then.
"""

from __future__ import annotations

import sys

import numpy as np

import polyrhythm as pr
from polyrhythm import nn, optim, rl

ENVS, STEPS, BATCH, REPLAY, GAMMA = 8, 2, 64, 2_000, 0.99


def main(iterations: int = 3_000, backend: str = "jax") -> float:
    """Train, and return the mean return of the last tenth of the iterations."""
    i, I = pr.dim("i")  # iterations: some steps of acting, then one update
    t, T = pr.dim("t")  # steps of all environments
    carts = rl.Arrays(rl.CartPole(), ENVS)

    # The network, and its weights as recurrences over iterations.
    network = nn.MLP([4, 64, 64, 2], rng=np.random.default_rng(0))
    first = network.parameters()
    weights = optim.over(i, first)
    target = optim.over(i, first)
    for name, slow in target.items():
        slow[i + 1] = pr.where(i % 100 == 99, weights[name][i + 1], slow)

    # Acting: the best action, or a random one.
    epsilon = optim.linear(i, 1.0, 0.05, 1_000)

    def act(seen: pr.Tensor) -> pr.Tensor:
        random = pr.randint((ENVS,), 0, 2, dims=(i, t), name="random actions")
        chance = pr.uniform((ENVS,), dims=(i, t), name="exploration")
        return pr.where(chance < epsilon, random, pr.argmax(network.using(weights)(seen), -1))

    steps = carts.run(i, t, act)

    # Replay: rows of the last iterations, drawn evenly.
    row = pr.randint((BATCH,), 0, pr.min(i + 1, REPLAY) * (STEPS * ENVS), dims=(i,), name="rows")

    def replayed(x: pr.Tensor) -> pr.Tensor:
        past = pr.window(pr.detach(x)[i, 0:STEPS], i, REPLAY)  # (iterations, steps, environments, ...)
        return pr.take(past.reshape((-1, *x.shape[1:])), row, 0)

    seen, action, reward, following, ended = map(
        replayed, (steps.observation, steps.action, steps.reward, steps.following, steps.terminated)
    )

    # The loss: (Q(s, a) - r - gamma max_a Q'(s', a)) ** 2.
    wanted = reward + GAMMA * (1.0 - ended.cast("float32")) * network.using(target)(following).max(-1)
    q = (network.using(weights)(seen) * pr.one_hot(action, 2)).sum(-1)
    loss = pr.square(q - pr.detach(wanted)).mean()
    optim.adam(i, weights, pr.grad(loss, weights), 1e-3)

    count, score = rl.episodes(i, t, steps)
    program = pr.compile({"return": score, "episodes": count}, bounds={T: STEPS}, backend=backend)
    found = program(bounds={I: iterations})
    score, count = (np.asarray(found[name]) for name in ("return", "episodes"))
    for part in np.array_split(np.arange(iterations), 10):
        mean = (score * count)[part].sum() / max(1, count[part].sum())
        print(f"{(part[-1] + 1) * STEPS * ENVS:7d} steps  return {mean:.1f}")
    return float(mean)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
