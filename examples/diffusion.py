"""A diffusion model of points on a ring: noise is added in one formula and taken away in a recurrence over steps.

Training draws a random amount of noise for every point; sampling walks back from pure noise, `x[s + 1]` from `x[s]`.
Both are one program each, and sampling keeps one point a sample, however many steps it takes.
"""

from __future__ import annotations

import numpy as np

import polyrhythm as pr
from polyrhythm import nn, optim

BATCH, LEVELS = 64, 24
KEPT = np.cumprod(1 - np.linspace(1e-3, 0.3, LEVELS)).astype("float32")  # how much of a point is left at a level
MODEL = nn.MLP((3, 48, 48, 2), rng=np.random.default_rng(0))


def noise_in(x: pr.Tensor, level: pr.Tensor, model: nn.Module) -> pr.Tensor:
    """The noise that a network sees in points; `level` is a number from 0 to 1 for each."""
    return model(pr.concat([x, level.unsqueeze(1)], 1))


def training() -> tuple[pr.Program, pr.Bound]:
    i, I = pr.dim("i")
    weights = optim.over(i, MODEL.parameters())
    angle = pr.uniform((BATCH,), 0, 2 * np.pi, dims=(i,), name="angle")
    points = pr.stack([pr.cos(angle), pr.sin(angle)], 1)
    level = pr.randint((BATCH,), 0, LEVELS, dims=(i,), name="level")
    noise = pr.normal((BATCH, 2), dims=(i,), name="noise")
    kept = pr.take(pr.constant(KEPT), level, 0).unsqueeze(1)
    blurred = pr.sqrt(kept) * points + pr.sqrt(1 - kept) * noise
    seen = noise_in(blurred, level.cast("float32") / LEVELS, MODEL.using(weights))
    loss = ((seen - noise) ** 2).mean()
    optim.adam(i, weights, pr.grad(loss, weights), 3e-3)
    last = {name: w[I] for name, w in weights.items()}
    return pr.compile({"loss": loss[0:I], "weights": last}), I


def sampling() -> tuple[pr.Program, pr.Bound]:
    s, S = pr.dim("s")  # the steps back
    kept = pr.constant(KEPT)
    now = kept.axes[LEVELS - 1 - s]  # the level of step s
    left = pr.where(s < LEVELS - 1, kept.axes[pr.max(0, LEVELS - 2 - s)], 1.0)
    x = pr.recurrent((BATCH, 2), ((s, S + 1),))
    level = pr.zeros((BATCH,)) + pr.value(LEVELS - 1 - s).cast("float32") / LEVELS
    noise = noise_in(x, level, MODEL.using(MODEL.parameters()))
    guess = (x - pr.sqrt(1 - now) * noise) / pr.sqrt(now)
    x[0] = pr.normal((BATCH, 2), name="start")
    x[s + 1] = pr.sqrt(left) * pr.clip(guess, -1.5, 1.5) + pr.sqrt(1 - left) * noise
    return pr.compile(x[S], bounds={S: LEVELS}), S


def main(iterations: int = 800) -> None:
    learn, I = training()
    result = learn(bounds={I: iterations}, seed=1)
    print(f"loss {result['loss'][:20].mean():.3f} -> {result['loss'][-20:].mean():.3f}")
    sample, _ = sampling()
    points = sample(**result["weights"], seed=2)
    distance = np.linalg.norm(points, axis=1)
    print(f"{BATCH} samples lie {distance.mean():.2f} +- {distance.std():.2f} from the middle of the ring of radius 1")
    assert abs(np.median(distance) - 1) < 0.25
    print(sample.schedule)


if __name__ == "__main__":
    main()
