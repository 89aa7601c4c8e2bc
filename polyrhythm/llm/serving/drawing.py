"""The next token of one text in a slot, chosen on the host from the logits that the program has stored.

What `sampling.py` says of logits in a program, here in NumPy for one row: so texts with options of their own share one
program, and those that are greedy do not pay for them. A draw is by the number that a program draws for a text alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyrhythm.compiler.ir.ops.random import key_of, threefry
from polyrhythm.llm.constraints import Constraint
from polyrhythm.llm.sampling import Sampling
from polyrhythm.llm.writing import TokenLogprob

FIRST = 256
"""So many of the likeliest tokens are looked at first where their probabilities are added up."""

_ZERO = np.uint32(0)


class Drawing:
    """Chooses the tokens of a text; with a constraint among those that it allows.

    Of several samples each is a row of its own, whose number is a step of a dim or an element of an axis (`Batch`).
    """

    def __init__(
        self, how: Sampling, prompt: Sequence[int], constraint: Constraint | None, row: int = 0, is_dim: bool = False
    ) -> None:
        self.how, self.seen, self.written = how, set(prompt), dict[int, int]()
        self.row, self.is_dim = row, is_dim
        self.tokens: list[int] = []
        self.masks = None if constraint is None else constraint.masks([self.tokens], [0])

    def __call__(self, logits: np.ndarray, length: int) -> tuple[int, TokenLogprob | None]:
        """The token after so many others, and its log-probability if that is asked for."""
        adjusted = self._adjusted(np.array(logits, np.float32))
        if self.masks is not None:
            adjusted[~next(self.masks)[0]] = -np.inf
        if not self.how.choice.draws:
            token = int(adjusted.argmax())
        else:  # where masks are given step by step, the draw belongs to the step after them
            token = self._drawn(adjusted, length - (self.masks is None))
        self.tokens.append(token)
        self.seen.add(token)
        self.written[token] = self.written.get(token, 0) + 1
        return token, self._logprob(logits, token)

    def _adjusted(self, logits: np.ndarray) -> np.ndarray:
        """Logits with bias and penalties, in place."""
        choice, inputs = self.how.choice, self.how.inputs
        if choice.biased:
            logits += inputs["logit_bias"]
        if choice.repetition:
            there, penalty = np.array(sorted(self.seen)), np.float32(inputs["repetition_penalty"])
            own = logits[there]
            logits[there] = np.where(own < 0, own * penalty, own / penalty)
        if choice.counted and self.written:
            new, counts = np.array([*self.written]), np.array([*self.written.values()], np.float32)
            presence, frequency = (np.float32(inputs[f"{name}_penalty"]) for name in ("presence", "frequency"))
            logits[new] = logits[new] - presence - counts * frequency
        return logits

    def _drawn(self, logits: np.ndarray, step: int) -> int:
        choice, inputs = self.how.choice, self.how.inputs
        scaled = (logits - logits.max()) / np.float32(inputs["temperature"])
        tokens: np.ndarray | None = None
        if choice.top_k is not None:
            tokens = _likeliest(scaled, choice.top_k)
            scaled = scaled[tokens]
        if choice.top_p:
            kept = _together(scaled, inputs["top_p"])
            tokens, scaled = kept if tokens is None else tokens[kept], scaled[kept]
        if choice.min_p:
            kept = np.flatnonzero(scaled >= np.log(np.float32(inputs["min_p"])))
            tokens, scaled = kept if tokens is None else tokens[kept], scaled[kept]
        if choice.typical_p:
            kept = _typical(scaled, inputs["typical_p"])
            tokens, scaled = kept if tokens is None else tokens[kept], scaled[kept]
        weights = np.exp(scaled - scaled.max())
        running = np.cumsum(weights)
        at, element = ((self.row, step), 0) if self.is_dim else ((step,), self.row)
        bits = threefry(key_of(self.how.seed, "token", at), (np.uint32(element), _ZERO))[0]
        mark = np.float32(bits >> np.uint32(8)) * np.float32(2.0**-24) * running[-1]
        place = int(((weights > 0) & (running > mark)).argmax())
        return place if tokens is None else int(tokens[place])

    def _logprob(self, logits: np.ndarray, token: int) -> TokenLogprob | None:
        count = self.how.choice.logprobs
        if count is None:
            return None
        peak = logits.max()
        normal = logits - peak - np.log(np.exp(logits - peak).sum())
        top = _likeliest(normal, count) if count else np.zeros(0, int)
        alternatives = zip(top.tolist(), normal[top].tolist(), strict=True)
        return TokenLogprob(token, float(normal[token]), tuple(alternatives))


def _likeliest(scores: np.ndarray, count: int) -> np.ndarray:
    """The tokens with the largest scores, the largest first, of equal ones the first.

    >>> _likeliest(np.array([1.0, 3.0, 2.0, 3.0]), 3).tolist()
    [1, 3, 2]
    """
    places = np.arange(len(scores))
    if count < len(scores):
        places = np.flatnonzero(scores >= np.partition(scores, -count)[-count])
    return places[np.argsort(-scores[places], kind="stable")][:count]


def _together(scaled: np.ndarray, share: float) -> np.ndarray:
    """The likeliest tokens that together have this share of the probability."""
    weights = np.exp(scaled - scaled.max())
    total, count = weights.sum(), FIRST
    while True:
        order = _likeliest(scaled, count)
        own = weights[order] / total
        before = np.cumsum(own) - own
        if count >= len(scaled) or before[-1] >= share:
            return order[before < np.float32(share)]
        count *= 8


def _typical(scaled: np.ndarray, share: float) -> np.ndarray:
    """Those whose surprise is nearest to the entropy, in that order, until they have this share."""
    shifted = scaled - scaled.max()
    normal = shifted - np.log(np.exp(shifted).sum())
    shares = np.exp(normal)
    surprise = -np.where(shares > 0, normal, np.float32(0))
    distance = np.where(shares > 0, np.abs(surprise - (shares * surprise).sum()), np.inf)
    order = np.argsort(distance, kind="stable")
    own = shares[order]
    return order[np.cumsum(own) - own < np.float32(share)]
