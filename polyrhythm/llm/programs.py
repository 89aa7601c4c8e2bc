"""A decoder as recurrences over layers and steps: the program that generates, and the one that scores given text.

A vector h[l, t] is what layer l makes of step t; h[0, t] is the token's. The token at t is given while t is within the
prompt, and otherwise chosen from the scores at t - 1. Nothing else is said: what is kept of the past follows from the
slices that attention reads, and which steps can be computed together from the tokens that are given.

Sequences of a batch begin at step 0 together and are a dim (see `batches.py`). A sequence whose prompt is longer than
the shortest goes on with its given tokens while others already write, so no step is padding, and t is the position in
every sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyrhythm.language.functions import any as any_of
from polyrhythm.language.functions import gather, log_softmax, one_hot, sqrt, squeeze, topk, value, where
from polyrhythm.language.index import Bound, Dim, dim, size
from polyrhythm.language.inputs import input
from polyrhythm.language.recurrent import recurrent
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.batches import Batch
from polyrhythm.llm.config import Config, stacks
from polyrhythm.llm.families import blank_decoder
from polyrhythm.llm.naming import layer_number
from polyrhythm.llm.parts import Attention, Before, Decoder, FusedAttention, Step
from polyrhythm.llm.patterns import Pattern, Restriction
from polyrhythm.llm.sampling import Choice, chosen, penalised
from polyrhythm.runtime.program import Program


@dataclass(frozen=True)
class Generating:
    """A compiled program that generates: its steps, and the size that says how many of them are given to all."""

    program: Program
    t: Dim
    given: Bound


def decoded(
    config: Config,
    token: Tensor,
    t: Dim,
    pattern: Pattern | None,
    given: Any = None,
    adapted: Callable[[Any, Sequence[Dim]], Any] | None = None,
    restricted: Restriction | None = None,
    positions: Tensor | None = None,
    prefix: str = "",
    past: Before | None = None,
    sequences: int = 1,
) -> tuple[Decoder, Tensor, dict[Bound, int]]:
    """The decoder, what its last layer makes of each token, and the sizes of the loops over layers.

    The weights are inputs under their names.

    `given` is the condition on t under which tokens are known, if there is one. `adapted` may change the decoder: it is
    called with it and with the dim of layers of each entry in its list. `restricted`, `positions`, `past` and
    `sequences` are those of `Step`. `prefix` comes before the names of the weights, where there are two models.
    """
    decoder, loops = blank_decoder(config), stacks(config.kinds)
    names = ["l"] if len(loops) == 1 else [f"l{number}" for number in range(len(loops))]
    dims = [dim(name) for name in names]
    # The loop of each layer in the decoder's list: a stack has as many as its period.
    loop_of = [own for own, loop in zip(dims, loops, strict=True) for _ in range(loop.period)]
    weights = {}
    for name, blank in decoder.weights().items():
        number = layer_number(name, decoder.layers_at, len(loop_of))
        over = () if number is None else (loop_of[number][0],)
        own = config.formats.get(name)
        declared = input if own is None else own.declared
        weights[name] = declared(prefix + name, blank.shape, over, config.dtype)
    model, step = decoder.using(weights), Step(t, pattern, given, restricted, positions, past, sequences)
    if adapted is not None:
        model = adapted(model, [l for l, _ in loop_of])
    others = tuple(own for own in token.dims if own.symbol is not t.symbol)
    dtype = np.dtype("float32") if config.wide else config.dtype
    h, number = model.embed(token, t).cast(dtype), 0
    for (l, L), loop in zip(dims, loops, strict=True):
        state = recurrent((*token.shape, config.width), ((l, L + 1), *others, t), dtype, name="h")
        state[0] = h
        x: Tensor = state
        for _ in range(loop.period):
            x, number = model.layer(number)(x, step), number + 1
        state[l + 1] = x
        h = state[L]
    return model, h, {L: loop.repeats for (_, L), loop in zip(dims, loops, strict=True)}


def scores_of(
    config: Config,
    token: Tensor,
    t: Dim,
    pattern: Pattern | None,
    given: Any = None,
    adapted: Any = None,
    sequences: int = 1,
) -> tuple[Tensor, dict[Bound, int]]:
    """The logits after each token, and the sizes of the loops over layers."""
    model, h, sizes = decoded(config, token, t, pattern, given, adapted, sequences=sequences)
    return model.scores(h), sizes


def generating(
    config: Config, batch: int, how: Choice, pattern: Pattern | None, backend: str, **devices: Any
) -> Generating:
    """The program that writes: inputs `prompt` over t, `lengths` and `limits` of the sequences, and `ends` if any.

    The output is the tokens; where log-probabilities are asked for, a dict of them and those.
    """
    own = Batch.of(batch, backend, bool(config.formats) or how.constrained)
    t, T = dim("t")
    steps = (t, *own.dims)
    P = size("P", max=T)
    prompt = input("prompt", own.axes, steps, "int32")
    lengths, limits = (input(name, own.axes, own.dims, "int32") for name in ("lengths", "limits"))
    token = recurrent(own.axes, steps, "int32", name="token")
    ended = recurrent(own.axes, steps, "bool", name="ended")
    scores, sizes = scores_of(config, token, t, pattern, t < P, sequences=batch)
    last = value(t) + 1 >= limits
    filler: Tensor | int = 0
    if how.ends:
        ends = input("ends", (how.ends,), (), "int32")
        filler = ends.axes[0]
        last = last | (any_of(token.unsqueeze(-1) == ends, -1) & (value(t) >= lengths))
    ended[t < P] = False  # a constant, so that nothing in the prompt waits for the step before
    ended[t >= P] = ended[t - 1] | last
    adjusted = _adjusted(scores, how, token, lengths, t, own)
    if how.constrained:  # what may follow is known once the token before has been read
        allowed = input("allowed", (*own.axes, scores.shape[-1]), steps, "bool")
        following = where(ended[t - 1], filler, chosen(where(allowed, adjusted[{t: t - 1}], float("-inf")), how))
    else:
        following = where(ended, filler, chosen(adjusted, how))[{t: t - 1}]
    token[t < P] = prompt
    token[t >= P] = where(value(t) < lengths, prompt, following)
    program = own.compiled(
        token if how.logprobs is None else {"token": token, **_logprobs(scores, token, how.logprobs, t, P, own)},
        sizes,
        until={t: where(t < P, False, own.all(ended))},
        **devices,
    )
    return Generating(program, t, P)


def continuing(config: Config, how: Choice, pattern: Pattern | None, backend: str, **devices: Any) -> Generating:
    """The program of a conversation: what is to be read and what is written take turns, as the host says step by step.

    Inputs over t: `prompt`, of which the first P tokens are read together, then `given`, a token or -1 where the model
    writes, and, where tokens of an answer are counted, `answer`, the step at which it began. The output is the tokens.
    """
    t, T = dim("t")
    P = size("P", max=T, min=1)
    prompt, given = (input(name, (), (t,), "int32") for name in ("prompt", "given"))
    token = recurrent((), (t,), "int32", name="token")
    scores, sizes = scores_of(config, token, t, pattern, t < P)
    answer = input("answer", (), (t,), "int32") if how.counted else value(t)
    token[t < P] = prompt
    # The choice belongs to the step that is asked for, so that `given` is not read before the token before is there.
    alone = Batch.of(1, backend)
    token[t >= P] = where(given >= 0, given, chosen(_adjusted(scores, how, token, answer, t, alone)[t - 1], how))
    return Generating(alone.compiled(token, sizes, **devices), t, P)


def _adjusted(scores: Tensor, how: Choice, token: Tensor, lengths: Tensor, t: Dim, batch: Batch) -> Tensor:
    """Logits after penalties, processors and bias. What was seen so far is a recurrence over steps."""
    shape, steps = (*batch.axes, scores.shape[-1]), (t, *batch.dims)
    seen = written = None
    if how.repetition:
        there = one_hot(token, shape[-1], "bool")
        seen = recurrent(shape, steps, "bool", name="seen")
        seen[t < 1] = there
        seen[t >= 1] = seen[t - 1] | there
    if how.counted:
        new = one_hot(token, shape[-1]) * (value(t) >= lengths).unsqueeze(-1).cast("float32")
        first = (value(t) == lengths).unsqueeze(-1)
        written = recurrent(shape, steps, "float32", name="written")
        written[t < 1] = new
        written[t >= 1] = where(first, 0.0, written[t - 1]) + new
    scores = penalised(scores, how, seen, written)
    for processor in how.processors:
        scores = processor(scores, token, t)
    return scores


def _logprobs(scores: Tensor, token: Tensor, count: int, t: Dim, P: Bound, batch: Batch) -> dict[str, Tensor]:
    """The log-probability of each written token, and those of the likeliest: 0 for what is given to all."""
    normal, steps = log_softmax(scores, -1), (t, *batch.dims)
    own = recurrent(token.shape, steps, "float32", name="logprob")
    own[t < P] = 0.0
    own[t >= P] = squeeze(gather(normal[{t: t - 1}], token.unsqueeze(-1), -1), -1)
    found: dict[str, Tensor] = {"logprob": own}
    if not count:
        return found
    values, tokens = topk(normal, count)
    for name, tensor in (("top_logprobs", values), ("top_tokens", tokens.cast("int32"))):
        kept = recurrent(tensor.shape, steps, tensor.dtype, name=name)
        kept[t < P] = 0
        kept[t >= P] = tensor[{t: t - 1}]
        found[name] = kept
    return found


def judging(config: Config, pattern: Pattern | None, backend: str, **devices: Any) -> Program:
    """The program that judges given text: input `tokens` over t, output the log-probability of each, 0 at first."""
    t, _ = dim("t")
    token = input("tokens", (), (t,), "int32")
    scores, sizes = scores_of(config, token, t, pattern)
    own = recurrent((), (t,), "float32", name="logprob")
    own[t < 1] = 0.0
    own[t >= 1] = squeeze(gather(log_softmax(scores, -1)[t - 1], token.unsqueeze(-1), -1), -1)
    return Batch.of(1, backend).compiled(own, sizes, **devices)


def scoring(config: Config, batch: int, pattern: Pattern | None, backend: str, **devices: Any) -> Program:
    """The program that scores given text: input `tokens` over t, output the logits after each.

    Where sequences are a dim it comes before that of steps.
    """
    own = Batch.of(batch, backend, bool(config.formats))
    t, _ = dim("t")
    token = input("tokens", own.axes, (t, *own.dims), "int32")
    scores, sizes = scores_of(config, token, t, pattern, sequences=batch)
    return own.compiled(scores, sizes, **devices)


def embedding(config: Config, pattern: Pattern | None, backend: str, **devices: Any) -> Program:
    """The program that embeds given text: input `tokens` over t, output a vector of length 1.

    It is the mean over all steps of what the last layer makes, normalised.
    """
    t, T = dim("t")
    model, h, sizes = decoded(config, input("tokens", (), (t,), "int32"), t, pattern)
    mean = model.final(h).cast("float32")[0:T].mean(0)
    return Batch.of(1, backend).compiled(mean / sqrt((mean * mean).sum() + 1e-12), sizes, **devices)


def has_slots(config: Config) -> bool:
    """Whether texts of a model can share a program that begins them at different steps: rotary positions or none."""
    parts = [part for _, part in blank_decoder(config).parts() if isinstance(part, Attention)]
    usual = all(type(part) in (Attention, FusedAttention) for part in parts)
    return bool(parts) and usual and config.limit is None and all(kind.mixer == "attention" for kind in config.kinds)
