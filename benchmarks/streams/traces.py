"""Traces for the studies: routing decisions and KV lengths, from the data folder or made up.

The published traces are not part of this project. Where their folder is missing, traces of the same counts are made: as
many tokens for every expert, as many KV tiles in the batch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.streams.counts import KV_COUNTS, ROUTING_COUNTS

DATA_VARIABLE = "POLYRHYTHM_STEP_DATA"
SYNTHETIC = "synthetic"
_SYNTHETIC_KV = ("kv_b16_stdev1456_2805_2820", "kv_b64_stdev1457_0961_1024")

DECODER_TRACE = "kv_b64_stdev0996_4007_4070"
"""The context lengths of the end-to-end study."""


@dataclass(frozen=True)
class Trace:
    """A named array: the stem of the file it came from, or "synthetic"."""

    name: str
    values: np.ndarray


@dataclass(frozen=True)
class Traces:
    """All traces of the studies. `folder` is None when they are synthetic."""

    folder: Path | None

    def routing(self, stem: str) -> Trace:
        """The experts of every token, shape (batch, chosen).

        >>> Traces(None).routing("routing_mixtral_b64").values.shape
        (64, 2)
        """
        if self.folder is None:
            batch = int(stem.rsplit("_b", 1)[1])
            return Trace(SYNTHETIC, synthetic_routing(ROUTING_COUNTS[stem], batch))
        return Trace(stem, np.load(self.folder / f"{stem}.npz")["data"])

    def kv_lengths(self) -> list[Trace]:
        """Context lengths of batches of requests; one batch of each size when they are synthetic.

        >>> [len(trace.values) for trace in Traces(None).kv_lengths()]
        [16, 64]
        """
        if self.folder is None:
            return [Trace(SYNTHETIC, synthetic_lengths(*KV_COUNTS[stem])) for stem in _SYNTHETIC_KV]
        return [Trace(path.stem, np.load(path)) for path in sorted(self.folder.glob("kv_b*.npy"))]

    def decoder_lengths(self) -> Trace:
        """The context lengths of whole layers: the paper's trace, or the largest batch.

        >>> len(Traces(None).decoder_lengths().values)
        64
        """
        every = self.kv_lengths()
        return next((t for t in every if t.name == DECODER_TRACE), max(every, key=lambda trace: len(trace.values)))


def find_traces(folder: str | os.PathLike[str] | None = None) -> Traces:
    """The traces of `folder`, else of $POLYRHYTHM_STEP_DATA, else of ../shared/data/step, else synthetic ones.

    >>> find_traces("/nowhere").folder is None
    True
    """
    repository = Path(__file__).resolve().parents[2]
    if folder is not None:
        chosen = Path(folder)
    elif DATA_VARIABLE in os.environ:
        chosen = Path(os.environ[DATA_VARIABLE])
    else:
        chosen = repository.parent / "shared" / "data" / "step"
    return Traces(chosen if (chosen / "routing_mixtral_b64.npz").exists() else None)


def synthetic_routing(counts: Sequence[int], batch: int) -> np.ndarray:
    """A routing in which expert i gets counts[i] tokens and no token the same expert twice.

    Places are dealt out in rotation, expert by expert, so one expert's places are `batch` apart at most once; the
    tokens are then shuffled, with a fixed seed.

    >>> synthetic_routing([2, 1, 1], 2).shape
    (2, 2)
    """
    experts = np.repeat(np.arange(len(counts)), counts)
    table = experts.reshape(-1, batch).T
    return np.sort(np.random.default_rng(0).permutation(table), axis=1)


def synthetic_lengths(batch: int, tiles: int, deviation: int, tile_rows: int = 32) -> np.ndarray:
    """Context lengths with the given sum of KV tiles, and about the given standard deviation.

    >>> lengths = synthetic_lengths(16, 877, 1456)
    >>> int((-(-(lengths + 1) // 32)).sum())
    877
    """
    generator = np.random.default_rng(0)
    mean = tiles * tile_rows / batch
    spread = np.sqrt(np.log1p((deviation / mean) ** 2))
    drawn = np.exp(generator.normal(-(spread**2) / 2, spread, batch)) * mean
    share = np.maximum(1, np.floor(drawn / drawn.sum() * tiles)).astype(np.int64)
    while share.sum() != tiles:
        share[int(np.argmax(share))] += 1 if share.sum() < tiles else -1
    return share * tile_rows - 1 - generator.integers(0, tile_rows, batch)
