"""Speculative decoding (Leviathan et al., 2023): a small model proposes tokens, and the large one judges them together.

In each round the draft writes a few tokens one by one, from the last token that is settled. The target reads all of
them in one step, as rows, and says which token it would have written after each. Up to the first difference they are
the target's own, and its token there is settled too: the text is the target's, in fewer steps of it.

Rounds are the steps of the recurrence, and the tokens of a round steps within them. What was proposed and not taken
stays where it is and is not seen: `taken` says how many tokens of each round count, for the masks of both models and
for positions. The prompt fills the first rounds, which wait for nothing and are computed together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polyrhythm.errors import UnsupportedError
from polyrhythm.language.functions import any as any_of
from polyrhythm.language.functions import arange, argmax, cumsum, reshape, take, value, where
from polyrhythm.language.functions import sum as sum_of
from polyrhythm.language.index import Bound, Dim, dim, index_max, size
from polyrhythm.language.inputs import input
from polyrhythm.language.recurrent import recurrent
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.errors import PromptError
from polyrhythm.llm.patterns import Pattern, Restriction, Seen
from polyrhythm.llm.programs import decoded, has_slots
from polyrhythm.llm.sharding import devices_of
from polyrhythm.runtime.program import Program, compile
from polyrhythm.runtime.settings import quiet

DRAFT = "draft."
"""Before the names of the draft's weights."""


@dataclass(frozen=True)
class Speculating:
    """The program, its rounds, and how many of them the prompt fills."""

    program: Program
    i: Dim
    rounds: Bound
    given: Bound
    width: int

    def inputs(self, row: np.ndarray, count: int) -> tuple[dict[str, Any], dict[Any, int]]:
        """The inputs and bounds for a prompt and so many new tokens."""
        filled = -(-len(row) // self.width)
        rounds = filled + count
        prompt, taken = np.zeros(rounds * self.width, np.int32), np.full(rounds, self.width, np.int32)
        prompt[: len(row)] = row
        taken[filled - 1] = len(row) - (filled - 1) * self.width
        inputs = {"prompt": prompt.reshape(rounds, self.width), "filled": taken, "limit": len(row) + count}
        return inputs, {self.given: filled, self.rounds: rounds}

    def tokens(self, found: dict[str, Any], row: np.ndarray) -> np.ndarray:
        """The new tokens that a run of the program wrote after a prompt, and perhaps some more."""
        own, taken = np.asarray(found["own"]), np.asarray(found["taken"])
        filled = -(-len(row) // self.width)
        first = own[filled - 1, taken[filled - 1] - 1]
        rest = [own[number, : taken[number]] for number in range(filled, len(own))]
        return np.concatenate([[first], *rest]).astype(np.int32)


def speculating(model: Any, draft_model: Any, proposed: int, ends: int) -> Speculating:
    """The program in which `draft_model` proposes so many tokens a round to a model, and `ends` tokens end a text."""
    if not hasattr(draft_model, "config"):
        raise PromptError(f"a draft model {draft_model!r}", fix="give a model that llm.load returned")
    target, draft = model.config, draft_model.config
    if target.vocabulary != draft.vocabulary:
        raise PromptError(
            f"a draft model of {draft.vocabulary} tokens for a model of {target.vocabulary}",
            fix="take a draft model with the same tokenizer",
        )
    if model.pattern is not None or draft_model.pattern is not None:
        raise UnsupportedError(
            "speculative decoding with a pattern of attention of your own", fix="leave the pattern out"
        )
    if model.mesh != draft_model.mesh:
        raise UnsupportedError("a draft model on other devices than the model", fix="load both with the same mesh=")
    for config in (target, draft):
        if not has_slots(config):
            raise UnsupportedError(
                f"speculative decoding with a model of the family {config.family}",
                fix="take models with attention and rotary positions",
            )
    width = proposed + 1
    (i, rounds), (j, J) = dim("i"), dim("j")
    R = size("R", min=1, max=rounds)
    places = arange(width)
    prompt, limit = input("prompt", (), (i, j), "int32"), input("limit", (), (), "int32")
    filled = input("filled", (), (i,), "int32")
    token = recurrent((), (i, j), "int32", name="token")
    taken, base = (recurrent((), (i,), "int32", name=name) for name in ("taken", "base"))
    base[i < R] = value(i) * width
    base[i >= R] = base[i - 1] + taken[i - 1]

    # The draft reads a round token by token; the target reads it as rows of one step.
    small, h, small_sizes = decoded(
        draft, token, j, None, restricted=_within(i, j, width, taken, base), positions=base + value(j), prefix=DRAFT
    )
    proposal = argmax(small.scores(h), -1).cast("int32")
    offered = token[{j: slice(0, width)}]
    large, h, sizes = decoded(
        target, offered, i, None, i < R, restricted=_across(i, taken, base, width), positions=base + places
    )
    own = argmax(large.scores(h), -1).cast("int32")

    # Proposals count as long as they are what the target writes; its own token after them is settled too.
    wrong = offered.axes[1:] != own.axes[: width - 1]
    taken[i < R] = filled
    taken[i >= R] = 1 + sum_of((cumsum(wrong.cast("int32"), 0) == 0).cast("int32"), 0)
    token[(i < R) & (j >= 0)] = prompt
    token[(i >= R) & (j < 1)] = take(own[i - 1], taken[i - 1] - 1, 0)
    token[(i >= R) & (j >= 1)] = proposal[{j: j - 1}]
    over = base + taken + 1 >= limit
    if ends:  # the round reads the token that the prompt led to
        last = input("ends", (ends,), (), "int32")
        over = over | any_of((places < taken) & any_of(own.unsqueeze(-1) == last, -1), 0)
        over = over | any_of(offered.axes[0] == last, 0)
    specs = {**model.specs, **{DRAFT + name: spec for name, spec in draft_model.specs.items()}}
    with quiet():
        program = compile(
            {"own": own, "taken": taken},
            bounds={J: width, **small_sizes, **sizes},
            until={i: where(i < R, False, over)},
            backend=model.backend,
            **devices_of(model.mesh, specs),
        )
    return Speculating(program, i, rounds, R, width)


def _across(i: Dim, taken: Tensor, base: Tensor, width: int) -> Restriction:
    """Rows see what counts of earlier rounds, and of their own round the rows up to theirs."""
    places = arange(width)
    rows = reshape(places, width, 1, 1)

    def restriction(own: Pattern, window: int | None) -> Pattern:
        before, now = slice(own(i).start, i), slice(i, i + 1)
        earlier = (places < taken[{i: before}].unsqueeze(-1)).unsqueeze(0)
        same = places <= rows
        if window is not None:
            nearest = base + rows - window
            earlier = earlier & ((base[{i: before}].unsqueeze(-1) + places).unsqueeze(0) > nearest)
            same = same & (places > rows - window)
        return lambda _: Seen((before, now), None, (earlier, same))

    return restriction


def _within(i: Dim, j: Dim, width: int, taken: Tensor, base: Tensor) -> Restriction:
    """A step sees what counts of earlier rounds, and the steps of its own round so far."""
    within = {j: slice(0, width)}

    def restriction(own: Pattern, window: int | None) -> Pattern:
        # Each round settles one token at least, so a window of steps is within as many rounds.
        rounds = slice(0 if window is None else index_max(0, i - window + 1), i)
        now = {i: slice(i, i + 1), j: slice(own(j).start, j + 1)}
        places = value(j)[within]
        earlier = places < taken[{i: rounds}].unsqueeze(-1)
        if window is not None:
            earlier = earlier & (base[{i: rounds}].unsqueeze(-1) + places > base + value(j) - window)
        flat = reshape(earlier, earlier.shape[0] * earlier.shape[1])
        return lambda _: Seen(({i: rounds, **within}, now), None, (flat, None))

    return restriction
