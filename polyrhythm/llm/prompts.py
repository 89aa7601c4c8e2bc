"""Prompts as rows of tokens: texts, lists of tokens, and what tokenizers return.

Tokenizers of Hugging Face return a mapping with `input_ids` and, if they pad, an `attention_mask`. Nothing is padded
here (see `polyrhythm.llm.programs`), so the tokens that the mask leaves out are dropped. Every other mapping is
refused: iterating over one would take its keys for prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from numbers import Integral
from typing import Any

import numpy as np

from polyrhythm.llm.errors import ModelMissingError, PromptError

Prompt = str | Sequence[int] | np.ndarray | Mapping[str, Any]
"""A text, its tokens, or what a tokenizer of Hugging Face returns for it."""


class Reader:
    """Reads prompts for one model: its tokenizer, the size of its vocabulary, and the token that begins a text."""

    def __init__(self, tokenizer: Any, vocabulary: int, begin: int | None) -> None:
        self.tokenizer, self.vocabulary, self.begin = tokenizer, vocabulary, begin

    def rows(self, prompts: Any) -> tuple[list[np.ndarray], bool]:
        """The tokens of each prompt, and whether there was only one, outside of a list."""
        if isinstance(prompts, str):
            return [self.tokens(prompts)], True
        if isinstance(prompts, Mapping):
            return self._encoded(prompts)
        if isinstance(prompts, (bytes, bytearray, Set)):
            raise _no_prompt()
        try:
            listed = list(iter(prompts))
        except TypeError:
            raise _no_prompt() from None
        if not listed:
            raise PromptError("no prompts", fix="give at least one")
        alone = _is_number(listed[0])
        return [self.tokens(prompt) for prompt in ([listed] if alone else listed)], alone

    def tokens(self, prompt: Any) -> np.ndarray:
        """The tokens of one prompt, checked."""
        if isinstance(prompt, Mapping):
            rows, alone = self._encoded(prompt)
            if not alone:
                raise PromptError("a list of batches of prompts", fix="give one batch at a time")
            return rows[0]
        if isinstance(prompt, str):
            prompt = self.encoded(prompt, True)
            prompt = prompt if len(prompt) or self.begin is None else [self.begin]
        try:
            tokens = np.asarray(prompt)
        except ValueError:  # lists of different lengths within each other
            raise _no_prompt() from None
        if not tokens.size:
            raise PromptError("an empty prompt", fix="give a token at least")
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise _no_prompt()
        outside = tokens[(tokens < 0) | (tokens >= self.vocabulary)]
        if outside.size:
            raise PromptError(
                f"the token {outside[0]} is not one of the {self.vocabulary} that the model knows",
                fix="give the tokens of the model's own tokenizer",
            )
        return tokens.astype(np.int32)

    def encoded(self, text: str, special: bool = False) -> list[int]:
        """The tokens of a text, perhaps with those that the tokenizer begins a text with."""
        try:
            text.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair
            raise PromptError(
                f"a text with {text[error.start : error.end]!r}, which is no character",
                fix='decode it with errors="replace"',
            ) from None
        return list(self.needed_tokenizer().encode(text, add_special_tokens=special).ids)

    def needed_tokenizer(self) -> Any:
        """The tokenizer, which must be there."""
        if self.tokenizer is None:
            raise ModelMissingError(
                "there is no tokenizer.json beside the model, so it cannot read text",
                fix="put the file there, or give tokens instead of text",
            )
        return self.tokenizer

    def _encoded(self, given: Mapping[str, Any]) -> tuple[list[np.ndarray], bool]:
        """The `input_ids` of a tokenizer's mapping, without what its `attention_mask` leaves out."""
        if "input_ids" not in given:
            if {"role", "content"} <= given.keys():
                raise PromptError("a chat message as a prompt", fix="give the messages to model.chat([...])")
            keys = ", ".join(map(repr, list(given)[:3])) or "nothing"
            raise PromptError(
                f"a mapping with {keys} as a prompt, but no 'input_ids'",
                fix="give a string, integers, or what the model's own tokenizer returns",
            )
        ids, mask = given["input_ids"], given.get("attention_mask")
        alone = len(ids) > 0 and _is_number(ids[0])
        listed = [ids] if alone else list(ids)
        masks = [None] * len(listed) if mask is None else [mask] if alone else list(mask)
        if not listed:
            raise PromptError("no prompts", fix="give at least one")
        if any(isinstance(row, (str, bytes, Mapping)) for row in listed):
            raise _no_prompt()
        if len(masks) != len(listed):
            raise _other_mask()
        return [self.tokens(_kept(row, own)) for row, own in zip(listed, masks, strict=True)], alone


def _kept(row: Any, mask: Any) -> Any:
    """The tokens of a row that its mask keeps."""
    if mask is None:
        return row
    tokens, kept = np.asarray(row), np.asarray(mask)
    if kept.shape != tokens.shape or not np.isin(kept, (0, 1)).all():
        raise _other_mask()
    return tokens[kept == 1]


def _is_number(value: Any) -> bool:
    """Whether a value is one token and not a prompt: an integer, or an array of no axes."""
    return not isinstance(value, str) and (isinstance(value, Integral) or getattr(value, "ndim", None) == 0)


def _no_prompt() -> PromptError:
    return PromptError("a prompt that is neither text nor a list of tokens", fix="give a string or integers")


def _other_mask() -> PromptError:
    return PromptError(
        "an attention_mask that does not hold a 0 or 1 for each of the input_ids",
        fix="leave it out if nothing is padded",
    )
