"""The choice of the next token from the logits: the likeliest, or a draw.

Logits get the bias, the penalties for tokens that are already there and the user's own processors, then, for a draw,
temperature, top-k, top-p, min-p and typical-p, in the order of Hugging Face. What decides the program is in `Choice`;
the numbers are inputs, so that other numbers need no other program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, TypedDict, Unpack

import numpy as np

from polyrhythm.language.functions import abs as absolute
from polyrhythm.language.functions import (
    argmax,
    categorical,
    cumsum,
    exp,
    gather,
    log,
    log_softmax,
    softmax,
    squeeze,
    sum,
    topk,
    unsqueeze,
    where,
)
from polyrhythm.language.index import Dim
from polyrhythm.language.inputs import input
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.arguments import integer, whole
from polyrhythm.llm.constraints import Schema
from polyrhythm.llm.errors import PromptError

SMALLEST, LARGEST = 1e-30, 1e30
"""Between these a number is what it is in float32 too. A temperature below is greedy."""

Processor = Callable[[Tensor, Tensor, Dim], Tensor]
"""A user's own step: the logits after step t, the tokens over t, and t; the logits that count instead."""


class Options(TypedDict, total=False):
    """How tokens are chosen, and where a text ends; each is explained in `docs/llm.md`."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    processors: Sequence[Processor]
    json_schema: Schema | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool
    logprobs: int | None
    n: int
    seed: int
    num_beams: int
    length_penalty: float
    early_stopping: bool
    draft_model: Any
    num_draft_tokens: int


@dataclass(frozen=True)
class Choice:
    """How tokens are chosen, as far as it decides the program; the numbers themselves are inputs.

    Greedy unless `draws`. A draw is among the `top_k` likeliest tokens; with `top_p` among the likeliest ones that
    together have that probability (Holtzman et al., 2020); with `min_p` among those at least that part as likely as the
    likeliest (Nguyen et al., 2024); with `typical_p` among those whose surprise is nearest to the entropy (Meister et
    al., 2023). `logprobs` is how many alternatives are reported for each token, None if not even its own probability.
    """

    draws: bool = False
    top_k: int | None = None
    top_p: bool = False
    min_p: bool = False
    typical_p: bool = False
    repetition: bool = False
    counted: bool = False
    biased: bool = False
    ends: int = 0
    logprobs: int | None = None
    processors: tuple[Processor, ...] = ()
    constrained: bool = False


GREEDY = Choice()


@dataclass(frozen=True)
class Sampling:
    """All options of a call, checked: the program they need, its inputs, and what is decided outside of it."""

    choice: Choice
    inputs: Mapping[str, Any]
    ends: tuple[int, ...]
    stop: tuple[str, ...]
    n: int
    seed: int
    schema: Schema | None = None
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False
    draft_model: Any = None
    num_draft_tokens: int = 4

    @property
    def plain(self) -> bool:
        """Whether tokens are the likeliest, and nothing else than end tokens and the limit looks at them."""
        return replace(self.choice, ends=0) == GREEDY and not self.stop and self.schema is None


def sampling(vocabulary: int, ends: Sequence[int], **options: Unpack[Options]) -> Sampling:
    """The options of a call, checked, for a model with so many tokens that ends a text at some of them.

    >>> sampling(100, [2], temperature=0.7, top_k=40, top_p=0.9).inputs["temperature"]
    0.7
    """
    unknown = sorted(options.keys() - Options.__annotations__.keys())
    if unknown:
        raise PromptError(
            f"an option {unknown[0]!r}, which is not known", fix=f"known: {', '.join(Options.__annotations__)}"
        )
    temperature = _real(options, "temperature", 0.0, 0, LARGEST, "give 0 for the likeliest token, or more to draw")
    top_k = options.get("top_k")
    if top_k is not None:
        top_k = whole(top_k, 1, f"a draw among the top {top_k} tokens", "give top_k=1 or more, or None for all")
    inputs: dict[str, Any] = {}
    for key, least in (("top_p", SMALLEST), ("min_p", 0.0), ("typical_p", SMALLEST)):
        value: Any = options.get(key)
        if value is not None and not (_is_real(value) and least <= value <= 1):
            raise PromptError(f"a draw with {key} = {value}", fix=f"give {key} above 0, at most 1")
        if value is not None and (value > 0 if key == "min_p" else value < 1):
            inputs[key] = float(value)
    repetition = _real(options, "repetition_penalty", 1.0, SMALLEST, LARGEST, "give 1 for none, or more")
    presence = _real(options, "presence_penalty", 0.0, -LARGEST, LARGEST, "give 0 for none")
    frequency = _real(options, "frequency_penalty", 0.0, -LARGEST, LARGEST, "give 0 for none")
    draws = temperature >= SMALLEST
    inputs = {"temperature": temperature, **inputs} if draws else {}
    stops = _ends(ends, vocabulary, options)
    choice = Choice(
        draws=draws,
        top_k=top_k if draws and top_k is not None and top_k < vocabulary else None,
        top_p="top_p" in inputs,
        min_p="min_p" in inputs,
        typical_p="typical_p" in inputs,
        repetition=repetition != 1,
        counted=presence != 0 or frequency != 0,
        biased=bool(options.get("logit_bias")),
        ends=len(stops),
        logprobs=_alternatives(options, vocabulary),
        processors=_processors(options.get("processors") or ()),
        constrained=options.get("json_schema") is not None,
    )
    inputs |= {"repetition_penalty": repetition} if choice.repetition else {}
    inputs |= {"presence_penalty": presence, "frequency_penalty": frequency} if choice.counted else {}
    inputs |= {"logit_bias": _bias(options.get("logit_bias") or {}, vocabulary)} if choice.biased else {}
    inputs |= {"ends": np.array(stops, np.int32)} if stops else {}
    n = whole(options.get("n", 1), 1, f"{options.get('n')!r} samples", "give n=1 or more, an integer")
    seed = options.get("seed", 0)
    seed = integer(seed, f"a seed of {seed!r}", "give an integer from -2**63 to 2**64 - 1")
    found = Sampling(choice, inputs, stops, _strings(options.get("stop")), n, seed, options.get("json_schema"))
    return _searched(found, options)


def _searched(found: Sampling, options: Mapping[str, Any]) -> Sampling:
    """The options with those of beam search and speculative decoding, which choose the likeliest tokens."""
    given = options.get("num_beams", 1), options.get("num_draft_tokens", 4)
    beams = whole(given[0], 1, f"{given[0]!r} beams", "give num_beams=1 or more, an integer")
    proposed = whole(given[1], 1, f"{given[1]!r} proposed tokens", "give num_draft_tokens=1 or more, an integer")
    penalty = _real(options, "length_penalty", 1.0, -LARGEST, LARGEST, "give 1 for the mean, 0 for the sum")
    draft = options.get("draft_model")
    for name, used in (("num_beams", beams > 1), ("draft_model", draft is not None)):
        if used and not found.plain:
            raise PromptError(
                f"{name} with an option that draws, changes or reads scores, or reads the text",
                fix="leave temperature, penalties, bias, processors, logprobs, stop strings and json_schema out",
            )
    if draft is not None and (beams > 1 or found.n > 1):
        raise PromptError("a draft model with several texts of one prompt", fix="leave num_beams and n out")
    if beams > 1 and found.n > beams:
        raise PromptError(f"{found.n} texts of {beams} beams", fix="give n of at most num_beams")
    return replace(
        found,
        num_beams=beams,
        length_penalty=penalty,
        early_stopping=bool(options.get("early_stopping", False)),
        draft_model=draft,
        num_draft_tokens=proposed,
    )


def chosen(logits: Tensor, how: Choice) -> Tensor:
    """The next token for each row of logits, as int32."""
    if not how.draws:
        return argmax(logits, -1).cast("int32")
    # The likeliest has 0, so that a small temperature cannot make infinities of several.
    likeliest = (logits - logits.max(-1, keepdims=True)) / input("temperature", ())
    tokens: Tensor | None = None
    if how.top_k is not None or how.top_p:
        likeliest, tokens = topk(likeliest, how.top_k or logits.shape[-1])
    if how.top_p:
        shares = softmax(likeliest, -1)
        likeliest = where(cumsum(shares, -1) - shares < input("top_p", ()), likeliest, float("-inf"))
    if how.min_p:
        likeliest = where(likeliest >= log(input("min_p", ())), likeliest, float("-inf"))
    if how.typical_p:
        likeliest, order = _typical(likeliest)
        tokens = order if tokens is None else gather(tokens, order, -1)
    drawn = categorical(likeliest, name="token")
    if tokens is None:
        return drawn
    return squeeze(gather(tokens, unsqueeze(drawn, -1), -1), -1).cast("int32")


def _typical(scaled: Tensor) -> tuple[Tensor, Tensor]:
    """Those whose surprise is nearest to the entropy, in that order, until they have the probability `typical_p`."""
    normal = log_softmax(scaled, -1)
    shares = exp(normal)
    surprise = -where(shares > 0, normal, 0.0)
    distance = absolute(surprise - sum(shares * surprise, -1, keepdims=True))
    _, order = topk(where(shares > 0, -distance, float("-inf")), scaled.shape[-1])
    ordered = gather(shares, order, -1)
    kept = cumsum(ordered, -1) - ordered < input("typical_p", ())
    return where(kept, gather(scaled, order, -1), float("-inf")), order


def penalised(logits: Tensor, how: Choice, seen: Tensor | None, written: Tensor | None) -> Tensor:
    """Logits with the penalties and the bias of a choice: `seen` are all tokens so far, `written` counts the new."""
    if how.biased:
        logits = logits + input("logit_bias", (logits.shape[-1],))
    if seen is not None:  # Keskar et al., 2019
        penalty = input("repetition_penalty", ())
        logits = where(seen, where(logits < 0, logits * penalty, logits / penalty), logits)
    if written is not None:
        there = where(written > 0, input("presence_penalty", ()), 0.0)
        logits = logits - there - written * input("frequency_penalty", ())
    return logits


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _real(options: Mapping[str, Any], key: str, default: float, low: float, high: float, fix: str) -> float:
    value = options.get(key, default)
    if not _is_real(value) or not low <= value <= high:
        raise PromptError(f"a {key.replace('_', ' ')} of {value}", fix=fix)
    return float(value)


def _ends(ends: Sequence[int], vocabulary: int, options: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens that end a text: those of the model, unless they are ignored, and those of the call."""
    given = options.get("stop_token_ids")
    given = () if given is None else given
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise PromptError(f"stop tokens {given!r}", fix="give a list of integers")
    own = [whole(token, 0, f"a stop token {token!r}", f"give integers from 0 to {vocabulary - 1}") for token in given]
    if any(token >= vocabulary for token in own):
        raise PromptError(f"a stop token {max(own)}", fix=f"give integers from 0 to {vocabulary - 1}")
    return tuple(dict.fromkeys([*(() if options.get("ignore_eos") else ends), *own]))


def _alternatives(options: Mapping[str, Any], vocabulary: int) -> int | None:
    count = options.get("logprobs")
    if count is None:
        return None
    number = whole(count, 0, f"log-probabilities of {count!r} alternatives", "give logprobs=0 or more, an integer")
    return min(number, vocabulary)


def _bias(given: Any, vocabulary: int) -> np.ndarray:
    if not isinstance(given, Mapping):
        raise PromptError(f"a logit bias {given!r}", fix="give a dict from tokens to numbers")
    bias = np.zeros(vocabulary, np.float32)
    for token, value in given.items():
        number = whole(token, 0, f"a bias for the token {token!r}", "give tokens as integers")
        if number >= vocabulary or not _is_real(value) or not abs(value) <= LARGEST:
            raise PromptError(
                f"a bias of {value!r} for the token {number}", fix=f"give numbers up to 1e30 for 0 to {vocabulary - 1}"
            )
        bias[number] = value
    return bias


def _processors(given: Any) -> tuple[Processor, ...]:
    listed = (given,) if callable(given) else tuple(given) if isinstance(given, Sequence) else (given,)
    if not all(map(callable, listed)):
        raise PromptError(f"processors {given!r}", fix="give a list of functions of the logits, the tokens and t")
    return listed


def _strings(stop: Any) -> tuple[str, ...]:
    listed = (
        () if stop is None else tuple(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else (stop,)
    )
    if not all(isinstance(text, str) and text for text in listed):
        raise PromptError(f"a text ended by {stop!r}", fix="give a string, or a list of strings, none of them empty")
    return listed
