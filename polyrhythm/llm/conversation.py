"""Conversations that go on without being read again.

A conversation is one run of a program that does not end (`programs.continuing`): what the user says and what the model
answers are steps of one recurrence, so what an answer needs of the past is what the program stores anyway, whatever the
family of the model. The first message is read at once, those after it token by token.

Templates write the whole conversation each time. What they write must begin with what the model has read: the text of
the last prompt, the answer, and the token that ended it. Where it does not, because a template leaves parts of earlier
answers out, or a stop string cut one, the conversation is read from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polyrhythm.llm.arguments import whole
from polyrhythm.llm.chat import Message
from polyrhythm.llm.errors import PromptError
from polyrhythm.llm.sampling import sampling
from polyrhythm.llm.writing import Generated, Piece, Row

if TYPE_CHECKING:
    from polyrhythm.llm.model import Model

ROOM = 4096
"""A run has so many steps, or twice as many as are needed when it begins; one that is too short is begun again."""


class Conversation:
    """A conversation with a model. `Model.conversation` makes one.

    `messages` is what was said, `read` how many tokens the model has read for it, and `prompt_tokens` how many the last
    answer came after.
    """

    def __init__(self, model: Model, messages: Sequence[Message], options: Any) -> None:
        self.model, self.messages, self.read = model, [dict(message) for message in messages], 0
        self._how = sampling(model.config.vocabulary, model.config.ends, **options)
        how = self._how
        several = how.n > 1 or how.num_beams > 1 or how.draft_model is not None
        if several or how.schema is not None or how.choice.logprobs is not None:
            raise PromptError(
                "a conversation with n, num_beams, draft_model, json_schema or logprobs", fix="use model.chat"
            )
        self._run: _Run | None = None
        self.prompt_tokens = 0

    def send(self, message: str | Message, max_new_tokens: int = 512) -> Generated:
        """What the model answers to a text of the user, or to a message."""
        pieces = list(self.stream(message, max_new_tokens))
        tokens = np.array([piece.token for piece in pieces], np.int32)
        text, reason = "".join(piece.text for piece in pieces), pieces[-1].finish_reason or "length"
        return Generated(tokens, text, reason, self.prompt_tokens)

    def stream(self, message: str | Message, max_new_tokens: int = 512) -> Iterator[Piece]:
        """The same token by token. An answer that is not read to its end is kept as far as it was read."""
        count = whole(max_new_tokens, 1, f"{max_new_tokens!r} new tokens", "give max_new_tokens=1 or more, an integer")
        said: Any = {"role": "user", "content": message} if isinstance(message, str) else message
        text = self.model.apply_chat_template([*self.messages, said])
        said = dict(said)
        run = self._begun(text, count)
        self.messages.append(said)
        self.prompt_tokens = len(run.tokens)
        row = Row(self.model.tokenizer, run.tokens, count, self._how.ends, self._how.stop)
        answer, ended = "", False
        try:
            for token in run.answer():
                self.read += run.take_read()
                piece = row.add(token)
                answer += piece.text
                ended = piece.finish_reason is not None
                yield piece
                if ended:
                    break
        finally:
            self.messages.append({"role": "assistant", "content": answer})
            run.text = text + answer
            if not ended or self._cut(row):
                self._ended()

    def _cut(self, row: Row) -> bool:
        """Whether a stop string ended the answer: the model has read more than the answer then."""
        return bool(self._how.stop) and row.finish_reason == "stop"

    def _begun(self, text: str, count: int) -> _Run:
        """The run, which is to read what was added to the text; another one if it cannot."""
        tokenizer = self.model.reader.needed_tokenizer()
        if self._run is not None:
            rest = self._run.rest(text, tokenizer)
            if rest is not None:
                added = self.model.reader.encoded(rest)
                total = len(self._run.tokens) + len(added) + count
                if added and self._run.waits and total <= self._run.room:
                    self._check(total)
                    self._run.add(added)
                    return self._run
        tokens = self.model.reader.encoded(text)
        self._check(len(tokens) + count)
        self._ended()
        self._run = _Run(self.model, self._how, tokens, count)
        return self._run

    def _check(self, total: int) -> None:
        self.model.check_length(total)

    def _ended(self) -> None:
        if self._run is not None:
            self._run.close()
        self._run = None


class _Run:
    """One run of the program: the tokens so far, at which of them the last answer begins, and their text."""

    def __init__(self, model: Model, how: Any, tokens: list[int], count: int) -> None:
        self.tokens, self.text = list(tokens), ""
        self.ends = frozenset(how.ends)
        needed = 2 * (len(tokens) + count)
        limit = model.config.limit
        self.room = max(ROOM, needed) if limit is None else limit
        self._answer, self._step, self._asked, self._taken = len(tokens), 0, 0, 0
        program = model.continuing(how.choice)
        together = len(tokens) if len(tokens) >= model.least_given else 1
        prompt = np.zeros(self.room, np.int32)
        prompt[: len(tokens)] = tokens
        inputs = {name: value for name, value in how.inputs.items() if name != "ends"}
        inputs |= {"prompt": prompt, "given": self._given()}
        if how.choice.counted:
            inputs["answer"] = self._answers()
        self._steps = program.program.stream(
            over=program.t,
            library="numpy",
            seed=how.seed,
            bounds={program.given: together},
            **inputs,
            **model.weights,
        )

    @property
    def waits(self) -> bool:
        """Whether no step after the last token has been begun."""
        return self._asked == self._step == len(self.tokens)

    def add(self, tokens: list[int]) -> None:
        """Tokens that are read before the next answer."""
        self.tokens += tokens
        self._answer = len(self.tokens)

    def answer(self) -> Iterator[int]:
        """The tokens of an answer, without an end of their own."""
        for step in self._steps:
            self._step += 1
            if self._step <= self._answer:
                self._taken += 1
                continue
            token = int(np.asarray(step))
            self.tokens.append(token)
            yield token

    def take_read(self) -> int:
        """How many tokens were read since this was last asked."""
        taken, self._taken = self._taken, 0
        return taken

    def rest(self, text: str, tokenizer: Any) -> str | None:
        """What a text adds to what was read and written; None if it does not begin with that."""
        if not text.startswith(self.text):
            return None
        rest, last = text[len(self.text) :], self.tokens[-1]
        if last not in self.ends:
            return rest
        end = tokenizer.decode([last], skip_special_tokens=False)
        return rest[len(end) :] if end and rest.startswith(end) else None

    def close(self) -> None:
        self._steps.close()

    def _given(self) -> Iterator[np.ndarray]:
        """The token of each step, or -1; the program may ask for some steps together."""
        while True:
            step, self._asked = self._asked, self._asked + 1
            yield np.asarray(self.tokens[step] if step < self._answer else -1, np.int32)

    def _answers(self) -> Iterator[np.ndarray]:
        while True:
            yield np.asarray(self._answer, np.int32)
