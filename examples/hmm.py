"""A hidden Markov model: forward-backward, and learning by the gradient of the evidence instead of EM.

The forward recurrence is enough to train: its gradient *is* the backward pass, which nobody writes.
"""

from __future__ import annotations

import itertools

import numpy as np

import polyrhythm as pr
from polyrhythm import optim

STATES, SYMBOLS = 2, 3


def evidence(t: pr.Dim, T: pr.Bound, seen: pr.Tensor, weights: dict[str, pr.Tensor]) -> pr.Tensor:
    """The log-probability of a sequence, from unnormalised logits."""
    start, move, show = (pr.log_softmax(weights[name], -1) for name in ("start", "move", "show"))
    shown = pr.take(show, seen, 1)
    forward = pr.recurrent((STATES,), (t,))
    forward[0] = start + shown[0]
    forward[t + 1] = pr.logsumexp(forward.unsqueeze(1) + move, 0) + shown[t + 1]
    return pr.logsumexp(forward[T - 1], 0)


def build() -> tuple[pr.Program, pr.Program, pr.Bound]:
    """The evidence of given weights, and a training run that makes it large."""
    t, T = pr.dim("t")
    seen = pr.input("seen", (), (t,), "int32")
    shapes = {"start": (STATES,), "move": (STATES, STATES), "show": (STATES, SYMBOLS)}
    given = {name: pr.input(name, shape) for name, shape in shapes.items()}
    i, I = pr.dim("i")
    rng = np.random.default_rng(1)
    parameters = {name: pr.parameter(name, shape, init=rng.normal(size=shape)) for name, shape in shapes.items()}
    trained = optim.over(i, parameters)
    forward = pr.recurrent((STATES,), (i, t))
    start, move, show = (pr.log_softmax(trained[name], -1) for name in shapes)
    shown = pr.take(show, seen, 1)
    forward[i, 0] = start + shown[{t: 0}]
    forward[i, t + 1] = pr.logsumexp(forward.unsqueeze(1) + move, 0) + shown[{t: t + 1}]
    loss = -pr.logsumexp(forward[i, T - 1], 0)
    optim.adam(i, trained, pr.grad(loss, trained), 0.1)
    learning = pr.compile({"loss": loss[0:I], "show": pr.softmax(trained["show"][I], -1)})
    return pr.compile(evidence(t, T, seen, given), backend="numpy"), learning, I


def brute_force(seen: np.ndarray, weights: dict[str, np.ndarray]) -> float:
    """The sum over all paths of hidden states."""
    start, move, show = (np.exp(w) / np.exp(w).sum(-1, keepdims=True) for w in weights.values())
    total = 0.0
    for path in itertools.product(range(STATES), repeat=len(seen)):
        p = start[path[0]] * show[path[0], seen[0]]
        for t in range(1, len(seen)):
            p *= move[path[t - 1], path[t]] * show[path[t], seen[t]]
        total += p
    return float(np.log(total))


def main() -> None:
    rng = np.random.default_rng(0)
    evidence, learning, I = build()
    weights = {"start": rng.normal(size=2), "move": rng.normal(size=(2, 2)), "show": rng.normal(size=(2, 3))}
    seen = rng.integers(0, SYMBOLS, 8).astype("int32")
    found = float(evidence(seen=seen, **{k: v.astype("float32") for k, v in weights.items()}))
    assert abs(found - brute_force(seen, weights)) < 1e-4
    state, shown = 0, []
    for _ in range(60):  # a sticky chain: state 0 shows 0 or 1, state 1 shows 2
        state = state if rng.random() < 0.9 else 1 - state
        shown.append(2 if state else int(rng.integers(0, 2)))
    result = learning(seen=np.array(shown, "int32"), bounds={I: 80})
    print(f"evidence {found:.4f}; minus log-likelihood {result['loss'][0]:.1f} -> {result['loss'][-1]:.1f}")
    print("what each state shows:", np.round(result["show"], 2).tolist())
    assert result["loss"][-1] < result["loss"][0] - 5


if __name__ == "__main__":
    main()
