"""The choice of the next token from the logits: the likeliest, or a draw."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from polyrhythm.errors import PromptError
from polyrhythm.language.functions import argmax, categorical, cumsum, gather, softmax, squeeze, topk, unsqueeze, where
from polyrhythm.language.inputs import input
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.arguments import whole

SMALLEST, LARGEST = 1e-30, 1e30
"""Between these a number is what it is in float32 too. A temperature below is greedy."""


@dataclass(frozen=True)
class Choice:
    """How tokens are chosen, as far as it decides the program; the numbers themselves are inputs.

    Greedy unless `draws`. A draw is among the `top_k` likeliest tokens, and with `nucleus` among the likeliest ones
    that together have the probability `top_p` (Holtzman et al., 2020).
    """

    draws: bool = False
    top_k: int | None = None
    nucleus: bool = False

    def inputs(self, temperature: float, top_p: float | None) -> dict[str, float]:
        """The inputs of a program that chooses so."""
        given = {"temperature": float(temperature)} if self.draws else {}
        return given | ({"top_p": max(float(top_p or 0.0), SMALLEST)} if self.nucleus else {})


GREEDY = Choice()


def choice(temperature: float, top_k: int | None, top_p: float | None, vocabulary: int) -> Choice:
    """The choice that some arguments ask for, checked.

    >>> choice(0.0, None, None, 100), choice(0.7, 40, 0.9, 100)
    (Choice(draws=False, top_k=None, nucleus=False), Choice(draws=True, top_k=40, nucleus=True))
    """
    if not isinstance(temperature, Real) or not 0 <= temperature <= LARGEST:
        raise PromptError(f"a temperature of {temperature}", fix="give 0 for the likeliest token, or more to draw")
    if top_k is not None:
        fix = "give top_k=1 or more, or None for all"
        top_k = whole(top_k, 1, f"a draw among the top {top_k} tokens", fix)
    if top_p is not None and not (isinstance(top_p, Real) and 0 < top_p <= 1):
        raise PromptError(f"a draw among tokens of probability {top_p}", fix="give top_p above 0, at most 1")
    if temperature < SMALLEST:
        return Choice()
    few = None if top_k is None or top_k >= vocabulary else top_k
    return Choice(True, few, top_p is not None and top_p < 1)


def chosen(logits: Tensor, how: Choice) -> Tensor:
    """The next token for each row of logits, as int32."""
    if not how.draws:
        return argmax(logits, -1).cast("int32")
    # The likeliest has 0, so that a small temperature cannot make infinities of several.
    scaled = (logits - logits.max(-1, keepdims=True)) / input("temperature", ())
    if how.top_k is None and not how.nucleus:
        return categorical(scaled, name="token")
    likeliest, tokens = topk(scaled, how.top_k or logits.shape[-1])
    if how.nucleus:
        shares = softmax(likeliest, -1)
        likeliest = where(cumsum(shares, -1) - shares < input("top_p", ()), likeliest, float("-inf"))
    drawn = categorical(likeliest, name="token")
    return squeeze(gather(tokens, unsqueeze(drawn, -1), -1), -1).cast("int32")
