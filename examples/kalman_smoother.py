"""A Kalman filter forwards and a Rauch-Tung-Striebel smoother backwards: two recurrences, one program.

The smoother at step t reads step t + 1 of itself and step t of the filter. So the filter's means and covariances are
kept for all steps: that is the only thing the compiler stores whole.
"""

from __future__ import annotations

import numpy as np

import polyrhythm as pr

DRIFT, NOISE = 0.1, 0.5


def inverse(m: pr.Tensor) -> pr.Tensor:
    """The inverse of a 2 x 2 matrix."""
    a, b, c, d = (m.axes[i, j] for i in range(2) for j in range(2))
    return pr.stack([pr.stack([d, -b]), pr.stack([-c, a])]) / (a * d - b * c)


def build() -> pr.Program:
    """Position and velocity from noisy positions."""
    t, T = pr.dim("t")
    seen = pr.input("seen", (), (t,))
    move = pr.constant([[1.0, 1.0], [0.0, 1.0]])
    mean, spread = pr.recurrent((2,), (t,)), pr.recurrent((2, 2), (t,))
    guess, loose = move @ mean, move @ spread @ move.transpose() + DRIFT * pr.eye(2)  # before the next step is seen

    def update(guess: pr.Tensor, loose: pr.Tensor, value: pr.Tensor) -> tuple[pr.Tensor, pr.Tensor]:
        gain = loose.axes[:, 0] / (loose.axes[0, 0] + NOISE)
        return guess + gain * (value - guess.axes[0]), loose - pr.outer(gain, loose.axes[0])

    mean[0], spread[0] = update(pr.zeros((2,)), pr.eye(2), seen[0])
    mean[t + 1], spread[t + 1] = update(guess, loose, seen[t + 1])

    smooth = pr.recurrent((2,), (t,))
    smooth[T - 1] = mean[T - 1]
    smooth[t < T - 1] = mean + spread @ move.transpose() @ inverse(loose) @ (smooth[t + 1] - guess)
    return pr.compile({"filtered": mean, "smoothed": smooth})


def reference(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    move, means, spreads, guesses = np.array([[1.0, 1.0], [0.0, 1.0]]), [], [], []
    guess, loose = np.zeros(2), np.eye(2)
    for value in seen:
        guesses.append((guess, loose))
        gain = loose[:, 0] / (loose[0, 0] + NOISE)
        means.append(guess + gain * (value - guess[0]))
        spreads.append(loose - np.outer(gain, loose[0]))
        guess, loose = move @ means[-1], move @ spreads[-1] @ move.T + DRIFT * np.eye(2)
    smooth = [means[-1]]
    for t in reversed(range(len(seen) - 1)):
        guess, loose = guesses[t + 1]
        smooth.insert(0, means[t] + spreads[t] @ move.T @ np.linalg.inv(loose) @ (smooth[0] - guess))
    return np.array(means), np.array(smooth)


def main() -> None:
    rng = np.random.default_rng(0)
    true = np.cumsum(np.cumsum(rng.normal(size=200)) * DRIFT)
    seen = (true + rng.normal(size=200)).astype("float32")
    program = build()
    found = program(seen=seen)
    filtered, smoothed = reference(seen.astype("float64"))
    assert np.allclose(found["filtered"], filtered, rtol=1e-3, atol=1e-2)
    assert np.allclose(found["smoothed"], smoothed, rtol=1e-3, atol=1e-2)
    for name in ("filtered", "smoothed"):
        print(f"{name}: mean error {np.abs(found[name][:, 0] - true).mean():.3f}")
    assert np.abs(found["smoothed"][:, 0] - true).mean() < np.abs(found["filtered"][:, 0] - true).mean()
    print(program.schedule)


if __name__ == "__main__":
    main()
