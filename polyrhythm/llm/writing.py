"""The text of a sequence as its tokens come: pieces, stop strings, and why it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyrhythm.llm.joining import Joiner


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of a token under the model, before any option of sampling, and those of the likeliest."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Generated:
    """What a model wrote after a prompt: the new tokens, the one that ended it among them, and their text.

    `text` is what they add to the text of the prompt's tokens, up to a stop string; None if there is no tokenizer.
    `finish_reason` is "stop" where the model or a stop string ended it, "length" where the limit did. `score` is what
    beam search ranks texts by.
    """

    tokens: np.ndarray
    text: str | None
    finish_reason: str
    prompt_tokens: int
    logprobs: tuple[TokenLogprob, ...] | None = None
    score: float | None = None


@dataclass(frozen=True)
class Piece:
    """One new token of a stream, and the text that it completes. All texts together are that of `Generated`.

    `finish_reason` is None until the last piece of a sequence.
    """

    token: int
    text: str
    finish_reason: str | None = None
    logprob: TokenLogprob | None = None


class Row:
    """One sequence while it is written: at most `limit` tokens, ended by one of `ends` or a string of `stop`."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], limit: int, ends: Sequence[int], stop: Sequence[str]):
        self._joiner = None if tokenizer is None else Joiner(tokenizer, prompt)
        self._left, self._ends, self._stop, self._held = limit, frozenset(ends), tuple(stop), ""
        self.finish_reason: str | None = None

    def add(self, token: int, logprob: TokenLogprob | None = None) -> Piece:
        """The piece that a token makes. Text that may begin a stop string is held back until it cannot."""
        self._left -= 1
        if token in self._ends:
            self.finish_reason = "stop"
        elif not self._left:
            self.finish_reason = "length"
        text = "" if self._joiner is None else self._joiner.add(token, last=self.finish_reason is not None)
        self._held += text
        found = [place for place in map(self._held.find, self._stop) if place >= 0]
        if found:
            self.finish_reason, text, self._held = "stop", self._held[: min(found)], ""
        else:
            kept = 0 if self.finish_reason is not None else self._open()
            text, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return Piece(token, text, self.finish_reason, logprob)

    def _open(self) -> int:
        """How much of the end could begin a stop string."""
        longest = max((len(stop) for stop in self._stop), default=0) - 1
        for count in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-count:]) for stop in self._stop):
                return count
        return 0
