"""Continuous batching: texts that begin and end at steps of their own, in the slots of one program that goes on.

The program is `programs.slotted`: a recurrence over steps in which a slot is a row of every value. The host gives it a
token for each slot and step, of a prompt while there is one, and says where a text begins; what earlier texts left in
a slot is not seen, and positions count from where a text began, so a text gets the tokens that it gets alone. A prompt
enters one token a step. What is stored of the past is a ring of `context` steps, whatever the number of texts that
went through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyrhythm.llm.errors import PromptError
from polyrhythm.llm.model import Model
from polyrhythm.llm.programs import Generating, has_slots, slotted
from polyrhythm.llm.sampling import Sampling, sampling
from polyrhythm.llm.serving.requests import Request
from polyrhythm.llm.writing import Piece, Row

STEPS = 4096
"""A stream of the program has so many steps; the next text begins another when it has too few left."""


@dataclass
class _Text:
    """A text in a slot: its request, how many of its tokens have been read or written, and what it has written."""

    request: Request
    row: Row
    length: int = 0


class Slots:
    """The slots of one model."""

    def __init__(self, model: Model, count: int, context: int) -> None:
        self.model, self.count, self.context = model, count, context
        self.known = context > 0 and model.pattern is None and has_slots(model.config)
        self._texts: list[_Text | None] = [None] * count
        self._program: Generating | None = None
        self._stream: Any = None
        self._step = 0

    @property
    def requests(self) -> list[Request]:
        """Those that are being answered."""
        return [text.request for text in self._texts if text is not None]

    def takes(self, request: Request) -> bool:
        """Whether a request is for slots: greedy, without options that look at other tokens, and not too long."""
        if not self.known or request.work is not None:
            return False
        how = self._how(request)
        if how is None or how.n > 1 or not replace(how, stop=()).plain:
            return False
        return len(request.tokens) + request.max_new_tokens <= min(self.context, STEPS)

    def begin(self, request: Request) -> bool:
        """Put a request into a slot; False if none is free, or the stream has too few steps left."""
        if not self.requests and self._step:
            self._ended()
        left = STEPS - self._step
        free = next((n for n, text in enumerate(self._texts) if text is None), None)
        if free is None or len(request.tokens) + request.max_new_tokens > left:
            return False
        how = self._how(request)
        assert how is not None, "it was taken"
        row = Row(self.model.tokenizer, request.tokens, request.max_new_tokens, how.ends, how.stop)
        self._texts[free] = _Text(request, row)
        return True

    def _how(self, request: Request) -> Sampling | None:
        """The options of a request, read once; None if they are wrong, which whoever asked is told when it is run."""
        if request.sampling is None:
            options: Any = dict(request.options)
            try:
                request.sampling = sampling(self.model.config.vocabulary, self.model.config.ends, **options)
            except PromptError:
                return None
        return request.sampling

    def drop(self, request: Request) -> None:
        """Free the slot of a request."""
        self._texts = [None if text is not None and text.request is request else text for text in self._texts]

    def clear(self) -> None:
        """Free all slots, after an error."""
        self._texts = [None] * self.count
        self._ended()

    def step(self) -> list[tuple[Request, Piece]]:
        """One step of all slots: the new token of each text whose prompt has been read."""
        if self._stream is None:
            self._stream = self._begun()
        tokens = np.asarray(next(self._stream))
        self._step += 1
        pieces = []
        for number, text in enumerate(self._texts):
            if text is None:
                continue
            text.length += 1
            if text.length > len(text.request.tokens):
                piece = text.row.add(int(tokens[number]))
                pieces.append((text.request, piece))
                if piece.finish_reason is not None:
                    self._texts[number] = None
        return pieces

    def _begun(self) -> Any:
        if self._program is None:
            self._program = slotted(self.model.config, self.count, self.context, self.model.backend)
        program, weights = self._program, self.model.weights
        inputs: dict[str, Any] = {"given": self._given(), "begin": self._begin()}
        steps = program.program.stream(
            over=program.t, library="numpy", bounds={program.given: STEPS}, **inputs, **weights
        )
        return iter(steps)

    def _ended(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream, self._step = None, 0

    def _given(self) -> Iterator[np.ndarray]:
        """The next token of each prompt; -1 where a text is written; any token in a slot that is free."""
        while True:
            row = np.zeros(self.count, np.int32)
            for number, text in enumerate(self._texts):
                if text is not None:
                    prompt = text.request.tokens
                    row[number] = prompt[text.length] if text.length < len(prompt) else -1
            yield row

    def _begin(self) -> Iterator[np.ndarray]:
        while True:
            yield np.array([text is None or text.length == 0 for text in self._texts])
