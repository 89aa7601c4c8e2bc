"""A model from a folder: text in, text out."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, Unpack

import numpy as np

from polyrhythm.llm.arguments import whole
from polyrhythm.llm.batches import Batch
from polyrhythm.llm.beams import Beams, searching
from polyrhythm.llm.beams import texts as texts_of
from polyrhythm.llm.chat import ChatTemplate, Message, needed
from polyrhythm.llm.config import Config
from polyrhythm.llm.constraints import Constraint
from polyrhythm.llm.conversation import Conversation
from polyrhythm.llm.errors import ContextLengthError, PromptError
from polyrhythm.llm.joining import continuation
from polyrhythm.llm.patterns import Pattern
from polyrhythm.llm.programs import Generating, continuing, embedding, generating, judging, scoring
from polyrhythm.llm.prompts import Prompt, Reader
from polyrhythm.llm.quantised import with_formats
from polyrhythm.llm.sampling import GREEDY, Choice, Options, Sampling, sampling
from polyrhythm.llm.sharding import devices_of, sequences_on
from polyrhythm.llm.speculative import DRAFT, Speculating, speculating
from polyrhythm.llm.writing import Generated, Piece, Row, TokenLogprob
from polyrhythm.runtime.processes import whole as everywhere
from polyrhythm.runtime.program import Program

LEAST_STEPS = 512
"""Texts of fewer tokens have room for so many, which is where growing buffers begin."""


class Model:
    """A language model. `llm.load` makes one.

    Programs are compiled when they are first needed: one for each way of choosing tokens and number of prompts, of
    which several share one. Each serves prompts and texts of any length.
    """

    least_given = 16
    """Prompts of fewer tokens are read one by one, so that they do not need programs of their own."""

    def __init__(
        self,
        config: Config,
        weights: dict[str, Any],
        tokenizer: Any,
        pattern: Pattern | None,
        backend: str,
        chat_template: ChatTemplate | None = None,
        mesh: Any = None,
        specs: dict[str, tuple[str | None, ...]] | None = None,
    ) -> None:
        self.config, self.weights, self.tokenizer = config, weights, tokenizer
        self.pattern, self.backend, self.chat_template = pattern, backend, chat_template
        self.mesh, self.specs = mesh, specs or {}
        self.reader = Reader(tokenizer, config.vocabulary, config.begin)
        self._generating: dict[tuple[int, Choice], Generating] = {}
        self._scoring: dict[int, Program] = {}
        self._judging: Program | None = None
        self._embedding: Program | None = None
        self._tables: dict[tuple[int, ...], Any] = {}
        self._continuing: dict[Choice, Generating] = {}
        self._searching: dict[Beams, Generating] = {}
        self._speculating: dict[Any, Speculating] = {}

    def __repr__(self) -> str:
        config = self.config
        sizes = f"{config.layers} layers of {config.width}, {config.vocabulary:,} tokens"
        kinds = f"{with_formats(config.formats)} weights" if config.formats else config.dtype
        return f"<llm.Model {config.family}: {sizes}, {kinds}>"

    def devices(self, scores: bool = True) -> dict[str, Any]:
        """What a program is compiled with to run on the devices of the model; one without `scores` of tokens too."""
        return devices_of(self.mesh, self.specs, scores)

    def attending(self, pattern: Pattern | None) -> Self:
        """The same model with another pattern of attention, sharing its weights; None is the model's own."""
        changed = copy.copy(self)
        changed.pattern, changed._generating, changed._scoring = pattern, {}, {}
        changed._continuing, changed._searching, changed._speculating = {}, {}, {}
        changed._judging = changed._embedding = None
        return changed

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        max_new_tokens: int | Sequence[int] = 128,
        **options: Unpack[Options],
    ) -> Any:
        """What the model writes after each prompt: one `Generated`, or a list of them for a list of prompts.

        Each sequence ends at its end-of-sequence token or after `max_new_tokens`, which may be a number for each
        prompt; the run ends when all have. With
        temperature 0, the default, the likeliest token is taken, otherwise one is drawn. `docs/llm.md` has all options.
        With n samples there is a list of them for each prompt.
        """
        rows, alone = self.reader.rows(prompts)
        how = sampling(self.config.vocabulary, self.config.ends, **options)
        if how.num_beams > 1 or how.draft_model is not None:
            each = zip(rows, _counts(max_new_tokens, len(rows), 1), strict=True)
            made = [self._searched(*one, how) for one in each]
            return made[0] if alone else made
        counts = _counts(max_new_tokens, len(rows), how.n)
        rows = [row for row in rows for _ in range(how.n)]
        run = self._run(rows, counts, how)
        if run is None:
            text = None if self.tokenizer is None else ""
            logprobs = None if how.choice.logprobs is None else ()
            found = [Generated(np.zeros(0, np.int32), text, "length", len(row), logprobs) for row in rows]
        elif how.stop or how.schema is not None:
            found = self._streamed(run, rows, counts, how)
        else:
            results = run.generating.program(bounds=run.bounds, seed=how.seed, **run.inputs)
            columns = _columns(results, run.sequences)[: len(rows)]
            found = [self._generated(*each, how) for each in zip(columns, rows, counts, strict=True)]
        grouped: list[Any] = [found[n : n + how.n] for n in range(0, len(found), how.n)]
        grouped = grouped if how.n > 1 else found
        return grouped[0] if alone else grouped

    def stream(
        self,
        prompts: Prompt | Iterable[Prompt],
        max_new_tokens: int | Sequence[int] = 128,
        chunk: int = 1,
        **options: Unpack[Options],
    ) -> Iterator[Any]:
        """The same token by token: each item is a `Piece`, or a list of them for a list of prompts.

        An entry of the list is None while its prompt is still read and after its sequence has ended. `chunk` steps
        are computed at a time. With n samples there is an entry for each, those of one prompt after each other.
        """
        rows, alone = self.reader.rows(prompts)
        chunk = whole(chunk, 1, f"chunks of {chunk!r} steps", "give chunk=1 or more, an integer")
        how = sampling(self.config.vocabulary, self.config.ends, **options)
        if how.num_beams > 1 or how.draft_model is not None:
            raise PromptError("a stream of beam search or of a draft model", fix="use generate")
        counts = _counts(max_new_tokens, len(rows), how.n)
        rows = [row for row in rows for _ in range(how.n)]
        run = self._run(rows, counts, how)
        if run is None:
            return iter(())
        pieces = self._pieces(run, rows, counts, how, chunk)
        return (step[0] for step in pieces) if alone and how.n == 1 else pieces

    def apply_chat_template(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The text of a conversation as the model was trained on it, up to where the model goes on.

        Further arguments, `tools` among them, are variables of the template.
        """
        return needed(self.chat_template).render(messages, add_generation_prompt, **variables)

    def chat(self, messages: Sequence[Message], max_new_tokens: int = 512, **options: Unpack[Options]) -> Any:
        """What the model answers in a conversation: a list of messages, each with its `role` and `content`."""
        return self.generate(self.chat_tokens(messages), max_new_tokens, **options)

    def stream_chat(
        self, messages: Sequence[Message], max_new_tokens: int = 512, chunk: int = 1, **options: Unpack[Options]
    ) -> Iterator[Any]:
        """The same token by token, as `stream` does."""
        return self.stream(self.chat_tokens(messages), max_new_tokens, chunk, **options)

    def chat_tokens(self, messages: Sequence[Message], **variables: Any) -> list[int]:
        """The tokens of a conversation. The template itself writes what a text begins with."""
        text = self.apply_chat_template(messages, **variables)
        return self.reader.encoded(text)

    def conversation(self, messages: Sequence[Message] = (), **options: Unpack[Options]) -> Conversation:
        """A conversation that goes on without being read again: `send` what the user says, and it returns the answer.

        `messages` are what was said before, a system message for example; the options are those of `chat`.
        """
        return Conversation(self, messages, options)

    def continuing(self, how: Choice) -> Generating:
        """The compiled program of a conversation."""
        if how not in self._continuing:
            self._continuing[how] = continuing(self.config, how, self.pattern, self.backend, **self.devices())
        return self._continuing[how]

    def logits(self, tokens: Sequence[int] | Sequence[Sequence[int]] | np.ndarray) -> np.ndarray:
        """The logits after each token of a given text, (length, vocabulary), or of several texts of one length."""
        rows, alone = self.reader.rows(tokens)
        if len({len(row) for row in rows}) > 1:
            raise PromptError("texts of different lengths", fix="score them one by one")
        self.check_length(len(rows[0]))
        count = sequences_on(self.mesh, len(rows))
        if count not in self._scoring:
            self._scoring[count] = scoring(self.config, count, self.pattern, self.backend, **self.devices())
        given = rows[0] if count == 1 else np.stack([*rows, *rows[:1] * (count - len(rows))], 1)
        found = everywhere(self._scoring[count](tokens=given, **self.weights))
        if alone:
            return found
        is_dim = Batch.of(count, self.backend, bool(self.config.formats)).is_dim
        return (found if is_dim else found.reshape(len(found), count, -1).swapaxes(0, 1))[: len(rows)]

    def score(self, text: Prompt) -> np.ndarray:
        """The log-probability of each token of a text after those before it; that of the first is 0."""
        row = self.reader.tokens(text)
        self.check_length(len(row))
        if self._judging is None:
            self._judging = judging(self.config, self.pattern, self.backend, **self.devices())
        return everywhere(self._judging(tokens=row, **self.weights))

    def embed(self, texts: Prompt | Iterable[Prompt]) -> np.ndarray:
        """A vector for a text, or one for each of several: the mean over its tokens of what the last layer makes.

        Vectors have length 1, so that their products are cosines.
        """
        rows, alone = self.reader.rows(texts)
        for row in rows:
            self.check_length(len(row))
        if self._embedding is None:
            self._embedding = embedding(self.config, self.pattern, self.backend, **self.devices(scores=False))
        program, read = self._embedding, self._embedding.compiled.graph.inputs  # the output layer is not
        weights = {name: weight for name, weight in self.weights.items() if name in read}
        found = np.stack([everywhere(program(tokens=row, **weights)) for row in rows])
        return found[0] if alone else found

    def perplexity(self, text: Prompt) -> float:
        """How many tokens the model hesitates between, on average: one over the geometric mean of probabilities."""
        found = self.score(text)
        if len(found) < 2:
            raise PromptError("the perplexity of a text of one token", fix="give two tokens or more")
        return float(np.exp(-found[1:].mean()))

    def generating(self, batch: int = 1, how: Choice = GREEDY) -> Generating:
        """The compiled program for a number of prompts."""
        batch = sequences_on(self.mesh, batch)
        if (batch, how) not in self._generating:
            self._generating[batch, how] = generating(
                self.config, batch, how, self.pattern, self.backend, **self.devices()
            )
        return self._generating[batch, how]

    @property
    def programs(self) -> list[Program]:
        """The programs that were compiled so far."""
        single = [program for program in (self._judging, self._embedding) if program is not None]
        kinds: list[dict[Any, Any]] = [self._generating, self._continuing, self._searching, self._speculating]
        several = [made for kind in kinds for made in kind.values()]
        return [*(made.program for made in several), *self._scoring.values(), *single]

    def constraint(self, how: Sampling) -> Constraint:
        """What the schema of a call allows."""
        assert how.schema is not None
        tokenizer = self.reader.needed_tokenizer()
        return Constraint(how.schema, tokenizer, self.config.vocabulary, how.ends, self._tables)

    def _run(self, rows: list[np.ndarray], counts: list[int], how: Sampling) -> _Run | None:
        """The program and its inputs; None if nothing is to be written."""
        if not any(counts):
            return None
        lengths = np.array([len(row) for row in rows], np.int32)
        self._warn_of(int(lengths.max()))
        total = max(len(row) + count for row, count in zip(rows, counts, strict=True))
        self.check_length(whole(total, 1, f"a text of {total} tokens", "ask for fewer, below 2**31 with the prompt"))
        # A run ends by its limits: room for more steps costs little.
        prompt = np.zeros((self._room(total), len(rows)), np.int32)
        for number, row in enumerate(rows):
            prompt[: len(row), number] = row
        inputs = {"prompt": prompt, "lengths": lengths, "limits": lengths + np.array(counts, np.int32)}
        shortest, count = int(lengths.min()), sequences_on(self.mesh, len(rows))
        if count == 1:
            inputs = {name: array[..., 0] for name, array in inputs.items()}
        else:  # those beside the prompts end where they begin
            beside = {"prompt": 0, "lengths": shortest, "limits": shortest}
            extra = [(0, 0), (0, count - len(rows))]
            inputs = {n: np.pad(a, extra[-a.ndim :], constant_values=beside[n]) for n, a in inputs.items()}
        found = self.generating(count, how.choice)
        bounds = {found.given: shortest if shortest >= self.least_given else 1}
        return _Run(found, {**self.weights, **inputs, **how.inputs}, bounds, count)

    def _searched(self, row: np.ndarray, count: int, how: Sampling) -> Any:
        """What beam search or a draft model finds after one prompt: a text, or with n above 1 a list of them."""
        if not count:
            nothing = self._cut(np.zeros(0, np.int32), row, 0, how)
            return nothing if how.n == 1 else [nothing] * how.n
        self.check_length(len(row) + count)
        if how.draft_model is not None:
            return self._speculated(row, count, how)
        beams = Beams(how.num_beams, len(how.ends), how.early_stopping)
        if beams not in self._searching:
            self._searching[beams] = searching(self.config, beams, self.pattern, self.backend, **self.devices())
        program = self._searching[beams]
        room = self._room(len(row) + count)
        prompt = np.zeros(room, np.int32)
        prompt[: len(row)] = row
        inputs = {"prompt": prompt, "limit": len(row) + count, "length_penalty": how.length_penalty, **how.inputs}
        bounds = {program.given: len(row), "room": room}
        texts = texts_of(program.program(bounds=bounds, **self.weights, **inputs), len(row))
        found = [replace(self._cut(text.tokens, row, count, how), score=text.score) for text in texts[: how.n]]
        return found[0] if how.n == 1 else found

    def _speculated(self, row: np.ndarray, count: int, how: Sampling) -> Generated:
        draft = how.draft_model
        key = (draft, how.num_draft_tokens, len(how.ends))
        if key not in self._speculating:
            self._speculating[key] = speculating(self, *key)
        program = self._speculating[key]
        inputs, bounds = program.inputs(row, count)
        weights = {**self.weights, **{DRAFT + name: weight for name, weight in draft.weights.items()}}
        results = program.program(bounds=bounds, **weights, **inputs, **how.inputs)
        return self._cut(program.tokens(results, row), row, count, how)

    def _room(self, total: int) -> int:
        """How many steps a text of so many tokens is given, so that short ones share one compiled program."""
        return max(total, LEAST_STEPS if self.config.limit is None else min(LEAST_STEPS, self.config.limit))

    def _warn_of(self, length: int) -> None:
        """Rotary positions go on beyond what a model was trained on, but it has not learnt what they mean."""
        known, turned = self.config.positions, [kind.rotary for kind in self.config.kinds if kind.rotary is not None]
        if length > known and self.pattern is None and any(rotary.kind != "dynamic" for rotary in turned):
            warnings.warn(
                f"a prompt of {length} tokens is longer than the {known} that the model was trained on", stacklevel=4
            )

    def check_length(self, total: int) -> None:
        """Learnt positions end somewhere."""
        if self.config.limit is not None and total > self.config.limit:
            raise ContextLengthError(
                f"the text would have {total} tokens, but the model has {self.config.limit} positions",
                fix="shorten the prompt or ask for fewer tokens",
            )

    def _generated(self, column: _Column, row: np.ndarray, count: int, how: Sampling) -> Generated:
        found = self._cut(column.tokens[len(row) :], row, count, how)
        if how.choice.logprobs is None:
            return found
        steps = range(len(row), len(row) + len(found.tokens))
        return replace(found, logprobs=tuple(column.logprob(step) for step in steps))

    def _cut(self, new: np.ndarray, row: np.ndarray, count: int, how: Sampling) -> Generated:
        """New tokens up to the first that ends a text, or to the limit."""
        new = new[:count]
        ends = np.flatnonzero(np.isin(new, how.ends))
        new = new[: ends[0] + 1] if ends.size else new
        text = None if self.tokenizer is None else continuation(self.tokenizer, row.tolist(), new.tolist())
        return Generated(new, text, "stop" if ends.size else "length", len(row))

    def _streamed(self, run: _Run, rows: list[np.ndarray], counts: list[int], how: Sampling) -> list[Generated]:
        """What `generate` returns where a stop string may end a text: the host reads along, and ends the run."""
        found: list[list[Piece]] = [[] for _ in rows]
        for step in self._pieces(run, rows, counts, how, chunk=8 if how.schema is None else 1):
            for kept, piece in zip(found, step, strict=True):
                if piece is not None:
                    kept.append(piece)
        return [_joined(pieces, row, how, self.tokenizer) for pieces, row in zip(found, rows, strict=True)]

    def _pieces(
        self, run: _Run, rows: list[np.ndarray], counts: list[int], how: Sampling, chunk: int
    ) -> Iterator[list[Piece | None]]:
        texts = [
            Row(self.tokenizer, row.tolist(), count, how.ends, how.stop)
            for row, count in zip(rows, counts, strict=True)
        ]
        program, t, inputs = run.generating.program, run.generating.t, dict(run.inputs)
        written = [row.tolist() for row in rows]
        if how.schema is not None:
            masks = self.constraint(how).masks(written, [len(row) for row in rows])
            extra = ((0, run.sequences - len(rows)), (0, 0))
            padded = (np.pad(mask, extra, constant_values=True) for mask in masks)
            inputs["allowed"] = padded if run.sequences > 1 else (mask[0] for mask in masks)
            chunk = 1  # what may follow is decided between two steps
        steps = program.stream(over=t, chunk=chunk, library="numpy", bounds=run.bounds, seed=how.seed, **inputs)
        with steps:
            for number, step in enumerate(steps):
                columns = _columns(step, run.sequences, one=True)[: len(rows)]
                pieces: list[Piece | None] = [None] * len(rows)
                for n, (text, row, column) in enumerate(zip(texts, rows, columns, strict=True)):
                    if number >= len(row) and text.finish_reason is None:
                        logprob = None if how.choice.logprobs is None else column.logprob(0)
                        pieces[n] = text.add(int(column.tokens[0]), logprob)
                        written[n].append(int(column.tokens[0]))
                if any(piece is not None for piece in pieces):
                    yield pieces
                if all(text.finish_reason for text in texts):
                    return


@dataclass(frozen=True)
class _Column:
    """What a program returns for one sequence, over steps."""

    tokens: np.ndarray
    own: np.ndarray | None = None
    top_tokens: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None

    def logprob(self, step: int) -> TokenLogprob:
        assert self.own is not None
        top: tuple[tuple[int, float], ...] = ()
        if self.top_tokens is not None and self.top_logprobs is not None:
            top = tuple(zip(self.top_tokens[step].tolist(), self.top_logprobs[step].tolist(), strict=True))
        return TokenLogprob(int(self.tokens[step]), float(self.own[step]), top)


def _counts(given: int | Sequence[int], prompts: int, samples: int) -> list[int]:
    """How many tokens each sequence may have: one number for all, or one for each prompt, which then is at least 1."""
    fix = "give max_new_tokens=0 or more, an integer below 2**31"
    if not isinstance(given, Sequence):
        return [whole(given, 0, f"{given!r} new tokens", fix)] * (prompts * samples)
    if len(given) != prompts:
        raise PromptError(f"{len(given)} numbers of new tokens for {prompts} prompts", fix="give one for each")
    each = [whole(count, 1, f"{count!r} new tokens", "give 1 or more for each prompt") for count in given]
    return [count for count in each for _ in range(samples)]


def _columns(results: Any, rows: int, one: bool = False) -> list[_Column]:
    """The results of a program, or of one step of it, by sequence."""
    parts = results if isinstance(results, dict) else {"token": results}
    arrays = {name: everywhere(part)[None] if one else everywhere(part) for name, part in parts.items()}
    if rows == 1:
        arrays = {name: array[:, None] for name, array in arrays.items()}
    names = ("token", "logprob", "top_tokens", "top_logprobs")
    return [_Column(*(arrays[name][:, n] if name in arrays else None for name in names)) for n in range(rows)]  # type: ignore[arg-type]


def _joined(pieces: list[Piece], row: np.ndarray, how: Sampling, tokenizer: Any) -> Generated:
    tokens = np.array([piece.token for piece in pieces], np.int32)
    text = None if tokenizer is None else "".join(piece.text for piece in pieces)
    logprobs = None if how.choice.logprobs is None else tuple(p.logprob for p in pieces if p.logprob is not None)
    return Generated(tokens, text, pieces[-1].finish_reason or "length", len(row), logprobs)


@dataclass(frozen=True)
class _Run:
    """A program with everything it is called with."""

    generating: Generating
    inputs: dict[str, Any]
    bounds: dict[Any, int]
    sequences: int
