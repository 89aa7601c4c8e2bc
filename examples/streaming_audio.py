"""Audio as it comes: a filter, an envelope and a gate over a stream of blocks, with the memory of a few samples.

The program is written over all time. Run as a stream it takes each block just before it is needed, and hands out the
block that it makes; what it remembers between two blocks follows from the indices.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import polyrhythm as pr

BLOCK, RATE = 64, 8000
TAPS = np.hanning(9).astype("float32")
TAPS /= TAPS.sum()


def build() -> tuple[pr.Program, pr.Dim, pr.Bound]:
    """Smooth, follow the loudness, and silence what is quiet."""
    t, T = pr.dim("t")
    sound = pr.input("sound", (BLOCK,), (t,))
    before = pr.where(t > 0, sound[pr.max(0, t - 1)], 0.0)
    both = pr.concat([before.axes[BLOCK - 8 :], sound], 0)
    smooth = sum(float(tap) * both.axes[8 - n : 8 - n + BLOCK] for n, tap in enumerate(TAPS))
    loud = pr.recurrent((), (t,))
    loud[0] = pr.sqrt((smooth**2).mean())[0]
    loud[t + 1] = 0.8 * loud + 0.2 * pr.sqrt((smooth**2).mean())[t + 1]
    gated = pr.where(loud > 0.1, smooth, 0.0)
    return pr.compile({"sound": gated, "loud": loud}, backend="numpy"), t, T


def microphone(blocks: int) -> Iterator[np.ndarray]:
    """A tone that comes and goes, with noise."""
    rng = np.random.default_rng(0)
    for number in range(blocks):
        at = (np.arange(BLOCK) + number * BLOCK) / RATE
        tone = np.sin(2 * np.pi * 440 * at) * (number % 40 < 20)
        yield (tone + 0.02 * rng.normal(size=BLOCK)).astype("float32")


def reference(sound: np.ndarray) -> np.ndarray:
    """The same over the whole recording, with NumPy."""
    smooth = np.convolve(sound.reshape(-1), TAPS)[: sound.size].reshape(sound.shape)
    loud, out = None, []
    for block in smooth:
        now = np.sqrt((block**2).mean())
        loud = now if loud is None else 0.8 * loud + 0.2 * now
        out.append(block if loud > 0.1 else 0 * block)
    return np.array(out)


def main(blocks: int = 80) -> None:
    program, t, T = build()
    out = [step["sound"] for step in program.stream(over=t, bounds={T: blocks}, sound=microphone(blocks))]
    assert np.allclose(out, reference(np.array(list(microphone(blocks)))), atol=1e-5)
    silent = sum(not block.any() for block in out)
    print(f"{blocks} blocks of {BLOCK} samples, {silent} of them silenced")
    print(program.schedule)


if __name__ == "__main__":
    main()
