"""A decoder as recurrences over layers and steps: the program that generates, and the one that scores given text.

A vector h[l, t] is what layer l makes of step t; h[0, t] is the token's. The token at t is given while t is within the
prompt, and otherwise chosen from the scores at t - 1. Nothing else is said: what is kept of the past follows from the
slices that attention reads, and which steps can be computed together from the tokens that are given.

Sequences of a batch begin at step 0 together and are an axis of every value. A sequence whose prompt is longer than the
shortest goes on with its given tokens while others already write, so no step is padding, and t is the position in
every sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyrhythm.language.functions import any as any_of
from polyrhythm.language.functions import value, where
from polyrhythm.language.index import Bound, Dim, dim, size
from polyrhythm.language.inputs import input
from polyrhythm.language.recurrent import recurrent
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.config import Config
from polyrhythm.llm.decoders import blank_decoder
from polyrhythm.llm.patterns import Pattern
from polyrhythm.llm.sampling import Choice, chosen
from polyrhythm.runtime.program import Program, compile


@dataclass(frozen=True)
class Generating:
    """A compiled program that generates: its steps, and the size that says how many of them are given to all."""

    program: Program
    t: Dim
    given: Bound


def scores_of(config: Config, token: Tensor, t: Dim, pattern: Pattern) -> tuple[Tensor, Bound]:
    """The logits after each token, and the number of layers. The weights are inputs under their names."""
    l, L = dim("l")
    decoder = blank_decoder(config)
    weights = {
        name: input(name, blank.shape, (l,) if name.startswith(decoder.layers_at) else (), config.dtype)
        for name, blank in decoder.weights().items()
    }
    model = decoder.using(weights)
    h = recurrent((*token.shape, config.width), ((l, L + 1), t), config.dtype, name="h")
    h[0] = model.embed(token, t)
    h[l + 1] = model.layer(h, t, pattern)
    return model.scores(h[L]), L


def generating(config: Config, batch: int, how: Choice, pattern: Pattern, backend: str) -> Generating:
    """The program that writes: inputs `prompt` over t, `lengths` and `limits` of the sequences; output the tokens."""
    rows = () if batch == 1 else (batch,)
    t, T = dim("t")
    P = size("P", max=T)
    prompt = input("prompt", rows, (t,), "int32")
    lengths, limits = input("lengths", rows, (), "int32"), input("limits", rows, (), "int32")
    token = recurrent(rows, (t,), "int32", name="token")
    ended = recurrent(rows, (t,), "bool", name="ended")
    scores, L = scores_of(config, token, t, pattern)
    last = value(t) + 1 >= limits
    if config.ends:
        is_end = any_of(token.unsqueeze(-1) == np.array(config.ends, np.int32), -1)
        last = last | (is_end & (value(t) >= lengths))
    ended[t < P] = False  # a constant, so that nothing in the prompt waits for the step before
    ended[t >= P] = ended[t - 1] | last
    following = where(ended, config.ends[0] if config.ends else 0, chosen(scores, how))
    token[t < P] = prompt
    token[t >= P] = where(value(t) < lengths, prompt, following[t - 1])
    program = compile(
        token,
        bounds={L: config.layers},
        until={t: where(t < P, False, ended.all(0) if rows else ended)},
        backend=backend,
        progress=False,
    )
    return Generating(program, t, P)


def scoring(config: Config, batch: int, pattern: Pattern, backend: str) -> Program:
    """The program that scores given text: input `tokens` over t, output the logits after each."""
    rows = () if batch == 1 else (batch,)
    t, _ = dim("t")
    scores, L = scores_of(config, input("tokens", rows, (t,), "int32"), t, pattern)
    return compile(scores, bounds={L: config.layers}, backend=backend, progress=False)
