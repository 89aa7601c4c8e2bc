"""Continuous batching: texts that begin and end at steps of their own, in the slots of one program that goes on.

The host gives the program (`programs.slotted`) a token for each slot and step, of a prompt while there is one, and says
where a text begins; what earlier texts left in a slot is not seen, and positions count from where a text began, so a
text gets the tokens that it gets alone. What is stored of the past is a ring of `context` steps, whatever the number of
texts that went through.

The program says the likeliest token after each step. Those of a text with other options are chosen on the host
(`drawing.py`) from the logits that it has stored.

A short prompt enters its slot one token a step. A longer one is read in chunks by a program of its own, one chunk
between two steps, so that texts beside it go on; what that stores is then written to where the slot stores it. What
was read is kept for a while: a prompt that begins like an earlier one is read from where they differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from polyrhythm.llm.batches import Batch
from polyrhythm.llm.model import Model
from polyrhythm.llm.programs import Generating, has_slots
from polyrhythm.llm.sampling import Sampling, sampling
from polyrhythm.llm.serving.drawing import Drawing
from polyrhythm.llm.serving.programs import FREE, Layers, Reading, reading, slotted
from polyrhythm.llm.serving.requests import Request
from polyrhythm.llm.writing import Piece, Row

STEPS = 4096
"""A stream of the program has so many steps; the next text begins another when it has too few left."""

SHORT, CHUNK = 16, 64
"""Prompts of at most so many tokens enter by steps; of longer ones so many are read between two steps."""


@dataclass
class _Text:
    """A text in a slot: its request, how many of its tokens have been read or written, and what it has written.

    `tokens` are those of the prompt and those that were written; `drawing` chooses these if not the likeliest are.
    `sample` counts the texts of one request.
    """

    request: Request
    row: Row
    tokens: list[int]
    sample: int = 0
    drawing: Drawing | None = None
    length: int = 0
    read: Layers | None = None  # what layers store of the prompt, as far as it was read; None if it enters by steps

    @property
    def waits(self) -> bool:
        """Whether the prompt is still read."""
        return self.read is not None and self.length < len(self.request.tokens) - 1


class Slots:
    """The slots of one model."""

    def __init__(self, model: Model, count: int, context: int) -> None:
        self.model, self.count, self.context = model, count, context
        coded = model.config.kv_dtype == np.dtype("int8")
        self.known = context > 0 and model.pattern is None and has_slots(model.config) and not coded
        self.prefixes = Prefixes()
        self._texts: list[_Text | None] = [None] * count
        self._program: Generating | None = None
        self._reading: Reading | None = None
        self._stream: Any = None
        self._step = 0

    @property
    def requests(self) -> list[Request]:
        """Those that are being answered."""
        return list(dict.fromkeys(text.request for text in self._texts if text is not None))

    def takes(self, request: Request) -> bool:
        """Whether a request is for slots: as many texts as there are, chosen token by token, and not too long."""
        if not self.known or request.work is not None:
            return False
        how = self.how(request)
        if how.n > self.count or how.num_beams > 1 or how.draft_model is not None or how.choice.processors:
            return False
        return len(request.tokens) + request.max_new_tokens <= min(self.context, STEPS)

    def begin(self, request: Request) -> bool:
        """Put a request into slots, one for each sample; False if too few are free, or the stream is near its end."""
        if not self.requests and len(request.tokens) + request.max_new_tokens > STEPS - self._step:
            self._ended()
        left, how = STEPS - self._step, self.how(request)
        free = [n for n, text in enumerate(self._texts) if text is None][: how.n]
        if len(free) < how.n or len(request.tokens) + request.max_new_tokens > left:
            return False
        read = (self.prefixes.longest(request.tokens[:-1]) or {}) if self.reads(request) else None
        request.reused = 0 if read is None else _length(read)
        drawings: Sequence[Drawing | None] = self.drawings(request) or [None] * how.n
        for sample, (slot, drawing) in enumerate(zip(free, drawings, strict=True)):
            row = Row(self.model.tokenizer, request.tokens, request.max_new_tokens, how.ends, how.stop)
            text = _Text(request, row, list(request.tokens), sample, drawing, request.reused, read)
            self._texts[slot] = text
        return True

    def drawings(self, request: Request) -> list[Drawing] | None:
        """What chooses the tokens of each sample, if not the program; `PromptError` if the options are wrong."""
        how, model = self.how(request), self.model
        if request.drawings is None and not replace(how, stop=(), n=1).plain:
            constraint = None if how.schema is None else model.constraint(how)
            is_dim = Batch.of(how.n, model.backend, bool(model.config.formats)).is_dim
            request.drawings = [Drawing(how, request.tokens, constraint, row, is_dim) for row in range(how.n)]
        return request.drawings

    def reads(self, request: Request) -> bool:
        """Whether a prompt is read in chunks. What it stores is written to steps that the stream has had."""
        return SHORT < len(request.tokens) <= self._step + 1

    def how(self, request: Request) -> Sampling:
        """The options of a request, read once; `PromptError` if they are wrong."""
        if request.sampling is None:
            options: Any = dict(request.options)
            request.sampling = sampling(self.model.config.vocabulary, self.model.config.ends, **options)
        return request.sampling

    def drop(self, request: Request) -> None:
        """Free the slot of a request."""
        self._texts = [None if text is not None and text.request is request else text for text in self._texts]

    def clear(self) -> None:
        """Free all slots, after an error."""
        self._texts = [None] * self.count
        self._ended()

    def step(self) -> list[tuple[Request, int, Piece]]:
        """A chunk of a prompt, if one is to be read, and one step of the slots.

        What it returns is the new token of each text there, with its request and the number of the sample.
        """
        self._read()
        if all(text is None or text.waits for text in self._texts):
            return []
        if self._stream is None:
            self._stream = self._begun()
        going = [(number, text) for number, text in enumerate(self._texts) if text is not None and not text.waits]
        for number, text in going:
            if text.read is not None:
                self._write(number, text.read)
        likeliest, scores, pieces = np.asarray(next(self._stream)), None, []
        for number, text in going:
            text.length, text.read = text.length + 1, None
            if text.length < len(text.tokens):
                continue
            token, logprob = int(likeliest[number]), None
            if text.drawing is not None:
                scores = self._stream.stored("scores", self._step) if scores is None else scores
                token, logprob = text.drawing(scores[number], text.length)
            text.tokens.append(token)
            piece = text.row.add(token, logprob)
            pieces.append((text.request, text.sample, piece))
            if piece.finish_reason is not None:
                self._texts[number] = None
        self._step += 1
        return pieces

    def _read(self) -> None:
        """The next chunk of the prompt that is nearest to its end."""
        waiting = [text for text in self._texts if text is not None and text.waits]
        if not waiting:
            return
        text = min(waiting, key=lambda text: len(text.request.tokens) - text.length)
        tokens = text.request.tokens[:-1]
        if self._reading is None:
            devices = self.model.devices(scores=False)
            self._reading = reading(self.model.config, self.context, self.model.backend, **devices)
        past = text.read or self._reading.nothing()
        read = self._reading(tokens[: text.length + CHUNK], past, self.model.weights)
        for other in waiting:  # samples of one prompt read it once
            if other.request is text.request:
                other.read, other.length = read, _length(read)
        if not text.waits:
            self.prefixes.keep(tokens, read)

    def _write(self, slot: int, read: Layers) -> None:
        """Let a slot have read the tokens of a prompt before this step."""
        length = _length(read)
        room = 1 << (length - 1).bit_length()
        if room > min(self._step, self.context):
            room = length
        # Steps before the text are not seen, so it does no harm to write there too: lengths are then few.
        steps = np.arange(self._step - room, self._step)
        for name, own in read.items():
            padded = np.pad(own, ((0, 0), (room - length, 0), (0, 0), (0, 0)))
            self._stream.replace(name, [slice(None), steps, slot], padded)

    def _begun(self) -> Any:
        if self._program is None:
            devices = self.model.devices()
            self._program = slotted(self.model.config, self.count, self.context, self.model.backend, **devices)
        program, weights = self._program, self.model.weights
        inputs: dict[str, Any] = {"given": self._given(), "read": self._known()}
        steps = program.program.stream(
            over=program.t, library="numpy", bounds={program.given: STEPS}, **inputs, **weights
        )
        return iter(steps)

    def _ended(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream, self._step = None, 0

    def _given(self) -> Iterator[np.ndarray]:
        """The next token of each text."""
        while True:
            row = np.full(self.count, FREE, np.int32)
            for number, text in enumerate(self._texts):
                if text is not None and not text.waits:
                    row[number] = text.tokens[text.length]
            yield row

    def _known(self) -> Iterator[np.ndarray]:
        """How many tokens of a text are there where it begins; -1 where it goes on."""
        while True:
            row = np.zeros(self.count, np.int32)
            for number, text in enumerate(self._texts):
                if text is not None and not text.waits and (text.length or text.read):
                    row[number] = text.length if text.read else -1
            yield row


@dataclass
class Prefixes:
    """What layers stored of prompts that were read lately, `most` bytes of it."""

    most: int = 64 << 20
    _kept: dict[tuple[int, ...], Layers] = field(default_factory=dict)

    def longest(self, tokens: Sequence[int]) -> Layers | None:
        """What is known of the beginning of a text."""
        found, length = None, SHORT
        for own in self._kept:
            same = np.flatnonzero(np.array(own[: len(tokens)]) != np.array(tokens[: len(own)]))
            shared = int(same[0]) if same.size else min(len(own), len(tokens))
            if shared > length:
                found, length = own, shared
        if found is None:
            return None
        self._kept[found] = self._kept.pop(found)  # used last
        return {name: array[:, :length] for name, array in self._kept[found].items()}

    def keep(self, tokens: Sequence[int], read: Layers) -> None:
        """Keep what was read; what was not used for the longest time is dropped."""
        self._kept.pop(tuple(tokens), None)
        self._kept[tuple(tokens)] = read
        while self.nbytes > self.most:
            del self._kept[next(iter(self._kept))]

    @property
    def nbytes(self) -> int:
        """How many bytes are kept."""
        return sum(array.nbytes for own in list(self._kept.values()) for array in own.values())


def _length(read: Layers) -> int:
    return next(iter(read.values())).shape[1] if read else 0
