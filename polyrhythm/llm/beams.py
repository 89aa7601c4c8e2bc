"""Beam search: the likeliest texts rather than the likeliest token at each step.

Several texts of one prompt are written together, as rows. At each step the best continuations of all of them become
the rows of the next, so a row goes on from another one: `parent`. Nothing is moved for that. `owner` says in which row
the past of each row was written at every step, a recurrence over steps, and attention reads the keys of all rows where
they lie and counts those of the own past. What ended is a state as well: the best ended texts so far, each by the step
and the row that it went on from; the caller follows the parents back.

Which texts are kept and when the search ends is as in transformers: candidates that end among the best are ended
texts, ranked by their log-probability over a power of their length, `length_penalty`; the search ends when the best
row could not improve on them at its present length, or with `early_stopping` when there are enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polyrhythm.errors import UnsupportedError
from polyrhythm.language.functions import (
    all,
    arange,
    as_tensor,
    concat,
    exp,
    log,
    log_softmax,
    reshape,
    take,
    topk,
    value,
    where,
)
from polyrhythm.language.functions import any as any_of
from polyrhythm.language.index import dim, size
from polyrhythm.language.inputs import input
from polyrhythm.language.recurrent import Recurrent, recurrent
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.config import Config
from polyrhythm.llm.patterns import Pattern, masked
from polyrhythm.llm.programs import Generating, decoded
from polyrhythm.runtime.program import compile
from polyrhythm.runtime.settings import quiet

LEAST = -1e9
"""The score of a text that is not there."""


@dataclass(frozen=True)
class Beams:
    """What decides the program of a search: rows, tokens that end a text, and whether enough ended texts end it."""

    count: int
    ends: int
    early_stopping: bool


@dataclass(frozen=True)
class Found:
    """A text that a search found: its new tokens, and its log-probability over the power of its length."""

    tokens: np.ndarray
    score: float


def searching(config: Config, how: Beams, pattern: Pattern | None, backend: str, **devices: Any) -> Generating:
    """The program that searches: inputs `prompt` over t, its length `length`, the last step's number `limit`.

    `length_penalty` is a number, and `ends` are tokens, if there are any. The outputs are what `texts` reads.
    """
    refuse_states(config, "beam search")
    count, beams = how.count, arange(how.count)
    t, T = dim("t")
    P = size("P", max=T, min=1)
    room = size("room")  # at least T, which the search itself decides
    prompt, limit = input("prompt", (), (t,), "int32"), input("limit", (), (), "int32")
    penalty, ends = input("length_penalty", ()), input("ends", (how.ends,), (), "int32") if how.ends else None
    token, parent = (recurrent((count,), (t,), "int32", name=name) for name in ("token", "parent"))
    owner = recurrent((count, room), (t,), "int32", name="owner")
    running, ended = (recurrent((count,), (t,), "float32", name=name) for name in ("running", "ended"))
    ended_at, ended_in, last = (
        recurrent((count,), (t,), "int32", name=name) for name in ("ended_at", "ended_in", "last")
    )
    hopeful, over = (recurrent((), (t,), "bool", name=name) for name in ("hopeful", "over"))

    restricted = masked(lambda steps: take(owner, value(t)[{t: steps}], 1).unsqueeze(-1) == beams)
    model, h, sizes = decoded(config, token, t, pattern, t < P, restricted=restricted)
    normal = log_softmax(model.scores(h), -1)
    vocabulary = int(normal.shape[-1])

    # The best continuations of all rows, enough of them that as many as there are rows go on.
    several = max(2, 1 + how.ends) * count
    flat = reshape(normal[t - 1] + running[t - 1].unsqueeze(-1), count * vocabulary)
    best, place = topk(flat, min(several, count * vocabulary))
    row, chosen = (place // vocabulary).cast("int32"), (place % vocabulary).cast("int32")
    stops = as_tensor(value(t) + 1 >= limit)
    stops = stops if ends is None else stops | any_of(chosen.unsqueeze(-1) == ends, -1)
    going, order = topk(where(stops, best + LEAST, best), count)

    # Ended texts: those so far, and the candidates that end here.
    grown = exp(penalty * log((value(t) + 1 - value(P)).cast("float32")))
    full = _full(ended[t - 1])
    closed = ~hopeful[t - 1] | full if how.early_stopping else ~hopeful[t - 1]
    counts = stops & (arange(int(best.shape[0])) < count) & ~closed
    scored, kept = topk(concat([ended[t - 1], where(counts, best / grown, LEAST)]), count)
    now = where(counts, value(t), -1).cast("int32")

    _defined(token, t < P, prompt + 0 * beams, take(chosen, order, 0))
    _defined(parent, t < P, beams.cast("int32"), take(row, order, 0))
    _defined(running, t < P, where(beams > 0, LEAST, 0.0), going)
    _defined(ended, t < P, LEAST + 0.0 * beams.cast("float32"), scored)
    _defined(ended_at, t < P, (0 * beams - 1).cast("int32"), take(concat([ended_at[t - 1], now]), kept, 0))
    _defined(ended_in, t < P, (0 * beams).cast("int32"), take(concat([ended_in[t - 1], row]), kept, 0))
    _defined(last, t < P, (0 * beams).cast("int32"), take(concat([last[t - 1], chosen]), kept, 0))
    steps = arange(room).unsqueeze(0)
    _defined(owner, t < P, (0 * steps + 0 * beams.unsqueeze(-1)).cast("int32"), _passed_on(owner, parent, steps, t))
    # The best row at its present length is the hope; the worst ended text, if there are enough, is what it must beat.
    worst = where(_full(ended), ended.min(0), LEAST)
    hopeful[t < P] = True
    hopeful[t >= P] = hopeful[t - 1] & (running.axes[0] / grown > worst)
    over[t < P] = False
    finished = ~hopeful | all(stops)
    over[t >= P] = finished | _full(ended) if how.early_stopping else finished
    outputs = {"token": token, "parent": parent, "ended": ended, "at": ended_at, "in": ended_in, "last": last}
    with quiet():
        program = compile(outputs, bounds=sizes, until={t: where(t < P, False, over)}, backend=backend, **devices)
    return Generating(program, t, P)


def _full(ended: Tensor) -> Tensor:
    """Whether there are as many ended texts as rows."""
    return all(ended > LEAST / 2)


def _passed_on(owner: Recurrent, parent: Recurrent, steps: Tensor, t: Any) -> Tensor:
    """A row's past is its parent's, and the step itself."""
    own = arange(int(parent.shape[0])).unsqueeze(-1)
    return where(steps == value(t), own, take(owner[t - 1], parent, 0)).cast("int32")


def _defined(state: Recurrent, given: Any, first: Tensor, then: Tensor) -> None:
    state[given] = first
    state[~given] = then


def texts(found: dict[str, np.ndarray], length: int) -> list[Found]:
    """The ended texts of a search after a prompt of so many tokens, the best first."""
    token, parent = np.asarray(found["token"]), np.asarray(found["parent"])
    scores, at, row, last = (np.asarray(found[name])[-1] for name in ("ended", "at", "in", "last"))
    made = []
    for score, step, own, end in zip(scores.tolist(), at.tolist(), row.tolist(), last.tolist(), strict=True):
        if step < 0:
            continue
        tokens = [end]
        for before in range(step - 1, length - 1, -1):
            tokens.append(int(token[before, own]))
            own = int(parent[before, own])
        made.append(Found(np.array(tokens[::-1], np.int32), score))
    return made


def refuse_states(config: Config, what: str) -> None:
    """Only attention can read what another row wrote; a state of a recurrent layer cannot be taken back."""
    if any(kind.mixer != "attention" for kind in config.kinds):
        raise UnsupportedError(
            f"{what} with a model of the family {config.family}, whose layers have states",
            fix="take a model whose layers are attention",
        )
