"""A model from a folder: text in, text out."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from polyrhythm.errors import ContextLengthError, ModelDamagedError, ModelMissingError, PromptError
from polyrhythm.llm.arguments import integer, whole
from polyrhythm.llm.checkpoint import Checkpoint, Weights
from polyrhythm.llm.config import Config, config_of, read_config
from polyrhythm.llm.decoders import blank_decoder
from polyrhythm.llm.gguf_file import GGUFFile
from polyrhythm.llm.gguf_tokenizer import tokenizer_of
from polyrhythm.llm.joining import Joiner, continuation
from polyrhythm.llm.patterns import Pattern, causal, window
from polyrhythm.llm.programs import Generating, generating, scoring
from polyrhythm.llm.prompts import Prompt, Reader
from polyrhythm.llm.sampling import GREEDY, Choice, choice
from polyrhythm.runtime.program import Program


@dataclass(frozen=True)
class Generated:
    """What a model wrote after a prompt: the new tokens, the one that ended it among them, and their text.

    `text` is what they add to the text of the prompt's tokens; None if the folder has no tokenizer. `ended` is false if
    the number of tokens was the limit.
    """

    tokens: np.ndarray
    text: str | None
    ended: bool


@dataclass(frozen=True)
class Piece:
    """One new token of a stream, and the text that it completes. All texts together are that of `Generated`."""

    token: int
    text: str


class Model:
    """A language model. `llm.load` makes one.

    Programs are compiled when they are first needed: one for each number of prompts and way of choosing tokens. Each
    serves prompts and texts of any length.
    """

    def __init__(self, config: Config, weights: dict[str, Any], tokenizer: Any, pattern: Pattern, backend: str) -> None:
        self.config, self.weights, self.tokenizer = config, weights, tokenizer
        self.pattern, self.backend = pattern, backend
        self.reader = Reader(tokenizer, config.vocabulary, config.begin)
        self._generating: dict[tuple[int, Choice], Generating] = {}
        self._scoring: dict[int, Program] = {}

    def attending(self, pattern: Pattern) -> Self:
        """The same model with another pattern of attention, sharing its weights."""
        changed = copy.copy(self)
        changed.pattern, changed._generating, changed._scoring = pattern, {}, {}
        return changed

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> Any:
        """What the model writes after each prompt: one `Generated`, or a list of them for a list of prompts.

        Each sequence ends at its end-of-sequence token or after `max_new_tokens`; the run ends when all have. With
        temperature 0 the likeliest token is taken, otherwise one is drawn.
        """
        rows, alone = self.reader.rows(prompts)
        seed = integer(seed, f"a seed of {seed!r}", "give an integer")
        run = self._run(rows, max_new_tokens, temperature, top_k, top_p)
        if run is None:
            found = [Generated(np.zeros(0, np.int32), None if self.tokenizer is None else "", False) for _ in rows]
            return found[0] if alone else found
        tokens = np.asarray(run.generating.program(bounds=run.bounds, seed=seed, **run.inputs))
        columns = tokens.reshape(len(tokens), len(rows)).T
        found = [self._generated(column, row, max_new_tokens) for column, row in zip(columns, rows, strict=True)]
        return found[0] if alone else found

    def stream(
        self,
        prompts: Prompt | Iterable[Prompt],
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        chunk: int = 1,
    ) -> Iterator[Any]:
        """The same token by token: each item is a `Piece`, or a list of them for a list of prompts.

        An entry of the list is None while its prompt is still read and after its sequence has ended. `chunk` steps
        are computed at a time.
        """
        rows, alone = self.reader.rows(prompts)
        chunk = whole(chunk, 1, f"chunks of {chunk!r} steps", "give chunk=1 or more, an integer")
        seed = integer(seed, f"a seed of {seed!r}", "give an integer")
        run = self._run(rows, max_new_tokens, temperature, top_k, top_p)
        if run is None:
            return iter(())
        program, t = run.generating.program, run.generating.t
        steps = program.stream(over=t, chunk=chunk, library="numpy", bounds=run.bounds, seed=seed, **run.inputs)
        return self._pieces(steps, rows, max_new_tokens, alone)

    def logits(self, tokens: Sequence[int] | Sequence[Sequence[int]] | np.ndarray) -> np.ndarray:
        """The logits after each token of a given text, (length, vocabulary), or of several texts of one length."""
        rows, alone = self.reader.rows(tokens)
        if len({len(row) for row in rows}) > 1:
            raise PromptError("texts of different lengths", fix="score them one by one")
        self._check_length(len(rows[0]))
        if len(rows) not in self._scoring:
            self._scoring[len(rows)] = scoring(self.config, len(rows), self.pattern, self.backend)
        given = rows[0] if len(rows) == 1 else np.stack(rows, 1)
        found = np.asarray(self._scoring[len(rows)](tokens=given, **self.weights))
        return found if alone else found.reshape(len(found), len(rows), -1).swapaxes(0, 1)

    def generating(self, batch: int = 1, how: Choice = GREEDY) -> Generating:
        """The compiled program for a number of prompts."""
        if (batch, how) not in self._generating:
            self._generating[batch, how] = generating(self.config, batch, how, self.pattern, self.backend)
        return self._generating[batch, how]

    @property
    def programs(self) -> list[Program]:
        """The programs that were compiled so far."""
        return [*(made.program for made in self._generating.values()), *self._scoring.values()]

    def _run(
        self, rows: list[np.ndarray], count: int, temperature: float, top_k: int | None, top_p: float | None
    ) -> _Run | None:
        """The program and its inputs; None if nothing is to be written."""
        how = choice(temperature, top_k, top_p, self.config.vocabulary)
        count = whole(count, 0, f"{count!r} new tokens", "give max_new_tokens=0 or more, an integer below 2**31")
        if not count:
            return None
        lengths = np.array([len(row) for row in rows], np.int32)
        total = int(lengths.max()) + count
        self._check_length(whole(total, 1, f"a text of {total} tokens", "ask for fewer, below 2**31 with the prompt"))
        prompt = np.zeros((total, len(rows)), np.int32)
        for number, row in enumerate(rows):
            prompt[: len(row), number] = row
        inputs = {"prompt": prompt, "lengths": lengths, "limits": lengths + np.int32(count)}
        if len(rows) == 1:
            inputs = {name: array[..., 0] for name, array in inputs.items()}
        found = self.generating(len(rows), how)
        bounds = {found.given: int(lengths.min())}
        return _Run(found, {**self.weights, **inputs, **how.inputs(temperature, top_p)}, bounds)

    def _check_length(self, total: int) -> None:
        """Learnt positions end somewhere."""
        if self.config.rotary is None and total > self.config.positions:
            raise ContextLengthError(
                f"the text would have {total} tokens, but the model has {self.config.positions} positions",
                fix="shorten the prompt or ask for fewer tokens",
            )

    def _generated(self, column: np.ndarray, row: np.ndarray, count: int) -> Generated:
        new = column[len(row) : len(row) + count]
        ends = np.flatnonzero(np.isin(new, self.config.ends))
        new = new[: ends[0] + 1] if ends.size else new
        text = None if self.tokenizer is None else continuation(self.tokenizer, row.tolist(), new.tolist())
        return Generated(new, text, bool(ends.size))

    def _pieces(self, steps: Any, rows: list[np.ndarray], count: int, alone: bool) -> Iterator[Any]:
        left = [count] * len(rows)
        joiners = [None if self.tokenizer is None else Joiner(self.tokenizer, row.tolist()) for row in rows]
        with steps:
            for number, step in enumerate(steps):
                tokens = np.asarray(step).reshape(len(rows))
                pieces: list[Piece | None] = [None] * len(rows)
                for row, token in enumerate(tokens.tolist()):
                    if number >= len(rows[row]) and left[row]:
                        left[row] = 0 if token in self.config.ends else left[row] - 1
                        joiner = joiners[row]
                        pieces[row] = Piece(token, "" if joiner is None else joiner.add(token, last=not left[row]))
                if any(piece is not None for piece in pieces):
                    yield pieces[0] if alone else pieces


@dataclass(frozen=True)
class _Run:
    """A program with everything it is called with."""

    generating: Generating
    inputs: dict[str, Any]
    bounds: dict[Any, int]


def load(
    path: str | os.PathLike[str],
    dtype: Any = None,
    attention: Pattern | None = None,
    backend: str = "jax",
) -> Model:
    """The model in a Hugging Face folder or a GGUF file on this machine.

    A folder has `config.json`, weights in safetensors files (one, or several with an index), and, for text,
    `tokenizer.json`. A GGUF file has all of that in one; quantised weights are dequantised. All of it is checked before
    anything runs. Weights are converted to `dtype`: float32, bfloat16 or float16, by default what the model says.
    `attention` is a pattern (see `polyrhythm.llm.patterns`) instead of the model's own.
    """
    source = Path(path)
    weights_of: Weights
    if source.suffix == ".gguf":
        weights_of = GGUFFile(_there(source))
        config = config_of(source, weights_of.config(), {}, dtype)
        tokenizer = tokenizer_of(weights_of.metadata, str(source))
    else:
        config = read_config(_folder(source), dtype)
        weights_of, tokenizer = Checkpoint(source), _tokenizer(source)
    weights = {name: _placed(array, backend) for name, array in _weights(weights_of, config)}
    own = causal if config.window is None else window(config.window)
    return Model(config, weights, tokenizer, attention or own, backend)


def _folder(path: Path) -> Path:
    """A folder that is there."""
    if not path.is_dir():
        raise ModelMissingError(
            f"there is no folder {path}", fix="give the folder of a Hugging Face checkpoint, or a GGUF file"
        )
    return path


def _there(path: Path) -> Path:
    if not path.is_file():
        raise ModelMissingError(f"there is no file {path}", fix="give a GGUF file on this machine")
    return path


def _weights(checkpoint: Weights, config: Config) -> Iterator[tuple[str, np.ndarray]]:
    """The weights under the names of the program; all are checked before the first is read."""
    decoder = blank_decoder(config)
    names = set(checkpoint.names())
    # Older files of GPT-2 hold the model without its head, and leave the prefix out.
    prefix = "" if "wte.weight" not in names else "transformer."
    files: dict[str, list[str]] = {}
    needed: dict[str, tuple[int, ...]] = {}
    for name, blank in decoder.weights().items():
        path = name.removeprefix(prefix)
        at = decoder.layers_at.removeprefix(prefix)
        if path.startswith(at):
            files[name] = [f"{at}{number}.{path.removeprefix(at)}" for number in range(config.layers)]
        else:
            files[name] = [path]
        needed |= {file: tuple(blank.shape) for file in files[name]}
    checkpoint.check(needed, frozenset({"lm_head.weight"} if config.tied else ()))
    for name, paths in files.items():
        stack = checkpoint.stacked(paths, config.dtype)
        yield name, stack if name.startswith(decoder.layers_at) else stack[0]


def _placed(array: np.ndarray, backend: str) -> Any:
    """A weight where the backend computes."""
    if backend == "jax":
        import jax

        return jax.device_put(array)
    return array


def _tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder, if it has one. Every token it makes counts: it neither fills up nor cuts off."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise ModelDamagedError(f"{path} is not a tokenizer: {error}", fix="copy the file again") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


__all__ = ["Generated", "Model", "Piece", "Prompt", "load"]
